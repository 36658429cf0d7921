"""Fit the new head rows when the input rows are done: a convex problem over states that no longer change.

The cross-entropy of a position depends on its final state, on the N new rows, and on two numbers of the old ones: the
log-sum-exp of their logits and the logit of the target. Where the input rows stay, all of that stays, so the states are
computed once, and hundreds of passes over them cost less than an epoch of training. The KL is over the V old ids and
does not see the new head rows, so nothing of what it has learned changes. (With capped logits it is not convex.)

Few examples of a token would let its row run away; a pull towards its first value stands against that:

    sum over positions of CE + strength / 2 * mean |h|^2 * sum over new rows of |w - w_0|^2

so `strength` counts as so many positions of the token, whatever the model's width and scale.

Shapes: V original ids, N new tokens, D width, P positions with a target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vocabx_utils.student import LogitTransform, Student
from vocabx_utils.training.batches import align_batch, micro_batches
from vocabx_utils.training.examples import AlignedSet
from vocabx_utils.training.goals import old_sums
from vocabx_utils.training.teacher import TeacherStates

_NEW_CHUNK = 65_536  # positions whose logits of new tokens are held at once


@dataclass(frozen=True)
class HeadStates:
    """What the cross-entropy of each position needs besides the new head rows."""

    states: Tensor  # (P, D) final states, in the model's dtype
    targets: Tensor  # (P,) next ids below V + N
    old_sum: Tensor  # (P,) see `goals.OldSums`
    old_logit: Tensor


@torch.no_grad()
def head_states(
    student: Student, examples: AlignedSet, teacher: TeacherStates, *, token_budget: int = 8192
) -> HeadStates:
    """Read some examples once; of the teacher only what it knows of their beginnings is taken."""
    parts: list[tuple[Tensor, ...]] = []
    for part in micro_batches([len(e.ids) for e in examples.examples], range(len(examples)), token_budget):
        batch = align_batch(examples, part, None).to(student.device)
        hidden, _ = teacher.beginnings.hidden(student, batch.ids, part, new_at=batch.new_at)
        states = hidden.flatten(0, 1)[batch.positions]
        old = old_sums(states, batch.targets, student.head, student.transform)
        parts.append((states, batch.targets, old.sums, old.logits))
    return HeadStates(*(torch.cat(column) for column in zip(*parts, strict=True)))


def head_loss(rows: Tensor, known: HeadStates, vocab_size: int, transform: LogitTransform) -> Tensor:
    """Return the summed cross-entropy of some positions over V + N, given (N, D) float32 new head rows; scalar."""
    products = known.states.float() @ rows.T  # (P, N)
    new = products * transform.scale
    if transform.softcap is not None:
        new = torch.tanh(new / transform.softcap) * transform.softcap
    own = new.gather(1, (known.targets - vocab_size).clamp(min=0)[:, None])[:, 0]
    chosen = torch.where(known.targets >= vocab_size, own, known.old_logit)
    return (torch.logaddexp(known.old_sum, torch.logsumexp(new, -1)) - chosen).sum()


def fit_head(student: Student, known: HeadStates, *, strength: float = 1.0, steps: int = 40) -> float:
    """Move a student's head rows to where the sum above is least, by at most so many L-BFGS steps from where they are.

    They are changed in place, and pulled back to where they are now, with a strength in positions. Returns the mean
    cross-entropy of the positions afterwards, in nats.
    """
    first = student.head_rows.detach().clone()
    rows = first.clone().requires_grad_()
    pull = 0.5 * strength * float(known.states.float().square().sum(-1).mean())
    parts = [
        HeadStates(*columns)
        for columns in zip(*(tensor.split(_NEW_CHUNK) for tensor in vars(known).values()), strict=True)
    ]
    count = len(known.targets)
    solver = torch.optim.LBFGS([rows], lr=1.0, max_iter=steps, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        total = pull * (rows - first).square().sum() / count
        total.backward()
        for part in parts:
            loss = head_loss(rows, part, student.vocab_size, student.transform) / count
            loss.backward()
            total = total.detach() + loss.detach()
        return total

    solver.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        student.head_rows.copy_(rows)
        return sum(float(head_loss(rows, part, student.vocab_size, student.transform)) for part in parts) / count
