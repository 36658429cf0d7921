"""Sentences about tables: the numbers are those of the table, and the direction follows when the table turns."""

import pandas as pd
import pytest

from vocabx_utils.analysis import readings
from vocabx_utils.analysis.mechanisms import CausalTest, gaussian_top_k_share


def test_turns_name_both_sides() -> None:
    said = readings.read_turns(pd.Series({"mean_ce": -0.01, "random_kl_last": 0.25}))
    assert "To the first subtoken turn: random init, KL (last). To the last: mean init, CE." in said
    assert "from 0.0100 to 0.2500" in said
    assert "To the last: none." in readings.read_turns(pd.Series({"mean_ce": 0.01}))


def test_change_in_shares_and_degrees() -> None:
    medians = pd.DataFrame({"participation": [20.0, 60.0], "cosine": [0.5, 1.0]}, index=["mean_ce", "mean_kl_last"])
    said = readings.read_change(medians, 100)
    assert "Between 20% and 60% of the 100 coordinates" in said
    assert "0.500 to 1.000" in said
    assert "angle between them is 0 to 60 degrees" in said


def test_shares_find_the_widest_gap_on_either_side() -> None:
    ks, normal = [1, 8, 64], gaussian_top_k_share(64, [1, 8, 64])
    near, far = normal * [1, 1.01, 1], normal - normal * [0, 0.5, 0]
    said = readings.read_shares({"mean_ce": near[None], "mean_kl_last": far[None]}, ks, 64)
    assert "that of mean init, KL (last) at k = 8" in said
    assert f"a share of {far[1]:.3f} beside {normal[1]:.3f}" in said


def test_spread_counts_falls_beside_the_yardstick() -> None:
    lines = [("mean_ce", 0, 0.3), ("mean_ce", 2, 0.1), ("mean_kl_last", 0, 0.3), ("mean_kl_last", 2, 0.4)]
    table = pd.DataFrame([*lines, ("old rows", None, 0.18)], columns=["variant", "epoch", "mean_cosine"])
    said = readings.read_spread(table)
    assert "falls in 1 of 2 variants, by 0.200 at most" in said
    assert "it is 0.180" in said


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (0.25, "the 16 largest alone beat the fully trained rows (0.200 nats against 0.250)"),
        (0.15, "no part that was tried beats the fully trained rows (0.200 nats against 0.150)"),
    ],
)
def test_causal_names_both_surprises(end: float, told: str) -> None:
    lines = [("top", 4, 0, 0.9), ("top", 16, 0, 0.2), ("random", 4, 0, 0.8), ("random", 16, 0, 0.7)]
    test = CausalTest(pd.DataFrame(lines, columns=["keep", "k", "draw", "kl"]), 1.0, end, 32)
    [said] = readings.read_causal({"mean_ce": test})
    assert "at least as well as the largest at k = 4;" in said
    assert told in said


def test_causal_where_the_largest_always_lead() -> None:
    lines = [("top", 4, 0, 0.5), ("random", 4, 0, 0.8)]
    test = CausalTest(pd.DataFrame(lines, columns=["keep", "k", "draw", "kl"]), 1.0, 0.1, 32)
    assert "at no k that was tried" in readings.read_causal({"mean_ce": test})[0]


def test_layers_name_the_lowest_places() -> None:
    columns = ["layer", "place", "cosine"]
    lines = [(0, "boundary", 0.6), (1, "boundary", 0.4), (2, "boundary", 0.9)]
    lines += [(0, "1 after", 1.0), (1, "1 after", 0.95), (2, "1 after", 0.97)]
    [said] = readings.read_layers(pd.DataFrame(lines, columns=columns).assign(variant="mean_ce"))
    assert "0.60 at layer 0, lowest (0.40) at layer 1 and 0.90 at the last" in said
    assert "lowest (0.95) at layer 1" in said


@pytest.mark.parametrize(
    ("student", "told"),
    [
        ("xyab", "they name the same token from layer 2 on"),
        ("pqab", "they name the same token from layer 0 on"),
        ("pqax", "they differ"),
        ("pxab", "from layer 2 on"),
    ],
)
def test_lens_finds_where_the_agreement_begins(student: str, told: str) -> None:
    readers = {"teacher 1": "zzzz", "teacher 10": "pqab", "teacher 2": "zzzz", "student": student}
    lines = [(layer, reader, (top,)) for reader, tops in readers.items() for layer, top in enumerate(tops)]
    said = readings.read_lens(pd.DataFrame(lines, columns=["layer", "reader", "top"]))
    assert told in said
    assert "the teacher expects `b`" in said
    assert f"the student `{student[-1]}`" in said
