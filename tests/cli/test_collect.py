"""`vocabx collect` finds runs by name, pattern and folder, and writes both kinds of table."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner, Result

from vocabx_utils.cli import main
from vocabx_utils.files import write_json


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path / "runs"))
    for name in ("small-s0", "small-s1", "other"):
        facts = {"notebook": "00_start", "seconds": 2.0, "peak_mib": 9.0, "profile": "quick"}
        settings = {"seed": int(name[-1]) if name[-1].isdigit() else 0, "sentence": name}
        notes = {"00_start": facts | {"parameters": {}, "settings": settings}}
        write_json(tmp_path / "runs" / name / "timings.json", notes)
    (tmp_path / "runs" / "small-figures").mkdir()
    return tmp_path / "runs"


def call(*words: str) -> Result:
    return CliRunner().invoke(main, ["collect", *words])


def test_patterns_names_and_folders_name_runs_once(runs: Path, tmp_path: Path) -> None:
    answer = call("small-s*", "small-s1", str(runs / "other"))
    assert answer.exit_code == 0, answer.output
    assert "6 values of 3 runs: runs/collected.parquet and runs/collected.csv" in answer.output
    tables = [pd.read_csv(runs / "collected.csv"), pd.read_parquet(runs / "collected.parquet")]
    for table in tables:
        assert table["run"].drop_duplicates().tolist() == ["small-s0", "small-s1", "other"]
        assert table["00.sentence"].tolist() == table["run"].tolist()
        assert table["value"].tolist() == tables[0]["value"].tolist()


def test_another_place_can_be_named(runs: Path, tmp_path: Path) -> None:
    assert call("small-s0", "--out", str(tmp_path / "tables" / "v0.1")).exit_code == 0
    assert sorted(path.name for path in (tmp_path / "tables").iterdir()) == ["v0.1.csv", "v0.1.parquet"]


def test_a_word_that_names_no_run_is_refused(runs: Path) -> None:
    answer = call("small-s0", "large-*")
    assert answer.exit_code == 1
    assert "'large-*'" in answer.output and "other, small-s0, small-s1" in answer.output
    assert not (runs / "collected.csv").exists()
