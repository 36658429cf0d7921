"""The four benchmarks as lists of one type of problem, with their sources, licences and citations."""

from __future__ import annotations

import ast
import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from vocabx_utils.evaluation.benchmark_rows import BenchmarkInfo, BenchmarkUnavailableError, hard_ids, read_rows
from vocabx_utils.evaluation.statements import parse

BenchmarkName = Literal["humaneval", "mbpp", "bigcodebench", "ds1000"]
BENCHMARKS: tuple[str, ...] = get_args(BenchmarkName)
INFO: Mapping[str, BenchmarkInfo] = {
    name: BenchmarkInfo(name, **{**facts, "columns": tuple(facts["columns"])})
    for name, facts in json.loads(Path(__file__).with_name("benchmarks.json").read_text(encoding="utf-8")).items()
}
_MBPP_SPLITS = {"prompt": (1, 10), "test": (11, 510), "validation": (511, 600), "train": (601, 974)}


@dataclass(frozen=True)
class Problem:
    """One problem of any of the four benchmarks.

    `prompt` is the task as the benchmark words it: the function head with its docstring (HumanEval), the
    sentence (MBPP), the instruct prompt (BigCodeBench), the whole prompt (DS-1000).
    """

    task_id: str  # official, such as `"HumanEval/0"`, `"Mbpp/11"`, `"BigCodeBench/0"`, `"DS-1000/0"`
    benchmark: BenchmarkName
    prompt: str
    complete_prompt: str  # code or text which `reference` continues, character by character
    code_start: str  # imports and function head, which every answer begins with; empty for MBPP and DS-1000
    reference: str
    test: str  # of the benchmark, unchanged
    entry_point: str  # name of the function under test; empty for DS-1000
    library: str  # of a DS-1000 problem, else the name of the benchmark
    # what only one benchmark has (`test_list`, `libs`, `split` ...)
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)


def load_benchmark(
    name: str, *, path: str | Path | None = None, split: str = "test", hard: bool = False, limit: int | None = None
) -> list[Problem]:
    """Read the problems of one benchmark, in the official order; for errors see `benchmark_rows.read_rows`.

    Args:
        path: a `.jsonl` or `.jsonl.gz` file to read instead of the usual sources.
        split: MBPP only: `"test"` (ids 11-510), `"train"`, `"validation"`, `"prompt"` (the examples
            of the few-shot prompt) or `"all"`.
        hard: BigCodeBench only: keep the 148 problems of BigCodeBench-Hard.
        limit: keep the first `limit` problems.
    """
    if name not in INFO:
        raise ValueError(f"unknown benchmark {name!r}; expected one of {', '.join(BENCHMARKS)}")
    if hard and name != "bigcodebench":
        raise ValueError(f"hard=True selects BigCodeBench-Hard, but the benchmark is {name!r}")
    if split != "all" and split not in _MBPP_SPLITS:
        raise ValueError(f"unknown split {split!r}; expected 'all' or one of {', '.join(_MBPP_SPLITS)}")
    rows = read_rows(INFO[name], Path(path) if path is not None else None)
    problems = [_BUILDERS[name](row) for row in rows]
    if name == "mbpp" and split != "all":
        problems = [problem for problem in problems if problem.metadata["split"] == split]
    if hard:
        wanted = hard_ids()
        problems = [problem for problem in problems if problem.task_id in wanted]
    counts = Counter(problem.task_id for problem in problems)
    if double := sorted(task for task, count in counts.items() if count > 1):
        raise ValueError(f"{name}: {len(double)} ids occur more than once, the first is {double[0]}")
    return problems[:limit]


def available_benchmarks() -> dict[str, list[Problem]]:
    """Read every benchmark that can be read on this machine, by name."""
    found = {}
    for name in BENCHMARKS:
        with contextlib.suppress(BenchmarkUnavailableError):
            found[name] = load_benchmark(name)
    return found


def benchmark_of(task_id: str) -> str:
    """Return the benchmark of an official id, a `ValueError` where it belongs to none of the four.

    >>> benchmark_of("Mbpp/11")
    'mbpp'
    """
    prefix = task_id.split("/")[0]
    found = next((name for name, info in INFO.items() if info.prefix == prefix), None)
    if found is None:
        raise ValueError(f"{task_id!r} is no id of {', '.join(info.title for info in INFO.values())}")
    return found


def one_benchmark(problems: Sequence[Problem]) -> BenchmarkInfo:
    """Return the benchmark of all the problems; a `ValueError` where there are none, or of several benchmarks."""
    names = sorted({problem.benchmark for problem in problems})
    if len(names) != 1:
        raise ValueError(f"expected problems of one benchmark, got {', '.join(names) or 'no problems'}")
    return INFO[names[0]]


def spread(problems: Sequence[Problem], count: int) -> list[Problem]:
    """Return `count` problems evenly spread over all, all where `count` is 0 or larger than there are."""
    if count == 0 or count >= len(problems):
        return list(problems)
    return [problems[i * len(problems) // count] for i in range(count)]


def spread_each(problems: Mapping[str, Sequence[Problem]], count: int) -> list[Problem]:
    """Return `count` problems of each benchmark, see `spread`, one benchmark behind the other."""
    return [problem for rows in problems.values() for problem in spread(rows, count)]


def select_problems(problems: Sequence[Problem], ids: Sequence[str] = (), share: float = 1.0) -> list[Problem]:
    """Choose the problems with these ids, or all, and of them a share in (0, 1], evenly; else a `ValueError`."""
    if not 0 < share <= 1:
        raise ValueError(f"expected a share above 0 and at most 1, got {share:g}")
    if unknown := sorted(set(ids) - {problem.task_id for problem in problems}):
        raise ValueError(f"no such problem: {', '.join(unknown)}; an id looks like {problems[0].task_id}")
    chosen = [problem for problem in problems if not ids or problem.task_id in ids]
    return spread(chosen, max(1, round(share * len(chosen))))


def licences() -> list[dict[str, str]]:
    """Return title, licence, source and citation of every benchmark, one dictionary each."""
    return [
        {
            "benchmark": info.title,
            "problems": str(info.rows),
            "licence": info.licence,
            "source": f"{info.hub}@{info.revision[:8]}",
            "citation": info.citation,
        }
        for info in INFO.values()
    ]


def _humaneval(row: Mapping[str, Any]) -> Problem:
    return Problem(
        task_id=row["task_id"],
        benchmark="humaneval",
        prompt=row["prompt"],
        complete_prompt=row["prompt"],
        code_start=row["prompt"],
        reference=row["canonical_solution"],
        test=row["test"],
        entry_point=row["entry_point"],
        library="humaneval",
    )


def _mbpp(row: Mapping[str, Any]) -> Problem:
    number = int(row["task_id"])
    code = _unix_lines(row["code"])
    tests = [_unix_lines(test) for test in row["test_list"]]
    split = next(name for name, (low, high) in _MBPP_SPLITS.items() if low <= number <= high)
    return Problem(
        task_id=f"Mbpp/{number}",
        benchmark="mbpp",
        prompt=row["text"],
        complete_prompt='"""\n' + "\n".join([row["text"], *tests]) + '\n"""\n',
        code_start="",
        reference=code,
        test="\n".join(tests),
        entry_point=_called_name(tests, code),
        library="mbpp",
        metadata={"test_list": tests, "test_setup_code": _unix_lines(row["test_setup_code"]), "split": split},
    )


def _unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _called_name(tests: Sequence[str], code: str) -> str:
    """Return the function of `code` that the tests call (`set(f(x)) == ...` calls two)."""
    defined = [node.name for node in ast.walk(parse(code)) if isinstance(node, ast.FunctionDef)]
    called = {node.id for node in ast.walk(parse("\n".join(tests))) if isinstance(node, ast.Name)}
    return next((name for name in defined if name in called), defined[-1] if defined else "")


def _bigcodebench(row: Mapping[str, Any]) -> Problem:
    return Problem(
        task_id=row["task_id"],
        benchmark="bigcodebench",
        prompt=row["instruct_prompt"],
        # The official program joins prompt and solution by a line break.
        complete_prompt=row["complete_prompt"] + "\n",
        code_start=row["code_prompt"],
        reference=row["canonical_solution"],
        test=row["test"],
        entry_point=row["entry_point"],
        library="bigcodebench",
        metadata={"libs": ast.literal_eval(row["libs"]) if isinstance(row["libs"], str) else list(row["libs"])},
    )


def _ds1000(row: Mapping[str, Any]) -> Problem:
    meta = dict(row["metadata"])
    return Problem(
        task_id=f"DS-1000/{meta['problem_id']}",
        benchmark="ds1000",
        prompt=row["prompt"],
        complete_prompt=row["prompt"] if row["prompt"].endswith("\n") else row["prompt"] + "\n",
        code_start="",
        reference=row["reference_code"],
        test=row["code_context"],
        entry_point="",
        library=str(meta["library"]),
        metadata=meta,
    )


_BUILDERS = {"humaneval": _humaneval, "mbpp": _mbpp, "bigcodebench": _bigcodebench, "ds1000": _ds1000}
