"""Continued byte-pair encoding: learn merges over the original tokenizer's own token sequences.

The merges go behind the original ones. Since no original merge mentions a new token, the original merges of a text
are done first and exactly as before, then the new ones, in the order in which they were learned.

No two pairs make the same token: what stands between two boundaries that no merge has crossed depends on that stretch
and on the merges alone, so wherever the later pair stood, the earlier one would have stood and been joined.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from dataclasses import dataclass, field

from vocabx_utils.progress import progress
from vocabx_utils.vocabulary.options import DEFAULT_OPTIONS, TokenOptions
from vocabx_utils.vocabulary.spelling import Spelling
from vocabx_utils.vocabulary.wordtable import WordTable, joinable

Pair = tuple[int, int]


@dataclass(frozen=True)
class Merge:
    """One learned merge: two ids and the id that they become. Ids from `V` on are provisional, by order of birth."""

    left: int
    right: int
    result: int
    count: int


@dataclass
class LearnedMerges:
    """Result of `learn_merges`."""

    merges: list[Merge]  # in order, one for each new token
    pieces: dict[int, str]  # piece of each new token, by provisional id
    shown: dict[int, int]  # how often each new token stands in the corpus after all merges, by provisional id
    parts: dict[int, tuple[int, ...]]  # original ids that each new token replaces, by provisional id
    exhausted: bool  # whether the corpus had no further pair to offer
    tokens_after: int  # tokens of the corpus after all merges

    @property
    def unseen(self) -> list[int]:
        """Provisional ids of tokens that no text of the corpus shows: steps on the way to longer ones."""
        return [i for i in self.pieces if not self.shown.get(i)]


def learn_merges(
    table: WordTable, spelling: Spelling, n: int, options: TokenOptions = DEFAULT_OPTIONS
) -> LearnedMerges:
    """Learn up to `n` new tokens from a corpus that `count_words` has counted.

    Returns:
        At most `n` tokens with their merges, and the steps that they need where `count_steps` is off. Equal counts
        are settled by byte order, so the result depends neither on the order of the texts nor on hashing.
    """
    return _Learner(table, spelling, options).run(n)


@dataclass
class _Learner:
    """Pair counts that are kept up to date: a merge touches only the words that hold its pair."""

    table: WordTable
    spelling: Spelling
    options: TokenOptions
    words: list[list[int]] = field(init=False)
    pair_counts: dict[Pair, int] = field(init=False, default_factory=dict)
    where: dict[Pair, set[int]] = field(init=False, default_factory=dict)
    heap: list[tuple[int, bytes, bytes, Pair]] = field(init=False, default_factory=list)
    pieces: dict[int, str] = field(init=False, default_factory=dict)
    parts: dict[int, tuple[int, ...]] = field(init=False, default_factory=dict)
    merges: list[Merge] = field(init=False, default_factory=list)
    shown: dict[int, int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.options.min_files > self.table.files_kept:
            raise ValueError(f"min_files is {self.options.min_files}; the table knows {self.table.files_kept} a word.")
        self.words = [list(word) for word in self.table.words]
        self.made: set[str] = set()
        self.allowed: dict[Pair, bool] = {}
        self.barred = self.options.barred(self.spelling)
        for index in range(len(self.words)):
            self._count(index, +1)
        for pair in self.pair_counts:
            self._offer(pair)
        heapq.heapify(self.heap)
        self.whole = self._whole_words() if self.spelling.ignores_merges else {}

    def run(self, n: int) -> LearnedMerges:
        exhausted = False
        with progress(total=n, desc="merges", unit="token", delay=10) as bar:
            while (made := self._made()) < n:
                bar.update(made - bar.n)
                pair = self._best()
                if pair is None:
                    exhausted = True
                    break
                self._merge(pair)
        saved = self.table.tokens - sum(
            c * (len(before) - len(after))
            for before, after, c in zip(self.table.words, self.words, self.table.counts, strict=True)
        )
        return LearnedMerges(self.merges, self.pieces, self.shown, self.parts, exhausted, saved)

    def _made(self) -> int:
        return len(self.pieces) if self.options.count_steps else sum(map(bool, self.shown.values()))

    def _piece(self, i: int) -> str:
        return self.pieces.get(i) or self.spelling.pieces[i]

    def _allows(self, pair: Pair) -> bool:
        if pair not in self.allowed:
            self.allowed[pair] = self._judge(self._piece(pair[0]), self._piece(pair[1]))
        return self.allowed[pair]

    def _judge(self, left: str, right: str) -> bool:
        options, piece = self.options, left + right
        # A merge that makes an old piece would give old ids to text that had others before.
        if piece in self.spelling.vocab:
            return False
        if not joinable(left, right, self.spelling, across_digits=options.across_digits):
            return False
        raw = self.spelling.raw(piece)
        if len(raw) > options.max_bytes or raw in self.barred:
            return False
        return bool(options.keep_whitespace) or not raw.isspace()

    def _pairs(self, word: list[int]) -> Counter[Pair]:
        """Pairs of a word as often as merging them would happen: three equal tokens hold their pair once."""
        pairs: Counter[Pair] = Counter()
        last: Pair | None = None
        for pair in itertools.pairwise(word):
            if pair == last and pair[0] == pair[1]:
                last = None
                continue
            pairs[pair] += 1
            last = pair
        return pairs

    def _count(self, index: int, sign: int) -> set[Pair]:
        """Add (+1) or take away (-1) the pairs of one word; returns them."""
        times = sign * self.table.counts[index]
        pairs = self._pairs(self.words[index])
        for pair, k in pairs.items():
            self.pair_counts[pair] = self.pair_counts.get(pair, 0) + k * times
            if sign > 0:
                self.where.setdefault(pair, set()).add(index)
        return set(pairs)

    def _offer(self, pair: Pair) -> None:
        count = self.pair_counts.get(pair, 0)
        if count >= self.options.min_count and self._allows(pair):
            left, right = (self.spelling.raw(self._piece(i)) for i in pair)
            self.heap.append((-count, left + right, left, pair))

    def _push(self, pair: Pair) -> None:
        size = len(self.heap)
        self._offer(pair)
        if len(self.heap) > size:
            heapq.heappush(self.heap, self.heap.pop())

    def _best(self) -> Pair | None:
        """The pair with the highest count; entries whose count has fallen since are put back at their place."""
        while self.heap:
            negative, _, _, pair = heapq.heappop(self.heap)
            count = self.pair_counts.get(pair, 0)
            if count == -negative:
                if self._in_enough_files(pair):
                    return pair
                self.allowed[pair] = False  # where a pair stands it can only go, so this never changes
            if count < -negative:
                self._push(pair)
        return None

    def _in_enough_files(self, pair: Pair) -> bool:
        least = self.options.min_files
        if least < 2:
            return True
        files: set[int] = set()
        for index in self.where.get(pair, ()):
            if pair in itertools.pairwise(self.words[index]):
                files.update(self.table.files[index])
                if len(files) >= least:
                    return True
        return False

    def _merge(self, pair: Pair) -> None:
        piece = self._piece(pair[0]) + self._piece(pair[1])
        assert piece not in self.made, f"two pairs make {piece!r}"
        self.made.add(piece)
        new = self.spelling.first_free_id + len(self.pieces)
        self.pieces[new] = piece
        self.parts[new] = tuple(p for i in pair for p in self.parts.get(i, (i,)))
        self.merges.append(Merge(*pair, new, self.pair_counts[pair]))
        if piece in self.whole:
            self._replace_whole(self.whole[piece], new)
        changed: set[Pair] = set()
        for index in self.where.pop(pair, ()):
            word = self.words[index]
            merged = _merged(word, pair, new)
            if len(merged) == len(word):
                continue
            changed |= self._replace(index, merged)
        self.pair_counts.pop(pair, None)
        for other in changed:
            if new in other or self.pair_counts[other] > 0:
                self._push(other)

    def _whole_words(self) -> dict[str, int]:
        return {"".join(map(self._piece, word)): k for k, word in enumerate(self.words)}

    def _replace_whole(self, index: int, new: int) -> None:
        """With `ignore_merges`, a pre-token that is a vocabulary entry becomes it at once."""
        self._replace(index, [new])

    def _replace(self, index: int, word: list[int]) -> set[Pair]:
        """Put a word in place of what it was; returns its pairs."""
        times, first = self.table.counts[index], self.spelling.first_free_id
        self._count(index, -1)
        for sign, tokens in ((-times, self.words[index]), (times, word)):
            for i in tokens:
                if i >= first:
                    self.shown[i] = self.shown.get(i, 0) + sign
        self.words[index] = word
        return self._count(index, +1)


def _merged(word: list[int], pair: Pair, new: int) -> list[int]:
    out: list[int] = []
    k, end = 0, len(word)
    while k < end:
        if k + 1 < end and word[k] == pair[0] and word[k + 1] == pair[1]:
            out.append(new)
            k += 2
        else:
            out.append(word[k])
            k += 1
    return out
