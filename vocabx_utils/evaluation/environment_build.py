"""Build a pinned environment in the cache folder: a CPython 3.11, and packages whose hashes pip checks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vocabx_utils.evaluation.environments import (
    REQUIREMENTS,
    Environment,
    EnvironmentMissingError,
    folder_of,
    load_environment,
    recipe_of,
)
from vocabx_utils.files import hash_bytes, read_json, write_json
from vocabx_utils.progress import progress

VERSION = (3, 11)
_NOT_HASHED = ("pip", "setuptools", "wheel")
_LINES_SHOWN = 12  # of a command that failed
_QUERY = """
import importlib.metadata, json, platform, sys
packages = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()}
print(json.dumps({"python": platform.python_version(), "implementation": platform.python_implementation(),
                  "machine": platform.machine(), "prefix": sys.prefix, "base": sys.base_prefix,
                  "executable": sys.executable, "packages": packages}))
"""


def build_environment(
    name: str,
    *,
    groups: Sequence[str] | None = None,
    python: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Environment:
    """Build `bigcodebench` or `ds1000` in the cache folder; one that is there stays if nothing changed.

    Args:
        groups: optional groups, such as `("torch", "tensorflow")`; None for the default ones, `ValueError` for others.
        python: a CPython 3.11; by default this interpreter or `python3.11` on the search path.
        say: receives one line per step.

    Raises:
        EnvironmentMissingError: no CPython 3.11, or pip failed; pip's last lines are in the message.
    """
    recipe = recipe_of(name)
    groups = tuple(dict.fromkeys(recipe.default if groups is None else groups))
    unknown = [group for group in groups if group not in recipe.groups or not group]
    if unknown:
        known = ", ".join(group for group in recipe.groups if group) or "none"
        raise ValueError(f"{name} has no group {', '.join(unknown)}; known groups: {known}")
    files = [REQUIREMENTS / recipe.groups[group] for group in ("", *groups)]
    digest = hash_bytes(file.read_bytes() for file in files)[:16]
    folder = folder_of(name)
    record = folder / "environment.json"
    if record.is_file() and read_json(record)["requirements"] == digest:
        say(f"{folder} is already built")
        return load_environment(name)
    base = find_python(python)
    say(f"building {folder} with {base} (several minutes, over a gigabyte)")
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    _call([str(base), "-m", "venv", str(folder)], "python -m venv")
    inside = folder / "bin" / "python"
    for file in files:
        say(f"installing {file.name}")
        _install(inside, file, say)
    say("preparing matplotlib's font list")
    fonts = {"MPLCONFIGDIR": str(folder / "matplotlib"), "MPLBACKEND": "Agg"}
    _call([str(inside), "-c", "import matplotlib.font_manager"], "import matplotlib", fonts)
    facts = _query(inside)
    packages = {k: v for k, v in facts["packages"].items() if k not in _NOT_HASHED}
    record_facts = {key: facts[key] for key in ("python", "machine", "base")}
    write_json(record, {**record_facts, "groups": groups, "packages": packages, "requirements": digest})
    say(f"built {folder}")
    return load_environment(name)


def find_python(python: str | Path | None = None) -> Path:
    """Find a CPython 3.11: the one given, this interpreter, or `python3.11` on the search path.

    An `EnvironmentMissingError` names the conda command that makes one.
    """
    candidates = [str(python)] if python else [sys.executable, shutil.which("python3.11") or ""]
    tried = []
    for candidate in filter(None, candidates):
        try:
            facts = _query(Path(candidate))
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            tried.append(f"{candidate} does not run ({type(error).__name__})")
            continue
        version = tuple(int(part) for part in facts["python"].split(".")[:2])
        if version == VERSION and facts["implementation"] == "CPython":
            return Path(facts["executable"])
        tried.append(f"{candidate} is {facts['implementation']} {facts['python']}")
    raise EnvironmentMissingError(
        f"the pinned libraries need CPython 3.11, but {'; '.join(tried) or 'none was found'}. Make one with "
        "`conda create -n vocabx-eval python=3.11` and name it with "
        '`--python "$(conda run -n vocabx-eval which python)"`'
    )


def _query(python: Path) -> dict[str, Any]:
    done = subprocess.run([str(python), "-I", "-c", _QUERY], capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def pinned(file: Path) -> dict[str, str]:
    """Return name and version of every line of a requirement file."""
    lines = [line.split()[0] for line in file.read_text(encoding="utf-8").splitlines() if line[:1] not in ("", "#")]
    return {name: version for name, _, version in (line.partition("==") for line in lines)}


def _install(python: Path, file: Path, say: Callable[[str], None]) -> None:
    """Install a requirement file; pip accepts only the files whose hashes it names, and shows its steps."""
    command = [str(python), "-m", "pip", "install", "--no-deps", "--require-hashes", "-r", str(file)]
    with progress(total=len(pinned(file)), desc=f"{file.stem}, packages", unit="package") as bar:

        def show(line: str) -> None:
            if line.startswith(("Collecting ", "Processing ", "Requirement already satisfied")):
                bar.update(1)
            elif line.startswith("Installing collected"):
                say(f"unpacking the packages of {file.name} (a minute or two)")

        _call(command, f"pip install -r {file.name}", show=show)


def _call(
    command: list[str],
    title: str,
    variables: Mapping[str, str] | None = None,
    show: Callable[[str], None] = lambda line: None,
) -> None:
    """Run a command and hand on its lines as they come; the last ones are in the message if it fails."""
    surroundings = {**os.environ, **(variables or {})}
    last: deque[str] = deque(maxlen=_LINES_SHOWN)
    options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env=surroundings, **options) as process:
        for line in process.stdout or ():
            last.append(line.rstrip())
            show(line)
    if process.returncode:
        text = "\n".join(last).strip()
        raise EnvironmentMissingError(f"`{title}` failed with exit code {process.returncode}:\n{text}")
