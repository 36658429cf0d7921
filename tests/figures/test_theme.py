"""Figures: same bytes twice, alternative text kept, styles that differ without colour."""

import io
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytest
from figures.figure_parts import contrast, linear
from matplotlib.lines import Line2D
from PIL import Image

from vocabx_utils.config import Phase1Config
from vocabx_utils.figures.theme import (
    ADVISED_COLOR,
    BASE_COLOR,
    FAINT,
    PALETTE,
    Format,
    cycle_style,
    legend_by_end,
    note,
    save_figure,
    show_figure,
    theme,
    variant_style,
)

ALT = "Line chart of y by x: y rises with x."


def figure() -> plt.Figure:
    theme()
    fig, ax = plt.subplots()
    ax.plot([0, 1, 2], [0, 1, 4], label="a")
    ax.fill_between([0, 1, 2], [0, 0, 1], [1, 2, 5], alpha=0.2)
    ax.set_title("rise")
    ax.legend()
    note(ax, "n = 3 points")
    return fig


@pytest.mark.parametrize("extension", ["svg", "pdf", "png"])
def test_bytes_repeat_and_hold_no_date(tmp_path: Path, extension: Format) -> None:
    contents = []
    for part in ("a", "b"):
        fig = figure()
        [path] = save_figure(fig, "rise", ALT, tmp_path / part, (extension,))
        plt.close(fig)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert b"CreationDate" not in contents[0]
    assert b"<dc:date>" not in contents[0]


def test_alt_texts_collect_in_one_sorted_file(tmp_path: Path) -> None:
    fig = figure()
    save_figure(fig, "b", ALT, tmp_path)
    save_figure(fig, "a", ALT + "\n  More.", tmp_path)
    texts = json.loads((tmp_path / "alt.json").read_text())
    assert list(texts) == ["a", "b"]
    assert texts["a"] == ALT + " More."
    assert {p.name for p in tmp_path.iterdir()} == {"a.svg", "a.png", "b.svg", "b.png", "alt.json"}


def test_bad_input_names_what_to_do(tmp_path: Path) -> None:
    fig = figure()
    with pytest.raises(ValueError, match="alternative text"):
        save_figure(fig, "x", "plot", tmp_path)
    with pytest.raises(ValueError, match="gif"):
        save_figure(fig, "x", ALT, tmp_path, ("gif",))  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_styles_differ_in_marker_and_line_not_only_in_colour() -> None:
    names = [
        "mean_ce",
        "random_ce",
        "mean_kl_first",
        "random_kl_first",
        "mean_kl_last",
        "random_kl_last",
        "base",
    ]
    shapes = {(variant_style(n)["marker"], str(variant_style(n)["linestyle"])) for n in names}
    assert len(shapes) == len(names)
    assert variant_style("mean_hidden_last") == variant_style("mean_hidden_last")


@pytest.mark.parametrize(
    "names",
    [
        Phase1Config().variants,
        ["base", "mean_ce", "mean_kl_last_ce0.1", "mean_kl_last_ce0.1_no_a", "mean_kl_last_ce0.1_full"],
    ],
    ids=["notebook 03", "notebook 04"],
)
def test_no_two_variants_of_a_notebook_look_alike(names: list[str]) -> None:
    styles = [variant_style(name) for name in names]
    assert len({style["marker"] for style in styles}) == len(names)
    assert len({str(style["linestyle"]) for style in styles if style["linestyle"] != ":"}) >= len(names) - 2
    stems = {name.removesuffix("_no_a").removesuffix("_full") for name in names}
    assert len({style["color"] for style in styles}) == len(stems)


def test_dotted_is_only_what_was_not_trained() -> None:
    """A line is dotted that has no dash longer than twice its width."""
    names = ["base", "base_full", "tuned_base", "tuned_mean_untrained", *(f"mean_kl_last_ce{k}" for k in range(64))]
    styles = [cycle_style(k)["linestyle"] for k in range(64)] + [variant_style(name)["linestyle"] for name in names]
    dashes = [Line2D([], [], linestyle=style)._dash_pattern[1] for style in styles if style not in ("-", "--", "-.")]
    assert all(max(pattern[::2]) > 2 * plt.rcParams["lines.linewidth"] for pattern in dashes)
    untrained = [variant_style(f"{init}_untrained") for init in ("mean", "random", "first", "last", "align", "focus")]
    assert {style["linestyle"] for style in untrained} == {":"}
    assert len({(style["color"], style["marker"]) for style in untrained}) == len(untrained)
    assert len({str(sorted(cycle_style(k).items(), key=str)) for k in range(64)}) == 64


MACHADO = {
    "normal": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""What a colour-blind reader sees of linear RGB (Machado, Oliveira and Fernandes 2009, severity 1)."""


def lab(rgb: np.ndarray) -> np.ndarray:
    """CIELAB of linear sRGB."""
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    x, y, z = np.array(to_xyz) @ np.clip(rgb, 0, 1) / [0.95047, 1, 1.08883]
    f = [np.cbrt(v) if v > 216 / 24389 else (24389 / 27 * v + 16) / 116 for v in (x, y, z)]
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def test_the_simulation_keeps_white_and_grey() -> None:
    for matrix in MACHADO.values():
        assert lab(np.array(matrix) @ np.ones(3)) == pytest.approx([100, 0, 0], abs=0.02)
    assert lab(linear("#ff0000")) == pytest.approx([53.24, 80.09, 67.20], abs=0.05)


@pytest.mark.parametrize("eyes", MACHADO)
def test_colours_of_lines_stay_apart_for_all_eyes(eyes: str) -> None:
    seen = [lab(np.array(MACHADO[eyes]) @ linear(color)) for color in (*PALETTE, BASE_COLOR, ADVISED_COLOR)]
    assert min(float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)) > 20


def test_colours_of_lines_and_words_stand_out_on_white() -> None:
    assert contrast("#777777") == pytest.approx(4.48, abs=0.01)
    assert min(contrast(color) for color in (*PALETTE, BASE_COLOR, ADVISED_COLOR)) >= 3
    assert contrast(FAINT) >= 4.5


def test_a_legend_names_curves_in_the_order_in_which_they_end() -> None:
    ax = plt.subplots()[1]
    for name, end in (("low", 0.0), ("high", 3.0), ("middle", 1.0)):
        ax.plot([0, 1], [2.0, end], label=name)
    assert [text.get_text() for text in legend_by_end(ax).get_texts()] == ["high", "middle", "low"]


def test_a_png_has_few_colours_and_looks_the_same(tmp_path: Path) -> None:
    fig = figure()
    [path] = save_figure(fig, "rise", ALT, tmp_path, ("png",))
    full = io.BytesIO()
    fig.savefig(full, format="png", dpi=150, facecolor="white")
    assert path.stat().st_size < 0.7 * len(full.getvalue())
    with Image.open(path) as few, Image.open(full) as all_colours:
        assert few.mode == "P" and few.size == all_colours.size
        gap = np.abs(np.asarray(few.convert("RGB"), int) - np.asarray(all_colours.convert("RGB"), int))
    assert gap.max() <= 40 and gap.mean() < 0.5


def test_a_notebook_shows_more_dots_than_the_page_has_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[Any] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    theme()
    show_figure(plt.subplots(figsize=(5, 3))[0], "wide", ALT, tmp_path)
    with Image.open(io.BytesIO(shown[0].data)) as picture:
        assert picture.size == (750, 450)
    assert shown[0].width == 420 and shown[0].height is None
    assert shown[0].data == (tmp_path / "wide.png").read_bytes()  # drawn once


def test_show_figure_puts_the_alternative_text_on_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    show_figure(figure(), "rise", ALT, tmp_path)
    image, text = shown
    assert image.alt == ALT  # type: ignore[attr-defined]
    assert ALT in text.data  # type: ignore[attr-defined]
    assert not plt.get_fignums()
