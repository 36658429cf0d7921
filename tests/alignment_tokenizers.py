"""Small tokenizers of every family, trained on a few lines, for the alignment tests."""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

LINES = [
    "import numpy as np\n",
    "df.groupby(by='x').mean()  # naïve café résumé\n",
    "def compute_mean(values):\n\treturn sum(values) / len(values)\r\n",
    "x groupby y 🙂 日本語 standard thing\n",
] * 4
NEW_WORDS = ("groupby", "numpy", "compute_mean", "🙂 日", "é rés")
FAMILIES = ("byte-level", "digits", "nfc", "prefix-space", "sentencepiece", "metaspace")


def _byte_level(family: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=family == "prefix-space")]
    if family == "digits":
        steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
    if family == "nfc":
        tokenizer.normalizer = normalizers.NFC()
        pattern = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
        steps = [
            pre_tokenizers.Split(pattern, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(family: str) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    if family == "sentencepiece":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


@cache
def _trained(family: str) -> str:
    if family in {"sentencepiece", "metaspace"}:
        tokenizer = _sentencepiece(family)
        specials = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
        trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=specials, show_progress=False, max_token_length=6)
        words = [line.replace("日本語", "").replace("🙂", "") for line in LINES]
        tokenizer.train_from_iterator((word for line in words for word in line.split()), trainer)
        spec = json.loads(tokenizer.to_str())
        # as in the released files: byte tokens are plain vocabulary, only the first three are special
        spec["added_tokens"] = spec["added_tokens"][:3]
        return json.dumps(spec)
    tokenizer = _byte_level(family)
    trainer = trainers.BpeTrainer(
        vocab_size=275,
        special_tokens=["<|end|>", "<|begin|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer.to_str()


def make_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Return a small tokenizer of one family, with about 300 tokens."""
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(_trained(family)))


def with_added(family: str, words: tuple[str, ...] = NEW_WORDS) -> SimpleNamespace:
    """Return an extension by added tokens: `original` and `extended`."""
    tokenizer = make_tokenizer(family)
    tokenizer.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    return SimpleNamespace(original=make_tokenizer(family), extended=tokenizer)


def with_merges(family: str, count: int = 40) -> SimpleNamespace:
    """Return an extension by appended merges, found by merging the most frequent pairs of the training lines."""
    original = make_tokenizer(family)
    spec = json.loads(original.backend_tokenizer.to_str())
    vocabulary, merges = spec["model"]["vocab"], spec["model"]["merges"]
    first = len(original)
    for index in range(count):
        now = Tokenizer.from_str(json.dumps(spec))
        pairs: dict[tuple[str, str], int] = {}
        for line in LINES:
            tokens = now.encode(line, add_special_tokens=False).tokens
            for pair in pairwise(tokens):
                plain = all(len(part) > 1 or part.isalpha() for part in pair) and "<0x" not in "".join(pair)
                if plain and "".join(pair) not in vocabulary and not pair[1].startswith(("Ġ", "\u2581")):
                    pairs[pair] = pairs.get(pair, 0) + 1
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        vocabulary["".join(best)] = first + index
        merges.append(list(best))
    extended = Tokenizer.from_str(json.dumps(spec))
    return SimpleNamespace(original=original, extended=PreTrainedTokenizerFast(tokenizer_object=extended))


def counted_ends(pair: Any, text: str) -> tuple[list[int], list[int]]:
    """Byte ends of both sides, counted from where added tokens lie in the text, without the package.

    Bytes are those that the original reads: a space that it puts before a stretch of text counts, one that only the
    extended side has does not. A stretch is counted back from its end, so no rule about such spaces is needed. For
    tokenizers that change no character.
    """
    sides = [_stretches(tokenizer, text) for tokenizer in (pair.original, pair.extended)]
    if pair.original.backend_tokenizer.model.byte_fallback:
        text = text.replace("\u2581", " ")  # a mark in the text is read as the space that it stands for
    extra = [(start, sum(widths) - len(text[start:stop].encode())) for start, stop, widths, _ in sides[0]]

    def read(place: int) -> int:
        return len(text[:place].encode()) + sum(count for start, count in extra if start < place)

    ends = []
    for stretches in sides:
        ends.append([])
        for _, stop, widths, _ in stretches:
            ends[-1] += [read(stop) - sum(widths[k + 1 :]) for k in range(len(widths))]
    return ends[0], ends[1]


def _stretches(tokenizer: PreTrainedTokenizerFast, text: str) -> list[tuple[int, int, list[int], bool]]:
    """Added tokens and what lies between: start and stop in the text, bytes of each token, and which of the two."""
    added, marked = _added_tokens(tokenizer)
    found: list[tuple[int, int, list[int], bool]] = []
    at, pending = 0, []
    encoding = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False)
    for index, piece, (start, stop) in zip(encoding.ids, encoding.tokens, encoding.offsets, strict=True):
        if index not in added:
            pending.append(_width(piece, marked))
            continue
        if pending:
            found.append((at, start, pending, False))
        found.append((start, stop, [0 if added[index].special else _width(piece, marked, added=True)], True))
        at, pending = stop, []
    return [*found, (at, len(text), pending, False)] if pending else found


@lru_cache(maxsize=4)
def _added_tokens(tokenizer: PreTrainedTokenizerFast) -> tuple[dict[int, AddedToken], bool]:
    return tokenizer.added_tokens_decoder, bool(getattr(tokenizer.backend_tokenizer.model, "byte_fallback", False))


def _width(piece: str, marked: bool, added: bool = False) -> int:
    if marked:
        return 1 if re.fullmatch("<0x..>", piece) else len(piece.replace("\u2581", " ").encode())
    return len(piece.encode()) if added else len(piece)  # a piece of the vocabulary has one symbol for each byte
