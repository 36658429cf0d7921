"""Follow the extended tokens along the bytes that the original ones read, where the two may count different bytes."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

import numpy as np

from vocabx_utils.vocabulary.spelling import BoolArray, IntArray, Spelling


def new_added(original: Spelling, extended: Spelling) -> BoolArray:
    """Tell whether each extended id is an added token with text that the original does not have, (V + N,)."""
    new = extended.is_added & ~extended.is_control
    known = min(len(new), original.first_free_id)
    new[:known] &= ~original.is_added[:known]
    return new


def follow(reference: bytes, ids: IntArray, original: Spelling, extended: Spelling) -> tuple[IntArray, BoolArray]:
    """Find each extended token's end in the bytes that the original read, and whether the tokens so far spell those.

    Added tokens are cut out before a text is normalised. A SentencePiece-style tokenizer then puts a space before each
    remaining part, and NFC cannot join a mark with a letter that sits inside the added token.

    Args:
        reference: bytes of the original side's tokens.
        ids: E, (Te,).
        original: spelling of the original tokenizer.
        extended: spelling of the extended one.

    Returns:
        Ends, (Te,), and whether each is exact, (Te,).

    Raises:
        ValueError: the two sides do not spell the same text.
    """
    is_new = new_added(original, extended)[ids]
    ends, exact = np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids), dtype=bool)
    at, pending, before = 0, b"", _Before.BREAK
    for position, index in enumerate(ids):
        if pending or (extended.is_added[index] and not is_new[position]):
            before = _Before.TEXT  # a run that spells nothing yet, and an original added token, are as they stand
        pending += extended.raws[index]
        for spelling in _spellings(pending, extended, before, bool(is_new[position]), reference[at : at + 1]):
            if reference.startswith(spelling, at):
                at, pending = at + len(spelling), b""
                break
        ends[position], exact[position] = at, not pending
        old = _Before.BREAK if extended.is_added[index] else _Before.TEXT
        before = _Before.NEW if is_new[position] else old
    if pending or at != len(reference):
        raise ValueError(
            f"the two tokenizers do not read the same text: after byte {at} the original reads "
            f"{reference[at : at + 24]!r} and the extended {pending[:24]!r}"
        )
    return ends, exact


class _Before(Enum):
    """What stands before a token: nothing or an original added token, a new added token, or other text."""

    BREAK = auto()
    NEW = auto()
    TEXT = auto()


def _spellings(piece: bytes, extended: Spelling, before: _Before, is_new: bool, following: bytes) -> Iterator[bytes]:
    """Yield the bytes that a run of tokens may stand for in the original's text, the likeliest ones first.

    Where a tokenizer puts a space before stretches of text, the original may have one before a new token that the
    extended side lacks, and the extended one too many after a new token. The scheme and the reference's next byte
    say which, so nothing is guessed.

    Args:
        piece: bytes of the extended tokens since the last agreement.
        extended: spelling of the extended tokenizer.
        before: what stands before them.
        is_new: whether the last of them is a new added token.
        following: the next byte of the reference.
    """
    starts_spaced = piece.startswith(b" ")
    if is_new and _lacks_space(extended, before, starts_spaced, following):
        yield b" " + piece
    if not is_new and before is _Before.NEW and starts_spaced and _has_extra_space(extended, following):
        yield piece[1:]
    yield piece
    if extended.rewrites and piece:
        try:
            text = piece.decode()
        except UnicodeDecodeError:  # the tokens so far end inside a character
            return
        yield extended.normalise(text).encode()


def _lacks_space(extended: Spelling, before: _Before, starts_spaced: bool, following: bytes) -> bool:
    """Whether the original has a space before this new token that the extended side lacks."""
    if extended.segment_prefix == "added":
        return before is _Before.BREAK
    return extended.segment_prefix != "none" and following == b" " and not starts_spaced


def _has_extra_space(extended: Spelling, following: bytes) -> bool:
    """Whether text behind a new token begins with a space that the original lacks."""
    return extended.segment_prefix == "added" or (extended.segment_prefix == "unless_space" and following != b" ")
