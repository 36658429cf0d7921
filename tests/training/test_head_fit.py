"""Head rows fitted on kept states, against float64 code that keeps every logit."""

from __future__ import annotations

import pytest
import torch
from tiny import WIDTH, N, V, as_base, new_tokens, tiny_family, tiny_model
from torch import Tensor
from training.phase1_parts import example_set, settings

from vocabx_utils.student import Student
from vocabx_utils.training.examples import AlignedSet
from vocabx_utils.training.head_fit import fit_head, head_loss, head_states
from vocabx_utils.training.objectives import parse_variant
from vocabx_utils.training.phase1 import Phase1Data, Phase1Training, new_student
from vocabx_utils.training.teacher import ask_teacher
from vocabx_utils.training.validation import evaluate


def students(base: object) -> Student:
    generator = torch.Generator().manual_seed(0)
    return Student(base.model, V, *(0.2 * torch.randn(N, WIDTH, generator=generator) for _ in range(2)))  # type: ignore[attr-defined]


def plain(student: Student, examples: AlignedSet, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Summed cross-entropy over all targets in float64, one text at a time, and the mean squared norm of the states."""
    total, squares, count = torch.zeros((), dtype=torch.float64), 0.0, 0
    for example in examples.examples:
        with torch.no_grad():
            states = student.hidden(torch.from_numpy(example.ids)[None])[0][0, :-1].double()
        scores = states @ torch.cat([student.head.double(), rows]).T * student.transform.scale
        if (cap := student.transform.softcap) is not None:
            scores = cap * torch.tanh(scores / cap)
        total = total + torch.nn.functional.cross_entropy(scores, torch.from_numpy(example.ids[1:]), reduction="sum")
        squares, count = squares + float(states.square().sum()), count + len(states)
    return total, torch.tensor(squares / count)


@pytest.mark.parametrize("family", ["llama", "cohere", "gemma2"])
def test_the_loss_is_the_cross_entropy_over_all_ids(family: str) -> None:
    base, examples = as_base(tiny_family(family, 308)), example_set(0, 8)
    student, teacher = students(base), ask_teacher(base, examples)
    known = head_states(student, examples, teacher, token_budget=60)
    wanted, _ = plain(student, examples, student.head_rows.detach().double())
    found = head_loss(student.head_rows.detach(), known, V, student.transform)
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)
    means, _ = evaluate(student, examples, teacher)
    assert float(found) / len(known.targets) == pytest.approx(means["ce"], rel=1e-5)


@pytest.mark.parametrize("strength", [0.1, 3.0])
def test_no_direction_leads_further_down(strength: float) -> None:
    base, examples = tiny_model(), example_set(0, 12)
    student = students(base)
    before, first = student.input_rows.detach().clone(), student.head_rows.detach().clone()
    known = head_states(student, examples, ask_teacher(base, examples))
    start = float(head_loss(first, known, V, student.transform)) / len(known.targets)
    end = fit_head(student, known, strength=strength, steps=200)

    def slope(rows: Tensor) -> float:
        moved = rows.double().requires_grad_()
        total, square = plain(student, examples, moved)
        total = total + 0.5 * strength * square * (moved - first.double()).square().sum()
        (gradient,) = torch.autograd.grad(total, moved)
        return float(gradient.norm())

    assert end < 0.97 * start and torch.equal(student.input_rows, before)
    assert slope(student.head_rows.detach()) < 2e-3 * slope(first)


def test_a_strong_pull_keeps_the_first_values() -> None:
    base, examples = tiny_model(), example_set(0, 8)
    student = students(base)
    first = student.head_rows.detach().clone()
    fit_head(student, head_states(student, examples, ask_teacher(base, examples)), strength=1e7)
    torch.testing.assert_close(student.head_rows.detach(), first, atol=1e-3, rtol=0)


def test_a_training_ends_with_fitted_head_rows() -> None:
    base, examples = tiny_model(), example_set(0, 12)
    teacher, recipe = ask_teacher(base, examples, likelihood=True), parse_variant("mean_kl_last")
    data, ends = Phase1Data(examples, examples, teacher, teacher), []
    for strength in (0.0, 0.5):
        config = settings(head_fit=strength)
        student = new_student(recipe, base, new_tokens(), config)
        training = Phase1Training(recipe, student, data, config)
        records = [event.record for event in training.run() if event.record is not None]
        ends.append((student.input_rows.detach().clone(), student.head_rows.detach().clone(), records))
    (rows, head, plain_records), (same_rows, fitted, records) = ends
    assert torch.equal(rows, same_rows) and not torch.equal(head, fitted)
    assert records[-1]["ce"] < plain_records[-1]["ce"] and records[1]["ce"] == plain_records[1]["ce"]
    assert records[-1]["kl_last"] == plain_records[-1]["kl_last"]  # the KL does not see them
