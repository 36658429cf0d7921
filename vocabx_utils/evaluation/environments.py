"""Python environments in which answers run: the plain interpreter, and pinned ones for the large benchmarks.

A pinned environment lives in the cache folder, is built from the requirement files of this package, and has a
hash over everything that can change a verdict: interpreter, packages, data folders.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vocabx_utils.corpus import data_path
from vocabx_utils.evaluation.jail import JailView
from vocabx_utils.files import hash_bytes, read_json
from vocabx_utils.paths import cache_dir

REQUIREMENTS = Path(__file__).parent / "requirements"
_PLAIN = "plain"
DATA_FOLDERS = {"NLTK_DATA": "nltk", "SEABORN_DATA": "seaborn"}


class EnvironmentMissingError(RuntimeError):
    """An environment is not built, or cannot be; the message says what to do."""


@dataclass(frozen=True)
class Recipe:
    """How a pinned environment is made."""

    groups: Mapping[str, str]  # name of the group to requirement file; the empty name is the base
    default: tuple[str, ...] = ()  # groups that are installed unless others are asked for
    preload: tuple[str, ...] = ()  # modules that the forked fast mode imports once
    libraries: Mapping[str, str] = field(default_factory=dict)  # library of a DS-1000 problem to its group


RECIPES: Mapping[str, Recipe] = {
    name: Recipe(row["groups"], tuple(row["default"]), tuple(row["preload"]), row["libraries"])
    for name, row in json.loads((REQUIREMENTS / "recipes.json").read_text(encoding="utf-8")).items()
}


@dataclass(frozen=True)
class Environment:
    """An interpreter with its packages and data."""

    name: str  # `plain`, `bigcodebench` or `ds1000`
    hash: str  # first 16 hex digits of a SHA-256 over all that follows
    python: str  # version of the interpreter
    groups: tuple[str, ...]  # optional ones that are installed
    packages: Mapping[str, str]  # name to version
    view: JailView  # what the jail shows
    preload: tuple[str, ...] = ()  # modules for the forked fast mode

    def describe(self) -> dict[str, Any]:
        """Return what a result or a kept list records of it."""
        return {
            "name": self.name,
            "hash": self.hash,
            "python": self.python,
            "groups": list(self.groups),
            "data": sorted(self.view.data),
            "packages": dict(sorted(self.packages.items())),
        }


def environment_for(benchmark: str) -> Environment:
    """Return the environment of a benchmark: a pinned one (see `load_environment`), or the plain interpreter."""
    return load_environment(benchmark) if benchmark in RECIPES else plain_environment()


@functools.lru_cache(maxsize=1)
def plain_environment() -> Environment:
    """Return the interpreter that runs this code, with its packages.

    Only the interpreter and numpy count for the hash: nothing else decides answers to HumanEval and MBPP, and
    an unrelated upgrade must not make finished results worthless.
    """
    view = JailView(Path(sys.executable), _folders(sys.prefix, sys.base_prefix))
    packages = {"numpy": importlib.metadata.version("numpy")}
    return _environment(_PLAIN, platform.python_version(), (), packages, view, ())


def folder_of(name: str) -> Path:
    """Return the folder of a pinned environment below the cache folder."""
    return cache_dir() / "eval-env" / name


def load_environment(name: str) -> Environment:
    """Open `bigcodebench`, `ds1000` or `plain`; an `EnvironmentMissingError` where it is not built to its end."""
    if name == _PLAIN:
        return plain_environment()
    recipe = recipe_of(name)
    folder = folder_of(name)
    record = folder / "environment.json"
    if not record.is_file():
        raise EnvironmentMissingError(
            f"the environment {name} is not built ({folder} has no environment.json): "
            f"run `vocabx eval-env build {name}` first"
        )
    facts = read_json(record)
    data = {variable: path for variable, name in DATA_FOLDERS.items() if (path := data_path(name)) and path.is_dir()}
    seed = folder / "matplotlib"
    view = JailView(
        folder / "bin" / "python", _folders(str(folder), facts["base"]), data, seed if seed.is_dir() else None
    )
    return _environment(name, facts["python"], tuple(facts["groups"]), facts["packages"], view, recipe.preload)


def check_libraries(environment: Environment, libraries: Sequence[str]) -> None:
    """Refuse problems whose library is an optional group that this environment lacks; say how to add it."""
    needed = RECIPES[environment.name].libraries if environment.name in RECIPES else {}
    missing = sorted({needed[name] for name in libraries if name in needed} - set(environment.groups))
    if missing:
        options = " ".join(f"--with {group}" for group in missing)
        raise EnvironmentMissingError(
            f"the environment {environment.name} has no {' and no '.join(missing)}, which some of the problems "
            f"need: build it again with `vocabx eval-env build {environment.name} {options}`, or leave those "
            "problems out (`--without-library`)"
        )


def recipe_of(name: str) -> Recipe:
    """Return how a pinned environment is made; a `ValueError` for an unknown name."""
    if name not in RECIPES:
        raise ValueError(f"unknown environment {name!r}; expected {' or '.join(RECIPES)}")
    return RECIPES[name]


def _folders(prefix: str, base: str) -> tuple[Path, ...]:
    """The folders of an interpreter, real paths included: an interpreter is often a link into another folder."""
    return tuple(dict.fromkeys([Path(prefix), Path(base), Path(base).resolve()]))


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
