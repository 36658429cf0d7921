"""The extended model: same logits as the family's own, and a batch equals its parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import ROWS, WIDTH, N, V, as_base, tiny_family, tiny_model

from vocabx_utils.models import with_extra_rows
from vocabx_utils.student import UnsupportedModelError
from vocabx_utils.training.extended import ExtendedModel, rows_checksum
from vocabx_utils.training.objectives import phase1_loss


def extended(base: Any, seed: int = 1) -> ExtendedModel:
    generator = torch.Generator().manual_seed(seed)
    rows = [0.2 * torch.randn(N, WIDTH, generator=generator) for _ in range(2)]
    return ExtendedModel(base, rows[0], rows[1])


@pytest.mark.parametrize("family", ["qwen2", "gemma2", "cohere", "granite"])
def test_chunked_losses_equal_the_models_own_logits(family: str) -> None:
    """Soft capping, logit scaling and embedding scaling: a plain model with N more rows gives the same numbers."""
    base = as_base(tiny_family(family, ROWS))
    model = extended(base)
    plain = with_extra_rows(base, model.input_rows.detach(), model.head_rows.detach(), V)
    ids = torch.randint(0, V + N, (3, 9), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        want = plain(input_ids=ids).logits[..., : V + N]
        torch.testing.assert_close(model.logits(ids), want, rtol=1e-4, atol=1e-5)
        hidden, _ = model.hidden(ids)
        terms = phase1_loss(
            hidden[:, :-1].reshape(-1, WIDTH),
            model.head,
            model.head_rows,
            ids[:, 1:].reshape(-1),
            ce_coefficient=torch.ones(24),
            transform=model.transform,
            chunk=5,
        )
    each = torch.nn.functional.cross_entropy(want[:, :-1].reshape(24, -1), ids[:, 1:].reshape(-1), reduction="none")
    torch.testing.assert_close(terms.ce, each, rtol=1e-4, atol=1e-5)


def test_unknown_logit_treatment_is_refused() -> None:
    base = tiny_model()
    base.model.config.logit_wobble = 3.0
    with pytest.raises(UnsupportedModelError, match="logit_wobble"):
        extended(base)


def test_a_head_that_is_not_a_plain_product_is_refused() -> None:
    base = tiny_model()
    inner = base.model.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        output = inner(*args, **kwargs)
        output.logits = output.logits * 1.5
        return output

    base.model.forward = forward  # type: ignore[method-assign]
    with pytest.raises(UnsupportedModelError, match="own logits"):
        extended(base)


def test_batches_equal_single_texts_left_and_right_padded() -> None:
    model = extended(tiny_model())
    generator = torch.Generator().manual_seed(5)
    singles = [torch.randint(0, V + N, (length,), generator=generator) for length in (4, 9, 7)]
    width = 9
    right, left, mask = (torch.zeros(3, width, dtype=torch.long) for _ in range(3))
    for line, ids in enumerate(singles):
        right[line, : len(ids)], left[line, width - len(ids) :], mask[line, width - len(ids) :] = ids, ids, 1
    with torch.no_grad():
        by_right, by_left = model.hidden(right)[0], model.hidden(left, mask)[0]
        for line, ids in enumerate(singles):
            alone = model.hidden(ids[None])[0][0]
            torch.testing.assert_close(by_right[line, : len(ids)], alone, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(by_left[line, width - len(ids) :], alone, rtol=1e-4, atol=1e-5)


def test_only_the_new_rows_are_parameters() -> None:
    model = extended(tiny_model())
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == {
        "input_rows": (N, WIDTH),
        "head_rows": (N, WIDTH),
    }
    model.logits(torch.tensor([[1, V, 2]])).sum().backward()
    assert model.input_rows.grad is not None and model.input_rows.grad[0].any()
    assert not model.input_rows.grad[1:].any()
    assert all(p.grad is None for p in model.base.model.parameters())


def test_the_greedy_text_of_the_base_model_stays_without_training() -> None:
    """B36: new rows do not change what is predicted among old tokens; their own mass can be read off."""
    base = tiny_model()
    model = extended(base)
    ids = torch.arange(5, 15)[None]
    with torch.no_grad():
        own = base.model(input_ids=ids).logits[..., :V]
        ours = model.logits(ids)
    torch.testing.assert_close(ours[..., :V], own, rtol=1e-4, atol=1e-5)
    mass = torch.softmax(ours, -1)[..., V:].sum(-1)
    assert ((mass > 0) & (mass < 1)).all()


def test_rows_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="new rows"):
        ExtendedModel(tiny_model(), torch.zeros(3, WIDTH), torch.zeros(2, WIDTH))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checksum_sees_one_bit_and_one_swap(dtype: torch.dtype) -> None:
    matrix = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = rows_checksum(matrix)
    assert rows_checksum(matrix.clone()) == before
    changed = matrix.clone()
    changed[3, 4] = torch.nextafter(changed[3, 4], torch.tensor(9.0, dtype=dtype))
    assert rows_checksum(changed) != before
    assert rows_checksum(matrix[torch.tensor([1, 0, *range(2, 50)])]) != before
