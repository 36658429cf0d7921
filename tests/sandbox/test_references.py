"""References first: which problems are kept, why others are not, and what the committed lists say."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vocabx_utils.evaluation import execution, references
from vocabx_utils.evaluation.benchmarks import KEPT_FOLDER, BenchmarkUnavailableError, Problem, load_benchmark
from vocabx_utils.evaluation.environments import Environment, load_environment, plain_environment
from vocabx_utils.evaluation.execution import run_jobs
from vocabx_utils.evaluation.references import drop_reason, reference_jobs, time_limit, verify_references, write_kept
from vocabx_utils.evaluation.verdicts import Verdict

SIZES = {"humaneval": (164, 164), "mbpp": (500, 500), "bigcodebench": (1112, 1140), "ds1000": (878, 1000)}


def _load(name: str) -> list[Problem]:
    try:
        return load_benchmark(name)
    except BenchmarkUnavailableError as error:
        pytest.skip(str(error))


def _kept(name: str) -> dict[str, Any]:
    file = KEPT_FOLDER / f"{name}.json"
    if not file.is_file():
        pytest.skip(f"no list yet: `vocabx eval verify-references {name}` writes it")
    return json.loads(file.read_text())


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
    content = json.loads(write_kept(kept, tmp_path).read_text())
    assert (content["n_kept"], content["n_total"], content["timeouts"]) == (2, 4, {})
    assert content["environment"]["hash"] == plain_environment().hash
    assert content["environment"]["backend"].startswith("bwrap ")


def test_time_limits_follow_the_reference() -> None:
    runs = [Verdict("pass", seconds=1.0), Verdict("pass", seconds=4.1)]
    assert time_limit(runs, 10.0) == 10.0  # the quickest run counts: load only adds
    assert time_limit(runs[1:], 10.0) == 20.0
    assert time_limit([Verdict("pass", seconds=20.1)], 10.0) == 60.0


def test_reasons_are_one_line_without_paths(plain: Environment) -> None:
    folder = plain.view.folders[0]
    text = f"Traceback\n  File x\nOSError: no file {folder}/lib/x\n   ^^^^\n"
    runs = [Verdict("pass"), Verdict("fail", "error", "OSError", {"test_a": text})]
    assert drop_reason(runs, plain) == "error (in 1 of 2 runs): OSError: no file <environment>/lib/x"


def test_a_cut_message_leaves_the_name_of_its_exception(plain: Environment) -> None:
    runs = [Verdict("fail", "error", "LookupError", {"test_a": "    - '/usr/lib/nltk_data'\n    - ''\n*****\n"})] * 2
    assert drop_reason(runs, plain) == "error: LookupError"


@pytest.mark.parametrize("name", SIZES)
def test_committed_lists_reach_their_size(name: str) -> None:
    content = _kept(name)
    least, total = SIZES[name]
    assert len(content["kept"]) >= least
    assert len(content["kept"]) + len(content["dropped"]) == total
    assert not set(content["kept"]) & set(content["dropped"])
    assert all(10 <= value <= 60 or name in ("mbpp", "humaneval") for value in content["timeouts"].values())
    assert set(content["timeouts"]) <= set(content["kept"])
    # /tmp/w is the working folder inside every jail
    assert not re.search(r"/(root|home|work)/|/tmp/(?!w/)", json.dumps(content["dropped"]))


@pytest.mark.parametrize("name", SIZES)
def test_committed_lists_fit_the_benchmark(name: str) -> None:
    content = _kept(name)
    ids = [problem.task_id for problem in _load(name)]
    assert [task for task in ids if task in set(content["kept"])] == content["kept"]
    assert set(ids) == set(content["kept"]) | set(content["dropped"])


def test_limits_come_from_the_list(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "bigcodebench.json").write_text(json.dumps({"timeouts": {"BigCodeBench/0": 57.0}}))
    monkeypatch.setattr(execution, "KEPT_FOLDER", tmp_path)
    limits = execution.reference_timeouts("bigcodebench")
    assert (limits("BigCodeBench/0"), limits("BigCodeBench/1")) == (57.0, 10.0)
    assert execution.reference_timeouts("ds1000")("DS-1000/0") == 30.0


def _fixed(problems: list[Problem], count: int = 20) -> list[Problem]:
    return problems[:: len(problems) // count][:count]


@pytest.mark.sandbox
@pytest.mark.parametrize("strict", [False, True], ids=["usual", "strict"])
@pytest.mark.parametrize("name", ["humaneval", "mbpp"])
def test_twenty_references_pass(name: str, strict: bool, plain: Environment) -> None:
    kept = _kept(name)
    problems = [p for p in _load(name) if p.task_id not in {**kept["not_strict"], **kept["timeouts"]}]
    jobs = reference_jobs(_fixed(problems), plain, lambda _: 10.0, strict=strict)
    outcome = {job.task_id: verdict for job, verdict, _ in run_jobs(jobs, plain, fast=True)}
    assert {name: v.details for name, v in outcome.items() if v.status != "pass"} == {}


def _not_passed(name: str, fast: bool) -> dict[str, dict[str, str]]:
    """Details of kept problems that do not pass in their pinned environment; slow ones are left out."""
    content = _kept(name)
    environment = load_environment(name)
    problems = [p for p in _load(name) if p.task_id in set(content["kept"]) - set(content["timeouts"])]
    problems = [p for p in problems if p.library not in ("Pytorch", "Tensorflow")]
    jobs = reference_jobs(_fixed(problems), environment, execution.reference_timeouts(name))
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
