"""Sums over the teacher's distributions against the sums written out in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from vocabx_utils.student import LogitTransform
from vocabx_utils.training import goals as goals_module
from vocabx_utils.training import losses as losses_module
from vocabx_utils.training.goals import LIKELIEST, old_sums, serve, sum_up
from vocabx_utils.training.losses import LossTerms, phase1_loss
from vocabx_utils.training.objectives import parse_objective

V, N, D = 300, 7, 24


def problem(seed: int, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Student's and teacher's states, both heads and targets: of old and of new ids, and one that is missing."""
    generator = torch.Generator().manual_seed(seed)
    states, theirs = (torch.randn(count, D, generator=generator) for _ in range(2))
    head, new = (torch.randn(n, D, generator=generator) for n in (V, N))
    targets = torch.randint(0, V + N, (count,), generator=generator)
    targets[-1] = -1
    return states.requires_grad_(), theirs, head, new.requires_grad_(), targets


def losses(found: tuple[Tensor, ...], compared: int, weight: float, *, by_goals: bool) -> LossTerms:
    states, theirs, head, new, targets = found
    teacher = theirs[:compared] if not by_goals else sum_up(theirs[:compared], head, chunk=3)
    every = torch.full((len(states),), 0.1)
    return phase1_loss(
        states, head, new, targets, ce_coefficient=every, ce_weight=weight, teacher=teacher, kl_coefficient=0.3, chunk=4
    )


def written_out(found: tuple[Tensor, ...], compared: int, weight: float) -> tuple[Tensor, Tensor, Tensor]:
    """KL of each position, and the gradients of both sides, in float64."""
    states, theirs, head, new, targets = (x.detach().double() if x.is_floating_point() else x for x in found)
    states.requires_grad_()
    new.requires_grad_()
    log_p, log_q = (torch.log_softmax(x[:compared] @ head.T, -1) for x in (theirs, states))
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)

    def ce(hidden: Tensor, rows: Tensor) -> Tensor:
        scores = hidden @ torch.cat([head, rows]).T
        return 0.1 * torch.nn.functional.cross_entropy(scores, targets, ignore_index=-1, reduction="sum")

    (0.3 * kl.sum() + weight * ce(states, new.detach())).backward()
    ce(states.detach(), new).backward()
    assert states.grad is not None and new.grad is not None
    return kl.detach(), states.grad, new.grad


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(2, 11), share=st.floats(0, 1), weight=st.sampled_from([0.0, 0.3]))
def test_losses_and_gradients_are_those_of_the_whole_distributions(
    seed: int, count: int, share: float, weight: float
) -> None:
    found, compared = problem(seed, count), round(share * count)
    kl, to_states, to_rows = written_out(found, compared, weight)
    terms = losses(found, compared, weight, by_goals=True)
    (terms.input_loss + terms.head_loss).backward()
    states, _, _, new, _ = found
    torch.testing.assert_close(terms.kl.double(), kl, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(states.grad, to_states.float(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(new.grad, to_rows.float(), rtol=1e-3, atol=1e-5)


def test_bfloat16_goals_move_a_near_student_as_the_distributions_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near the teacher both sums nearly cancel: what is left has to point where the exact gradient points.

    Products have float32 results, as on a GPU; the gradient by whole distributions is off by 0.2 % here.
    """

    def wide(states: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
        return states.float() @ rows.float().T

    for module in (goals_module, losses_module):
        monkeypatch.setattr(module, "logit_products", wide)
    generator = torch.Generator().manual_seed(1)
    theirs, head = torch.randn(64, 64, generator=generator), torch.randn(5000, 64, generator=generator)
    half = [x.bfloat16() for x in (theirs + 0.02 * torch.randn(64, 64, generator=generator), theirs, head)]
    exact = [x.double() for x in half]
    p, q = (torch.softmax(x @ exact[2].T, -1) for x in (exact[1], exact[0]))
    wanted, kl = (q - p) @ exact[2], (p * (p.log() - q.log())).sum(-1)

    def apart(**teacher: Any) -> tuple[float, float]:
        hidden, none = half[0].clone().requires_grad_(), torch.full((64,), -1)
        terms = phase1_loss(
            hidden, half[2], torch.zeros(0, 64), none, ce_coefficient=torch.zeros(64), kl_coefficient=1.0, **teacher
        )
        terms.input_loss.backward()
        assert hidden.grad is not None
        missed = (hidden.grad.double() - wanted).norm(dim=1) / wanted.norm(dim=1)
        return float(missed.median()), float((terms.kl.double() - kl).abs().mean())

    by_states, by_goals = apart(teacher=half[1]), apart(teacher=sum_up(half[1], half[2]))
    assert by_goals[0] < 2 * by_states[0] < 0.01
    assert by_goals[1] < 1e-3
    monkeypatch.setattr(goals_module, "LIKELIEST", 1)
    assert apart(teacher=sum_up(half[1], half[2]))[0] > 3 * by_states[0]  # what the likeliest are kept apart for


def test_keeps_the_likeliest_apart_and_the_entropy() -> None:
    _, theirs, head, _, _ = problem(3, 5)
    goals = sum_up(theirs, head)
    p = torch.softmax(theirs.double() @ head.double().T, -1)
    order = p.argsort(-1, descending=True)
    assert torch.equal(goals.ids, order[:, :LIKELIEST])
    torch.testing.assert_close(goals.negative_entropy.double(), (p * p.log()).sum(-1), rtol=1e-5, atol=1e-5)
    rest = p.scatter(1, order[:, :LIKELIEST], 0.0) @ head.double()
    torch.testing.assert_close(goals.rest.double(), rest, rtol=1e-4, atol=1e-5)
    assert len(goals[1:3]) == 2 and torch.equal(goals.take(torch.tensor([4]), head.device).ids, goals.ids[4:])


def test_no_position_has_no_goals() -> None:
    assert len(sum_up(torch.zeros(0, D), torch.zeros(V, D))) == 0


@pytest.mark.parametrize(
    ("objective", "transform", "enough"),
    [
        ("kl_last", LogitTransform(), True),
        ("kl_first", LogitTransform(), True),
        ("kl_last_ce0.3", LogitTransform(), True),
        ("kl_last_t2", LogitTransform(), False),
        ("hidden_last", LogitTransform(), False),
        ("ce", LogitTransform(), False),
        ("kl_last", LogitTransform(softcap=30.0), False),
        ("kl_last", LogitTransform(scale=0.5), False),
    ],
)
def test_goals_serve_plain_logits_at_temperature_one(objective: str, transform: LogitTransform, enough: bool) -> None:
    assert serve(parse_objective(objective), transform) is enough


def test_a_common_shift_of_many_logits_leaves_the_divergence_where_it_is() -> None:
    """A sum of p that is off by 1e-5 would move the KL by that share of the shift."""
    generator = torch.Generator().manual_seed(0)
    states, theirs = (torch.randn(40, D, generator=generator) for _ in range(2))
    head = 0.6 * torch.randn(49_152, D, generator=generator)
    states[:, 0], theirs[:, 0], head[:, 0] = 1.0, 1.0, 200.0
    none, new, goals = torch.full((40,), -1), torch.zeros(0, D), sum_up(theirs, head)
    found = phase1_loss(states, head, new, none, ce_coefficient=torch.ones(40), teacher=goals)
    log_p, log_q = (torch.log_softmax(x.double() @ head.double().T, -1) for x in (theirs, states))
    expected = (log_p.exp() * (log_p - log_q)).sum(-1)
    assert (found.kl - expected).mean().abs() < 1e-4 < expected.mean()


# --- what is kept of the original logits


def naive(states: Tensor, targets: Tensor, head: Tensor, t: LogitTransform) -> tuple[Tensor, Tensor]:
    z = t.scale * states.double() @ head.double().T
    z = z if t.softcap is None else t.softcap * torch.tanh(z / t.softcap)
    logits = [float(row[target]) if 0 <= target < V else 0.0 for row, target in zip(z, targets.tolist(), strict=True)]
    return z.exp().sum(-1).log(), torch.tensor(logits, dtype=torch.float64)


@pytest.mark.parametrize("transform", [LogitTransform(), LogitTransform(0.5, 3.0)], ids=str)
def test_sums_and_logits_equal_float64(transform: LogitTransform, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    states, head = (torch.randn(rows, D, generator=generator) for rows in (37, V))
    targets = torch.randint(-1, V + 5, (37,), generator=generator)
    monkeypatch.setattr(goals_module, "default_chunk", lambda *_: 8)
    found = old_sums(states, targets, head, transform)
    assert len(found) == 37 and len(found[3:9]) == 6
    for one, other in zip((found.sums, found.logits), naive(states, targets, head, transform), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_of_no_position_there_is_nothing() -> None:
    assert len(old_sums(torch.zeros(0, D), torch.zeros(0, dtype=torch.long), torch.zeros(V, D), LogitTransform())) == 0
