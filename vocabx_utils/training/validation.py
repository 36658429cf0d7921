"""What each epoch of phase 1 is judged by: CE of old and new targets, bits per byte, and KL at four kinds of place.

KL is taken after the first divergence of a stretch, because before it student and teacher are the same
computation; `kl_identical_all` spreads the same sum over those positions too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vocabx_utils.training.examples import Batch, ExampleSet, collate, micro_batches
from vocabx_utils.training.extended import ExtendedModel
from vocabx_utils.training.group import Group
from vocabx_utils.training.objectives import phase1_loss
from vocabx_utils.training.teacher import TeacherCache

__all__ = ["TokenScores", "base_bits_per_byte", "evaluate"]

_PLACES = ("old", "new", "identical", "last", "first")


@dataclass(frozen=True)
class TokenScores:
    """Sums per new token, each (N,) float64.

    Attributes:
        kl: KL at the last subtoken, nats.
        kl_count: places that were compared.
        ce: CE where the token is the target, nats.
        ce_count: those places.
    """

    kl: Tensor
    kl_count: Tensor
    ce: Tensor
    ce_count: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """Return the sums by name, for a file."""
        return {"kl": self.kl, "kl_count": self.kl_count, "ce": self.ce, "ce_count": self.ce_count}


@torch.no_grad()
def evaluate(
    model: ExtendedModel,
    examples: ExampleSet,
    teacher: TeacherCache,
    *,
    token_budget: int = 8192,
    group: Group | None = None,
) -> tuple[dict[str, float], TokenScores]:
    """Measure a model on a split.

    Args:
        model: student.
        examples: the split.
        teacher: its cache, last layer.
        token_budget: tokens of a forward pass, padding included.
        group: processes that share the work.

    Returns:
        Means (CE and KL in nats per position, ``bpb`` in bits per UTF-8 byte) and sums per new token. A mean over no
        position is NaN.
    """
    group = group or Group()
    vocab, n_new, device = model.vocab_size, model.n_new, model.device
    names = [f"{kind}_{place}" for place in _PLACES for kind in ("ce" if place in ("old", "new") else "kl", "n")]
    sums = {name: torch.zeros((), dtype=torch.float64, device=device) for name in names}
    scores = TokenScores(*(torch.zeros(n_new, dtype=torch.float64, device=device) for _ in range(4)))
    lengths = [len(e.extended_ids) for e in examples.examples]
    share = range(group.rank, len(examples), group.world)
    for part in micro_batches(lengths, share, token_budget):
        last = collate(examples, part, "last", teacher.rows).to(device)
        first = collate(examples, part, "first", teacher.rows).to(device)
        hidden, _ = teacher.prefixes.hidden(model, last.ids, part, new_at=last.new_at)
        _add_batch(model, teacher, hidden.flatten(0, 1), last, first, sums, scores, vocab)
    group.sum_([*sums.values(), *scores.tensors().values()])
    totals = {name: float(value) for name, value in sums.items()}
    prefix = sum(e.prefix_pairs for e in examples.examples)
    n_bytes = sum(e.n_bytes for e in examples.examples)
    return _means(totals, prefix, n_bytes), scores


def _add_batch(
    model: ExtendedModel,
    teacher: TeacherCache,
    flat: Tensor,
    last: Batch,
    first: Batch,
    sums: dict[str, Tensor],
    scores: TokenScores,
    vocab: int,
) -> None:
    ones = torch.ones(len(last.targets), device=flat.device)
    terms = phase1_loss(
        flat[last.positions], model.head, model.head_rows, last.targets,
        ce_coefficient=ones, teacher_hidden=teacher.take(last.teacher_rows, flat.device), transform=model.transform,
    )  # fmt: skip
    at_first = first.positions[: len(first.merged)][first.merged]
    none = torch.full_like(at_first, -1)
    merged_first = phase1_loss(
        flat[at_first], model.head, model.head_rows, none,
        ce_coefficient=ones[:1].expand(len(none)),
        teacher_hidden=teacher.take(first.teacher_rows[first.merged], flat.device), transform=model.transform,
    ).kl  # fmt: skip
    ce, kl = terms.ce.double(), terms.kl.double()
    old, new = (last.targets >= 0) & (last.targets < vocab), last.targets >= vocab
    for name, values in (
        ("old", ce[old]),
        ("new", ce[new]),
    ):
        sums[f"ce_{name}"] += values.sum()
        sums[f"n_{name}"] += len(values)
    for name, values in (
        ("identical", kl[~last.merged]),
        ("last", kl[last.merged]),
        ("first", merged_first.double()),
    ):
        sums[f"kl_{name}"] += values.sum()
        sums[f"n_{name}"] += len(values)
    token = last.ids.reshape(-1)[last.positions[: len(kl)]]
    own = last.merged & (token >= vocab)
    scores.kl.index_add_(0, token[own] - vocab, kl[own])
    scores.kl_count.index_add_(0, token[own] - vocab, torch.ones_like(kl[own]))
    scores.ce.index_add_(0, last.targets[new] - vocab, ce[new])
    scores.ce_count.index_add_(0, last.targets[new] - vocab, torch.ones_like(ce[new]))


def _means(s: dict[str, float], prefix: int, n_bytes: int) -> dict[str, float]:
    def mean(total: float, count: float) -> float:
        return total / count if count else math.nan

    ce = s["ce_old"] + s["ce_new"]
    return {
        "ce": mean(ce, s["n_old"] + s["n_new"]),
        "ce_old": mean(s["ce_old"], s["n_old"]),
        "ce_new": mean(s["ce_new"], s["n_new"]),
        "bpb": mean(ce / math.log(2), n_bytes),
        "kl_identical": mean(s["kl_identical"], s["n_identical"]),
        "kl_identical_all": mean(s["kl_identical"], s["n_identical"] + prefix),
        "kl_last": mean(s["kl_last"], s["n_last"]),
        "kl_first": mean(s["kl_first"], s["n_first"]),
        "kl_pooled": mean(s["kl_identical"] + s["kl_first"], s["n_identical"] + s["n_first"]),
        "kl_pooled_last": mean(s["kl_identical"] + s["kl_last"], s["n_identical"] + s["n_last"]),
        "n_old_targets": s["n_old"],
        "n_new_targets": s["n_new"],
        "n_identical": s["n_identical"],
        "n_last": s["n_last"],
        "n_first": s["n_first"],
    }


def base_bits_per_byte(teacher: TeacherCache, examples: ExampleSet) -> float:
    """Return the base model's bits per byte on the same stretches, under the original tokenizer."""
    n_bytes = sum(e.n_original_bytes for e in examples.examples)
    return float(np.float64(teacher.base_nats) / math.log(2) / n_bytes) if n_bytes else math.nan
