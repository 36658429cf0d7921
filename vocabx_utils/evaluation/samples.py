"""Answers to execute: read from a samples file, and matched with the problems they answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocabx_utils.evaluation.benchmarks import Problem
from vocabx_utils.files import iterate_jsonl

_NAMED = 10  # ids that an error message spells out


@dataclass(frozen=True)
class Sample:
    """One answer, numbered where a problem has several, to the problem with an official id; `solution` is executed."""

    task_id: str
    solution: str
    sample: int = 0


def read_samples(path: str | Path) -> list[Sample]:
    """Read JSON Lines with `task_id` and `solution` (and `sample`, from 0); a `ValueError` names file and line."""
    return [parse_sample(row, f"{path}, line {number}") for number, row in iterate_jsonl(path)]


def parse_sample(row: Mapping[str, Any] | Sample, place: str) -> Sample:
    """Read one row of a samples file, or return a sample as it is; a `ValueError` names place and wrong field."""
    if isinstance(row, Sample):
        return row
    for name in ("task_id", "solution"):
        if not isinstance(row.get(name), str):
            raise ValueError(f"{place}: expected a text in {name!r}, got {row.get(name)!r}")
    number = row.get("sample", 0)
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise ValueError(f"{place}: expected a number from 0 in 'sample', got {number!r}")
    return Sample(row["task_id"], row["solution"], number)


def match_samples(
    samples: Iterable[Mapping[str, Any] | Sample], problems: Sequence[Problem]
) -> list[tuple[Problem, Sample]]:
    """Pair every sample with its problem, in the order of the problems.

    A `ValueError` names problems without a sample, samples without a problem, and two with one id and number.
    """
    rows = [parse_sample(row, f"sample {number}") for number, row in enumerate(samples, 1)]
    known = {problem.task_id for problem in problems}
    counts = Counter((row.task_id, row.sample) for row in rows)
    complaints = [
        _complaint("unknown", [row.task_id for row in rows if row.task_id not in known]),
        _complaint("double", [task for (task, _), count in counts.items() if count > 1]),
        _complaint("missing", sorted(known - {row.task_id for row in rows})),
    ]
    if any(complaints):
        raise ValueError(
            f"the samples do not fit the {len(problems)} problems: {'; '.join(filter(None, complaints))}. Each "
            "problem needs one sample, or several that differ in 'sample' (0, 1, ...)"
        )
    by_task: dict[str, list[Sample]] = {}
    for row in sorted(rows, key=lambda row: row.sample):
        by_task.setdefault(row.task_id, []).append(row)
    return [(problem, row) for problem in problems for row in by_task[problem.task_id]]


def _complaint(word: str, ids: Sequence[str]) -> str:
    if not ids:
        return ""
    unique = list(dict.fromkeys(ids))
    more = f" and {len(unique) - _NAMED} more" if len(unique) > _NAMED else ""
    return f"{len(unique)} {word} ({', '.join(unique[:_NAMED])}{more})"
