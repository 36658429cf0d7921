"""The list of figures: data as plotted, what is left out and why, same bytes twice, the command."""

import json
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from click.testing import CliRunner
from fixtures.tiny_run import add_later_stages, build_run

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from vocabx_utils.analysis import charts, diagrams, figures, rows, similarity, thesis
from vocabx_utils.analysis.mechanisms import CausalTest, top_k_share
from vocabx_utils.cli.report import figures as command
from vocabx_utils.runs import Run


@pytest.fixture(autouse=True)
def closed() -> object:
    yield
    plt.close("all")


def lines(ax: plt.Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines}


def test_every_figure_is_drawn_twice_alike_with_alt_text(tmp_path: Path) -> None:
    open_before = plt.get_fignums()
    tiny = build_run(tmp_path)
    add_later_stages(tiny)
    first = figures.draw_figures(tiny.run, tmp_path / "a", figures.FIGURES)
    second = figures.draw_figures(tiny.run, tmp_path / "b", figures.FIGURES)
    assert all(not outcome.reason for outcome in first)
    for one, other in zip(first, second, strict=True):
        assert [p.name for p in one.paths] == [f"{one.name}.svg", f"{one.name}.png"]
        assert [p.read_bytes() for p in one.paths] == [p.read_bytes() for p in other.paths], one.name
    texts = json.loads((tmp_path / "a" / "alt.json").read_text())
    assert set(texts) == {spec.name for spec in figures.FIGURES}
    assert all(40 < len(text) < 900 and "nan" not in text for text in texts.values())
    assert plt.get_fignums() == open_before


def test_counterparts_cover_what_the_thesis_shows_of_data_and_method() -> None:
    shown = {spec.thesis for spec in figures.FIGURES}
    assert shown >= {
        "fig:complete_pipeline", "fig:algo1", "fig:loss_gradient", "fig:phase1_ce_loss", "fig:phase1_kl_loss",
        "fig:finetune_loss", "fig:sequential_finetune", "tab:combined_results", "fig:embedding_similarity",
        "fig:head_similarity",
    }  # fmt: skip


def test_what_a_run_lacks_is_left_out_with_the_remedy(tmp_path: Path) -> None:
    outcomes = {o.name: o for o in figures.draw_figures(Run("empty", tmp_path), tmp_path / "f", figures.FIGURES)}
    assert outcomes["pipeline"].paths
    assert not outcomes["phase1_ce"].paths
    assert "03_phase1_training" in outcomes["phase1_ce"].reason
    assert "04_fine_tuning" in outcomes["finetuning"].reason
    assert "06_mechanistic_analysis" in outcomes["causal"].reason
    assert set(json.loads((tmp_path / "f" / "alt.json").read_text())) == {n for n, o in outcomes.items() if o.paths}


def test_loss_and_gradient_values() -> None:
    drawn = lines(diagrams.loss_gradient_chart())
    p, loss = drawn["cross-entropy loss, −ln p"]
    assert loss == pytest.approx([-np.log(x) for x in p])
    assert drawn["its gradient magnitude, 1/p"][1] == pytest.approx([1 / x for x in p])


def test_cosine_chart_draws_the_table_and_the_published_curve(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)
    history = rows.read_history(tiny.run, "random_kl_last")
    table = similarity.cosines_by_epoch([history], rows.read_tokens(tiny.run), tiny.original)  # type: ignore[arg-type]
    part = similarity.summarize(table[table["matrix"] == "input"], draws=20)
    published = thesis.cosine_curve("input", "kl", "first")
    drawn = lines(charts.cosine_chart(part, [published]))
    expected = part[part["position"] == "first"].sort_values("epoch")
    x, y = drawn["first (n = 12)"]
    assert x == expected["epoch"].tolist()
    assert y == pytest.approx(expected["mean"].tolist())
    assert drawn["thesis, first"][1] == pytest.approx(list(published.cosine))
    assert "intermediate (n = 8)" in drawn


def test_metric_chart_leaves_gaps_for_missing_values() -> None:
    metrics = {
        "mean_ce": [{"epoch": 0, "ce": 3.0}, {"epoch": 1}, {"epoch": 2, "ce": float("nan")}, {"epoch": 3, "ce": 2.0}]
    }
    drawn = lines(charts.metric_chart(metrics, "ce"))
    assert drawn["mean init, CE"] == ([0, 3], [3.0, 2.0])


def test_training_is_solid_and_validation_dashed_as_in_the_thesis() -> None:
    metrics = {"mean_kl_first": [{"epoch": at, "ce": 3.0 - at, "train_ce": 4.0 - at} for at in range(3)]}
    dashed, solid = charts.metric_chart(metrics, "ce", train_key="train_ce").get_lines()
    assert dashed.get_linestyle() == "--" and list(dashed.get_ydata()) == [3.0, 2.0, 1.0]
    assert solid.get_linestyle() == "-" and list(solid.get_ydata()) == [4.0, 3.0, 2.0]


def test_stage_losses_run_on_over_stages(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)
    add_later_stages(tiny)
    drawing = figures._finetuning(tiny.run)
    drawn = lines(drawing.figure.axes[0])
    assert drawn["base model"][0] == [0, 1, 2, 2, 3, 4]
    assert drawn["base model"][1] == pytest.approx([1.0, 0.95, 0.9, 0.8, 0.75, 0.7])
    assert "base model 1.000 to 0.700" in drawing.alt


def test_published_results_bars() -> None:
    drawing = figures._published_results(Run("any", Path()))
    widths = [bar.get_width() for bar in drawing.figure.axes[2].patches]
    assert widths == pytest.approx([100 * row.combined / thesis.COMBINED_TOTAL for row in thesis.RESULTS])
    low, high = figures._wilson(np.array([0.5]), 100)
    assert (low[0], high[0]) == pytest.approx((0.40383, 0.59617), abs=1e-5)  # Wilson (1927), 50 of 100


def test_causal_and_share_charts() -> None:
    import pandas as pd
    import torch

    rows_ = [("top", 1, 0, 0.8), ("top", 4, 0, 0.2), ("random", 1, 0, 1.0), ("random", 1, 1, 0.6)]
    table = pd.DataFrame(rows_, columns=["keep", "k", "draw", "kl"])
    drawn = lines(charts.causal_chart(CausalTest(table, 1.0, 0.1, 8)))
    assert drawn["largest coordinates"] == ([1, 4], [0.8, 0.2])
    assert drawn["random coordinates"] == ([1], [pytest.approx(0.8)])
    delta = torch.eye(8)[:3]
    drawn = lines(charts.share_chart({"mean_ce": top_k_share(delta, [1, 8])}, [1, 8], 8))
    assert drawn["mean init, CE"][1] == pytest.approx([1, 1])


def test_lens_chart_names_tokens_without_breaking_on_odd_ones() -> None:
    import pandas as pd

    cells = [(layer, who, ("\n", "$x$"), 0.5, float(layer)) for layer in range(3) for who in ("teacher 1", "student")]
    table = pd.DataFrame(cells, columns=["layer", "reader", "top", "probability", "kl"])
    ax = charts.lens_chart(table)
    assert [text.get_text() for text in ax.texts] == ["\\n"] * 6
    cells = [(0, "student", ("$a_b^$",), 0.5, 1.0)]
    ax = charts.lens_chart(pd.DataFrame(cells, columns=table.columns))
    ax.figure.canvas.draw()  # a token that looks like broken mathematics must not raise


def test_command_says_what_was_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path))
    build_run(tmp_path)
    answer = CliRunner().invoke(command, ["tiny", "--out", str(tmp_path / "f")])
    assert answer.exit_code == 0, answer.output
    assert re.search(r"causal: left out: .*06_mechanistic_analysis", answer.output)
    assert (tmp_path / "f" / "phase1_kl.svg").exists()
    assert (tmp_path / "f" / "alignment_example.svg").exists()
    assert "loss_pipeline: left out: " in answer.output
    assert CliRunner().invoke(command, ["absent"]).exit_code == 2
