"""Python environments in which answers run: the plain interpreter, and pinned ones for the large benchmarks.

A pinned environment lives in the cache folder, is built from the requirement files of this package, and has a
hash over everything that can change a verdict: interpreter, packages, data folders.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vocabx_utils.evaluation.jail import JailView
from vocabx_utils.files import hash_bytes, read_json, write_json
from vocabx_utils.paths import cache_dir, data_dir
from vocabx_utils.progress import progress

REQUIREMENTS = Path(__file__).parent / "requirements"
PLAIN = "plain"
VERSION = (3, 11)
_NOT_HASHED = ("pip", "setuptools", "wheel")
_LINES_SHOWN = 12  # of a command that failed
DATA_FOLDERS = {"NLTK_DATA": "nltk", "SEABORN_DATA": "seaborn"}
_QUERY = """
import importlib.metadata, json, platform, sys
packages = {d.metadata["Name"].lower().replace("_", "-"): d.version for d in importlib.metadata.distributions()}
print(json.dumps({"python": platform.python_version(), "implementation": platform.python_implementation(),
                  "machine": platform.machine(), "prefix": sys.prefix, "base": sys.base_prefix,
                  "executable": sys.executable, "packages": packages}))
"""


class EnvironmentMissingError(RuntimeError):
    """An environment is not built, or cannot be; the message says what to do."""


@dataclass(frozen=True)
class Recipe:
    """How a pinned environment is made.

    Attributes:
        groups: Requirement files by name of the group; the empty name is the base.
        default: Groups that are installed unless others are asked for.
        preload: Modules that the forked fast mode imports once.
        libraries: Library of a problem (as DS-1000 names it) to the group that it needs.
    """

    groups: Mapping[str, str]
    default: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    libraries: Mapping[str, str] = field(default_factory=dict)


_SCIENCE = ("numpy", "pandas", "scipy.stats", "scipy.optimize", "matplotlib.pyplot", "sklearn", "seaborn")
RECIPES: Mapping[str, Recipe] = {
    "bigcodebench": Recipe(
        {"": "bigcodebench.txt"},
        preload=(
            *_SCIENCE,
            *("sklearn.linear_model", "sklearn.cluster", "sklearn.ensemble", "sklearn.preprocessing"),
            *("sklearn.model_selection", "statsmodels.api", "nltk", "requests", "bs4", "unittest.mock"),
        ),
    ),
    "ds1000": Recipe(
        {"": "ds1000.txt", "torch": "ds1000-torch.txt", "tensorflow": "ds1000-tensorflow.txt"},
        default=("torch",),
        preload=(*_SCIENCE, "torch"),
        libraries={"Pytorch": "torch", "Tensorflow": "tensorflow"},
    ),
}


@dataclass(frozen=True)
class Environment:
    """An interpreter with its packages and data.

    Attributes:
        name: ``plain``, ``bigcodebench`` or ``ds1000``.
        hash: First 16 hex digits of a SHA-256 over all that follows.
        python: Version of the interpreter.
        groups: Optional groups that are installed.
        packages: Name to version.
        view: What the jail shows.
        preload: Modules for the forked fast mode.
    """

    name: str
    hash: str
    python: str
    groups: tuple[str, ...]
    packages: Mapping[str, str]
    view: JailView
    preload: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """What a result or a kept list records of it."""
        return {
            "name": self.name,
            "hash": self.hash,
            "python": self.python,
            "groups": list(self.groups),
            "data": sorted(self.view.data),
            "packages": dict(sorted(self.packages.items())),
        }


def environment_for(benchmark: str) -> Environment:
    """Environment of a benchmark: a pinned one, or the plain interpreter for HumanEval and MBPP.

    Raises:
        EnvironmentMissingError: The pinned environment is not built.
    """
    return load_environment(benchmark) if benchmark in RECIPES else plain_environment()


@functools.lru_cache(maxsize=1)
def plain_environment() -> Environment:
    """The interpreter that runs this code, with its packages.

    Only the interpreter and numpy count for the hash: nothing else decides answers to HumanEval and MBPP, and
    an unrelated upgrade must not make finished results worthless.
    """
    packages = {}
    for name in ("numpy",):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    view = JailView(Path(sys.executable), _folders(sys.prefix, sys.base_prefix))
    return _environment(PLAIN, platform.python_version(), (), packages, view, ())


def folder_of(name: str) -> Path:
    """Folder of a pinned environment below the cache folder."""
    return cache_dir() / "eval-env" / name


def load_environment(name: str) -> Environment:
    """Open a pinned environment.

    Args:
        name: ``bigcodebench`` or ``ds1000``; ``plain`` gives the plain interpreter.

    Raises:
        ValueError: Unknown name.
        EnvironmentMissingError: It is not built, or its build did not end.
    """
    if name == PLAIN:
        return plain_environment()
    recipe = _recipe(name)
    folder = folder_of(name)
    record = folder / "environment.json"
    if not record.is_file():
        raise EnvironmentMissingError(
            f"the environment {name} is not built ({folder} has no environment.json): "
            f"run `vocabx eval-env build {name}` first"
        )
    facts = read_json(record)
    data = {variable: path for variable, path in _data_folders().items() if path.is_dir()}
    seed = folder / "matplotlib"
    view = JailView(
        folder / "bin" / "python", _folders(str(folder), facts["base"]), data, seed if seed.is_dir() else None
    )
    return _environment(name, facts["python"], tuple(facts["groups"]), facts["packages"], view, recipe.preload)


def check_libraries(environment: Environment, libraries: Sequence[str]) -> None:
    """Refuse problems whose library is an optional group that this environment lacks.

    Raises:
        EnvironmentMissingError: A group is missing; the message says how to add it.
    """
    needed = RECIPES[environment.name].libraries if environment.name in RECIPES else {}
    missing = sorted({needed[name] for name in libraries if name in needed} - set(environment.groups))
    if missing:
        options = " ".join(f"--with {group}" for group in missing)
        raise EnvironmentMissingError(
            f"the environment {environment.name} has no {' and no '.join(missing)}, which some of the problems "
            f"need: build it again with `vocabx eval-env build {environment.name} {options}`, or leave those "
            "problems out (`--without-library`)"
        )


def build_environment(
    name: str,
    *,
    groups: Sequence[str] | None = None,
    python: str | Path | None = None,
    say: Callable[[str], None] = print,
) -> Environment:
    """Build a pinned environment in the cache; one that is already there is kept if nothing changed.

    Args:
        name: ``bigcodebench`` or ``ds1000``.
        groups: Optional groups, such as ``("torch", "tensorflow")``; None for the default ones.
        python: A CPython 3.11; by default this interpreter or `python3.11` on the search path.
        say: Receives one line per step.

    Returns:
        The environment.

    Raises:
        ValueError: Unknown name or group.
        EnvironmentMissingError: No CPython 3.11, or pip failed; pip's last lines are in the message.
    """
    recipe = _recipe(name)
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
    _call([str(inside), "-c", "import matplotlib.font_manager"], "import matplotlib", _font_variables(folder))
    facts = _query(inside)
    packages = {k: v for k, v in facts["packages"].items() if k not in _NOT_HASHED}
    record_facts = {key: facts[key] for key in ("python", "machine", "base")}
    write_json(record, {**record_facts, "groups": groups, "packages": packages, "requirements": digest})
    say(f"built {folder}")
    return load_environment(name)


def find_python(python: str | Path | None = None) -> Path:
    """Find a CPython 3.11: the one given, this interpreter, or `python3.11` on the search path.

    Raises:
        EnvironmentMissingError: There is none; the message names the conda command that makes one.
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


def _recipe(name: str) -> Recipe:
    if name not in RECIPES:
        raise ValueError(f"unknown environment {name!r}; expected {' or '.join(RECIPES)}")
    return RECIPES[name]


def _folders(prefix: str, base: str) -> tuple[Path, ...]:
    """The folders of an interpreter, real paths included: an interpreter is often a link into another folder."""
    paths = [Path(prefix), Path(base), Path(base).resolve()]
    return tuple(dict.fromkeys(paths))


def _data_folders() -> dict[str, Path]:
    root = data_dir()
    return {variable: root / name for variable, name in DATA_FOLDERS.items()} if root else {}


def _environment(
    name: str,
    python: str,
    groups: tuple[str, ...],
    packages: Mapping[str, str],
    view: JailView,
    preload: tuple[str, ...],
) -> Environment:
    listing = {
        variable: sorted((str(p.relative_to(root)), p.stat().st_size) for p in root.rglob("*") if p.is_file())
        for variable, root in view.data.items()
    }
    facts = [name, python, platform.machine(), sorted(packages.items()), sorted(listing.items())]
    digest = hash_bytes([json.dumps(facts).encode()])[:16]
    return Environment(name, digest, python, groups, packages, view, preload)


def _font_variables(folder: Path) -> dict[str, str]:
    return {"MPLCONFIGDIR": str(folder / "matplotlib"), "MPLBACKEND": "Agg"}


def _query(python: Path) -> dict[str, Any]:
    done = subprocess.run([str(python), "-I", "-c", _QUERY], capture_output=True, text=True, check=True, timeout=60)
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


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
