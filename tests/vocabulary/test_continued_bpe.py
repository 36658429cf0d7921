"""Continued BPE against a naive recount, and its options."""

from __future__ import annotations

import itertools
import random
import unicodedata
from collections import Counter
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from vocabx_utils.vocabulary.continued_bpe import LearnedMerges, learn_merges
from vocabx_utils.vocabulary.encoding import encode_all
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.options import TokenOptions
from vocabx_utils.vocabulary.proposals import proposals_from_merges
from vocabx_utils.vocabulary.spelling import Spelling, spelling_of
from vocabx_utils.vocabulary.wordtable import WordTable, count_words, joinable

PLAIN = TokenOptions(min_count=3)


def naive_merges(table: WordTable, spelling: Spelling, n: int, options: TokenOptions) -> list[tuple[str, str, int]]:
    """Recount everything before each merge; pieces are strings."""
    words = [[spelling.pieces[i] for i in w] for w in table.words]
    merges: list[tuple[str, str, int]] = []
    made: set[str] = set()

    def number() -> int:
        return len(made if options.count_steps else made & {p for word in words for p in word})

    while number() < n:
        counts: Counter[tuple[str, str]] = Counter()
        files: dict[tuple[str, str], set[int]] = {}
        for k, word in enumerate(words):
            for pair in itertools.pairwise(word):
                files.setdefault(pair, set()).update(table.files[k] if table.files else ())
        for word, times in zip(words, table.counts, strict=True):
            k = 0
            while k + 1 < len(word):
                counts[word[k], word[k + 1]] += times
                repeated = k + 2 < len(word) and word[k] == word[k + 1] == word[k + 2]
                k += 2 if repeated and word[k] == word[k + 1] else 1
        best = None
        for (a, b), count in counts.items():
            raw = spelling.raw(a + b)
            if count < options.min_count or a + b in spelling.vocab or len(raw) > options.max_bytes or raw.isspace():
                continue
            if not joinable(a, b, spelling) or len(files[a, b]) < options.min_files > 1:
                continue
            key = (-count, raw, spelling.raw(a))
            if best is None or key < best[0]:
                best = (key, a, b)
        if best is None:
            break
        (negative, _, _), a, b = best
        merges.append((a, b, -negative))
        made.add(a + b)
        words = [join(word, a, b) for word in words]
    return merges


def join(word: list[str], a: str, b: str) -> list[str]:
    out: list[str] = []
    for piece in word:
        if out and out[-1] == a and piece == b:
            out[-1] = a + b
            out.append("")  # what was just made cannot be merged again in this pass
            continue
        out.append(piece)
    return [p for p in out if p]


def spelt(learned: LearnedMerges, spelling: Spelling) -> list[tuple[str, str, int]]:
    def piece(i: int) -> str:
        return learned.pieces.get(i) or spelling.pieces[i]

    return [(piece(m.left), piece(m.right), m.count) for m in learned.merges]


@pytest.mark.parametrize("name", ["smollm", "qwen", "llama2"])
def test_merges_equal_a_naive_recount(base_tokenizers: dict[str, Any], domain: list[str], name: str) -> None:
    spelling = spelling_of(base_tokenizers[name])
    table = count_words(domain[:120], spelling)
    learned = learn_merges(table, spelling, 40, PLAIN)
    assert spelt(learned, spelling) == naive_merges(table, spelling, 40, PLAIN)


@pytest.mark.parametrize("name", ["smollm", "llama2"])
@pytest.mark.parametrize("options", [{"min_files": 2}, {"min_files": 5}, {"count_steps": False, "min_files": 3}])
def test_options_equal_a_naive_recount(
    base_tokenizers: dict[str, Any], domain: list[str], name: str, options: dict[str, Any]
) -> None:
    spelling = spelling_of(base_tokenizers[name])
    table = count_words(domain[:120], spelling, TokenOptions(min_files=options["min_files"]))
    chosen = TokenOptions(min_count=3, **options)
    learned = learn_merges(table, spelling, 40, chosen)
    assert spelt(learned, spelling) == naive_merges(table, spelling, 40, chosen)
    if "count_steps" in options:
        assert len(learned.pieces) - len(learned.unseen) == 40 and learned.unseen


def test_runs_of_equal_tokens_are_counted_as_they_merge(smollm_like: PreTrainedTokenizerFast) -> None:
    spelling = spelling_of(smollm_like)
    at = spelling.vocab["@"]
    table = WordTable([(at,) * 5], [10], 50)
    learned = learn_merges(table, spelling, 1, PLAIN)
    assert learned.merges[0].count == 20 and learned.tokens_after == 30


def test_expected_length_is_the_real_length(tokenizer: PreTrainedTokenizerFast, domain: list[str]) -> None:
    """What the learner says about the corpus is what the extended tokenizer then does."""
    spelling = spelling_of(tokenizer)
    learned = learn_merges(count_words(domain, spelling), spelling, 120, TokenOptions(min_count=3))
    extension = add_tokens(tokenizer, proposals_from_merges(learned, spelling))
    assert sum(map(len, encode_all(extension.extended, domain))) == learned.tokens_after
    counts = extension.count(domain)
    assert {t.raw: counts[t.id] for t in extension.tokens} == {
        spelling.raw(p): learned.shown.get(i, 0) for i, p in learned.pieces.items()
    }


def test_order_of_texts_does_not_matter(tokenizer: PreTrainedTokenizerFast, domain: list[str]) -> None:
    spelling = spelling_of(tokenizer)
    shuffled = random.Random(1).sample(domain, len(domain))
    one, other = (learn_merges(count_words(texts, spelling), spelling, 60) for texts in (domain, shuffled))
    assert spelt(one, spelling) == spelt(other, spelling)


def test_no_old_piece_is_made_again(tokenizer: PreTrainedTokenizerFast, domain: list[str]) -> None:
    spelling = spelling_of(tokenizer)
    learned = learn_merges(count_words(domain, spelling), spelling, 200)
    assert not set(learned.pieces.values()) & set(spelling.vocab)


def learned_texts(tokenizer: PreTrainedTokenizerFast, texts: list[str], n: int = 300, **options: Any) -> list[bytes]:
    spelling = spelling_of(tokenizer)
    table = count_words(texts, spelling, TokenOptions(**options))
    learned = learn_merges(table, spelling, n, TokenOptions(**options))
    return [spelling.raw(p) for p in learned.pieces.values()]


def test_min_count_and_max_bytes(tokenizer: PreTrainedTokenizerFast, domain: list[str]) -> None:
    spelling = spelling_of(tokenizer)
    learned = learn_merges(count_words(domain, spelling), spelling, 10_000, TokenOptions(min_count=40, max_bytes=6))
    assert learned.exhausted and learned.merges
    assert min(m.count for m in learned.merges) >= 40
    assert max(len(spelling.raw(p)) for p in learned.pieces.values()) <= 6


def test_digits_are_joined_only_on_request(tokenizer: PreTrainedTokenizerFast) -> None:
    texts = [f"x = {year}\nconv2d(v{year}, int64, utf8)\n" for year in range(1000, 1400)]

    def with_digits(found: list[bytes]) -> list[bytes]:
        decoded = [raw.decode("utf-8", "replace") for raw in found]
        return [t.encode() for t in decoded if len(t) > 1 and any(unicodedata.category(c).startswith("N") for c in t)]

    assert not with_digits(learned_texts(tokenizer, texts, min_count=2))


def test_digits_across(base_tokenizers: dict[str, Any]) -> None:
    texts = ["call conv2d and conv2d again\n"] * 5
    found = learned_texts(base_tokenizers["llama2"], texts, across_digits=True)
    assert any(b"2" in raw and len(raw) > 1 for raw in found)


def test_pure_whitespace_is_kept_only_on_request(tokenizer: PreTrainedTokenizerFast) -> None:
    texts = ["a" + " " * 37 + "b\n\n\n\n\n\t\t\t\t\tc"] * 9
    assert not any(raw.isspace() for raw in learned_texts(tokenizer, texts, keep_whitespace=False))
    assert any(raw.isspace() for raw in learned_texts(tokenizer, texts, keep_whitespace=True, max_bytes=64))


def test_excluded_byte_strings_never_become_tokens(smollm_like: PreTrainedTokenizerFast, domain: list[str]) -> None:
    first = learned_texts(smollm_like, domain, 20)
    barred = frozenset(first[:3])
    assert not barred & set(learned_texts(smollm_like, domain, 20, exclude=barred))


def test_a_small_corpus_stops_at_what_exists(smollm_like: PreTrainedTokenizerFast) -> None:
    spelling = spelling_of(smollm_like)
    learned = learn_merges(count_words(["groupby groupby"] * 3, spelling), spelling, 500)
    assert learned.exhausted and 0 < len(learned.pieces) < 20


def test_what_one_text_alone_shows_is_left_out(tokenizer: PreTrainedTokenizerFast, domain: list[str]) -> None:
    """However often it stands there; and files are told apart no further than is needed."""
    spelling = spelling_of(tokenizer)
    texts = [*domain, "frobnicate " * 500]
    alone, spread = (
        learn_merges(count_words(texts, spelling, TokenOptions(min_files=k)), spelling, 60, TokenOptions(min_files=k))
        for k in (1, 2)
    )
    assert any("frobnicate" in piece for piece in alone.pieces.values())
    assert not any("frobnic" in piece for piece in spread.pieces.values()) and len(spread.pieces) == 60
    with pytest.raises(ValueError, match="min_files is 3; the table knows 2"):
        learn_merges(count_words(texts, spelling, TokenOptions(min_files=2)), spelling, 5, TokenOptions(min_files=3))
