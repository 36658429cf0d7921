"""Strips as pictures: they save as SVG and PDF, show every character, and carry the loss of each pair."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest
from fixtures.alignment_tokenizers import with_added

from vocabx_utils.figures.looks import drawable
from vocabx_utils.figures.strip_pictures import draw_loss_pipeline, draw_strip, draw_token_ids
from vocabx_utils.figures.strips import strip_from_pieces, token_strip
from vocabx_utils.vocabulary.lookahead import map_token_sequences

ORIGINAL = ["import", " num", "py", " as", " np", "\n", "st", "d", "(", ")"]
EXTENDED = ["import", " numpy", " as", " np", "\n", "std", "(", ")"]
PAIR = with_added("byte-level")


def test_figures_save_as_svg_and_pdf(tmp_path):
    strip = strip_from_pieces(ORIGINAL * 3, EXTENDED * 3)
    axes = draw_strip(strip, width=40, indices=True)
    texts = [text.get_text() for text in axes.texts]
    assert texts.count("◆·numpy") == 3 and texts.count("2:1") == 6
    with plt.rc_context({"svg.hashsalt": "strips"}):
        for suffix in ("svg", "pdf", "png"):
            axes.figure.savefig(tmp_path / f"strip.{suffix}")
            assert (tmp_path / f"strip.{suffix}").stat().st_size > 1000

    short = strip_from_pieces(ORIGINAL, EXTENDED)
    pairs, kind = map_token_sequences(ORIGINAL, EXTENDED).pairs("first")
    losses = np.linspace(0.1, 0.8, len(pairs))
    panels = draw_loss_pipeline(short, pairs, kind, vocabulary=100, new_tokens=2, kl=losses)
    heights = sorted(bar.get_height() for bar in panels[3].patches)
    np.testing.assert_allclose(heights, losses)
    assert any("100\n× 8" in text.get_text() for text in panels[2].texts)
    assert {round(line.get_xdata()[0]) for line in panels[0].lines} <= set(range(60))
    with pytest.raises(ValueError, match="one for each pair"):
        draw_loss_pipeline(short, pairs, kind[:-1], vocabulary=100, new_tokens=2, kl=losses)


def test_a_column_stands_at_one_place_in_all_steps_and_a_long_text_is_cut() -> None:
    strip = strip_from_pieces(["a", "b"] * 40 + ORIGINAL, ["a", "b"] * 40 + EXTENDED)
    pairs, kind = map_token_sequences(["a", "b"] * 40 + ORIGINAL, ["a", "b"] * 40 + EXTENDED).pairs("last")
    losses = np.arange(len(pairs)) / 100
    above, kept, _, bars = draw_loss_pipeline(strip, pairs, kind, vocabulary=9, new_tokens=2, kl=losses, width=60)
    places = [{text.get_text(): text.get_position()[0] for text in ax.texts} for ax in (above, kept)]
    assert places[0]["◆·numpy"] == places[1]["◆·numpy"]
    assert "·num" in places[0] and "·num" not in places[1]  # its column has no partner
    [numpy] = [bar for bar in bars.patches if bar.get_height() == pytest.approx(losses[81])]
    assert numpy.get_x() + numpy.get_width() / 2 == pytest.approx(places[0]["◆·numpy"])
    assert 10 < len(bars.patches) < len(pairs)
    legend = bars.get_legend()
    assert "mean of all 88 pairs" in legend.get_title().get_text()
    assert legend.get_frame_on() and legend.get_frame().get_alpha() == 1  # hides the grid behind its words


@pytest.mark.parametrize(("times", "vocabulary"), [(1, 151_936), (2, 49_152)])
def test_words_of_the_pipeline_stay_in_their_boxes_and_off_the_axis(times: int, vocabulary: int) -> None:
    strip = strip_from_pieces(ORIGINAL * times, EXTENDED * times)
    pairs, kind = map_token_sequences(ORIGINAL * times, EXTENDED * times).pairs("last")
    losses = np.arange(len(pairs)) / 100
    panels = draw_loss_pipeline(strip, pairs, kind, vocabulary=vocabulary, new_tokens=2000, kl=losses)
    panels[0].figure.canvas.draw()
    boxes = [patch.get_window_extent() for patch in panels[2].patches]
    for text in (text for text in panels[2].texts if text.get_text()):
        words = text.get_window_extent()
        [*around] = [box for box in boxes if box.x0 < words.x0 and words.x1 < box.x1 and box.overlaps(words)]
        touched = [box for box in boxes if box.overlaps(words)]
        assert len(around) == len(touched) == (text.get_text() != "softmax"), text.get_text()
    bars = panels[3]
    numbers = [label.get_window_extent() for label in bars.get_yticklabels()]
    [name] = [text for text in bars.texts if text.get_text() == "KL (nats)"]
    assert not any(name.get_window_extent().overlaps(number) for number in numbers)
    begins = [path.vertices[:, 0].min() for lines in bars.collections for path in lines.get_paths()]
    begins += [min(line.get_xdata()) for line in bars.lines]
    assert begins and set(begins) == {0}
    assert not any(line.get_visible() for line in bars.get_ygridlines())
    assert bars.spines["bottom"].get_bounds()[0] == 0


def test_lines_of_a_strip_are_about_equally_long() -> None:
    axes = draw_strip(strip_from_pieces(["ab"] * 22, ["ab"] * 22), width=63)
    sizes = [sum(text.get_position()[1] == y for text in axes.texts) for y in {t.get_position()[1] for t in axes.texts}]
    assert max(sizes) - min(sizes) <= 1


def test_characters_the_font_lacks_become_code_points():
    assert drawable("·x↵◆") == "·x↵◆"
    assert drawable("🙂") == "U+1F642" or "🙂" in drawable("🙂")


def test_figures_of_emoji_warn_about_no_missing_glyph(recwarn):
    draw_strip(token_strip(PAIR, "🙂 日本 e\u0301 \u200d")).figure.canvas.draw()
    assert [str(warning.message) for warning in recwarn] == []


def test_token_rows_must_be_one_text() -> None:
    with pytest.raises(ValueError, match="one id for each piece"):
        draw_token_ids([("a", ["x", "y"], [1], set())])
    with pytest.raises(ValueError, match="a beginning of 'xyz'"):
        draw_token_ids([("a", ["x", "yz"], [1, 2], set()), ("b", ["q"], [3], set())])
