"""Learning-rate schedule of phase 1: linear warm-up and linear decay, and then once more (a warm restart)."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["rate_factor"]


def rate_factor(step: int, cycles: Sequence[int], warmup: float = 0.1) -> float:
    """Return the factor on the peak rate.

    Args:
        step: from 0 up to the sum of ``cycles``, exclusive.
        cycles: steps of each cycle; the thesis has 8 and then 4 epochs.
        warmup: share of each cycle that warms up (the thesis: 0.1).

    Returns:
        A number in (0, 1]; the first step of a cycle is already above 0, the last one still is.

    Raises:
        ValueError: the step lies outside the cycles.

    Example:
        >>> [round(rate_factor(s, [10], 0.2), 2) for s in (0, 1, 2, 9)]
        [0.5, 1.0, 1.0, 0.12]
    """
    place = step
    for length in cycles:
        if 0 <= place < length:
            rising = round(warmup * length)
            if place < rising:
                return (place + 1) / rising
            return (length - place) / (length - rising)
        place -= length
    raise ValueError(f"step {step} lies outside the schedule of {sum(cycles)} steps")
