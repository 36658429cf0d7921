"""Texts to padded batches: what is learned, and batches of like length so that padding stays rare.

Under a causal mask a token never looks to its right, so right padding needs no attention mask at all: the quick
attention kernels stay usable and a batched row equals the same row alone. What is padding is known from lengths,
never from ids, so a pad token that doubles as end-of-text is learned where it is real.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from vocabx_utils.corpus import Rendered
from vocabx_utils.training.fullhead import IGNORE

LossOn = Literal["all", "answer"]

__all__ = ["Example", "ExampleSet", "Step", "collate", "encode", "padding_share", "plan_epoch"]


@dataclass(frozen=True)
class Example:
    """One text as ids.

    Attributes:
        ids: int64 (T,).
        first_target: position of the first token that is learned, at least 1 (nothing predicts the first token).
    """

    ids: np.ndarray
    first_target: int

    @property
    def targets(self) -> int:
        """Number of tokens that are learned."""
        return len(self.ids) - self.first_target


@dataclass(frozen=True)
class ExampleSet:
    """Encoded texts and what was left out.

    Attributes:
        examples: texts with at least one token to learn.
        cut: texts longer than the limit; their end, and so their end-of-text, was cut off.
        skipped: texts with nothing to learn (empty, one token, or cut before the answer).
    """

    examples: tuple[Example, ...]
    cut: int
    skipped: int

    @property
    def tokens(self) -> int:
        """Tokens read in one pass."""
        return sum(len(example.ids) for example in self.examples)

    @property
    def targets(self) -> int:
        """Tokens learned in one pass."""
        return sum(example.targets for example in self.examples)

    def occurrences(self, first_id: int, count: int) -> np.ndarray:
        """Count each id of ``first_id … first_id + count - 1`` in all examples: int64 (count,)."""
        total = np.zeros(count, dtype=np.int64)
        for example in self.examples:
            inside = example.ids[(example.ids >= first_id) & (example.ids < first_id + count)]
            total += np.bincount(inside - first_id, minlength=count)
        return total


@dataclass(frozen=True)
class Step:
    """One optimiser step: batches of example numbers, and how many tokens the step learns."""

    batches: tuple[tuple[int, ...], ...]
    targets: int


def encode(
    texts: Iterable[Rendered | str],
    tokenizer: PreTrainedTokenizerFast,
    *,
    max_length: int = 1024,
    loss_on: LossOn = "all",
) -> ExampleSet:
    """Tokenize rendered pairs (template and end-of-text included) or plain texts.

    Args:
        texts: what ``corpus.render`` gave, or strings, which are learned whole.
        tokenizer: original or extended; no special token is added here, the template has them.
        max_length: tokens kept of one text.
        loss_on: "all" learns the whole text, "answer" only from the first token that holds a byte of the answer.

    Returns:
        The examples in order, with counts of what was cut and skipped.

    Raises:
        ValueError: when ``max_length`` is under 2 or no text has anything to learn.
    """
    if max_length < 2:
        raise ValueError(f"max_length is {max_length}; a text needs at least 2 tokens for one to be learned")
    examples, cut, skipped = [], 0, 0
    for text in texts:
        string, answer_start = (text, 0) if isinstance(text, str) else (text.text, text.answer_start)
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


def plan_epoch(
    examples: Sequence[Example],
    *,
    tokens_per_step: int,
    tokens_per_batch: int,
    world: int = 1,
    max_padding: float = 0.04,
    pool_steps: int = 64,
    seed: int = 0,
) -> list[Step]:
    """Order one epoch: every example once, in steps of about equal size and batches of about equal length.

    Examples are shuffled, sorted by length within pools, and cut into steps; the steps are shuffled again. What a
    step holds does not depend on ``world`` or ``tokens_per_batch``, so that the loss curve does not either.

    Args:
        examples: encoded texts.
        tokens_per_step: tokens behind one optimiser step, over all processes.
        tokens_per_batch: padded tokens that one process holds at once (this bounds memory).
        world: number of processes that share a batch.
        max_padding: share of padding above which a batch is cut in two.
        pool_steps: steps of one sorted pool.
        seed: same seed, same plan.

    Returns:
        The steps of the epoch.

    Raises:
        ValueError: when a single text is longer than ``tokens_per_batch``.
    """
    lengths = np.asarray([len(example.ids) for example in examples], dtype=np.int64)
    if lengths.max() > tokens_per_batch:
        raise ValueError(
            f"a text of {lengths.max()} tokens does not fit tokens_per_batch={tokens_per_batch}; "
            "raise tokens_per_batch or lower max_length"
        )
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(lengths))
    pools = _cut(order, lengths, tokens_per_step * pool_steps)
    groups = [
        group
        for pool in pools
        for group in _cut(pool[np.argsort(-lengths[pool], kind="stable")], lengths, tokens_per_step)
    ]
    steps = [
        Step(
            _batches(group, lengths, tokens_per_batch, world, max_padding),
            sum(examples[number].targets for number in group),
        )
        for group in groups
    ]
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
        examples: encoded texts.
        numbers: the batch.
        rank: this process.
        world: number of processes; row ``k`` belongs to process ``k % world``.

    Returns:
        ``ids`` (B, T) int64, padded with 0, and ``targets`` (B, T) int64: the id that position t has to predict,
        or ``IGNORE``. Every process gets the same B and T; missing rows are all padding.
    """
    width = max(len(examples[number].ids) for number in numbers)
    height = -(-len(numbers) // world)
    ids = torch.zeros((height, width), dtype=torch.int64)
    targets = torch.full((height, width), IGNORE, dtype=torch.int64)
    for row, number in enumerate(numbers[rank::world]):
        example = examples[number]
        tokens = torch.from_numpy(example.ids)
        ids[row, : len(tokens)] = tokens
        targets[row, example.first_target - 1 : len(tokens) - 1] = tokens[example.first_target :]
    return ids, targets


def _cut(order: np.ndarray, lengths: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut ``order`` into parts of about ``size`` tokens, none much smaller than the others."""
    ends = np.cumsum(lengths[order])
    parts = max(1, round(int(ends[-1]) / size))
    middles = ends - lengths[order] / 2
    part_of = np.minimum((middles * parts / ends[-1]).astype(np.int64), parts - 1)
    return [order[part_of == part] for part in range(parts) if np.any(part_of == part)]


def _batches(
    group: np.ndarray, lengths: np.ndarray, tokens_per_batch: int, world: int, max_padding: float
) -> tuple[tuple[int, ...], ...]:
    """Cut a step, longest text first, so that no batch outgrows its budget or its share of padding."""
    batches: list[tuple[int, ...]] = []
    current: list[int] = []
    real = 0
    for number in group:
        width = int(lengths[current[0]]) if current else int(lengths[number])
        rows = -(-(len(current) + 1) // world)
        held = width * (len(current) + 1)
        too_big = rows * width > tokens_per_batch
        too_empty = real + int(lengths[number]) < (1.0 - max_padding) * held
        if current and (too_big or too_empty):
            batches.append(tuple(current))
            current, real = [], 0
        current.append(int(number))
        real += int(lengths[number])
    batches.append(tuple(current))
    return tuple(batches)
