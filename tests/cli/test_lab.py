"""`vocabx lab`: the checkout is served, work happens on copies, and no work is overwritten."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from vocabx_utils.cli import main
from vocabx_utils.cli.lab import copy_notebooks


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    """Two source notebooks."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    found = {stage: folder / f"{stage}.ipynb" for stage in ("00_start", "03_phase1_training")}
    for path in found.values():
        path.write_text("first")
    return found


def test_untouched_copies_follow_their_source_and_work_is_kept(sources: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "lab"
    start, training = "00_start", "03_phase1_training"
    assert copy_notebooks(sources, folder) == {start: "copied", training: "copied"}
    (folder / "03_phase1_training.ipynb").write_text("my work")
    assert copy_notebooks(sources, folder) == {start: "kept", training: "kept"}
    for path in sources.values():
        path.write_text("second")
    assert copy_notebooks(sources, folder) == {start: "copied", training: "kept, source changed"}
    assert (folder / "00_start.ipynb").read_text() == "second"
    assert (folder / "03_phase1_training.ipynb").read_text() == "my work"
    (folder / "03_phase1_training.ipynb").unlink()
    assert copy_notebooks(sources, folder)[training] == "copied"


def test_the_checkout_is_served_and_a_copy_is_opened(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def start(words: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        started.append(words)
        return subprocess.CompletedProcess(words, 0)

    monkeypatch.setattr(subprocess, "run", start)
    monkeypatch.setenv("VOCABX_ROOT", str(tmp_path))
    assert CliRunner().invoke(main, ["lab", "3"]).exit_code == 0
    (words,) = started
    assert words[words.index("--ServerApp.root_dir") + 1] == str(tmp_path)
    assert str(tmp_path / "lab" / "03_phase1_training.ipynb") in words
    assert {path.read_text() for path in sources.values()} == {"first"}
