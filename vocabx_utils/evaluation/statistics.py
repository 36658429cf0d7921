"""Comparisons of pass counts and of scores per problem, all computed by scipy or statsmodels.

The thesis compares combined pass counts by a two-proportion z-test. All models answer the same problems,
so the exact McNemar test, its interval and the paired bootstrap, which use this pairing, stand beside it. Every
interval holds for small samples: it is exact, made of score intervals, simulated or studentised.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vocabx_utils.intervals import Interval, around, ratio_and_error


@dataclass(frozen=True)
class Outcome:
    """Outcome of a two-sided test: the statistic and the p-value in [0, 1]."""

    statistic: float
    p_value: float


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


def exact_interval(k: int, n: int, confidence: float = 0.95) -> Interval:
    """Return a share with its exact (Clopper-Pearson) interval; without a trial it lies anywhere between 0 and 1.

    Args:
        k: Hits.
        n: Trials.
        confidence: Coverage, between 0 and 1.

    Raises:
        ValueError: Impossible counts or coverage.
    """
    _check_fraction(confidence, "confidence")
    if k == n == 0:
        return Interval(math.nan, 0.0, 1.0)
    _check_counts(k, n)
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(k, n, alpha=1 - confidence, method="beta")
    return Interval(k / n, float(low), float(high))


def ratio_difference(
    first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]], *, confidence: float = 0.95
) -> Interval:
    """Return the difference of two ratios of sums, each over its own sample of texts.

    Tokens of one text are not independent, so the texts are the sample (Welch's interval on the linearised ratios).

    Args:
        first: Part and whole of each text, such as new tokens and all tokens.
        second: The same of other texts.
        confidence: Coverage, between 0 and 1.

    Returns:
        Ratio of the first minus ratio of the second with its limits.

    Raises:
        ValueError: Fewer than two texts on a side, or impossible coverage.
    """
    _check_fraction(confidence, "confidence")
    if min(len(first), len(second)) < 2:
        raise ValueError(f"expected at least 2 texts on each side, got {len(first)} and {len(second)}")
    columns = (np.asarray(rows, dtype=np.float64).T for rows in (first, second))
    (one, error_one), (two, error_two) = (map(float, ratio_and_error(*column)) for column in columns)
    variance = error_one**2 + error_two**2
    estimate = one - two
    if variance == 0:
        return Interval(estimate, estimate, estimate)
    freedom = variance**2 / (error_one**4 / (len(first) - 1) + error_two**4 / (len(second) - 1))
    return around(estimate, math.sqrt(variance), freedom, confidence)


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


def paired_rate_difference(first: ArrayLike, second: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Return the difference of two pass rates on the same problems with limits that agree with the exact McNemar test.

    The difference is the share of problems with different verdicts, times how unevenly they split. Both factors have
    an exact (Clopper-Pearson) interval, and the limits are their extreme products: they exclude 0 exactly where
    `mcnemar_test` gives a p-value below 1 - confidence, and stay apart where no verdict differs.

    Args:
        first: Verdicts of the first model, boolean, shape (problems,).
        second: Verdicts of the second model on the same problems in the same order.
        confidence: Coverage, between 0 and 1.

    Returns:
        first - second in pass rate, in [-1, 1], with its limits.

    Raises:
        ValueError: Different lengths, no problem, values other than 0 and 1, or impossible coverage.
    """
    one, two = _verdicts(first, second)
    _check_fraction(confidence, "confidence")
    only_one, only_two = int(np.sum(one & ~two)), int(np.sum(two & ~one))
    differing, n = only_one + only_two, one.size
    share, split = exact_interval(differing, n, confidence), exact_interval(only_one, differing, confidence)
    products = [(2 * part - 1) * size for part in (split.low, split.high) for size in (share.low, share.high)]
    return Interval((only_one - only_two) / n, min(products), max(products))


def rate_contrast(counts: Sequence[tuple[int, int]], signs: Sequence[int], *, confidence: float = 0.95) -> Interval:
    """Return a sum and difference of pass rates with limits from the Wilson interval of each (MOVER).

    With signs (1, -1) these are Newcombe's limits, see `difference_interval`; an interaction has (1, -1, -1, 1).

    Args:
        counts: Passed and all problems of each model.
        signs: 1 or -1 for each.
        confidence: Coverage, between 0 and 1.

    Returns:
        The contrast with its limits, which ignore that all answered the same problems.

    Raises:
        ValueError: Impossible counts, coverage or signs.

    Source:
        Zou & Donner 2008, Construction of confidence limits about effect measures (MOVER).
    """
    if len(counts) != len(signs) or not set(signs) <= {1, -1}:
        raise ValueError(f"expected a sign of 1 or -1 for each of {len(counts)} counts, got {list(signs)}")
    rates = [wilson_interval(k, n, confidence) for k, n in counts]
    estimate = sum(sign * rate.estimate for sign, rate in zip(signs, rates, strict=True))
    low = [rate.estimate - rate.low for rate in rates]
    high = [rate.high - rate.estimate for rate in rates]
    below = math.hypot(*(a if sign > 0 else b for sign, a, b in zip(signs, low, high, strict=True)))
    above = math.hypot(*(b if sign > 0 else a for sign, a, b in zip(signs, low, high, strict=True)))
    return Interval(estimate, estimate - below, estimate + above)


def rank_correlation(first: ArrayLike, second: ArrayLike, *, confidence: float = 0.95) -> Interval:
    """Return Spearman's correlation with limits that hold for a handful of pairs.

    The limits are all true correlations under which the observed one is not in either tail. How the observed one is
    distributed under each is simulated for normal data of this size (seed 0), because the textbook formula, Fisher's
    z, does not hold for ten pairs and less.

    Args:
        first: One value per item, shape (items,).
        second: The other values of the same items.
        confidence: Coverage, between 0 and 1.

    Returns:
        The correlation with its limits, each in [-1, 1]; ``nan`` with limits -1 and 1 where a side has one value only.

    Raises:
        ValueError: Different lengths, fewer than three pairs, or values that are not finite.
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    _check_paired(one, two, minimum=3)
    _check_fraction(confidence, "confidence")
    if np.ptp(one) == 0 or np.ptp(two) == 0:
        return Interval(math.nan, -1.0, 1.0)
    from scipy.stats import spearmanr

    rho = float(spearmanr(one, two).statistic)
    true, low, high = _rank_tails(one.size, confidence)
    inside = true[(low <= rho + 1e-9) & (rho - 1e-9 <= high)]
    if inside.size == 0:  # only where |rho| is 1 and even the ends of the grid give it too rarely
        inside = np.array([math.copysign(1.0, rho)])
    return Interval(rho, float(inside.min()), float(inside.max()))


@functools.lru_cache(maxsize=32)
def _rank_tails(
    items: int, confidence: float, draws: int = 4_000
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """True rank correlations on a grid of 0.02, and the central range of the observed one under each."""
    true = np.linspace(-1, 1, 101)
    rng = np.random.default_rng(0)
    shared, own = rng.standard_normal((2, draws, items))
    ranks = shared.argsort(1).argsort(1)
    low, high = np.empty_like(true), np.empty_like(true)
    for place, value in enumerate(true):
        linear = 2 * math.sin(math.pi * value / 6)  # Pearson's correlation of normal data with this rank correlation
        other = linear * shared + math.sqrt(max(0.0, 1 - linear**2)) * own
        gaps = (ranks - other.argsort(1).argsort(1)).astype(np.float64)
        found = 1 - 6 * (gaps**2).sum(1) / (items * (items**2 - 1))
        low[place] = np.quantile(found, (1 - confidence) / 2, method="lower")
        high[place] = np.quantile(found, (1 + confidence) / 2, method="higher")
    return true, low, high


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    weights: ArrayLike | None = None,
) -> Interval:
    """Return the mean difference first - second of a score, such as bits, with a studentised bootstrap interval.

    Each resample of the problems is measured in its own standard error (bootstrap-t), and the limits are nowhere
    closer than Student's. This keeps the coverage on a dozen texts, where the percentile method is too
    narrow. Verdicts have `paired_rate_difference`.

    Args:
        first: One value per problem, shape (problems,).
        second: Values of the other model on the same problems in the same order.
        confidence: Coverage, between 0 and 1.
        resamples: Number of bootstrap samples of the problems.
        seed: Seed of the resampling; the same seed gives the same limits.
        weights: Positive weight per problem. With bits as values and bytes as weights the difference is that
            of the bits per byte of the whole corpus: sum(bits) / sum(bytes).

    Returns:
        The mean difference with its limits; infinite limits where the sample is too small to bound it.

    Raises:
        ValueError: Different lengths, fewer than two problems, values that are not finite, weights that are
            not positive and finite.

    Source:
        Efron & Tibshirani, An Introduction to the Bootstrap, chapter 12.5; the standard error of a ratio is the
        jackknife's.
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    _check_paired(one, two, minimum=2)
    sizes = np.ones_like(one) if weights is None else np.asarray(weights, dtype=np.float64)
    if sizes.shape != one.shape or not np.all((sizes > 0) & np.isfinite(sizes)):
        raise ValueError(f"weights must be {one.size} positive finite numbers, got shape {sizes.shape}: {sizes}")
    _check_fraction(confidence, "confidence")
    gaps = one - two
    estimate, error = (float(value) for value in ratio_and_error(gaps, sizes))
    # Equal gaps have no spread, whatever is resampled; what remains of it is rounding.
    if error <= 1e-12 * max(1.0, abs(estimate)):
        return Interval(estimate, estimate, estimate)
    rng = np.random.default_rng(seed)
    scaled: list[NDArray[np.float64]] = []
    for start in range(0, resamples, 1_000):
        rows = rng.integers(0, gaps.size, (min(1_000, resamples - start), gaps.size))
        ratio, spread = ratio_and_error(gaps[rows], sizes[rows])
        off = ratio - estimate
        with np.errstate(divide="ignore"):
            scaled.append(np.where(spread > 1e-9 * error, off / spread, np.copysign(np.inf, off)))
    tails = [(1 - confidence) / 2, (1 + confidence) / 2]
    low, high = np.quantile(np.concatenate(scaled), tails, method="nearest")
    from scipy.stats import t

    student = float(t.ppf(tails[1], gaps.size - 1))
    return Interval(
        estimate, estimate - max(float(high), student) * error, estimate - min(float(low), -student) * error
    )


def smallest_detectable_difference(
    rate: float, n: int, *, power: float = 0.8, alpha: float = 0.05, discordant: float | None = None
) -> float:
    """Return the smallest gain in pass rate that the reported two-sided test on n problems finds with this power.

    Without ``discordant`` the test is the thesis's two-proportion z-test (two independent groups of n). With it the
    test is the exact McNemar test on n pairs, of which the share ``discordant`` has different verdicts on average.
    The power is summed over all outcomes, without an approximation.

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
    if discordant is not None and not 0 < discordant <= 1:
        raise ValueError(f"the discordant share must lie in (0, 1], got {discordant}")
    from scipy.optimize import brentq

    def excess(gain: float) -> float:
        if discordant is None:
            return _z_test_power(rate, gain, n, alpha) - power
        return _mcnemar_power(discordant, gain, n, alpha) - power

    largest = 1 - rate if discordant is None else discordant
    return float(brentq(excess, 0.0, largest, xtol=1e-7)) if excess(largest) > 0 else math.nan


def _mcnemar_power(discordant: float, gain: float, n: int, alpha: float) -> float:
    from scipy.stats import binom

    differing = np.arange(1, n + 1)
    chance = binom.pmf(differing, n, discordant)
    differing, chance = differing[chance > 1e-12], chance[chance > 1e-12]
    needed = binom.isf(alpha / 2, differing, 0.5) + 1  # the smallest one-sided count whose p-value is below alpha
    better = min(1.0, (1 + gain / discordant) / 2)
    found = binom.sf(needed - 1, differing, better) + binom.cdf(differing - needed, differing, better)
    return float((chance * found).sum())


def _z_test_power(rate: float, gain: float, n: int, alpha: float) -> float:
    from scipy.stats import binom, norm

    k = np.arange(n + 1)
    one, two = binom.pmf(k, n, rate), binom.pmf(k, n, min(1.0, rate + gain))
    k1, k2 = k[one > 1e-12], k[two > 1e-12]
    pooled = (k1[:, None] + k2) / (2 * n)
    gap, variance = np.abs(k1[:, None] - k2) / n, pooled * (1 - pooled) * 2 / n
    found = (gap**2 > variance * norm.isf(alpha / 2) ** 2) & (gap > 0)
    return float(one[k1] @ found @ two[k2])


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
