"""Results of execution: one line per answer, append-only, so that a killed run continues where it stood."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vocabx_utils.evaluation.outcomes import Status
from vocabx_utils.evaluation.samples import Sample
from vocabx_utils.files import append_jsonl, iterate_jsonl, write_json
from vocabx_utils.paths import show_path


class ResultsMismatchError(ValueError):
    """A results file holds results of other answers, limits or another environment."""


@dataclass(frozen=True)
class Result:
    """Outcome of one answer; the fields of `outcomes.Outcome`, and what it was obtained with."""

    task_id: str
    sample: int
    status: Status
    reason: str
    exception: str
    details: dict[str, str]
    tests_run: int
    tests_expected: int
    seconds: float
    rss_mb: int
    attempts: int  # 2 where a timeout or crash was tried again alone
    timeout_s: float
    key: str  # digest of program, test, limits and environment
    backend: str  # sandbox and its version
    environment: str
    env_hash: str
    strict: bool = False  # whether values were compared outside the process of the candidate
    flags: list[str] = field(default_factory=list)  # words in the answer at which a person should look
    cpu_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the answer is right."""
        return self.status == "pass"

    @classmethod
    def from_dict(cls, row: Mapping[str, Any], place: str) -> Result:
        """Read a line; `place` names it in the `ValueError` about a missing field."""
        names = {item.name for item in dataclasses.fields(cls)}
        if missing := sorted(names - {"strict", "flags", "cpu_s"} - row.keys()):
            raise ValueError(f"{place}: no {', '.join(missing)}; is this a results file?")
        return cls(**{name: value for name, value in row.items() if name in names})


class ResultsFile:
    """An append-only results file, or None for memory only. A torn last line of a killed run goes with the next append.

    A `ValueError` names file and line, other than the last, that is no result.
    """

    def __init__(self, path: str | Path | None) -> None:
        self.path = Path(path) if path is not None else None
        rows = read_results(self.path) if self.path and self.path.exists() else []
        self.rows = {(row.task_id, row.sample): row for row in rows}

    def check(self, keys: Mapping[tuple[str, int], str], env_hash: str) -> None:
        """Refuse to mix results: those of another environment, or with other keys (answers, limits) than these."""
        if self.path is None:
            return
        place = show_path(self.path)
        remedy = f"choose another file, or remove {place} to execute everything again"
        if others := sorted({row.env_hash for row in self.rows.values()} - {env_hash}):
            raise ResultsMismatchError(
                f"{place} was made in the environment {', '.join(others)}, but this one is {env_hash}; {remedy}"
            )
        differing = [name for name, row in self.rows.items() if keys.get(name, row.key) != row.key]
        if differing:
            names = ", ".join(task for task, _ in differing[:10]) + (" ..." if len(differing) > 10 else "")
            raise ResultsMismatchError(
                f"{place} holds results of other answers or limits for {len(differing)} problems ({names}); {remedy}"
            )

    def append(self, result: Result) -> None:
        """Write one result and sync it; an `OSError` (full disk) says what is kept."""
        if self.path is not None:
            try:
                append_jsonl(self.path, dataclasses.asdict(result))
            except OSError as error:
                raise OSError(
                    error.errno,
                    f"could not write to {show_path(self.path)} ({error.strerror}); its {len(self.rows)} results are "
                    "kept, and the same command continues after them",
                ) from error
        self.rows[result.task_id, result.sample] = result


def read_results(path: str | Path) -> list[Result]:
    """Read a results file (a torn last line is left out); a `ValueError` names file and line that is no result."""
    return [Result.from_dict(row, f"{path}, line {number}") for number, row in iterate_jsonl(path)]


def read_measured(folder: Path) -> dict[str, dict[str, list[Result]]]:
    """Read stored evaluations at full size, `folder/MODEL/VARIANT/results_*.jsonl`, by model and variant.

    Nothing is there where the folder does not exist; a `ValueError` names file and line that is no result.
    """
    found: dict[str, dict[str, list[Result]]] = {}
    for path in sorted(folder.glob("*/*/results_*.jsonl")):
        found.setdefault(path.parent.parent.name, {}).setdefault(path.parent.name, []).extend(read_results(path))
    return found


def write_official(results: Iterable[Result], samples: Iterable[Sample], path: str | Path) -> Path:
    """Write `<name>_eval_results.json` beside the samples `path`, in the shape of BigCodeBench's own evaluator."""
    solutions = {(row.task_id, row.sample): row.solution for row in samples}
    table: dict[str, list[dict[str, Any]]] = {}
    for row in results:
        facts = {"solution": solutions.get((row.task_id, row.sample), ""), "status": row.status, "details": row.details}
        table.setdefault(row.task_id, []).append({"task_id": row.task_id, **facts})
    target = Path(path).with_name(Path(path).name.removesuffix(".jsonl") + "_eval_results.json")
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
    write_json(target, {"date": date, "eval": table})
    return target
