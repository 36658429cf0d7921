"""What is kept of the original logits against whole float64 matrices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vocabx_utils.student import LogitTransform
from vocabx_utils.training import old_sums as module
from vocabx_utils.training.old_sums import old_sums

V, D = 61, 16


def naive(states: Tensor, targets: Tensor, head: Tensor, t: LogitTransform) -> tuple[Tensor, Tensor]:
    z = t.scale * states.double() @ head.double().T
    z = z if t.softcap is None else t.softcap * torch.tanh(z / t.softcap)
    logits = [float(row[target]) if 0 <= target < V else 0.0 for row, target in zip(z, targets.tolist(), strict=True)]
    return z.exp().sum(-1).log(), torch.tensor(logits, dtype=torch.float64)


@pytest.mark.parametrize("transform", [LogitTransform(), LogitTransform(0.5, 3.0)], ids=str)
def test_sums_and_logits_equal_float64(transform: LogitTransform, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    states, head = (torch.randn(rows, D, generator=generator) for rows in (37, V))
    targets = torch.randint(-1, V + 5, (37,), generator=generator)
    monkeypatch.setattr(module, "default_chunk", lambda *_: 8)
    found = old_sums(states, targets, head, transform)
    assert len(found) == 37 and len(found[3:9]) == 6
    for one, other in zip((found.sums, found.logits), naive(states, targets, head, transform), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_of_no_position_there_is_nothing() -> None:
    assert len(old_sums(torch.zeros(0, D), torch.zeros(0, dtype=torch.long), torch.zeros(V, D), LogitTransform())) == 0
