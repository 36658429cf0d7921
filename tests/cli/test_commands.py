"""`vocabx`: every listed command loads, `info` and `models` say what is there, our errors are one line."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from vocabx_utils import cli
from vocabx_utils.cli import COMMANDS, UserPath, main
from vocabx_utils.machine import describe_machine
from vocabx_utils.paths import stage_name


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


def test_what_our_code_and_the_system_say_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command("broken")
    @click.argument("how")
    def broken(how: str) -> None:
        """Break."""
        if how == "system":
            Path("nowhere/file").read_text()
        if how == "ours":
            stage_name("17")
        raise BrokenPipeError("head went away")

    monkeypatch.setattr(cli.LazyGroup, "get_command", lambda *_: broken)
    for how, said in (("system", "nowhere/file"), ("ours", "No notebook '17'")):
        answer = CliRunner().invoke(main, ["broken", how])
        assert answer.exit_code == 1 and answer.output.startswith("Error: ") and said in answer.output
    assert "Error: " not in CliRunner().invoke(main, ["broken", "pipe"]).output


def _path_options() -> list[tuple[str, str, click.ParamType]]:
    """Every option and argument of every command that is a path, by command and name."""

    def walk(name: str, command: click.Command) -> Iterator[tuple[str, click.Parameter]]:
        if isinstance(command, click.Group):
            for inner in command.commands.values():
                yield from walk(f"{name} {inner.name}", inner)
        yield from ((name, parameter) for parameter in command.params)

    commands = {
        name: getattr(importlib.import_module(f"vocabx_utils.cli.{entry.module}"), entry.attribute)
        for name, entry in COMMANDS.items()
    }
    found = [pair for name, command in commands.items() for pair in walk(name, command)]
    return [(name, str(p.name), p.type) for name, p in found if isinstance(p.type, click.Path)]


def test_a_tilde_in_a_path_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell leaves it in `--out=~/x`."""
    monkeypatch.setenv("HOME", str(tmp_path))
    paths = _path_options()
    assert len(paths) >= 12
    for command, name, kind in paths:
        assert isinstance(kind, UserPath), f"{command}: {name}"
    (tmp_path / "tree").mkdir()
    answer = CliRunner().invoke(main, ["tokens", "propose", "--from=~/tree", "--out=~/out"])
    assert f"No file below {tmp_path / 'tree'} matches" in answer.output
    assert not Path("~").exists()
