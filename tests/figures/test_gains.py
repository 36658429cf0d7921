"""What phase 1 gains: points of tokens and objectives, and what the alternative text says of them."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from vocabx_utils.figures.gains import draw_domains, draw_frontier, draw_phrases, draw_token_gains
from vocabx_utils.figures.theme import theme
from vocabx_utils.measured import RECIPES


def test_tokens_stand_at_their_kl_before_and_after() -> None:
    tokens = pd.DataFrame(
        {
            "text": [" xp", "cdf", "tol", "unseen"],
            "kl_start": [2.0, 1.0, 0.5, np.nan],
            "kl_end": [0.5, 0.25, 1.0, np.nan],
        }
    )
    drawing = draw_token_gains(tokens, "mean_kl_last")
    better, worse = (part.get_offsets().tolist() for part in drawing.figure.axes[0].collections)
    assert better == [[2.0, 0.5], [1.0, 0.25]]
    assert worse == [[0.5, 1.0]]
    named = [text.get_text() for text in drawing.figure.axes[0].texts]
    assert named == ["tol", "cdf", "·xp"]  # from left to right
    drawing.figure.canvas.draw()
    ticks = [label.get_text() for label in drawing.figure.axes[0].get_xticklabels()]
    assert "1" in ticks and not any("10^" in label for label in ticks)  # numbers, not powers
    assert "2 points lie below" in drawing.alt
    assert "keeps 25% of its KL" in drawing.alt


def test_a_kl_of_zero_stands_at_the_edge_of_the_logarithmic_axis() -> None:
    tokens = pd.DataFrame({"text": ["a", "b"], "kl_start": [1.0, 0.0], "kl_end": [0.0, 0.0]})
    better, worse = (part.get_offsets().tolist() for part in draw_token_gains(tokens, "x").figure.axes[0].collections)
    assert better == [[1.0, 1e-3]]
    assert worse == [[1e-3, 1e-3]]


def test_saved_tokens_have_a_panel_for_each_tokenizer_and_corpus() -> None:
    rows = [
        {"tokenizer": t, "corpus": c, "strategy": s, "n": n, "saved_percent": k + n / 100}
        for k, s in enumerate(("merges", "phrases"))
        for t in ("A", "B")
        for c in ("x", "y", "z")
        for n in (800, 200)
    ]
    drawing = draw_phrases(pd.DataFrame(rows))
    axes = drawing.figure.axes
    assert [ax.get_title() for ax in axes] == [f"{t}, {c}" for t in "AB" for c in "xyz"]
    assert [line.get_xydata().tolist() for line in axes[0].lines] == [[[200, 2], [800, 8]], [[200, 3], [800, 9]]]
    assert "With 800 new tokens: A on x: 8.0 % (merges), 9.0 % (phrases)" in drawing.alt


def legend_is_above(figure: Figure) -> bool:
    """Whether the legend stands on the page and above all panels, which share its width."""
    figure.canvas.draw()
    (legend,) = figure.legends
    box, page = legend.get_window_extent(), figure.bbox
    panels = [ax.get_tightbbox() for ax in figure.axes if ax.axison]
    inside = page.x0 <= box.x0 and box.x1 <= page.x1 and box.y1 <= page.y1
    return inside and all(panel is not None and panel.y1 <= box.y0 for panel in panels)


def test_the_frontier_shows_runs_and_marks_finalists() -> None:
    def runs(shift: float) -> list[dict[str, object]]:
        values = [("kl", 0.2, 0.80), ("kl", 0.3, 0.79), ("ce", 0.5, 0.77), ("r1", 0.19, 0.78), ("ce", 90.0, 0.9)]
        found: list[dict[str, object]] = [
            {"run": f"{name}:{k}", "family": name, "kl_last": kl + shift, "bpb": bits, "base_bpb": 0.75}
            for k, (name, kl, bits) in enumerate(values)
        ]
        return [*found, {"run": "r1:9", "family": "r1", "error": "not finite"}]

    rows = {
        name: {"kl_last": [0.2, 0.19, 0.22], "above_base": [0.03, 0.02, 0.05]} for name in ("r1:3", "kl:0", "other:1")
    }
    theme()
    verdict = {"settings": {"qwen-headers": {"rows": rows, "finalists": {"r1:3": {}}}}}
    drawing = draw_frontier({"qwen-headers": runs(0), "smollm2-python": runs(0.1), "other-three": runs(0)}, verdict)
    one, two, three, empty = drawing.figure.axes
    titles = ["C headers\nQwen2.5-Coder-0.5B", "Python packages\nSmolLM2-135M", "three\nother"]
    assert [ax.get_title() for ax in (one, two, three)] == titles and not empty.axison
    small = {line.get_markersize(): line for line in two.lines}
    assert set(small) == {4.0}
    points = sorted((round(x, 2), round(y, 2)) for line in two.lines for x, y in line.get_xydata())
    assert points == [(0.29, 0.03), (0.3, 0.05), (0.4, 0.04), (0.6, 0.02)]  # without what lies far beyond
    large = [container.lines[0] for container in one.containers]
    assert [tuple(line.get_xydata()[0]) for line in large] == [(0.2, 0.03)] * 3
    assert [line.get_markeredgecolor() for line in large].count("black") == 1
    (legend,) = drawing.figure.legends
    explained = ["a run of the sweep", "a row of the report split", "the same, a finalist"]
    assert [text.get_text() for text in legend.get_texts()] == [RECIPES[k] for k in ("kl", "ce", "r1")] + explained
    marks = [(line.get_markersize(), line.get_markeredgecolor() == "black") for line in legend.get_lines()]
    assert marks == [(6, False)] * 3 + [(4, False), (7, False), (7, True)]
    assert large[0].get_markersize() == 7 and one.lines[0].get_markersize() == 4
    bars = [bar for container in one.containers for kind in container.lines[1:] for bar in kind]
    assert max(bar.get_zorder() for bar in bars) < min(mark.get_zorder() for mark in large)
    (alone,) = draw_frontier({"qwen-headers": runs(0)}, {}).figure.legends
    assert [text.get_text() for text in alone.get_texts()][3:] == explained[:1]
    assert "3 runs lie far beyond: 3 of CE." in drawing.alt and "a large one with limits" in drawing.alt
    said = f"C headers, Qwen2.5-Coder-0.5B: “{RECIPES['r1']}” has the lowest KL and “CE” the fewest bits per byte"
    assert said in drawing.alt
    assert legend_is_above(drawing.figure)


def test_the_frontier_without_its_search_has_the_judged_rows_and_a_ring_around_the_advised_one() -> None:
    runs = [{"run": "fade:1", "family": "fade", "kl_last": 0.1, "bpb": 0.8, "base_bpb": 0.75}]
    values = {"r1:3": (0.2, 0.03), "kl:0": (0.1, 0.05), "ce:1": (0.9, -0.01)}
    rows = {name: {"kl_last": [x, x, x], "above_base": [y, y, y]} for name, (x, y) in values.items()}
    verdict = {"settings": {"qwen-headers": {"rows": rows, "finalists": {"r1:3": {}}, "advice": {"run": "r1:3"}}}}
    drawing = draw_frontier({"qwen-headers": runs}, verdict, search=False)
    (ax, *_) = drawing.figure.axes
    assert len(ax.containers) == 3
    [ring] = [line for line in ax.lines if line.get_markersize() == 15]
    assert ring.get_xydata().tolist() == [[0.2, 0.03]]
    (legend,) = drawing.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [RECIPES[k] for k in ("kl", "ce", "r1")]
    lowest = "lowest KL KL last (0.100 nats, +0.0500 bits), fewest bits CE (0.900 nats, -0.0100 bits)"
    assert f"C headers, Qwen2.5-Coder-0.5B: {lowest}, advised R1" in drawing.alt
    assert "ring" in drawing.figure.get_supxlabel() and "far beyond" not in drawing.alt


def test_domains_have_a_panel_for_each_text_and_model_and_a_point_for_each_arm() -> None:
    def rows(text: str, model: str) -> list[dict[str, object]]:
        values = {
            ("base", 0): (400, 1.5), ("base_lora", 0): (400, 1.2), ("words", 800): (320, 1.4),
            ("words_lora", 800): (320, 1.15), ("words", 3200): (280, 1.35), ("words_untrained", 800): (320, 2.4),
        }  # fmt: skip
        return [
            {"text": text, "model": model, "arm": arm, "n": n, "tokens_per_1000_bytes": tokens, "bpb": bits,
             "saved": 1 - tokens / 400, "above_base": [bits - 1.5, bits - 1.52, bits - 1.45],
             "bits": [1.0] * len(text)}
            for (arm, n), (tokens, bits) in values.items()
        ]  # fmt: skip

    theme()
    without_base = {"text": "swedish", "model": "B", "arm": "words", "n": 800, "above_base": None}
    drawing = draw_domains([*rows("headers", "A"), *rows("german", "A"), *rows("german", "B"), without_base])
    one, two, three, empty = drawing.figure.axes
    assert [ax.get_title().split("\n") for ax in (one, two, three)] == [
        ["German manual pages", "A", "n = 6 documents"], ["C headers", "A", "n = 7 documents"],
        ["German manual pages", "B", "n = 6 documents"],
    ]  # fmt: skip
    assert not empty.axison
    points = [(float(c[0].get_xdata()[0]), float(c[0].get_ydata()[0]), c[0].get_markersize()) for c in one.containers]
    assert points == [(400, 1.5, 5), (400, 1.2, 5), (320, 1.4, 5), (320, 1.15, 5), (280, 1.35, 8)]
    [bar] = one.containers[2][2][0].get_segments()
    assert np.allclose(bar[:, 1], [1.38, 1.45])  # around its own bits per byte
    assert "3 untrained points lie above" in drawing.alt
    assert legend_is_above(drawing.figure)
    sizes = "Small points: N = 800 new tokens; large: 3,200."
    assert sizes in drawing.alt and sizes in drawing.figure.get_supxlabel().replace("\n", " ")
    others = [row | {"n": 1500} if row["n"] == 3200 else row for row in rows("headers", "A")]
    mixed = draw_domains([*rows("german", "A"), *rows("german", "B"), *others])
    assert "large: 3,200, but 1,500 in C headers with A." in mixed.alt
    assert (
        "C headers, A (n = 7 documents): base 1.500 bits, base + LoRA 1.200, lowest of those with new tokens 1.150"
        in drawing.alt
    )
