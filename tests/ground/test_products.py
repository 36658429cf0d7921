"""Rows of a head, aligned for a GPU."""

import pytest
import torch

from vocabx_utils.products import aligned_rows


def test_rows_are_aligned_only_where_it_helps():
    assert aligned_rows(matrix := torch.zeros(65, 4)) is matrix  # a CPU has no tensor cores
    assert aligned_rows(matrix := torch.zeros(65, 4, dtype=torch.bfloat16)) is matrix


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("rows", [128, 200])
def test_surplus_rows_on_a_gpu_come_from_the_model_or_are_zeros(rows):
    whole = torch.randn(rows, 8, device="cuda", dtype=torch.bfloat16)
    found = aligned_rows(whole[:100])
    assert found.shape == (128, 8) and torch.equal(found[:100], whole[:100])
    assert found.data_ptr() == whole.data_ptr()
    alone = aligned_rows(whole[:100].clone())
    assert alone.shape == (128, 8) and not alone[100:].any()
    assert aligned_rows(whole[:64]).shape == (64, 8)
