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
    """Outcome of one answer; the fields of `outcomes.Outcome`, and what it was obtained with.

    Attributes:
        attempts: runs; 2 where a timeout or crash was tried again alone.
        key: digest of program, test, limits and environment.
        backend: sandbox and its version.
        env_hash: hash of the environment.
        strict: whether values were compared outside the candidate's process.
        flags: words in the answer at which a person should look.
    """

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
    attempts: int
    timeout_s: float
    key: str
    backend: str
    environment: str
    env_hash: str
    strict: bool = False
    flags: list[str] = field(default_factory=list)
    cpu_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether the answer is right."""
        return self.status == "pass"

    def to_dict(self) -> dict[str, Any]:
        """Return the line of the results file."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, row: Mapping[str, Any], place: str) -> Result:
        """Read a line.

        Raises:
            ValueError: a field is missing.
        """
        names = {item.name for item in dataclasses.fields(cls)}
        required = names - {"strict", "flags", "cpu_s"}
        if missing := sorted(required - row.keys()):
            raise ValueError(f"{place}: no {', '.join(missing)}; is this a results file?")
        return cls(**{name: value for name, value in row.items() if name in names})


class ResultsFile:
    """An append-only results file. A torn last line, left by a killed run, goes with the next append.

    Args:
        path: the file; it need not exist. None holds the results in memory only.

    Raises:
        ValueError: a line that is not the last is no result; file and line are named.
    """

    def __init__(self, path: str | Path | None) -> None:
        self.path = Path(path) if path is not None else None
        self.rows: dict[tuple[str, int], Result] = {}
        if self.path and self.path.exists():
            for number, row in iterate_jsonl(self.path):
                result = Result.from_dict(row, f"{self.path}, line {number}")
                self.rows[result.task_id, result.sample] = result

    def check(self, keys: Mapping[tuple[str, int], str], env_hash: str) -> None:
        """Refuse to mix results.

        Args:
            keys: key of every answer that is to be executed now.

        Raises:
            ResultsMismatchError: the file has results of another environment, or for other answers or limits.
        """
        if self.path is None:
            return
        others = sorted({row.env_hash for row in self.rows.values()} - {env_hash})
        remedy = f"choose another file, or remove {show_path(self.path)} to execute everything again"
        if others:
            raise ResultsMismatchError(
                f"{show_path(self.path)} was made in the environment {', '.join(others)}, but this one is "
                f"{env_hash}; {remedy}"
            )
        differing = [name for name, row in self.rows.items() if keys.get(name, row.key) != row.key]
        if differing:
            names = ", ".join(task for task, _ in differing[:10]) + (" ..." if len(differing) > 10 else "")
            raise ResultsMismatchError(
                f"{show_path(self.path)} holds results of other answers or limits for {len(differing)} problems "
                f"({names}); {remedy}"
            )

    def append(self, result: Result) -> None:
        """Write one result and sync it.

        Raises:
            OSError: the disk is full or the file cannot be written; the message says what is kept.
        """
        if self.path is not None:
            self._append(self.path, result)
        self.rows[result.task_id, result.sample] = result

    def _append(self, path: Path, result: Result) -> None:
        try:
            append_jsonl(path, result.to_dict())
        except OSError as error:
            raise OSError(
                error.errno,
                f"could not write to {show_path(path)} ({error.strerror}); its {len(self.rows)} results are "
                "kept, and the same command continues after them",
            ) from error


def read_results(path: str | Path) -> list[Result]:
    """Read a results file (a torn last line is left out).

    Raises:
        ValueError: a line is no result; file and line are named.
    """
    return [Result.from_dict(row, f"{path}, line {number}") for number, row in iterate_jsonl(path)]


def read_measured(folder: Path) -> dict[str, dict[str, list[Result]]]:
    """Read stored evaluations at full size, such as those of `results/evaluation`.

    Args:
        folder: `MODEL/VARIANT/results_*.jsonl` below it; it need not exist.

    Returns:
        Results by model and variant; empty where there is nothing.

    Raises:
        ValueError: a line is no result; file and line are named.
    """
    found: dict[str, dict[str, list[Result]]] = {}
    for path in sorted(folder.glob("*/*/results_*.jsonl")):
        found.setdefault(path.parent.parent.name, {}).setdefault(path.parent.name, []).extend(read_results(path))
    return found


def write_official(results: Iterable[Result], samples: Iterable[Sample], path: str | Path) -> Path:
    """Write results in the shape of BigCodeBench's own evaluator.

    Args:
        path: the samples file beside which `<name>_eval_results.json` is written.

    Returns:
        Path of the written file.
    """
    solutions = {(row.task_id, row.sample): row.solution for row in samples}
    table: dict[str, list[dict[str, Any]]] = {}
    for row in results:
        table.setdefault(row.task_id, []).append(
            {
                "task_id": row.task_id,
                "solution": solutions.get((row.task_id, row.sample), ""),
                "status": row.status,
                "details": row.details,
            }
        )
    target = Path(path).with_name(Path(path).name.removesuffix(".jsonl") + "_eval_results.json")
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M")
    write_json(target, {"date": date, "eval": table})
    return target
