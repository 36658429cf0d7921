"""Tokens before the first divergence, run once: the same states and gradients as running everything."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import pytest
import torch
from tiny import N, V, tiny_model
from training.phase1_parts import example_set

from vocabx_utils.student import Student
from vocabx_utils.training.batches import align_batch
from vocabx_utils.training.examples import AlignedSet
from vocabx_utils.training.shared_beginnings import SharedBeginnings

SETS = {"whole texts": example_set(), "windows": example_set(window=16)}


def student(base: Any) -> Student:
    generator = torch.Generator().manual_seed(1)
    return Student(base.model, V, *(torch.randn(N, base.width, generator=generator) for _ in range(2)))


def real(examples: AlignedSet, indices: list[int]) -> torch.Tensor:
    lengths = torch.tensor([len(examples.examples[i].ids) for i in indices])
    return torch.arange(int(lengths.max()))[None] < lengths[:, None]


@pytest.mark.parametrize("kind", SETS)
def test_states_and_gradients_equal_a_whole_pass(kind: str) -> None:
    base, examples = tiny_model(), SETS[kind]
    beginnings = SharedBeginnings(base, examples, token_budget=100)
    indices = [int(i) for i in torch.randperm(len(examples), generator=torch.Generator().manual_seed(2))[:9]]
    ids, keep = align_batch(examples, indices, None).ids, real(examples, indices)
    found = []
    for run in (lambda m: m.hidden(ids)[0], lambda m: beginnings.hidden(m, ids, indices)[0]):
        model = student(base)
        states = run(model)
        (states[keep].square().sum() / 100).backward()
        found.append((states[keep].detach(), model.input_rows.grad))
    assert beginnings.kept
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_student_with_blocks_of_its_own_does_not_take_the_base_models_beginnings() -> None:
    base, examples = tiny_model(), SETS["whole texts"]
    beginnings, indices = SharedBeginnings(base, examples), [5, 0, 3]
    ids = align_batch(examples, indices, None).ids
    tuned = student(dataclasses.replace(base, model=copy.deepcopy(base.model)))
    with torch.no_grad():
        for parameter in tuned.model.base_model.layers[0].parameters():
            parameter.mul_(1.2)
        expected = tuned.hidden(ids)[0]
        beginnings.hidden(student(base), ids, indices)  # now they are kept
        assert beginnings.kept
        assert torch.equal(beginnings.hidden(tuned, ids, indices)[0], expected)


def test_a_group_starts_where_all_its_rows_still_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    base, examples = tiny_model(), SETS["whole texts"]
    beginnings, model, read = SharedBeginnings(base, examples), student(base), []
    indices = list(range(len(examples)))
    ids = align_batch(examples, indices, None).ids
    whole = Student.hidden
    beginnings.hidden(model, ids, indices)  # reads the beginnings
    monkeypatch.setattr(Student, "hidden", lambda self, part, **more: (read.append(part), whole(self, part, **more))[1])
    beginnings.hidden(model, ids, indices)
    assert 1 <= len(read) <= 3 and sum(len(part) for part in read) == len(indices)
    assert sum(part.numel() for part in read) < ids.numel() - sum(beginnings.lengths) / 3
    assert not any(((part < V).all(1)).any() for part in read)  # what is run holds each row's new tokens


def test_another_layer_is_right_where_it_is_compared() -> None:
    base, examples = tiny_model(), SETS["whole texts"]
    beginnings, model, indices = SharedBeginnings(base, examples), student(base), [5, 0, 3]
    ids = align_batch(examples, indices, None).ids
    with torch.no_grad():
        expected = model.hidden(ids, layer=1)[1]
        found = beginnings.hidden(model, ids, indices, layer=1)[1]
    for row, index in enumerate(indices):
        here = slice(beginnings.lengths[index], len(examples.examples[index].ids))
        torch.testing.assert_close(found[row, here], expected[row, here], rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    base, examples = tiny_model(), SETS["whole texts"]
    beginnings, model = SharedBeginnings(base, examples, limit=1000), student(base)
    batch = align_batch(examples, [1, 0], None)
    with torch.no_grad():
        expected = model.hidden(batch.ids)[0]
        assert torch.equal(beginnings.hidden(model, batch.ids, [1, 0])[0], expected)
        # a search on the device would make a GPU wait: the positions of the new tokens come with the batch
        monkeypatch.delattr(torch, "nonzero")
        assert torch.equal(beginnings.hidden(model, batch.ids, [1, 0], new_at=batch.new_at)[0], expected)
    assert beginnings.kept == {}
