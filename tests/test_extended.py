"""The extended model: same logits as the family's own, and a batch equals its parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import ROWS, WIDTH, N, V, as_base, tiny_family

from vocabx_utils.models import with_extra_rows
from vocabx_utils.student import Student
from vocabx_utils.training.checks import rows_checksum
from vocabx_utils.training.losses import phase1_loss


def extended(base: Any, seed: int = 1) -> Student:
    generator = torch.Generator().manual_seed(seed)
    rows = [0.2 * torch.randn(N, WIDTH, generator=generator) for _ in range(2)]
    return Student(base.model, base.vocab_size, rows[0], rows[1])


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checksum_sees_one_bit_and_one_swap(dtype: torch.dtype) -> None:
    matrix = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = rows_checksum(matrix)
    assert rows_checksum(matrix.clone()) == before
    changed = matrix.clone()
    changed[3, 4] = torch.nextafter(changed[3, 4], torch.tensor(9.0, dtype=dtype))
    assert rows_checksum(changed) != before
    assert rows_checksum(matrix[torch.tensor([1, 0, *range(2, 50)])]) != before
