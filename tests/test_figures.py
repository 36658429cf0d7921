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

from vocabx_utils import rows, thesis
from vocabx_utils.analysis import (
    charts,
    diagrams,
    figures,
    loss_figures,
    result_figures,
    row_figures,
    similarity,
)
from vocabx_utils.analysis.drawings import draw_figures
from vocabx_utils.analysis.mechanisms import CausalTest, top_k_share
from vocabx_utils.cli.report import figures as command
from vocabx_utils.cli.strip_figures import STRIP_FIGURES
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
    first = draw_figures(tiny.run, tmp_path / "a", figures.FIGURES)
    second = draw_figures(tiny.run, tmp_path / "b", figures.FIGURES)
    assert all(not outcome.reason for outcome in first)
    for one, other in zip(first, second, strict=True):
        assert [p.name for p in one.paths] == [f"{one.name}.svg", f"{one.name}.png"]
        assert [p.read_bytes() for p in one.paths] == [p.read_bytes() for p in other.paths], one.name
    texts = json.loads((tmp_path / "a" / "alt.json").read_text())
    assert set(texts) == {spec.name for spec in figures.FIGURES}
    assert all(40 < len(text) < 900 and "nan" not in text for text in texts.values())
    assert plt.get_fignums() == open_before


def test_counterparts_cover_what_the_thesis_shows_of_data_and_method() -> None:
    shown = {spec.thesis for spec in (*figures.FIGURES, *STRIP_FIGURES)}
    assert shown == {
        "", "fig:complete_pipeline", "fig:algo1", "fig:loss_gradient", "fig:phase1_ce_loss", "fig:phase1_kl_loss",
        "fig:finetune_loss", "fig:sequential_finetune", "tab:combined_results", "fig:embedding_similarity",
        "fig:head_similarity", "fig:tokenization", "tab:tokenization_process", "fig:complete_loss_pipeline",
        "alg:token-mapping", "tab:awedist_mappings",
    }  # fmt: skip
    names = [spec.name for spec in (*figures.FIGURES, *STRIP_FIGURES)]
    assert len(set(names)) == len(names)


def test_every_figure_with_data_says_n_and_what_bars_and_bands_are(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)
    add_later_stages(tiny)
    for spec in (*loss_figures.FIGURES, *result_figures.FIGURES, *row_figures.FIGURES):
        figure = spec.draw(tiny.run).figure
        words = " ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))
        if spec.name != "sequential_published":  # the thesis does not say
            assert re.search(r"\bn = \d", words), spec.name
        assert re.search(r"no bands|Bands: |Bars: |bands: |[Ww]hiskers", words), spec.name


def test_what_a_run_lacks_is_left_out_with_the_remedy(tmp_path: Path) -> None:
    outcomes = {o.name: o for o in draw_figures(Run("empty", tmp_path), tmp_path / "f", figures.FIGURES)}
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


def published_curve(*place: str) -> thesis.CosineCurve:
    return next(c for c in thesis.COSINE_CURVES if (c.matrix, c.objective, c.position) == place)


def test_cosine_chart_draws_the_table_and_the_published_curve(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)
    history = rows.read_history(tiny.run, "random_kl_last")
    table = similarity.cosines_by_epoch([history], rows.read_tokens(tiny.run), tiny.original)  # type: ignore[arg-type]
    part = similarity.summarize(table[table["matrix"] == "input"], draws=20)
    published = published_curve("input", "kl", "first")
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
    drawing = spec("finetuning").draw(tiny.run)
    drawn = lines(drawing.figure.axes[0])
    assert drawn["base model, validation"][0] == [0, 1, 2, 3, 4]
    assert drawn["base model, validation"][1] == pytest.approx([1.0, 0.95, 0.9, 0.75, 0.7])
    assert drawn["base model, train"] == ([1, 2, 3, 4], pytest.approx([0.85, 0.8, 0.65, 0.6]))
    assert "base model 1.000 to 0.700" in drawing.alt
    assert not [name for name in drawn if "full" in name]


def spec(name: str) -> figures.FigureSpec:
    [found] = [one for one in figures.FIGURES if one.name == name]
    return found


def test_sequential_curve_begins_with_the_stage_it_branches_off(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)
    add_later_stages(tiny)
    curve = loss_figures.read_curve(tiny.run, "mean_ce_full")
    assert [(p.stage, p.epoch) for p in curve] == [
        ("a", 0), ("a", 1), ("a", 2), ("c1", 3), ("c1", 4), ("c2", 5), ("c2", 6),
    ]  # fmt: skip
    assert [p.validation for p in curve] == pytest.approx([1.0, 0.95, 0.9, 0.75, 0.7, 0.55, 0.5])
    left, right = spec("sequential").draw(tiny.run).figure.axes
    published = lines(left)["mean init, CE, validation"]
    printed = thesis.sequential_table().query("variant == 'mean_ce' and split == 'validation'")
    assert published == (printed["epoch"].tolist(), pytest.approx(printed["loss"].tolist()))
    assert lines(right)["mean init, CE, full fine-tuning, validation"][1][-1] == pytest.approx(0.5)


def test_published_results_bars() -> None:
    drawing = spec("results_published").draw(Run("any", Path()))
    widths = [bar.get_width() for bar in drawing.figure.axes[2].patches]
    assert widths == pytest.approx([100 * row.combined / thesis.COMBINED_TOTAL for row in thesis.RESULTS])


def test_live_results_stand_in_the_published_form(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)
    add_later_stages(tiny)
    drawing = spec("results").draw(tiny.run)
    big, human, together, bits = drawing.figure.axes[:4]
    assert [ax.get_title() for ax in (big, human, together, bits)] == [
        "BigCodeBench (n = 40)", "HumanEval (n = 20)", "together (n = 60)", "held out (n = 8)",
    ]  # fmt: skip
    assert [bar.get_width() for bar in big.patches] == pytest.approx([25, 50])
    diamonds = [line.get_xdata()[0] for line in big.lines if line.get_marker() == "D"]
    assert diamonds == pytest.approx([100 * 213 / 1022, 100 * 216 / 1022])
    assert [line for line in human.lines if line.get_marker() == "D"] == []
    words = [text.get_text() for text in together.texts]
    assert words == ["15/60\nreference", "not asked", "25/60\np = 0.057"]
    assert "mean init, KL (first), fine-tuned 20/40" in drawing.alt
    (tiny.run.folder / "05_benchmark_evaluation" / "table.csv").unlink()  # no sandbox, no answers
    alone = spec("results").draw(tiny.run)
    assert [ax.get_title() for ax in alone.figure.axes] == ["held out (n = 8)"]


def test_cosines_of_groups_are_those_of_the_table(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)
    add_later_stages(tiny)
    for matrix, ending, grouping in (("input", "length", "subtokens"), ("head", "count", "frequency")):
        figure = spec(f"{matrix}_cosines_by_{ending}").draw(tiny.run).figure
        import pandas as pd

        table = pd.read_csv(tiny.run.require("06", "groups.csv"))
        part = table[(table["grouping"] == grouping) & (table["matrix"] == matrix) & (table["position"] == "first")]
        part = part[part["variant"] == "mean_ce"]
        drawn = lines(figure.axes[0])
        for group, curve in part.groupby("group"):
            [label] = [name for name in drawn if name.startswith(f"{group} (n = ")]
            assert drawn[label] == (curve["epoch"].tolist(), pytest.approx(curve["mean"].tolist()))
        assert len(drawn) == part["group"].nunique() >= 3


def test_the_thesis_curves_get_a_panel_where_a_run_has_no_such_variant(tmp_path: Path) -> None:
    tiny = build_run(tmp_path)
    add_later_stages(tiny)
    figure = spec("input_cosines").draw(tiny.run).figure
    panels = {ax.get_title(): lines(ax) for ax in figure.axes if ax.get_visible()}
    assert "thesis, first" in panels["random init, KL (last)"]
    assert not [name for name in panels["mean init, CE"] if name.startswith("thesis")]
    only = panels["random init, CE: thesis only"]
    assert only["thesis, last"][1] == pytest.approx(list(published_curve("input", "ce", "last").cosine))


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


def test_the_kept_figures_are_all_there_with_their_alternative_texts() -> None:
    folder = Path(__file__).resolve().parents[1] / "figures"
    pictures = {path.stem for path in folder.glob("*.png")}
    expected = {one.name for one in (*figures.FIGURES, *STRIP_FIGURES)}
    assert pictures == expected | {"explorer"}
    assert {path.stem for path in folder.glob("*.svg")} == expected
    texts = json.loads((folder / "alt.json").read_text())
    assert set(texts) == pictures
    assert all(len(text) > 40 for text in texts.values())
