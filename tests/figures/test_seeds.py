"""Charts of repeated runs show every run, and limits where there are some."""

from __future__ import annotations

import math
from itertools import pairwise

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from figures.figure_parts import cut_words

from vocabx_utils.analysis.seeds import paired_differences, spread_over_seeds
from vocabx_utils.figures.seeds import draw_differences, draw_spread
from vocabx_utils.figures.theme import theme
from vocabx_utils.names import METRICS, metric_label


@pytest.fixture
def values() -> pd.DataFrame:
    index = pd.MultiIndex.from_tuples([("r0", 0), ("r1", 1), ("r2", 2)], names=["run", "seed"])
    return pd.DataFrame({"mean_ce": [1.0, 1.2, 1.1], "mean_kl_last": [0.5, 0.9, math.nan]}, index=index)


def test_each_run_is_a_mark_and_each_mean_a_bar(values: pd.DataFrame) -> None:
    [ax] = draw_spread(values, "kl_last").figure.axes
    marks = [line for line in ax.lines if line.get_linestyle() == "None"]
    assert [list(line.get_ydata())[:2] for line in marks] == [[1.0, 1.2], [0.5, 0.9]]
    assert len(ax.lines) == len(values) + 2
    bars = [collection.get_segments()[0][0][1] for collection in ax.collections]
    assert bars == pytest.approx(spread_over_seeds(values)["mean"].tolist())


def test_differences_have_their_limits_and_zero(values: pd.DataFrame) -> None:
    found = paired_differences(values, "mean_ce")
    [ax] = draw_differences(found, "mean_ce", "kl_last").figure.axes
    (segment,) = ax.collections[0].get_segments()
    assert [point[0] for point in segment] == pytest.approx([found["low"].item(), found["high"].item()])
    assert ax.lines[-1].get_xdata() == [0, 0]


def test_without_limits_the_mark_stands_alone(values: pd.DataFrame) -> None:
    drawing = draw_differences(paired_differences(values.iloc[:1], "mean_ce"), "mean_ce", "kl_last")
    assert not list(drawing.figure.axes[0].collections)


def test_the_words_of_both_figures_hold_their_numbers(values: pd.DataFrame) -> None:
    assert "mean init, CE 1.000 to 1.200, mean 1.100" in draw_spread(values, "kl_last").alt
    differences = paired_differences(values, "mean_ce")
    drawn = draw_differences(differences, "mean_ce", "kl_last")
    assert f"mean init, KL (last) {differences['difference'].item():+.3f}" in drawn.alt
    plt.close("all")


@pytest.mark.parametrize("metric", [*METRICS, "seconds"])
def test_a_metric_is_named_in_words_with_its_unit(values: pd.DataFrame, metric: str) -> None:
    theme()
    more = values.assign(mean_untrained=2.0, **{"mean_kl_last_ce0.1": 1.0})
    spread, label = draw_spread(more, metric), metric_label(metric)
    difference = draw_differences(paired_differences(values, "mean_ce"), "mean_ce", metric)
    along, below = (drawn.figure.axes[0] for drawn in (spread, difference))
    assert along.get_ylabel().replace("\n", " ") == label
    assert below.get_xlabel().replace("\n", " ") == f"{label}, minus that of mean init, CE, run by run"
    assert label in spread.alt and label in difference.alt
    assert not cut_words(spread.figure) and not cut_words(difference.figure)
    names = [text.get_window_extent() for text in along.get_xticklabels()]
    assert not any(one.overlaps(other) for one, other in pairwise(names))
    assert metric == "seconds" or "_" not in along.get_title() + along.get_ylabel() + below.get_xlabel()
