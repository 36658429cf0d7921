"""Figures of what a learned change does show the values of their tables."""

import pandas as pd
import pytest
import torch
from figures.figure_parts import lines

from vocabx_utils.analysis.mechanisms import CausalTest, top_k_share
from vocabx_utils.figures.changes import causal_chart, draw_causal, lens_chart, share_chart


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


def test_causal_lines_are_named_off_the_axis_and_variants_left_out_are_told() -> None:
    table = pd.DataFrame(
        [("top", k, 0, 1 / k, 1 - 1 / k) for k in (1, 4)], columns=["keep", "k", "draw", "kl", "recovered"]
    ).assign(variant="mean_ce")
    facts = {name: {"kl_start": 1.0, "kl_end": 0.1, "width": 8, "positions": 5} for name in ("mean_ce", "random_ce")}
    drawing = draw_causal(pd.concat([table, table.assign(keep="random")]), facts)
    [ax] = drawing.figure.axes
    drawing.figure.canvas.draw()
    [trained] = [text for text in ax.texts if text.get_text() == "trained rows"]
    assert trained.get_window_extent().x0 > ax.get_window_extent().x0 + 3
    assert ax.get_xlabel() == "coordinates kept, k of D = 8"
    for words in (drawing.figure.get_supxlabel(), drawing.alt):
        assert " ".join(words.split()).endswith("not drawn so that the panels keep their size: random init, CE.")
    whole = draw_causal(pd.concat([table, table.assign(keep="random")]), {"mean_ce": facts["mean_ce"]})
    assert "not drawn" not in whole.figure.get_supxlabel() + whole.alt


def test_lens_chart_tells_layers_apart_and_names_columns_by_what_they_read() -> None:
    kl = (200.0, 6.0, 3.0, 0.0)
    cells = [(layer, who, (".",), 0.25, v, read) for layer, v in enumerate(kl) for who, read in READERS]
    ax = lens_chart(pd.DataFrame(cells, columns=LENS))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["teacher,\nread num", "student,\nread ·numpy"]
    assert {text.get_text() for text in ax.texts} == {".  25%"}
    image = ax.images[0]
    colours = image.norm(image.get_array())[:, 0]
    assert (-pd.Series(colours).diff()[1:] > 0.1).all()  # no two layers have one colour
    assert colours.min() >= 0 and colours.max() <= 1


READERS = (("teacher 1", "num"), ("student", " numpy"))
LENS = ["layer", "reader", "top", "probability", "kl", "read"]


def test_lens_chart_names_tokens_without_breaking_on_odd_ones() -> None:
    cells = [(layer, who, ("\n", "$x$"), 0.5, float(layer), "$a") for layer in range(3) for who, _ in READERS]
    table = pd.DataFrame(cells, columns=LENS)
    ax = lens_chart(table)
    assert [text.get_text() for text in ax.texts] == ["\u21b5  50%"] * 6
    cells = [(0, "student", ("$a_b^$",), 0.5, 1.0, "$a_b^$")]
    ax = lens_chart(pd.DataFrame(cells, columns=table.columns))
    ax.figure.canvas.draw()  # a token that looks like broken mathematics must not raise
