"""Tests and intervals of pass counts, k of n problems, computed by scipy and statsmodels.

The thesis compares combined pass counts by a two-proportion z-test. All models answer the same problems, so the exact
McNemar test and its interval, which use this pairing, stand beside it. Every interval holds for small samples: it is
exact or made of score intervals. Paired verdicts are booleans of the same problems in the same order, (problems,).
What cannot be (counts, coverages, lengths, verdicts other than 0 and 1) raises ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.stats import binom, norm
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.proportion import confint_proportions_2indep, proportion_confint, proportions_ztest

from vocabx_utils.intervals import CONFIDENCE, Floats, Interval, paired_values, require_fraction

_ALPHA = 0.05  # largest chance of a difference where there is none, of the tests that power is computed for


@dataclass(frozen=True)
class Significance:
    """What a two-sided test found: the statistic and the p-value in [0, 1]."""

    statistic: float
    p_value: float


def two_proportion_z_test(k1: int, n1: int, k2: int, n2: int) -> Significance:
    """Test whether two pass rates differ, with the pooled variance (thesis, table `combined_results`).

    z is positive where the first rate is higher. Two rates that are both 0 or both 1 have no variance; they are equal,
    so z is 0 and p is 1.
    """
    _check_counts((k1, n1), (k2, n2))
    if k1 + k2 in (0, n1 + n2):
        return Significance(0.0, 1.0)
    statistic, p_value = proportions_ztest([k1, k2], [n1, n2])
    return Significance(float(statistic), float(p_value))


def mcnemar_test(first: ArrayLike, second: ArrayLike) -> Significance:
    """Test exactly (McNemar) whether two models pass equally many: smaller discordant count and p-value."""
    one, two = _verdicts(first, second)
    table = [[int(np.sum(a & b)) for b in (two, ~two)] for a in (one, ~one)]
    if table[0][1] + table[1][0] == 0:
        return Significance(0.0, 1.0)
    result = mcnemar(table, exact=True)
    return Significance(float(result.statistic), min(1.0, float(result.pvalue)))


def holm(p_values: Sequence[float]) -> Floats:
    """Adjust the p-values of one family of tests by Holm's step-down method, in their order.

    >>> holm([0.01, 0.04, 0.03]).tolist()
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    if not np.all((values >= 0) & (values <= 1)):
        raise ValueError(f"p-values must lie in [0, 1], got {list(p_values)}")
    return np.asarray(multipletests(values, method="holm")[1], dtype=np.float64) if values.size else values


def wilson_interval(k: int, n: int) -> Interval:
    """Return the pass rate with its Wilson interval."""
    return _share(k, n, CONFIDENCE, "wilson")


def exact_interval(k: int, n: int, confidence: float = CONFIDENCE) -> Interval:
    """Return a share with its exact (Clopper-Pearson) interval; without a trial it lies anywhere between 0 and 1."""
    require_fraction(confidence, "confidence")
    return Interval(math.nan, 0.0, 1.0) if k == n == 0 else _share(k, n, confidence, "beta")


def _share(k: int, n: int, confidence: float, method: str) -> Interval:
    _check_counts((k, n))
    require_fraction(confidence, "confidence")
    low, high = proportion_confint(k, n, alpha=1 - confidence, method=method)
    return Interval(k / n, float(low), float(high))


def difference_interval(k1: int, n1: int, k2: int, n2: int, confidence: float = CONFIDENCE) -> Interval:
    """Return the difference k1/n1 - k2/n2 of two pass rates with Newcombe's interval, for counts alone.

    The limits ignore that both answered the same problems.
    """
    _check_counts((k1, n1), (k2, n2))
    require_fraction(confidence, "confidence")
    low, high = confint_proportions_2indep(k1, n1, k2, n2, method="newcomb", compare="diff", alpha=1 - confidence)
    return Interval(k1 / n1 - k2 / n2, float(low), float(high))


def paired_rate_difference(first: ArrayLike, second: ArrayLike) -> Interval:
    """Return the difference of two pass rates on the same problems with limits that agree with the exact McNemar test.

    The difference is the share of problems with different verdicts, times how unevenly they split. Both factors have
    an exact (Clopper-Pearson) interval, and the limits are their extreme products: they exclude 0 exactly where
    `mcnemar_test` gives a p-value below 0.05, and stay apart where no verdict differs.
    """
    one, two = _verdicts(first, second)
    only_one, only_two = int(np.sum(one & ~two)), int(np.sum(two & ~one))
    differing, n = only_one + only_two, one.size
    share, split = exact_interval(differing, n), exact_interval(only_one, differing)
    products = [(2 * part - 1) * size for part in (split.low, split.high) for size in (share.low, share.high)]
    return Interval((only_one - only_two) / n, min(products), max(products))


def rate_contrast(counts: Sequence[tuple[int, int]], signs: Sequence[int]) -> Interval:
    """Return sum and difference of pass rates with limits from the Wilson interval of each (MOVER).

    With signs (1, -1) these are Newcombe's limits, see `difference_interval`; an interaction has (1, -1, -1, 1). The
    limits ignore that all answered the same problems.

    Source:
        Zou & Donner 2008, Construction of confidence limits about effect measures (MOVER).
    """
    if len(counts) != len(signs) or not set(signs) <= {1, -1}:
        raise ValueError(f"expected a sign of 1 or -1 for each of {len(counts)} counts, got {list(signs)}")
    rates = [wilson_interval(k, n) for k, n in counts]
    estimate = sum(sign * rate.estimate for sign, rate in zip(signs, rates, strict=True))
    arms = [(rate.estimate - rate.low, rate.high - rate.estimate) for rate in rates]
    below = math.hypot(*(arm[sign < 0] for sign, arm in zip(signs, arms, strict=True)))
    above = math.hypot(*(arm[sign > 0] for sign, arm in zip(signs, arms, strict=True)))
    return Interval(estimate, estimate - below, estimate + above)


def pass_at_k(answers: int, passed: int, k: int) -> float:
    """Estimate pass@k of one problem without bias: the chance that one of k of the drawn answers passes.

    Source:
        Chen et al. 2021, equation 1.
    """
    if not 0 <= passed <= answers or not 1 <= k <= answers:
        raise ValueError(f"expected 0 <= passed <= answers and 1 <= k <= answers, got {passed}, {answers}, k={k}")
    return 1.0 - math.comb(answers - passed, k) / math.comb(answers, k)


def smallest_detectable_difference(
    rate: float, n: int, *, power: float = 0.8, discordant: float | None = None
) -> float:
    """Return the smallest gain over a pass rate that the reported two-sided test on n problems finds with this power.

    Without `discordant` the test is the thesis's two-proportion z-test (two independent groups of n). With it the
    test is the exact McNemar test on n pairs, of which the share `discordant` has different verdicts on average.
    The power is summed over all outcomes, without an approximation. NaN where even the largest possible gain is not
    detectable.
    """
    if not 0 <= rate < 1 or n < 2:
        raise ValueError(f"expected a rate in [0, 1) and at least 2 problems, got rate={rate}, n={n}")
    require_fraction(power, "power")
    if discordant is not None and not 0 < discordant <= 1:
        raise ValueError(f"the discordant share must lie in (0, 1], got {discordant}")

    def excess(gain: float) -> float:
        if discordant is None:
            return _z_test_power(rate, gain, n) - power
        return _mcnemar_power(discordant, gain, n) - power

    largest = 1 - rate if discordant is None else discordant
    return float(brentq(excess, 0.0, largest, xtol=1e-7)) if excess(largest) > 0 else math.nan


def _mcnemar_power(discordant: float, gain: float, n: int) -> float:
    differing = np.arange(1, n + 1)
    chance = binom.pmf(differing, n, discordant)
    differing, chance = differing[chance > 1e-12], chance[chance > 1e-12]
    needed = binom.isf(_ALPHA / 2, differing, 0.5) + 1  # the smallest one-sided count whose p-value is below it
    better = min(1.0, (1 + gain / discordant) / 2)
    found = binom.sf(needed - 1, differing, better) + binom.cdf(differing - needed, differing, better)
    return float((chance * found).sum())


def _z_test_power(rate: float, gain: float, n: int) -> float:
    k = np.arange(n + 1)
    one, two = binom.pmf(k, n, rate), binom.pmf(k, n, min(1.0, rate + gain))
    k1, k2 = k[one > 1e-12], k[two > 1e-12]
    pooled = (k1[:, None] + k2) / (2 * n)  # (k1, k2)
    gap, variance = np.abs(k1[:, None] - k2) / n, pooled * (1 - pooled) * 2 / n
    found = (gap**2 > variance * norm.isf(_ALPHA / 2) ** 2) & (gap > 0)
    return float(one[k1] @ found @ two[k2])


def _verdicts(first: ArrayLike, second: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    pair = paired_values(first, second, minimum=1)
    if not all(np.all((values == 0) | (values == 1)) for values in pair):
        raise ValueError("verdicts must be booleans or 0 and 1")
    return pair[0].astype(bool), pair[1].astype(bool)


def _check_counts(*counts: tuple[int, int]) -> None:
    for k, n in counts:
        if n <= 0 or not 0 <= k <= n:
            raise ValueError(f"expected 0 <= passed <= total and a positive total, got {k} of {n}")
