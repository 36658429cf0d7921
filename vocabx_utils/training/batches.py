"""Batches: which examples stand in a step, in a forward pass, and how they are padded.

Batches are of like length, so that padding stays rare. Under a causal mask a token never looks to its right, so right
padding needs no attention mask at all: the quick attention kernels stay usable and a batched row equals the same row
alone. What is padding is known from lengths, never from ids, so a text may hold the padding token's id.

Phase 1 draws steps of a number of examples (`epoch_batches`, `align_batch`), fine-tuning steps of a number of tokens
(`plan_epoch`, `collate`).

Shapes: B texts, T tokens, P positions or pairs, K of them compared; E examples, N new tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vocabx_utils.batching import like_length, move, pad
from vocabx_utils.training.cross_entropy import IGNORE
from vocabx_utils.training.examples import AlignedExample, AlignedSet, Example, ExampleSet, Ints
from vocabx_utils.training.objectives import Anchor, Objective

_BUCKETS = 8  # steps of phase 1 whose examples are sorted by length together
_POOL, _MAX_PADDING = 64, 0.04  # steps of fine-tuning that are; share of padding above which a batch is cut in two
_ROUNDS, _MOST = 200, 20.0  # of scaling; an example is drawn at most so many times as often as on average
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Batch:
    """Padded student ids and flat positions into them, in the order that `phase1_loss` wants.

    That is first the K compared ones, then the others that have a target, and last those of them before an example's
    first divergence, whose states never change.
    """

    ids: Tensor  # (B, T) right-padded
    positions: Tensor  # (P,)
    targets: Tensor  # (P,) next ids, `IGNORE` after the last token of an example
    teacher_rows: Tensor  # (K,) rows of the teacher cache
    merged: Tensor  # (K,) True at pairs that stand for a divergent group
    new_at: Tensor  # flat positions of the new tokens
    weights: Tensor  # (K,) float32 weights of the compared positions; (0,) where all are 1
    before: int  # how many of the positions lie before a first divergence

    def to(self, device: torch.device) -> Batch:
        """Move every tensor, asynchronously where the device allows it."""
        tensors = {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **dict(zip(tensors, move([*tensors.values()], device), strict=True)))  # type: ignore[arg-type]


def align_batch(
    examples: AlignedSet,
    indices: Sequence[int],
    anchor: Anchor | None,
    rows: Sequence[Ints] | None = None,
    objective: Objective | None = None,
) -> Batch:
    """Pad some examples and collect what the losses need.

    Args:
        anchor: which pairs to compare, None for none at all.
        rows: per example of the set, the row of the teacher cache of each position in `Example.teacher_at`.
        objective: of this anchor; see `choose_pairs`. Without it all pairs are compared alike.
    """
    chosen = [examples.examples[i] for i in indices]
    ids, real = (tensor.numpy() for tensor in pad([e.ids for e in chosen]))  # (B, T) each
    targets = np.full_like(ids, IGNORE)
    targets[:, :-1] = np.where(real[:, 1:], ids[:, 1:], IGNORE)
    compared: list[Ints] = []
    teacher: list[Ints] = []
    merged: list[np.ndarray] = []
    weights: list[np.ndarray] = []
    for line, (index, example) in enumerate(zip(indices, chosen, strict=True)):
        targets[line, example.unmerged - 1] = IGNORE
        if anchor is None or rows is None:
            continue
        which, weighed = choose_pairs(example, objective or Objective(anchor=anchor))
        compared.append(example.pairs[anchor][which, 1] + line * ids.shape[1])
        teacher.append(rows[index][example.teacher_places(anchor)[which]])
        merged.append(example.merged[anchor][which])
        if weighed is not None:
            weights.append(weighed)
    first, flat = _joined(compared), targets.reshape(-1)
    other = flat >= 0
    other[first] = False
    shared = np.arange(ids.shape[1]) < np.array([e.prefix_pairs for e in chosen])[:, None]  # (B, T)
    after, before = (np.flatnonzero(other & side.reshape(-1)) for side in (~shared, shared))
    positions = np.concatenate([first, after, before])  # (P,)
    return Batch(
        torch.from_numpy(ids),
        torch.from_numpy(positions),
        torch.from_numpy(flat[positions]),
        torch.from_numpy(_joined(teacher)),
        torch.from_numpy(np.concatenate(merged) if merged else np.zeros(0, bool)),
        torch.from_numpy(np.flatnonzero(ids.reshape(-1) >= examples.vocab_size)),
        torch.from_numpy(np.concatenate(weights, dtype=np.float32) if weights else np.zeros(0, np.float32)),
        len(before),
    )


def choose_pairs(example: AlignedExample, objective: Objective) -> tuple[slice | npt.NDArray[np.bool_], Floats | None]:
    """Say which (P,) aligned pairs of its anchor an objective compares, and the (K,) weights of these; None for all 1.

    A long span changes the student most right where it ends: an objective may weigh the pairs that end a divergent
    group, and those at most `after` student tokens behind such an end, more than others, or compare nowhere else.
    """
    if not objective.by_place:
        return slice(None), None
    places, merged = example.pairs[objective.anchor][:, 1], example.merged[objective.anchor]
    ends = np.concatenate([[-1 - objective.after], places[merged]])  # the first one is far from every place
    near = places - ends[np.searchsorted(ends, places, side="right") - 1] <= objective.after  # (P,)
    if objective.end_only:
        return near, None
    return slice(None), None if objective.end_weight == 1 else np.where(near, objective.end_weight, 1.0)


def count_pairs(example: AlignedExample, objective: Objective) -> tuple[int, float, Ints]:
    """Return how many pairs are compared, what all weigh together, and the (K,) student's positions of the compared.

    The sum is what the loss divides by: with it the identical pairs before the divergence, of KL 0 and weight 1, unless
    the objective compares at ends only.
    """
    which, weights = choose_pairs(example, objective)
    places = example.pairs[objective.anchor][which, 1]
    total = len(places) if weights is None else float(weights.sum())
    return len(places), total + (0 if objective.end_only else example.prefix_pairs), places


@dataclass(frozen=True)
class Step:
    """One optimiser step: batches of example numbers, and how many tokens the step learns."""

    batches: tuple[tuple[int, ...], ...]
    targets: int


def epoch_batches(
    examples: ExampleSet,
    batch_size: int,
    *,
    seed: int,
    epoch: int,
    shares: Floats | None = None,
) -> list[list[int]]:
    """Split one epoch, counted from 1, into steps of `batch_size` examples of like length.

    The order depends on seed and epoch alone, so a resumed run meets the same batches.

    Args:
        shares: (E,) shares of the examples in as many draws as there are examples; each comes once unless given.
    """
    generator = np.random.default_rng([seed, epoch])
    order = np.asarray(generator.permutation(len(examples)), np.int64)
    if shares is not None:  # systematic: each comes as often as its share says, rounded up or down
        ends = np.cumsum(shares[order]) * len(order)
        places = np.searchsorted(ends, generator.random() + np.arange(len(order)), side="right")
        order = generator.permutation(order[np.minimum(places, len(order) - 1)])
    lengths = np.array([len(e.ids) for e in examples.examples])
    pool = batch_size * _BUCKETS
    steps: list[list[int]] = []
    for start in range(0, len(order), pool):
        part = order[start : start + pool]
        part = part[np.argsort(lengths[part], kind="stable")]
        steps += [part[i : i + batch_size].tolist() for i in range(0, len(part), batch_size)]
    return [steps[i] for i in generator.permutation(len(steps))]


def equal_shares(examples: AlignedSet) -> Floats:
    """Return (E,) the probability of each example in a draw that shows all new tokens about equally often.

    A corpus shows some new tokens a thousand times and others twenty times, and each row learns from its own places.
    Found by iterative scaling. Tokens without an example are left out of account. Where the examples do not allow equal
    counts, or only by drawing one of them again and again, what comes near is returned.
    """
    at = [example.new_at(examples.vocab_size) for example in examples.examples]
    line = np.repeat(np.arange(len(examples)), [len(places) for places in at])  # of each occurrence of a new token
    ids = [example.ids[places] for example, places in zip(examples.examples, at, strict=True)]
    token = _joined(ids) - examples.vocab_size
    held = np.bincount(line, minlength=len(examples))  # (E,) new tokens in each example
    shares = np.full(len(examples), 1.0 / len(examples))
    if not len(line):
        return shares
    for _ in range(_ROUNDS):
        counts = np.bincount(token, shares[line], minlength=examples.n_new)  # (N,) expected in one draw
        seen = counts > 0
        wanted = np.zeros_like(counts)
        wanted[seen] = np.sqrt(counts[seen].mean() / counts[seen])
        factor = np.bincount(line, wanted[token], minlength=len(examples)) / np.maximum(held, 1)
        shares = np.where(held > 0, shares * factor, shares)
        shares = np.minimum(shares / shares.sum(), _MOST / len(examples))
    return shares / shares.sum()


def micro_batches(lengths: Sequence[int], indices: Iterable[int], token_budget: int) -> list[list[int]]:
    """Split a step so that no part pads to more than `token_budget` tokens; one longer example is a part of its own."""
    return like_length(lengths, sorted(indices), tokens=token_budget)


def plan_epoch(
    examples: Sequence[Example],
    *,
    tokens_per_step: int,
    tokens_per_batch: int,
    world: int = 1,
    seed: int = 0,
) -> list[Step]:
    """Order one epoch: every example once, in steps of about equal size and batches of about equal length.

    Examples are shuffled, sorted by length within pools, and cut into steps; the steps are shuffled again. What a
    step holds does not depend on `world` or `tokens_per_batch`.

    Args:
        tokens_per_step: tokens behind one optimiser step, over all processes.
        tokens_per_batch: padded tokens that one process holds at once (this bounds memory).
        world: number of processes that share a batch.

    Raises:
        ValueError: when a single text is longer than `tokens_per_batch`.
    """
    lengths = np.asarray([len(example.ids) for example in examples], dtype=np.int64)
    if lengths.max() > tokens_per_batch:
        raise ValueError(
            f"a text of {lengths.max()} tokens does not fit tokens_per_batch={tokens_per_batch}; "
            "raise tokens_per_batch or lower max_length"
        )
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(lengths))
    pools = _cut(order, lengths, tokens_per_step * _POOL)
    by_length = (pool[np.argsort(-lengths[pool], kind="stable")] for pool in pools)
    steps = []
    for group in (group for pool in by_length for group in _cut(pool, lengths, tokens_per_step)):
        batches = like_length(
            lengths, group, tokens=tokens_per_batch, world=world, max_padding=_MAX_PADDING, longest_first=True
        )
        steps.append(Step(tuple(map(tuple, batches)), sum(examples[number].targets for number in group)))
    return [steps[number] for number in generator.permutation(len(steps))]


def padding_share(steps: Iterable[Step], examples: Sequence[Example]) -> float:
    """Share of padding among all tokens that the batches hold."""
    held = real = 0
    for step in steps:
        for batch in step.batches:
            lengths = [len(examples[number].ids) for number in batch]
            held += max(lengths) * len(lengths)
            real += sum(lengths)
    return 1.0 - real / held if held else 0.0


def collate(
    examples: Sequence[Example], numbers: Sequence[int], *, rank: int = 0, world: int = 1
) -> tuple[Tensor, Tensor]:
    """Pad one process's share of a batch on the right.

    Args:
        world: number of processes; row `k` belongs to process `k % world`.

    Returns:
        `ids` (B, T) int64, padded with 0, and `targets` (B, T) int64: the id that position t has to predict,
        or `IGNORE`. Every process gets the same B and T; missing rows are all padding.
    """
    chosen = [examples[number] for number in numbers]
    none: list[Ints] = [np.zeros(0, np.int64)] * (-len(numbers) % world)  # rows that are all padding
    ids, _ = pad([*(e.ids for e in chosen), *none])
    targets, _ = pad([*(next_ids(e.ids, e.first_target) for e in chosen), *none], value=IGNORE)
    return ids[rank::world], targets[rank::world]


def next_ids(ids: Ints, first_target: int = 1) -> Ints:
    """Return (T,) what each position of a text has to predict: the next id, or `IGNORE` where nothing is learned."""
    targets = np.append(ids[1:], IGNORE)
    targets[: first_target - 1] = IGNORE
    return targets


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _cut(order: np.ndarray, lengths: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut `order` into parts of about `size` tokens, none much smaller than the others."""
    ends = np.cumsum(lengths[order])
    parts = max(1, round(int(ends[-1]) / size))
    middles = ends - lengths[order] / 2
    part_of = np.minimum((middles * parts / ends[-1]).astype(np.int64), parts - 1)
    return [order[part_of == part] for part in range(parts) if np.any(part_of == part)]
