"""The answers to the exercises of notebook 05, computed."""

from __future__ import annotations

import math

import pytest
from scipy.stats import binomtest

from vocabx_utils import statistics, thesis

N, WEAKER, BETTER = thesis.COMBINED_TOTAL, 520, 556
NATS = [2.0, 0.1, 0.1, 1.8]  # of the four tokens of a text under the original tokenizer
BYTES = 12


def discordant(number: int) -> tuple[int, int]:
    """Problems that only the weaker and only the better model passes."""
    return (number - (BETTER - WEAKER)) // 2, (number + (BETTER - WEAKER)) // 2


@pytest.mark.parametrize(("number", "split", "p_value"), [(120, (42, 78), 0.001), (600, (282, 318), 0.153)])
def test_exercise_1_more_disagreement_hides_the_same_difference(
    number: int, split: tuple[int, int], p_value: float
) -> None:
    b, c = discordant(number)
    assert (b, c) == split
    assert binomtest(b, number).pvalue == pytest.approx(p_value, abs=0.0005)
    both, neither = WEAKER - b, N - WEAKER - c
    first = [True] * (both + b) + [False] * (c + neither)
    second = [True] * both + [False] * b + [True] * c + [False] * neither
    assert (sum(first), sum(second), len(first)) == (WEAKER, BETTER, N)
    assert statistics.mcnemar_test(first, second).p_value == pytest.approx(binomtest(b, number).pvalue)


def test_exercise_1_the_z_test_does_not_see_who_disagreed() -> None:
    assert statistics.two_proportion_z_test(WEAKER, N, BETTER, N).p_value == pytest.approx(0.20, abs=0.005)


@pytest.mark.parametrize(
    ("nats", "total", "per_token", "per_byte"),
    [
        (NATS, 4.0, 1.00, 0.48),
        ([2.0, 1.8], 3.8, 1.90, 0.46),  # likelier, and worse per token
        ([*NATS, 0.2], 4.2, 0.84, 0.50),  # less likely, and better per token
    ],
)
def test_exercise_2_loss_per_token_goes_both_ways(
    nats: list[float], total: float, per_token: float, per_byte: float
) -> None:
    assert sum(nats) == pytest.approx(total)
    assert sum(nats) / len(nats) == pytest.approx(per_token)
    assert sum(nats) / math.log(2) / BYTES == pytest.approx(per_byte, abs=0.005)
