"""Comparisons of pass counts and of scores per problem, all computed by scipy or statsmodels.

The thesis compares combined pass counts by a two-proportion z-test. All models answer the same problems,
so the exact McNemar test and the paired bootstrap, which use this pairing, stand beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Outcome:
    """Outcome of a two-sided test: the statistic and the p-value in [0, 1]."""

    statistic: float
    p_value: float


@dataclass(frozen=True)
class Interval:
    """A point estimate with the lower and upper limit of its confidence interval."""

    estimate: float
    low: float
    high: float


def two_proportion_z_test(k1: int, n1: int, k2: int, n2: int) -> Outcome:
    """Test whether two pass rates differ, with the pooled variance (thesis, table ``combined_results``).

    Args:
        k1: Passed problems of the first model.
        n1: Problems given to the first model.
        k2: Passed problems of the second model.
        n2: Problems given to the second model.

    Returns:
        The z statistic (positive where the first rate is higher) and the two-sided p-value. Two rates that
        are both 0 or both 1 have no variance; they are equal, so z is 0 and p is 1.

    Raises:
        ValueError: A count is negative, or larger than its total, or a total is not positive.
    """
    _check_counts(k1, n1)
    _check_counts(k2, n2)
    if k1 + k2 in (0, n1 + n2):
        return Outcome(0.0, 1.0)
    from statsmodels.stats.proportion import proportions_ztest

    statistic, p_value = proportions_ztest([k1, k2], [n1, n2])
    return Outcome(float(statistic), float(p_value))


def mcnemar_test(first: ArrayLike, second: ArrayLike) -> Outcome:
    """Test whether two models pass equally many of the same problems (exact McNemar test).

    Args:
        first: Verdicts of the first model, boolean, shape (problems,).
        second: Verdicts of the second model on the same problems in the same order.

    Returns:
        The smaller of the two discordant counts, and the exact two-sided p-value.

    Raises:
        ValueError: The two have different lengths, no problem, or values other than 0 and 1.
    """
    from statsmodels.stats.contingency_tables import mcnemar

    one, two = _verdicts(first, second)
    table = [
        [int(np.sum(one & two)), int(np.sum(one & ~two))],
        [int(np.sum(~one & two)), int(np.sum(~one & ~two))],
    ]
    if table[0][1] + table[1][0] == 0:
        return Outcome(0.0, 1.0)
    result = mcnemar(table, exact=True)
    return Outcome(float(result.statistic), min(1.0, float(result.pvalue)))


def holm(p_values: Sequence[float]) -> NDArray[np.float64]:
    """Adjust p-values of one family of tests by Holm's step-down method.

    Args:
        p_values: The p-values, each in [0, 1].

    Returns:
        Adjusted p-values in the same order, float64; empty for no test.

    Raises:
        ValueError: A value lies outside [0, 1] or is not a number.
    """
    values = np.asarray(p_values, dtype=np.float64)
    if values.size == 0:
        return values
    if not np.all((values >= 0) & (values <= 1)):
        raise ValueError(f"p-values must lie in [0, 1], got {list(p_values)}")
    from statsmodels.stats.multitest import multipletests

    return np.asarray(multipletests(values, method="holm")[1], dtype=np.float64)


def wilson_interval(k: int, n: int, confidence: float = 0.95) -> Interval:
    """Return a pass rate with its Wilson interval.

    Args:
        k: Passed problems.
        n: Problems.
        confidence: Coverage, between 0 and 1.

    Returns:
        The rate k/n with its limits.

    Raises:
        ValueError: Impossible counts or coverage.
    """
    _check_counts(k, n)
    _check_fraction(confidence, "confidence")
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(k, n, alpha=1 - confidence, method="wilson")
    return Interval(k / n, float(low), float(high))


def difference_interval(k1: int, n1: int, k2: int, n2: int, confidence: float = 0.95) -> Interval:
    """Return the difference of two pass rates with Newcombe's interval, for counts without verdicts per problem.

    Args:
        k1: Passed problems of the first model.
        n1: Problems given to the first model.
        k2: Passed problems of the second model.
        n2: Problems given to the second model.
        confidence: Coverage, between 0 and 1.

    Returns:
        k1/n1 - k2/n2 with its limits, which ignore that both answered the same problems.

    Raises:
        ValueError: Impossible counts or coverage.
    """
    _check_counts(k1, n1)
    _check_counts(k2, n2)
    _check_fraction(confidence, "confidence")
    from statsmodels.stats.proportion import confint_proportions_2indep

    low, high = confint_proportions_2indep(k1, n1, k2, n2, method="newcomb", compare="diff", alpha=1 - confidence)
    return Interval(k1 / n1 - k2 / n2, float(low), float(high))


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    weights: ArrayLike | None = None,
) -> Interval:
    """Return the mean difference first - second with a percentile bootstrap interval over problems.

    Works on verdicts (difference of pass rates) and on any score per problem, such as bits.

    Args:
        first: One value per problem, shape (problems,).
        second: Values of the other model on the same problems in the same order.
        confidence: Coverage, between 0 and 1.
        resamples: Number of bootstrap samples of the problems.
        seed: Seed of the resampling; the same seed gives the same limits.
        weights: Positive weight per problem. With bits as values and bytes as weights the difference is that
            of the bits per byte of the whole corpus: sum(bits) / sum(bytes).

    Returns:
        The mean difference with its limits.

    Raises:
        ValueError: Different lengths, fewer than two problems, values that are not finite, weights that are
            not positive.
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    _check_paired(one, two, minimum=2)
    sizes = np.ones_like(one) if weights is None else np.asarray(weights, dtype=np.float64)
    if sizes.shape != one.shape or not np.all(sizes > 0):
        raise ValueError(f"weights must be {one.size} positive numbers, got shape {sizes.shape}")
    _check_fraction(confidence, "confidence")
    difference = one - two
    estimate = float(difference.sum() / sizes.sum())
    if np.allclose(difference, estimate * sizes, rtol=0, atol=1e-15):
        return Interval(estimate, estimate, estimate)
    from scipy.stats import bootstrap

    def ratio(values: NDArray[np.float64], sizes: NDArray[np.float64], axis: int = -1) -> NDArray[np.float64]:
        return values.sum(axis=axis) / sizes.sum(axis=axis)

    result = bootstrap(
        (difference, sizes),
        ratio,
        paired=True,
        vectorized=True,
        n_resamples=resamples,
        batch=1_000,
        confidence_level=confidence,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    interval = result.confidence_interval
    return Interval(estimate, float(interval.low), float(interval.high))


def smallest_detectable_difference(
    rate: float, n: int, *, power: float = 0.8, alpha: float = 0.05, discordant: float | None = None
) -> float:
    """Return the smallest gain in pass rate that a two-sided test on n problems would have detected.

    Without ``discordant`` the test is the thesis's two-proportion z-test (two independent groups of n; effect
    size h of Cohen). With it the test is McNemar's on n pairs, of which the share ``discordant`` has
    different verdicts (Connor's normal approximation).

    Args:
        rate: Pass rate of the reference model, in [0, 1).
        n: Problems answered by each model.
        power: Probability with which the difference is to be found.
        alpha: Two-sided level of significance.
        discordant: Share of problems that exactly one of the two models passes, in (0, 1].

    Returns:
        Difference in pass rate, in (0, 1]; ``nan`` where even the largest possible one is not detectable.

    Raises:
        ValueError: An argument out of range.
    """
    if not 0 <= rate < 1 or n < 2:
        raise ValueError(f"expected a rate in [0, 1) and at least 2 problems, got rate={rate}, n={n}")
    _check_fraction(power, "power")
    _check_fraction(alpha, "alpha")
    if discordant is not None:
        return _detectable_paired(discordant, n, power, alpha)
    from statsmodels.stats.power import NormalIndPower

    effect = float(NormalIndPower().solve_power(nobs1=n, alpha=alpha, power=power, ratio=1.0, alternative="two-sided"))
    angle = math.asin(math.sqrt(rate)) + effect / 2
    return math.sin(angle) ** 2 - rate if angle <= math.pi / 2 else math.nan


def _detectable_paired(discordant: float, n: int, power: float, alpha: float) -> float:
    from scipy.optimize import brentq
    from scipy.stats import norm

    if not 0 < discordant <= 1:
        raise ValueError(f"the discordant share must lie in (0, 1], got {discordant}")
    z_alpha, z_power = float(norm.ppf(1 - alpha / 2)), float(norm.ppf(power))

    def excess(difference: float) -> float:
        spread = z_alpha * math.sqrt(discordant) + z_power * math.sqrt(discordant - difference**2)
        return difference - spread / math.sqrt(n)

    return float(brentq(excess, 0.0, discordant)) if excess(discordant) > 0 else math.nan


def _verdicts(first: ArrayLike, second: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    one, two = np.asarray(first), np.asarray(second)
    _check_paired(one, two, minimum=1)
    for values in (one, two):
        if not np.all((values == 0) | (values == 1)):
            raise ValueError("verdicts must be booleans or 0 and 1")
    return one.astype(bool), two.astype(bool)


def _check_paired(one: NDArray, two: NDArray, minimum: int) -> None:
    if one.shape != two.shape or one.ndim != 1:
        raise ValueError(f"both models need one value for the same problems, got shapes {one.shape} and {two.shape}")
    if one.size < minimum:
        raise ValueError(f"expected at least {minimum} problems, got {one.size}")
    if not (np.all(np.isfinite(one)) and np.all(np.isfinite(two))):
        raise ValueError("a value is not finite: drop such problems for both models first")


def _check_counts(k: int, n: int) -> None:
    if n <= 0 or not 0 <= k <= n:
        raise ValueError(f"expected 0 <= passed <= total and a positive total, got {k} of {n}")


def _check_fraction(value: float, name: str) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {value}")
