"""The search for rate and epochs on made-up scores, and the real one on a tiny model."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from vocabx_utils.adaptation.sweep import GRID, choose


def judged(best: float, calls: list[tuple[float, int]], gain: float = 0.0) -> Callable[[float, int], float]:
    """Scores with one minimum over the rates; each doubling of the epochs wins the share `gain` more."""

    def judge(rate: float, epochs: int) -> float:
        calls.append((rate, epochs))
        if not epochs:
            return 3.0
        distance = abs(math.log10(rate) - math.log10(best))
        return 2.0 + distance - gain * math.log2(epochs)

    return judge


@pytest.mark.parametrize("best", GRID)
def test_the_best_rate_of_the_grid_is_found(best: float) -> None:
    calls: list[tuple[float, int]] = []
    assert choose(judged(best, calls), epochs=1)[0] == best
    rates = [rate for rate, _ in calls]
    assert len(set(rates)) == len(rates) <= 6


def test_rates_that_break_are_left_alone() -> None:
    assert choose(lambda rate, epochs: math.inf if rate > 2e-3 else 2 - rate, epochs=1) == (1e-3, 1)


@pytest.mark.parametrize(
    ("gain", "most", "expected"), [(0.0, 4, 1), (0.2, 4, 4), (0.2, 2, 2), (0.02, 4, 1), (-1, 4, 1)]
)
def test_epochs_double_as_long_as_it_pays(gain: float, most: int, expected: int) -> None:
    assert choose(judged(1e-2, [], gain), max_epochs=most) == (1e-2, expected)


def test_what_is_given_is_not_searched() -> None:
    calls: list[tuple[float, int]] = []
    assert choose(judged(1e-2, calls, 0.2), rate=5e-4, epochs=7) == (5e-4, 7) and not calls
    assert choose(judged(1e-2, calls, 0.2), epochs=3)[1] == 3
    assert {epochs for _, epochs in calls} == {3}
