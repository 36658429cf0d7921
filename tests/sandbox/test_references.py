"""References first: which problems are kept, why others are not, and what the committed lists say."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from evaluation.evaluation_parts import kept_or_skip, load_or_skip

from vocabx_utils.cli import main
from vocabx_utils.evaluation import references
from vocabx_utils.evaluation.benchmarks import Problem
from vocabx_utils.evaluation.environments import (
    Environment,
    EnvironmentMissingError,
    load_environment,
    plain_environment,
)
from vocabx_utils.evaluation.execution import run_jobs
from vocabx_utils.evaluation.kept import KEPT_FOLDER, reference_timeouts
from vocabx_utils.evaluation.outcomes import Outcome
from vocabx_utils.evaluation.references import drop_reason, reference_jobs, time_limit, verify_references


@pytest.mark.sandbox
def test_references_that_fail_are_dropped_with_a_reason(
    make_problem: Callable[..., Problem], tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(references, "FIRST_TIMEOUT", 2.0)
    problems = [make_problem(number) for number in range(11, 15)]
    problems[1] = dataclasses.replace(problems[1], reference="import nowhere")
    problems[2] = dataclasses.replace(problems[2], reference="while True: pass")
    kept = verify_references(problems, modes=("forked", "fresh"))
    assert kept.kept == ("Mbpp/11", "Mbpp/14")
    assert kept.dropped == {
        "Mbpp/12": "error: ModuleNotFoundError: No module named 'nowhere'",
        "Mbpp/13": "timeout: no report after 2 s",
    }
    content = json.loads(kept.write(tmp_path).read_text())
    assert (content["n_kept"], content["n_total"], content["timeouts"]) == (2, 4, {})
    assert content["environment"]["hash"] == plain_environment().hash
    assert content["environment"]["backend"].startswith("bwrap ")


@pytest.mark.sandbox
def test_a_stopped_verification_continues(make_problem: Callable[..., Problem], tmp_path: Path, monkeypatch) -> None:
    record, problems = tmp_path / "mbpp.verdicts.jsonl", [make_problem(number) for number in (11, 12)]
    verify_references(problems[:1], modes=("forked", "forked"), record=record)
    lines = record.read_text().splitlines(keepends=True)
    assert [json.loads(line)["run"] for line in lines] == [
        "pass 1 of 2, forked",
        "pass 2 of 2, forked",
        "strict, fresh",
    ]
    record.write_text("".join(lines) + lines[0][:40])  # a kill tore the last line
    ran: list[str] = []
    usual = references.run_jobs

    def seen(jobs: Any, *arguments: Any, **options: Any) -> Any:
        ran.extend(job.task_id for job in jobs)
        return usual(jobs, *arguments, **options)

    monkeypatch.setattr(references, "run_jobs", seen)
    assert verify_references(problems, modes=("forked", "forked"), record=record).kept == ("Mbpp/11", "Mbpp/12")
    assert set(ran) == {"Mbpp/12"}, "what the record holds was executed again"
    other = dataclasses.replace(plain_environment(), hash="0" * 16)
    with pytest.raises(ValueError, match=r"line 1: made in the environment .* but this one is 0000"):
        verify_references(problems, other, record=record)


def test_missing_libraries_are_refused(plain: Environment) -> None:
    problem = next(p for p in load_or_skip("ds1000") if p.library == "Tensorflow")
    with pytest.raises(EnvironmentMissingError, match="--with tensorflow"):
        verify_references([problem], dataclasses.replace(plain, name="ds1000", groups=("torch",)))


@pytest.mark.sandbox
def test_the_command_writes_into_a_folder_of_the_user(tmp_path: Path, monkeypatch) -> None:
    load_or_skip("mbpp")
    before = (KEPT_FOLDER / "mbpp.json").read_bytes()
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path))
    command = ["eval", "verify-references", "mbpp", "--ids", "Mbpp/11,Mbpp/12", "--fast", "--any-environment"]
    done = CliRunner().invoke(main, command)
    assert done.exit_code == 0 and "mbpp: 2 of 2 references pass" in done.output
    assert json.loads((tmp_path / "references" / "mbpp.json").read_text())["kept"] == ["Mbpp/11", "Mbpp/12"]
    assert (KEPT_FOLDER / "mbpp.json").read_bytes() == before
    done = CliRunner().invoke(main, [*command, "--update-package"])
    assert done.exit_code == 1 and "replaces whole lists" in done.output


def test_time_limits_follow_the_reference() -> None:
    runs = [Outcome("pass", seconds=1.0), Outcome("pass", seconds=4.1)]
    assert time_limit(runs, 10.0) == 10.0  # the quickest run counts: load only adds
    assert time_limit(runs[1:], 10.0) == 20.0
    assert time_limit([Outcome("pass", seconds=20.1)], 10.0) == 60.0


def test_reasons_are_one_line_without_paths(plain: Environment) -> None:
    folder = plain.view.folders[0]
    text = f"Traceback\n  File x\nOSError: no file {folder}/lib/x\n   ^^^^\n"
    runs = [Outcome("pass"), Outcome("fail", "error", "OSError", {"test_a": text})]
    assert drop_reason(runs, plain) == "error (in 1 of 2 runs): OSError: no file <environment>/lib/x"


def test_a_cut_message_leaves_the_name_of_its_exception(plain: Environment) -> None:
    runs = [Outcome("fail", "error", "LookupError", {"test_a": "    - '/usr/lib/nltk_data'\n    - ''\n*****\n"})] * 2
    assert drop_reason(runs, plain) == "error: LookupError"


def _fixed(problems: list[Problem], count: int = 20) -> list[Problem]:
    return problems[:: len(problems) // count][:count]


@pytest.mark.sandbox
@pytest.mark.parametrize("strict", [False, True], ids=["usual", "strict"])
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_twenty_references_pass(name: str, strict: bool, plain: Environment) -> None:
    kept = kept_or_skip(name)
    problems = [p for p in load_or_skip(name) if p.task_id not in {**kept["not_strict"], **kept["timeouts"]}]
    jobs = reference_jobs(_fixed(problems), plain, lambda _: 10.0, strict=strict)
    outcome = {job.task_id: verdict for job, verdict, _ in run_jobs(jobs, plain, fast=True)}
    assert {name: v.details for name, v in outcome.items() if v.status != "pass"} == {}


def _not_passed(name: str, fast: bool) -> dict[str, dict[str, str]]:
    """Details of kept problems that do not pass in their pinned environment; slow ones are left out."""
    content = kept_or_skip(name)
    environment = load_environment(name)
    problems = [p for p in load_or_skip(name) if p.task_id in set(content["kept"]) - set(content["timeouts"])]
    problems = [p for p in problems if p.library not in ("Pytorch", "Tensorflow")]
    jobs = reference_jobs(_fixed(problems), environment, reference_timeouts(name))
    outcome = {job.task_id: verdict for job, verdict, _ in run_jobs(jobs, environment, fast=fast)}
    return {name: v.details for name, v in outcome.items() if v.status != "pass"}


@pytest.mark.sandbox
@pytest.mark.pinned("bigcodebench")
@pytest.mark.parametrize("fast", [False, True], ids=["fresh", "forked"])
def test_twenty_references_of_bigcodebench_pass(fast: bool) -> None:
    assert _not_passed("bigcodebench", fast) == {}


@pytest.mark.sandbox
@pytest.mark.pinned("ds1000")
@pytest.mark.parametrize("fast", [False, True], ids=["fresh", "forked"])
def test_twenty_references_of_ds1000_pass(fast: bool) -> None:
    assert _not_passed("ds1000", fast) == {}
