"""Intervals without a formula that holds for few values: resampled (bootstrap) or simulated, from a fixed seed."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm, spearmanr, t

from vocabx_utils.intervals import CONFIDENCE, Floats, Interval, paired_values, ratio_and_error, require_fraction


def bootstrap_mean(values: ArrayLike, *, draws: int = 1000, confidence: float = CONFIDENCE, seed: int = 0) -> Interval:
    """Return the mean of the finite values with a percentile bootstrap interval, for hundreds of tokens.

    All is NaN where no value is finite; the limits equal the mean where one is. Source: Efron & Tibshirani, An
    Introduction to the Bootstrap, percentile method.
    """
    finite = np.asarray(values, dtype=np.float64)
    finite = finite[np.isfinite(finite)]
    if finite.size == 0:
        return Interval(math.nan, math.nan, math.nan)
    picks = np.random.default_rng(seed).integers(finite.size, size=(draws, finite.size))
    low, high = np.quantile(finite[picks].mean(1), _tails(confidence))
    return Interval(float(finite.mean()), float(low), float(high))


def paired_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    *,
    confidence: float = CONFIDENCE,
    resamples: int = 10_000,
    seed: int = 0,
    weights: ArrayLike | None = None,
) -> Interval:
    """Return the mean difference first - second of a score of the same problems, with a studentised bootstrap interval.

    Each resample of the problems is measured in its own standard error (bootstrap-t), and the limits are nowhere
    closer than Student's. This keeps the coverage on a dozen texts, where the percentile method is too narrow.
    Verdicts have `statistics.paired_rate_difference`.

    Args:
        weights: positive weight per problem. With bits as values and bytes as weights the difference is that of the
            bits per byte of the whole corpus: sum(bits) / sum(bytes).

    Returns:
        The mean difference with its limits; infinite limits where the sample is too small to bound it.

    Raises:
        ValueError: different lengths, fewer than two problems, values that are not finite, weights that are not
            positive and finite.

    Source:
        Efron & Tibshirani, An Introduction to the Bootstrap, chapter 12.5; the standard error of a ratio is the
        jackknife's.
    """
    one, two = paired_values(first, second, minimum=2)
    sizes = np.ones_like(one) if weights is None else np.asarray(weights, dtype=np.float64)
    if sizes.shape != one.shape or not np.all((sizes > 0) & np.isfinite(sizes)):
        raise ValueError(f"weights must be {one.size} positive finite numbers, got shape {sizes.shape}: {sizes}")
    require_fraction(confidence, "confidence")
    gaps = one - two
    estimate, error = (float(value) for value in ratio_and_error(gaps, sizes))
    # Equal gaps have no spread, whatever is resampled; what remains of it is rounding.
    if error <= 1e-12 * max(1.0, abs(estimate)):
        return Interval(estimate, estimate, estimate)
    rng = np.random.default_rng(seed)
    scaled: list[Floats] = []
    for start in range(0, resamples, 1_000):
        rows = rng.integers(0, gaps.size, (min(1_000, resamples - start), gaps.size))  # (resamples, problems)
        ratio, spread = ratio_and_error(gaps[rows], sizes[rows])
        off = ratio - estimate
        with np.errstate(divide="ignore"):
            scaled.append(np.where(spread > 1e-9 * error, off / spread, np.copysign(np.inf, off)))
    low, high = np.quantile(np.concatenate(scaled), _tails(confidence), method="nearest")
    student = float(t.ppf((1 + confidence) / 2, gaps.size - 1))
    return Interval(
        estimate, estimate - max(float(high), student) * error, estimate - min(float(low), -student) * error
    )


def crossed_bootstrap(
    first: ArrayLike,
    second: ArrayLike,
    sizes: ArrayLike,
    *,
    relative: bool = False,
    confidence: float = CONFIDENCE,
    resamples: int = 4_000,
    seed: int = 0,
) -> Interval:
    """Return the difference first - second of two means over the same texts, each measured with the same few seeds.

    Of each seed the mean is sum(values) / sum(sizes) over the texts, and the means of the seeds are averaged. Texts and
    seeds are drawn at once, for both sides alike. Of S seeds S - 1 are drawn, which keeps their variance unbiased (Rao
    and Wu 1988), and the limits are widened as Student's are, by the degrees of freedom that texts and seeds leave
    together (Satterthwaite).

    Args:
        first, second: (S, T) sums of S seeds over T texts, row by row of the same seed.
        sizes: (T,) what each text counts, such as its bytes or its compared places; 0 where it holds none.
        relative: give first / second - 1 instead of the difference.

    Returns:
        The estimate with its limits; infinite limits for a single seed or text.

    Raises:
        ValueError: shapes that do not fit, values that are not finite, sizes that are negative or all 0.

    Example:
        >>> sums = [[1.0, 2.0, 4.0], [1.2, 2.1, 4.4]]
        >>> crossed_bootstrap(sums, sums, [10, 20, 40]).high
        0.0
    """
    one, two, counts = (np.asarray(side, dtype=np.float64) for side in (first, second, sizes))
    if one.ndim != 2 or one.shape != two.shape or counts.shape != one.shape[1:]:
        raise ValueError(f"expected (S, T), (S, T) and (T,), got shapes {one.shape}, {two.shape}, {counts.shape}")
    finite = all(np.isfinite(side).all() for side in (one, two, counts))
    if not finite or counts.min(initial=0) < 0 or counts.sum() <= 0:
        raise ValueError("values must be finite, sizes not negative and their sum above 0")
    require_fraction(confidence, "confidence")

    def compare(seeds: Floats, texts: Floats) -> Floats:
        """(draws,) from how often each seed, (draws, S), and each text, (draws, T), is drawn."""
        means = [((texts @ side.T) * seeds).sum(1) / (texts @ counts) / seeds.sum(1) for side in (one, two)]
        return means[0] / means[1] - 1 if relative else means[0] - means[1]

    n_seeds, n_texts = one.shape
    all_seeds, all_texts = np.ones((1, n_seeds)), np.ones((1, n_texts))
    estimate = float(compare(all_seeds, all_texts)[0])
    if min(n_seeds, n_texts) < 2:
        return Interval(estimate, -math.inf, math.inf)
    rng = np.random.default_rng(seed)
    seeds = rng.multinomial(n_seeds - 1, np.full(n_seeds, 1 / n_seeds), resamples).astype(np.float64)
    texts = rng.multinomial(n_texts, np.full(n_texts, 1 / n_texts), resamples).astype(np.float64)
    texts = texts[texts @ counts > 0]
    drawn = compare(seeds[: len(texts)], texts)
    of_seeds, of_texts = (float(side.var()) for side in (compare(seeds, all_texts), compare(all_seeds, texts)))
    total = of_seeds + of_texts
    if total <= (1e-12 * max(1.0, abs(estimate))) ** 2:
        return Interval(estimate, estimate, estimate)
    freedom = total**2 / (of_seeds**2 / (n_seeds - 1) + of_texts**2 / (n_texts - 1))
    wider = float(t.ppf((1 + confidence) / 2, freedom) / norm.ppf((1 + confidence) / 2))
    low, high = np.quantile(drawn, _tails(confidence)) - estimate
    return Interval(estimate, estimate + wider * float(low), estimate + wider * float(high))


def rank_correlation(first: ArrayLike, second: ArrayLike, *, confidence: float = CONFIDENCE) -> Interval:
    """Return Spearman's correlation of pairs with limits that hold for a handful of them, each in [-1, 1].

    The limits are all true correlations under which the observed one is not in either tail. How the observed one is
    distributed under each is simulated for normal data of this size (seed 0), because the textbook formula, Fisher's
    z, does not hold for ten pairs and less. NaN with limits -1 and 1 where a side has one value only; ValueError for
    different lengths, fewer than three pairs, or values that are not finite.
    """
    one, two = paired_values(first, second, minimum=3)
    require_fraction(confidence, "confidence")
    if np.ptp(one) == 0 or np.ptp(two) == 0:
        return Interval(math.nan, -1.0, 1.0)
    rho = float(spearmanr(one, two).statistic)
    true, low, high = _rank_tails(one.size, confidence)
    inside = true[(low <= rho + 1e-9) & (rho - 1e-9 <= high)]
    if inside.size == 0:  # only where |rho| is 1 and even the ends of the grid give it too rarely
        inside = np.array([math.copysign(1.0, rho)])
    return Interval(rho, float(inside.min()), float(inside.max()))


@functools.lru_cache(maxsize=32)
def _rank_tails(items: int, confidence: float, draws: int = 4_000) -> tuple[Floats, Floats, Floats]:
    """True rank correlations on a grid of 0.02, and the central range of the observed one under each."""
    true = np.linspace(-1, 1, 101)
    rng = np.random.default_rng(0)
    shared, own = rng.standard_normal((2, draws, items))
    ranks = shared.argsort(1).argsort(1)  # (draws, items)
    low, high = np.empty_like(true), np.empty_like(true)
    for place, value in enumerate(true):
        linear = 2 * math.sin(math.pi * value / 6)  # Pearson's correlation of normal data with this rank correlation
        other = linear * shared + math.sqrt(max(0.0, 1 - linear**2)) * own
        gaps = (ranks - other.argsort(1).argsort(1)).astype(np.float64)
        found = 1 - 6 * (gaps**2).sum(1) / (items * (items**2 - 1))
        low[place] = np.quantile(found, _tails(confidence)[0], method="lower")
        high[place] = np.quantile(found, _tails(confidence)[1], method="higher")
    return true, low, high


def _tails(confidence: float) -> list[float]:
    return [(1 - confidence) / 2, (1 + confidence) / 2]
