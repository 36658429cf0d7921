"""The chunked losses against float64 code that keeps every logit."""

from __future__ import annotations

from typing import Any

import pytest
import tiny
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from torch import Tensor

from vocabx_utils.models import with_extra_rows
from vocabx_utils.student import LogitTransform, Student
from vocabx_utils.training import losses
from vocabx_utils.training.goals import old_sums
from vocabx_utils.training.losses import LossTerms, phase1_loss

V, N, D = 61, 7, 16


def problem(positions: int, compared: int, seed: int = 0, new: int = N) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, V + new, (positions,), generator=generator)
    targets[::5] = -1
    return {
        "hidden": torch.randn(positions, D, generator=generator),
        "head": torch.randn(V, D, generator=generator),
        "new_head": torch.randn(new, D, generator=generator),
        "targets": targets,
        "ce_coefficient": torch.rand(positions, generator=generator) / positions,
        "teacher": torch.randn(compared, D, generator=generator),
    }


def naive(p: dict[str, Tensor], lam: float, scale: float, tau: float, t: LogitTransform) -> tuple[Tensor, ...]:
    """Losses and gradients in float64 from whole logit matrices."""
    hidden, new_head = p["hidden"].double().requires_grad_(), p["new_head"].double().requires_grad_()

    def logits(states: Tensor, rows: Tensor) -> Tensor:
        z = t.scale * states @ rows.double().T
        return z if t.softcap is None else t.softcap * torch.tanh(z / t.softcap)

    has = p["targets"] >= 0
    weights = p["ce_coefficient"].double()[has]

    def ce(states: Tensor, rows: Tensor) -> Tensor:
        z = torch.cat([logits(states, p["head"]), logits(states, rows)], 1)[has]
        return (torch.nn.functional.cross_entropy(z, p["targets"][has], reduction="none") * weights).sum()

    compared = p["teacher"].shape[0]
    teacher = torch.softmax(logits(p["teacher"].double(), p["head"]) / tau, -1)
    student = torch.log_softmax(logits(hidden[:compared], p["head"]) / tau, -1)
    kl = tau**2 * (teacher * (teacher.log() - student)).sum(-1)
    input_loss = scale * kl.sum() + lam * ce(hidden, new_head.detach())
    head_loss = ce(hidden.detach(), new_head)
    (to_hidden,) = torch.autograd.grad(input_loss, hidden)
    (to_head,) = torch.autograd.grad(head_loss, new_head)
    return input_loss.detach(), head_loss.detach(), to_hidden, to_head, kl.detach()


def ours(p: dict[str, Tensor], **settings: object) -> tuple[LossTerms, Tensor, Tensor]:
    hidden, new_head = p["hidden"].clone().requires_grad_(), p["new_head"].clone().requires_grad_()
    terms = phase1_loss(**(p | {"hidden": hidden, "new_head": new_head}), **settings)  # type: ignore[arg-type]
    (terms.input_loss + terms.head_loss).backward()
    assert hidden.grad is not None and new_head.grad is not None
    return terms, hidden.grad, new_head.grad


def close(a: Tensor, b: Tensor, tolerance: float = 1e-4) -> bool:
    return bool((a.double() - b).norm() <= tolerance * b.norm().clamp(min=1e-9))


TRANSFORMS = [LogitTransform(), LogitTransform(softcap=5.0), LogitTransform(scale=0.25), LogitTransform(0.5, 3.0)]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize(("lam", "scale", "tau"), [(0, 0.1, 1), (1, 0, 1), (0.3, 0.1, 1), (0.3, 0.2, 2.5)])
def test_values_and_gradients_equal_float64(lam: float, scale: float, tau: float, transform: LogitTransform) -> None:
    p = problem(37, 20)
    terms, to_hidden, to_head = ours(
        p, ce_weight=lam, kl_coefficient=scale, temperature=tau, transform=transform, chunk=8
    )
    expected = naive(p, lam, scale, tau, transform)
    for got, want in zip((terms.input_loss, terms.head_loss, to_hidden, to_head, terms.kl), expected, strict=True):
        assert close(got, want)


@pytest.mark.parametrize("transform", TRANSFORMS, ids=str)
@pytest.mark.parametrize("chunk", [8, 13, 37])  # pieces end within chunks, at their edges, or all lie in one
@pytest.mark.parametrize("compared", [0, 20, 26])
def test_known_sums_stand_for_products_with_the_head(compared: int, chunk: int, transform: LogitTransform) -> None:
    p = problem(37, compared)
    settings = {"ce_weight": 0.3, "kl_coefficient": 0.1, "transform": transform, "chunk": chunk}
    tail = slice(26, None)
    known = old_sums(p["hidden"][tail], p["targets"][tail], p["head"], transform)
    terms, to_hidden, to_head = ours(p, known=known, **settings)
    expected = naive(p, 0.3, 0.1, 1.0, transform)
    for got, want in zip(
        (terms.input_loss, terms.head_loss, to_head, terms.kl), expected[:2] + expected[3:], strict=True
    ):
        assert close(got, want)
    assert close(to_hidden[:26], expected[2][:26])
    assert not to_hidden[tail].any()  # no new row reaches these states


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_surplus_rows_of_the_head_change_nothing(transform: LogitTransform, monkeypatch: pytest.MonkeyPatch) -> None:
    p = problem(23, 14)
    settings = {"ce_weight": 0.3, "kl_coefficient": 0.2, "temperature": 2.0, "transform": transform, "chunk": 5}
    terms, *gradients = ours(p, **settings)
    surplus = 9 * torch.randn(3, D)  # what a model's own padding rows may hold
    monkeypatch.setattr(losses, "aligned_rows", lambda head: torch.cat([head, surplus]))
    wide, *wide_gradients = ours(p, **settings)
    for one, other in zip([*vars(terms).values(), *gradients], [*vars(wide).values(), *wide_gradients], strict=True):
        torch.testing.assert_close(other, one)


@given(st.integers(1, 40), st.integers(0, 40), st.integers(1, 50), st.integers(0, 3))
@hypothesis_settings(max_examples=40, deadline=None)
def test_chunks_do_not_matter(positions: int, compared: int, chunk: int, seed: int) -> None:
    p = problem(positions, min(compared, positions), seed)
    small = ours(p, ce_weight=0.5, kl_coefficient=0.1, chunk=chunk)
    whole = ours(p, ce_weight=0.5, kl_coefficient=0.1, chunk=1000)
    for a, b in ((small[0].input_loss, whole[0].input_loss), small[1:2] + whole[1:2], small[2:] + whole[2:]):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_sides_do_not_leak_into_each_other() -> None:
    p = problem(20, 10)
    hidden, new_head = p["hidden"].clone().requires_grad_(), p["new_head"].clone().requires_grad_()
    terms = phase1_loss(**(p | {"hidden": hidden, "new_head": new_head}), kl_coefficient=0.1)  # type: ignore[arg-type]
    terms.head_loss.backward()
    assert hidden.grad is None or not hidden.grad.any()
    assert new_head.grad is not None and new_head.grad.any()
    before = new_head.grad.clone()
    terms = phase1_loss(**(p | {"hidden": hidden, "new_head": new_head}), kl_coefficient=0.1)  # type: ignore[arg-type]
    terms.input_loss.backward()
    assert torch.equal(new_head.grad, before)
    assert hidden.grad is not None and hidden.grad[:10].any() and not hidden.grad[10:].any()


def test_kl_of_equal_states_is_zero_and_never_negative() -> None:
    p = problem(64, 64)
    p["teacher"] = p["hidden"].clone()
    assert float(ours(p, kl_coefficient=1.0)[0].kl.abs().max()) < 1e-6
    near = p | {"teacher": p["hidden"] + 1e-4}
    assert float(ours(near, kl_coefficient=1.0)[0].kl.min()) > -1e-6
    assert float(ours(near, kl_coefficient=1.0)[0].kl.mean()) > -1e-7


def test_half_precision_states_still_sum_in_float32() -> None:
    """B49: reductions in bfloat16 bias a KL over a large vocabulary; ours equals float64 on the same logits."""
    generator = torch.Generator().manual_seed(1)
    head = torch.randn(20_000, 32, generator=generator).bfloat16()
    student = torch.randn(8, 32, generator=generator).bfloat16()
    teacher = (student.float() + 0.05 * torch.randn(8, 32, generator=generator)).bfloat16()
    terms = phase1_loss(
        student, head, torch.zeros(0, 32), torch.full((8,), -1), ce_coefficient=torch.zeros(8), teacher=teacher
    )
    p = torch.log_softmax((teacher @ head.T).double(), -1)
    q = torch.log_softmax((student @ head.T).double(), -1)
    assert close(terms.kl, (p.exp() * (p - q)).sum(-1))


def test_extreme_logits_stay_finite() -> None:
    """B48: where probabilities underflow, value and gradient stay finite."""
    p = problem(12, 12)
    p["hidden"], p["teacher"] = p["hidden"] * 500, p["teacher"] * -500
    terms, to_hidden, to_head = ours(p, ce_weight=1.0, kl_coefficient=1.0)
    assert all(torch.isfinite(t).all() for t in (terms.input_loss, terms.head_loss, terms.kl, to_hidden, to_head))


def test_nothing_to_learn_is_zero_not_nan() -> None:
    """B47: no target and no pair."""
    p = problem(6, 0)
    p["targets"] = torch.full((6,), -1)
    terms, to_hidden, to_head = ours(p, ce_weight=1.0, kl_coefficient=1.0)
    assert terms.input_loss.item() == 0 and terms.head_loss.item() == 0
    assert not to_hidden.any() and not to_head.any()


def test_without_new_tokens_ce_is_the_ordinary_one() -> None:
    p = problem(20, 4, new=0)
    p["targets"].clamp_(max=V - 1)
    p["ce_coefficient"] = torch.ones(20)
    terms = phase1_loss(**p)  # type: ignore[arg-type]
    has = p["targets"] >= 0
    want = torch.nn.functional.cross_entropy((p["hidden"] @ p["head"].T)[has], p["targets"][has], reduction="sum")
    torch.testing.assert_close(terms.head_loss, want)


def test_shapes_that_do_not_fit_are_refused() -> None:
    p = problem(4, 4)
    known = old_sums(p["hidden"][:1], p["targets"][:1], p["head"], LogitTransform())
    with pytest.raises(ValueError, match=r"K \+ U <= P"):  # a position would be compared and known
        phase1_loss(**p, known=known)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"K \+ U <= P"):
        phase1_loss(**(p | {"teacher": torch.zeros(5, D)}))  # type: ignore[arg-type]


def student_of(base: Any, seed: int = 1) -> Student:
    generator = torch.Generator().manual_seed(seed)
    rows = [0.2 * torch.randn(tiny.N, tiny.WIDTH, generator=generator) for _ in range(2)]
    return Student(base.model, base.vocab_size, rows[0], rows[1])


@pytest.mark.parametrize("family", ["qwen2", "gemma2", "cohere", "granite"])
def test_chunked_losses_equal_the_models_own_logits(family: str) -> None:
    """Soft capping, logit scaling and embedding scaling: a plain model with N more rows gives the same numbers."""
    base = tiny.as_base(tiny.tiny_family(family, tiny.ROWS))
    model = student_of(base)
    plain = with_extra_rows(base, model.input_rows.detach(), model.head_rows.detach(), tiny.V)
    ids = torch.randint(0, tiny.V + tiny.N, (3, 9), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        want = plain(input_ids=ids).logits[..., : tiny.V + tiny.N]
        torch.testing.assert_close(model.logits(ids), want, rtol=1e-4, atol=1e-5)
        hidden, _ = model.hidden(ids)
        terms = phase1_loss(
            hidden[:, :-1].reshape(-1, tiny.WIDTH),
            model.head,
            model.head_rows,
            ids[:, 1:].reshape(-1),
            ce_coefficient=torch.ones(24),
            transform=model.transform,
            chunk=5,
        )
    each = torch.nn.functional.cross_entropy(want[:, :-1].reshape(24, -1), ids[:, 1:].reshape(-1), reduction="none")
    torch.testing.assert_close(terms.ce, each, rtol=1e-4, atol=1e-5)
