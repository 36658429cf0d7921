"""How one tokenizer spells text: the bytes that each token stands for, and the spaces that it puts of its own.

Two kinds can be extended and aligned: byte-level BPE, whose pieces are symbols that stand for bytes (`Ġgroupby`), and
SentencePiece-style BPE with byte fallback, whose pieces are text with a mark for the space and `<0xE2>` for single
bytes. Everything else is refused with its reason. The whole wing asks here, so extension and alignment accept the same
tokenizers and count the same bytes.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from vocabx_utils.texts import TokenizerError
from vocabx_utils.tokenizer_files import twin

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Kind = Literal["byte-level", "sentencepiece"]
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


def _byte_symbols() -> dict[int, str]:
    """Printable symbol of each byte in byte-level BPE (GPT-2's table): itself if printable, else from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(printable)]
    return {b: chr(b) for b in printable} | {b: chr(0x100 + k) for k, b in enumerate(others)}


_SYMBOL = _byte_symbols()
_BYTE = {symbol: byte for byte, symbol in _SYMBOL.items()}


@dataclass(frozen=True, eq=False)
class Spelling:
    """How one tokenizer spells text."""

    kind: Kind  # which of the two kinds
    layout: dict[str, Any] = field(repr=False)  # the tokenizer's own JSON, padding entries removed
    vocab: dict[str, int] = field(repr=False)  # piece to id, added tokens included
    # added tokens, which are matched in the text before the merges run and take part in none
    added_ids: frozenset[int] = field(repr=False)
    # it cuts and joins as `layout` says, whatever calls of the tokenizer itself have set
    backend: Tokenizer = field(repr=False)

    # --- its ids ---

    @cached_property
    def first_free_id(self) -> int:
        """`V`: one more than the largest id that the tokenizer can produce."""
        return max(self.vocab.values(), default=-1) + 1

    @cached_property
    def pieces(self) -> dict[int, str]:
        """Id to piece."""
        return {i: piece for piece, i in self.vocab.items()}

    @cached_property
    def raws(self) -> tuple[bytes, ...]:
        """Bytes of each id as the tokenizer's text holds them, (V,); none for control tokens and unused ids."""
        raws, controls = [b""] * self.first_free_id, set(np.flatnonzero(self.is_control).tolist())
        for i in self.pieces:
            if i not in controls:
                raws[i] = self.raw_of(i)
        return tuple(raws)

    @cached_property
    def widths(self) -> IntArray:
        """Bytes of *normalised* text that each id consumes, (V,): 0 for control tokens, -1 for unused ids."""
        raws, widths = self.raws, np.full(self.first_free_id, -1, dtype=np.int64)
        known = list(self.pieces)
        widths[known] = [len(raws[i]) for i in known]
        for i in self.added_ids if self.rewrites else ():
            widths[i] = len(self.normalise(self.pieces[i]).encode() if raws[i] else raws[i])
        return widths

    @cached_property
    def is_added(self) -> BoolArray:
        """Whether each id is an added token, (V,)."""
        return self._mask(self.added_ids)

    @cached_property
    def is_control(self) -> BoolArray:
        """Whether each id is an added token that stands for no text (`special` in the file), (V,)."""
        return self._mask(t["id"] for t in self.layout["added_tokens"] if t["special"])

    def _mask(self, ids: Iterable[int]) -> BoolArray:
        mask = np.zeros(self.first_free_id, dtype=bool)
        mask[list(ids)] = True
        return mask

    def widths_of(self, ids: Sequence[int] | IntArray) -> IntArray:
        """Return the bytes that each of `ids` consumes, (T,).

        ValueError for an id that the tokenizer does not have (a padding row of the matrices, for example).
        """
        index = np.asarray(ids, dtype=np.int64)
        bad = (index < 0) | (index >= len(self.widths))
        if not bad.any():
            widths = self.widths[index]
            bad = widths < 0
            if not bad.any():
                return widths
        raise ValueError(
            f"token id {int(index[bad][0])} is not in the tokenizer, with ids 0 to {len(self.widths) - 1}; "
            "are these ids from another tokenizer?"
        )

    # --- its rules ---

    @property
    def ignores_merges(self) -> bool:
        """Whether a pre-token that is a vocabulary entry is taken whole, whatever the merges say (Llama-3)."""
        return bool(self.layout["model"].get("ignore_merges"))

    @cached_property
    def segment_prefix(self) -> Literal["none", "first", "added", "unless_space"]:
        """Which stretches of text between added tokens get a space in front.

        `none`; `first`: the one that begins the text, unless it begins with a space; `added`: each;
        `unless_space`: each that does not begin with a space.
        """
        if any(part["type"] == "Prepend" for part in self._normalizers):
            return "added"
        for part in _parts(self.layout["pre_tokenizer"], "pretokenizers"):
            if part["type"] == "Metaspace" and part["prepend_scheme"] != "never":
                return "first" if part["prepend_scheme"] == "first" else "unless_space"
            if part["type"] == "ByteLevel" and part["add_prefix_space"]:
                return "unless_space"
        return "none"

    @cached_property
    def rewrites(self) -> bool:
        """Whether the normaliser may join or change characters (NFC and relatives), not only mark spaces."""
        return any(step["type"] != "Prepend" and not _marks_spaces(step) for step in self._normalizers)

    @property
    def _normalizers(self) -> list[dict[str, Any]]:
        return _parts(self.layout["normalizer"], "normalizers")

    @cached_property
    def _normalizer(self) -> Any:
        """The normaliser without the prefix, or None."""
        kept = [part for part in self._normalizers if part["type"] != "Prepend"]
        if not kept:
            return None
        names = ("pre_tokenizer", "post_processor", "decoder", "truncation", "padding")
        bare: dict[str, Any] = dict.fromkeys(names)
        bare |= {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}
        bare["normalizer"] = {"type": "Sequence", "normalizers": kept}
        return Tokenizer.from_str(json.dumps(bare)).normalizer

    # --- text to pieces, pieces to bytes ---

    def normalise(self, text: str) -> str:
        """Return a stretch of text as the merges read it, its spaces as spaces, without the prefix."""
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        return text.replace(SPACE_MARK, " ") if self.kind == "sentencepiece" else text

    def piece(self, text: str) -> str:
        """Spell a text as one piece of the vocabulary (normalised, without the prefix of a whole text)."""
        text = self.normalise(text)
        if self.kind == "sentencepiece":
            return text.replace(" ", SPACE_MARK)
        return "".join(_SYMBOL[b] for b in text.encode("utf-8", "surrogatepass"))

    def raw(self, piece: str) -> bytes:
        """Return the UTF-8 bytes of the text that a piece stands for."""
        if self.kind == "sentencepiece":
            if byte := _BYTE_PIECE.fullmatch(piece):
                return bytes([int(byte[1], 16)])
            return piece.replace(SPACE_MARK, " ").encode()
        try:
            return bytes(map(_BYTE.__getitem__, piece))
        except KeyError:  # an added token in its own letters
            return piece.encode()

    def raw_of(self, token_id: int) -> bytes:
        """Return the bytes of a token; an added token stands for its own text."""
        piece = self.pieces[token_id]
        if token_id in self.added_ids and self.kind == "byte-level":
            return piece.encode()
        return self.raw(piece)

    def split(self, text: str) -> list[str]:
        """Cut a text into pre-tokens, spelt as pieces, without the prefix of a whole text."""
        if self.kind == "sentencepiece" or self.layout["pre_tokenizer"] is None:
            return [self.piece(text)] if text else []
        if self._normalizer is not None:
            text = self._normalizer.normalize_str(text)
        return [part for part, _ in self.backend.pre_tokenizer.pre_tokenize_str(text)]

    def tokenize_piece(self, piece: str) -> list[int]:
        """Return the ids that the original merges give to one pre-token."""
        return [token.id for token in self.backend.model.tokenize(piece)]

    def subtokens(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text by itself under the original tokenizer, without prefix and special tokens."""
        return tuple(i for part in self.split(text) for i in self.tokenize_piece(part))

    def spaced_form(self, text: str) -> str:
        """Turn a piece-like spelling with a leading mark (`Ġword`, `▁word`) into text with a leading space."""
        mark = SPACE_MARK if self.kind == "sentencepiece" else BYTE_MARK
        return " " + text[1:] if text.startswith(mark) and len(text) > 1 else text

    def inside_a_token(self, text: str) -> bool:
        """Tell whether a text is a substring of the text of a token (or one itself)."""
        return text in self._all_texts

    @cached_property
    def _all_texts(self) -> str:
        # a noncharacter between them keeps a text from matching across two tokens
        return "\ufdd0".join(self.raw_of(i).decode("utf-8", "replace") for i in self.pieces)


def backend_of(tokenizer: Any) -> Tokenizer:
    """Return the `tokenizers.Tokenizer` inside a fast tokenizer, or the object itself; TokenizerError without one."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if not (hasattr(backend, "encode_batch") and hasattr(backend, "to_str")):
        raise TokenizerError(
            f"{type(tokenizer).__name__} has no fast backend, whose merges could be extended. "
            "Convert it with transformers.convert_slow_tokenizer, or load a folder with a tokenizer.json."
        )
    return backend


_KNOWN: weakref.WeakKeyDictionary[Any, tuple[int, Spelling]] = weakref.WeakKeyDictionary()


def spelling_of(tokenizer: Any, layout: dict[str, Any] | None = None) -> Spelling:
    """Read how a tokenizer spells text; once per tokenizer and vocabulary size.

    Args:
        tokenizer: a Hugging Face tokenizer with a fast backend, or a `tokenizers.Tokenizer`.
        layout: the JSON that it was just built from, made of another spelling's; without it, it is asked for it.

    Raises:
        TokenizerError: no fast backend, or a kind that cannot be extended (Unigram, WordPiece, WordLevel, BPE with
            word-end marks, with dropout, or without a way to spell every byte).
    """
    backend = backend_of(tokenizer)
    size = backend.get_vocab_size(with_added_tokens=True)
    known = _KNOWN.get(tokenizer)
    if known is None or known[0] != size:
        known = _KNOWN[tokenizer] = (size, _read(layout or json.loads(backend.to_str()), backend))
    return known[1]


def _read(layout: dict[str, Any], backend: Tokenizer) -> Spelling:
    layout["truncation"] = layout["padding"] = None  # state of a call, no part of what a token is
    padded = _drop_padding(layout)
    _check_model(layout["model"])
    vocab = dict(layout["model"]["vocab"]) | {t["content"]: t["id"] for t in layout["added_tokens"]}
    added = frozenset(t["id"] for t in layout["added_tokens"])
    own = Tokenizer.from_str(json.dumps(layout)) if padded else twin(backend)
    return Spelling(_kind(layout), layout, vocab, added, own)


def is_padding(piece: str) -> bool:
    """Tell whether a piece is spelt like the entries of GGUF files for padding rows (`[PAD12]`)."""
    return piece.startswith("[PAD") and _PADDING.fullmatch(piece) is not None


def _drop_padding(layout: dict[str, Any]) -> bool:
    """Drop the `[PAD…]` entries of GGUF files, if there are any: padding rows of the matrix that no text produces."""
    vocab, added = layout["model"].get("vocab"), layout["added_tokens"]
    names = [*(vocab if isinstance(vocab, dict) else ()), *(t["content"] for t in added)]
    odd = {p for p in names if is_padding(p)}
    if odd and isinstance(vocab, dict):
        layout["model"]["vocab"] = {p: i for p, i in vocab.items() if p not in odd}
    layout["added_tokens"] = [t for t in added if t["content"] not in odd]
    return bool(odd)


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


def _kind(layout: dict[str, Any]) -> Kind:
    splits = _parts(layout["pre_tokenizer"], "pretokenizers")
    if any(p["type"] == "ByteLevel" for p in splits):
        return "byte-level"
    steps = _parts(layout["normalizer"], "normalizers")
    spaced = any(p["type"] == "Metaspace" for p in splits) or any(map(_marks_spaces, steps))
    if spaced and layout["model"].get("byte_fallback"):
        return "sentencepiece"
    raise TokenizerError(
        "This BPE is neither byte-level nor SentencePiece-style with byte fallback, so some text cannot be given "
        "back exactly. Supported: tokenizers with a ByteLevel pre-tokenizer, or with a space mark and byte_fallback."
    )


def _marks_spaces(step: dict[str, Any]) -> bool:
    return step["type"] == "Replace" and step["pattern"] == {"String": " "} and step["content"] == SPACE_MARK


def _parts(step: dict[str, Any] | None, key: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    if step["type"] != "Sequence":
        return [step]
    return [part for inner in step[key] for part in _parts(inner, key)]
