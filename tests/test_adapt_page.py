"""docs/adapt.md holds what the committed result files hold, names options that exist, and says where nothing is."""

from __future__ import annotations

import importlib
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from adaptation.adaptation_parts import write_sources
from click.testing import CliRunner

from vocabx_utils.cli import main

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "adapt.md"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "bench"))
    return importlib.import_module("adapt")


def test_the_committed_page_is_what_the_files_say(bench: Any, tmp_path: Path) -> None:
    shutil.copy(PAGE, tmp_path)
    bench.write_page(ROOT / "results" / "adapt", tmp_path / "adapt.md")
    assert (tmp_path / "adapt.md").read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
    bench.write_page(tmp_path / "none", tmp_path / "adapt.md")
    assert (tmp_path / "adapt.md").read_text(encoding="utf-8").count("not measured\n") == 3


def test_the_page_names_options_that_the_command_has() -> None:
    options = CliRunner().invoke(main, ["adapt", "--help"]).output
    text = PAGE.read_text(encoding="utf-8")
    lines = re.findall(r"^(vocabx adapt [^#\n]*)", text, flags=re.M)
    named = {word for line in lines for word in shlex.split(line) if word.startswith("--")}
    named |= {word.split()[0] for word in re.findall(r"`(--[a-z-]+[^`]*)`", text) if "--cb-" not in word}
    assert len(named) > 8 and [word for word in named if word not in options] == ["--continuous-batching"]


def test_a_measured_call_fills_the_page(
    bench: Any, tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.run

    def run(command: list[str], **options: Any) -> Any:
        """Call the command here, which imports nothing once more."""
        if command[:3] != [sys.executable, "-m", "vocabx_utils"]:
            return start(command, **options)
        called.append(command[3])
        return main(command[3:], standalone_mode=False)

    called: list[str] = []
    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(bench, "RESULTS", tmp_path / "results")
    source, out = write_sources(tmp_path / "src"), tmp_path / "out"
    options = f"--model {tiny_folder} --from {source} --out {out} --n 5 --learning-rate 0.01 --device cpu".split()
    bench.run("tiny", options)
    with pytest.raises(SystemExit, match="exists; give another --out"):
        bench.run("tiny", options)
    assert called == ["adapt"]
    shutil.copy(PAGE, tmp_path)
    bench.write_page(tmp_path / "results", tmp_path / "adapt.md")
    text = (tmp_path / "adapt.md").read_text(encoding="utf-8")
    assert text.count(f"| {tiny_folder.name}, 0.0 MB of .py, 5 `merges` |") == 2
