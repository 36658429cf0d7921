"""How many bytes of text each token stands for.

Two families of BPE tokenizers are known. Byte-level ones (SmolLM2, Qwen2.5, Llama-3, DeepSeek-Coder) spell
every byte as one printable character. SentencePiece-style ones (Llama-2) spell a space as U+2581 and fall
back to tokens such as `<0xE2>`. Both give every token id a fixed piece of bytes, so byte ends are one table
look-up and one running sum, with no decoding and no character offsets (several tokens can share one
character).
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

METASPACE = "\u2581"
NO_TOKEN = -1
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_CANONICAL = {"NFC", "NFD", "NFKC", "NFKD"}


@dataclass(frozen=True)
class ByteTable:
    """Bytes of every token id of one tokenizer.

    Attributes:
        family: `byte-level` or `metaspace`.
        pieces: bytes of each id as the tokenizer's text holds them; empty for specials and for unused ids.
        lengths: (R,) int64, bytes of *normalised* text each id consumes: 0 for specials, -1 where an id is
            unused.
        special: (R,) True for special tokens, which stand for no text.
        added: (R,) True for tokens that are matched in the text before the merges run.
        normalizers: type names of the tokenizer's normaliser steps, in order.
    """

    family: str
    pieces: tuple[bytes, ...]
    lengths: IntArray
    special: BoolArray
    added: BoolArray
    normalizers: tuple[str, ...]

    @property
    def composes(self) -> bool:
        """Whether the normaliser may join or rewrite characters (NFC and relatives)."""
        return any(name not in {"Prepend", "Replace"} for name in self.normalizers)


@cache
def byte_alphabet() -> dict[str, int]:
    """Return the character-to-byte map of byte-level BPE (GPT-2's): printable bytes are themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {chr(value): value for value in printable}
    others = [value for value in range(256) if value not in set(printable)]
    table.update({chr(256 + rank): value for rank, value in enumerate(others)})
    return table


def backend_of(tokenizer: Any) -> Any:
    """Return the `tokenizers.Tokenizer` inside a fast tokenizer (or the object itself if it is one).

    Raises:
        ValueError: for a tokenizer without a fast backend.
    """
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not (hasattr(backend, "encode_batch") and hasattr(backend, "to_str")):
        raise ValueError(
            f"{type(tokenizer).__name__} has no fast backend, and byte ends are read from one; "
            "load the tokenizer with use_fast=True or convert it to tokenizer.json first"
        )
    return backend


def _step_names(step: dict[str, Any] | None, children: str) -> tuple[str, ...]:
    if step is None:
        return ()
    if step["type"] == "Sequence":
        return tuple(name for child in step[children] for name in _step_names(child, children))
    return (step["type"],)


def _family(spec: dict[str, Any]) -> str:
    model = spec["model"]["type"]
    if model != "BPE":
        raise ValueError(
            f"the tokenizer's model is {model}, which this project does not extend: its tokens come from "
            "scores or from longest matches, not from an ordered list of merges; use a BPE tokenizer"
        )
    splitters = _step_names(spec["pre_tokenizer"], "pretokenizers")
    decoders = _step_names(spec["decoder"], "decoders")
    if "ByteLevel" in splitters or "ByteLevel" in decoders:
        return "byte-level"
    if spec["model"]["byte_fallback"] or "Metaspace" in splitters or "Metaspace" in decoders:
        return "metaspace"
    raise ValueError("the tokenizer is neither byte-level nor SentencePiece-style BPE; its bytes are not known")


def _vocabulary_piece(text: str, family: str, byte_fallback: bool) -> bytes:
    if family == "byte-level":
        alphabet = byte_alphabet()
        if all(char in alphabet for char in text):
            return bytes(alphabet[char] for char in text)
        return text.encode()
    hexadecimal = _BYTE_TOKEN.fullmatch(text) if byte_fallback else None
    if hexadecimal:
        return bytes([int(hexadecimal[1], 16)])
    return text.replace(METASPACE, " ").encode()


def normalised_bytes(backend: Any, names: tuple[str, ...], text: str) -> bytes:
    """Return the bytes of a stretch of text after the tokenizer's normaliser.

    A space that the normaliser prepends belongs to the whole text, not to the stretch, and is left out.

    Args:
        backend: the `tokenizers.Tokenizer`.
        names: type names of its normaliser steps.
        text: the stretch of text.

    Returns:
        UTF-8 bytes, with U+2581 as a space.
    """
    if _CANONICAL.intersection(names):
        text = backend.normalizer.normalize_str(text)
        if "Prepend" in names:
            text = text.removeprefix(METASPACE)
    return text.replace(METASPACE, " ").encode()


def _build(backend: Any) -> ByteTable:
    spec = json.loads(backend.to_str())
    family = _family(spec)
    names = _step_names(spec["normalizer"], "normalizers")
    byte_fallback = bool(spec["model"]["byte_fallback"])
    vocabulary = spec["model"]["vocab"]
    added_tokens = spec["added_tokens"]
    rows = 1 + max([*vocabulary.values(), *(token["id"] for token in added_tokens)], default=-1)
    pieces = [b""] * rows
    lengths = np.full(rows, NO_TOKEN, dtype=np.int64)
    special, added = np.zeros(rows, dtype=bool), np.zeros(rows, dtype=bool)
    for text, index in vocabulary.items():
        pieces[index] = _vocabulary_piece(text, family, byte_fallback)
        lengths[index] = len(pieces[index])
    for token in added_tokens:
        index, content = token["id"], token["content"]
        if byte_fallback and _BYTE_TOKEN.fullmatch(content):
            continue
        special[index], added[index] = token["special"], True
        pieces[index] = b"" if token["special"] else content.replace(METASPACE, " ").encode()
        lengths[index] = 0 if token["special"] else len(normalised_bytes(backend, names, content))
    return ByteTable(family, tuple(pieces), lengths, special, added, names)


_TABLES: weakref.WeakKeyDictionary[Any, tuple[int, ByteTable]] = weakref.WeakKeyDictionary()


def byte_table(tokenizer: Any) -> ByteTable:
    """Return the bytes of every token of a tokenizer; computed once per tokenizer and vocabulary size.

    Args:
        tokenizer: a fast Hugging Face tokenizer, or a `tokenizers.Tokenizer`.

    Returns:
        Its `ByteTable`.

    Raises:
        ValueError: for a tokenizer without a fast backend, or one that is not byte-level or
            SentencePiece-style BPE.
    """
    backend = backend_of(tokenizer)
    size = backend.get_vocab_size(with_added_tokens=True)
    known = _TABLES.get(tokenizer)
    if known is None or known[0] != size:
        known = (size, _build(backend))
        _TABLES[tokenizer] = known
    return known[1]


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
