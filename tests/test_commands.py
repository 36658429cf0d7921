"""`vocabx`: every listed command loads, `info` and `models` say what is there, our errors are one line."""

from __future__ import annotations

import importlib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from vocabx_utils import cli
from vocabx_utils.cli import COMMANDS, main
from vocabx_utils.machine import describe_machine


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_listed_command_loads(name: str) -> None:
    entry = COMMANDS[name]
    command = getattr(importlib.import_module(f"vocabx_utils.cli.{entry.module}"), entry.attribute)
    assert command.name == name
    assert command.help
    assert CliRunner().invoke(main, [name, "--help"]).exit_code == 0


def test_help_lists_all_commands_and_an_unknown_one_is_refused() -> None:
    text = CliRunner().invoke(main, ["--help"]).output
    assert all(name in text for name in COMMANDS)
    answer = CliRunner().invoke(main, ["fly"])
    assert answer.exit_code == 2
    assert "fly" in answer.output


def test_info_names_versions_devices_memory_models_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "pairs.jsonl").write_text("{}\n")
    monkeypatch.setenv("VOCABX_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("VOCABX_CACHE", str(tmp_path / "cache"))
    facts = describe_machine()
    assert facts["versions"]["torch"].startswith("2.")
    assert "GiB free" in facts["machine"]["memory"]
    assert facts["devices"]["auto"] in ("cpu, float32", "cuda, bfloat16")
    assert facts["models"] == {"smollm2-135m": "run `vocabx models fetch smollm2-135m`"}
    assert "pairs.jsonl" in facts["data"]["VOCABX_DATA"]
    assert "not there yet" in facts["folders"]["model cache"]
    assert CliRunner().invoke(main, ["info"]).exit_code == 0


def test_info_without_data_and_with_a_folder_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOCABX_DATA", raising=False)
    assert "not set" in describe_machine()["data"]["VOCABX_DATA"]
    monkeypatch.setenv("VOCABX_DATA", str(tmp_path / "none"))
    assert "no files" in describe_machine()["data"]["VOCABX_DATA"]


def test_models_list_and_an_unknown_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOCABX_CACHE", str(tmp_path))
    assert "smollm2-135m" in CliRunner().invoke(main, ["models", "list"]).output
    answer = CliRunner().invoke(main, ["models", "fetch", "gpt-17"])
    assert answer.exit_code == 1
    assert answer.output.startswith("Error: ")
    assert "gpt-17" in answer.output


def test_a_cache_that_cannot_be_written_names_its_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").write_text("not a folder, so that root cannot write below it either")
    monkeypatch.delenv("VOCABX_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    answer = CliRunner().invoke(main, ["models", "fetch"])
    assert answer.exit_code == 1
    assert "VOCABX_CACHE" in answer.output
    assert str(tmp_path / "home") in answer.output


def test_only_errors_of_the_package_are_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command("broken")
    def broken() -> None:
        """Break."""
        raise RuntimeError("a bug")

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: broken)
    assert isinstance(CliRunner().invoke(main, ["broken"]).exception, RuntimeError)
