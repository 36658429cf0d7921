"""Every example in a docstring of the package is executed, with a tiny model where one is needed."""

from __future__ import annotations

import doctest
import importlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tiny import texts, tiny_model

from vocabx_utils.evaluation.jail import SandboxUnavailableError, find_bubblewrap
from vocabx_utils.models import ModelError, load_tokenizer

PACKAGE = Path(__file__).resolve().parents[1] / "vocabx_utils"
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def with_examples() -> list[str]:
    """Modules in whose docstrings something is to be executed."""
    files = sorted(PACKAGE.rglob("*.py"))
    found = [path for path in files if any(line.lstrip().startswith(">>>") for line in path.open(encoding="utf-8"))]
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in found]
    return [name.removesuffix(".__init__") for name in names]


@pytest.fixture
def given(tiny_folder: Path, tmp_path: Path) -> dict[str, Any]:
    """What examples may use: a `model`, its `tokenizer`, `texts`, the `folder` of a model, and an empty one."""
    base = tiny_model()
    return {
        "model": base.model,
        "tokenizer": base.tokenizer,
        "texts": texts(),
        "folder": tiny_folder,
        "scratch": tmp_path,
    }


@cache
def what_is_missing() -> str:
    """Why the default model's tokenizer cannot be loaded; nothing where it can."""
    try:
        load_tokenizer()
    except ModelError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", with_examples())
def test_examples_give_what_they_say(name: str, given: dict[str, Any]) -> None:
    source = (PACKAGE.parent / Path(*name.split("."))).with_suffix(".py").read_text(encoding="utf-8")
    missing = what_is_missing() if ">>> from vocabx_utils.models import load_tokenizer" in source else ""
    try:
        if ">>> table = evaluate_answers(" in source:
            find_bubblewrap()
    except SandboxUnavailableError as error:
        missing = str(error)
    if missing:
        pytest.skip(f"the examples need what is not here: {missing}")
    result = doctest.testmod(importlib.import_module(name), extraglobs=given, optionflags=FLAGS)
    assert result.attempted
    assert not result.failed


def test_a_wrong_example_is_found(given: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    examples = doctest.DocTestParser().get_doctest(">>> len(texts)\n0\n", given, "wrong", None, None)
    assert doctest.DocTestRunner(optionflags=FLAGS).run(examples).failed == 1
    assert "Expected:\n    0" in capsys.readouterr().out
