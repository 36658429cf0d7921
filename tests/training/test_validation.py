"""Sums of each text against the whole split's means and against one text at a time."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import WIDTH, N, V, tiny_model
from training.phase1_parts import example_set

from vocabx_utils.student import Student
from vocabx_utils.training.shared_beginnings import SharedBeginnings
from vocabx_utils.training.teacher import ask_teacher
from vocabx_utils.training.validation import evaluate, evaluate_texts


def test_sums_of_texts_are_behind_the_means() -> None:
    base, examples = tiny_model(), example_set(10, 24)
    generator = torch.Generator().manual_seed(0)
    model = Student(base.model, V, *(0.2 * torch.randn(N, WIDTH, generator=generator) for _ in range(2)))
    teacher = ask_teacher(base, examples)
    means, _ = evaluate(model, examples, teacher)
    found = evaluate_texts(model, examples, teacher, token_budget=60)
    assert found.nats.sum() / math.log(2) / found.n_bytes.sum() == pytest.approx(means["bpb"], rel=1e-5)
    for place in ("identical", "last"):
        sums, counts = (getattr(found, f"{kind}_{place}") for kind in ("kl", "n"))
        assert counts.sum() == means[f"n_{place}"]
        assert sums.sum() / counts.sum() == pytest.approx(means[f"kl_{place}"], rel=1e-5)
    for at in (0, 7):
        alone = replace(examples, examples=examples.examples[at : at + 1])
        one, _ = evaluate(model, alone, ask_teacher(base, alone))
        assert found.n_last[at] == one["n_last"] and found.n_bytes[at] == alone.examples[0].n_bytes
        np.testing.assert_allclose(found.kl_last[at], one["kl_last"] * one["n_last"], rtol=1e-5)
        nats = one["bpb"] * math.log(2) * found.n_bytes[at]
        np.testing.assert_allclose(found.nats[at], nats, rtol=1e-5)


@pytest.mark.parametrize("limit", [0, None])
def test_means_equal_whole_float64_matrices(limit: int | None) -> None:
    """With what is kept of the beginnings and without: CE of all targets, KL at the last and at the first subtoken."""
    base, examples = tiny_model(), example_set(10, 24)
    generator = torch.Generator().manual_seed(0)
    model = Student(base.model, V, *(0.2 * torch.randn(N, WIDTH, generator=generator) for _ in range(2)))
    teacher = ask_teacher(base, examples)
    teacher = replace(teacher, beginnings=SharedBeginnings(base, examples, limit=limit))
    found, _ = evaluate(model, examples, teacher)
    nats, kl, head = [], {"last": [], "first": []}, model.full_head().double()
    with torch.no_grad():
        for example in examples.examples:
            mine, theirs = (
                model.hidden(torch.tensor(i)[None])[0][0].double() for i in (example.ids, example.original_ids)
            )
            log_q = torch.log_softmax(mine @ head.T, -1)
            nats += (-log_q[torch.arange(len(example.ids) - 1), torch.tensor(example.ids[1:])]).tolist()
            log_p, log_q = (torch.log_softmax(states @ head[:V].T, -1) for states in (theirs, mine))
            for anchor, values in kl.items():
                at_o, at_e = example.pairs[anchor][example.merged[anchor]].T
                values += (log_p[at_o].exp() * (log_p[at_o] - log_q[at_e])).sum(-1).tolist()
    assert found["ce"] == pytest.approx(np.mean(nats), rel=1e-5)
    for anchor, values in kl.items():
        assert len(values) == found[f"n_{anchor}"] > 0
        assert found[f"kl_{anchor}"] == pytest.approx(np.mean(values), rel=1e-4)
