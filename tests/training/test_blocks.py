"""Blocks that are replayed give what the blocks give, for any shape; only the bookkeeping is tested without a GPU."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from vocabx_utils.models import BaseModel
from vocabx_utils.student import Student
from vocabx_utils.training.blocks import Blocks, Run, quick_blocks, round_up


class Recorder:
    """Keep the shapes that are recorded; a replay refuses any other."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, run: Run, example: Tensor) -> Run:
        self.shapes.append((*example.shape[:2], example.requires_grad))

        def replay(embedded: Tensor) -> Tensor:
            assert embedded.shape == example.shape
            return run(embedded)

        return replay


@given(count=st.integers(1, 100_000), least=st.sampled_from([1, 8]))
def test_shapes_grow_by_an_eighth_at_most(count: int, least: int) -> None:
    rounded = round_up(count, least)
    assert count <= rounded <= max(least * -(-count // least), count * 1.125)
    assert rounded % least == 0 and round_up(rounded, least) == rounded


def test_padded_replays_equal_the_blocks_with_gradient_and_without(tiny_base: BaseModel) -> None:
    recorder = Recorder()
    blocks = Blocks(tiny_base.model, recorder)
    tiny_base.model.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for texts, tokens in ((3, 9), (3, 13), (3, 11), (3, 10)):
        embedded = torch.randn(texts, tokens, tiny_base.width, generator=generator)
        wanted = tiny_base.model.base_model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        torch.testing.assert_close(blocks(embedded), wanted, rtol=1e-4, atol=1e-5)
        leaf = embedded.clone().requires_grad_()
        (slope,) = torch.autograd.grad(blocks(leaf).square().sum(), leaf)
        again = embedded.clone().requires_grad_()
        states = tiny_base.model.base_model(inputs_embeds=again, use_cache=False).last_hidden_state
        torch.testing.assert_close(slope, torch.autograd.grad(states.square().sum(), again)[0], rtol=1e-3, atol=1e-4)
    assert recorder.shapes == [(3, 16, False), (3, 16, True)]  # at the third time that a rounded shape comes


def test_a_recording_that_fails_leaves_the_blocks_as_they_are(tiny_base: BaseModel) -> None:
    def refuse(run: Run, example: Tensor) -> Run:
        raise RuntimeError("operation not permitted when stream is capturing")

    blocks, embedded = Blocks(tiny_base.model, refuse), torch.randn(2, 8, tiny_base.width)
    found = [blocks(embedded) for _ in range(2)]
    with pytest.warns(UserWarning, match="cannot be recorded and run as they are: operation not permitted"):
        found.append(blocks(embedded))
    found.append(blocks(embedded))
    assert all(torch.equal(states, found[0]) for states in found)


def test_texts_beyond_a_sliding_window_are_not_recorded(tiny_base: BaseModel) -> None:
    recorder = Recorder()
    tiny_base.model.config.sliding_window = 16
    blocks = Blocks(tiny_base.model, recorder)
    for tokens in (16, 8):
        for _ in range(4):
            blocks(torch.randn(2, tokens, tiny_base.width))
    assert recorder.shapes == [(2, 8, False)]


def test_students_use_them_where_they_may(tiny_base: BaseModel) -> None:
    student, calls = Student(tiny_base.model, tiny_base.vocab_size), []

    def blocks(embedded: Tensor) -> Tensor:
        calls.append(embedded.shape)
        return embedded

    student.blocks = blocks
    ids = torch.tensor([[1, 2, 3]])
    final, layer = student.hidden(ids)
    assert torch.equal(final, layer) and torch.equal(final, tiny_base.model.get_input_embeddings()(ids))
    student.hidden(ids, layer=0)
    student.hidden(ids, torch.ones_like(ids))
    assert len(calls) == 1


def test_a_cpu_has_none(tiny_base: BaseModel) -> None:
    assert quick_blocks(tiny_base.model) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("compiled", [False, True])
def test_graphs_on_a_gpu_equal_the_blocks(tiny_folder: str, compiled: bool) -> None:
    from vocabx_utils.models import load_base_model
    from vocabx_utils.training.fusing import fuse

    base = load_base_model(tiny_folder, device="cuda")
    base.model.requires_grad_(False)
    embedded = torch.randn(5, 20, base.width, device="cuda", dtype=base.dtype)

    def slope(run: Run) -> Tensor:
        leaf = embedded.clone().requires_grad_()
        return torch.autograd.grad(run(leaf).float().square().sum(), leaf)[0]

    def plain(states: Tensor) -> Tensor:
        final: Tensor = base.model.base_model(inputs_embeds=states, use_cache=False).last_hidden_state
        return final

    states, gradient = plain(embedded).detach(), slope(plain)
    if compiled:
        fuse(base.model)
    blocks = quick_blocks(base.model)
    assert blocks is not None
    for _ in range(5):
        with torch.no_grad():
            torch.testing.assert_close(blocks(embedded), states, rtol=0.02, atol=0.02)
        apart = (slope(blocks) - gradient).norm() / gradient.norm()
        assert apart < 0.02
    assert len(blocks.recorded) == 2
