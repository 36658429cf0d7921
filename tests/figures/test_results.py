"""Results as figures: bars and diamonds of the counts, intervals, tokens saved."""

import shutil
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from figures.figure_parts import draw, lines, points
from fixtures.tiny_run import TinyRun

from vocabx_utils import thesis
from vocabx_utils.figures.results import (
    detectable_chart,
    draw_forgetting,
    draw_results,
    draw_saved,
    failure_chart,
    forest_chart,
)
from vocabx_utils.figures.theme import PALETTE
from vocabx_utils.runs import Run


def test_published_results_stand_where_their_counts_say() -> None:
    drawing = draw("results_published", Run("any", Path()))
    shares = [100 * row.combined / thesis.COMBINED_TOTAL for row in thesis.RESULTS]
    assert points(drawing.figure.axes[2]) == pytest.approx(shares)


def test_live_results_stand_in_the_published_form(tiny: TinyRun, tmp_path: Path) -> None:
    drawing = draw("results", tiny.run)
    big, human, together, bits = drawing.figure.axes[:4]
    assert [ax.get_title() for ax in (big, human, together, bits)] == [
        "BigCodeBench (n = 40)", "HumanEval (n = 20)", "together (n = 60)", "held out (n = 8)",
    ]  # fmt: skip
    assert points(big) == pytest.approx([25, 50])
    diamonds = [line.get_xdata()[0] for line in big.lines if line.get_marker() == "D"]
    assert diamonds == pytest.approx([100 * 213 / 1022, 100 * 216 / 1022])
    assert [line for line in human.lines if line.get_marker() == "D"] == []
    words = [text.get_text() for text in together.texts]
    assert words == ["15/60\nreference", "not asked", "25/60\np = 0.057"]
    assert "mean init, KL (first), fine-tuned 20/40" in drawing.alt
    scores = tiny.run.require("05", "bits_per_byte.csv")
    shutil.copy(scores, Run("alone", tmp_path).stage("05"))  # no sandbox, no answers
    alone = draw("results", Run("alone", tmp_path))
    assert [ax.get_title() for ax in alone.figure.axes] == ["held out (n = 8)"]


def test_a_rate_of_zero_is_seen_and_a_reference_is_named_only_where_there_is_one() -> None:
    bits = pd.DataFrame(
        [("base", "held out", 1.0, 0.0, 0.0, 0.0, 4), ("mean_ce", "held out", 1.1, 0.1, 0.05, 0.15, 4)],
        columns=["model", "texts", "bits_per_byte", "difference", "low", "high", "n"],
    )
    table = pd.DataFrame({"model": ["base", "mean_ce"], "HumanEval passed": ["0/6", "0/6"]})
    alone = draw_results(bits, table, "r").figure
    assert points(alone.axes[0]) == [0, 0] and alone.axes[0].get_xlim()[0] < 0
    assert "(square, dotted" not in alone.get_supxlabel()
    tested = draw_results(bits, table.assign(**{"p-value": ["reference", "1.000"]}), "r").figure
    assert "(square, dotted" in tested.get_supxlabel()
    assert [c.lines[0].get_marker() for c in tested.axes[0].containers] == ["s", "o"]


def test_intervals_that_exclude_zero_are_filled() -> None:
    table = pd.DataFrame(
        [("a", -0.2, -0.3, -0.1), ("b", 0.1, -0.1, 0.3)], columns=["model", "difference", "low", "high"]
    )
    ax = forest_chart(table, label="difference to c (points)")
    points = [line for line in ax.lines if line.get_marker() == "o"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in points] == [(-0.2, 1), (0.1, 0)]
    assert [line.get_markerfacecolor() for line in points] == [PALETTE[0], "white"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    assert ax.get_xlabel() == "difference to c (points)\nfilled: interval excludes 0"


def test_failures_are_stacked_and_the_detectable_difference_falls() -> None:
    failures = pd.DataFrame({"variant": ["base", "mean_ce"], "passed": [3, 4], "wrong": [5, 1], "exceptions": ["", ""]})
    bars = failure_chart(failures).patches
    assert [(bar.get_x(), bar.get_width()) for bar in bars] == [(0, 3), (0, 4), (3, 5), (4, 1)]
    independent, *paired = detectable_chart(0.3, (500, 2000)).lines
    assert len(paired) == 2
    assert independent.axes.figure.get_supxlabel() == ""  # every curve has all of its points
    told = detectable_chart(0.3, (50, 500)).figure.get_supxlabel()
    assert " ".join(told.split()) == (
        "McNemar, 5% of verdicts differ: no point at 50 problems; no difference has a power of 80% there."
    )
    for line in (independent, *paired):
        assert line.get_ydata()[0] > line.get_ydata()[1] > 0


def test_forgetting_is_drawn_whole_with_its_legend_outside() -> None:
    table = pd.DataFrame(
        {"domain": [-0.07, -0.2], "English prose": [-0.01, 0.02]}, index=["base", "mean_kl_last_ce0.1_full"]
    )
    drawing = draw_forgetting(table, 6)
    fig, [ax] = drawing.figure, drawing.figure.axes
    assert {bars.get_label(): list(bars.datavalues) for bars in ax.containers} == table.to_dict("list")
    assert [bar.get_y() + bar.get_height() for bar in ax.containers[0]] == pytest.approx([0, 1])  # above their row
    fig.canvas.draw()
    assert ax.get_legend() is None and not fig.legends[0].get_window_extent().overlaps(ax.get_window_extent())
    label, page = ax.xaxis.label.get_window_extent(), fig.bbox
    assert page.x0 <= label.x0 and label.x1 <= page.x1
    assert "domain -0.200 (mean init, KL (last) + 0.1 CE, full fine-tuning) to -0.070 (base model)" in drawing.alt
    assert "English prose -0.010 (base model) to +0.020" in drawing.alt and "1 of 2 below 0." in drawing.alt


def test_tokens_saved_on_each_corpus_are_told_at_one_size() -> None:
    columns = ["corpus", "strategy", "n", "found", "saved_per_1000"]
    sizes = [("a", s, n, n, k * n) for s, k in (("added", 1.0), ("merges", 2.0)) for n in (4, 8)]
    table = pd.DataFrame([*sizes, *(("b", *row[1:]) for row in sizes)], columns=columns)
    drawing = draw_saved(table)
    assert [ax.get_title() for ax in drawing.figure.axes] == ["a", "b"]
    assert {ax.get_ylim() for ax in drawing.figure.axes} == {(0, 1.05 * 16)}
    first = drawing.figure.axes[0]
    assert lines(first) == {"added": ([4, 8], [4.0, 8.0]), "merges": ([4, 8], [8.0, 16.0])}
    assert first.xaxis.get_major_formatter()(1600, 0) == "1,600"
    assert "With 8 new tokens: a 8 (added) and 16 (merges); b 8" in drawing.alt
    assert "With 4 new tokens: a 4 (added) and 8 (merges)" in draw_saved(table, told=4).alt
    plt.close("all")
