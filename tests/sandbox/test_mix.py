"""No program changes the verdict of a later one, whatever it does and whichever jail it ran in."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vocabx_utils.evaluation import jail, jails
from vocabx_utils.evaluation.environments import Environment
from vocabx_utils.evaluation.execution import run_jobs
from vocabx_utils.evaluation.hostile import GOOD, TEST
from vocabx_utils.evaluation.jailed import syscalls
from vocabx_utils.evaluation.sandbox import Limits, Sandbox, Strict, Task

sys.path.append(str(Path(__file__).parents[1] / "bench"))
import hostile_mix

pytestmark = pytest.mark.sandbox
LIMITS = Limits(timeout_s=3.0)
PATIENT = Limits(timeout_s=20.0)  # for what must pass: the machine may be busy
STRICT = Strict(("add",))


@pytest.fixture(scope="module", params=["fresh", "forked"])
def sandbox(request: pytest.FixtureRequest, plain: Environment) -> Iterator[Sandbox]:
    with Sandbox(plain.view, forked=request.param == "forked") as sandbox:
        yield sandbox


@pytest.mark.parametrize("name", hostile_mix.ATTACKS)
def test_the_next_program_notices_nothing(name: str, sandbox: Sandbox) -> None:
    sandbox.run(Task(hostile_mix.attack(name), TEST, "asserts"), LIMITS)
    verdict = sandbox.run(Task(hostile_mix.victim(), TEST, "asserts"), PATIENT)
    assert verdict.status == "pass", verdict.details


def test_most_attacks_do_not_even_cost_a_warm_jail(plain: Environment) -> None:
    started = 0
    kinds = ("prlimit", "kill", "stop the", "nice", "one", "idle", "SysV", "folders", "locked", "20,000", "descriptors")
    quick = [name for name in hostile_mix.ATTACKS if name.startswith(kinds)]
    with Sandbox(plain.view, forked=True) as sandbox:
        jail = None
        for name in quick:
            sandbox.run(Task(hostile_mix.attack(name), TEST, "asserts"), LIMITS)
            started += sandbox._warm is not jail
            jail = sandbox._warm
    assert len(quick) >= 20
    assert started == 1


@pytest.mark.parametrize("kind", ["prlimit", "kill", "stop", "nice", "idle", "one", "SysV"])
def test_without_a_filter_the_server_notices(
    kind: str, plain: Environment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine whose system calls are not known, a server that was changed ends, and a new jail begins."""
    shutil.copytree(jail.JAILED_CODE, tmp_path / "jailed")
    file = tmp_path / "jailed" / "syscalls.py"
    code = file.read_text()
    file.write_text(code.replace("return (machine or platform.machine()) in _MACHINES", "return False"))
    assert file.read_text() != code
    monkeypatch.setattr(jail, "JAILED_CODE", tmp_path / "jailed")
    monkeypatch.setattr(syscalls, "supported", lambda: False)
    monkeypatch.setattr(jails, "CLEAN_SECONDS", 1.0)
    used = set()
    with Sandbox(plain.view, forked=True) as sandbox:
        for name in (name for name in hostile_mix.ATTACKS if name.startswith(kind)):
            sandbox.run(Task(hostile_mix.attack(name), TEST, "asserts"), LIMITS)
            used.add(sandbox._warm)
            verdict = sandbox.run(Task(hostile_mix.victim(), TEST, "asserts"), PATIENT)
            used.add(sandbox._warm)
            assert verdict.status == "pass", (name, verdict.details)
    assert len(used) > 1


def test_a_mixed_run_gives_every_reference_its_verdict(make_problem, plain: Environment) -> None:
    problems = [make_problem(number) for number in range(100, 160)]
    jobs = hostile_mix.reference_jobs(problems, plain, lambda _: 5.0)
    among = hostile_mix.mixed(jobs, "mbpp")
    assert len(among) - len(jobs) == 6
    for fast in (False, True):
        found = {job.task_id: verdict.status for job, verdict, _ in run_jobs(among, plain, fast=fast)}
        assert [job.task_id for job in jobs if found[job.task_id] != "pass"] == []
        assert len(found) == len(among)


def test_the_script_compares_both_runs(make_problem, plain: Environment, tmp_path: Path, monkeypatch) -> None:
    problems = [make_problem(number) for number in range(100, 120)]
    monkeypatch.setattr(hostile_mix, "kept_problems", lambda name: problems[:15])
    out = tmp_path / "mix.json"
    assert hostile_mix.main(["--benchmarks", "mbpp", "--modes", "forked", "--out", str(out)]) == 0
    (row,) = json.loads(out.read_text())
    assert (row["references"], row["hostile"], row["passed_clean"], row["differing"]) == (15, 2, 15, [])
    real = hostile_mix.measure
    spoilt = {f"Mbpp/{number}": "fail" for number in (103, 104)}

    def measure(jobs, *others):
        verdicts, seconds = real(jobs, *others)
        return verdicts | (spoilt if len(jobs) > 15 else {}), seconds

    monkeypatch.setattr(hostile_mix, "measure", measure)
    assert hostile_mix.main(["--benchmarks", "mbpp", "--modes", "forked", "--out", str(out)]) == 1
    assert json.loads(out.read_text())[0]["differing"] == list(spoilt)


def test_there_are_at_least_forty_different_programs() -> None:
    assert len({hostile_mix.attack(name) for name in hostile_mix.ATTACKS}) >= 40


@pytest.mark.parametrize(
    "name",
    [
        "replaces compile",
        "half a report",
        "ends without a word",
        "closes every descriptor",
        "descriptors in a cycle, then no report",
    ],
)
def test_strict_mode_gives_no_pass(name: str, sandbox: Sandbox) -> None:
    verdict = sandbox.run(Task(hostile_mix.attack(name), TEST, "asserts", STRICT), LIMITS)
    assert (verdict.status, verdict.seconds < LIMITS.timeout_s) == ("fail", True)
    assert sandbox.run(Task(GOOD, TEST, "asserts", STRICT), LIMITS).status == "pass"
