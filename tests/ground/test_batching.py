"""Padding and batches of like length."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vocabx_utils.batching import like_length, move, pack, pad, unpack


def test_padding_is_known_from_lengths_never_from_ids() -> None:
    ids, mask = pad([[0, 0, 3], np.array([0])], value=7)
    assert ids.tolist() == [[0, 0, 3], [0, 7, 7]] and mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    ids, mask = pad([(4, 5, 6), (9,)], left=True)
    assert ids.tolist() == [[4, 5, 6], [0, 0, 9]] and mask.tolist() == [[1, 1, 1], [0, 0, 1]]
    assert ids.dtype == mask.dtype == torch.int64


def test_tensors_go_to_a_device_as_they_are() -> None:
    given = [
        torch.tensor([[1, -2, 3], [4, 5, 2**40]]),
        torch.tensor([True, False, True]),
        torch.zeros(0),
        torch.tensor([0.5, -1.5, 2.5]),
        torch.tensor([7, 8]),
        torch.tensor(-3),
    ]
    for found in (unpack(pack(given), given), move(given, torch.device("cpu"))):
        for one, other in zip(found, given, strict=True):
            assert one.dtype == other.dtype and torch.equal(one, other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_tensors_go_to_a_gpu_in_one_copy() -> None:
    given = [torch.arange(5), torch.tensor([True, False]), torch.zeros(0), torch.tensor([[0.5], [1.5]])]
    found = move(given, torch.device("cuda"))
    assert all(torch.equal(one.cpu(), other) and one.is_cuda for one, other in zip(found, given, strict=True))
    assert len({one.untyped_storage().data_ptr() for one in found}) == 1


def test_batches_keep_the_budget_and_hold_every_text_once() -> None:
    lengths = [10, 3, 20, 5, 50, 7]
    parts = like_length(lengths, tokens=42)
    assert sorted(i for part in parts for i in part) == [0, 1, 2, 3, 4, 5]
    for part in parts:
        assert len(part) * max(lengths[i] for i in part) <= 42 or len(part) == 1
    assert like_length(lengths, [4], tokens=42) == [[4]]
    assert like_length(lengths, []) == []


@pytest.mark.parametrize("longest_first", [False, True])
def test_texts_of_one_length_stay_in_order(longest_first: bool) -> None:
    parts = like_length([4, 4, 9, 4], [3, 2, 0, 1], count=2, longest_first=longest_first)
    assert parts == ([[2, 3], [0, 1]] if longest_first else [[3, 0], [1, 2]])


def test_processes_share_rows_and_padding_is_bounded() -> None:
    lengths = [8, 8, 8, 8, 2]
    assert like_length(lengths, tokens=16) == [[4, 0], [1, 2], [3]]
    assert like_length(lengths, tokens=16, world=2, longest_first=True) == [[0, 1, 2, 3], [4]]
    assert like_length(lengths, max_padding=0.2, longest_first=True) == [[0, 1, 2, 3, 4]]
    assert like_length(lengths, max_padding=0.1, longest_first=True) == [[0, 1, 2, 3], [4]]
