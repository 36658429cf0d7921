"""What a share of cross-entropy buys: a line, its names and its marks."""

import numpy as np

from vocabx_utils.figures.theme import theme
from vocabx_utils.figures.tradeoff import draw_tradeoff
from vocabx_utils.measured import by_setting, ce_line, read_bench
from vocabx_utils.paths import project_root


def test_the_line_of_the_trade_off_joins_what_differs_in_lambda_alone() -> None:
    values = {
        "mean_untrained": (9.0, 9.0), "mean_kl_last": (0.2, 1.0), "mean_kl_last_ce1": (0.5, 0.8),
        "mean_kl_last_ce0.3": (0.3, 0.9), "mean_ce": (0.9, 0.7), "random_ce": (1.0, 2.0),
    }  # fmt: skip
    rows = {name: {"kl_last": kl, "bpb": bits} for name, (kl, bits) in values.items()}
    drawing = draw_tradeoff({"M, python": rows, "untrained": {"mean_untrained": rows["mean_untrained"]}})
    (ax,) = drawing.figure.axes
    line, *points = ax.get_lines()
    assert (list(line.get_xdata()), list(line.get_ydata())) == ([0.2, 0.3, 0.5], [1.0, 0.9, 0.8])
    assert [(float(p.get_xdata()[0]), float(p.get_ydata()[0])) for p in points] == [(0.9, 0.7)]
    assert [text.get_text() for text in ax.texts] == ["λ = 0", "λ = 1"]
    assert "mean init, KL (last) has the lowest KL" in drawing.alt
    assert "mean init, CE the fewest bits per byte" in drawing.alt
    words = "The untrained start lies far above."
    assert words in drawing.alt and words in drawing.figure.get_supxlabel().replace("\n", " ")
    del rows["mean_untrained"]
    assert words not in draw_tradeoff({"M, python": rows}).alt


def test_names_of_the_trade_off_as_measured_cover_no_mark_and_marks_differ_in_colour() -> None:
    theme()
    measured = by_setting(read_bench(project_root() / "results" / "phase1"))
    figure = draw_tradeoff({title: rows for title, rows in measured.items() if len(ce_line(rows)) > 2}).figure
    figure.draw_without_rendering()
    assert len(figure.axes) == 2
    points, near = figure.dpi / 72, 8.0  # points of type: further away a name is taken for that of another mark
    for ax in figure.axes:
        line, *marks = ax.get_lines()
        assert len({mark.get_color() for mark in marks}) == len(marks) >= 4
        centres = ax.transData.transform(np.concatenate([mark.get_xydata() for mark in (line, *marks)]))
        ends = ax.transData.transform(line.get_xydata()[[0, -1]])
        for text, (x, y) in zip(ax.texts, ends, strict=True):
            box = text.get_window_extent()
            assert not any(box.padded(2 * points).contains(*centre) for centre in centres)
            away = np.hypot(max(box.x0 - x, x - box.x1, 0), max(box.y0 - y, y - box.y1, 0))
            assert away <= near * points
            assert text.get_color() == line.get_color()
