"""The losses of a micro-batch as its objective asks for them: a match on the input side, cross-entropy on the other.

Shapes: V original ids, N new tokens, D width, B texts, T tokens, P positions with a target, K of them compared.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from vocabx_utils.student import Student
from vocabx_utils.training.batches import Batch
from vocabx_utils.training.goals import Goals
from vocabx_utils.training.losses import phase1_loss
from vocabx_utils.training.objectives import Objective
from vocabx_utils.training.old_sums import OldSums


def hidden_distance(
    student: Tensor,
    teacher: Tensor,
    kind: Literal["hidden", "cosine"],
    coefficient: float,
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Compare hidden states of paired positions (AweDist, now Token Distillation; the thesis suggests the cosine).

    Args:
        student: (K, D) with gradient.
        teacher: (K, D).
        kind: `hidden` for the squared error averaged over D, `cosine` for one minus the cosine.
        coefficient: factor of each position in the loss.
        weights: (K,) further factors, all 1 unless given.

    Returns:
        The loss (scalar, float32) and the (K,) distances without gradient.
    """
    mine, theirs = student.float(), teacher.float()
    if kind == "hidden":
        distance = (mine - theirs).square().mean(-1)  # (K,)
    else:
        distance = 1.0 - functional.cosine_similarity(mine, theirs, dim=-1)  # (K,)
    total = distance.sum() if weights is None else (distance * weights).sum()
    return coefficient * total, distance.detach()


def batch_losses(
    student: Student,
    batch: Batch,
    final: Tensor,
    layer: Tensor,
    teacher: Tensor | Goals | None,
    objective: Objective,
    scales: tuple[float, float],
    known: OldSums | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the losses of a micro-batch: of the input side, of the head side, and the summed KL without gradient.

    Args:
        student: gives head and head rows.
        batch: positions, targets and pairs.
        final: (B, T, D) last hidden states of the student.
        layer: (B, T, D) those of the objective's layer.
        teacher: (K, D) states to compare with, or what they come to, or None.
        objective: what the input side minimises.
        scales: factors of each compared position and of each target: 1 / what they weigh in the whole step.
        known: see `phase1_loss`.

    Eight arguments: one micro-batch, and everything that is known of it.
    """
    kl_scale, ce_scale = scales
    weights = batch.weights if objective.end_weight != 1 and teacher is not None else None
    by_kl = teacher is not None and objective.match == "kl"
    coefficient = torch.full(batch.targets.shape, ce_scale, device=final.device)  # (P,)
    if objective.new_target_weight != 1:
        is_new = batch.targets >= student.vocab_size
        coefficient = torch.where(is_new, ce_scale * objective.new_target_weight, coefficient)
    terms = phase1_loss(
        final.flatten(0, 1).index_select(0, batch.positions),  # (P, D); its gradient needs no sort, as an index's would
        student.head,
        student.head_rows,
        batch.targets,
        ce_coefficient=coefficient,
        ce_weight=objective.ce_weight,
        teacher=teacher if by_kl else None,
        kl_coefficient=kl_scale if by_kl else 0.0,
        kl_weights=weights if by_kl else None,
        known=known,
        temperature=objective.temperature,
        transform=student.transform,
    )
    input_loss = terms.input_loss
    if isinstance(teacher, Tensor) and objective.match in ("hidden", "cosine"):
        mine = layer.flatten(0, 1).index_select(0, batch.positions[: len(teacher)])  # (K, D)
        distance, _ = hidden_distance(mine, teacher, objective.match, kl_scale, weights)
        input_loss = input_loss + distance
    elif isinstance(teacher, Tensor) and objective.hidden_weight:
        mine = final.flatten(0, 1).index_select(0, batch.positions[: len(teacher)])  # (K, D)
        distance, _ = hidden_distance(mine, teacher, "hidden", kl_scale * objective.hidden_weight, weights)
        input_loss = input_loss + distance
    return input_loss, terms.head_loss, terms.kl.sum()
