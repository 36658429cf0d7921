"""Figures: same bytes twice, alternative text kept, styles that differ without colour."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from vocabx_utils.figures.theme import (
    Format,
    note,
    position_style,
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
    with pytest.raises(ValueError, match="poster"):
        theme("poster")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="middle"):
        position_style("middle")
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
    assert len({position_style(p)["marker"] for p in ("first", "intermediate", "last")}) == 3
    assert variant_style("mean_hidden_last") == variant_style("mean_hidden_last")


def test_show_figure_puts_the_alternative_text_on_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[object] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    show_figure(figure(), "rise", ALT, tmp_path)
    image, text = shown
    assert image.alt == ALT  # type: ignore[attr-defined]
    assert ALT in text.data  # type: ignore[attr-defined]
    assert not plt.get_fignums()
