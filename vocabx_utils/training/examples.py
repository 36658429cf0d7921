"""What is learned from: texts as the model reads them, in phase 1 beside what the teacher reads.

An `Example` is a text as ids. An `AlignedExample` is a stretch of a text under both tokenizers, cut where both have a
byte end, with the positions at which student and teacher may be compared. Before the first divergence both read the
same ids, so KL is exactly 0 there: those pairs are counted (`prefix_pairs`) but neither stored nor computed.

Shapes: T ids, To original ids, P pairs; the V first ids are the original ones, N more the new tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerFast

from vocabx_utils import corpus
from vocabx_utils.files import hash_bytes
from vocabx_utils.texts import require_text
from vocabx_utils.training.objectives import ANCHORS, Anchor
from vocabx_utils.vocabulary.alignment import MERGED, AlignedText

Ints = npt.NDArray[np.int64]
LossOn = Literal["all", "answer"]


@dataclass(frozen=True)
class Example:
    """One text as the model reads it."""

    ids: Ints  # (T,)
    first_target: int = 1  # place of the first token that is learned, at least 1 (nothing predicts the first token)

    @property
    def targets(self) -> int:
        """Number of tokens that are learned."""
        return len(self.ids) - self.first_target


@dataclass(frozen=True, kw_only=True)
class AlignedExample(Example):
    """A stretch of one text under both tokenizers; `ids` are the student's.

    Where phrase dropout left a span as original tokens, the first one is no target, since the extended tokenizer would
    have merged there; its bytes are counted in `n_bytes` all the same.
    """

    original_ids: Ints  # (To,) the teacher's
    pairs: dict[Anchor, Ints]  # (P, 2) positions (original, extended) at or after the first divergence
    merged: dict[Anchor, npt.NDArray[np.bool_]]  # (P,) True at pairs that stand for a divergent group
    prefix_pairs: int  # identical pairs before the first divergence
    n_bytes: int  # UTF-8 bytes of the student's targets, that is of the stretch without its first token
    n_original_bytes: int  # the same for the teacher, whose first token can be shorter
    source: int  # index of the text it was cut from
    # (U,) first positions of spans that phrase dropout left apart
    unmerged: Ints = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def targets(self) -> int:
        """Number of tokens that are learned."""
        return super().targets - len(self.unmerged)

    def new_at(self, vocab_size: int) -> Ints:
        """Positions of new tokens in `ids`."""
        return np.flatnonzero(self.ids >= vocab_size)

    def teacher_at(self) -> Ints:
        """Original positions whose teacher state some anchor needs, sorted."""
        needed = np.zeros(len(self.original_ids), bool)
        for anchor in ANCHORS:
            needed[self.pairs[anchor][:, 0]] = True
        return np.flatnonzero(needed)

    def teacher_places(self, anchor: Anchor) -> Ints:
        """(P,) where in `teacher_at` the original position of each pair stands; kept, since every step asks for it."""
        if anchor not in self._places:
            self._places[anchor] = np.searchsorted(self.teacher_at(), self.pairs[anchor][:, 0])
        return self._places[anchor]

    @cached_property
    def _places(self) -> dict[Anchor, Ints]:
        return {}


@dataclass(frozen=True)
class ExampleSet:
    """Examples of one split in a fixed order, and what was left out."""

    examples: tuple[Example, ...]  # those with at least one token to learn
    cut: int = 0  # texts longer than the limit, whose end was cut off
    skipped: int = 0  # texts with nothing to learn (empty, one token, or cut before the answer)

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def tokens(self) -> int:
        """Tokens read in one pass."""
        return sum(len(example.ids) for example in self.examples)

    @property
    def targets(self) -> int:
        """Tokens learned in one pass."""
        return sum(example.targets for example in self.examples)

    def left_out(self, name: str, max_length: int) -> list[str]:
        """Say what was cut off and left out of a split, for a warning; nothing where all was read."""
        lost = []
        if self.cut:
            lost.append(f"{self.cut} are longer than {max_length} tokens and were cut there")
        if self.skipped:
            lost.append(f"{self.skipped} have no token to learn and were left out")
        return [f"of {len(self) + self.skipped} {name} texts, {'; '.join(lost)}"] if lost else []

    def occurrences(self, first_id: int, count: int, *, followed: bool = False) -> Ints:
        """Count each id of `first_id … first_id + count - 1` in all examples: (count,).

        `followed`: only where another token follows; the last one of a text teaches its input row nothing.
        """
        end = -1 if followed else None
        ids = np.concatenate([np.zeros(0, np.int64), *(example.ids[:end] for example in self.examples)])
        return np.bincount(ids[(ids >= first_id) & (ids < first_id + count)] - first_id, minlength=count)

    def fingerprint(self) -> str:
        """Digest of what is read and learned: equal sets, and only they, share one."""
        lines = (f"{example.first_target}:{','.join(map(str, example.ids))}" for example in self.examples)
        return corpus.fingerprint(lines)


@dataclass(frozen=True)
class AlignedSet(ExampleSet):
    """Examples of one split under both tokenizers, V original ids and N new ones."""

    examples: tuple[AlignedExample, ...]
    vocab_size: int = field(kw_only=True)
    n_new: int = field(kw_only=True)

    def counts(self) -> Ints:
        """(N,) how often each new token stands in the examples."""
        return self.occurrences(self.vocab_size, self.n_new)

    def fingerprint(self) -> str:
        """SHA-256 over all ids and pairs."""

        def parts() -> Iterator[bytes]:
            yield f"{self.vocab_size} {self.n_new}".encode()
            for example in self.examples:
                for array in (example.original_ids, example.ids, *(example.pairs[a] for a in ANCHORS)):
                    yield np.int64(array.size).tobytes()
                    yield np.ascontiguousarray(array, np.int64).tobytes()

        return hash_bytes(parts())


def encode(
    texts: Iterable[corpus.Rendered | str],
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_length: int = 1024,
    loss_on: LossOn = "all",
) -> ExampleSet:
    """Tokenize rendered pairs (template and end-of-text included) or plain texts.

    Args:
        texts: what `corpus.render` gave, or strings, which are learned whole.
        tokenizer: original or extended; no special token is added here, the template has them.
        max_length: tokens kept of one text.
        loss_on: "all" learns the whole text, "answer" only from the first token that holds a byte of the answer.

    Raises:
        ValueError: when `max_length` is under 2 or no text has anything to learn.
    """
    if max_length < 2:
        raise ValueError(f"max_length is {max_length}; a text needs at least 2 tokens for one to be learned")
    examples, cut, skipped = [], 0, 0
    for number, text in enumerate(texts):
        string, answer_start = (text, 0) if isinstance(text, str) else (text.text, text.answer_start)
        require_text(string, f"text {number}")
        coded = tokenizer(string, add_special_tokens=False, return_offsets_mapping=True)
        ids, ends = coded["input_ids"], np.asarray([end for _, end in coded["offset_mapping"]], dtype=np.int64)
        first = 1
        if loss_on == "answer":
            first = max(1, int(np.searchsorted(np.maximum.accumulate(ends), answer_start, side="right"))) if ids else 1
        cut += len(ids) > max_length
        ids = np.asarray(ids[:max_length], dtype=np.int64)
        if len(ids) <= first:
            skipped += 1
            continue
        examples.append(Example(ids, first))
    if not examples:
        raise ValueError(
            f"none of {skipped} texts has a token to learn with max_length={max_length} and loss_on={loss_on!r}; "
            "raise max_length or give longer texts"
        )
    return ExampleSet(tuple(examples), cut, skipped)


class _Source:
    """One aligned text, ready to be cut into many stretches: each costs what it holds, not what the text does.

    `cuts` are, (Te + 1,), for each cut before extended position j: the matching cut in the original, or -1. Special
    tokens advance no bytes, so a cut is matched to the last original position with that byte end which an aligned pair
    supports. `usable` are the places of the cuts that both sides share, rising.
    """

    def __init__(self, text: AlignedText, number: int) -> None:
        self.text, self.number = text, number
        self.cuts = np.full(len(text.extended_ids) + 1, -1, np.int64)
        self.cuts[0] = 0
        last, _ = text.pairs("last")
        self.cuts[last[:, 1] + 1] = last[:, 0] + 1
        self.usable = np.flatnonzero(self.cuts >= 0)

    @cached_property
    def pairs(self) -> dict[Anchor, tuple[Ints, npt.NDArray[np.int8]]]:
        """Pairs and their kinds by anchor."""
        return {anchor: self.text.pairs(anchor) for anchor in ANCHORS}

    def slice(self, start: int, stop: int) -> AlignedExample:
        """Cut out what lies between two shared cuts, in extended positions."""
        text, first, last = self.text, int(self.cuts[start]), int(self.cuts[stop])
        original = np.asarray(text.original_ids[first:last], np.int64)
        extended = np.asarray(text.extended_ids[start:stop], np.int64)
        shared = min(len(original), len(extended))
        different = np.flatnonzero(original[:shared] != extended[:shared])
        prefix = int(different[0]) if len(different) else shared
        pairs: dict[Anchor, Ints] = {}
        merged: dict[Anchor, npt.NDArray[np.bool_]] = {}
        for anchor in ANCHORS:
            found, kind = self.pairs[anchor]  # both columns rise, so what lies inside is one stretch of them
            low = max(np.searchsorted(found[:, 0], first + prefix), np.searchsorted(found[:, 1], start + prefix))
            high = max(low, min(np.searchsorted(found[:, 0], last), np.searchsorted(found[:, 1], stop)))
            pairs[anchor] = np.asarray(found[low:high], np.int64) - (first, start)
            merged[anchor] = np.asarray(kind[low:high]) == MERGED
        n_bytes = int(text.extended_ends[stop - 1] - text.extended_ends[start])
        n_original_bytes = int(text.original_ends[last - 1] - text.original_ends[first])
        unmerged = text.unmerged[(text.unmerged > start) & (text.unmerged < stop)] - start
        return AlignedExample(
            extended, original_ids=original, pairs=pairs, merged=merged, prefix_pairs=prefix, n_bytes=n_bytes,
            n_original_bytes=n_original_bytes, source=self.number, unmerged=unmerged,
        )  # fmt: skip


def whole_texts(texts: Iterable[AlignedText], vocab_size: int, n_new: int, *, max_length: int = 1024) -> AlignedSet:
    """Take every text of two tokens or more from its beginning.

    It is cut at a common boundary where it has more than `max_length` tokens of either tokenizer.
    """
    examples: list[AlignedExample] = []
    cut = skipped = 0
    for number, text in enumerate(texts):
        source = _Source(text, number)
        fits = source.usable[(source.cuts[source.usable] <= max_length) & (source.usable <= max_length)]
        stop = int(fits[-1])
        if stop < 2:
            skipped += 1
            continue
        cut += stop < len(text.extended_ids)
        examples.append(source.slice(0, stop))
    return AlignedSet(tuple(examples), cut, skipped, vocab_size=vocab_size, n_new=n_new)


def choose_windows(
    texts: Sequence[AlignedText],
    vocab_size: int,
    n_new: int,
    *,
    window: int = 48,
    limit: int = 170,
    per_token: int = 64,
    seed: int = 0,
) -> AlignedSet:
    """Cut short windows around new tokens, evenly spread over the tokens; in order of text and place.

    Tokens take turns, rarest first; an occurrence that already lies in a chosen window counts and costs nothing. So
    where every fourth position is new a window of 48 serves a dozen tokens. Windows may overlap: one that begins beside
    another reads some tokens twice (5 to 9 % of all where 15 to 28 % of the positions were new).

    Args:
        window: extended tokens in a window, about half before the new token and half after.
        per_token: most occurrences asked for one token.
    """
    sources = [_Source(text, number) for number, text in enumerate(texts)]
    places = _occurrences(texts, vocab_size, n_new, seed)
    taken: list[list[tuple[int, int]]] = [[] for _ in texts]
    covered = [np.zeros(len(text.extended_ids), dtype=bool) for text in texts]
    seen = np.zeros(n_new, np.int64)
    order = sorted(range(n_new), key=lambda token: (len(places[token]), token))
    chosen = 0
    for turn in range(1, per_token + 1):
        for token in order:
            while places[token] and seen[token] < turn and chosen < limit:
                source, at = places[token].pop()
                if covered[source][at]:
                    continue  # already counted when that window was taken
                start, stop = _around(sources[source].usable, at, window)
                taken[source].append((start, stop))
                covered[source][start:stop] = True
                ids = texts[source].extended_ids[start:stop]
                seen += np.bincount(ids[ids >= vocab_size] - vocab_size, minlength=n_new)
                chosen += 1
        if chosen >= limit or not any(places):
            break
    examples = [
        source.slice(start, stop)
        for source, windows in zip(sources, taken, strict=True)
        for start, stop in sorted(windows)
    ]
    return AlignedSet(tuple(e for e in examples if len(e.ids) > 1), vocab_size=vocab_size, n_new=n_new)


def _occurrences(texts: Sequence[AlignedText], vocab_size: int, n_new: int, seed: int) -> list[list[tuple[int, int]]]:
    generator = np.random.default_rng(seed)
    places: list[list[tuple[int, int]]] = [[] for _ in range(n_new)]
    for source in generator.permutation(len(texts)):
        ids = np.asarray(texts[source].extended_ids)
        for at in np.flatnonzero(ids >= vocab_size):
            places[int(ids[at]) - vocab_size].append((int(source), int(at)))
    return places


def _around(usable: Ints, at: int, window: int) -> tuple[int, int]:
    """Grow outward from `at` to cuts that both tokenizers share."""
    place = int(np.searchsorted(usable, max(0, at - window // 2), side="right")) - 1
    start = int(usable[place])
    beyond = int(np.searchsorted(usable, max(at + 1, start + window)))
    return start, int(usable[min(len(usable) - 1, beyond)])
