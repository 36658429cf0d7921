"""Checksums that prove what moved and what did not, and counts of what the examples hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import N, V, tokenizers
from training.phase1_parts import aligned

from vocabx_utils.training.checks import bits_checksum, count_spans, tell_spans
from vocabx_utils.training.dropout import drop_phrases
from vocabx_utils.training.examples import choose_windows, whole_texts
from vocabx_utils.vocabulary.alignment import align_ids


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checksum_sees_one_bit_and_one_swap(dtype: torch.dtype) -> None:
    matrix = torch.randn(50, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    before = bits_checksum(matrix)
    assert bits_checksum(matrix.clone()) == before
    changed = matrix.clone()
    changed[3, 4] = torch.nextafter(changed[3, 4], torch.tensor(9.0, dtype=dtype))
    assert bits_checksum(changed) != before
    assert bits_checksum(matrix[torch.tensor([1, 0, *range(2, 50)])]) != before


@pytest.mark.parametrize("window", [0, 12])
def test_spans_are_counted_as_by_hand(window: int) -> None:
    apart = drop_phrases(aligned(), V, 0.3)
    chosen = choose_windows(apart, V, N, window=window, limit=30) if window else whole_texts(apart, V, N)
    found = count_spans(chosen)
    tokens = [int(i) for e in chosen.examples for i in e.ids]
    assert (found["tokens"], found["new_tokens"]) == (len(tokens), sum(i >= V for i in tokens))
    lengths, unpaired = [], 0
    for example in chosen.examples:
        again = align_ids(tokenizers(), example.original_ids, example.ids)
        lengths += [b - a for a, b, _, _ in again.groups.tolist()]
        unpaired += len(example.ids) - len(again.boundaries)
    assert found["subtokens_per_span"] == pytest.approx(np.mean(lengths))
    assert found["share_unpaired"] == pytest.approx(unpaired / len(tokens))
    assert found["unmerged"] == sum(len(e.unmerged) for e in chosen.examples) > 0
    assert f"{found['unmerged']:,} spans left apart" in tell_spans(chosen)
