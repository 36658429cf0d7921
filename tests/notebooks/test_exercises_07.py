"""The numbers in the answers to the exercises of notebook 07, and those that its prose takes for granted."""

import math

import numpy as np
import pytest
from scipy.stats import t

from vocabx_utils.intervals import shared_level


def test_shared_seeds_save_nine_runs_in_ten() -> None:
    shared, apart = 0.03 * math.sqrt(2 - 2 * 0.9), 0.03 * math.sqrt(2)
    assert shared == pytest.approx(0.0134, abs=5e-5)
    assert apart == pytest.approx(0.0424, abs=5e-5)
    assert 8 * (apart / shared) ** 2 == pytest.approx(80)
    generator = np.random.default_rng(0)
    pairs = generator.multivariate_normal([0, 0], 0.03**2 * np.array([[1, 0.9], [0.9, 1]]), 100_000)
    assert np.std(pairs[:, 0] - pairs[:, 1]) == pytest.approx(shared, rel=0.02)


def test_ten_looks_find_something_in_four_of_ten_reports() -> None:
    assert pytest.approx(0.40, abs=0.005) == 1 - 0.95**10
    assert shared_level(10) == pytest.approx(0.995)
    assert 1 - shared_level(10) ** 10 == pytest.approx(0.049, abs=5e-4)


def test_how_fast_an_interval_shrinks() -> None:
    width = {n: float(t.ppf(0.975, n - 1)) / math.sqrt(n) for n in (2, 3, 8, 16)}
    assert width[3] < width[2] / 3
    assert width[8] / 2 < width[16] < width[8]
    assert 2 * t.sf(1.96, 2) > 3 * 0.05  # three runs with the factor of large samples
