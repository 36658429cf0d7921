"""Texts to token ids and to byte ends, many texts at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from vocabx_utils.texts import require_text
from vocabx_utils.vocabulary.spelling import IntArray, backend_of, spelling_of


def encode_each(tokenizer: Any, texts: Iterable[str], *, add_special_tokens: bool = False) -> Iterator[list[int]]:
    """Return token ids of one text after the other, as large corpora need it; texts may be read once only."""
    backend = backend_of(tokenizer)
    backend.no_truncation()  # state that an earlier call may have left; every call sets its own
    backend.no_padding()
    for batch in text_batches(texts):
        for encoding in backend.encode_batch_fast(batch, add_special_tokens=add_special_tokens):
            yield encoding.ids


def encode_all(tokenizer: Any, texts: Iterable[str]) -> list[list[int]]:
    """Return the token ids of texts, without special tokens."""
    return list(encode_each(tokenizer, texts))


def text_batches(texts: Iterable[str], characters: int = 1_000_000) -> Iterator[list[str]]:
    """Put texts together until they are worth a call of the tokenizer, and no more: ids take a multiple of them."""
    batch: list[str] = []
    size = 0
    for number, text in enumerate(texts):
        batch.append(require_text(text, f"text {number}"))
        size += len(text)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def byte_ends(tokenizer: Any, ids: Sequence[int] | IntArray) -> IntArray:
    """Count the UTF-8 bytes of normalised text that have been consumed after each token.

    Several tokens can share one character, so characters could not tell positions apart. The counts (T,) never fall:
    special tokens stand for no text and repeat the end before them; in SentencePiece-style tokenizers the mark U+2581
    counts as the one space that it stands for. ValueError for an unknown kind of tokenizer, or an id that it lacks.
    """
    return np.cumsum(spelling_of(tokenizer).widths_of(ids))


def piece_ends(pieces: Sequence[str] | Sequence[bytes]) -> IntArray:
    """Count the bytes consumed after each piece of a text that is already cut.

    >>> piece_ends(["import", " num", "py"]).tolist()
    [6, 10, 12]
    """
    sizes = [len(piece.encode() if isinstance(piece, str) else piece) for piece in pieces]
    return np.cumsum(np.array(sizes, dtype=np.int64))
