"""Every example in a docstring of the package is executed."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from vocabx_utils.models import ModelError, load_tokenizer

ROOT = Path(__file__).resolve().parents[1]
SOURCES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): source
    for path in sorted((ROOT / "vocabx_utils").rglob("*.py"))
    if ">>> " in (source := path.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize("name", SOURCES)
def test_examples_give_what_they_say(name: str) -> None:
    if ">>> from vocabx_utils.models import load_tokenizer" in SOURCES[name]:
        try:
            load_tokenizer()
        except ModelError as error:
            pytest.skip(f"the examples take the default model's tokenizer, which cannot be fetched: {error}")
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted and not result.failed
