"""The two ways through a chunk of logits against each other and against float64 code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vocabx_utils.training import softmax
from vocabx_utils.training.softmax import (
    Compiled,
    Scratch,
    _exponentials,
    blank_,
    log_sum_exp_,
    softmax_rows,
    softmax_step,
    softmax_step_in_place,
)

R, V = 9, 53


def case(seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    old = 4 * torch.randn(R, V, generator=generator)
    targets = torch.randint(0, V + 5, (R,), generator=generator)
    targets[2] = -1
    factor = torch.rand(R, generator=generator)
    factor[2] = 0
    return {
        "old": old,
        "teacher": old + torch.randn(R, V, generator=generator) + 30.0,  # a common shift changes no probability
        "lse_new": torch.randn(R, generator=generator),
        "targets": targets,
        "ce_factor": factor,
    }


def expected(c: dict[str, Tensor], kl_factor: float | None, tau: float, with_ce: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Log-sum-exp, KL and gradient in float64 by autograd."""
    old = c["old"].double().requires_grad_()
    log_p = torch.log_softmax(c["teacher"].double() / tau, -1)
    kl = (log_p.exp() * (log_p - torch.log_softmax(old / tau, -1))).sum(-1)
    loss = torch.zeros((), dtype=torch.float64)
    if kl_factor is not None:
        loss = loss + tau * kl_factor * kl.sum()
    if with_ce:
        to_all = torch.logaddexp(old.logsumexp(-1), c["lse_new"].double())
        inside = (c["targets"] >= 0) & (c["targets"] < V)
        chosen = torch.where(inside, old.gather(1, c["targets"].clamp(0, V - 1)[:, None]).squeeze(1), 0.0)
        loss = loss + (c["ce_factor"].double() * (to_all - chosen)).sum()
    (gradient,) = torch.autograd.grad(loss, old)
    return old.detach().logsumexp(-1), kl.detach(), gradient


@pytest.mark.parametrize("way", [softmax_step, softmax_step_in_place])
@pytest.mark.parametrize(
    ("kl_factor", "tau", "with_ce"), [(0.2, 1, False), (0.2, 1, True), (0.3, 2, True), (None, 1, True)]
)
@pytest.mark.parametrize("blank", [0, 11])
def test_both_ways_equal_float64(way, kl_factor, tau, with_ce, blank):
    c = case()
    want = expected(c, kl_factor, tau, with_ce)
    for name in ("old", "teacher"):
        c[name] = blank_(torch.cat([c[name], torch.randn(R, blank)], 1), V)
    lse, kl, gradient = way(
        c["old"].clone(), c["teacher"].clone(), c["lse_new"], c["targets"],
        c["ce_factor"] if with_ce else None, None if kl_factor is None else torch.tensor(kl_factor),
        None if tau == 1 else torch.tensor(float(tau)), torch.float32,
    )  # fmt: skip
    if blank:
        assert not gradient[:, V:].any()
    gradient = gradient[:, :V]
    for got, right in zip((lse, kl, gradient), want, strict=True):
        assert (got.double() - right).norm() <= 1e-5 * right.norm()  # the shift alone costs 30 * 2^-24


@pytest.mark.parametrize("way", [softmax_step, softmax_step_in_place])
def test_equal_logits_have_no_kl_and_no_gradient(way):
    old = case()["old"] * 20
    none = torch.zeros(R)
    _, kl, gradient = way(
        old.clone(), old.clone(), none, none.long() - 1, None, torch.tensor(1.0), None, torch.float32
    )  # fmt: skip
    assert not kl.any() and not gradient.any()


def test_scratch_gives_the_same_memory_again():
    scratch, like = Scratch(), torch.zeros(1)
    first = scratch.take("a", like, 8, 3)
    assert scratch.take("a", like, 5, 3).data_ptr() == first.data_ptr()
    assert scratch.take("b", like, 5, 3).data_ptr() != first.data_ptr()
    assert scratch.take("a", like, 9, 3).shape == (9, 3)


def test_without_a_compiler_the_plain_way_takes_over(monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(torch, "compile", lambda function: function)
    step = Compiled(broken, lambda value: value + 1)
    with pytest.warns(UserWarning, match="no compiler here"):
        assert step(torch.zeros(3)).tolist() == [1, 1, 1]
    assert step(torch.ones(3)).tolist() == [2, 2, 2]


def test_a_single_row_takes_the_plain_way(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function: function)
    step = Compiled(lambda rows: "fused", lambda rows: "plain")
    assert [step(torch.zeros(rows, 4)) for rows in (2, 1, 3)] == ["fused", "plain", "fused"]


def test_out_of_memory_is_not_hidden(monkeypatch):
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(torch, "compile", lambda function: function)
    with pytest.raises(torch.OutOfMemoryError):
        Compiled(full, lambda value: value)(torch.zeros(2))


def test_exponentials_near_the_largest_logit_are_the_softmax():
    """What a GPU runs: one reading of the logits, whatever the number that is known to be near."""
    logits = 5 * torch.randn(7, 300)
    near = logits.amax(-1) + torch.linspace(-60, 60, 7)
    total, weights = _exponentials(logits, near, torch.float32)
    exact = logits.double()
    torch.testing.assert_close((near + total.log()).double(), exact.logsumexp(-1), rtol=1e-6, atol=1e-5)
    torch.testing.assert_close((weights / total[:, None]).double(), exact.softmax(-1), rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax_rows(dtype):
    logits = 5 * torch.randn(3, 50)
    exact = logits.double()
    lse, weights, share = softmax_rows(logits, logits.amax(-1), dtype, Scratch())
    assert weights.dtype == dtype
    torch.testing.assert_close(lse.double(), exact.logsumexp(-1), rtol=1e-6, atol=1e-6)
    found = weights.double() * share.double()[:, None]
    torch.testing.assert_close(found, exact.softmax(-1), rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-8)


def test_the_log_sum_exp_of_blocks_equals_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vocabx_utils.training.softmax.CACHE_BYTES", 4 * V * 2)  # two rows a block
    logits = case()["old"] + 200.0
    whole = logits.double().logsumexp(-1)
    torch.testing.assert_close(log_sum_exp_(logits).double(), whole, rtol=1e-6, atol=1e-5)


def test_what_a_compiler_gets_for_the_log_sum_exp_equals_float64() -> None:
    logits = 30 * torch.randn(4, 60) + 200.0
    torch.testing.assert_close(
        softmax._log_sum_exp(logits).double(), logits.double().logsumexp(-1), rtol=1e-6, atol=1e-5
    )
