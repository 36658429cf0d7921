"""`vocabx eval answers`: what notebook 05 does in a sandbox, for a run whose answers were written without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from vocabx_utils import runs
from vocabx_utils.claims import Verdict, judge_c10, judge_c11, judge_c14, judge_c16
from vocabx_utils.evaluation.benchmarks import benchmark_of
from vocabx_utils.evaluation.contenders import CONTROL, answered, execute_answered
from vocabx_utils.evaluation.failures import failure_class, failure_table
from vocabx_utils.evaluation.kept import kept_ids
from vocabx_utils.evaluation.results import Result
from vocabx_utils.evaluation.scoring import count_passes, results_table
from vocabx_utils.files import read_json, write_json, write_table
from vocabx_utils.settings import ConfigError
from vocabx_utils.thesis import CLAIMS

Outcomes = Mapping[str, Sequence[Result]]
Samples = Mapping[str, Sequence[Mapping[str, Any]]]


def execute_run(run_name: str, reference: str, *, workers: int, strict: bool, say: Callable[[str], object]) -> None:
    """Execute the answers of a run, write `table.csv` and the verdicts that rest on them, and say what was found.

    A ConfigError where the `reference`, with which the others are compared, has no answers; a MissingStageError where
    no contender has any. For other errors see `execute_answered`.
    """
    run = runs.existing_run(run_name)
    samples = answered(run)
    if reference not in samples:
        raise ConfigError(f"--reference is {reference!r}; expected a contender with answers: {', '.join(samples)}.")
    outcomes = execute_answered(run, samples, workers=workers, strict=strict)
    control = outcomes.pop(CONTROL)
    say(f"{sum(row.passed for row in control)} of {len(control)} reference solutions pass")
    kept = kept_ids({benchmark_of(row.task_id) for row in control})
    table = results_table(outcomes, reference=reference, kept=kept)
    write_table(run.stage("05") / "table.csv", table)
    say(table.drop(columns="group").to_string(index=False))
    say(failure_table(outcomes, samples).to_string(index=False))
    verdicts = _judge(outcomes, samples, kept, _losses(run))
    _add_verdicts(run, verdicts)
    for verdict in verdicts:
        say(f"{verdict.claim}: {verdict.answer} ({verdict.reason})")


def _judge(
    outcomes: Outcomes, samples: Samples, kept: Mapping[str, frozenset[str]], losses: Mapping[str, float]
) -> list[Verdict]:
    """Judge the claims that need executed answers, by the same numbers as notebook 05."""
    passes = {name: count_passes(rows, kept) for name, rows in outcomes.items()}
    rates = {name: sum(row.passed for row in rows) / len(rows) for name, rows in outcomes.items()}
    written = {name: {row["task_id"]: row for row in rows} for name, rows in samples.items()}
    classes = {name: [failure_class(r, written[name][r.task_id]) for r in rows] for name, rows in outcomes.items()}
    return [judge_c10(passes), judge_c11(losses, rates), judge_c14(passes), judge_c16(classes)]


def _losses(run: runs.Run) -> dict[str, float]:
    """Bits per byte of the benchmarks' solutions by contender, as notebook 05 measured them; none where it did not."""
    path = run.stage("05") / "bits_per_byte.csv"
    if not path.exists():
        return {}
    table = pd.read_csv(path)
    solutions = table[table["texts"] == "solutions"]
    return dict(zip(solutions["model"], solutions["bits_per_byte"], strict=True))


def _add_verdicts(run: runs.Run, verdicts: Sequence[Verdict]) -> None:
    """Put verdicts among those of the stage; the one on C15, which needs no execution, stays."""
    path = run.stage("05") / "verdicts.json"
    held = {verdict.claim: verdict for verdict in map(Verdict.from_dict, read_json(path) if path.exists() else ())}
    held |= {verdict.claim: verdict for verdict in verdicts}
    write_json(path, [held[claim].to_dict() for claim in CLAIMS if claim in held])
