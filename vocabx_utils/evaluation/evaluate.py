"""Execute a list of answers, and get a table back: the shortest way through the wing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from vocabx_utils.evaluation.benchmarks import Problem, load_benchmark
from vocabx_utils.evaluation.execution import execute
from vocabx_utils.evaluation.failures import exception_name, failure_class
from vocabx_utils.evaluation.kept import kept_ids
from vocabx_utils.evaluation.samples import parse_sample


def evaluate_answers(
    benchmark: str | Sequence[Problem],
    answers: Mapping[str, str] | Iterable[Mapping[str, Any]],
    *,
    workers: int = 2,
    strict: bool = True,
    fast: bool = False,
) -> pd.DataFrame:
    """Execute answers to a benchmark, or to problems of it, in the sandbox and tell which pass.

    Args:
        answers: code by id of the problem, or rows with `task_id` and `solution`, such as those of
            `generation.sample_answers`. Problems without an answer are left out.

    Returns:
        One row an answer, in the order of the benchmark: `task_id`, `sample`, `passed`, `failure` (a class of
        `failures.FAILURE_CLASSES`, empty for a pass), `exception`, `kept` (whether the reference solution passes, so
        that the problem counts), `seconds`, `details`.

    Raises:
        ValueError: no answers, or answers that do not fit the problems; for other errors see `execution.execute`.
        BenchmarkUnavailableError: no source of the benchmark can be reached.

    >>> answers = {"HumanEval/53": "def add(x, y):\\n    return x + y", "HumanEval/34": "def unique(l):\\n    return l"}
    >>> table = evaluate_answers("humaneval", answers)
    >>> table[["task_id", "passed", "failure"]].values.tolist()
    [['HumanEval/34', False, 'wrong answer'], ['HumanEval/53', True, '']]
    """
    if isinstance(answers, Mapping):
        answers = [{"task_id": task, "solution": solution} for task, solution in answers.items()]
    rows = {}
    for number, row in enumerate(answers, 1):
        sample = parse_sample(row, f"answer {number}")
        rows[sample.task_id, sample.sample] = row
    if not rows:
        raise ValueError("expected at least one answer, got none")
    problems = load_benchmark(benchmark) if isinstance(benchmark, str) else benchmark
    answered = {task for task, _ in rows}
    asked = [problem for problem in problems if problem.task_id in answered] or problems
    results = execute(rows.values(), asked, workers=workers, strict=strict, fast=fast)
    kept = kept_ids({problem.benchmark for problem in asked})
    by_task = {problem.task_id: problem.benchmark for problem in asked}
    return pd.DataFrame(
        {
            "task_id": result.task_id,
            "sample": result.sample,
            "passed": result.passed,
            "failure": failure_class(result, rows[result.task_id, result.sample]),
            "exception": exception_name(result),
            "kept": result.task_id in kept.get(by_task[result.task_id], by_task),
            "seconds": result.seconds,
            "details": "\n".join(result.details.values()),
        }
        for result in results
    )
