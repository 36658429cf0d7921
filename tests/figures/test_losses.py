"""Losses by epoch: gaps, training beside validation, stages one after the other."""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from figures.figure_parts import cut_words, draw, lines
from fixtures.tiny_run import TinyRun
from matplotlib.axes import Axes

from vocabx_utils import thesis
from vocabx_utils.config import Phase1Config
from vocabx_utils.figures.catalogue import read_curve
from vocabx_utils.figures.losses import draw_metric, draw_wrong_pairs, epoch_curve, loss_chart, metric_chart
from vocabx_utils.figures.theme import theme, variant_style


def validation(ax: Axes, variant: str) -> tuple[list[float], list[float]]:
    """The dashed curve of a variant."""
    style = variant_style(variant)
    found = [line for line in ax.lines if (line.get_color(), line.get_marker()) == (style["color"], style["marker"])]
    [dashed] = [line for line in found if line.get_linestyle() == "--"]
    return list(dashed.get_xdata()), list(dashed.get_ydata())


def test_curves_begin_where_their_first_stage_does() -> None:
    short = pd.DataFrame({"stage": ["b", "b"], "epoch": [0, 1], "train": [np.nan, 1.0], "validation": [2.0, 1.5]})
    long = pd.DataFrame(
        {"stage": ["a", "a", "a", "b"], "epoch": [0, 1, 2, 3], "train": [np.nan, 3, 2, 1], "validation": [4, 3, 2, 1]}
    )
    ax = loss_chart({"mean_ce": long, "base": short})
    assert validation(ax, "base") == ([2, 3], [2.0, 1.5])
    assert validation(ax, "mean_ce")[0] == [0, 1, 2, 3]
    [end] = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert list(end.get_xdata()) == [2, 2]


def test_an_untrained_variant_is_a_level_for_the_others() -> None:
    metrics = {"mean_untrained": [{"epoch": 0, "ce": 3.0}], "mean_ce": [{"epoch": at, "ce": 3.0 - at} for at in (0, 1)]}
    drawn = lines(metric_chart(metrics, "ce"))
    assert drawn["mean init, untrained"] == ([0, 1], [3.0, 3.0])


@pytest.mark.parametrize("key", ["ce", "kl_identical", "kl_last", "kl_pooled"])
def test_the_variants_of_notebook_03_fit_and_only_untrained_ones_are_dotted(key: str) -> None:
    theme()
    names = ("ce", "train_ce", "kl_identical", "kl_last", "kl_pooled")
    line = dict.fromkeys(names, 3.0) | dict.fromkeys(("n_identical", "n_first", "n_last"), 12_345)
    metrics = {
        name: [line | {"epoch": at} for at in range(1 if name.endswith("untrained") else 3)]
        for name in Phase1Config().variants
    }
    figure = draw_metric(metrics, key).figure
    assert not cut_words(figure)
    drawn = figure.axes[0].lines
    dotted = {str(line.get_label()) for line in drawn if line.get_linestyle() == ":"}
    assert dotted == {"mean init, untrained", "random init, untrained"}
    looks = [(line.get_color(), line.get_marker(), line.get_linestyle(), line.get_linewidth()) for line in drawn]
    assert len(set(looks)) == len(looks)
    words = figure.get_supxlabel().replace("\n", " ")
    assert "Dotted: not trained" in words
    trained = {name: lines for name, lines in metrics.items() if len(lines) > 1}
    assert "Dotted" not in draw_metric(trained, key).figure.get_supxlabel()


def test_metric_chart_leaves_gaps_for_missing_values() -> None:
    metrics = {
        "mean_ce": [{"epoch": 0, "ce": 3.0}, {"epoch": 1}, {"epoch": 2, "ce": float("nan")}, {"epoch": 3, "ce": 2.0}]
    }
    drawn = lines(metric_chart(metrics, "ce"))
    assert drawn["mean init, CE"] == ([0, 3], [3.0, 2.0])


def test_training_is_thin_without_markers_and_validation_keeps_the_style_of_its_variant() -> None:
    metrics = {"mean_kl_first": [{"epoch": at, "ce": 3.0 - at, "train_ce": 4.0 - at} for at in range(3)]}
    thin, curve = metric_chart(metrics, "ce", train_key="train_ce").get_lines()
    style = variant_style("mean_kl_first")
    assert (curve.get_marker(), curve.get_linestyle()) == (style["marker"], style["linestyle"])
    assert list(curve.get_ydata()) == [3.0, 2.0, 1.0]
    assert thin.get_marker() == "" and thin.get_linewidth() < curve.get_linewidth()
    assert list(thin.get_ydata()) == [4.0, 3.0, 2.0]


def test_stage_losses_run_on_over_stages(tiny: TinyRun) -> None:
    drawing = draw("finetuning", tiny.run)
    drawn = lines(drawing.figure.axes[0])
    assert validation(drawing.figure.axes[0], "base") == ([0, 1, 2, 3, 4], pytest.approx([1.0, 0.95, 0.9, 0.75, 0.7]))
    assert drawn["base model"] == ([1, 2, 3, 4], pytest.approx([0.85, 0.8, 0.65, 0.6]))
    assert "base model 1.000 to 0.700" in drawing.alt
    assert not [name for name in drawn if "full" in name]


def test_sequential_curve_begins_with_the_stage_it_branches_off(tiny: TinyRun) -> None:
    curve = read_curve(tiny.run, "mean_ce_full")
    assert curve is not None
    assert curve["stage"].tolist() == ["a", "a", "a", "c1", "c1", "c2", "c2"]
    assert curve["epoch"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert curve["validation"].tolist() == pytest.approx([1.0, 0.95, 0.9, 0.75, 0.7, 0.55, 0.5])
    left, right = draw("sequential", tiny.run).figure.axes
    published = validation(left, "mean_ce")
    printed = thesis.sequential_table().query("variant == 'mean_ce' and split == 'validation'")
    assert published == (printed["epoch"].tolist(), pytest.approx(printed["loss"].tolist()))
    assert validation(left, "base")[0] == [4, 5, 6]  # it has no stage a: its curve begins where the others leave theirs
    assert validation(right, "mean_ce_full")[1][-1] == pytest.approx(0.5)


def test_epochs_run_through_the_stages() -> None:
    losses = pd.DataFrame(
        [
            {"kind": "epoch", "stage": "a", "epoch": 0, "loss": None, "validation_loss": 3.0},
            {"kind": "step", "stage": "a", "epoch": 0, "loss": 2.9, "validation_loss": None},
            {"kind": "epoch", "stage": "a", "epoch": 1, "loss": 2.9, "validation_loss": 2.5},
            {"kind": "epoch", "stage": "a", "epoch": 2, "loss": 2.4, "validation_loss": 2.2},
            {"kind": "epoch", "stage": "b", "epoch": 0, "loss": None, "validation_loss": 2.2},
            {"kind": "epoch", "stage": "b", "epoch": 1, "loss": 2.0, "validation_loss": 1.9},
        ]
    )
    curve = epoch_curve(losses)
    assert curve.epoch.tolist() == [0, 1, 2, 3] and curve.validation.tolist() == [3.0, 2.5, 2.2, 1.9]
    ax = loss_chart({"mean_ce": curve})
    solid, dashed, end = ax.lines
    assert [text.get_text().strip() for text in ax.texts] == ["end of stage a"]
    assert list(end.get_xdata()) == [2, 2]
    assert [text.get_text() for text in ax.legend().get_texts()] == ["mean init, CE"]
    assert list(dashed.get_ydata()) == curve.validation.tolist() and solid.get_linestyle() == "-"
    assert "nats" in ax.get_ylabel()


def test_wrong_pairs_stand_over_their_true_partners() -> None:
    rows = [("sum", 3.0, 0.5, 7), ("sum", 0.2, 0.4, 7), ("original", 2.0, 0.0, 8)]
    columns = ["order", "wrong place", "true partner", "text"]
    drawing = draw_wrong_pairs(pd.DataFrame(rows, columns=columns))
    ax = drawing.figure.axes[0]
    assert ax.get_xscale() == ax.get_yscale() == "log"
    drawing.figure.canvas.draw()
    [legend] = drawing.figure.legends
    assert not legend.get_window_extent().overlaps(ax.get_window_extent())  # no pair lies under it
    drawn = lines(ax)
    assert drawn["smallest by sum, n = 2"] == ([0.5, 0.4], [3.0, 0.2])
    assert drawn["smallest by original, n = 1"] == ([0.001], [2.0])  # 0 has no place on the axis
    assert ax.get_xlim()[0] < 0.001 and ax.get_ylim()[1] > 3
    same, equal = drawn["equal cost"]
    assert same == equal
    words = drawing.figure.get_supxlabel().replace("\n", " ")
    assert "3 pairs of 2 texts" in words and "drawn at 0.001" in words
    assert "2 of 3 points lie above" in drawing.alt
    far = draw_wrong_pairs(pd.DataFrame(rows[:2], columns=columns)).figure.get_supxlabel()
    assert "2 pairs of 1 texts" not in far and "0.001" not in far
    empty = draw_wrong_pairs(pd.DataFrame([], columns=columns))
    assert "0 of 0" in empty.alt
    plt.close("all")
