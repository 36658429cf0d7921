"""Strips among the figures of a run: drawn from its files, with the KL that notebook 06 measured."""

from collections.abc import Iterator
from pathlib import Path

import matplotlib
import pandas as pd
import pytest
from fixtures.tiny_series import LINES, write_series

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from vocabx_utils.analysis.drawings import draw_figures
from vocabx_utils.cli.strip_figures import STRIP_FIGURES, _measured_window, _tokenization_process
from vocabx_utils.files import write_json, write_table
from vocabx_utils.runs import Run
from vocabx_utils.vocabulary.alignment import align_texts
from vocabx_utils.vocabulary.strip_figures import draw_token_ids
from vocabx_utils.vocabulary.tokens import load_extension


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


def series(tmp_path: Path) -> Run:
    write_series(tmp_path)
    run = Run("tiny", tmp_path / "runs" / "tiny")
    aligned = align_texts(load_extension(run.require("01", "extension/original").parent), LINES)
    ids = [{"original_ids": a.original_ids.tolist(), "extended_ids": a.extended_ids.tolist()} for a in aligned]
    write_json(run.stage("06") / "windows.json", ids)
    rows = [(at, int(i), int(j), 0.25) for at, a in enumerate(aligned) for i, j in a.boundaries[2:]]
    write_table(run.stage("06") / "positions.csv", pd.DataFrame(rows, columns=["text", "original", "extended", "kl"]))
    return run


def test_all_are_drawn_twice_alike(tmp_path: Path) -> None:
    run = series(tmp_path)
    first, second = (draw_figures(run, tmp_path / part, STRIP_FIGURES) for part in ("a", "b"))
    assert [outcome.reason for outcome in first] == [""] * 5
    for one, other in zip(first, second, strict=True):
        assert [p.read_bytes() for p in one.paths] == [p.read_bytes() for p in other.paths], one.name


def test_the_shortest_window_carries_its_own_kl(tmp_path: Path) -> None:
    _, aligned, kl = _measured_window(series(tmp_path))
    pairs, _ = aligned.pairs("last")
    assert [kl.get((int(i), int(j)), 0.0) for i, j in pairs] == pytest.approx([0, 0] + [0.25] * (len(pairs) - 2))


def test_without_notebook_06_only_the_loss_pipeline_is_left_out(tmp_path: Path) -> None:
    write_series(tmp_path)
    outcomes = draw_figures(Run("tiny", tmp_path / "runs" / "tiny"), tmp_path / "f", STRIP_FIGURES)
    assert [o.name for o in outcomes if o.reason] == ["loss_pipeline"]


def test_the_table_of_the_thesis_above_the_tokens_and_ids_of_the_run(tmp_path: Path) -> None:
    run = series(tmp_path)
    drawing = _tokenization_process(run)
    words = [text.get_text() for text in drawing.figure.axes[0].texts]
    extension = load_extension(run.require("01", "extension/original").parent)
    for tokenizer in (extension.original, extension.extended):
        ids = tokenizer("def calculate_sum(a, b):", add_special_tokens=False)["input_ids"]
        assert set(map(str, ids)) <= set(words)
        assert f"{len(ids)} under the" in drawing.alt
    assert {"_sum", "7326", "thesis"} <= set(words)


def test_token_rows_must_be_one_text() -> None:
    with pytest.raises(ValueError, match="one id for each piece"):
        draw_token_ids([("a", ["x", "y"], [1], set())])
    with pytest.raises(ValueError, match="a beginning of 'xyz'"):
        draw_token_ids([("a", ["x", "yz"], [1, 2], set()), ("b", ["q"], [3], set())])
