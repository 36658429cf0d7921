"""How many bytes of text each token stands for.

The families of `families` give every token id a fixed piece of bytes, so byte ends are one table look-up and one
running sum, with no decoding and no character offsets (several tokens can share one character).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vocabx_utils.vocabulary.families import Family, family_of

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

NO_TOKEN = -1


@dataclass(frozen=True)
class ByteTable:
    """Bytes of every token id of one tokenizer.

    Attributes:
        family: how the tokenizer spells text.
        pieces: bytes of each id as the tokenizer's text holds them; empty for specials and for unused ids.
        lengths: (R,) int64, bytes of *normalised* text each id consumes: 0 for specials, -1 where an id is
            unused.
        special: (R,) True for special tokens, which stand for no text.
        added: (R,) True for tokens that are matched in the text before the merges run.
    """

    family: Family
    pieces: tuple[bytes, ...]
    lengths: IntArray
    special: BoolArray
    added: BoolArray


def _build(family: Family) -> ByteTable:
    rows = family.first_free_id
    pieces = [b""] * rows
    lengths = np.full(rows, NO_TOKEN, dtype=np.int64)
    special, added = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
    special[list(family.controls)] = True
    added[list(family.specials)] = True
    for index, piece in family.pieces.items():
        raw = b"" if special[index] else family.raw_of(index)
        pieces[index] = raw
        lengths[index] = len(raw)
        if added[index] and family.rewrites and raw:
            lengths[index] = len(family.normalise(piece).encode())
    return ByteTable(family, tuple(pieces), lengths, special, added)


_TABLES: weakref.WeakKeyDictionary[Any, ByteTable] = weakref.WeakKeyDictionary()


def byte_table(tokenizer: Any) -> ByteTable:
    """Return the bytes of every token of a tokenizer; computed once per tokenizer and vocabulary size.

    Args:
        tokenizer: a fast Hugging Face tokenizer, or a `tokenizers.Tokenizer`.

    Returns:
        Its `ByteTable`.

    Raises:
        TokenizerError: a tokenizer that `families.family_of` refuses.
    """
    family = family_of(tokenizer)
    table = _TABLES.get(tokenizer)
    if table is None or table.family is not family:
        table = _TABLES[tokenizer] = _build(family)
    return table


def token_widths(table: ByteTable, ids: Sequence[int] | IntArray) -> IntArray:
    """Look up the bytes each token consumes.

    Args:
        table: what `byte_table` returned.
        ids: token ids, (T,).

    Returns:
        (T,) int64.

    Raises:
        ValueError: for an id that the tokenizer does not have (a padding row of the matrices, for example).
    """
    index = np.asarray(ids, dtype=np.int64)
    bad = (index < 0) | (index >= len(table.lengths))
    if not bad.any():
        widths = table.lengths[index]
        bad = widths < 0
        if not bad.any():
            return widths
    raise ValueError(
        f"token id {int(index[bad][0])} is not in the tokenizer, with ids 0 to {len(table.lengths) - 1}; "
        "are these ids from another tokenizer?"
    )


def byte_ends(tokenizer: Any, ids: Sequence[int] | IntArray) -> IntArray:
    """Count the UTF-8 bytes of normalised text that have been consumed after each token.

    Args:
        tokenizer: the fast tokenizer that made the ids.
        ids: token ids, (T,).

    Returns:
        (T,) int64, never falling. Special tokens stand for no text and repeat the end before them; in
        SentencePiece-style tokenizers the mark U+2581 counts as the one space that it stands for.

    Raises:
        ValueError: for an unknown kind of tokenizer or an id that it does not have.
    """
    return np.cumsum(token_widths(byte_table(tokenizer), ids))


def piece_ends(pieces: Sequence[str] | Sequence[bytes]) -> IntArray:
    """Count the bytes consumed after each piece of a text that is already cut.

    Args:
        pieces: the tokens as text or bytes, (T,).

    Returns:
        (T,) int64.

    Example:
        >>> piece_ends(["import", " num", "py"]).tolist()
        [6, 10, 12]
    """
    sizes = [len(piece.encode() if isinstance(piece, str) else piece) for piece in pieces]
    return np.cumsum(np.array(sizes, dtype=np.int64))
