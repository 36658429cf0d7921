"""The audit finds what it is there to find, and counts gains rightly."""

from __future__ import annotations

from typing import Any

import pytest

from vocabx_utils.source_tree import Document
from vocabx_utils.vocabulary import surgery
from vocabx_utils.vocabulary.audit import (
    audit_extension,
    changed_positions,
    changed_words,
    gains,
    recut_texts,
    texts_by_type,
)
from vocabx_utils.vocabulary.encoding import encode_all
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.options import TokenOptions
from vocabx_utils.vocabulary.proposals import select_tokens
from vocabx_utils.vocabulary.spelling import spelling_of
from vocabx_utils.vocabulary.tokens import Extension, NewToken


@pytest.fixture(scope="module")
def extension(smollm_like: Any, domain: list[str]) -> Extension:
    return add_tokens(smollm_like, select_tokens(domain, smollm_like, 40, options=TokenOptions(min_count=3)))


def test_a_sound_extension_passes(extension: Extension, domain: list[str]) -> None:
    audit = audit_extension(extension, {".py": domain}, domain)
    assert audit.passed and not audit.unreachable and not audit.round_trips
    assert audit.words_checked > 500
    assert len(audit.table()) == 6


def test_gains_are_counted_by_type(extension: Extension, domain: list[str]) -> None:
    table = gains(extension, {".py": domain[:50], ".txt": domain[50:60]}).set_index("type")
    before, after = (sum(map(len, encode_all(t, domain[:50]))) for t in (extension.original, extension.extended))
    row = table.loc[".py"]
    assert (row.tokens_before, row.tokens_after) == (before, after)
    assert row.saved_per_1000 == pytest.approx(1000 * (before - after) / before)
    assert table.loc["all"].tokens_before == table.tokens_before[:-1].sum()
    new = sum(i >= extension.V for ids in encode_all(extension.extended, domain[:50]) for i in ids)
    assert row.new_share == pytest.approx(new / after)


def test_files_are_grouped_by_suffix() -> None:
    documents = [Document("a.h", "x"), Document("b/c.c", "y"), Document("Makefile", "z"), Document("d.h", "w")]
    assert texts_by_type(documents) == {"(none)": ["z"], ".c": ["y"], ".h": ["x", "w"]}


def test_missing_tokens_are_listed(extension: Extension) -> None:
    audit = audit_extension(extension, {"x": ["1 2 3"]}, ["1 2 3"])
    assert len(audit.missing) == extension.N and not audit.unreachable


def test_dead_tokens_and_broken_round_trips_are_found(smollm_like: Any) -> None:
    """B14: an entry without a merge is dead."""
    spelling = spelling_of(smollm_like)
    broken = surgery.build(surgery.merged_layout(spelling, ["Ġgroupby"], []), smollm_like)
    token = NewToken(spelling.first_free_id, " groupby", b" groupby", spelling.subtokens(" groupby"))
    extension = Extension(smollm_like, broken, (token,), "merges", spelling.first_free_id, {})
    audit = audit_extension(extension, {"x": ["a groupby b"]})
    assert [t.text for t in audit.unreachable] == [" groupby"] and not audit.passed


def test_b08_the_plain_decoder_is_caught(smollm_like: Any) -> None:
    import json

    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    sound = add_tokens(smollm_like, ["đem"], "added")
    layout = json.loads(sound.extended.backend_tokenizer.to_str())
    layout["decoder"] = json.loads(smollm_like.backend_tokenizer.to_str())["decoder"]
    plain = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(layout)))
    extension = Extension(smollm_like, plain, sound.tokens, "added", sound.V, {})
    audit = audit_extension(extension, {"x": ["đem"]})
    assert ("đem", "đem", "\x11em") in audit.round_trips and not audit.passed
    assert audit_extension(sound, {"x": ["đem"]}).passed


def test_changed_words_are_listed(smollm_like: Any) -> None:
    """B01: an added token that the caller forces into a longer word."""
    spelling = spelling_of(smollm_like)
    word = max((p for p in spelling.vocab if p.startswith("Ġ") and p[1:].isalpha()), key=len)
    part = word[2:-1]
    layout = surgery.added_layout(spelling, {part: False})
    forced = surgery.build(layout, smollm_like)
    token = NewToken(spelling.first_free_id, part, part.encode(), spelling.subtokens(part))
    extension = Extension(smollm_like, forced, (token,), "added", spelling.first_free_id, {})
    table, checked = changed_words(extension)
    assert f" {word[1:]}" in table.word.tolist() and checked > 500
    assert changed_words(add_tokens(smollm_like, [part + "zzq"]))[0].empty


def test_b20_a_changed_check_text_is_reported(smollm_like: Any) -> None:
    quiet = add_tokens(smollm_like, [" frobnicator"])
    loud = add_tokens(smollm_like, [" frobnicator"])
    assert not audit_extension(quiet, {"x": ["a"]}).check_changed
    assert audit_extension(loud, {"x": ["a"]}, check_text="the frobnicator").check_changed


def test_missing_tokens_are_claimed_only_of_what_was_read(extension: Extension) -> None:
    nothing = audit_extension(extension, {})
    assert nothing.missing is None and len(nothing.table()) == 4
    here = audit_extension(extension, {"x": ["1 2 3"]})
    assert len(here.missing or ()) == extension.N and "new tokens not in the texts" in here.table().finding.tolist()


def test_texts_that_are_cut_elsewhere_are_listed_with_the_place(smollm_like: Any, domain: list[str]) -> None:
    texts = ["x = 1", "print(groupby_x)", *domain]
    assert recut_texts(add_tokens(smollm_like, [" groupby"], "merges"), texts).empty
    extension = add_tokens(smollm_like, ["oupby"], "added")
    found = recut_texts(extension, texts)
    before = encode_all(smollm_like, texts)
    parts = {token.id: token.subtokens for token in extension.tokens}
    naive = {}
    for number, ids in enumerate(encode_all(extension.extended, texts)):
        after = [old for i in ids for old in parts.get(i, (i,))]
        if after != before[number]:
            naive[number] = after
    assert 1 in naive
    assert 0 not in naive
    assert found["text"].tolist() == list(naive)
    row = found.iloc[0]
    near = slice(max(0, row.position - 2), row.position + 3)
    assert row.before == tuple(before[1][near])
    assert row.after == tuple(naive[1][near])
    assert before[1][: row.position] == naive[1][: row.position]
    assert before[1][row.position] != naive[1][row.position]


def test_positions_that_hold_another_old_token_are_counted(smollm_like: Any, domain: list[str]) -> None:
    """Against the definition: an old token is unchanged where the original has it at the same bytes."""
    assert changed_positions(add_tokens(smollm_like, [" groupby"], "merges"), domain)[0].empty
    extension = add_tokens(smollm_like, ["oupby", " in s"], "phrases", phrase_form="literal")
    texts = ["x groupby y in some in s", *domain]
    found, looked_at = changed_positions(extension, texts)

    def spans(tokenizer: Any, text: str) -> list[tuple[int, int]]:
        spelling, at, out = spelling_of(tokenizer), 0, []
        for i in encode_all(tokenizer, [text])[0]:
            at += len(spelling.raw_of(i))
            out.append((i, at))
        return out

    naive, old = [], 0
    for number, text in enumerate(texts):
        before = set(spans(extension.original, text))
        for k, (i, end) in enumerate(spans(extension.extended, text)):
            old += i < extension.V
            if i < extension.V and (i, end) not in before:
                naive.append((number, k))
    assert list(zip(found["text"], found["position"], strict=True)) == naive and looked_at == old
    assert any(number == 0 for number, _ in naive)
    table = audit_extension(extension, {"x": texts}).table().set_index("finding")
    row = table.loc["positions outside new tokens whose token differs"]
    assert (row["count"], row["of"]) == (len(naive), old) and "->" in row["examples"]
