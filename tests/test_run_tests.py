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
from run_tests import Job, chain_from, choose, count_threads, notebook_jobs, run_jobs

from vocabx_utils.paths import STAGES


def test_what_needs_a_failed_one_does_not_begin_and_the_log_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    priority = max(12, os.nice(0))  # also where these tests give way themselves
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
        jobs.append(Job(name, words, tmp_path / f"{name}.log", needs.get(name, ()), nice=12 * (name == "first")))
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
    assert [job.name[:2] for job in jobs if not job.nice] == ["01", "03", "04", "05"]


@pytest.mark.parametrize(
    ("begins", "others", "threads"),
    [
        ("chain", ["unit"], 1),  # has limits in seconds
        ("chain", ["side", "side"], 4),
        ("chain", ["chain"], 1),
        ("side", ["chain"], 1),
        ("side", ["side"], 1),
        ("side", [], 4),
        ("unit", [], 4),
    ],
)
def test_every_core_is_for_those_to_whom_all_others_give_way(
    begins: str, others: list[str], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_tests.psutil, "cpu_count", lambda: 4)
    kinds = {"chain": Job("03", []), "side": Job("06", [], nice=18), "unit": Job("unit", [], nice=10, limited=True)}
    assert count_threads(kinds[begins], [kinds[other] for other in others]) == threads


def test_threads_are_counted_from_what_runs_and_what_may_come(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, list[int]] = {}

    def start(job: Job, threads: int) -> subprocess.Popen[bytes]:
        given.setdefault(job.name, []).append(threads)
        return subprocess.Popen(["sleep", job.words[0]])

    monkeypatch.setattr(Job, "start", start)
    monkeypatch.setattr(run_tests.psutil, "cpu_count", lambda: 4)
    for seconds in ("0.3", "0"):
        unit = Job("unit", [seconds], nice=1, limited=True)
        jobs = [unit, Job("first", ["0.1"]), Job("last", ["0.1"], needs=["first"]), Job("side", ["0"], nice=2)]
        assert run_jobs(jobs, 2) == []
    assert given == {"unit": [1, 1], "first": [1, 1], "last": [1, 4], "side": [1, 1]}
    given.clear()
    jobs = [Job("unit", ["0"], nice=1, limited=True), Job("first", ["0"]), Job("last", ["0"], needs=["first"])]
    assert run_jobs(jobs, 1) == []
    assert given == {"unit": [4], "first": [4], "last": [4]}


@pytest.mark.parametrize(("free", "words", "at_once"), [(64, [], 2), (4, [], 1), (64, ["--one-by-one"], 1)])
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
