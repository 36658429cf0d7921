"""Sentences of alternative texts say what the data hold."""

import numpy as np
import pandas as pd

from vocabx_utils.analysis.mechanisms import gaussian_top_k_share
from vocabx_utils.figures.patterns import (
    detectable_pattern,
    failure_pattern,
    forest_pattern,
    lens_pattern,
    share_pattern,
)
from vocabx_utils.figures.results import detectable_chart
from vocabx_utils.statistics import smallest_detectable_difference


def test_forest_names_its_ends_and_counts_intervals_without_zero() -> None:
    rows = [("a", -0.2, -0.3, -0.1), ("b", 0.1, -0.1, 0.3), ("c", 0.4, 0.3, 0.5), ("d", -0.3, -0.4, -0.2)]
    said = forest_pattern(pd.DataFrame(rows, columns=["model", "difference", "low", "high"], index=[3, 4, 7, 9]))
    assert said == (
        "The lowest is d with -0.300, the highest c with +0.400. Of 4 intervals 3 exclude 0: 2 below it and 1 above it."
    )
    assert forest_pattern(pd.DataFrame(columns=["model", "difference", "low", "high"])) == "Nothing is drawn."


def test_failures_count_answers_and_name_the_most_frequent_class() -> None:
    table = pd.DataFrame(
        {"variant": ["base", "mean_ce"], "passed": [3, 4], "wrong": [5, 0], "no code": [1, 0], "exceptions": ["", ""]}
    )
    assert failure_pattern(table) == (
        "base model 3 of 9 passed, most often wrong (5); mean init, CE 4 of 4 passed, no failure."
    )


def test_detectable_differences_are_told_where_they_exist() -> None:
    ax = detectable_chart(0.3, (50, 500))
    ax.axhline(2.5, marker="", label="published gain")
    wide, narrow = (100 * smallest_detectable_difference(0.3, n) for n in (50, 500))
    paired = 100 * smallest_detectable_difference(0.3, 500, discordant=0.05)
    said = detectable_pattern(ax)
    assert f"two-proportion z-test: {wide:.1f} at 50 problems, {narrow:.1f} at 500;" in said
    assert f"5% of verdicts differ: {paired:.1f} at 500 problems" in said and "published" not in said


def test_shares_are_told_at_a_tenth_of_the_width() -> None:
    ks = [1, 2, 8, 20]
    shares = {"mean_ce": np.full((3, 4), 0.2), "random_ce": np.full((3, 4), 0.9)}
    said = share_pattern(shares, ks, 20)
    assert said.startswith("At k = 2 of 20 the median share is highest for random init, CE with 0.900 and lowest for")
    normal = gaussian_top_k_share(20, ks)[1]
    assert 0.2 < normal < 0.9 and said.endswith(f"coordinates have {normal:.3f}, more than 1 of 2 variants.")


def test_the_lens_tells_where_its_readers_end_and_from_where_they_are_near() -> None:
    cells = [(n, "student", (" to",), 0.4, kl, " numpy") for n, kl in enumerate((9.0, 6.0, 6.0, 5.0, 0.4, 0.1))]
    cells += [(n, "teacher 1", ("py",), 0.8, kl, " num") for n, kl in enumerate((9.0, 6.0, 6.0, 5.0, 5.0, 4.0))]
    said = lens_pattern(pd.DataFrame(cells, columns=["layer", "reader", "top", "probability", "kl", "read"]))
    assert "student at ·numpy: ·to with 40%, KL 0.10, below half of its median (2.75) from layer 4 on" in said
    assert "teacher at ·num: py with 80%, KL 4.00, never near 0." in said
