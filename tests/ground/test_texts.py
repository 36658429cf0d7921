"""What no tokenizer takes is refused in the same words, whoever asks."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import vocabx_utils
from vocabx_utils.evaluation.likelihood import bits_per_byte
from vocabx_utils.texts import TokenizerError, require_text, text_list
from vocabx_utils.vocabulary import spelling
from vocabx_utils.vocabulary.proposals import select_tokens

PACKAGE = Path(vocabx_utils.__file__).parent
BAD = [
    ("a b c", r"texts is one string of 5 characters; expected a list of texts\."),
    (["fine", "half \ud800"], r"text 1 holds '\\ud800' at character 5, half of a surrogate pair"),
    (["fine", 7], r"text 1 is 7 \(int\); expected a string\."),
    (["fine", ["a", "b"]], r"text 1 is \['a', 'b'\] \(list\); expected a string\."),
]


@pytest.mark.parametrize(("texts", "message"), BAD)
def test_both_wings_refuse_in_the_same_words(texts: Any, message: str) -> None:
    """Before they look at a model or a tokenizer, which are not there."""
    nobody: Any = SimpleNamespace()
    for ask in (text_list, lambda given: bits_per_byte(nobody, nobody, given)):
        with pytest.raises(TokenizerError, match=message):
            ask(texts)


def test_texts_are_listed_once_and_other_objects_only_where_they_are_wanted() -> None:
    assert text_list(letter for letter in "abc") == ["a", "b", "c"]
    assert text_list(["a", 7], besides=int) == ["a", 7]
    with pytest.raises(TokenizerError, match="judged is one string of 1 characters"):
        text_list("a", "judged")
    assert require_text("é", "it") == "é"


def test_the_error_is_one_class() -> None:
    assert spelling.TokenizerError is TokenizerError and issubclass(TokenizerError, ValueError)
    with pytest.raises(TokenizerError, match="n is 0"):
        select_tokens(["a"], SimpleNamespace(), 0)  # type: ignore[arg-type]


def test_nobody_looks_for_half_characters_alone() -> None:
    """Texts are checked by `require_text`; rows of a corpus, whose message names file and line, by `corpus`."""
    asking = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and node.id == "half_character"
    }
    assert asking == {"texts.py", "corpus.py"}
