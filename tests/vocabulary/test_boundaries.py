"""The exact rule on byte ends against a naive double loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabx_utils.vocabulary.boundaries import align_boundaries, first_divergence


def naive_pairs(left: list[int], right: list[int]) -> list[list[int]]:
    return [[i, j] for i, a in enumerate(left) for j, b in enumerate(right) if a == b]


cut_points = st.sets(st.integers(1, 60)).map(lambda cuts: sorted({*cuts, 60}))


@given(cut_points, cut_points, st.integers(0, 10**9))
def test_boundaries_equal_the_naive_double_loop(left, right, offset):
    left, right = [end + offset for end in left], [end + offset for end in right]
    assert align_boundaries(left, right).tolist() == naive_pairs(left, right)


def test_boundaries_far_apart():
    left, right = [1, 10**15, 10**16], [1, 10**15 + 1, 10**16]
    assert align_boundaries(left, right).tolist() == [[0, 0], [2, 2]]


@pytest.mark.parametrize("share", [0.05, 0.9])
def test_boundaries_of_a_long_text_equal_a_library(share):
    """Longer than the blocks in which it is matched; on either side."""
    generator = np.random.default_rng(0)
    left = np.cumsum(generator.integers(1, 7, 40_000))
    right = np.union1d(left[generator.random(len(left)) < share], left[::3] + 1)
    for one, other in ((left, right), (right, left)):
        _, i, j = np.intersect1d(one, other, return_indices=True)
        np.testing.assert_array_equal(align_boundaries(one, other), np.stack([i, j], axis=1))


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ([0, 3, 5], [3, 5], [[1, 0], [2, 1]]),  # BOS on the original side only
        ([3, 5], [0, 5], [[1, 1]]),  # BOS on the extended side only
        ([3, 5, 5], [5], [[1, 0]]),  # EOS on one side only: the text token keeps its partner
        ([3, 5, 5], [5, 5], [[1, 0], [2, 1]]),
        ([0, 0, 3], [0, 0, 3], [[0, 0], [1, 1], [2, 2]]),
        ([], [], []),
        ([], [3], []),
        ([0], [0], [[0, 0]]),
    ],
)
def test_repeated_ends_are_specials(left, right, expected):
    assert align_boundaries(left, right).tolist() == expected


def test_specials_are_paired_by_id_when_ids_are_known():
    pairs = align_boundaries([0, 0, 3, 3], [0, 3, 3], [90, 91, 1, 92], [91, 1, 92])
    assert pairs.tolist() == [[1, 0], [2, 1], [3, 2]]
    assert align_boundaries([0, 3], [0, 3], [90, 1], [91, 1]).tolist() == [[1, 1]]


@pytest.mark.parametrize("bad", [[3, 2], [-1, 2], [[1], [2]]])
def test_ends_must_rise(bad):
    with pytest.raises(ValueError, match="rising"):
        align_boundaries(bad, [1, 2])


def test_ids_and_ends_must_agree():
    with pytest.raises(ValueError, match="1 ids and 2 byte ends"):
        align_boundaries([1, 2], [1, 2], [5], [5, 6])


def test_first_divergence():
    assert first_divergence([1, 2, 3], [1, 2, 4]) == 2
    assert first_divergence([1, 2], [1, 2]) == 2
    assert first_divergence([1, 2, 3], [1, 2]) == 2
    assert first_divergence([9, 1], [1]) == 0
    assert first_divergence([], []) == 0
