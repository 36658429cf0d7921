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
    """Find each extended token's end in the bytes that the original read, (Te,), and whether each is exact, (Te,).

    An end is exact where the tokens so far spell those bytes. Added tokens are cut out before a text is normalised. A
    SentencePiece-style tokenizer then puts a space before each remaining part, and NFC cannot join a mark with a letter
    that sits inside the added token. ValueError where the two sides do not spell the same text.
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
    (`following`) say which, so nothing is guessed. `piece` holds the bytes since the last agreement, and `is_new` is
    of its last token.
    """
    scheme, starts_spaced = extended.segment_prefix, piece.startswith(b" ")
    if scheme == "added":
        lacks_space, extra_space = before is _Before.BREAK, True
    else:
        lacks_space = scheme != "none" and following == b" " and not starts_spaced
        extra_space = scheme == "unless_space" and following != b" "
    # the original may have a space before a new token, and lack one behind it
    if is_new and lacks_space:
        yield b" " + piece
    if not is_new and before is _Before.NEW and starts_spaced and extra_space:
        yield piece[1:]
    yield piece
    if extended.rewrites and piece:
        try:
            text = piece.decode()
        except UnicodeDecodeError:  # the tokens so far end inside a character
            return
        yield extended.normalise(text).encode()
