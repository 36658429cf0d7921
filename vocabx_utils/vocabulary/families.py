"""Tokenizer families that can be extended: byte-level BPE, and SentencePiece-style BPE with byte fallback.

A family knows how the pieces of the vocabulary spell text: as symbols that stand for bytes (`Ġgroupby`), or as
text with a mark for the space and `<0xE2>` for single bytes. Everything else is refused with its reason.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

BYTE_MARK = "Ġ"
SPACE_MARK = "▁"
_PADDING = re.compile(r"\[PAD\d+\]")
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")

_WHY_REFUSED = {
    "Unigram": "it scores whole segmentations by piece probabilities, so there are no merges to append to, "
    "and any new piece may change the segmentation of old text",
    "WordPiece": "it matches the longest piece and maps unknown characters to one token, so it has no merges "
    "and does not give every text back",
    "WordLevel": "it looks whole words up, so it has neither merges nor subtokens to start a new row from",
}


class TokenizerError(ValueError):
    """A tokenizer or a proposed token cannot be used; the message says why and what to do."""


def byte_symbols() -> dict[int, str]:
    """Printable symbol of each byte in byte-level BPE (GPT-2's table): itself if printable, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {b: chr(b) for b in printable} | {b: chr(0x100 + k) for k, b in enumerate(others)}


_SYMBOL = byte_symbols()
_BYTE = {symbol: byte for byte, symbol in _SYMBOL.items()}


@dataclass(frozen=True)
class Family:
    """How one tokenizer spells text.

    Attributes:
        kind: `byte-level` or `sentencepiece`.
        layout: the tokenizer's own JSON, padding entries removed.
        vocab: piece to id, added tokens included.
        specials: ids of added tokens, which never take part in a merge.
    """

    kind: Literal["byte-level", "sentencepiece"]
    layout: dict[str, Any] = field(repr=False)
    vocab: dict[str, int] = field(repr=False)
    specials: frozenset[int] = field(repr=False)

    @property
    def first_free_id(self) -> int:
        """`V`: one more than the largest id that the tokenizer can produce."""
        return max(self.vocab.values()) + 1

    @cached_property
    def pieces(self) -> dict[int, str]:
        """Id to piece."""
        return {i: piece for piece, i in self.vocab.items()}

    @cached_property
    def backend(self) -> Tokenizer:
        """The tokenizer built anew from `layout`."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(json.dumps(self.layout))

    @property
    def ignores_merges(self) -> bool:
        """Whether a pre-token that is a vocabulary entry is taken whole, whatever the merges say (Llama-3)."""
        return bool(self.layout["model"].get("ignore_merges"))

    @property
    def segment_prefix(self) -> Literal["none", "added", "unless_space"]:
        """Whether each stretch of text between added tokens gets a space mark in front (SentencePiece)."""
        for part in _parts(self.layout["normalizer"], "normalizers"):
            if part["type"] == "Prepend":
                return "added"
        for part in _parts(self.layout["pre_tokenizer"], "pretokenizers"):
            if part["type"] == "Metaspace" and part.get("prepend_scheme") == "always":
                return "unless_space"
        return "none"

    @cached_property
    def _normalizer(self) -> Any:
        """The normaliser without the prefix, or None."""
        from tokenizers import Tokenizer

        kept = [p for p in _parts(self.layout["normalizer"], "normalizers") if p["type"] != "Prepend"]
        if not kept:
            return None
        names = ("pre_tokenizer", "post_processor", "decoder", "truncation", "padding")
        bare: dict[str, Any] = dict.fromkeys(names)
        bare |= {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
        bare["normalizer"] = {"type": "Sequence", "normalizers": kept}
        return Tokenizer.from_str(json.dumps(bare)).normalizer

    def piece(self, text: str) -> str:
        """Spell a text as one piece of the vocabulary (normalised, without the prefix of a whole text)."""
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        if self.kind == "sentencepiece":
            return text.replace(" ", SPACE_MARK)
        return "".join(_SYMBOL[b] for b in text.encode("utf-8", "surrogatepass"))

    def raw(self, piece: str) -> bytes:
        """UTF-8 bytes of the text that a piece stands for."""
        if self.kind == "sentencepiece":
            if byte := _BYTE_PIECE.fullmatch(piece):
                return bytes([int(byte[1], 16)])
            return piece.replace(SPACE_MARK, " ").encode()
        if all(c in _BYTE for c in piece):
            return bytes(_BYTE[c] for c in piece)
        return piece.encode()

    def raw_of(self, token_id: int) -> bytes:
        """Bytes of a token; an added token stands for its own text."""
        piece = self.pieces[token_id]
        return piece.encode() if token_id in self.specials else self.raw(piece)

    def split(self, text: str) -> list[str]:
        """Cut a text into pre-tokens, spelt as pieces, without the prefix of a whole text."""
        if self.kind == "sentencepiece" or self.layout["pre_tokenizer"] is None:
            return [self.piece(text)] if text else []
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        return [part for part, _ in self.backend.pre_tokenizer.pre_tokenize_str(text)]

    def tokenize_piece(self, piece: str) -> list[int]:
        """Ids that the original merges give to one pre-token."""
        return [token.id for token in self.backend.model.tokenize(piece)]

    def subtokens(self, text: str) -> tuple[int, ...]:
        """Ids of a text by itself under the original tokenizer, without a prefix and without special tokens."""
        return tuple(i for part in self.split(text) for i in self.tokenize_piece(part))

    def spaced_form(self, text: str) -> str:
        """Turn a piece-like spelling with a leading mark (`Ġword`, `▁word`) into text with a leading space."""
        mark = SPACE_MARK if self.kind == "sentencepiece" else BYTE_MARK
        return " " + text[1:] if text.startswith(mark) and len(text) > 1 else text


def family_of(tokenizer: PreTrainedTokenizerFast) -> Family:
    """Recognise the family of a tokenizer.

    Args:
        tokenizer: a Hugging Face tokenizer with a fast backend.

    Raises:
        TokenizerError: no fast backend, or a kind that cannot be extended (Unigram, WordPiece, WordLevel, BPE with
            word-end marks, with dropout, or without a way to spell every byte).
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not hasattr(backend, "to_str"):
        raise TokenizerError(
            f"{type(tokenizer).__name__} has no fast backend, whose merges could be extended. "
            "Convert it with transformers.convert_slow_tokenizer, or load a folder with a tokenizer.json."
        )
    layout = _without_padding(json.loads(backend.to_str()))
    _check_model(layout["model"])
    vocab = dict(layout["model"]["vocab"]) | {t["content"]: t["id"] for t in layout["added_tokens"]}
    specials = frozenset(t["id"] for t in layout["added_tokens"])
    return Family(_kind(layout), layout, vocab, specials)


def _check_model(model: dict[str, Any]) -> None:
    kind = model["type"]
    if kind != "BPE":
        why = _WHY_REFUSED.get(kind, "its vocabulary has no merges")
        raise TokenizerError(
            f"The tokenizer's model is {kind}, which cannot be extended here: {why}. "
            "Supported: byte-level BPE, and SentencePiece-style BPE with byte fallback."
        )
    for name in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(name):
            raise TokenizerError(f"BPE with {name} {model[name]!r} is not supported: its pieces do not join to text.")
    if model.get("dropout"):
        raise TokenizerError(f"BPE dropout is {model['dropout']}: the tokenizer is random. Set it to None first.")


def _kind(layout: dict[str, Any]) -> Literal["byte-level", "sentencepiece"]:
    before = _parts(layout["pre_tokenizer"], "pretokenizers") + _parts(layout["normalizer"], "normalizers")
    if any(p["type"] == "ByteLevel" for p in before):
        return "byte-level"
    spaced = any(
        p["type"] == "Metaspace" or (p["type"] == "Replace" and p.get("content") == SPACE_MARK) for p in before
    )
    if spaced and layout["model"].get("byte_fallback"):
        return "sentencepiece"
    raise TokenizerError(
        "This BPE is neither byte-level nor SentencePiece-style with byte fallback, so some text cannot be given "
        "back exactly. Supported: tokenizers with a ByteLevel step, or with a space mark and byte_fallback."
    )


def _parts(step: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    return step[key] if step["type"] == "Sequence" else [step]


def _without_padding(layout: dict[str, Any]) -> dict[str, Any]:
    """Drop truncation and padding settings, and the `[PAD…]` entries of GGUF files.

    These stand for padding rows of the matrix; no text produces them.
    """
    model = layout["model"]
    if isinstance(model.get("vocab"), dict):
        model["vocab"] = {p: i for p, i in model["vocab"].items() if not _PADDING.fullmatch(p)}
    layout["truncation"] = layout["padding"] = None  # state of a call, no part of what a token is
    layout["added_tokens"] = [t for t in layout["added_tokens"] if not _PADDING.fullmatch(t["content"])]
    return layout


def is_digit(char: str) -> bool:
    """Whether a character is numeric (Unicode N)."""
    return unicodedata.category(char).startswith("N")
