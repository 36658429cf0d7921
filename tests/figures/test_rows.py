"""Figures of the learned rows show the values of their tables, and the thesis's curves beside them."""

import pandas as pd
import pytest
import torch
from figures.figure_parts import draw, lines
from fixtures.tiny_run import TinyRun

from vocabx_utils import rows, thesis
from vocabx_utils.analysis import similarity
from vocabx_utils.analysis.mechanisms import CausalTest, top_k_share
from vocabx_utils.figures.rows import (
    causal_chart,
    cosine_chart,
    draw_causal,
    draw_group_cosines,
    lens_chart,
    share_chart,
)


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


def test_causal_and_share_charts() -> None:
    rows_ = [("top", 1, 0, 0.8), ("top", 4, 0, 0.2), ("random", 1, 0, 1.0), ("random", 1, 1, 0.6)]
    table = pd.DataFrame(rows_, columns=["keep", "k", "draw", "kl"])
    drawn = lines(causal_chart(CausalTest(table, 1.0, 0.1, 8)))
    assert drawn["largest coordinates"] == ([1, 4], [0.8, 0.2])
    assert drawn["random coordinates"] == ([1], [pytest.approx(0.8)])
    delta = torch.eye(8)[:3]
    drawn = lines(share_chart({"mean_ce": top_k_share(delta, [1, 8])}, [1, 8], 8))
    assert drawn["mean init, CE"][1] == pytest.approx([1, 1])


def test_many_variants_fit_one_page() -> None:
    part = pd.DataFrame(
        [("top", k, 0, 1 / k, 1 - 1 / k) for k in (1, 4)], columns=["keep", "k", "draw", "kl", "recovered"]
    )
    names = ("mean_ce", "mean_kl_first", "mean_kl_last")
    table = pd.concat(part.assign(variant=name) for name in names)
    facts = {name: {"kl_start": 1.0, "kl_end": 0.1, "width": 8, "positions": 5} for name in names}
    figure = draw_causal(pd.concat([table, table.assign(keep="random")]), facts).figure
    assert figure.get_size_inches()[0] <= 10 and len(figure.axes) == 3
    more = pd.concat([table, part.assign(variant="random_ce"), part.assign(variant="random_kl_last", keep="random")])
    figure = draw_causal(more, facts | {name: facts["mean_ce"] for name in ("random_ce", "random_kl_last")}).figure
    titles = [ax.get_title() for ax in figure.axes]  # a row for each initialisation, and room for the legend
    assert [title[:4] for title in titles] == ["mean"] * 3 + ["rand"] * 2 + [""]
    assert figure.axes[5].get_legend() is not None


def test_of_many_variants_only_those_from_mean_rows_are_drawn_by_group() -> None:
    columns = ["variant", "matrix", "position", "epoch", "subtokens", "mean", "low", "high", "n"]
    names = [f"{init}_{kind}" for init in ("mean", "random") for kind in ("ce", "kl_first", "kl_last")]
    rows_ = [(v, "input", "first", e, g, 0.1 * g, 0.0, 1.0, 4) for v in names for e in (0, 1) for g in (2, 3)]
    figure = draw_group_cosines(pd.DataFrame(rows_, columns=columns), "input", "subtokens").figure
    assert [ax.get_title()[:4] for ax in figure.axes] == ["mean"] * 3
    assert "3 other variants are left out" in figure.get_supxlabel().replace("\n", " ")


def test_lens_chart_names_tokens_without_breaking_on_odd_ones() -> None:
    cells = [(layer, who, ("\n", "$x$"), 0.5, float(layer)) for layer in range(3) for who in ("teacher 1", "student")]
    table = pd.DataFrame(cells, columns=["layer", "reader", "top", "probability", "kl"])
    ax = lens_chart(table)
    assert [text.get_text() for text in ax.texts] == ["\u21b5"] * 6
    cells = [(0, "student", ("$a_b^$",), 0.5, 1.0)]
    ax = lens_chart(pd.DataFrame(cells, columns=table.columns))
    ax.figure.canvas.draw()  # a token that looks like broken mathematics must not raise
