"""Phrases: pieces that cross words, learned by merging over the original tokens of whole texts.

Continued merges stay inside a pre-token, and words are what tokenizers know already; what repeats in code and in prose
crosses words (`return self`, `):\\n`). Here the pair of neighbouring tokens that stands most often is joined, again
and again, and the borders of pre-tokens count for nothing. Original added tokens and ends of texts are never joined.

A corpus is one array of ids. A merge finds its places in it with vector operations, and only pairs around changed
places are counted anew. What a finished tokenizer makes of the pieces is another matter: see `phrase_choice`.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from vocabx_utils.vocabulary.encoding import encode_each
from vocabx_utils.vocabulary.options import DEFAULT_OPTIONS, TokenOptions
from vocabx_utils.vocabulary.spelling import IntArray, Spelling
from vocabx_utils.vocabulary.wordtable import joinable

Ids = npt.NDArray[np.int32]
_WALL = -1  # stands between texts and in place of added tokens
_LOW = 0xFFFFFFFF


class PhraseLearner:
    """Greedy merges over a corpus, one at a time: `step` as often as wanted, then look at the pieces.

    Of the options it heeds `min_count`, `min_files`, `across_digits`, `line_breaks` and the longest piece; what is
    left out by `exclude` is a matter of choosing, since a longer piece may contain it.

    """

    def __init__(self, texts: Sequence[str], spelling: Spelling, options: TokenOptions = DEFAULT_OPTIONS) -> None:
        self.spelling, self.options = spelling, options
        self.texts = [text for text in texts if text]
        self.V = spelling.first_free_id
        # by id, those from V on new in order of birth: its spelling as symbols for bytes, and its bytes
        self.pieces = [spelling.pieces.get(i, "") for i in range(self.V)]
        self.raws = list(spelling.raws)
        # by new id, in order of birth: the two ids that it was made of, and how many its merge made
        self.parents: list[tuple[int, int]] = []
        self.born: list[int] = []
        self._longest = max(options.max_bytes, options.max_phrase_bytes)
        self._stream = _one_stream(self.texts, spelling)
        # Pairs of ids as one number each. A count of old neighbours can only fall, so rare pairs are let go at once.
        codes, counts = np.unique(_codes(self._stream, np.arange(len(self._stream) - 1)), return_counts=True)
        often = counts >= options.min_count
        self._counts: dict[int, int] = dict(zip(codes[often].tolist(), counts[often].tolist(), strict=True))
        self._heap = [self._entry(code, count) for code, count in self._counts.items()]
        heapq.heapify(self._heap)

    def step(self) -> bool:
        """Do the next merge; False if the corpus has no further pair to offer."""
        pair = self._best()
        if pair is not None:
            self._merge(*pair)
        return pair is not None

    def new_ids_within(self, new_id: int) -> list[int]:
        """List the new ids that a new id is made of, smaller ones first, itself last."""
        parents = (i for i in self.parents[new_id - self.V] if i >= self.V)
        return [*dict.fromkeys(k for i in parents for k in self.new_ids_within(i)), new_id]

    def parts(self, new_id: int) -> tuple[int, ...]:
        """Return the original ids that a new id replaces where it was learned."""
        return tuple(k for i in self.parents[new_id - self.V] for k in (self.parts(i) if i >= self.V else (i,)))

    def _entry(self, code: int, count: int) -> tuple[int, bytes, bytes, int]:
        left, right = self.raws[code >> 32], self.raws[code & _LOW]
        return -count, left + right, left, code

    def _best(self) -> tuple[int, int] | None:
        """The pair with the highest count, equal ones by bytes; entries whose count has fallen are put back."""
        while self._heap:
            negative, _, _, code = heapq.heappop(self._heap)
            left, right = code >> 32, code & _LOW
            count = self._counts.get(code, 0)
            if left == right:  # three equal tokens hold their pair once, which only a look at the places tells
                count = min(count, len(self._places(left, right)))
            if count < self.options.min_count or not self._allows(left, right):
                self._counts.pop(code, None)
            elif count < -negative:
                heapq.heappush(self._heap, self._entry(code, count))
            elif self._in_enough_files(left, right):
                return left, right
            else:
                self._counts.pop(code)  # where a pair stands it can only go, so this never changes
        return None

    def _allows(self, left: int, right: int) -> bool:
        raw = self.raws[left] + self.raws[right]
        if len(raw) > self._longest or not (self.options.line_breaks or not (b"\n" in raw or b"\r" in raw)):
            return False
        if not 0x80 <= self.raws[right][0] < 0xC0:  # parts of a character are joined to each other first
            try:
                raw.decode()
            except UnicodeDecodeError:
                return False
        if self.raws[right] == b" ":  # it belongs to what follows, whose own space it would take everywhere else
            return False
        pieces = self.pieces[left], self.pieces[right]
        return joinable(*pieces, self.spelling, across_digits=self.options.across_digits)

    def _places(self, left: int, right: int) -> IntArray:
        """Where a pair would be joined, (places,)."""
        found = np.flatnonzero(self._stream[:-1] == left)
        found = found[self._stream[found + 1] == right]
        if left != right or len(found) < 2:
            return found
        starts = np.append(True, np.diff(found) > 1)  # runs of equal tokens are joined from the left, two by two
        first = found[starts][np.cumsum(starts) - 1]
        return found[(found - first) % 2 == 0]

    def _in_enough_files(self, left: int, right: int) -> bool:
        if self.options.min_files < 2:
            return True
        walls = np.flatnonzero(self._stream == _WALL - 1)
        return len(np.unique(np.searchsorted(walls, self._places(left, right)))) >= self.options.min_files

    def _merge(self, left: int, right: int) -> None:
        places, stream, new = self._places(left, right), self._stream, len(self.pieces)
        self._lower(_codes(stream, np.unique(np.concatenate([places - 1, places, places + 1]))))
        stream[places] = new
        self._stream = stream = np.delete(stream, places + 1)
        self.pieces.append(self.pieces[left] + self.pieces[right])
        self.raws.append(self.raws[left] + self.raws[right])
        self.parents.append((left, right))
        self.born.append(len(places))
        at = places - np.arange(len(places))
        self._raise(_codes(stream, np.unique(np.concatenate([at - 1, at]))))

    def _lower(self, codes: IntArray) -> None:
        counts = self._counts
        for code, count in zip(*(a.tolist() for a in np.unique(codes, return_counts=True)), strict=True):
            if code in counts:
                counts[code] -= count

    def _raise(self, codes: IntArray) -> None:
        """Count the pairs of the newest id, which none had before."""
        for code, count in zip(*(a.tolist() for a in np.unique(codes, return_counts=True)), strict=True):
            if count >= self.options.min_count:
                self._counts[code] = count
                heapq.heappush(self._heap, self._entry(code, count))


def _one_stream(texts: Sequence[str], spelling: Spelling) -> Ids:
    """All texts as one row of ids, (T,); -1 in place of added tokens, -2 behind each text."""
    is_added = spelling.is_added
    rows = []
    for ids in encode_each(spelling.backend, texts):
        row = np.asarray([*ids, _WALL - 1], dtype=np.int32)
        row[:-1][is_added[row[:-1]]] = _WALL
        rows.append(row)
    return np.concatenate(rows) if rows else np.zeros(0, dtype=np.int32)


def _codes(stream: Ids, edges: IntArray) -> IntArray:
    """The pairs at these places and behind them as one number each, without those at a wall or an end."""
    edges = edges[(edges >= 0) & (edges < len(stream) - 1)]
    left, right = stream[edges].astype(np.int64), stream[edges + 1].astype(np.int64)
    inside = (left >= 0) & (right >= 0)
    return left[inside] << 32 | right[inside]
