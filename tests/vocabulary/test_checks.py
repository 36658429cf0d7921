"""Tokens that no text produces, and those that only seem to be such."""

from __future__ import annotations

from typing import Any

import pytest

from vocabx_utils.texts import TokenizerError
from vocabx_utils.vocabulary import surgery
from vocabx_utils.vocabulary.audit import audit_extension
from vocabx_utils.vocabulary.checks import check_reachable, unreachable
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.options import TokenOptions
from vocabx_utils.vocabulary.proposals import select_tokens
from vocabx_utils.vocabulary.spelling import spelling_of
from vocabx_utils.vocabulary.tokens import Extension, NewToken


def test_b14_an_entry_without_a_merge_fails_loudly(smollm_like: Any) -> None:
    spelling = spelling_of(smollm_like)
    broken = surgery.build(surgery.merged_layout(spelling, ["Ġgroupby"], []), smollm_like)
    token = NewToken(spelling.first_free_id, " groupby", b" groupby", spelling.subtokens(" groupby"))
    extension = Extension(smollm_like, broken, (token,), "merges", spelling.first_free_id, {})
    with pytest.raises(TokenizerError, match="No text produces ' groupby'"):
        check_reachable(extension, extension.tokens)


def test_a_token_that_ends_inside_a_character_is_no_dead_token(smollm_like: Any) -> None:
    """` gr` and the first byte of `ö`, a step towards ` größe`: ` grà` shows it."""
    texts = ["die größe und eine größe\n"] * 9
    extension = add_tokens(
        smollm_like, select_tokens(texts, smollm_like, 3, options=TokenOptions(min_count=2, count_steps=False))
    )
    cut = [t for t in extension.tokens if t.text.encode() != t.raw]
    assert cut and unreachable(extension, cut) == [] and audit_extension(extension, {"x": texts}).passed


def test_a_gone_token_that_ends_inside_a_character_is_dead(smollm_like: Any) -> None:
    extension = add_tokens(smollm_like, select_tokens(["die größe\n"] * 9, smollm_like, 5))
    cut = NewToken(10**6, " gr\ufffd", " grö".encode()[:-1], ())
    assert unreachable(extension, [cut]) == [cut]
