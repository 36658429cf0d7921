"""Statistics against the thesis's table, against naive formulas and at their borders."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabx_utils import statistics as stats
from vocabx_utils import thesis


@pytest.mark.parametrize("row", thesis.RESULTS, ids=lambda row: f"{row.recipe}-{row.variant}")
def test_z_test_gives_every_p_value_of_the_thesis(row: thesis.ResultRow) -> None:
    total = thesis.COMBINED_TOTAL
    p_value = stats.two_proportion_z_test(row.combined, total, thesis.REFERENCE.combined, total).p_value
    if row.p_value is None:
        assert p_value == 1.0
    elif row.p_is_bound:
        assert p_value < row.p_value
    else:
        assert round(p_value, 3) == row.p_value


def test_difference_interval_by_newcombe() -> None:
    """Newcombe 1998, table II, (a): 56/70 - 48/80, method 10."""
    interval = stats.difference_interval(56, 70, 48, 80)
    assert interval.estimate == pytest.approx(0.2)
    assert (interval.low, interval.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)


def test_z_test_sign_and_symmetry() -> None:
    result = stats.two_proportion_z_test(40, 100, 20, 100)
    back = stats.two_proportion_z_test(20, 100, 40, 100)
    assert result.statistic > 0 > back.statistic
    assert result.p_value == pytest.approx(back.p_value)


@pytest.mark.parametrize("k", [0, 10])
def test_z_test_of_equal_extremes_is_no_difference(k: int) -> None:
    assert stats.two_proportion_z_test(k, 10, k, 10).p_value == 1.0


@pytest.mark.parametrize("counts", [(-1, 10, 1, 10), (11, 10, 1, 10), (0, 0, 1, 10)])
def test_z_test_refuses_impossible_counts(counts: tuple[int, int, int, int]) -> None:
    with pytest.raises(ValueError, match="passed <= total"):
        stats.two_proportion_z_test(*counts)


@given(st.integers(0, 30), st.integers(0, 30))
@settings(deadline=None, max_examples=40)
def test_mcnemar_equals_the_binomial_sum(only_first: int, only_second: int) -> None:
    first = [True] * only_first + [False] * only_second + [True, False]
    second = [False] * only_first + [True] * only_second + [True, False]
    n, low = only_first + only_second, min(only_first, only_second)
    naive = min(1.0, 2 * sum(math.comb(n, i) for i in range(low + 1)) / 2**n)
    assert stats.mcnemar_test(first, second).p_value == pytest.approx(naive, abs=1e-12)


def test_mcnemar_refuses_unpaired_or_other_values() -> None:
    with pytest.raises(ValueError, match="same problems"):
        stats.mcnemar_test([True], [True, False])
    with pytest.raises(ValueError, match="booleans"):
        stats.mcnemar_test([2], [1])
    with pytest.raises(ValueError, match="at least 1"):
        stats.mcnemar_test([], [])


def test_holm_by_hand() -> None:
    assert stats.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert stats.holm([]).size == 0
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        stats.holm([0.2, 1.2])
    with pytest.raises(ValueError, match=r"\[0, 1\]"):
        stats.holm([math.nan])


def test_wilson_by_formula() -> None:
    k, n, z = 91, 164, 1.959963984540054
    interval = stats.wilson_interval(k, n)
    rate = k / n
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert (interval.low, interval.high) == pytest.approx((centre - half, centre + half))
    half = stats.wilson_interval(50, 100)
    assert (half.low, half.high) == pytest.approx((0.40383, 0.59617), abs=1e-5)  # Wilson (1927), 50 of 100
    assert stats.wilson_interval(0, 20).low == pytest.approx(0.0, abs=1e-12)


def test_paired_rates_agree_with_mcnemar() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        one, two = rng.random((2, 25)) < [[0.7], [0.4]]
        interval = stats.paired_rate_difference(one, two)
        assert interval.low <= interval.estimate <= interval.high
        significant = stats.mcnemar_test(one, two).p_value < 0.05
        assert (interval.low > 0 or interval.high < 0) == significant
    same = stats.paired_rate_difference([False] * 6, [False] * 6)
    assert same.estimate == 0 and same.high == -same.low > 0.3  # six equal verdicts exclude little


def test_paired_rates_cover_the_truth() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(500):
        kinds = rng.choice(3, 20, p=[0.7, 0.25, 0.05])
        interval = stats.paired_rate_difference(kinds == 1, kinds == 2)
        covered += interval.low <= 0.2 <= interval.high
    assert covered / 500 >= 0.95


def test_contrast_of_two_is_newcombe() -> None:
    contrast, known = stats.rate_contrast([(56, 70), (48, 80)], (1, -1)), stats.difference_interval(56, 70, 48, 80)
    assert (contrast.estimate, contrast.low, contrast.high) == pytest.approx((known.estimate, known.low, known.high))


def test_detectable_difference_paired_and_unreachable() -> None:
    independent = stats.smallest_detectable_difference(0.3, 1000)
    paired = stats.smallest_detectable_difference(0.3, 1000, discordant=0.1)
    assert 0 < paired < independent
    assert math.isnan(stats.smallest_detectable_difference(0.99, 10))
    assert math.isnan(stats.smallest_detectable_difference(0.3, 10, discordant=0.01))
    with pytest.raises(ValueError, match="rate"):
        stats.smallest_detectable_difference(1.0, 10)


@pytest.mark.parametrize("n", [164, 1140, 1951])
def test_detectable_difference_has_the_power_of_the_exact_mcnemar_test(n: int) -> None:
    gain = stats.smallest_detectable_difference(0.26, n, discordant=0.1)
    rng = np.random.default_rng(0)
    better = (0.1 + gain) / 2
    splits = rng.multinomial(n, [better, 0.1 - better, 0.9], 20_000)
    from scipy.stats import binom

    p_values = 2 * binom.cdf(splits[:, :2].min(1), splits[:, :2].sum(1), 0.5)
    assert np.mean(p_values < 0.05) == pytest.approx(0.8, abs=0.009)


@pytest.mark.parametrize("n", [50, 1951])
def test_detectable_difference_has_the_power_of_the_z_test(n: int) -> None:
    gain = stats.smallest_detectable_difference(0.26, n)
    rng = np.random.default_rng(0)
    pairs = zip(rng.binomial(n, 0.26, 2000), rng.binomial(n, 0.26 + gain, 2000), strict=True)
    hits = [stats.two_proportion_z_test(int(a), n, int(b), n).p_value < 0.05 for a, b in pairs]
    assert np.mean(hits) == pytest.approx(0.8, abs=0.03)


def test_pass_at_k_counts_subsets() -> None:
    for answers, passed, k in ((5, 2, 1), (5, 2, 3), (4, 0, 2), (4, 4, 4), (6, 1, 6)):
        verdicts = [True] * passed + [False] * (answers - passed)
        subsets = list(itertools.combinations(verdicts, k))
        assert stats.pass_at_k(answers, passed, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    with pytest.raises(ValueError, match="k <= answers"):
        stats.pass_at_k(3, 1, 4)
