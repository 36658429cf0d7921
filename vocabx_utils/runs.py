"""Run folders: how stages hand over files, and how finished work is recognised.

Every stage writes below `runs/<run>/<NN_stage>/[<variant>/]`. `claim` opens a folder with a key (settings and
input fingerprints), `finish` seals it with `provenance.json`. Finished work with the same key is skipped, with
another key refused. All files are written atomically: temporary name, fsync, rename.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vocabx_utils import locks
from vocabx_utils.files import read_json, write_json
from vocabx_utils.paths import runs_root, show_path, stage_name

REPLACE = "VOCABX_REPLACE"
"""Environment variable; with the value 1, `claim` removes finished or begun work with another key and begins anew."""
_RECORDED = ("torch", "transformers", "tokenizers", "peft", "accelerate", "numpy", "pandas", "scipy")


class MissingStageError(RuntimeError):
    """A file that an earlier notebook makes is not there."""


class KeyMismatchError(RuntimeError):
    """A folder holds work done with other settings or inputs."""


@dataclass(frozen=True)
class Run:
    """One run of the series: a folder with a sub-folder for each stage."""

    name: str
    folder: Path

    def stage(self, stage: str, variant: str | None = None) -> Path:
        """Return the folder of a stage (`03` or its full name), or of one variant of it; made if it is missing."""
        folder = self.folder / stage_name(stage) / (variant or "")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def require(self, stage: str, relative: str = "provenance.json") -> Path:
        """Return the path of what a stage made; MissingStageError names the notebook to run where it is missing."""
        path = self.folder / stage_name(stage) / relative
        if not path.exists():
            raise MissingStageError(
                f"{show_path(path)} is missing. Notebook {stage_name(stage)} makes it: "
                f"run `vocabx run --only {stage_name(stage)[:2]} --run-name {self.name}` first."
            )
        return path

    def variants(self, stage: str) -> list[str]:
        """Return the names of the finished variants of a stage, sorted."""
        folder = self.folder / stage_name(stage)
        return sorted(p.parent.name for p in folder.glob("*/provenance.json"))


def open_run(name: str) -> Run:
    """Open a run by name below `runs_root()`; its folder is made if it is missing."""
    folder = runs_root() / name
    folder.mkdir(parents=True, exist_ok=True)
    return Run(name, folder)


def existing_run(name: str) -> Run:
    """Open a run to read from it; nothing is made. MissingStageError where `runs_root()` has none of that name."""
    folder = runs_root() / name
    if Path(name).name != name or name.startswith(".") or not folder.is_dir():
        known = sorted(p.name for p in runs_root().glob("*") if p.is_dir() and not p.name.startswith("."))
        raise MissingStageError(
            f"There is no run {name!r} in {show_path(runs_root())}. Known: "
            f"{', '.join(known) or 'none; `vocabx run` makes one'}."
        )
    return Run(name, folder)


# --- keys and provenance -----------------------------------------------------------------------------------


def claim(folder: Path, key: Mapping[str, Any], *, writes: bool = True) -> Literal["new", "resume", "finished"]:
    """Open a stage folder, made if missing, for work described by `key`, and keep others out of it until `finish`.

    The key is JSON-ready: settings and input fingerprints; two runs with equal keys give equal results. `writes` is
    False in the processes of a group that leave writing, and the lock, to their first one.

    Returns:
        `new` (nothing there), `resume` (same key, unfinished) or `finished` (same key, sealed by `finish`).

    Raises:
        KeyMismatchError: the folder holds work with another key, which is not to be replaced (see `REPLACE`); the
            message lists what differs.
        BusyError: another process works in the folder; the message names its host and process id.
    """
    key = dict(json.loads(json.dumps(key, default=str)))
    replaces = writes and os.environ.get(REPLACE) == "1"
    if _state(folder, key, replaces) == "finished":  # whoever only reads does not have to wait
        return "finished"
    taken = writes and locks.hold(folder)
    state: Literal["new", "resume", "finished"] | None = None
    try:
        state = _state(folder, key, replaces)
        if state == "new":
            _clear(folder)
            write_json(folder / "key.json", key)
    finally:
        if taken and state in (None, "finished"):
            locks.release(folder)
    return state


def _state(folder: Path, key: Mapping[str, Any], replaces: bool) -> Literal["new", "resume", "finished"]:
    path = folder / "key.json"
    held = read_json(path) if path.exists() else key
    if held != key and not replaces:
        raise KeyMismatchError(
            f"{show_path(folder)} holds work with other settings ({differing(held, key)}). "
            "Choose another run name, or remove that folder to do the work again."
        )
    if held != key or not path.exists():
        return "new"
    return "finished" if (folder / "provenance.json").exists() else "resume"


def differing(held: Mapping[str, Any], key: Mapping[str, Any]) -> str:
    """Spell what differs between the key that a folder holds and the one of now."""
    names = sorted(n for n in held.keys() | key.keys() if held.get(n) != key.get(n))
    return "; ".join(f"{n}: {held.get(n)!r} there, {key.get(n)!r} now" for n in names)


def _clear(folder: Path) -> None:
    """Remove work that is replaced, its key last: until then the folder is known to hold other work."""
    path = folder / "key.json"
    if not path.exists():
        return
    for child in folder.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        elif child != path:
            child.unlink()
    path.unlink()


def finish(folder: Path, **extra: Any) -> None:
    """Seal a stage folder: write `provenance.json` with its key, versions, git revision and `extra`; free its lock."""
    key_path = folder / "key.json"
    with locks.writing(folder):
        write_json(
            folder / "provenance.json",
            {
                "key": read_json(key_path) if key_path.exists() else {},
                "finished": now(),
                "python": platform.python_version(),
                "versions": installed_versions(_RECORDED),
                "git": git_revision(),
                **extra,
            },
        )
    locks.release(folder)


def read_provenance(folder: Path) -> dict[str, Any]:
    """Read what `finish` wrote; MissingStageError where there is no finished work."""
    if not (folder / "provenance.json").exists():
        raise MissingStageError(f"{show_path(folder)} holds no finished work: provenance.json is missing.")
    return read_json(folder / "provenance.json")


def now() -> str:
    """Return the time in UTC, in seconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the versions of the installed distributions among `names`."""
    versions = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


@functools.lru_cache(maxsize=1)
def git_revision() -> str | None:
    """Name the commit of the checkout that holds this file, with `+` when tracked files differ; None outside one.

    Where the package was installed from a wheel, whatever repository lies around it says nothing of its code.

    A checkout that belongs to another user, as in many containers, is read too: git's refusal guards against hooks
    and settings of strangers, and this reading runs none.
    """

    def git(*words: str) -> str:
        safe = ["-c", "safe.directory=*", "-c", "core.fsmonitor=false"]
        command = ["git", *safe, "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
