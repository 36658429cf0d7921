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
from vocabx_utils.training.cross_entropy import IGNORE
from vocabx_utils.training.examples import AlignedSet
from vocabx_utils.training.shared_beginnings import SharedBeginnings
from vocabx_utils.training.teacher import ask_teacher

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


def test_only_what_follows_the_beginnings_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    base, examples = tiny_model(), SETS["whole texts"]
    beginnings, model, read = SharedBeginnings(base, examples), student(base), []
    indices = list(range(len(examples)))
    ids = align_batch(examples, indices, None).ids
    whole = Student.embed
    beginnings.hidden(model, ids, indices)  # reads the beginnings
    monkeypatch.setattr(Student, "embed", lambda self, part, *at: (read.append(part), whole(self, part, *at))[1])
    beginnings.hidden(model, ids, indices)
    expected = [torch.as_tensor(e.ids[n:]) for e, n in zip(examples.examples, beginnings.lengths, strict=True)]
    assert len(read) == 1 and torch.equal(read[0][0], torch.cat(expected))
    assert beginnings.skipped(indices, ids.shape[1]) == ids.numel() - read[0].numel()


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


@pytest.mark.parametrize("kind", SETS)
def test_sums_are_those_of_the_kept_positions(kind: str) -> None:
    base, examples = tiny_model(), SETS[kind]
    beginnings, model, indices = SharedBeginnings(base, examples), student(base), [7, 2, 5]
    batch = align_batch(examples, indices, "last", ask_teacher(base, examples).rows)
    assert beginnings.sums(model, batch, indices) is None  # nothing is read yet
    with torch.no_grad():
        beginnings.hidden(model, batch.ids, indices)
        whole = model.hidden(batch.ids)[0].flatten(0, 1)
    found = beginnings.sums(model, batch, indices)
    assert found is not None and len(found) == sum(beginnings.lengths[index] for index in indices) > 0
    at, targets = batch.positions[-len(found) :], batch.targets[-len(found) :]
    logits = (whole[at] @ model.head.T).double()
    torch.testing.assert_close(found.sums.double(), logits.exp().sum(-1).log(), rtol=1e-5, atol=1e-5)
    own = logits.gather(1, targets.clamp(max=V - 1)[:, None])[:, 0]
    torch.testing.assert_close(found.logits.double(), torch.where(targets < V, own, 0), rtol=1e-5, atol=1e-5)
    assert IGNORE not in targets
    tuned = student(dataclasses.replace(base, model=copy.deepcopy(base.model)))
    assert beginnings.sums(tuned, batch, indices) is None
