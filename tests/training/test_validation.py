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
