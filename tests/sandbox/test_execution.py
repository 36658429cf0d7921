"""Executing a samples file: bad files refused by name, resume, retries, one line per answer."""

from __future__ import annotations

import dataclasses
import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from vocabx_utils.cli import main
from vocabx_utils.evaluation import execution, hostile, kept, memory_group, results
from vocabx_utils.evaluation.benchmarks import Problem
from vocabx_utils.evaluation.environments import Environment
from vocabx_utils.evaluation.execution import execute, run_jobs
from vocabx_utils.evaluation.jail import SandboxUnavailableError, find_bubblewrap
from vocabx_utils.evaluation.outcomes import Outcome
from vocabx_utils.evaluation.results import ResultsFile, ResultsMismatchError, read_results, write_official
from vocabx_utils.evaluation.samples import Sample, match_samples, read_samples
from vocabx_utils.evaluation.sandbox import Sandbox

Maker = Callable[..., Problem]


@pytest.fixture
def problems(make_problem: Maker) -> list[Problem]:
    return [make_problem(number) for number in range(11, 17)]


@pytest.fixture
def samples(problems: list[Problem]) -> list[dict[str, Any]]:
    rows = [{"task_id": problem.task_id, "solution": problem.reference} for problem in problems]
    rows[1]["solution"] = "def add_12(x):\n    return x - 12\n"
    rows[2]["solution"] = "def add_13(x):\n    return undefined\n"
    return rows


# --- samples -----------------------------------------------------------------------------------------------


def test_missing_double_and_unknown_ids_are_named(problems: list[Problem]) -> None:
    rows = [{"task_id": problem.task_id, "solution": ""} for problem in problems if problem.task_id != "Mbpp/13"]
    rows += [{"task_id": "Mbpp/11", "solution": ""}, {"task_id": "Mbpp/999", "solution": ""}]
    with pytest.raises(ValueError, match=r"1 unknown \(Mbpp/999\); 1 double \(Mbpp/11\); 1 missing \(Mbpp/13\)"):
        match_samples(rows, problems)


def test_many_missing_ids_are_counted(problems: list[Problem], make_problem: Maker) -> None:
    many = [make_problem(number) for number in range(20, 60)]
    with pytest.raises(ValueError, match=r"40 missing \(Mbpp/20, .* and 30 more\)"):
        match_samples([{"task_id": p.task_id, "solution": ""} for p in problems], problems + many)


def test_several_answers_differ_in_their_number(problems: list[Problem]) -> None:
    rows = [Sample(problem.task_id, "", number) for number in (1, 0) for problem in problems]
    pairs = match_samples(rows, problems)
    assert [(problem.task_id, row.sample) for problem, row in pairs[:3]] == [
        ("Mbpp/11", 0),
        ("Mbpp/11", 1),
        ("Mbpp/12", 0),
    ]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"task_id": "Mbpp/11"}', r"line 2: expected a text in 'solution', got None"),
        ('{"task_id": 11, "solution": ""}', r"line 2: expected a text in 'task_id', got 11"),
        ('{"task_id": "a", "solution": "", "sample": -1}', r"line 2: expected a number from 0 in 'sample', got -1"),
        ("{oops}", r"line 2"),
    ],
)
def test_a_bad_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    path.write_text('{"task_id": "Mbpp/11", "solution": ""}\n' + line + "\n")
    with pytest.raises(ValueError, match=message):
        read_samples(path)


# --- execution ---------------------------------------------------------------------------------------------


@pytest.mark.sandbox
@pytest.mark.parametrize("fast", [False, True], ids=["fresh", "forked"])
def test_execute_files_one_line_per_answer(fast: bool, problems, samples, tmp_path, plain) -> None:
    out = tmp_path / "results.jsonl"
    rows = execute(samples, problems, out, fast=fast)
    assert [row.task_id for row in rows] == [problem.task_id for problem in problems]
    assert [row.status for row in rows] == ["pass", "fail", "fail", "pass", "pass", "pass"]
    assert [(row.reason, row.exception) for row in rows[1:3]] == [("assert", "AssertionError"), ("error", "NameError")]
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert {line["backend"].split()[0] for line in lines} == {"bwrap"}
    assert {line["env_hash"] for line in lines} == {plain.hash}
    assert {line["attempts"] for line in lines} == {1}
    assert sorted(read_results(out), key=lambda row: row.task_id) == rows


@pytest.mark.sandbox
def test_a_killed_run_continues_where_it_stood(problems, samples, tmp_path, monkeypatch) -> None:
    whole, torn = tmp_path / "whole.jsonl", tmp_path / "torn.jsonl"
    expected = execute(samples, problems, whole, workers=1)
    lines = whole.read_text().splitlines(keepends=True)
    torn.write_text("".join(lines[:3]) + lines[3][:40])
    ran: list[str] = []
    original = Sandbox.run
    monkeypatch.setattr(
        Sandbox, "run", lambda self, task, limits: (ran.append(task.solution), original(self, task, limits))[1]
    )
    execution.check_sandbox = lambda view: "bwrap test"  # type: ignore[assignment]
    try:
        resumed = execute(samples, problems, torn, workers=1)
    finally:
        from vocabx_utils.evaluation.selftest import check_sandbox

        execution.check_sandbox = check_sandbox
    assert len(ran) == 3
    assert [(row.task_id, row.status, row.key) for row in resumed] == [
        (row.task_id, row.status, row.key) for row in expected
    ]
    assert torn.read_text().count("\n") == len(problems)
    assert all(json.loads(line) for line in torn.read_text().splitlines())
    ran.clear()
    execute(samples, problems, torn)
    assert ran == []  # finished work is not done again


def _stored(problems, samples, out, plain, **changes: Any) -> None:
    """Write results as a finished run would have, without running anything."""
    for problem, sample in match_samples(samples, problems):
        job = execution.make_job(problem, sample, plain, True, 5.0)
        row = execution._result(job, Outcome("pass"), 1, plain, "bwrap 0.8.0")
        ResultsFile(out).append(dataclasses.replace(row, **changes))


def test_another_environment_is_refused(problems, samples, tmp_path, plain: Environment) -> None:
    out = tmp_path / "results.jsonl"
    _stored(problems, samples, out, plain, env_hash="0123456789abcdef")
    with pytest.raises(ResultsMismatchError, match=rf"environment 0123456789abcdef, but this one is {plain.hash}"):
        execute(samples, problems, out)


def test_results_of_other_answers_are_refused(problems, samples, tmp_path, plain) -> None:
    out = tmp_path / "results.jsonl"
    _stored(problems, samples, out, plain)
    samples[4]["solution"] += "# changed"
    with pytest.raises(ResultsMismatchError, match=r"other answers or limits for 1 problems \(Mbpp/15\)"):
        execute(samples, problems, out)
    samples[4]["solution"] = samples[4]["solution"].removesuffix("# changed")
    with pytest.raises(ResultsMismatchError, match="other answers or limits for 6 problems"):
        execute(samples, problems, out, strict=False)


def test_the_same_programs_are_taken_over_from_other_answers(problems, samples, tmp_path, plain, monkeypatch) -> None:
    first, out, ran = tmp_path / "first.jsonl", tmp_path / "second.jsonl", []
    _stored(problems, samples, first, plain, seconds=0.125)
    samples[4]["solution"] += "# changed"

    def runs(jobs: list[Any], *_: Any, **__: Any) -> Any:
        ran.extend(job.task_id for job in jobs)
        return ((job, Outcome("fail"), 1) for job in jobs)

    monkeypatch.setattr(execution, "run_jobs", runs)
    monkeypatch.setattr(execution, "check_sandbox", lambda view: "bwrap 0.8.0")
    found = execute(samples, problems, out, known=read_results(first))
    assert ran == ["Mbpp/15"] and [result.passed for result in found] == [True] * 4 + [False, True]
    assert [result.seconds for result in found] == [0.125] * 4 + [0.0, 0.125]
    assert {result.task_id for result in read_results(out)} == {problem.task_id for problem in problems}
    ran.clear()
    execute(samples, problems, tmp_path / "third.jsonl", strict=False, known=read_results(first))
    assert len(ran) == 6  # with other tests or limits they are other programs


def test_a_damaged_line_in_the_middle_is_named(problems, samples, tmp_path, plain) -> None:
    out = tmp_path / "results.jsonl"
    _stored(problems, samples, out, plain)
    lines = out.read_text().splitlines(keepends=True)
    out.write_text(lines[0] + lines[1][:30] + "\n" + "".join(lines[2:]))
    with pytest.raises(ValueError, match=r"results.jsonl, line 2"):
        execute(samples, problems, out)
    out.write_text(lines[0] + '{"task_id": "Mbpp/12"}\n')
    with pytest.raises(ValueError, match=r"line 2: no .*status.*is this a results file"):
        execute(samples, problems, out)


@pytest.mark.sandbox
def test_a_full_disk_keeps_what_is_done(problems, samples, tmp_path, monkeypatch) -> None:
    out = tmp_path / "results.jsonl"
    original, calls = results.append_jsonl, []

    def full(path: Path, row: dict[str, Any]) -> None:
        calls.append(row)
        if len(calls) > 2:
            with path.open("a") as file:
                file.write('{"task_id": "Mb')
            raise OSError(errno.ENOSPC, "No space left on device")
        original(path, row)

    monkeypatch.setattr(results, "append_jsonl", full)
    with pytest.raises(OSError, match=r"No space left on device.*2 results are kept"):
        execute(samples, problems, out)
    monkeypatch.setattr(results, "append_jsonl", original)
    assert len(read_results(out)) == 2
    assert len(execute(samples, problems, out)) == len(problems)


def test_without_bubblewrap_nothing_is_executed(problems, samples, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    find_bubblewrap.cache_clear()
    from vocabx_utils.evaluation import selftest

    selftest._check.cache_clear()
    with pytest.raises(SandboxUnavailableError, match="apt-get install bubblewrap"):
        execute(samples, problems, tmp_path / "results.jsonl")
    assert not (tmp_path / "results.jsonl").exists()
    find_bubblewrap.cache_clear()


class _Flaky:
    """Stands in for the sandbox: the first run of one program times out, as under load."""

    seen: ClassVar[list[tuple[bool, str]]] = []

    def __init__(self, view: object, *, forked: bool = False, preload: tuple[str, ...] = ()):
        self.forked = forked

    def run(self, task: Any, limits: Any) -> Outcome:
        again = any(code == task.solution for _, code in self.seen)
        self.seen.append((self.forked, task.solution))
        if "add_13" in task.solution and not again:
            return Outcome("timeout")
        if "add_14" in task.solution:
            return Outcome("fail", "crash")
        if "add_16" in task.solution and self.forked:
            return Outcome("fail", "memory")
        return Outcome("fail", "assert") if "add_15" in task.solution else Outcome("pass")

    def __enter__(self) -> _Flaky:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_timeouts_and_crashes_are_tried_once_more_alone(problems, samples, plain, monkeypatch) -> None:
    monkeypatch.setattr(execution, "Sandbox", _Flaky)
    _Flaky.seen = []
    jobs = [execution.make_job(p, s, plain, False, 5.0) for p, s in match_samples(samples, problems)]
    outcome = {job.task_id: (v.status, v.reason, n) for job, v, n in run_jobs(jobs, plain, workers=2, fast=True)}
    assert outcome["Mbpp/13"] == ("pass", "", 2)
    assert outcome["Mbpp/14"] == ("fail", "crash", 2)
    assert outcome["Mbpp/15"] == ("fail", "assert", 1)
    assert outcome["Mbpp/16"] == ("pass", "", 2)  # a warm jail may have had less memory than a fresh one
    assert [forked for forked, _ in _Flaky.seen[-3:]] == [False] * 3  # after all others, in jails of their own
    assert len(_Flaky.seen) == len(problems) + 3


def test_an_error_in_a_worker_reaches_the_caller(problems, samples, plain, monkeypatch) -> None:
    def broken(self: Sandbox, task: object, limits: object) -> Outcome:
        raise SandboxUnavailableError("the jail did not start")

    monkeypatch.setattr(_Flaky, "run", broken)
    monkeypatch.setattr(execution, "Sandbox", _Flaky)
    jobs = [execution.make_job(p, s, plain, False, 5.0) for p, s in match_samples(samples, problems)]
    with pytest.raises(SandboxUnavailableError, match="did not start"):
        list(run_jobs(jobs, plain))
    with pytest.raises(ValueError, match="at least one worker, got 0"):
        list(run_jobs(jobs, plain, workers=0))


def test_problems_of_two_benchmarks_are_refused(problems, samples, tmp_path) -> None:
    problems[0] = dataclasses.replace(problems[0], benchmark="humaneval")
    with pytest.raises(ValueError, match="one benchmark, got humaneval, mbpp"):
        execute(samples, problems, tmp_path / "results.jsonl")


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


# --- files in the shape of others, command line ------------------------------------------------------------


def test_official_shapes(problems, samples, tmp_path, plain) -> None:
    path, out = tmp_path / "model.jsonl", tmp_path / "results.jsonl"
    _write(path, [{**row, "raw_solution": "text"} for row in samples])
    _stored(problems, samples, out, plain, status="fail", reason="assert", details={"test_main": "x"})
    written = write_official(read_results(out), read_samples(path), path)
    assert written.name == "model_eval_results.json"
    table = json.loads(written.read_text())
    assert set(table) == {"date", "eval"}
    assert table["eval"]["Mbpp/12"] == [
        {"task_id": "Mbpp/12", "solution": samples[1]["solution"], "status": "fail", "details": {"test_main": "x"}}
    ]


@pytest.mark.sandbox
def test_check_says_which_protections_are_active() -> None:
    done = CliRunner().invoke(main, ["eval", "check"])
    assert done.exit_code == 0, done.output
    first, *lines = done.output.splitlines()
    assert first.startswith("bwrap ")
    assert len(lines) == 4
    assert all(line.strip().startswith(("active: ", "NOT active: ")) for line in lines)
    grouped = bool(memory_group.describe())
    assert lines[0].strip().startswith("active: " if grouped else "NOT active: "), lines


@pytest.mark.sandbox
def test_a_protection_that_fails_is_shown(monkeypatch) -> None:
    monkeypatch.setattr(hostile, "PROBES", {**hostile.PROBES, "calls": "def add(a, b):\n    assert False\n"})
    done = CliRunner().invoke(main, ["eval", "check"])
    assert "NOT active: filter for system calls" in done.output, done.output


@pytest.mark.sandbox
def test_strict_is_the_default_where_the_tests_allow_it(problems, samples, tmp_path) -> None:
    assert all(row.strict for row in execute(samples, problems, tmp_path / "a.jsonl", fast=True))
    assert not any(row.strict for row in execute(samples, problems, tmp_path / "b.jsonl", strict=False, fast=True))
    other = [dataclasses.replace(problem, benchmark="bigcodebench") for problem in problems]
    assert kept.strict_ids(other) == frozenset()


@pytest.mark.sandbox
def test_command_line(problems, samples, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("vocabx_utils.cli.evaluation.load_benchmark", lambda name: problems)
    path = tmp_path / "samples.jsonl"
    _write(path, samples)
    done = CliRunner().invoke(main, ["eval", "run", str(path), "--official", "--workers", "1"])
    assert done.exit_code == 0, done.output
    assert "4 of 6 answers pass (66.7%)" in done.output
    assert (tmp_path / "samples_eval_results.json").exists()
    _write(path, samples[1:])
    done = CliRunner().invoke(main, ["eval", "run", str(path)])
    assert done.exit_code == 1
    assert "1 missing (Mbpp/11)" in done.output
    assert "Traceback" not in done.output
