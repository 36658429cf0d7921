"""Texts in one row against each text alone: states, gradients, and which models are left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import FAMILIES, ROWS, N, V, as_base, tiny_family
from torch import Tensor
from training.phase1_parts import example_set

from vocabx_utils.student import Student
from vocabx_utils.training.batches import align_batch
from vocabx_utils.training.packed import Layout, packable
from vocabx_utils.training.sharding import recompute_blocks
from vocabx_utils.training.shared_beginnings import SharedBeginnings


def student(base: Any) -> Student:
    generator = torch.Generator().manual_seed(1)
    return Student(base.model, V, *(0.5 * torch.randn(N, base.width, generator=generator) for _ in range(2)))


def test_a_layout_takes_what_it_put_in_place() -> None:
    kept = [torch.arange(2.0 * p * 3).view(1, 2, p, 3, 1) for p in (2, 0, 1)]
    layout = Layout.of([5, 2, 3], 6, kept, torch.device("cpu"))
    assert layout.run.tolist() == [2, 3, 4, 6, 7, 13, 14] and layout.known.tolist() == [0, 1, 12]
    tokens = torch.arange(1.0, 8.0)
    whole = layout.unpack(tokens, torch.tensor([-1.0, -2.0, -3.0]))
    assert whole.tolist() == [[-1, -2, 1, 2, 3, 0], [4, 5, 0, 0, 0, 0], [-3, 6, 7, 0, 0, 0]]
    assert torch.equal(layout.pack(whole), tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_gradients_of_every_family_equal_those_of_each_text_alone(family: str) -> None:
    base, examples = as_base(tiny_family(family, ROWS)), example_set(12, 24)
    beginnings, indices = SharedBeginnings(base, examples), [3, 0, 11, 5]
    ids = align_batch(examples, indices, None).ids

    def alone(model: Student) -> list[Tensor]:
        return [model.hidden(torch.as_tensor(examples.examples[index].ids)[None])[0][0] for index in indices]

    def together(model: Student) -> list[Tensor]:
        whole = beginnings.hidden(model, ids, indices)[0]
        return [states[: len(examples.examples[index].ids)] for states, index in zip(whole, indices, strict=True)]

    found = []
    for run in (alone, together):
        model = student(base)
        states = torch.cat(run(model))
        (states * torch.linspace(0, 999, states.numel()).view_as(states).sin()).sum().backward()
        found.append((states.detach(), model.input_rows.grad))
    assert base.model.config._attn_implementation != "vocabx_packed"  # as it was
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one, rtol=1e-3, atol=1e-4 * float(one.abs().max()))


@pytest.mark.parametrize("family", ["llama", "qwen2", "mistral"])
def test_the_usual_families_are_packed(family: str) -> None:
    base, examples = as_base(tiny_family(family, ROWS)), example_set(4, 24)
    beginnings = SharedBeginnings(base, examples)
    beginnings.hidden(student(base), align_batch(examples, [0, 1], None).ids, [0, 1])
    assert beginnings.kept


def test_what_attention_cannot_tell_apart_is_left_out() -> None:
    model = as_base(tiny_family("mistral", ROWS)).model
    assert packable(model, 24)
    model.config.sliding_window = 16
    assert packable(model, 16) and not packable(model, 17)  # a longer text would look too far back
    model.config.sliding_window = None
    model.config._attn_implementation = "eager"
    assert not packable(model, 24)
    model.config._attn_implementation = "sdpa"
    recompute_blocks(model)
    assert not packable(model, 24)


def test_a_model_whose_packed_states_differ_is_read_plainly(monkeypatch: pytest.MonkeyPatch) -> None:
    base, examples = as_base(tiny_family("llama", ROWS)), example_set(4, 24)
    beginnings, model = SharedBeginnings(base, examples), student(base)
    ids = align_batch(examples, [0, 1], None).ids
    places = Layout.pack
    monkeypatch.setattr(Layout, "pack", lambda self, whole: places(self, whole.flip(0)))  # texts in a wrong order
    with torch.no_grad():
        assert torch.equal(beginnings.hidden(model, ids, [0, 1])[0], model.hidden(ids)[0])
    assert beginnings.kept == {}
