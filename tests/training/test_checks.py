"""Checksums that prove what moved and what did not."""

from __future__ import annotations

import pytest
import torch

from vocabx_utils.training.checks import rows_checksum


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checksum_sees_one_bit_and_one_swap(dtype: torch.dtype) -> None:
    matrix = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = rows_checksum(matrix)
    assert rows_checksum(matrix.clone()) == before
    changed = matrix.clone()
    changed[3, 4] = torch.nextafter(changed[3, 4], torch.tensor(9.0, dtype=dtype))
    assert rows_checksum(changed) != before
    assert rows_checksum(matrix[torch.tensor([1, 0, *range(2, 50)])]) != before
