"""Training examples: aligned stretches of text around new tokens, and batches of them.

An example is a slice of one text under both tokenizers, cut where both have a byte end. It carries the positions at
which student and teacher may be compared. Before the first divergence both read the same ids, so KL is exactly
0 there: those pairs are counted (`prefix_pairs`) but neither stored nor computed.

Shapes: To original ids, Te extended ids, P pairs; the V first ids are the original ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vocabx_utils.files import hash_bytes
from vocabx_utils.training.objectives import ANCHORS, Anchor
from vocabx_utils.vocabulary.alignment import MERGED, AlignedText

__all__ = [
    "Batch",
    "Example",
    "ExampleSet",
    "choose_windows",
    "collate",
    "epoch_batches",
    "micro_batches",
    "whole_texts",
]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Example:
    """A stretch of one text under both tokenizers.

    Attributes:
        original_ids: (To,) teacher ids.
        extended_ids: (Te,) student ids.
        pairs: per anchor, (P, 2) positions (original, extended) at or after the first divergence.
        merged: per anchor, (P,) True at pairs that stand for a divergent group.
        prefix_pairs: identical pairs before the first divergence.
        n_bytes: UTF-8 bytes of the student's targets, that is of the stretch without its first token.
        n_original_bytes: the same for the teacher, whose first token can be shorter.
        source: index of the text it was cut from.
    """

    original_ids: Ints
    extended_ids: Ints
    pairs: dict[Anchor, Ints]
    merged: dict[Anchor, npt.NDArray[np.bool_]]
    prefix_pairs: int
    n_bytes: int
    n_original_bytes: int
    source: int

    def new_at(self, vocab_size: int) -> Ints:
        """Positions of new tokens in ``extended_ids``."""
        return np.flatnonzero(self.extended_ids >= vocab_size)

    def teacher_at(self) -> Ints:
        """Original positions whose teacher state some anchor needs, sorted."""
        return np.unique(np.concatenate([self.pairs[anchor][:, 0] for anchor in ANCHORS]))


@dataclass(frozen=True)
class ExampleSet:
    """Examples of one split.

    Attributes:
        examples: in a fixed order.
        vocab_size: V.
        n_new: N.
        skipped: how many stretches were dropped, by reason.
    """

    examples: tuple[Example, ...]
    vocab_size: int
    n_new: int
    skipped: dict[str, int]

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def tokens(self) -> int:
        """Extended tokens over all examples."""
        return sum(len(example.extended_ids) for example in self.examples)

    def counts(self) -> Ints:
        """(N,) how often each new token stands in the examples."""
        ids = np.concatenate([np.zeros(0, np.int64), *(e.extended_ids for e in self.examples)])
        return np.bincount(ids[ids >= self.vocab_size] - self.vocab_size, minlength=self.n_new)

    def fingerprint(self) -> str:
        """SHA-256 over all ids and pairs: equal sets, and only they, share one."""

        def parts() -> Iterator[bytes]:
            yield f"{self.vocab_size} {self.n_new}".encode()
            for example in self.examples:
                arrays = [example.original_ids, example.extended_ids, *(example.pairs[a] for a in ANCHORS)]
                for array in arrays:
                    yield np.int64(array.size).tobytes()
                    yield np.ascontiguousarray(array, np.int64).tobytes()

        return hash_bytes(parts())


def _boundaries(text: AlignedText) -> Ints:
    """(Te + 1,) for each cut before extended position j: the matching cut in the original, or -1.

    Special tokens advance no bytes, so a cut is matched to the last original position with that byte end which an
    aligned pair supports.
    """
    cuts = np.full(len(text.extended_ids) + 1, -1, np.int64)
    cuts[0] = 0
    pairs, _ = text.pairs("last")
    cuts[pairs[:, 1] + 1] = pairs[:, 0] + 1
    return cuts


def _slice(text: AlignedText, start: int, stop: int, cuts: Ints, source: int) -> Example:
    first, last = int(cuts[start]), int(cuts[stop])
    original = np.asarray(text.original_ids[first:last], np.int64)
    extended = np.asarray(text.extended_ids[start:stop], np.int64)
    shared = min(len(original), len(extended))
    different = np.flatnonzero(original[:shared] != extended[:shared])
    prefix = int(different[0]) if len(different) else shared
    pairs: dict[Anchor, Ints] = {}
    merged: dict[Anchor, npt.NDArray[np.bool_]] = {}
    for anchor in ANCHORS:
        found, kind = text.pairs(anchor)
        moved = np.asarray(found, np.int64) - (first, start)
        inside = (moved >= prefix).all(1) & (moved[:, 0] < len(original)) & (moved[:, 1] < len(extended))
        pairs[anchor] = moved[inside]
        merged[anchor] = np.asarray(kind)[inside] == MERGED
    n_bytes = int(text.extended_ends[stop - 1] - text.extended_ends[start])
    n_original_bytes = int(text.original_ends[last - 1] - text.original_ends[first])
    return Example(original, extended, pairs, merged, prefix, n_bytes, n_original_bytes, source)


def whole_texts(texts: Iterable[AlignedText], vocab_size: int, n_new: int, *, max_length: int = 1024) -> ExampleSet:
    """Take every text from its beginning, cut at a common boundary if it is too long.

    Args:
        texts: aligned texts.
        vocab_size: V.
        n_new: N.
        max_length: longest example, in tokens of either tokenizer.

    Returns:
        One example per text that has at least two tokens.
    """
    examples: list[Example] = []
    skipped: Counter[str] = Counter()
    for source, text in enumerate(texts):
        cuts = _boundaries(text)
        fits = np.flatnonzero((cuts >= 0) & (cuts <= max_length) & (np.arange(len(cuts)) <= max_length))
        stop = int(fits[-1])
        if stop < 2:
            skipped["shorter than two tokens"] += 1
            continue
        skipped["cut to the longest length"] += stop < len(text.extended_ids)
        examples.append(_slice(text, 0, stop, cuts, source))
    return ExampleSet(tuple(examples), vocab_size, n_new, dict(+skipped))


def choose_windows(
    texts: Sequence[AlignedText],
    vocab_size: int,
    n_new: int,
    *,
    window: int = 48,
    limit: int = 170,
    per_token: int = 64,
    seed: int = 0,
) -> ExampleSet:
    """Cut short windows around new tokens, spreading them evenly over the tokens.

    Tokens take turns, rarest first; an occurrence that already lies in a chosen window counts and costs nothing.

    Args:
        texts: aligned texts.
        vocab_size: V.
        n_new: N.
        window: extended tokens in a window, about half before the new token and half after.
        limit: most windows.
        per_token: most occurrences asked for one token.
        seed: for the order of occurrences.

    Returns:
        The windows, in order of text and place.
    """
    cuts = [_boundaries(text) for text in texts]
    places = _occurrences(texts, vocab_size, n_new, seed)
    taken: list[list[tuple[int, int]]] = [[] for _ in texts]
    seen = np.zeros(n_new, np.int64)
    order = sorted(range(n_new), key=lambda token: (len(places[token]), token))
    chosen = 0
    for turn in range(1, per_token + 1):
        for token in order:
            while places[token] and seen[token] < turn and chosen < limit:
                source, at = places[token].pop()
                if any(start <= at < stop for start, stop in taken[source]):
                    continue  # already counted when that window was taken
                start, stop = _around(cuts[source], at, window)
                taken[source].append((start, stop))
                ids = texts[source].extended_ids[start:stop]
                seen += np.bincount(ids[ids >= vocab_size] - vocab_size, minlength=n_new)
                chosen += 1
        if chosen >= limit or not any(places):
            break
    examples = [
        _slice(texts[source], start, stop, cuts[source], source)
        for source, windows in enumerate(taken)
        for start, stop in sorted(windows)
    ]
    return ExampleSet(tuple(e for e in examples if len(e.extended_ids) > 1), vocab_size, n_new, {})


def _occurrences(texts: Sequence[AlignedText], vocab_size: int, n_new: int, seed: int) -> list[list[tuple[int, int]]]:
    generator = np.random.default_rng(seed)
    places: list[list[tuple[int, int]]] = [[] for _ in range(n_new)]
    for source in generator.permutation(len(texts)):
        ids = np.asarray(texts[source].extended_ids)
        for at in np.flatnonzero(ids >= vocab_size):
            places[int(ids[at]) - vocab_size].append((int(source), int(at)))
    return places


def _around(cuts: Ints, at: int, window: int) -> tuple[int, int]:
    """Grow outward from ``at`` to cuts that both tokenizers share."""
    usable = np.flatnonzero(cuts >= 0)
    place = int(np.searchsorted(usable, max(0, at - window // 2), side="right")) - 1
    start = int(usable[place])
    beyond = int(np.searchsorted(usable, max(at + 1, start + window)))
    return start, int(usable[min(len(usable) - 1, beyond)])


def epoch_batches(examples: ExampleSet, batch_size: int, *, seed: int, epoch: int, buckets: int = 8) -> list[list[int]]:
    """Split one epoch into steps of examples of like length.

    The order depends on seed and epoch alone, so a resumed run meets the same batches.

    Args:
        examples: the training set.
        batch_size: examples in a step.
        seed: of the run.
        epoch: counted from 1.
        buckets: steps whose examples are sorted by length together; 1 switches sorting off.

    Returns:
        Lists of example indices, shuffled.
    """
    generator = np.random.default_rng([seed, epoch])
    order = np.asarray(generator.permutation(len(examples)), np.int64)
    lengths = np.array([len(e.extended_ids) for e in examples.examples])
    pool = batch_size * max(1, buckets)
    steps: list[list[int]] = []
    for start in range(0, len(order), pool):
        part = order[start : start + pool]
        part = part[np.argsort(lengths[part], kind="stable")]
        steps += [part[i : i + batch_size].tolist() for i in range(0, len(part), batch_size)]
    return [steps[i] for i in generator.permutation(len(steps))]


def micro_batches(lengths: Sequence[int], indices: Iterable[int], token_budget: int) -> Iterator[list[int]]:
    """Split a step so that no part pads to more than ``token_budget`` tokens.

    Args:
        lengths: tokens of every example of the set.
        indices: the step's examples.
        token_budget: most tokens, padding included; one longer example is still a part of its own.
    """
    part: list[int] = []
    longest = 0
    for index in sorted(indices, key=lambda i: (lengths[i], i)):
        longest = max(longest, lengths[index])
        if part and longest * (len(part) + 1) > token_budget:
            yield part
            part, longest = [], lengths[index]
        part.append(index)
    if part:
        yield part


@dataclass(frozen=True)
class Batch:
    """Padded student ids and flat positions into them.

    Positions are ordered so that the K compared with the teacher come first, as `phase1_loss` wants them.

    Attributes:
        ids: (B, T) right-padded.
        positions: (P,) flat positions of real tokens: the K compared ones first, then the others that have a target.
        targets: (P,) next ids, -1 after the last token of an example.
        teacher_rows: (K,) rows of the teacher cache.
        merged: (K,) True at pairs that stand for a divergent group.
        new_at: flat positions of the new tokens.
        aligned: pairs that the mean runs over: K and the identical ones before the divergence.
        n_new_targets: targets that are new tokens.
    """

    ids: Tensor
    positions: Tensor
    targets: Tensor
    teacher_rows: Tensor
    merged: Tensor
    new_at: Tensor
    aligned: int
    n_new_targets: int

    def to(self, device: torch.device) -> Batch:
        """Move every tensor, asynchronously where the device allows it."""

        def move(tensor: Tensor) -> Tensor:
            if device.type == "cuda":
                return tensor.pin_memory().to(device, non_blocking=True)
            return tensor.to(device)

        return Batch(
            move(self.ids),
            move(self.positions),
            move(self.targets),
            move(self.teacher_rows),
            move(self.merged),
            move(self.new_at),
            self.aligned,
            self.n_new_targets,
        )


def collate(
    examples: ExampleSet,
    indices: Sequence[int],
    anchor: Anchor | None,
    rows: Sequence[Ints] | None = None,
) -> Batch:
    """Pad some examples and collect what the losses need.

    Masks come from lengths, never from ids, so a text may hold the padding token's id (case: pad equals eos).

    Args:
        examples: the set.
        indices: which examples.
        anchor: which pairs to compare, None for none at all.
        rows: per example of the set, the row of the teacher cache of each position in `Example.teacher_at`.
    """
    chosen = [examples.examples[i] for i in indices]
    width = max(len(e.extended_ids) for e in chosen)
    ids = np.zeros((len(chosen), width), np.int64)
    targets = np.full((len(chosen), width), -1, np.int64)
    compared: list[Ints] = []
    teacher: list[Ints] = []
    merged: list[npt.NDArray[np.bool_]] = []
    aligned = 0
    for line, (index, example) in enumerate(zip(indices, chosen, strict=True)):
        length = len(example.extended_ids)
        ids[line, :length] = example.extended_ids
        targets[line, : length - 1] = example.extended_ids[1:]
        if anchor is None or rows is None:
            continue
        pairs = example.pairs[anchor]
        compared.append(pairs[:, 1] + line * width)
        teacher.append(rows[index][np.searchsorted(example.teacher_at(), pairs[:, 0])])
        merged.append(example.merged[anchor])
        aligned += len(pairs) + example.prefix_pairs
    first = _joined(compared)
    others = np.setdiff1d(np.flatnonzero(targets.reshape(-1) >= 0), first, assume_unique=False)
    positions = np.concatenate([first, others])
    flat = targets.reshape(-1)[positions]
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(positions),
        torch.from_numpy(flat),
        torch.from_numpy(_joined(teacher)),
        torch.from_numpy(np.concatenate(merged) if merged else np.zeros(0, bool)),
        torch.from_numpy(np.flatnonzero(ids.reshape(-1) >= examples.vocab_size)),
        aligned,
        int((flat >= examples.vocab_size).sum()),
    )


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)
