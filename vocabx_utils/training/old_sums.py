"""What the cross-entropy of a position needs of the V original ids: one log-sum-exp and the logit of its target.

Where a state never changes, these two numbers do not either, whatever the new head rows become: they are computed once
and stand for the product with the original head.

Shapes: V original ids, D width, P positions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vocabx_utils.products import aligned_rows
from vocabx_utils.student import LogitTransform
from vocabx_utils.training.softmax import blank_, default_chunk, log_sum_exp_, logit_products


@dataclass(frozen=True)
class OldSums:
    """The two numbers at P positions.

    Attributes:
        sums: (P,) float32 log-sum-exp of the logits of the V original ids.
        logits: (P,) float32 logit of the target where that is an original id, else 0.
    """

    sums: Tensor
    logits: Tensor

    def __len__(self) -> int:
        return len(self.sums)

    def __getitem__(self, part: slice | Tensor) -> OldSums:
        """Return those of some positions."""
        return OldSums(self.sums[part], self.logits[part])


@torch.no_grad()
def old_sums(states: Tensor, targets: Tensor, head: Tensor, transform: LogitTransform) -> OldSums:
    """Read final states (P, D) with the original head (V, D), a chunk of positions at a time.

    Args:
        states: in the head's dtype, on its device.
        targets: (P,) next ids; those outside 0 … V-1 have no logit here.
        head: without padding rows.
        transform: the family's logit scaling and capping.
    """
    weights, vocab = aligned_rows(head), len(head)
    chunk = default_chunk(vocab, states.device) * (2 if states.is_cuda else 1)  # no second matrix beside the logits
    at = targets.clamp(0, vocab - 1)[:, None]  # (P, 1)
    sums = torch.empty(len(states), dtype=torch.float32, device=states.device)
    logits = torch.empty_like(sums)
    for start in range(0, len(states), chunk):
        part = slice(start, start + chunk)
        old = blank_(transform.apply_(logit_products(states[part], weights)), vocab)  # (c, V), then blank columns
        logits[part] = old.gather(1, at[part])[:, 0]
        sums[part] = log_sum_exp_(old)
    return OldSums(sums, torch.where(at[:, 0] == targets, logits, 0.0))
