"""Two run folders are the same where rows, metrics, tables and texts are, whatever the clock said."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import compare_runs
import pytest
import torch
from safetensors.torch import save_file


def make_run(folder: Path, *, rows: float = 0.5, seconds: float = 1.0, loss: float = 2.0) -> Path:
    folder.mkdir()
    save_file({"input_rows": torch.full((2, 3), rows)}, folder / "epoch_00.safetensors", {"written": str(seconds)})
    (folder / "metrics.jsonl").write_text(json.dumps({"epoch": 0, "loss": loss, "seconds": seconds}) + "\n")
    (folder / "gains.csv").write_text(f"n,saved,seconds\n8,1.5,{seconds}\n")
    verdicts = [
        {"claim": "C1 KL rises", "answer": "confirmed"},
        {"claim": "C13 It halves the time", "answer": f"{seconds} seconds"},
    ]
    (folder / "verdicts.json").write_text(json.dumps(verdicts))
    (folder / "provenance.json").write_text(json.dumps({"date": seconds}))
    return folder


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Call the script with two folders: its exit status, and what it prints."""

    def call(*folders: Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["compare_runs.py", *map(str, folders)])
        return compare_runs.main(), capsys.readouterr().out

    return call


def test_times_do_not_count(tmp_path: Path, compare) -> None:
    code, said = compare(make_run(tmp_path / "a"), make_run(tmp_path / "b", seconds=9.0))
    assert (code, said.strip()) == (0, "4 files are the same")


@pytest.mark.parametrize(
    ("change", "named"),
    [({"rows": 0.25}, "epoch_00.safetensors.input_rows"), ({"loss": 3.0}, "metrics.jsonl[0].loss: 2.0 before, 3.0")],
)
def test_what_differs_is_named(tmp_path: Path, change: dict[str, float], named: str, compare) -> None:
    code, said = compare(make_run(tmp_path / "a"), make_run(tmp_path / "b", **change))
    assert code == 1 and named in said


def test_a_missing_file_is_named(tmp_path: Path, compare) -> None:
    before, after = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    (after / "gains.csv").unlink()
    assert compare(before, after) == (1, "gains.csv: only before\n")
