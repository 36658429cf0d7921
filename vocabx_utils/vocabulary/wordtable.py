"""A corpus as its distinct pre-tokens: original token ids and how often each occurs."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from tokenizers import Encoding

from vocabx_utils.progress import progress
from vocabx_utils.vocabulary.encoding import text_batches
from vocabx_utils.vocabulary.options import DEFAULT_OPTIONS, TokenOptions
from vocabx_utils.vocabulary.spelling import SPACE_MARK, Spelling

_LONGEST = 512  # tokens; a longer pre-token (a data blob on one line) is counted in parts


@dataclass(frozen=True)
class WordTable:
    """Distinct stretches of original tokens inside which merges may happen."""

    words: list[tuple[int, ...]]  # token ids of each stretch, two or more tokens long
    counts: list[int]  # how often each occurs
    tokens: int  # all original tokens of the corpus, stretches of one token included
    # numbers of the first texts that each stretch stands in, at most `files_kept`; empty if that is 1
    files: list[tuple[int, ...]] = field(default_factory=list)
    files_kept: int = 1  # how many texts are told apart. To ask for at least k, no more than k need be known.


def joinable(left: str, right: str, spelling: Spelling, *, across_digits: bool = False) -> bool:
    """Tell whether a merge may put two neighbouring pieces together, judged at their junction alone.

    Byte-level tokenizers have a pre-tokenizer that keeps words, digits and signs apart. SentencePiece-style ones
    have none, so the same is done here: the right piece starts no word, both sides are letters or both are signs,
    and a byte piece joins nothing, since the decoder only knows it alone. `across_digits` lets a digit be joined to
    anything.
    """
    if spelling.kind == "byte-level":
        return across_digits or not (_edge_is_digit(left, -1, spelling) or _edge_is_digit(right, 0, spelling))
    if left.startswith("<0x") or right.startswith("<0x"):
        return False
    if right.startswith(SPACE_MARK):
        return not left.strip(SPACE_MARK) and not right.strip(SPACE_MARK)
    if not left.strip(SPACE_MARK):
        return left == SPACE_MARK and (across_digits or _char_class(right[0]) != "digit")
    first, last = _char_class(right[0]), _char_class(left[-1])
    if "digit" in (first, last):
        return across_digits
    return first == last


def _edge_is_digit(piece: str, edge: int, spelling: Spelling) -> bool:
    symbol = piece[edge]
    if symbol.isascii():
        return symbol.isdigit()
    text = spelling.raw(piece).decode("utf-8", "ignore")
    return bool(text) and _char_class(text[edge]) == "digit"


def _char_class(char: str) -> str:
    category = unicodedata.category(char)[0]
    return {"L": "letter", "M": "letter", "N": "digit"}.get(category, "sign")


def count_words(texts: Sequence[str], spelling: Spelling, options: TokenOptions = DEFAULT_OPTIONS) -> WordTable:
    """Tokenize a corpus and count its distinct stretches, in order of first appearance.

    With a pre-tokenizer, a stretch is a whole pre-token. Of the options, `across_digits` counts, and `min_files`: how
    many texts of each stretch are told apart.
    """
    counter: Counter[bytes] = Counter()
    files: dict[bytes, tuple[int, ...]] = {}
    tokens = 0
    files_kept = options.min_files
    cuts = _Cuts(spelling, options.across_digits)
    for number, encoding in enumerate(_encoded(texts, spelling)):
        ids = np.asarray(encoding.ids, dtype=np.int32)
        tokens += len(ids)
        numbers = np.asarray([-1 if w is None else w for w in encoding.word_ids], dtype=np.int64)
        here = Counter(cuts.stretches(ids, numbers))
        counter.update(here)
        if files_kept > 1:
            for word in here:
                known = files.get(word, ())
                if len(known) < files_kept:
                    files[word] = (*known, number)
    words = [tuple(np.frombuffer(w, dtype=np.int32).tolist()) for w in counter]
    return WordTable(words, list(counter.values()), tokens, [*files.values()], files_kept)


def _encoded(texts: Sequence[str], spelling: Spelling) -> Iterator[Encoding]:
    with progress(total=sum(map(len, texts)), desc="tokenize", unit="char", delay=10) as bar:
        for batch in text_batches(texts):
            yield from spelling.backend.encode_batch(batch, add_special_tokens=False)
            bar.update(sum(map(len, batch)))


class _Cuts:
    """Where a token sequence is cut: between pre-tokens, around added tokens, and where nothing may be joined."""

    def __init__(self, spelling: Spelling, across_digits: bool) -> None:
        self.spelling = spelling
        self.across_digits = across_digits
        self.known: dict[int, bool] = {}

    def stretches(self, ids: np.ndarray, words: np.ndarray) -> Iterator[bytes]:
        if len(ids) < 2:
            return
        cut = (words[1:] != words[:-1]) | self.spelling.is_added[ids[1:]] | self.spelling.is_added[ids[:-1]]
        if self.spelling.kind == "sentencepiece":
            cut |= ~self._joinable(ids)
        ends = np.flatnonzero(np.append(cut, True)) + 1
        starts = np.append(0, ends[:-1])
        longer = ends - starts > 1
        for start, end in zip(starts[longer].tolist(), ends[longer].tolist(), strict=True):
            for part in range(start, end, _LONGEST):
                yield ids[part : min(part + _LONGEST, end)].tobytes()

    def _joinable(self, ids: np.ndarray) -> np.ndarray:
        codes = ids[:-1].astype(np.int64) << 32 | ids[1:]
        unique, inverse = np.unique(codes, return_inverse=True)
        pieces, known = self.spelling.pieces, self.known
        for code in unique.tolist():
            if code not in known:
                left, right = pieces[code >> 32], pieces[code & 0xFFFFFFFF]
                known[code] = joinable(left, right, self.spelling, across_digits=self.across_digits)
        return np.asarray([known[c] for c in unique.tolist()], dtype=bool)[inverse]
