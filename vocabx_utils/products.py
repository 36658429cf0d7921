"""Products with the rows of a head, in a shape that a GPU runs at full speed."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

TILE = 64
"""Rows of a matrix come in multiples of this where the tensor cores are to run at full speed."""


def aligned_rows(matrix: Tensor) -> Tensor:
    """Return a matrix with at least the same rows whose products with half-precision states run at full speed.

    A GPU reads and writes 16 bytes at a time. With an odd number of columns no row of the logits begins where that is
    possible, and the products take several times as long. The caller leaves the columns of the surplus rows out.

    Returns:
        For `matrix`, (R, D) rows of a head: itself on a CPU, in float32 or where R is a multiple of 64; else (R', D)
        with R' the next multiple: the rows that follow in memory (padding rows of the same model) where there are any,
        or a copy with zeros.
    """
    surplus = -len(matrix) % TILE
    if not surplus or not matrix.is_cuda or matrix.dtype == torch.float32:
        return matrix
    rows, width = len(matrix) + surplus, matrix.shape[1]
    held = matrix.untyped_storage().nbytes() // matrix.element_size() - matrix.storage_offset()
    if matrix.is_contiguous() and held >= rows * width:
        return matrix.as_strided((rows, width), (width, 1))
    return functional.pad(matrix, (0, 0, 0, surplus))
