"""Student's intervals against scipy and against simpler cases of themselves, and the rule of decision."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from vocabx_utils import intervals as i


def limits(interval: i.Interval) -> tuple[float, float, float]:
    return interval.estimate, interval.low, interval.high


def test_mean_is_scipys_and_one_value_bounds_nothing() -> None:
    values = [0.1, 0.5, 0.2, 0.9]
    low, high = stats.t.interval(0.9, 3, np.mean(values), stats.sem(values))
    assert limits(i.mean_interval(values, 0.9)) == pytest.approx((np.mean(values), low, high))
    assert limits(i.mean_interval([2.0])) == (2.0, -math.inf, math.inf)
    assert math.isnan(i.mean_interval([]).estimate)


def test_ratio_over_equal_wholes_is_a_mean_with_the_jackknifes_error() -> None:
    parts, n = np.array([3.0, 1.0, 4.0, 1.0, 5.0]), 5
    ratio, mean = i.ratio_interval(parts, np.full(n, 2.0)), i.mean_interval(parts / 2)
    assert ratio.estimate == pytest.approx(mean.estimate)
    assert ratio.high - ratio.estimate == pytest.approx((mean.high - mean.estimate) * math.sqrt(n / (n - 1)))
    assert limits(i.ratio_interval([3.0], [4.0])) == (0.75, -math.inf, math.inf)


def test_difference_of_ratios_is_welchs() -> None:
    first, second = [(1, 10), (3, 10), (2, 10)], [(6, 10), (9, 10), (5, 10), (8, 10)]
    gap = i.ratio_difference(first, second)
    welch = stats.ttest_ind([a / b for a, b in first], [a / b for a, b in second], equal_var=False)
    assert gap.estimate == pytest.approx(0.2 - 0.7)
    assert gap.high < 0 and welch.pvalue < 0.05
    assert limits(i.ratio_difference([(1, 2)] * 2, [(1, 4)] * 2)) == (0.25, 0.25, 0.25)
    with pytest.raises(ValueError, match="at least 2 texts on each side, got 1 and 4"):
        i.ratio_difference(first[:1], second)
    with pytest.raises(ValueError, match="confidence must lie between 0 and 1, got 95"):
        i.ratio_difference(first, second, confidence=95)


def test_common_slope_of_one_line_is_scipys_and_levels_do_not_matter() -> None:
    x, y = np.arange(6.0), np.array([0.0, 1.1, 1.9, 3.2, 3.9, 5.1])
    fit = stats.linregress(x, y)
    half = stats.t.ppf(0.975, 4) * fit.stderr
    assert limits(i.slope_interval([(x, y)])) == pytest.approx((fit.slope, fit.slope - half, fit.slope + half))
    both = i.slope_interval([(x, y), (x + 3, y + 100)])
    assert both.estimate == pytest.approx(fit.slope) and both.high < fit.slope + half
    assert i.slope_interval([([0.0, 1.0], [0.0, 2.0])]).high == math.inf  # no point is left for the scatter
    assert math.isnan(i.slope_interval([([1.0], [2.0])]).estimate)


def test_a_claim_is_decided_only_where_an_interval_excludes_the_other_answer() -> None:
    below, across, above = i.Interval(0.1, 0.0, 0.2), i.Interval(0.3, 0.2, 0.6), i.Interval(0.9, 0.6, 1.0)
    assert [i.judge(found, 0.5) for found in (below, across, above)] == ["not confirmed", "cannot tell", "confirmed"]
    assert i.judge_all(["confirmed", "confirmed"]) == "confirmed"
    assert i.judge_all(["confirmed", "cannot tell"]) == i.judge_all([]) == "cannot tell"
    assert i.judge_all(["cannot tell", "not confirmed"]) == "not confirmed"
    assert [i.shared_level(parts) for parts in (0, 1, 5)] == pytest.approx([0.95, 0.95, 0.99])
