"""What phase 1 counts before a step and proves about a variant: it can be judged, the right rows moved, it improved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vocabx_utils.config import Phase1Config
from vocabx_utils.training.batches import Floats, count_pairs
from vocabx_utils.training.examples import AlignedExample, AlignedSet, Ints
from vocabx_utils.training.loop import NonFiniteLossError
from vocabx_utils.training.objectives import Objective, Recipe


class RowsNotTrainedError(RuntimeError):
    """A new row with training examples did not change, or a frozen one did."""


class NotImprovedError(RuntimeError):
    """Training left the validation KL no better than the untrained start."""


@dataclass(frozen=True)
class StepFacts:
    """Counts per training example, so that a step's means need no communication; each (E,) over the examples."""

    tokens: Ints  # read by the student
    targets: Ints  # next tokens
    new_targets: Ints  # and those of them that are new
    new_tokens: Ints  # anywhere
    compared: Ints  # pairs that the objective compares
    aligned: Floats  # what they weigh, with the identical pairs before the divergence: the thesis's mean is over all
    matches: bool  # whether the objective compares at all

    @classmethod
    def of(cls, examples: AlignedSet, objective: Objective | None) -> StepFacts:
        """Count a training set for an objective."""
        rows, weights = [], []
        for example in examples.examples:
            is_new = example.ids >= examples.vocab_size
            pairs, weight, _ = count_pairs(example, objective or Objective())
            rows.append((len(is_new), example.targets, is_new[1:].sum(), is_new.sum(), pairs))
            weights.append(weight)
        tokens, targets, new_targets, new_tokens, compared = np.array(rows, np.int64).reshape(-1, 5).T
        matches = objective is not None and objective.match is not None
        aligned = np.array(weights, np.float64)
        return cls(tokens, targets, new_targets, new_tokens, compared, aligned, matches)

    def is_empty(self, indices: Sequence[int]) -> bool:
        """True where a step has no new token, or nothing that its objective could compare."""
        return bool(self.new_tokens[indices].sum() == 0 or (self.matches and self.compared[indices].sum() == 0))

    def scales(self, indices: Sequence[int], new_target_weight: float) -> tuple[float, float]:
        """Factor of each compared position and of each target in the step's means."""
        weighted = self.targets[indices] + (new_target_weight - 1) * self.new_targets[indices]
        return 1.0 / (float(self.aligned[indices].sum()) or 1.0), 1.0 / max(1.0, float(weighted.sum()))


def count_spans(examples: AlignedSet) -> dict[str, float | int]:
    """Count tokens, new ones, and spans that phrase dropout left apart (`unmerged`).

    `share_unpaired` are tokens without a position to compare with, `subtokens_per_span` original tokens of a divergent
    group, on average.
    """
    tokens = sum(len(e.ids) for e in examples.examples)
    new, paired = int(examples.counts().sum()), 0
    lengths = []
    for e in examples.examples:
        paired += e.prefix_pairs + len(e.pairs["last"])
        ends, starts = (e.pairs[anchor][e.merged[anchor]][:, 0] for anchor in ("last", "first"))
        lengths.append(ends - starts + 1)  # examples are cut between groups only
    spans = np.concatenate([np.zeros(0, np.int64), *lengths])
    return {
        "examples": len(examples),
        "tokens": tokens,
        "new_tokens": new,
        "share_new": new / max(tokens, 1),
        "unmerged": sum(len(e.unmerged) for e in examples.examples),
        "share_unpaired": 1 - paired / max(tokens, 1),
        "subtokens_per_span": float(spans.mean()) if len(spans) else math.nan,
    }


def tell_spans(examples: AlignedSet) -> str:
    """Spell `count_spans` in a line."""
    found = count_spans(examples)
    apart = f", {found['unmerged']:,} spans left apart" if found["unmerged"] else ""
    return (
        f"training examples: {found['examples']:,} of {found['tokens']:,} tokens, {found['share_new']:.1%} of them new "
        f"(each span replaces {found['subtokens_per_span']:.1f} original tokens), {found['share_unpaired']:.1%} "
        f"without a partner{apart}"
    )


class LossLog:
    """Losses of every step; they stay on the device between checks, since reading one waits for the GPU.

    Args:
        every: steps between checks.
    """

    def __init__(self, name: str, learning_rate: float, *, every: int) -> None:
        self.name, self.learning_rate, self.every = name, learning_rate, every
        self.values = torch.zeros(0, 2, dtype=torch.float64)  # (S, 2): input side, head side
        self.pending: list[tuple[str, Tensor]] = []

    def add(self, losses: Tensor, place: str, last: bool) -> bool:
        """Take the losses of a step at a place; True where all so far were checked."""
        self.pending.append((place, losses))
        due = last or len(self.pending) >= self.every
        if due:
            self.check()
        return due

    def check(self) -> None:
        """Move pending losses to the log; stop at the first that is not finite."""
        if not self.pending:
            return
        values = torch.stack([losses for _, losses in self.pending]).cpu()
        for (place, _), pair in zip(self.pending, values, strict=True):
            if not torch.isfinite(pair).all():
                raise NonFiniteLossError(
                    f"{self.name}: loss {pair[:2].tolist()} (input side, head side) at {place} of the training set; "
                    f"lower learning_rate ({self.learning_rate:g}) or look at those examples, then run again under "
                    "another run name"
                )
        self.values = torch.cat([self.values, values[:, :2]])
        self.pending.clear()


def check_taught(name: str, texts: int, examples: AlignedSet) -> None:
    """Refuse a split in which no new token has other text beside it; `texts` is how many texts it was cut from."""
    if not examples.counts().any():
        raise ValueError(
            f"none of {texts} {name} texts holds a new token with other text beside it: they are free of new tokens, "
            "or hold one as their whole text. Give texts that use the new tokens, or tokens that the texts use."
        )


def check_judgeable(recipe: Recipe, validation: AlignedSet, config: Phase1Config) -> None:
    """Refuse, before the first step, a validation that could not show an improvement at the end."""
    if _must_improve(recipe, config) and not any(e.merged["last"].any() for e in validation.examples):
        raise NotImprovedError(
            f"{recipe.name}: validation holds no merged span, so improvement cannot be judged. Give it texts with new "
            "tokens, or set require_improvement = False."
        )


def check_moved(recipe: Recipe, before: Tensor, after: Tensor, train: AlignedSet) -> list[int]:
    """Raise if an input row with examples did not move, (N, D) on the CPU each; return the ids without examples."""
    missing: list[int] = (np.flatnonzero(train.counts() == 0) + train.vocab_size).tolist()
    if recipe.objective is None:
        return missing
    parts = [_learnable(example, recipe.objective, train.vocab_size) for example in train.examples]
    learnable = np.unique(np.concatenate([np.zeros(0, np.int64), *parts])) - train.vocab_size
    moved = (after != before).any(1).numpy()
    stuck = [int(i) + train.vocab_size for i in learnable if not moved[i]]
    if stuck:
        raise RowsNotTrainedError(
            f"{recipe.name}: {len(stuck)} new rows have training examples and did not change, ids {stuck[:10]}"
        )
    return missing


def check_improved(recipe: Recipe, metrics: list[dict[str, Any]], config: Phase1Config) -> None:
    """Raise if the KL at the last subtoken, which the objective minimises, did not fall."""
    if not _must_improve(recipe, config):
        return
    start, end = metrics[0]["kl_last"], metrics[-1]["kl_last"]
    if end is None or not end < start:
        raise NotImprovedError(
            f"{recipe.name}: validation KL at the last subtoken went from {start:.4f} to {end or math.nan:.4f}, "
            f"not below its untrained start. Try another learning_rate (now {config.learning_rate:g}) or more epochs; "
            "require_improvement = False accepts it."
        )


def _must_improve(recipe: Recipe, config: Phase1Config) -> bool:
    found = recipe.objective
    return found is not None and config.require_improvement and (found.match, found.anchor) == ("kl", "last")


def _learnable(example: AlignedExample, objective: Objective, vocab_size: int) -> Ints:
    """Ids of new tokens in an example that the objective's loss depends on."""
    at = example.new_at(vocab_size)
    end = -1
    if objective.match is not None and len(example.pairs[objective.anchor]):
        end = int(count_pairs(example, objective)[2].max(initial=-1))
    if objective.ce_weight > 0:
        end = max(end, len(example.ids) - 2)
    return example.ids[at[at <= end]]


def bits_checksum(tensor: Tensor) -> int:
    """Return a number that changes when any bit of a tensor changes value or place; not a digest."""
    kinds = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    matrix = tensor.detach().flatten(0, -2) if tensor.ndim > 1 else tensor.detach().reshape(1, -1)
    bits = matrix.contiguous().view(kinds[matrix.element_size()])
    rows = torch.arange(1, bits.shape[0] + 1, device=bits.device, dtype=torch.int64)
    columns = torch.arange(1, bits.shape[1] + 1, device=bits.device, dtype=torch.int64)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    # a piece fits the cache of a core
    piece = max(1, (1 << (17 if bits.device.type == "cpu" else 24)) // max(1, len(columns)))
    for part, numbers in zip(bits.split(piece), rows.split(piece), strict=True):
        total += ((part.to(torch.int64) * columns).sum(1) * numbers).sum()
    return int(total)
