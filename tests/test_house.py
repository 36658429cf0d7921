"""Imports run downwards only: command line, claims, wings, ground floor. Between wings there is one door."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vocabx_utils

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "vocabx_utils"
GROUND = "ground floor"
WINGS = ("vocabulary", "training", "evaluation", "analysis")
MAY_IMPORT = {
    GROUND: {GROUND},
    "vocabulary": {GROUND, "vocabulary"},
    "training": {GROUND, "training", "vocabulary"},
    "evaluation": {GROUND, "evaluation"},
    "analysis": {GROUND, "analysis"},
    "adaptation": {GROUND, *WINGS, "adaptation"},
    "figures": {GROUND, *WINGS, "figures"},
    "claims": {GROUND, *WINGS, "figures", "claims"},
    "cli": {GROUND, *WINGS, "adaptation", "figures", "claims", "cli"},
    "front door": {GROUND, *WINGS, "adaptation"},  # the package itself, whose verbs are for others
}


def modules() -> dict[str, Path]:
    """Files of the package by dotted name."""
    files = sorted((ROOT / PACKAGE).rglob("*.py"))
    return {".".join(f.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): f for f in files}


def floor(module: str) -> str:
    """Part of the house that a module belongs to; files beside the wings are the ground floor."""
    parts = module.split(".")
    if module == f"{PACKAGE}.__main__":
        return "cli"
    if module == PACKAGE or module.removeprefix(f"{PACKAGE}.") in vocabx_utils.__all__:
        return "front door"
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else GROUND


def imports(source: str, module: str, is_package: bool = False) -> Iterator[str]:
    """Dotted names of our own package that a source imports, inside functions too."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == PACKAGE)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join([*package[: len(package) - node.level + 1], node.module or ""]).strip(".")
            base = base if node.level else node.module or ""
            if base.split(".")[0] == PACKAGE:
                yield from (f"{base}.{alias.name}" for alias in node.names)


def find_upward(source: str, module: str, is_package: bool = False) -> list[str]:
    """Imports of a module that its part of the house may not make."""
    allowed = MAY_IMPORT[floor(module)]
    return [name for name in imports(source, module, is_package) if floor(name) not in allowed]


@pytest.mark.parametrize(("module", "path"), modules().items(), ids=list(modules()))
def test_imports_run_downwards(module: str, path: Path) -> None:
    assert find_upward(path.read_text(encoding="utf-8"), module, path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source", "refused"),
    [
        ("runs", "from vocabx_utils.training import phase1", True),
        ("runs", "from vocabx_utils import training", True),
        ("evaluation.scoring", "def f():\n    import vocabx_utils.training.examples", True),
        ("analysis.similarity", "from ..vocabulary.tokens import NewToken", True),
        ("vocabulary.tokens", "from vocabx_utils.training import export", True),
        ("training.examples", "from vocabx_utils.vocabulary.tokens import NewToken", False),
        ("training.examples", "from .objectives import kl", False),
        ("analysis.similarity", "from ..runs import open_run\nimport torch", False),
        ("analysis.similarity", "from vocabx_utils.figures import theme", True),
        ("figures.strips", "from vocabx_utils.vocabulary.alignment import align_text", False),
        ("claims.rows", "from vocabx_utils.evaluation.scoring import Count", False),
        ("evaluation.scoring", "from vocabx_utils.claims import judge_c1", True),
        ("cli.report", "from vocabx_utils.analysis import report", False),
        ("cli.report", "from vocabx_utils import export_model", True),
    ],
)
def test_the_check_itself(module: str, source: str, refused: bool) -> None:
    assert bool(find_upward(source, f"{PACKAGE}.{module}")) == refused


def test_settings_stand_below_run_folders() -> None:
    source = modules()[f"{PACKAGE}.config"].read_text(encoding="utf-8")
    assert not [name for name in imports(source, f"{PACKAGE}.config") if name.startswith(f"{PACKAGE}.runs")]


def test_the_command_line_starts_without_heavy_imports() -> None:
    heavy = "{'torch', 'transformers', 'matplotlib', 'pandas', 'papermill', 'scipy', 'sklearn', 'peft'}"
    code = f"import sys, vocabx_utils.cli; print(sorted({heavy} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert answer.stdout.strip() == "[]"
