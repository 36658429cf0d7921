"""Align texts under an original and an extended tokenizer.

The one import for everything about alignment: the exact rule (`boundaries`), the thesis's look-ahead
algorithm (`lookahead`) and the bytes behind each token (`token_bytes`) are handed on from here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice
from typing import Any, Protocol

import numpy as np

from vocabx_utils.vocabulary.boundaries import (
    AlignedText,
    align_boundaries,
    first_divergence,
    match_tokens,
    summarize,
)
from vocabx_utils.vocabulary.families import Family, backend_of
from vocabx_utils.vocabulary.lookahead import (
    ANCHORS,
    IDENTICAL,
    MERGED,
    ORDERS,
    Anchor,
    IntArray,
    KindArray,
    Order,
    TokenMapping,
    map_token_sequences,
    wrong_pairs,
)
from vocabx_utils.vocabulary.token_bytes import (
    BoolArray,
    ByteTable,
    byte_ends,
    byte_table,
    piece_ends,
    token_widths,
)

__all__ = [
    "ANCHORS",
    "IDENTICAL",
    "MERGED",
    "ORDERS",
    "AlignedText",
    "Anchor",
    "IntArray",
    "KindArray",
    "Order",
    "TokenMapping",
    "align_boundaries",
    "align_ids",
    "align_text",
    "align_texts",
    "byte_ends",
    "byte_table",
    "first_divergence",
    "map_token_sequences",
    "piece_ends",
    "summarize",
    "wrong_pairs",
]


class TokenizerPair(Protocol):
    """What an alignment needs of a `vocabulary.tokens.Extension`."""

    @property
    def original(self) -> Any: ...

    @property
    def tokenizer(self) -> Any: ...


def align_text(extension: TokenizerPair, text: str, *, add_special_tokens: bool = False) -> AlignedText:
    """Tokenize a text with both tokenizers of an extension and align the two.

    Args:
        extension: anything with `original` and `tokenizer` (fast tokenizers).
        text: the text.
        add_special_tokens: let both tokenizers add their own specials (BOS, EOS).

    Returns:
        The aligned text.

    Raises:
        ValueError: for kinds of tokenizers that `families.family_of` refuses, or if the two do not read the same text.
    """
    return align_texts(extension, [text], add_special_tokens=add_special_tokens)[0]


def align_texts(
    extension: TokenizerPair,
    texts: Iterable[str],
    *,
    add_special_tokens: bool = False,
    batch_size: int = 1024,
) -> list[AlignedText]:
    """Align many texts; texts are encoded and matched a batch at a time.

    Args:
        extension: anything with `original` and `tokenizer` (fast tokenizers).
        texts: the texts.
        add_special_tokens: let both tokenizers add their own specials.
        batch_size: texts encoded at once.

    Returns:
        One `AlignedText` for each text, in order.

    Raises:
        ValueError: for kinds of tokenizers that `families.family_of` refuses, or if the two do not read the same text.
    """
    original, extended = backend_of(extension.original), backend_of(extension.tokenizer)
    aligned: list[AlignedText] = []
    for batch in _batches(texts, batch_size):
        sides = [
            [
                np.array(found.ids, dtype=np.int64)
                for found in backend.encode_batch_fast(batch, add_special_tokens=add_special_tokens)
            ]
            for backend in (original, extended)
        ]
        aligned += _align_batch(extension, batch, sides[0], sides[1])
    return aligned


def align_ids(
    extension: TokenizerPair, original_ids: Sequence[int] | IntArray, extended_ids: Sequence[int] | IntArray
) -> AlignedText:
    """Align two token sequences of one text that are already encoded.

    Args:
        extension: anything with `original` and `tokenizer` (fast tokenizers).
        original_ids: O, (To,).
        extended_ids: E, (Te,).

    Returns:
        The aligned text.

    Raises:
        ValueError: for unknown ids, or if the two sequences do not spell the same text.
    """
    sides = [np.asarray(ids, dtype=np.int64) for ids in (original_ids, extended_ids)]
    return _align_batch(extension, [None], [sides[0]], [sides[1]])[0]


def _batches(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    source = iter(texts)
    while batch := list(islice(source, size)):
        yield batch


def _align_batch(
    extension: TokenizerPair, texts: Sequence[str | None], left: list[IntArray], right: list[IntArray]
) -> list[AlignedText]:
    """Align a batch with one match over all of its tokens, the texts laid end to end one byte apart."""
    tables = byte_table(extension.original), byte_table(extension.tokenizer)
    sides = [_lay_out(table, ids) for table, ids in zip(tables, (left, right), strict=True)]
    slow = _texts_to_walk(texts, sides, tables)
    base = np.maximum(sides[0].totals, sides[1].totals)
    base = np.concatenate([[0], np.cumsum(base + 1)])
    ends = [side.ends + np.repeat(base[:-1], side.sizes) for side in sides]
    text_tokens = [side.widths > 0 for side in sides]
    pairs = match_tokens(
        ends[0],
        ends[1],
        text_tokens[0],
        text_tokens[1],
        sides[0].special,
        sides[1].special,
        sides[0].ids,
        sides[1].ids,
    )
    cuts = np.searchsorted(pairs[:, 0], sides[0].starts)
    aligned = []
    for n in range(len(texts)):
        if n in slow:
            aligned.append(_walk(tables, left[n], right[n]))
            continue
        a, b = (slice(side.starts[n], side.starts[n + 1]) for side in sides)
        boundaries = pairs[cuts[n] : cuts[n + 1]] - [sides[0].starts[n], sides[1].starts[n]]
        aligned.append(
            AlignedText(
                left[n],
                right[n],
                sides[0].ends[a],
                sides[1].ends[b],
                boundaries,
                sides[0].special[a],
                sides[1].special[b],
            )
        )
    return aligned


@dataclass(frozen=True)
class _Layout:
    """The tokens of a batch in one row: ids, widths, specials (T,); ends count from each text's start."""

    ids: IntArray
    widths: IntArray
    special: BoolArray
    ends: IntArray
    sizes: IntArray
    starts: IntArray
    totals: IntArray


def _lay_out(table: ByteTable, texts: list[IntArray]) -> _Layout:
    sizes = np.array([len(ids) for ids in texts], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    ids = np.concatenate(texts) if texts else np.zeros(0, dtype=np.int64)
    widths = token_widths(table, ids)
    running = np.concatenate([[0], np.cumsum(widths)])
    before = running[starts[:-1]]
    totals = running[starts[1:]] - before
    ends = running[1:] - np.repeat(before, sizes)
    return _Layout(ids, widths, table.special[ids], ends, sizes, starts, totals)


def _texts_to_walk(texts: Sequence[str | None], sides: list[_Layout], tables: tuple[ByteTable, ByteTable]) -> set[int]:
    """List the texts that must be followed token by token, since the two sides may count different bytes.

    Added tokens are cut out before a text is normalised. A SentencePiece-style tokenizer then puts a space before
    each remaining part, and NFC cannot join a mark with a letter that sits inside the added token. Equal totals
    prove nothing: a space that is missing before a new token may be made up for by one too many after another.
    """
    family = tables[1].family
    unequal = set(np.flatnonzero(sides[0].totals != sides[1].totals).tolist())
    new_added = _new_added(tables)
    if not (new_added.any() and (family.rewrites or family.segment_prefix != "none")):
        return unequal
    hits = np.concatenate([[0], np.cumsum(new_added[sides[1].ids])])[sides[1].starts]
    for n in np.flatnonzero(np.diff(hits)).tolist():
        text = texts[n]
        if family.segment_prefix != "none" or text is None or family.normalise(text) != text:
            unequal.add(n)
    return unequal


def _new_added(tables: tuple[ByteTable, ByteTable]) -> BoolArray:
    """Whether each extended id is an added token with text that the original does not have."""
    original, extended = tables
    new = extended.added & ~extended.special
    known = min(len(new), len(original.added))
    new[:known] &= ~original.added[:known]
    return new


def _walk(tables: tuple[ByteTable, ByteTable], left: IntArray, right: IntArray) -> AlignedText:
    """Follow the extended side along the bytes that the original side read."""
    original, extended = tables
    pieces = [original.pieces[index] for index in left]
    left_ends = piece_ends(pieces)
    right_ends, exact = _follow(b"".join(pieces), right, tables)
    left_special, right_special = original.special[left], extended.special[right]
    boundaries = match_tokens(
        left_ends,
        right_ends,
        np.diff(left_ends, prepend=0) > 0,
        (np.diff(right_ends, prepend=0) > 0) & exact,
        left_special,
        right_special & exact,
        left,
        right,
    )
    return AlignedText(left, right, left_ends, right_ends, boundaries, left_special, right_special)


def _follow(reference: bytes, ids: IntArray, tables: tuple[ByteTable, ByteTable]) -> tuple[IntArray, BoolArray]:
    """Find each token's end in the reference bytes, and whether the tokens so far spell just those."""
    table = tables[1]
    is_new = _new_added(tables)[ids]
    ends, exact = np.zeros(len(ids), dtype=np.int64), np.zeros(len(ids), dtype=bool)
    at, pending, before = 0, b"", _Before.BREAK
    for position, index in enumerate(ids):
        if pending or (table.added[index] and not is_new[position]):
            before = _Before.TEXT  # a run that spells nothing yet, and an original added token, are as they stand
        pending += table.pieces[index]
        for spelling in _spellings(pending, table.family, before, bool(is_new[position]), reference[at : at + 1]):
            if reference.startswith(spelling, at):
                at, pending = at + len(spelling), b""
                break
        ends[position], exact[position] = at, not pending
        old = _Before.BREAK if table.added[index] else _Before.TEXT
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


def _spellings(piece: bytes, family: Family, before: _Before, is_new: bool, following: bytes) -> Iterator[bytes]:
    """Yield the bytes that a run of tokens may stand for in the original's text, the likeliest ones first.

    Where the family puts a space before stretches of text, the original may have one before a new token that the
    extended side lacks, and the extended one too many after a new token. The scheme and the reference's next byte
    say which, so nothing is guessed.

    Args:
        piece: bytes of the extended tokens since the last agreement.
        family: of the extended tokenizer.
        before: what stands before them.
        is_new: whether the last of them is a new added token.
        following: the next byte of the reference.
    """
    starts_spaced = piece.startswith(b" ")
    if is_new and _lacks_space(family, before, starts_spaced, following):
        yield b" " + piece
    if not is_new and before is _Before.NEW and starts_spaced and _has_extra_space(family, following):
        yield piece[1:]
    yield piece
    if family.rewrites and piece:
        try:
            text = piece.decode()
        except UnicodeDecodeError:  # the tokens so far end inside a character
            return
        yield family.normalise(text).encode()


def _lacks_space(family: Family, before: _Before, starts_spaced: bool, following: bytes) -> bool:
    """Whether the original has a space before this new token that the extended side lacks."""
    if family.segment_prefix == "added":
        return before is _Before.BREAK
    return family.segment_prefix != "none" and following == b" " and not starts_spaced


def _has_extra_space(family: Family, following: bytes) -> bool:
    """Whether text behind a new token begins with a space that the original lacks."""
    return family.segment_prefix == "added" or (family.segment_prefix == "unless_space" and following != b" ")
