"""Answers of notebook 03's exercises, computed on a tiny model."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vocabx_utils.models import BaseModel
from vocabx_utils.student import Student
from vocabx_utils.vocabulary.alignment import align_text
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.initialization import head_rows, input_rows


def test_a_copied_head_row_shares_the_probability_of_its_first_subtoken() -> None:
    old = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()  # logits of a model that says `num` with 0.6
    shared = torch.softmax(torch.cat([old, old[:1]]), 0)
    assert shared[0].item() == shared[3].item() == pytest.approx(0.375)
    assert (shared[:3] * 1.6).tolist() == pytest.approx([0.6, 0.3, 0.1])
    assert math.log2(0.6 / shared[0].item()) == pytest.approx(0.68, abs=0.005)


def gradients_at_the_end(base: BaseModel) -> dict[str, Tensor]:
    """Gradient of the input row of a token that ends a text, under three objectives."""
    extension = add_tokens(base.tokenizer, [" zebra"])
    text = "import numpy as np zebra"
    ids, generator = torch.tensor(extension.extended(text)["input_ids"]), torch.Generator().manual_seed(0)
    assert ids[-1] >= extension.V and (ids[:-1] < extension.V).all()
    rows = input_rows("mean", base, extension.tokens, generator)
    student = Student(base.model, extension.V, rows, head_rows("first", base, extension.tokens, generator))
    pairs = torch.from_numpy(align_text(extension, text).pairs("last")[0].copy())
    teacher = Student(base.model, extension.V).hidden(torch.tensor([extension.original(text)["input_ids"]]))[0][0]
    hidden = student.hidden(ids[None])[0][0]
    log_p, log_q = student.log_probabilities(teacher[pairs[:, 0]]), student.log_probabilities(hidden[pairs[:, 1]])
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    losses = {
        "none": kl[:-1].mean(),
        "last": kl.mean(),
        "ce": cross_entropy(hidden[:-1] @ student.full_head().T, ids[1:]),
    }
    found = {
        name: torch.autograd.grad(loss, student.input_rows, retain_graph=True, allow_unused=True)[0]
        for name, loss in losses.items()
    }
    return {name: torch.zeros(1) if gradient is None else gradient for name, gradient in found.items()}


def test_a_token_at_the_end_learns_from_its_own_pair_alone(tiny_base: BaseModel) -> None:
    found = gradients_at_the_end(tiny_base)
    assert float(found["none"].abs().max()) == 0.0
    assert float(found["ce"].abs().max()) == 0.0
    assert float(found["last"].abs().max()) > 0.0
