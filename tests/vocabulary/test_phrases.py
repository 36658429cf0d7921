"""The learner of phrases against one that counts everything anew, in plain Python."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabx_utils.vocabulary.encoding import encode_all
from vocabx_utils.vocabulary.options import TokenOptions
from vocabx_utils.vocabulary.phrases import PhraseLearner
from vocabx_utils.vocabulary.spelling import Spelling, spelling_of


def naive_pieces(texts: list[str], spelling: Spelling, options: TokenOptions, steps: int) -> list[tuple[bytes, int]]:
    """Bytes of each learned piece and how many its merge made, by the definition."""
    rows: list[tuple[int, list[bytes | None]]] = []  # the text's number, and a stretch without added tokens
    for number, ids in enumerate(encode_all(spelling.backend, texts)):
        rows.append((number, [None if i in spelling.added_ids else spelling.raw_of(i) for i in ids]))
    named: list[tuple[int, list[Any]]] = [
        (number, [None if raw is None else (raw, ids) for raw, ids in zip(row, numbered, strict=True)])
        for (number, row), numbered in zip(rows, encode_all(spelling.backend, texts), strict=True)
    ]
    made: list[tuple[bytes, int]] = []
    for step in range(steps):
        places: Counter[Any] = Counter()
        files: dict[Any, set[int]] = {}
        for number, row in named:
            k = 0
            last = None
            while k + 1 < len(row):
                pair = (row[k], row[k + 1])
                if None not in pair and not (pair == last and pair[0] == pair[1]):
                    places[pair] += 1
                    files.setdefault(pair, set()).add(number)
                    last = pair
                else:
                    last = None
                k += 1
        fit = [
            (-count, pair[0][0] + pair[1][0], pair[0][0], pair)
            for pair, count in places.items()
            if count >= options.min_count and len(files[pair]) >= options.min_files and may_join(*pair, options)
        ]
        if not fit:
            break
        count, raw, _, pair = min(fit, key=lambda f: (f[:3], f[3][0][1], f[3][1][1]))
        made.append((raw, -count))
        named = [(number, joined(row, pair, (raw, 10**6 + step))) for number, row in named]
    return made


def may_join(left: Any, right: Any, options: TokenOptions) -> bool:
    raw = left[0] + right[0]
    if len(raw) > max(options.max_bytes, options.max_phrase_bytes):
        return False
    if right[0] == b" ":
        return False
    if (right[0][0] & 0xC0) != 0x80 and "\ufffd" in raw.decode("utf-8", "replace"):
        return False
    if not options.line_breaks and (b"\n" in raw or b"\r" in raw):
        return False
    return options.across_digits or not (left[0][-1:].isdigit() or right[0][:1].isdigit())


def joined(row: list[Any], pair: Any, new: Any) -> list[Any]:
    out, k = [], 0
    while k < len(row):
        if k + 1 < len(row) and (row[k], row[k + 1]) == pair:
            out.append(new)
            k += 2
        else:
            out.append(row[k])
            k += 1
    return out


def learned(texts: list[str], spelling: Spelling, options: TokenOptions, steps: int) -> list[tuple[bytes, int]]:
    learner = PhraseLearner(texts, spelling, options)
    while len(learner.parents) < steps and learner.step():
        pass
    return list(zip(learner.raws[learner.V :], learner.born, strict=True))


@pytest.mark.parametrize(
    "options",
    [
        TokenOptions(min_count=3),
        TokenOptions(min_count=2, line_breaks=False, max_phrase_bytes=9, max_bytes=9),
        TokenOptions(min_count=3, min_files=3, across_digits=True),
    ],
)
@pytest.mark.parametrize("name", ["smollm", "qwen", "llama3"])
def test_the_learner_equals_a_naive_one(
    base_tokenizers: dict[str, Any], domain: list[str], name: str, options: TokenOptions
) -> None:
    spelling = spelling_of(base_tokenizers[name])
    texts = [*domain[:40], "aaaaaaa bb <|im_end|> bb <|im_end|> bb <|im_end|> bb 1 2 3 1 2 3 1 2 3"]
    found = learned(texts, spelling, options, 40)
    assert found == naive_pieces(texts, spelling, options, 40) and len(found) == 40


@given(lines=st.lists(st.text("ab ().\n1é🙂", max_size=30), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_the_learner_equals_a_naive_one_on_any_text(base_tokenizers: dict[str, Any], lines: list[str]) -> None:
    spelling, options = spelling_of(base_tokenizers["smollm"]), TokenOptions(min_count=2)
    texts = [line for line in lines if line] or ["a"]
    found = learned(texts, spelling, options, 30)
    assert found == naive_pieces(texts, spelling, options, 30)
    assert learned(texts[::-1], spelling, options, 30) == found


def test_added_tokens_and_ends_of_texts_are_never_joined(smollm_like: Any) -> None:
    spelling = spelling_of(smollm_like)
    texts = ["ab", "cd"] * 20 + ["x <|im_end|> y"] * 20
    raws = [raw for raw, _ in learned(texts, spelling, TokenOptions(), 60)]
    assert not any(b"im_end" in raw or b"bc" in raw or b"da" in raw for raw in raws)
