"""`vocabx adapt` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
from adaptation.adaptation_parts import write_sources
from click.testing import CliRunner, Result
from transformers import AutoTokenizer

from vocabx_utils.adaptation.settings import AdaptSettings
from vocabx_utils.cli import main
from vocabx_utils.cli.adapt import adapt


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["adapt", *map(str, arguments)])


def test_one_command_from_a_folder_to_a_model(tiny_folder: Path, tmp_path: Path) -> None:
    source, out = write_sources(tmp_path / "src"), tmp_path / "out"
    words = (tiny_folder, "--from", source, "--out", out, "--n", 4, "--learning-rate", 0.01, "--device", "cpu")
    dry = call(*words, "--dry-run")
    assert dry.exit_code == 0, dry.output
    assert "Gain on held-out files" in dry.output and "dry run: nothing was trained" in dry.output
    made = call(*words)
    assert made.exit_code == 0, made.output
    assert len(AutoTokenizer.from_pretrained(out / "model")) == len(AutoTokenizer.from_pretrained(tiny_folder)) + 4
    assert "Bits per byte are" in made.output and (out / "report.html").exists()
    again = call(*words)
    assert again.exit_code == 0 and "nothing to do" in again.output


def test_errors_are_one_line(tiny_folder: Path, tmp_path: Path) -> None:
    source = write_sources(tmp_path / "src")
    out = tmp_path / "out"
    for words, message in (
        (("--from", tmp_path / "none", "--out", out), "does not exist"),
        (("--from", source, "--out", out, "--n", 0), "n is 0; expected 1 or more"),
        (("--from", source, "--out", out, "--glob", "0[0-1].py"), "expected three or more"),
        (("--from", source, "--out", source), "lies inside"),
    ):
        result = call(tiny_folder, *words)
        assert result.exit_code == 1 and message in result.output and "Traceback" not in result.output
    assert not out.exists()


def test_an_interrupt_says_how_to_go_on(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vocabx_utils.adaptation.run.read_texts", interrupt)
    result = call(tiny_folder, "--from", write_sources(tmp_path / "src"), "--out", tmp_path / "out")
    assert result.exit_code == 1 and "the same command goes on where it stood" in result.output


def test_options_are_settings_with_the_same_defaults() -> None:
    options = [option for option in adapt.params if option.name in AdaptSettings.field_names()]
    defaults = {option.name: option.default for option in options if isinstance(option.default, int | float | str)}
    assert len(defaults) > 10
    assert {name: getattr(AdaptSettings(), name) for name in defaults} == defaults
