"""Resampled and simulated intervals: against every resample, against the truth, and at their borders."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from vocabx_utils.intervals import Interval
from vocabx_utils.resampling import bootstrap_mean, paired_bootstrap, rank_correlation


def test_percentile_bootstrap_leaves_out_nan_and_covers() -> None:
    assert bootstrap_mean([1.0, np.nan, 3.0]) == Interval(2.0, 1.0, 3.0)
    assert all(math.isnan(value) for value in dataclasses.astuple(bootstrap_mean([np.nan])))
    assert bootstrap_mean([5.0]) == Interval(5.0, 5.0, 5.0)
    rng = np.random.default_rng(0)
    ends = [bootstrap_mean(rng.normal(size=60), draws=400, seed=s) for s in range(200)]
    assert 0.88 <= np.mean([end.low <= 0 <= end.high for end in ends]) <= 0.99


def test_bootstrap_against_every_resample() -> None:
    gaps = np.array([1.0, -0.5, 1.0, 4.0, 2.5])
    rows = gaps[np.array(list(itertools.product(range(5), repeat=5)))]
    with np.errstate(divide="ignore", invalid="ignore"):
        scaled = (rows.mean(1) - gaps.mean()) / (rows.std(1, ddof=1) / math.sqrt(5))
    error = gaps.std(ddof=1) / math.sqrt(5)
    student = 2.776 * error * math.sqrt(5 / 4)  # never closer than Student's limits with the jackknife's error
    interval = paired_bootstrap(gaps, np.zeros(5), resamples=50_000)
    assert interval.estimate == pytest.approx(gaps.mean())
    assert interval.low == pytest.approx(gaps.mean() - max(student, error * np.quantile(scaled, 0.975)), rel=0.1)
    assert interval.high == pytest.approx(gaps.mean() + max(student, -error * np.quantile(scaled, 0.025)), rel=0.1)


@pytest.mark.parametrize("n", [10, 16, 20])
def test_bootstrap_covers_the_truth_on_few_texts(n: int) -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(400):
        sizes = rng.integers(80, 500, n).astype(float)
        gaps = 0.01 * sizes * (0.3 + rng.standard_normal(n))
        interval = paired_bootstrap(gaps, np.zeros(n), weights=sizes, resamples=200)
        covered += interval.low <= 0.003 <= interval.high
    assert covered / 400 >= 0.935  # 0.95 less what 400 samples may miss


def test_bootstrap_of_two_texts_bounds_nothing() -> None:
    assert paired_bootstrap([1.0, 3.0], [0.0, 0.0]) == Interval(2.0, -math.inf, math.inf)


def test_rank_correlation_of_few_is_wide() -> None:
    five = rank_correlation(range(5), [4, 3, 2, 0, 1])
    assert five.estimate == pytest.approx(-0.9) and five.high > -0.5
    many = rank_correlation(range(40), -np.arange(40.0))
    assert many.high < -0.9
    assert rank_correlation([1, 1, 1], [1, 2, 3]).low == -1


def test_bootstrap_repeats_and_weights() -> None:
    rng = np.random.default_rng(1)
    bits, other, size = rng.random(50) * 100, rng.random(50) * 100, rng.integers(10, 200, 50)
    one = paired_bootstrap(bits, other, weights=size, resamples=500)
    assert one == paired_bootstrap(bits, other, weights=size, resamples=500)
    assert one.estimate == pytest.approx(bits.sum() / size.sum() - other.sum() / size.sum())
    assert one.low < one.estimate < one.high


def test_bootstrap_of_equal_models_is_exactly_zero() -> None:
    assert paired_bootstrap([1, 0, 1], [1, 0, 1]) == Interval(0.0, 0.0, 0.0)


def test_bootstrap_refuses_bad_values() -> None:
    with pytest.raises(ValueError, match="finite"):
        paired_bootstrap([1.0, math.nan], [1.0, 1.0])
    with pytest.raises(ValueError, match="at least 2"):
        paired_bootstrap([1.0], [1.0])
    with pytest.raises(ValueError, match="positive"):
        paired_bootstrap([1.0, 2.0], [1.0, 1.0], weights=[1.0, 0.0])
    for weight in (math.inf, math.nan):
        with pytest.raises(ValueError, match="positive finite"):
            paired_bootstrap([1.0, 2.0], [1.0, 1.0], weights=[1.0, weight])
