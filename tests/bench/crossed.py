"""The difference of two means over the same texts, each measured with the same few seeds."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm, t

from vocabx_utils.intervals import CONFIDENCE, Floats, Interval, require_fraction


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
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2]) - estimate
    return Interval(estimate, estimate + wider * float(low), estimate + wider * float(high))
