"""The examples of the wing's docstrings are executed."""

from __future__ import annotations

import doctest
import importlib

import pytest

from vocabx_utils.models import ModelError, load_tokenizer


@pytest.mark.parametrize("name", ["alignment", "boundaries", "encoding", "extend", "lookahead"])
def test_examples_give_what_they_say(name: str) -> None:
    try:
        load_tokenizer()
    except ModelError as error:
        pytest.skip(f"the examples take the default model's tokenizer, which cannot be fetched: {error}")
    result = doctest.testmod(importlib.import_module(f"vocabx_utils.vocabulary.{name}"), optionflags=doctest.ELLIPSIS)
    assert result.attempted and not result.failed
