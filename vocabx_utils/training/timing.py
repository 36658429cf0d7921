"""What the one-forward, two-optimiser scheme saves (claim C13)."""

from __future__ import annotations

import torch
from torch import Tensor

from vocabx_utils.student import Student
from vocabx_utils.training.batches import align_batch
from vocabx_utils.training.cross_entropy import IGNORE
from vocabx_utils.training.fusing import seconds_of
from vocabx_utils.training.goals import Goals, is_plain
from vocabx_utils.training.losses import phase1_loss
from vocabx_utils.training.objectives import Objective
from vocabx_utils.training.phase1 import Phase1Data
from vocabx_utils.training.step_losses import batch_losses


def time_schemes(
    model: Student, data: Phase1Data, indices: list[int], repeats: int = 6
) -> tuple[list[float], list[float]]:
    """Return the seconds of steps with one student forward for both sides, and of steps with one for each side.

    In the second scheme the head's own pass goes forward only: its loss stops at the detached hidden state. Steps are
    taken in turns, after one of each that does not count. Each of the `repeats` readings is the faster of two steps:
    whatever else the machine does can only make a step slower.
    """
    batch = align_batch(data.train, indices, "last", data.train_teacher.rows).to(model.device)
    beginnings = data.train_teacher.beginnings
    known = data.train_teacher.goals if is_plain(model.transform) else data.train_teacher  # as training takes it
    teacher = known.take(batch.teacher_rows, model.device)
    scale = 1.0 / len(batch.targets)

    def states() -> Tensor:
        return beginnings.hidden(model, batch.ids, indices, new_at=batch.new_at)[0]  # (B, T, D)

    def losses(final: Tensor, teacher: Tensor | Goals | None) -> tuple[Tensor, Tensor, Tensor]:
        known = beginnings.sums(model, batch, indices)
        return batch_losses(model, batch, final, final, teacher, Objective(), (scale, scale), known)

    def one() -> None:
        input_loss, head_loss, _ = losses(states(), teacher)
        (input_loss + head_loss).backward()

    def two() -> None:
        few = len(teacher)
        terms = phase1_loss(
            states().flatten(0, 1)[batch.positions[:few]], model.head, model.head_rows.detach(),
            torch.full_like(batch.targets[:few], IGNORE), ce_coefficient=torch.zeros(few, device=model.device),
            teacher=teacher, kl_coefficient=scale, transform=model.transform,
        )  # fmt: skip
        terms.input_loss.backward()
        with torch.no_grad():
            final = states()
        losses(final, None)[1].backward()

    for run in (one, two):  # the first step of each allocates
        run()
    turns = [[seconds_of(step, model.device) for step in (one, two)] for _ in range(2 * repeats)]
    model.zero_grad()
    faster = [list(map(min, *pair)) for pair in zip(turns[::2], turns[1::2], strict=True)]
    return [reading[0] for reading in faster], [reading[1] for reading in faster]
