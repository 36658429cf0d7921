"""Confidence intervals of measured values, and what they say about a claim. One rule holds for all claims.

A claim is confirmed or not confirmed only where an interval excludes the other answer; else we cannot tell. Where
several intervals could refute a claim each is widened (`shared_level`), so that together they err in 5 % at most.
Pass counts have intervals of their own in `statistics`; limits that are resampled or simulated are in `resampling`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t

Answer = Literal["confirmed", "not confirmed", "cannot tell"]
Floats = NDArray[np.float64]
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A point estimate with the lower and upper limit of its confidence interval."""

    estimate: float
    low: float
    high: float


UNSEEN = "not measured here: "
"""How the reason for an answer begins where there was nothing to judge."""


def word_of(answer: str, reason: str) -> str:
    """Return an answer as every table and box tells it: `not measured` where there was nothing to judge.

    >>> word_of("cannot tell", "not measured here: C10"), word_of("cannot tell", "0.1 [-0.1, 0.3]")
    ('not measured', 'cannot tell')
    """
    return "not measured" if reason.startswith(UNSEEN) else answer


def judge(interval: Interval, threshold: float = 0.0) -> Answer:
    """Say what an interval says about "the value lies above the threshold".

    >>> judge(Interval(0.4, 0.1, 0.7)), judge(Interval(0.4, 0.1, 0.7), 0.5)
    ('confirmed', 'cannot tell')
    """
    return "confirmed" if interval.low > threshold else "not confirmed" if interval.high < threshold else "cannot tell"


def judge_all(answers: Sequence[Answer]) -> Answer:
    """Say whether all parts of a claim hold; one that does not is enough against it."""
    if "not confirmed" in answers:
        return "not confirmed"
    return "confirmed" if answers and all(answer == "confirmed" for answer in answers) else "cannot tell"


def shared_level(parts: int) -> float:
    """Return the coverage of each interval where any of several can refute a claim (Bonferroni)."""
    return 1 - (1 - CONFIDENCE) / max(parts, 1)


def mean_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Compute Student's interval of a mean. One value bounds nothing; of no value the estimate is NaN."""
    sample = np.asarray(values, dtype=np.float64)
    if sample.size < 2:
        return _student(float(sample.sum()) if sample.size else math.nan, 0.0, 0, confidence)
    error = float(sample.std(ddof=1)) / math.sqrt(sample.size)
    return _student(float(sample.mean()), error, sample.size - 1, confidence)


def ratio_interval(parts: ArrayLike, wholes: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Compute Student's interval of a ratio of two sums over one sample, with the jackknife's standard error.

    Numerator and denominator of each text or token, (n,); the denominators have a sum above 0.
    """
    above, below = np.asarray(parts, dtype=np.float64), np.asarray(wholes, dtype=np.float64)
    if above.size == 1:
        return _student(float(above[0] / below[0]), 0.0, 0, confidence)
    ratio, error = ratio_and_error(above, below)
    return _student(float(ratio), float(error), above.size - 1, confidence)


def ratio_difference(
    first: Sequence[tuple[int, int]], second: Sequence[tuple[int, int]], *, confidence: float = CONFIDENCE
) -> Interval:
    """Compute the difference of two ratios of sums, each over its own texts: Welch's interval on the linearised ratios.

    Tokens of one text are not independent, so the texts are the sample: part and whole of each, such as new tokens and
    all tokens. ValueError for fewer than two texts on a side, or impossible coverage.
    """
    require_fraction(confidence, "confidence")
    if min(len(first), len(second)) < 2:
        raise ValueError(f"expected at least 2 texts on each side, got {len(first)} and {len(second)}")
    columns = (np.asarray(rows, dtype=np.float64).T for rows in (first, second))
    (one, error_one), (two, error_two) = (map(float, ratio_and_error(*column)) for column in columns)
    variance = error_one**2 + error_two**2
    estimate = one - two
    if variance == 0:
        return Interval(estimate, estimate, estimate)
    freedom = variance**2 / (error_one**4 / (len(first) - 1) + error_two**4 / (len(second) - 1))
    return _student(estimate, math.sqrt(variance), freedom, confidence)


def ratio_and_error(parts: Floats, wholes: Floats) -> tuple[Floats, Floats]:
    """Compute the ratio of the sums along the last axis, and its standard error (jackknife, linearised)."""
    total = wholes.sum(-1)
    ratio = parts.sum(-1) / total
    leverage = wholes / total[..., None]
    rest = (parts - ratio[..., None] * wholes) / (1 - leverage)  # as if each text had been left out
    return ratio, np.sqrt((rest**2).sum(-1)) / np.abs(total)


def slope_interval(groups: Sequence[tuple[ArrayLike, ArrayLike]]) -> Interval:
    """Compute Student's interval of the common slope of lines (x, y) with a level of their own each (least squares).

    The limits are infinite where no point is left to measure the scatter with.
    """
    centred = [[np.asarray(side, dtype=np.float64) for side in group] for group in groups]
    x, y = (np.concatenate([sides[at] - sides[at].mean() for sides in centred]) for at in (0, 1))
    spread = float(x @ x)
    if spread == 0:
        return Interval(math.nan, -math.inf, math.inf)
    slope, freedom = float(x @ y) / spread, len(x) - len(groups) - 1
    error = math.sqrt(float(((y - slope * x) ** 2).sum()) / max(freedom, 1) / spread)
    return _student(slope, error, freedom, CONFIDENCE)


def _student(estimate: float, error: float, freedom: float, confidence: float) -> Interval:
    """Student's interval around an estimate with this standard error; without a degree of freedom it is infinite."""
    if freedom <= 0:
        return Interval(estimate, -math.inf, math.inf)
    half = float(t.ppf((1 + confidence) / 2, freedom)) * error
    return Interval(estimate, estimate - half, estimate + half)


def paired_values(first: ArrayLike, second: ArrayLike, minimum: int) -> tuple[Floats, Floats]:
    """Return two models' values on the same problems as float64, (problems,) each.

    ValueError for different lengths, fewer than `minimum` problems, and values that are not finite.
    """
    one, two = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if one.shape != two.shape or one.ndim != 1:
        raise ValueError(f"both models need one value for the same problems, got shapes {one.shape} and {two.shape}")
    if one.size < minimum:
        raise ValueError(f"expected at least {minimum} problems, got {one.size}")
    if not (np.all(np.isfinite(one)) and np.all(np.isfinite(two))):
        raise ValueError("a value is not finite: drop such problems for both models first")
    return one, two


def require_fraction(value: float, name: str) -> None:
    """Refuse a value outside the open interval from 0 to 1."""
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {value}")
