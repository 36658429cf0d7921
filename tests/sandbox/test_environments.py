"""Pinned environments: found, hashed, refused with a remedy. Nothing here builds one."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from vocabx_utils.cli import main
from vocabx_utils.evaluation import environment_build, selftest
from vocabx_utils.evaluation.environment_build import build_environment, find_python
from vocabx_utils.evaluation.environments import (
    RECIPES,
    REQUIREMENTS,
    Environment,
    EnvironmentMissingError,
    check_libraries,
    load_environment,
    plain_environment,
)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("VOCABX_CACHE", str(tmp_path))
    monkeypatch.delenv("VOCABX_DATA", raising=False)
    return tmp_path


def _pretend(cache: Path, name: str = "ds1000", groups: tuple[str, ...] = (), **packages: str) -> None:
    folder = cache / "eval-env" / name
    folder.mkdir(parents=True, exist_ok=True)
    facts = {"python": "3.11.7", "base": sys.base_prefix, "groups": groups, "packages": packages}
    (folder / "environment.json").write_text(json.dumps({**facts, "requirements": "x"}))


def _fake_python(folder: Path, version: str, implementation: str = "CPython") -> Path:
    facts = {"python": version, "implementation": implementation, "executable": str(folder / "python")}
    program = folder / "python"
    program.write_text(f"#!/bin/sh\necho '{json.dumps(facts)}'\n")
    program.chmod(0o755)
    return program


def test_an_environment_that_is_not_built_names_the_command(cache: Path) -> None:
    with pytest.raises(EnvironmentMissingError, match="vocabx eval-env build ds1000"):
        load_environment("ds1000")
    with pytest.raises(ValueError, match="unknown environment 'mbpp'"):
        load_environment("mbpp")


def test_the_hash_changes_with_what_can_change_a_verdict(cache: Path, monkeypatch) -> None:
    _pretend(cache, numpy="1.26.4")
    first = load_environment("ds1000")
    assert load_environment("ds1000").hash == first.hash
    _pretend(cache, numpy="1.26.5")
    second = load_environment("ds1000")
    (cache / "data" / "seaborn").mkdir(parents=True)
    monkeypatch.setenv("VOCABX_DATA", str(cache / "data"))
    third = load_environment("ds1000")
    (cache / "data" / "seaborn" / "tips.csv").write_text("x")
    fourth = load_environment("ds1000")
    assert len({first.hash, second.hash, third.hash, fourth.hash}) == 4
    assert third.view.data == {"SEABORN_DATA": cache / "data" / "seaborn"}
    assert first.describe()["packages"] == {"numpy": "1.26.4"}


def test_problems_of_a_missing_group_are_refused(cache: Path) -> None:
    _pretend(cache, groups=("torch",))
    environment = load_environment("ds1000")
    check_libraries(environment, ["Pandas", "Pytorch"])
    with pytest.raises(EnvironmentMissingError, match=r"no tensorflow.*build ds1000 --with tensorflow"):
        check_libraries(environment, ["Pandas", "Tensorflow"])
    check_libraries(plain_environment(), ["humaneval"])


def test_only_cpython_311_will_do(cache: Path, monkeypatch) -> None:
    right = _fake_python(cache, "3.11.4")
    assert find_python(right) == right
    for version, implementation in (("3.12.1", "CPython"), ("3.11.4", "PyPy")):
        other = _fake_python(cache, version, implementation)
        with pytest.raises(
            EnvironmentMissingError, match=rf"{implementation} {version}.*conda create -n vocabx-eval python=3.11"
        ):
            find_python(other)
    with pytest.raises(EnvironmentMissingError, match="does not run"):
        find_python(cache / "nowhere")
    monkeypatch.setattr(sys, "executable", str(_fake_python(cache, "3.13.0")))
    monkeypatch.setenv("PATH", str(cache / "empty"))
    with pytest.raises(EnvironmentMissingError, match="conda create"):
        build_environment("ds1000", say=lambda line: None)


def test_unknown_groups_are_refused(cache: Path) -> None:
    with pytest.raises(ValueError, match="no group jax; known groups: torch, tensorflow"):
        build_environment("ds1000", groups=("jax",))
    with pytest.raises(ValueError, match="known groups: none"):
        build_environment("bigcodebench", groups=("torch",))


def test_a_failed_installation_shows_what_pip_said(cache: Path, monkeypatch) -> None:
    program = _fake_python(cache, "3.11.4")
    program.write_text(program.read_text().replace("echo", '[ "$1" = -m ] && echo no wheel >&2 && exit 1\necho'))
    with pytest.raises(EnvironmentMissingError, match=r"(?s)venv.*exit code 1.*no wheel"):
        build_environment("ds1000", python=program, say=lambda line: None)
    assert not (cache / "eval-env" / "ds1000" / "environment.json").exists()


def test_pip_checks_hashes_and_its_steps_are_shown(cache: Path, monkeypatch, capsys) -> None:
    calls: list[list[str]] = []

    def call(command: list[str], title: str, variables: object = None, show: Callable[[str], None] = print) -> None:
        calls.append(command)
        for line in ("Collecting numpy==1", "Processing ./x.whl", "Installing collected packages: numpy"):
            show(line)

    monkeypatch.setattr(environment_build, "_call", call)
    monkeypatch.setattr(environment_build, "find_python", lambda python: Path(sys.executable))
    monkeypatch.setattr(
        environment_build, "_query", lambda python: {"python": "3.11.7", "machine": "m", "base": "b", "packages": {}}
    )
    lines: list[str] = []
    (cache / "eval-env" / "ds1000").mkdir(parents=True)
    build_environment("ds1000", say=lines.append)
    installs = [command for command in calls if "pip" in command]
    assert len(installs) == 2 and all("--require-hashes" in command for command in installs)
    assert [line for line in lines if line.startswith(("installing", "unpacking"))] == [
        "installing ds1000.txt",
        "unpacking the packages of ds1000.txt (a minute or two)",
        "installing ds1000-torch.txt",
        "unpacking the packages of ds1000-torch.txt (a minute or two)",
    ]
    assert "ds1000, packages:" in capsys.readouterr().err


def test_a_built_environment_is_kept(cache: Path, monkeypatch) -> None:
    import hashlib

    files = [REQUIREMENTS / RECIPES["ds1000"].groups[group] for group in ("", "torch")]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]
    _pretend(cache, groups=("torch",), numpy="1")
    record = cache / "eval-env" / "ds1000" / "environment.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "requirements": digest}))
    monkeypatch.setattr(environment_build, "find_python", lambda python: pytest.fail("built again"))
    lines: list[str] = []
    assert build_environment("ds1000", say=lines.append).packages == {"numpy": "1"}
    assert "already built" in lines[0]


@pytest.mark.parametrize("file", sorted(REQUIREMENTS.glob("*.txt")), ids=lambda file: file.name)
def test_every_requirement_is_pinned_once(file: Path) -> None:
    lines = [line for line in file.read_text().splitlines() if line and not line.startswith("#")]
    names = [line.partition("==")[0].lower().replace("_", "-") for line in lines]
    assert all(line.count("==") == 1 and "+" not in line for line in lines)
    assert all(re.search(r" --hash=sha256:[0-9a-f]{64}$", line) for line in lines)
    assert len(set(names)) == len(names)
    assert {RECIPES[name].groups[group] for name in RECIPES for group in RECIPES[name].groups} >= {file.name}


def test_command_line_shows_what_is_there(cache: Path) -> None:
    _pretend(cache, groups=("torch",), numpy="1")
    done = CliRunner().invoke(main, ["eval-env", "show"])
    assert done.exit_code == 0
    assert "ds1000: Python 3.11.7, with torch, 1 packages" in done.output
    assert "bigcodebench: the environment bigcodebench is not built" in done.output


@pytest.mark.sandbox
def test_what_keeps_benchmarks_from_being_executed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ready, words = selftest.describe_benchmarks(["humaneval", "mbpp"])
    assert ready and words.count("contains all hostile programs") == 1  # both have one environment

    def missing(name: str) -> Environment:
        raise EnvironmentMissingError(f"no environment for {name}")

    monkeypatch.setattr(selftest, "environment_for", missing)
    assert selftest.describe_benchmarks(["ds1000"]) == (False, "no environment for ds1000")
