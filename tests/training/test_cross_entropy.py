"""The chunked head against plain float64 code."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from vocabx_utils.training import cross_entropy
from vocabx_utils.training.cross_entropy import IGNORE, linear_cross_entropy


def case(n: int = 37, width: int = 16, rows: int = 53, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, width, generator=generator).to(dtype)
    weight = torch.randn(rows, width, generator=generator).to(dtype)
    targets = torch.randint(0, rows, (n,), generator=generator)
    targets[::5] = IGNORE
    return hidden, weight, targets


@pytest.mark.parametrize("chunk", [1, 7, None])
def test_value_and_gradients_against_float64(chunk):
    hidden, weight, targets = case()
    h, w = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    loss = linear_cross_entropy(h, w, targets, chunk=chunk)
    (3 * loss).backward()
    h64, w64 = hidden.double().requires_grad_(), weight.double().requires_grad_()
    expected = functional.cross_entropy(h64 @ w64.T, targets, ignore_index=IGNORE, reduction="sum")
    (3 * expected).backward()
    assert float(loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    torch.testing.assert_close(h.grad.double(), h64.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(w.grad.double(), w64.grad, rtol=1e-4, atol=1e-5)


def test_only_rows_that_learn_get_a_gradient():
    hidden, weight, targets = case()
    full, part = weight.clone().requires_grad_(), weight.clone().requires_grad_()
    linear_cross_entropy(hidden, full, targets).backward()
    linear_cross_entropy(hidden, part, targets, learn_from=50).backward()
    assert part.grad[:50].eq(0).all()
    torch.testing.assert_close(part.grad[50:], full.grad[50:])


def test_nothing_to_learn_is_zero_with_a_graph():
    hidden, weight, _ = case()
    hidden.requires_grad_(), weight.requires_grad_()
    loss = linear_cross_entropy(hidden, weight, torch.full((37,), IGNORE))
    loss.backward()
    assert float(loss.detach()) == 0 and hidden.grad.eq(0).all() and weight.grad.eq(0).all()


def test_bfloat16_states_with_float32_masters():
    hidden, weight, targets = case(dtype=torch.bfloat16)
    master = weight.float().requires_grad_()
    loss = linear_cross_entropy(hidden, master, targets)
    loss.backward()
    expected = functional.cross_entropy(
        hidden.double() @ weight.double().T, targets, ignore_index=IGNORE, reduction="sum"
    )
    assert loss.dtype == master.grad.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(expected), rel=1e-2)


@pytest.mark.parametrize("learn_from", [0, 7])
def test_surplus_rows_of_the_head_change_nothing(learn_from, monkeypatch):
    found = []
    for surplus in (0, 5):
        monkeypatch.setattr(
            cross_entropy, "aligned_rows", lambda rows, k=surplus: functional.pad(rows, (0, 0, 0, k), value=9.0)
        )
        hidden, weight, targets = case()
        hidden.requires_grad_()
        weight.requires_grad_()
        loss = linear_cross_entropy(hidden, weight, targets, learn_from=learn_from, chunk=4)
        loss.backward()
        found.append((loss.detach(), hidden.grad, weight.grad))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(other, one)


def test_bad_shapes_and_targets():
    hidden, weight, targets = case()
    with pytest.raises(ValueError, match="do not fit"):
        linear_cross_entropy(hidden[:, :3], weight, targets)
    with pytest.raises(ValueError, match="were the matrices extended"):
        linear_cross_entropy(hidden, weight[:10], targets)
