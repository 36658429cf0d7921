"""Confidence intervals for small samples, and what they say about a claim. One rule holds for all claims.

A claim is confirmed or not confirmed only where an interval excludes the other answer; else we cannot tell. Where
several intervals could refute a claim each is widened (`shared_level`), so that together they err in 5 % at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Answer = Literal["confirmed", "not confirmed", "cannot tell"]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A point estimate with the lower and upper limit of its confidence interval."""

    estimate: float
    low: float
    high: float


def judge(interval: Interval, threshold: float = 0.0) -> Answer:
    """Say what an interval says about "the value lies above the threshold"."""
    return "confirmed" if interval.low > threshold else "not confirmed" if interval.high < threshold else "cannot tell"


def judge_all(answers: Sequence[Answer]) -> Answer:
    """All parts of a claim have to hold; one that does not hold is enough against it."""
    if "not confirmed" in answers:
        return "not confirmed"
    return "confirmed" if answers and all(answer == "confirmed" for answer in answers) else "cannot tell"


def shared_level(parts: int) -> float:
    """Coverage of each interval where any of several can refute a claim (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / max(parts, 1)


def around(estimate: float, error: float, freedom: float, confidence: float = CONFIDENCE) -> Interval:
    """Student's interval around an estimate with this standard error; without a degree of freedom it is infinite."""
    if freedom <= 0:
        return Interval(estimate, -math.inf, math.inf)
    from scipy.stats import t

    half = float(t.ppf((1 + confidence) / 2, freedom)) * error
    return Interval(estimate, estimate - half, estimate + half)


def mean_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Student's interval of a mean. One value bounds nothing; of no value the estimate is NaN.

    Args:
        values: independent values, shape (n,).
        confidence: coverage.
    """
    sample = np.asarray(values, dtype=np.float64)
    if sample.size < 2:
        return around(float(sample.sum()) if sample.size else math.nan, 0.0, 0, confidence)
    error = float(sample.std(ddof=1)) / math.sqrt(sample.size)
    return around(float(sample.mean()), error, sample.size - 1, confidence)


def ratio_interval(parts: ArrayLike, wholes: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Student's interval of a ratio of two sums over one sample, with the jackknife's standard error.

    Args:
        parts: numerator of each text or token, shape (n,).
        wholes: denominator of each, with a sum above 0.
        confidence: coverage.
    """
    above, below = np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)
    if above.size == 1:
        return around(float(above[0] / below[0]), 0.0, 0, confidence)
    ratio, error = ratio_and_error(above, below)
    return around(float(ratio), float(error), above.size - 1, confidence)


def ratio_and_error(
    gaps: NDArray[np.float64], sizes: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Ratio of the sums along the last axis, and its standard error."""
    total = sizes.sum(-1)
    ratio = gaps.sum(-1) / total
    leverage = sizes / total[..., None]
    rest = (gaps - ratio[..., None] * sizes) / (1 - leverage)  # as if each text had been left out (jackknife)
    return ratio, np.sqrt((rest**2).sum(-1)) / np.abs(total)


def slope_interval(groups: Sequence[tuple[ArrayLike, ArrayLike]], confidence: float = CONFIDENCE) -> Interval:
    """Student's interval of the common slope of lines that each have a level of their own (least squares).

    Args:
        groups: x and y of each line.
        confidence: coverage.

    Returns:
        The slope; infinite limits where no point is left to measure the scatter with.
    """
    centred = [[np.asarray(side, dtype=np.float64) for side in group] for group in groups]
    x, y = (np.concatenate([sides[at] - sides[at].mean() for sides in centred]) for at in (0, 1))
    spread = float(x @ x)
    if spread == 0:
        return Interval(math.nan, -math.inf, math.inf)
    slope, freedom = float(x @ y) / spread, len(x) - len(groups) - 1
    error = math.sqrt(float(((y - slope * x) ** 2).sum()) / max(freedom, 1) / spread)
    return around(slope, error, freedom, confidence)
