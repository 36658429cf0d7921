"""A frozen language model with N extra rows on each side: the only tensors that phase 1 trains.

The input side holds one row for every new token, the head one row more for every new token. The V original
rows are never parameters of the training, so weight decay and momentum cannot move them.

Shapes: V ids of the original tokenizer, N new tokens, D model width, B texts, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from vocabx_utils.models import BaseModel
from vocabx_utils.student import Student

__all__ = ["ExtendedModel", "rows_checksum"]


def rows_checksum(matrix: Tensor) -> int:
    """Return a number that changes when any bit of a matrix changes place or value (not cryptographic).

    Args:
        matrix: any two-dimensional tensor.
    """
    kinds: Mapping[int, torch.dtype] = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = matrix.detach().contiguous().view(kinds[matrix.element_size()])
    rows = torch.arange(1, bits.shape[0] + 1, device=bits.device, dtype=torch.int64)
    columns = torch.arange(1, bits.shape[1] + 1, device=bits.device, dtype=torch.int64)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, bits.shape[0], 4096):
        part = bits[start : start + 4096].to(torch.int64)
        total += ((part * columns).sum(1) * rows[start : start + 4096]).sum()
    return int(total)


class ExtendedModel(Student):
    """The student of a base model; `first_new_id` is the model's V unless given."""

    def __init__(self, base: BaseModel, input_rows: Tensor, head_rows: Tensor, first_new_id: int | None = None) -> None:
        super().__init__(base.model, base.vocab_size if first_new_id is None else first_new_id, input_rows, head_rows)
        self.base = base
