"""Healing against a search over every token and every byte."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabx_utils.healing import Healer

TEXTS = [
    "a",
    "b",
    " ",
    "(",
    ")",
    ":",
    "\n",
    "é",
    "🙂",
    "):",
    "):\n  ",
    "\n  ",
    "ab",
    "ba",
    " if",
    " if not",
    "🙂 a",
    "é:",
]
RAWS = [b"", *(text.encode() for text in TEXTS), *(bytes([b]) for b in sorted(set("é🙂".encode()))), b""]
HEALER = Healer(RAWS)
SPECIAL = len(RAWS) - 1


def naive_cut(ids: list[int]) -> tuple[int, bytes]:
    """The longest run of whole tokens at the end of a prompt that a token could run through from inside."""
    after = max((at + 1 for at, token in enumerate(ids) if not RAWS[token]), default=1)
    first = max(after, 1)
    spelled = b"".join(RAWS[token] for token in ids[first:])
    begins = [
        at
        for at in range(len(spelled))
        if any(raw.startswith(spelled[at:]) and len(raw) > len(spelled) - at for raw in RAWS)
    ]
    if not begins:
        return len(ids), b""
    at, kept = 0, first
    for number, token in enumerate(ids[first:], first):
        if at <= min(begins) and RAWS[token][0] & 0xC0 != 0x80:
            kept = number
        at += len(RAWS[token])
    return kept, b"".join(RAWS[token] for token in ids[kept:])


@given(st.lists(st.integers(0, len(RAWS) - 1), min_size=1, max_size=12))
@settings(max_examples=300, deadline=None)
def test_cuts_are_those_of_a_search(ids: list[int]) -> None:
    kept, taken = HEALER.cut(ids)
    first = max((at + 1 for at, token in enumerate(ids) if not RAWS[token]), default=1)
    if len(ids) > first and RAWS[ids[first]] and RAWS[ids[first]][0] & 0xC0 == 0x80:
        return  # a prompt that goes on inside a character has no border there
    assert (kept, taken) == naive_cut(ids)
    assert kept >= 1 and b"".join(RAWS[i] for i in ids[kept:]) == taken


@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4).map("".join))
@settings(max_examples=200, deadline=None)
def test_what_is_allowed_begins_the_rest_or_begins_with_it(text: str) -> None:
    rest = text.encode()
    wanted = [i for i, raw in enumerate(RAWS) if raw and (rest.startswith(raw) or raw.startswith(rest))]
    assert HEALER.allowed(rest).tolist() == wanted


def test_a_phrase_may_be_said_where_the_prompt_cut_it() -> None:
    number = {raw: i for i, raw in enumerate(RAWS)}
    ids = [number[b"a"], number[b"("], number[b")"], number[b":"], number[b"\n"]]
    kept, taken = HEALER.cut(ids)
    assert (kept, taken) == (2, b"):\n") and number[b"):\n  "] in HEALER.allowed(taken)
    scores = torch.zeros(3, len(RAWS))
    scores[:, number[b"):\n  "]] = 1.0
    scores[:, SPECIAL] = 9.0
    held = HEALER.hold(scores, [taken, b"", b":\n"])
    assert held.argmax(-1).tolist() == [number[b"):\n  "], SPECIAL, number[b":"]]
    assert HEALER.after(taken, number[b"):\n  "]) == b"" and HEALER.after(taken, number[b"):"]) == b"\n"
    assert torch.equal(held[1], scores[1])


def test_a_rest_that_no_token_can_say_is_refused() -> None:
    with pytest.raises(ValueError, match="no token begins with or in b'z'"):
        HEALER.hold(torch.zeros(1, len(RAWS)), [b"z"])
