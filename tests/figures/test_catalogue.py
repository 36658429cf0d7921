"""The list of figures: same bytes twice, what is left out and why, the command, strips of a run."""

import json
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from click.testing import CliRunner
from figures.figure_parts import contrast, draw
from fixtures.tiny_run import TinyRun, build_run
from fixtures.tiny_series import LINES, write_series
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

from vocabx_utils.cli.report import figures as command
from vocabx_utils.figures.catalogue import FIGURES, _measured_window, draw_figures
from vocabx_utils.figures.theme import Drawing, save_figure, theme
from vocabx_utils.files import write_json, write_table
from vocabx_utils.runs import Run
from vocabx_utils.vocabulary.alignment import align_texts
from vocabx_utils.vocabulary.tokens import load_extension

STRIPS = FIGURES[-5:]
WITHOUT_STRIPS = FIGURES[:-5]


@pytest.fixture(scope="module")
def drawn(tiny: TinyRun) -> dict[str, Drawing]:
    """Every figure of the run but the strips, drawn once for all tests that look at one; none stays open."""
    theme()
    drawings = {spec.name: spec.draw(tiny.run) for spec in WITHOUT_STRIPS}
    plt.close("all")
    return drawings


def test_every_figure_is_drawn_twice_alike_with_alt_text(
    tiny: TinyRun, drawn: dict[str, Drawing], tmp_path: Path
) -> None:
    open_before = plt.get_fignums()
    outcomes = draw_figures(tiny.run, tmp_path / "a", WITHOUT_STRIPS, ("svg",))
    assert all(not outcome.reason for outcome in outcomes)
    for one in outcomes:  # PNG: see test_theme
        assert [p.name for p in one.paths] == [f"{one.name}.svg"]
        other = drawn[one.name]
        [path] = save_figure(other.figure, one.name, other.alt, tmp_path / "b", ("svg",))
        assert one.paths[0].read_bytes() == path.read_bytes(), one.name
    texts = json.loads((tmp_path / "a" / "alt.json").read_text())
    assert set(texts) == {spec.name for spec in WITHOUT_STRIPS}
    assert all(40 < len(text) < 900 and "nan" not in text for text in texts.values())
    assert plt.get_fignums() == open_before


def test_counterparts_cover_what_the_thesis_shows_of_data_and_method() -> None:
    shown = {spec.thesis for spec in FIGURES}
    assert shown == {
        "", "fig:complete_pipeline", "fig:algo1", "fig:loss_gradient", "fig:phase1_ce_loss", "fig:phase1_kl_loss",
        "fig:finetune_loss", "fig:sequential_finetune", "tab:combined_results", "fig:embedding_similarity",
        "fig:head_similarity", "fig:tokenization", "tab:tokenization_process", "fig:complete_loss_pipeline",
        "alg:token-mapping", "tab:awedist_mappings",
    }  # fmt: skip
    names = [spec.name for spec in FIGURES]
    assert len(set(names)) == len(names)


def test_every_figure_with_data_says_n_and_what_bars_and_bands_are(drawn: dict[str, Drawing]) -> None:
    for name, drawing in list(drawn.items())[3:]:  # behind the diagrams
        figure = drawing.figure
        words = " ".join(" ".join(text.get_text() for text in figure.findobj(Text)).split())
        if name != "sequential_published":  # the thesis does not say
            assert re.search(r"\bn = \d", words), name
        assert re.search(r"no bands|Bands: |Bars: |bands: |[Ww]hiskers", words), name


def test_what_a_run_lacks_is_left_out_with_the_remedy(tmp_path: Path) -> None:
    outcomes = {o.name: o for o in draw_figures(Run("empty", tmp_path), tmp_path / "f", WITHOUT_STRIPS)}
    assert [path.name for path in outcomes["pipeline"].paths] == ["pipeline.svg", "pipeline.png"]
    assert not outcomes["phase1_ce"].paths
    assert "03_phase1_training" in outcomes["phase1_ce"].reason
    assert "04_fine_tuning" in outcomes["finetuning"].reason
    assert "06_mechanistic_analysis" in outcomes["causal"].reason
    assert set(json.loads((tmp_path / "f" / "alt.json").read_text())) == {n for n, o in outcomes.items() if o.paths}


def test_command_says_what_was_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path))
    build_run(tmp_path)
    answer = CliRunner().invoke(command, ["tiny", "--out", str(tmp_path / "f")])
    assert answer.exit_code == 0, answer.output
    assert re.search(r"causal: left out: .*06_mechanistic_analysis", answer.output)
    assert (tmp_path / "f" / "phase1_kl.svg").exists() and (tmp_path / "f" / "phase1_kl.png").exists()
    assert (tmp_path / "f" / "alignment_example.svg").exists()
    assert "loss_pipeline: left out: " in answer.output
    assert CliRunner().invoke(command, ["absent"]).exit_code == 1


def test_the_kept_figures_are_all_there_with_their_alternative_texts() -> None:
    folder = Path(__file__).resolve().parents[2] / "figures"
    pictures = {path.stem for path in folder.glob("*.png")}
    expected = {one.name for one in FIGURES}
    expected -= {"input_cosines_by_length", "head_cosines_by_length"}  # all tokens of the quick run have two subtokens
    assert pictures == expected | {"explorer"}
    assert {path.stem for path in folder.glob("*.svg")} == expected
    texts = json.loads((folder / "alt.json").read_text())
    assert set(texts) == pictures
    assert all(len(text) > 40 for text in texts.values())


# --- strips of a run -------------------------------------------------------------------------------------------


def series(tmp_path: Path) -> Run:
    write_series(tmp_path)
    run = Run("tiny", tmp_path / "runs" / "tiny")
    aligned = align_texts(load_extension(run.require("01", "extension/original").parent), LINES)
    ids = [{"original_ids": a.original_ids.tolist(), "extended_ids": a.extended_ids.tolist()} for a in aligned]
    write_json(run.stage("06") / "windows.json", ids)
    rows = [(at, int(i), int(j), 0.25) for at, a in enumerate(aligned) for i, j in a.boundaries[2:]]
    write_table(run.stage("06") / "positions.csv", pd.DataFrame(rows, columns=["text", "original", "extended", "kl"]))
    return run


def test_all_strips_are_drawn_twice_alike(tmp_path: Path) -> None:
    run = series(tmp_path)
    outcomes = draw_figures(run, tmp_path / "a", STRIPS, ("svg",))
    assert [outcome.reason for outcome in outcomes] == [""] * 5
    for spec, outcome in zip(STRIPS, outcomes, strict=True):
        drawing = spec.draw(run)
        figure = drawing.figure
        if spec.name != "tokenization_process":  # this tokenizer knows little more than letters
            assert figure.get_size_inches()[0] <= 10, spec.name
        for text in figure.findobj(Text):
            if text.get_text().strip() and text.get_visible():
                assert text.get_fontsize() >= 8 and contrast(text.get_color()) >= 4.5, (spec.name, text.get_text())
        for patch in figure.findobj(Patch):
            if patch.get_hatch() or patch.get_linestyle() != "solid":  # a token that is not plain
                assert max(map(contrast, (patch.get_edgecolor(), patch.get_facecolor()))) >= 3, spec.name
        again = save_figure(figure, spec.name, drawing.alt, tmp_path / "b", ("svg",))
        assert [p.read_bytes() for p in outcome.paths] == [p.read_bytes() for p in again], spec.name


def test_the_shortest_window_carries_its_own_kl(tmp_path: Path) -> None:
    _, aligned, kl = _measured_window(series(tmp_path))
    pairs, _ = aligned.pairs("last")
    assert [kl.get((int(i), int(j)), 0.0) for i, j in pairs] == pytest.approx([0, 0] + [0.25] * (len(pairs) - 2))


def test_a_high_kl_elsewhere_does_not_choose_the_window(tmp_path: Path) -> None:
    run = series(tmp_path)
    rows = [(0, 1, 1, True, 0.5), (1, 1, 1, False, 9.0), (1, 2, 2, True, 0.25)]  # the same place in two texts
    columns = ["text", "original", "extended", "merged", "kl"]
    write_table(run.stage("06") / "positions.csv", pd.DataFrame(rows, columns=columns))
    assert _measured_window(run)[2] == {(1, 1): 0.5}


def test_without_notebook_06_only_the_loss_pipeline_is_left_out(tmp_path: Path) -> None:
    write_series(tmp_path)
    outcomes = draw_figures(Run("tiny", tmp_path / "runs" / "tiny"), tmp_path / "f", STRIPS)
    assert [o.name for o in outcomes if o.reason] == ["loss_pipeline"]


def test_one_group_says_nothing_and_is_left_out(tiny: TinyRun, tmp_path: Path) -> None:
    groups = pd.read_csv(tiny.run.require("06", "groups.csv"))
    run = Run("same", tmp_path / "same")
    write_table(run.stage("06") / "groups.csv", groups[groups["group"].astype(str) == "2"])
    [length] = [spec for spec in FIGURES if spec.name == "input_cosines_by_length"]
    [outcome] = draw_figures(run, tmp_path / "f", [length])
    assert "in one group (2)" in outcome.reason and not outcome.paths


def test_lines_marks_and_words_stand_out_and_are_large_enough(drawn: dict[str, Drawing]) -> None:
    for name, drawing in drawn.items():
        figure = drawing.figure
        assert figure.get_size_inches()[0] <= 10, name
        grid = [line for ax in figure.axes for axis in (ax.xaxis, ax.yaxis) for line in axis.get_gridlines()]
        for line in set(figure.findobj(Line2D)) - set(grid):
            marked = line.get_marker() not in ("", "None", None)
            color = line.get_color() if line.get_linestyle() != "None" else line.get_markeredgecolor()
            if line.get_visible() and (marked or line.get_linestyle() != "None"):
                assert contrast(color, line.get_alpha()) >= 3, (name, line.get_label(), color)
        for text in figure.findobj(Text):
            if text.get_text().strip() and text.get_visible():
                assert contrast(text.get_color()) >= 4.5, (name, text.get_text())
                assert text.get_fontsize() >= 8, (name, text.get_text())


def test_a_text_without_new_tokens_makes_room_for_one_with(tmp_path: Path) -> None:
    run = series(tmp_path)
    drawing = draw("tokenization_process", run)
    words = [text.get_text() for text in drawing.figure.axes[0].texts]
    assert any(word.startswith("\u25c6") for word in words) and "0 of them new" not in drawing.alt


def test_the_table_of_the_thesis_above_the_tokens_and_ids_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = series(tmp_path)
    monkeypatch.setattr("vocabx_utils.figures.catalogue._new_tokens", lambda *_: 1)
    drawing = draw("tokenization_process", run)
    words = [text.get_text() for text in drawing.figure.axes[0].texts]
    extension = load_extension(run.require("01", "extension/original").parent)
    for tokenizer in (extension.original, extension.extended):
        ids = tokenizer("def calculate_sum(a, b):", add_special_tokens=False)["input_ids"]
        assert set(map(str, ids)) <= set(words)
        assert f"{len(ids)} under the" in drawing.alt
    assert {"_sum", "7326", "thesis"} <= set(words)
