"""The thesis's selection against its wording, and what both strategies refuse."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import pytest

from vocabx_utils.texts import TokenizerError
from vocabx_utils.vocabulary.encoding import encode_all
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.options import TokenOptions
from vocabx_utils.vocabulary.proposals import FewerTokensWarning, select_tokens, train_fresh_bpe
from vocabx_utils.vocabulary.spelling import spelling_of


def by_the_letter(texts: list[str], tokenizer: Any, n: int, size: int) -> list[str]:
    """The algorithm, one line for each of its lines, on texts of tokens."""
    spelling = spelling_of(tokenizer)
    fresh = train_fresh_bpe(texts, spelling, size)
    counts = Counter(i for t in texts for i in fresh.encode(t, add_special_tokens=False).ids)
    named = {spelling.raw(fresh.id_to_token(i)): c for i, c in counts.items()}
    old = [spelling.raw_of(i).decode("utf-8", "replace") for i in spelling.pieces]
    kept = []
    for raw, count in named.items():
        text = raw.decode("utf-8", "replace")
        whole = text.encode() == raw
        number = text.strip() and all(c.isnumeric() or c == "." for c in text.strip())
        if whole and not number and not any(text in o for o in old):
            kept.append((-count, raw, text))
    return [text for _, _, text in sorted(kept)][:n]


@pytest.mark.parametrize("name", ["smollm", "qwen", "llama2"])
def test_added_follows_the_thesis(base_tokenizers: dict[str, Any], domain: list[str], name: str) -> None:
    tokenizer = base_tokenizers[name]
    found = select_tokens(domain, tokenizer, 50, strategy="added", options=TokenOptions(fresh_vocab_size=1500))
    assert [p.text for p in found] == by_the_letter(domain, tokenizer, 50, 1500)


def test_added_keeps_letters_and_signs_apart_in_the_sentencepiece_family(base_tokenizers: dict[str, Any]) -> None:
    """A token `s.` would cut every plural before a full stop."""
    texts = ["Frames, widgets; gadgets: x_ctx->zqfoo(). All zqbars.\n"] * 30
    with pytest.warns(FewerTokensWarning):
        found = [p.text for p in select_tokens(texts, base_tokenizers["llama2"], 200, strategy="added")]
    assert found and " zqbars" in found
    for text in found:
        kinds = {"letter" if c.isalpha() else "digit" if c.isdigit() else "sign" for c in text.strip()}
        assert len(kinds) <= 1, text


def test_chosen_tokens_carry_their_leading_space(smollm_like: Any) -> None:
    found = select_tokens(["x groupby y groupby\n"] * 9, smollm_like, 1, strategy="added")
    assert " groupby" in [p.text for p in found]


def test_numbers_are_dropped(base_tokenizers: dict[str, Any]) -> None:
    texts = ["id 9753 code 8642 value 31 name qwertz\n"] * 20
    with pytest.warns(FewerTokensWarning):
        found = select_tokens(texts, base_tokenizers["llama3"], 50, strategy="added")
    assert found and not any(p.text.strip().isnumeric() for p in found)


def test_subtokens_are_what_the_original_reads(tokenizer: Any, domain: list[str]) -> None:
    lossy = spelling_of(tokenizer).segment_prefix == "unless_space"
    for strategy in ("merges",) if lossy else ("added", "merges"):
        proposals = select_tokens(domain, tokenizer, 30, strategy=strategy, options=TokenOptions(min_count=3))
        extension = add_tokens(tokenizer, proposals, strategy=strategy)
        for token in extension.tokens:
            pieces = [family_raw(tokenizer, i) for i in token.subtokens]
            assert b"".join(pieces) == token.raw and len(pieces) > 1


def family_raw(tokenizer: Any, token_id: int) -> bytes:
    return families.setdefault(id(tokenizer), spelling_of(tokenizer)).raw_of(token_id)


families: dict[int, Any] = {}


def test_merges_save_what_they_promise(smollm_like: Any, domain: list[str]) -> None:
    extension = add_tokens(smollm_like, select_tokens(domain, smollm_like, 50, options=TokenOptions(min_count=3)))
    before, after = (sum(map(len, encode_all(t, domain))) for t in (smollm_like, extension.extended))
    assert before - after == sum(t.tokens_saved for t in extension.tokens) > 0


@pytest.mark.parametrize("strategy", ["merges", "added"])
def test_excluded_texts_are_not_proposed(smollm_like: Any, domain: list[str], strategy: Any) -> None:
    first = [p.text for p in select_tokens(domain, smollm_like, 5, strategy=strategy)]
    again = [
        p.text
        for p in select_tokens(
            domain, smollm_like, 5, strategy=strategy, options=TokenOptions(exclude=frozenset(first[:2]))
        )
    ]
    assert not set(first[:2]) & set(again) and len(again) == 5


@pytest.mark.parametrize("strategy", ["merges", "added"])
def test_b22_a_small_corpus_gives_what_it_has_and_says_so(smollm_like: Any, strategy: Any) -> None:
    texts = ["alpha beta gamma", "alpha beta", "gamma alpha"]
    with pytest.warns(FewerTokensWarning, match=r"offers \d+ new tokens .* 500 were asked for"):
        found = select_tokens(texts, smollm_like, 500, strategy=strategy)
    assert 0 < len(found) < 500
    assert len(found) <= add_tokens(smollm_like, found, strategy).N


@pytest.mark.parametrize("strategy", ["merges", "added"])
def test_a_corpus_of_one_line(smollm_like: Any, strategy: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FewerTokensWarning)
        assert [
            p.text
            for p in select_tokens(["groupby"], smollm_like, 5, strategy=strategy, options=TokenOptions(min_count=2))
        ] == []
        assert (
            select_tokens(["groupby"], smollm_like, 5, strategy=strategy, options=TokenOptions(min_count=1))
            or strategy == "added"
        )


@pytest.mark.parametrize("strategy", ["merges", "added"])
@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["some text"], {"n": 0}, "n is 0; expected 1 or more"),
        (["some text"], {"n": -3}, "n is -3"),
        ([], {"n": 5}, "holds no text"),
        (["", ""], {"n": 5}, "holds no text"),
        (["some text"], {"n": 5, "min_count": 0}, "min_count is 0"),
    ],
)
def test_bad_input(smollm_like: Any, strategy: Any, texts: list[str], options: Any, message: str) -> None:
    n = options.pop("n") if "n" in options else 5
    try:
        with pytest.raises(TokenizerError, match=message):
            select_tokens(texts, smollm_like, n, strategy=strategy, options=TokenOptions(**options))
    finally:
        options["n"] = n


def test_unknown_strategy(smollm_like: Any) -> None:
    with pytest.raises(TokenizerError, match="expected 'added' or 'merges'"):
        select_tokens(["text"], smollm_like, 3, strategy="unigram")  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", ["merges", "added"])
def test_a_token_stands_in_so_many_texts(smollm_like: Any, domain: list[str], strategy: Any) -> None:
    texts = [*domain, "frobnicate quuxify " * 300]
    found = select_tokens(texts, smollm_like, 60, strategy=strategy, options=TokenOptions(min_files=3, min_count=3))
    assert found and all(sum(p.text in text for text in texts) >= 3 for p in found)
    assert any(
        "quuxify" in p.text
        for p in select_tokens(texts, smollm_like, 60, strategy=strategy, options=TokenOptions(min_count=3))
    )
    with pytest.raises(TokenizerError, match="min_files 0; expected at least 1, 2 and 1"):
        select_tokens(texts, smollm_like, 5, strategy=strategy, options=TokenOptions(min_files=0))


@pytest.mark.filterwarnings("ignore:The corpus offers")
@pytest.mark.parametrize("spelling", [" groupby", "Ġgroupby"])
def test_an_excluded_token_may_be_spelt_as_a_piece(smollm_like: Any, spelling: str) -> None:
    texts = ["x groupby y groupby\n"] * 9
    assert " groupby" in [
        p.text for p in select_tokens(texts, smollm_like, 20, options=TokenOptions(count_steps=False))
    ]
    assert " groupby" not in [
        p.text for p in select_tokens(texts, smollm_like, 20, options=TokenOptions(exclude=frozenset([spelling])))
    ]


def test_steps_come_on_top_where_they_do_not_count(smollm_like: Any, domain: list[str]) -> None:
    usual = select_tokens(domain, smollm_like, 60, options=TokenOptions(min_count=3))
    wanted = select_tokens(domain, smollm_like, 60, options=TokenOptions(min_count=3, count_steps=False))
    assert len(usual) == 60 and any(not p.count for p in usual)
    assert sum(p.count > 0 for p in wanted) == 60 < len(wanted)
    assert [p.text for p in wanted[:60]] == [p.text for p in usual]
