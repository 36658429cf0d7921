"""References first: which problems are kept, why others are not, and what the committed lists say."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from vocabx_utils.cli.evaluation import _note_environment, evaluate
from vocabx_utils.evaluation import execution, references
from vocabx_utils.evaluation.benchmarks import KEPT_FOLDER, BenchmarkUnavailableError, Problem, load_benchmark
from vocabx_utils.evaluation.environments import (
    RECIPES,
    REQUIREMENTS,
    Environment,
    EnvironmentMissingError,
    load_environment,
    pinned,
    plain_environment,
)
from vocabx_utils.evaluation.execution import run_jobs
from vocabx_utils.evaluation.outcomes import Outcome
from vocabx_utils.evaluation.references import (
    EnvironmentDiffersError,
    KeptList,
    check_environment,
    compare_lists,
    drop_reason,
    reference_jobs,
    select_problems,
    time_limit,
    verify_references,
    write_kept,
)

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


def _listed(monkeypatch, folder: Path, environment: Environment, **changes: Any) -> None:
    content = {"kept": ["DS-1000/0"], "dropped": {}, "environment": {**environment.describe(), **changes}}
    (folder / "ds1000.json").write_text(json.dumps(content))
    monkeypatch.setattr(references, "KEPT_FOLDER", folder)


def test_another_environment_is_refused(plain: Environment, tmp_path: Path, monkeypatch) -> None:
    """The default build lacks TensorFlow: following the page silently dropped 45 problems from the list."""
    environment = dataclasses.replace(plain, name="ds1000", groups=("torch",))
    _listed(monkeypatch, tmp_path, environment)
    check_environment("ds1000", environment)
    packages = {**environment.packages, "tensorflow-cpu": "2.16.1"}
    _listed(monkeypatch, tmp_path, environment, hash="1" * 16, groups=["torch", "tensorflow"], packages=packages)
    with pytest.raises(EnvironmentDiffersError, match="build ds1000 --with tensorflow") as caught:
        check_environment("ds1000", environment)
    assert "1 package (tensorflow-cpu)" in str(caught.value) and "groups" in str(caught.value)


def test_a_run_in_another_environment_says_so(plain: Environment, tmp_path: Path, monkeypatch, capsys) -> None:
    _listed(monkeypatch, tmp_path, plain, hash="1" * 16, python="3.10.1")
    (tmp_path / "ds1000.json").rename(tmp_path / "mbpp.json")
    _note_environment("mbpp")
    assert f"python {plain.python} instead of 3.10.1" in capsys.readouterr().out
    _listed(monkeypatch, tmp_path, plain)
    (tmp_path / "ds1000.json").rename(tmp_path / "mbpp.json")
    _note_environment("mbpp")
    assert capsys.readouterr().out == ""


def test_missing_libraries_are_refused(plain: Environment) -> None:
    problem = next(p for p in _load("ds1000") if p.library == "Tensorflow")
    with pytest.raises(EnvironmentMissingError, match="--with tensorflow"):
        verify_references([problem], dataclasses.replace(plain, name="ds1000", groups=("torch",)))


def test_some_problems_are_chosen(make_problem: Callable[..., Problem]) -> None:
    problems = [make_problem(number) for number in range(11, 31)]
    assert [p.task_id for p in select_problems(problems, share=0.2)] == ["Mbpp/11", "Mbpp/16", "Mbpp/21", "Mbpp/26"]
    assert [p.task_id for p in select_problems(problems, ["Mbpp/20", "Mbpp/12"])] == ["Mbpp/12", "Mbpp/20"]
    assert len(select_problems(problems, share=0.001)) == 1
    with pytest.raises(ValueError, match=r"no such problem: Mbpp/1; an id looks like Mbpp/11"):
        select_problems(problems, ["Mbpp/1"])
    with pytest.raises(ValueError, match="share above 0"):
        select_problems(problems, share=1.5)


def test_lists_that_differ_are_compared(plain: Environment, tmp_path: Path, monkeypatch) -> None:
    _listed(monkeypatch, tmp_path, plain)
    found = KeptList("ds1000", (), {"DS-1000/0": "error: X"}, {}, {}, plain.describe(), ())
    assert compare_lists(found) == ["DS-1000/0 is dropped (error: X), the list keeps it"]


@pytest.mark.sandbox
def test_the_command_writes_into_a_folder_of_the_user(tmp_path: Path, monkeypatch) -> None:
    _load("mbpp")
    before = (KEPT_FOLDER / "mbpp.json").read_bytes()
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path))
    command = ["verify-references", "mbpp", "--ids", "Mbpp/11,Mbpp/12", "--fast", "--any-environment"]
    done = CliRunner().invoke(evaluate, command)
    assert done.exit_code == 0 and "mbpp: 2 of 2 references pass" in done.output
    assert json.loads((tmp_path / "references" / "mbpp.json").read_text())["kept"] == ["Mbpp/11", "Mbpp/12"]
    assert (KEPT_FOLDER / "mbpp.json").read_bytes() == before
    done = CliRunner().invoke(evaluate, [*command, "--update-package"])
    assert done.exit_code == 1 and "replaces whole lists" in done.output


@pytest.mark.parametrize("name", ["bigcodebench", "ds1000"])
def test_committed_lists_name_the_pinned_packages(name: str) -> None:
    """What `vocabx eval-env build` installs is what the list was made with."""
    recorded = _kept(name)["environment"]
    files = [RECIPES[name].groups[group] for group in ("", *recorded["groups"])]
    pins = {key.lower().replace("_", "-"): value for f in files for key, value in pinned(REQUIREMENTS / f).items()}
    assert pins == {key: version.split("+")[0] for key, version in recorded["packages"].items()}


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
