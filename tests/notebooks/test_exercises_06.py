"""The numbers in the answers to the exercises of notebook 06."""

import pytest
import torch
from torch import Tensor

from vocabx_utils.analysis.mechanisms import keep_part
from vocabx_utils.analysis.similarity import subtoken_cosines

WIDTH, TENTH = 1000, 100


def share_of_gain(bowl: Tensor, seed: int) -> float:
    """Share of the gain that a random tenth of the coordinates brings back where KL is (end - x) B (end - x)."""
    start, end = torch.zeros(1, WIDTH), torch.ones(1, WIDTH)
    rest = (end - keep_part(start, end, TENTH, "random", seed)).double()
    whole = (end - start).double()
    return 1 - float((rest @ bowl @ rest.T) / (whole @ bowl @ whole.T))


def test_a_random_tenth_brings_back_ten_percent_where_every_coordinate_counts_by_itself() -> None:
    bowl = torch.diag(torch.rand(WIDTH, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5)
    shares = [share_of_gain(bowl, seed) for seed in range(20)]
    assert sum(shares) / 20 == pytest.approx(0.10, abs=0.002)


def test_a_random_tenth_brings_back_nineteen_percent_where_only_the_sum_counts() -> None:
    bowl = torch.ones(WIDTH, WIDTH, dtype=torch.float64)
    kept, found = TENTH / WIDTH, share_of_gain(bowl, 0)
    assert found == pytest.approx(0.19)
    assert found == pytest.approx(2 * kept - kept**2)


def test_a_bowl_gives_between_the_two() -> None:
    both = torch.ones(WIDTH, WIDTH, dtype=torch.float64) + WIDTH * torch.eye(WIDTH, dtype=torch.float64)
    assert share_of_gain(both, 0) == pytest.approx((0.10 + 0.19) / 2)


def test_two_ways_to_average_over_intermediate_subtokens() -> None:
    rows = torch.randn(6, 20_000, generator=torch.Generator().manual_seed(0))
    new, ids = rows.mean(0, keepdim=True), [tuple(range(6))]
    fair = subtoken_cosines(new, rows, ids, intermediate="mean_of_cosines")
    assert fair["intermediate"][0] == pytest.approx(6**-0.5, abs=0.01)
    assert fair["first"][0] == pytest.approx(0.41, abs=0.01)
    assert fair["last"][0] == pytest.approx(0.41, abs=0.01)
    other = subtoken_cosines(new, rows, ids, intermediate="cosine_of_mean")
    assert other["intermediate"][0] == pytest.approx((4 / 6) ** 0.5, abs=0.01)
    assert other["intermediate"][0] == pytest.approx(2 * fair["intermediate"][0], abs=0.02)
    three = [tuple(range(3))]
    new = rows[:3].mean(0, keepdim=True)
    ways = [
        subtoken_cosines(new, rows, three, intermediate=way)["intermediate"]
        for way in ("mean_of_cosines", "cosine_of_mean")
    ]
    assert ways[0] == pytest.approx(ways[1])
