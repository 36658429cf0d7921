"""What a phrase becomes in a tokenizer, and that a phrase let through leaves all other text as it was."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from vocabx_utils.texts import TokenizerError
from vocabx_utils.vocabulary.audit import UNICODE_STRESS, changed_positions
from vocabx_utils.vocabulary.encoding import encode_all
from vocabx_utils.vocabulary.extend import add_tokens, extend_tokenizer
from vocabx_utils.vocabulary.options import TokenOptions
from vocabx_utils.vocabulary.phrase_forms import choose_form, crosses_words
from vocabx_utils.vocabulary.spelling import spelling_of
from vocabx_utils.vocabulary.tokens import Extension

BYTE_LEVEL = ["smollm", "qwen", "llama3", "gpt4"]
PHRASES = [
    " = None",
    "return self",
    "):\n    ",
    "é 🙂",
    " über die",
    "\n\n    Parameters\n    ----------\n   ",
    "'s a",
    "a.b*",
]
_ready: dict[str, Extension] = {}


def with_phrases(tokenizers: dict[str, Any], name: str) -> Extension:
    if name not in _ready:
        _ready[name] = add_tokens(tokenizers[name], PHRASES, "phrases")
    return _ready[name]


def taken_apart(extension: Extension, ids: list[int]) -> list[int]:
    """Ids with every new token replaced by its subtokens."""
    parts = {t.id: t.subtokens for t in extension.tokens}
    return [k for i in ids for k in parts.get(i, (i,))]


@given(text=st.lists(st.sampled_from([*PHRASES, "x", "Type", " ", "\n", "  ", "1", "_", "é", "'", "é"])).map("".join))
@settings(max_examples=100, deadline=None)
def test_apart_from_the_phrases_every_text_is_read_as_before(base_tokenizers: dict[str, Any], text: str) -> None:
    for name in BYTE_LEVEL:
        extension = with_phrases(base_tokenizers, name)
        before, after = (encode_all(t, [text])[0] for t in (extension.original, extension.extended))
        assert taken_apart(extension, after) == before


def test_learned_phrases_change_no_old_position(base_tokenizers: dict[str, Any], domain: list[str]) -> None:
    for name in BYTE_LEVEL:
        options = TokenOptions(min_count=3, mix_words=False)
        extension = extend_tokenizer(base_tokenizers[name], domain, 40, "phrases", options)
        texts = [*domain, *UNICODE_STRESS]
        before, after = (encode_all(t, texts) for t in (extension.original, extension.extended))
        assert [taken_apart(extension, ids) for ids in after] == before and after != before
        assert extension.report["phrase_form"] == "patterns" and not len(changed_positions(extension, domain)[0])


def test_a_literal_phrase_cuts_a_longer_word_and_one_let_through_does_not(smollm_like: Any) -> None:
    text = "x = NoneType, y = None"
    shown = {}
    for form in ("patterns", "literal"):
        extension = add_tokens(smollm_like, [" = None"], "phrases", phrase_form=form)
        shown[form] = extension.count([text])[extension.V]
        assert extension.report["phrase_form"] == form
    assert shown == {"patterns": 1, "literal": 2}


def test_a_word_is_a_merge_in_either_form(smollm_like: Any) -> None:
    for form in ("patterns", "literal"):
        extension = add_tokens(smollm_like, [" groupby", "return self"], "phrases", phrase_form=form)
        added = {t.content for t in extension.extended.added_tokens_decoder.values()}
        assert ("return self" in added) == (form == "literal") and " groupby" not in added
        assert extension.report["phrases"] == 1
        ids = encode_all(extension.extended, ["x groupby\nreturn self"])[0]
        assert {t.id for t in extension.tokens if t.wanted} <= set(ids)
        assert [crosses_words(spelling_of(smollm_like), t) for t in (" groupby", "return self")] == [False, True]


def changed(tokenizer: Any, **named: Any) -> Any:
    layout = copy.deepcopy(spelling_of(tokenizer).layout)
    for key, value in named.items():
        layout[key] = value
    return spelling_of(Tokenizer.from_str(json.dumps(layout)))


def test_where_phrases_cannot_be_let_through_they_are_literal(base_tokenizers: dict[str, Any]) -> None:
    qwen_like = base_tokenizers["qwen"]
    spelling = spelling_of(qwen_like)
    layout = spelling.layout
    assert choose_form(spelling) == "patterns" and choose_form(spelling, "literal") == "literal"
    split, last = layout["pre_tokenizer"]["pretokenizers"]
    unreached = dict(layout["model"], vocab=layout["model"]["vocab"] | {"xqzzq": 10**6})
    twice = {"type": "Sequence", "pretokenizers": [split, split, last]}
    removed = {"type": "Sequence", "pretokenizers": [dict(split, behavior="Removed"), last]}
    for odd, reason in (
        (changed(qwen_like, pre_tokenizer=twice), "no known form"),
        (changed(qwen_like, pre_tokenizer=removed), "no known form"),
        (changed(qwen_like, model=unreached), "do not reach the entry 'xqzzq'"),
    ):
        assert choose_form(odd) == "literal"
        with pytest.raises(TokenizerError, match=f"{reason}.*Use the form 'literal'"):
            choose_form(odd, "patterns")


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(TokenizerError, match="phrase_form is 'words'; expected one of"):
        TokenOptions(phrase_form="words")  # type: ignore[arg-type]
