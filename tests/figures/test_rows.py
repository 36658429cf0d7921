"""Figures of the learned rows show the values of their tables, and the thesis's curves beside them."""

import pandas as pd
import pytest
from figures.figure_parts import cut_words, draw, lines
from fixtures.tiny_run import TinyRun

from vocabx_utils import rows, thesis
from vocabx_utils.analysis import similarity
from vocabx_utils.figures.rows import (
    cosine_chart,
    draw_group_cosines,
)
from vocabx_utils.figures.theme import theme
from vocabx_utils.names import variant_label


def published_curve(*place: str) -> thesis.CosineCurve:
    return next(c for c in thesis.COSINE_CURVES if (c.matrix, c.objective, c.position) == place)


def test_cosine_chart_draws_the_table_and_the_published_curve(tiny: TinyRun) -> None:
    history = rows.read_history(tiny.run, "random_kl_last")
    table = similarity.cosines_by_epoch([history], rows.read_tokens(tiny.run), tiny.original)  # type: ignore[arg-type]
    part = similarity.summarize(table[table["matrix"] == "input"], draws=20)
    published = published_curve("input", "kl", "first")
    drawn = lines(cosine_chart(part, [published]))
    expected = part[part["position"] == "first"].sort_values("epoch")
    x, y = drawn["first subtoken (n = 12)"]
    assert x == expected["epoch"].tolist()
    assert y == pytest.approx(expected["mean"].tolist())
    assert drawn["thesis, first"][1] == pytest.approx(list(published.cosine))
    assert "intermediate subtoken (n = 8)" in drawn


def test_cosines_of_groups_are_those_of_the_table(tiny: TinyRun) -> None:
    for matrix, ending, grouping in (("input", "length", "subtokens"), ("head", "count", "frequency")):
        figure = draw(f"{matrix}_cosines_by_{ending}", tiny.run).figure
        table = pd.read_csv(tiny.run.require("06", "groups.csv"))
        part = table[(table["grouping"] == grouping) & (table["matrix"] == matrix) & (table["position"] == "first")]
        part = part[part["variant"] == "mean_ce"]
        drawn = lines(figure.axes[0])
        for group, curve in part.groupby("group"):
            [label] = [name for name in drawn if name.startswith(f"{group} (n = ")]
            assert drawn[label] == (curve["epoch"].tolist(), pytest.approx(curve["mean"].tolist()))
        assert len(drawn) == part["group"].nunique() >= 3


def test_the_thesis_curves_get_a_panel_where_a_run_has_no_such_variant(tiny: TinyRun) -> None:
    figure = draw("input_cosines", tiny.run).figure
    panels = {ax.get_title(): lines(ax) for ax in figure.axes if ax.get_visible()}
    assert "thesis, first" in panels["random init, KL (last)"]
    assert not [name for name in panels["mean init, CE"] if name.startswith("thesis")]
    only = panels["random init, CE: thesis only"]
    assert only["thesis, last"][1] == pytest.approx(list(published_curve("input", "ce", "last").cosine))


def test_of_many_variants_only_those_from_mean_rows_are_drawn_by_group() -> None:
    columns = ["variant", "matrix", "position", "epoch", "subtokens", "mean", "low", "high", "n"]
    names = [f"{init}_{kind}" for init in ("mean", "random") for kind in ("ce", "kl_first", "kl_last")]
    rows_ = [(v, "input", "first", e, g, 0.1 * g, 0.0, 1.0, 4) for v in names for e in (0, 1) for g in (2, 3)]
    figure = draw_group_cosines(pd.DataFrame(rows_, columns=columns), "input", "subtokens").figure
    assert [ax.get_title()[:4] for ax in figure.axes] == ["mean"] * 3
    assert "3 other variants are left out" in figure.get_supxlabel().replace("\n", " ")


def test_titles_of_four_columns_fit_and_the_note_says_which_panels_share_an_axis() -> None:
    theme()
    columns = ["variant", "matrix", "position", "epoch", "subtokens", "mean", "low", "high", "n"]
    names = [f"mean_{kind}" for kind in ("ce", "kl_first", "kl_last", "kl_last_ce0.1")]
    rows_ = [(v, "input", p, e, 2, 0.1, 0.0, 1.0, 4) for v in names for p in ("first", "last") for e in (0, 1)]
    table = pd.DataFrame(rows_, columns=columns)
    figure = draw_group_cosines(table, "input", "subtokens").figure
    assert not cut_words(figure)
    assert [ax.get_title().replace("\n", " ") for ax in figure.axes[:4]] == [variant_label(name) for name in names]
    assert "The panels of a column share a vertical axis" in figure.get_supxlabel().replace("\n", " ")
    one = draw_group_cosines(table[table["position"] == "first"], "input", "subtokens").figure
    assert "share" not in one.get_supxlabel()
