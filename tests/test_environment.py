"""pyproject.toml, requirements.lock and environment.yml are in step, and what the code imports is declared."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
CONDA_NAMES = {"pytorch": "torch"}
OURS = "vocabx-utils"


APART = "batch"  # an extra that does not fit into one environment with the others, and has a lock of its own


def extras() -> dict[str, list[str]]:
    """Requirements as they are written, by extra."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def pyproject() -> dict[str, Requirement]:
    """Requirements of the package and of the extras that go together, by canonical name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = project["dependencies"] + [text for name, group in extras().items() if name != APART for text in group]
    requirements = {str(canonicalize_name(r.name)): r for r in map(Requirement, texts)}
    return {name: r for name, r in requirements.items() if name != OURS}


def lock(name: str = "requirements.lock") -> dict[str, Version]:
    """Locked versions by canonical name."""
    lines = (ROOT / name).read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {str(canonicalize_name(name)): Version(version) for name, version in pairs}


def conda() -> dict[str, str]:
    """Versions in environment.yml by canonical name (pip part included), our own package left out."""
    entries = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]
    flat = [e for e in entries if isinstance(e, str)] + [e for d in entries if isinstance(d, dict) for e in d["pip"]]
    pairs = [re.split("==?", entry) for entry in flat if "=" in entry]
    return {str(canonicalize_name(CONDA_NAMES.get(name, name))): version for name, version in pairs}


def minor(version: Version) -> str:
    return f"{version.major}.{version.minor}"


def test_every_requirement_names_a_minor_version_that_the_lock_holds() -> None:
    locked = lock()
    wrong = {n: str(r) for n, r in pyproject().items() if str(r.specifier) != f"~={minor(locked[n])}"}
    assert wrong == {}


def test_all_takes_every_extra_that_fits_beside_the_others() -> None:
    (everything,) = map(Requirement, extras()["all"])
    assert everything.extras == set(extras()) - {"all", APART}


def test_snakemake_and_its_plugin_are_locked_beside_the_lock() -> None:
    """What stands in both locks has another version here, which is why there are two."""
    apart, locked = lock("requirements-batch.lock"), lock()
    named = {str(canonicalize_name(r.name)): r for r in map(Requirement, extras()[APART])}
    assert {"snakemake", "snakemake-executor-plugin-slurm"} == set(named)
    assert {n: str(r) for n, r in named.items() if str(r.specifier) != f"~={minor(apart[n])}"} == {}
    both = apart.keys() & locked.keys()
    assert both
    assert [name for name in both if apart[name] == locked[name]] == []


def test_conda_users_get_the_same_packages_and_versions() -> None:
    listed, locked = conda(), lock()
    python = Version(listed.pop("python"))
    assert Version("3.11") <= python
    assert set(listed) == set(pyproject())
    wrong = {n: v for n, v in listed.items() if v not in (minor(locked[n]), str(locked[n]))}
    assert wrong == {}


def closure(names: list[str]) -> set[str]:
    """Everything that the named distributions need here, themselves included."""
    pending, found = list(names), set()
    environment = {**default_environment(), "extra": ""}
    while pending:
        name = str(canonicalize_name(pending.pop()))
        if name in found:
            continue
        found.add(name)
        for text in importlib.metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate(environment):
                pending.append(requirement.name)
    return found


def test_the_lock_holds_all_that_our_requirements_need_here() -> None:
    """Packages for CUDA, which PyTorch pins itself, and tools of the installer stay outside."""
    needed = closure(list(pyproject()))
    foreign = {n for n in needed if n.startswith(("nvidia-", "cuda-")) or n in {"triton", "setuptools", "pip"}}
    assert needed - foreign - set(lock()) == set()


@pytest.mark.skipif(
    sys.prefix == sys.base_prefix or bool(os.environ.get("CONDA_PREFIX")), reason="not the locked environment"
)
def test_installed_versions_are_the_locked_ones() -> None:
    locked = lock()
    installed = {n: Version(importlib.metadata.version(n).split("+")[0]) for n in pyproject()}
    assert installed == {n: locked[n] for n in installed}


def imported_modules(folder: Path) -> set[str]:
    """Top-level names that the Python files below a folder import."""
    names = set()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names.add(node.module.split(".")[0])
    return names


def test_what_the_code_imports_is_declared() -> None:
    """Also what is imported inside functions: an import that works by luck of another package breaks later."""
    distributions = importlib.metadata.packages_distributions()
    folders = [ROOT / name for name in ("vocabx_utils", "tests", "tools")]
    files = [path for folder in folders for path in folder.rglob("*.py")]
    own = {"vocabx_utils"} | {path.stem for path in files} | {path.parent.name for path in files}
    used = set().union(*(imported_modules(folder) for folder in folders))
    third_party = used - set(sys.stdlib_module_names) - own
    declared = set(pyproject())
    undeclared = {
        module
        for module in third_party
        if not {str(canonicalize_name(d)) for d in distributions.get(module, [])} & declared
    }
    assert undeclared == set()


def test_the_package_is_free_of_addresses_of_registries() -> None:
    files = ["requirements.lock", "requirements-batch.lock", "pyproject.toml", "environment.yml", "Makefile", ".ci/run"]
    found = [name for name in files if re.search(r"https?://|--(extra-)?index-url", (ROOT / name).read_text())]
    assert found == []
