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
from vocabx_utils.training.goals import Goals, OldSums
from vocabx_utils.training.losses import phase1_loss
from vocabx_utils.training.objectives import Objective


def hidden_distance(
    student: Tensor, teacher: Tensor, kind: Literal["kl", "hidden", "cosine"] | None, weights: Tensor | None = None
) -> Tensor:
    """Sum the distances of paired hidden states (AweDist, now Token Distillation; the thesis suggests the cosine).

    Args:
        student, teacher: (K, D).
        kind: `cosine` for one minus the cosine, else the squared error averaged over D.
        weights: (K,) factors, all 1 unless given.
    """
    mine, theirs = student.float(), teacher.float()
    if kind == "cosine":
        distance = 1.0 - functional.cosine_similarity(mine, theirs, dim=-1)  # (K,)
    else:
        distance = (mine - theirs).square().mean(-1)  # (K,)
    return distance.sum() if weights is None else (distance * weights).sum()


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
        final: (B, T, D) last hidden states of the student.
        layer: (B, T, D) those of the objective's layer, the last one beside a KL.
        teacher: (K, D) states to compare with, or what they come to, or None.
        scales: factors of each compared position and of each target: 1 / what they weigh in the whole step.
        known: see `phase1_loss`.
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
    input_loss, by_states = terms.input_loss, objective.match in ("hidden", "cosine")
    if isinstance(teacher, Tensor) and (by_states or objective.hidden_weight):
        mine = layer.flatten(0, 1).index_select(0, batch.positions[: len(teacher)])  # (K, D)
        factor = kl_scale if by_states else kl_scale * objective.hidden_weight
        input_loss = input_loss + factor * hidden_distance(mine, teacher, objective.match, weights)
    return input_loss, terms.head_loss, terms.kl.sum()
