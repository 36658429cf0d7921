"""Unit tests and notebooks at once: what begins when, what a failure shows, and what little memory changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import run_tests
from run_tests import Job, chain_from, choose, notebook_jobs, run_jobs

from vocabx_utils.paths import STAGES


def test_what_needs_a_failed_one_does_not_begin_and_the_log_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    priority = max(18, os.nice(0))  # not 19, also where these tests give way themselves
    bodies = {
        "first": "import os; open('first', 'w').close(); assert os.environ['OMP_NUM_THREADS'] == '1'"
        f" and os.nice(0) == {priority}",
        "second": "import os; assert os.path.exists('first')",
        "bad": "assert 1 == 2, 'an output differs'",
        "after": "open('after', 'w').close()",
    }
    needs = {"second": ("first",), "after": ("second", "bad")}
    jobs = []
    for name, body in bodies.items():
        (tmp_path / f"test_{name}.py").write_text(f"def test_it(tmp_path, monkeypatch):\n    {body}\n")
        words = ["-q", "--rootdir", str(tmp_path), "-p", "no:nbval", str(tmp_path / f"test_{name}.py")]
        jobs.append(Job(name, words, tmp_path / f"{name}.log", needs.get(name, ()), gives_way=name == "first"))
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        patched.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        assert run_jobs(jobs, 2) == ["bad", "after"]
    told = capsys.readouterr().out
    assert "bad: failed (" in told and "an output differs" in told
    assert "second: passed (" in told and "1 passed" not in told
    assert not (tmp_path / "after").exists()


def test_the_one_with_the_longest_chain_behind_it_begins_first() -> None:
    jobs = notebook_jobs(["--nbval-lax"], Path("scratch"))
    begun, passed = [], set[str]()
    while jobs:
        job = choose(jobs, passed, 0, 1)
        assert job is not None and set(job.needs) <= passed
        jobs.remove(job)
        passed.add(job.name)
        begun.append(job.name[:2])
    assert sorted(begun) == [stage[:2] for stage in STAGES]
    assert begun[:3] == ["01", "03", "04"]
    assert choose(notebook_jobs([], Path("scratch")), set(), 2, 2) is None


def test_all_but_the_longest_chain_give_way() -> None:
    needs = {"a": (), "b": ("a",), "c": ("a",), "d": ("a", "c"), "e": ()}
    assert chain_from("a", needs) == ["a", "c", "d"] and chain_from("e", needs) == ["e"]
    jobs = notebook_jobs([], Path("scratch"))
    assert [job.name[:2] for job in jobs if not job.gives_way] == ["01", "03", "04", "05"]


def test_the_last_one_has_every_core_if_nothing_runs_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, list[int]] = {}

    def start(job: Job, threads: int) -> subprocess.Popen[bytes]:
        given.setdefault(job.name, []).append(threads)
        return subprocess.Popen(["sleep", job.words[0]])

    monkeypatch.setattr(Job, "start", start)
    monkeypatch.setattr(run_tests.psutil, "cpu_count", lambda: 4)
    for seconds in ("0", "0.3"):
        jobs = [Job("long", [seconds]), Job("first", ["0.1"]), Job("last", ["0"], needs=["first"])]
        assert run_jobs(jobs, 2) == []
    assert given == {"first": [1, 1], "long": [1, 1], "last": [4, 1]}


@pytest.mark.parametrize(("free", "words", "at_once"), [(64, [], 3), (4, [], 1), (64, ["--one-by-one"], 1)])
def test_little_memory_is_told_and_everything_runs_one_by_one(
    free: int, words: list[str], at_once: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: dict[str, Any] = {}

    def note(jobs: list[Job], at_once: int) -> list[str]:
        seen.update(names=[job.name for job in jobs], at_once=at_once)
        return ["03_phase1_training"]

    monkeypatch.setattr(run_tests, "run_jobs", note)
    monkeypatch.setattr(run_tests.psutil, "virtual_memory", lambda: SimpleNamespace(available=free * 10**9))
    monkeypatch.setattr(sys, "argv", ["run_tests.py", "--unit=tests -n auto", "--nbval=--nbval-lax", *words])
    assert run_tests.main() == 1
    assert seen == {"names": [run_tests.UNIT, *STAGES], "at_once": at_once}
    told = capsys.readouterr().out
    assert ("4 GB of memory are free" in told) == (free == 4)
    assert "9 jobs, 1 of them failed\n  03_phase1_training" in told
