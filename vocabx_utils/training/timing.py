"""What the one-forward, two-optimiser scheme saves (claim C13)."""

from __future__ import annotations

import torch
from torch import Tensor

from vocabx_utils.student import Student
from vocabx_utils.training.batches import align_batch
from vocabx_utils.training.cross_entropy import IGNORE
from vocabx_utils.training.fusing import seconds_of
from vocabx_utils.training.goals import is_plain
from vocabx_utils.training.losses import LossTerms, phase1_loss
from vocabx_utils.training.phase1 import Phase1Data


def time_schemes(
    model: Student, data: Phase1Data, indices: list[int], repeats: int = 6
) -> tuple[list[float], list[float]]:
    """Return the seconds of steps with one student forward for both sides, and of steps with one for each side.

    In the second scheme the head's own pass goes forward only: its loss stops at the detached hidden state. Steps are
    taken in turns, `repeats` of each after one that does not count.
    """
    batch = align_batch(data.train, indices, "last", data.train_teacher.rows).to(model.device)
    beginnings = data.train_teacher.beginnings
    known = data.train_teacher.goals if is_plain(model.transform) else data.train_teacher  # as training takes it
    teacher = known.take(batch.teacher_rows, model.device)
    scale = 1.0 / len(batch.targets)

    def states() -> Tensor:
        hidden, _ = beginnings.hidden(model, batch.ids, indices, new_at=batch.new_at)
        return hidden.reshape(-1, hidden.shape[-1])[batch.positions]

    def losses(hidden: Tensor, *, kl: bool, rows: Tensor) -> LossTerms:
        return phase1_loss(
            hidden, model.head, rows, batch.targets, ce_coefficient=torch.full_like(hidden[:, 0].float(), scale),
            teacher=teacher if kl else None, kl_coefficient=scale if kl else 0.0, transform=model.transform,
            known=beginnings.sums(model, batch, indices),
        )  # fmt: skip

    def one() -> None:
        terms = losses(states(), kl=True, rows=model.head_rows)
        (terms.input_loss + terms.head_loss).backward()

    def two() -> None:
        few = len(teacher)
        terms = phase1_loss(
            states()[:few], model.head, model.head_rows.detach(), torch.full_like(batch.targets[:few], IGNORE),
            ce_coefficient=torch.zeros(few, device=model.device), teacher=teacher, kl_coefficient=scale,
            transform=model.transform,
        )  # fmt: skip
        terms.input_loss.backward()
        with torch.no_grad():
            hidden = states()
        losses(hidden, kl=False, rows=model.head_rows).head_loss.backward()

    for run in (one, two):  # the first step of each allocates
        run()
    pairs = [(seconds_of(one, model.device), seconds_of(two, model.device)) for _ in range(repeats)]
    model.zero_grad()
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
