"""Losses of a micro-batch against float64 code that keeps every logit and looks for the ends of spans by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import WIDTH, N, V, new_tokens, tiny_model
from torch import Tensor
from training.phase1_parts import AsksNothing, example_set, phase1_data, settings

from vocabx_utils.student import Student
from vocabx_utils.training.batches import align_batch
from vocabx_utils.training.blocks import causal_only
from vocabx_utils.training.checks import StepFacts
from vocabx_utils.training.objectives import Objective, parse_objective, parse_variant
from vocabx_utils.training.phase1 import Phase1Data, Phase1Training, new_student
from vocabx_utils.training.step_losses import hidden_distance
from vocabx_utils.training.teacher import ask_teacher

D = 16


@pytest.mark.parametrize("kind", ["hidden", "cosine"])
def test_hidden_distances(kind: str) -> None:
    generator = torch.Generator().manual_seed(2)
    a, b = torch.randn(5, D, generator=generator), torch.randn(5, D, generator=generator)
    each = [float(hidden_distance(a[[k]], b[[k]], kind)) for k in range(5)]  # type: ignore[arg-type]
    x, y = a.double().numpy(), b.double().numpy()
    for row in range(5):
        want = ((x[row] - y[row]) ** 2).mean()
        if kind == "cosine":
            want = 1 - (x[row] @ y[row]) / ((x[row] @ x[row]) ** 0.5 * (y[row] @ y[row]) ** 0.5)
        assert each[row] == pytest.approx(want, rel=1e-5)
    assert float(hidden_distance(a, b, kind)) == pytest.approx(sum(each), rel=1e-6)  # type: ignore[arg-type]


def placed(example: Any, objective: Objective) -> list[tuple[int, int, float]]:
    """Pairs (teacher's position, student's position, weight) that count, by looking at every earlier token."""
    found = []
    pairs, merged = example.pairs["last"].tolist(), example.merged["last"].tolist()
    ends = [j for (_, j), end in zip(pairs, merged, strict=True) if end]
    for i, j in pairs:
        near = any(0 <= j - end <= objective.after for end in ends)
        if near or not objective.end_only:
            found.append((i, j, objective.end_weight if near else 1.0))
    return found


def written_out(base: Any, student: Student, examples: Any, objective: Objective) -> tuple[Tensor, Tensor]:
    """The input side's loss over all examples and its gradient for the input rows, in float64, one at a time."""
    model, head = base.model.double(), base.head_rows[:V].double()
    rows = student.input_rows.detach().double().requires_grad_()
    table = model.get_input_embeddings().weight[:V]
    total, weight, ce, targets = torch.zeros((), dtype=torch.float64), 0.0, torch.zeros((), dtype=torch.float64), 0
    for example in examples.examples:
        ids = torch.from_numpy(example.ids)
        mine = model.model(inputs_embeds=torch.cat([table, rows])[ids][None]).last_hidden_state[0]
        theirs = model.model(input_ids=torch.from_numpy(example.original_ids)[None]).last_hidden_state[0]
        for i, j, w in placed(example, objective):
            if objective.match == "kl":
                log_p, log_q = (torch.log_softmax(x @ head.T / objective.temperature, -1) for x in (theirs[i], mine[j]))
                apart = objective.temperature**2 * (log_p.exp() * (log_p - log_q)).sum()
                apart = apart + objective.hidden_weight * (theirs[i] - mine[j]).square().mean()
            elif objective.match == "hidden":
                apart = (theirs[i] - mine[j]).square().mean()
            else:
                apart = 1 - torch.nn.functional.cosine_similarity(theirs[i], mine[j], dim=0)
            total, weight = total + w * apart, weight + w
        weight += 0 if objective.end_only else example.prefix_pairs
        scores = mine[:-1] @ torch.cat([head, student.head_rows.detach().double()]).T
        ce = ce + torch.nn.functional.cross_entropy(scores, ids[1:], reduction="sum")
        targets += len(ids) - 1
    loss = total / weight + objective.ce_weight * ce / targets
    (gradient,) = torch.autograd.grad(loss, rows)
    base.model.float()
    return loss.detach(), gradient


NAMES = (
    "kl_last",
    "kl_last_end4",
    "kl_last_end4x2",
    "kl_last_ce0.3_end8x1",
    "kl_last_ce0.3_end0.5x3_t2",
    "kl_last_endonly",
    "kl_last_ce0.1_endonlyx2_t1.5",
    "kl_last_hidden2",
    "kl_last_ce0.3_hidden0.5_end4x2",
    "hidden_last_end4x2",
    "hidden_last_endonlyx1",
    "cosine_last_ce0.2_end3",
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("window", [0, 12])
def test_a_step_is_that_of_float64(name: str, window: int) -> None:
    base, examples = tiny_model(), example_set(window=window)
    teacher = ask_teacher(base, examples)
    generator = torch.Generator().manual_seed(1)
    rows = [0.2 * torch.randn(N, WIDTH, generator=generator) for _ in range(2)]
    student = Student(base.model, V, *rows)
    recipe = parse_variant(f"mean_{name}")
    data = Phase1Data(examples, examples, teacher, teacher)
    training = Phase1Training(recipe, student, data, settings(token_budget=150))
    training.cycles = [10**9]
    everything = list(range(len(examples)))
    losses = training.step(everything)
    assert recipe.objective is not None and student.input_rows.grad is not None
    gradient = student.input_rows.grad.clone()
    student = Student(base.model, V, *rows)
    loss, wanted = written_out(base, student, examples, recipe.objective)
    assert float(losses[0]) == pytest.approx(float(loss), rel=1e-4)
    assert float((gradient - wanted).norm()) < 2e-4 * float(wanted.norm())


def test_weights_of_1_are_no_weights() -> None:
    """Unweighted objectives take the path without weights, so that nothing costs or rounds otherwise."""
    examples = example_set()
    rows = ask_teacher(tiny_model(), examples).rows
    for name in ("kl_last", "kl_last_end1", "kl_last_endonlyx2", "ce"):
        objective = parse_objective(name)
        assert len(align_batch(examples, [0, 1], objective.anchor, rows, objective).weights) == 0
    objective = parse_objective("kl_last_end4x1")
    batch = align_batch(examples, [2, 0], "last", rows, objective)
    assert len(batch.weights) == len(batch.teacher_rows)
    wanted = [w for k in (2, 0) for _, _, w in placed(examples.examples[k], objective)]
    assert batch.weights.tolist() == wanted
    plain = StepFacts.of(examples, parse_objective("kl_last"))
    facts = StepFacts.of(examples, objective)
    more = np.array([sum(w - 1 for _, _, w in placed(e, objective)) for e in examples.examples])
    assert np.allclose(facts.aligned, plain.aligned + more) and np.array_equal(facts.compared, plain.compared)


def test_rates_of_both_sides() -> None:
    base, examples = tiny_model(), example_set()
    teacher = ask_teacher(base, examples)
    data = Phase1Data(examples, examples, teacher, teacher)
    moved = {}
    for rate in (0.0, 2e-2, 1e-3):
        student = Student(base.model, V, torch.zeros(N, WIDTH), torch.zeros(N, WIDTH))
        training = Phase1Training(parse_variant("mean_kl_last"), student, data, settings(head_learning_rate=rate))
        training.step([0, 1, 2])
        moved[rate] = student.input_rows.detach().clone(), student.head_rows.detach().clone()
    assert all(torch.equal(a, b) for a, b in zip(moved[0.0], moved[2e-2], strict=True))
    assert torch.equal(moved[0.0][0], moved[1e-3][0])
    torch.testing.assert_close(moved[1e-3][1], moved[0.0][1] / 20)


def test_lambda_falls_to_zero_and_the_rate_stays_where_asked() -> None:
    """Each step of a decaying lambda is that of an objective with what is left of it."""
    base, examples = tiny_model(), example_set()
    teacher = ask_teacher(base, examples)
    data = Phase1Data(examples, examples, teacher, teacher)

    def begun(name: str, done: int, **changes: Any) -> tuple[Tensor, Phase1Training]:
        student = Student(base.model, V, torch.zeros(N, WIDTH), torch.zeros(N, WIDTH))
        training = Phase1Training(parse_variant(f"mean_{name}"), student, data, settings(**changes))
        training.done = done
        training.step([0, 1, 2])
        assert student.input_rows.grad is not None
        return student.input_rows.grad.clone(), training

    half = begun("kl_last_ce0.4", 0)[1].total // 2
    for done, share in ((0, 1.0), (half, 0.5)):
        decayed, _ = begun("kl_last_ce0.4", done, ce_decay=True)
        plain, _ = begun(f"kl_last_ce{0.4 * share}", done)
        torch.testing.assert_close(decayed, plain, rtol=1e-5, atol=1e-8)
    alone = begun("ce", half)[0]
    assert torch.equal(alone, begun("ce", half, ce_decay=True)[0])  # a CE that stands alone does not fade
    rates = {
        after: [group["lr"] for o in begun("kl_last", half, rate_after=after)[1].optimisers for group in o.param_groups]
        for after in ("linear", "constant")
    }
    assert rates["constant"] == [2e-2, 2e-2] and max(rates["linear"]) < 1.3e-2


@pytest.mark.parametrize("name", ["mean_kl_last", "mean_kl_last_ce0.3_t2_w3", "mean_ce", "mean_hidden_last"])
def test_a_step_asks_the_device_for_nothing(name: str, tmp_path: Path) -> None:
    base = tiny_model()
    data, recipe, config = phase1_data(base, tmp_path), parse_variant(name), settings()
    student = new_student(recipe, base, new_tokens(), config)
    data.train_teacher.beginnings.limit = 0  # as on a GPU
    training = Phase1Training(recipe, student, data, config)
    training.step([3, 0, 7])  # the teacher's sums are made at the first use
    assert recipe.objective is not None
    with causal_only(), AsksNothing():
        losses = training._backward([2, 5], recipe.objective, 0.1, 0.1)
        with pytest.raises(AssertionError, match="wait for a GPU"):
            student.embed(torch.tensor([[1, V]]))  # without the places of the new tokens they are looked for
    assert torch.isfinite(losses).all()
