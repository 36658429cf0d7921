"""Where things are: the project, its notebooks, its runs, and the names of the stages."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

STAGES = (
    "00_start",
    "01_tokenizer_extension",
    "02_alignment",
    "03_phase1_training",
    "04_fine_tuning",
    "05_benchmark_evaluation",
    "06_mechanistic_analysis",
    "07_compare_runs",
)


FOLDER_VARIABLES = ("VOCABX_ROOT", "VOCABX_RUNS", "VOCABX_CACHE", "VOCABX_DATA", "XDG_CACHE_HOME")


def user_path(path: str | Path) -> Path:
    """Make what a user typed an absolute path: `~` is the home folder, a relative path is below the current one."""
    return Path(path).expanduser().absolute()


def variable_folder(name: str) -> Path | None:
    """Return the folder that an environment variable names, as an absolute path; None when it is unset or empty."""
    text = os.environ.get(name)
    return user_path(text) if text else None


def pin_folders() -> None:
    """Make the folders in our environment variables absolute, for processes that start in another folder.

    A kernel starts in the notebook's folder: there, a relative path would be another place than the user meant.
    """
    for name in FOLDER_VARIABLES:
        if folder := variable_folder(name):
            os.environ[name] = str(folder)


def project_root() -> Path:
    """Find the folder of the project: `$VOCABX_ROOT`, the checkout that holds the package, or the current one."""
    if root := variable_folder("VOCABX_ROOT"):
        return root
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "notebooks").is_dir():
        return checkout
    here = Path.cwd()
    return next((p for p in (here, *here.parents) if (p / "notebooks" / f"{STAGES[0]}.ipynb").is_file()), here)


def notebooks_root() -> Path:
    """Return the folder of the source notebooks."""
    return project_root() / "notebooks"


def runs_root() -> Path:
    """Return the folder of all runs: `$VOCABX_RUNS`, else `runs/` in the project."""
    return variable_folder("VOCABX_RUNS") or project_root() / "runs"


def cache_dir() -> Path:
    """Return the folder of models and evaluation environments: `$VOCABX_CACHE`, or `vocabx` in the user's cache."""
    return variable_folder("VOCABX_CACHE") or (variable_folder("XDG_CACHE_HOME") or Path.home() / ".cache") / "vocabx"


def data_dir() -> Path | None:
    """Return the folder of benchmark files: `$VOCABX_DATA`; None when that is not set."""
    return variable_folder("VOCABX_DATA")


def show_path(path: Path) -> str:
    """Spell a path for a reader: relative to the run or project folder where it lies below one."""
    for prefix, root in (("runs", runs_root()), ("", project_root())):
        with contextlib.suppress(ValueError):
            return (Path(prefix) / Path(path).resolve().relative_to(root.resolve())).as_posix()
    return str(path)


def stage_name(stage: str) -> str:
    """Return the full name of a stage given as `03`, `3` or `03_phase1_training`; ValueError where none has it."""
    for name in STAGES:
        if stage in (name, name[:2], name[:2].removeprefix("0") or "0"):
            return name
    raise ValueError(f"No notebook {stage!r}. Known: {', '.join(STAGES)}.")
