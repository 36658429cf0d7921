"""Strips among the figures of a run: drawn from its files, with the KL that notebook 06 measured."""

from pathlib import Path

import matplotlib
import pandas as pd
import pytest
from fixtures.tiny_series import LINES, write_series

matplotlib.use("Agg")

from vocabx_utils.analysis.figures import draw_figures
from vocabx_utils.cli.strip_figures import STRIP_FIGURES, _measured_window
from vocabx_utils.runs import Run, write_json, write_table
from vocabx_utils.vocabulary.alignment import align_texts
from vocabx_utils.vocabulary.tokens import load_extension


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
    assert [outcome.reason for outcome in first] == [""] * 4
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
