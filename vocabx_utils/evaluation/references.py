"""Reference solutions first: a problem counts only where its own reference passes here, twice in a row."""

from __future__ import annotations

import datetime
import platform
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from vocabx_utils.evaluation.benchmarks import Problem, one_benchmark
from vocabx_utils.evaluation.environments import Environment, check_libraries, environment_for
from vocabx_utils.evaluation.execution import Job, make_job, run_jobs
from vocabx_utils.evaluation.kept import KeptList, reference_timeouts
from vocabx_utils.evaluation.outcomes import Outcome
from vocabx_utils.evaluation.programs import reference_answer
from vocabx_utils.evaluation.samples import Sample
from vocabx_utils.evaluation.selftest import check_sandbox
from vocabx_utils.files import append_jsonl, iterate_jsonl

LONGEST, FACTOR = 60.0, 5.0  # time limit: that of the benchmark, or five times the reference, at most 60 s
FIRST_TIMEOUT = 60.0  # seconds for a reference whose time is not yet known
_REASON_LIMIT = 160


def verify_references(
    problems: Sequence[Problem],
    environment: Environment | None = None,
    *,
    workers: int = 2,
    modes: Sequence[str] = ("fresh", "fresh"),
    record: str | Path | None = None,
) -> KeptList:
    """Run every reference solution several times in the sandbox, and once in strict mode where there is one.

    Args:
        environment: where they run; None for that of the benchmark.
        modes: one entry for each pass: `fresh` (a jail for each program) or `forked` (warm jails).
        record: JSON Lines file to which every verdict is appended; the passes continue after what it holds. A
            `ValueError` where it was made in another environment.
    """
    info = one_benchmark(problems)
    environment = environment or environment_for(info.name)
    check_libraries(environment, [problem.library for problem in problems])
    known = _read_record(record, environment.hash)
    backend = check_sandbox(environment.view)

    def run(jobs: Sequence[Job], mode: str, what: str) -> dict[str, Outcome]:
        desc, label, fast = f"{info.name}, references, {what}", f"{what}, {mode}", mode == "forked"
        left = [job for job in jobs if (label, job.task_id) not in known]
        for job, outcome, _ in run_jobs(left, environment, workers=workers, fast=fast, retry=undecided, desc=desc):
            known[label, job.task_id] = outcome
            if record:
                place = {"run": label, "task_id": job.task_id, "env_hash": environment.hash}
                append_jsonl(record, {**place, "verdict": asdict(outcome)})
        return {job.task_id: known[label, job.task_id] for job in jobs}

    jobs = reference_jobs(problems, environment, lambda _: FIRST_TIMEOUT)
    outcomes: dict[str, list[Outcome]] = {problem.task_id: [] for problem in problems}
    seconds = []

    def undecided(job: Job) -> bool:
        """What failed in an earlier pass is dropped whatever comes: no second attempt."""
        return _all_pass(outcomes[job.task_id])

    for number, mode in enumerate(modes, 1):
        begin = time.monotonic()
        for name, outcome in run(jobs, mode, f"pass {number} of {len(modes)}").items():
            outcomes[name].append(outcome)
        seconds.append(round(time.monotonic() - begin, 1))
    dropped = {name: drop_reason(runs, environment) for name, runs in outcomes.items() if not _all_pass(runs)}
    kept = tuple(name for name in outcomes if name not in dropped)
    limits = {name: time_limit(outcomes[name], info.timeout_s) for name in kept}
    timeouts = {name: limit for name, limit in limits.items() if limit > info.timeout_s}
    not_strict = {}
    if info.strict:
        jobs = reference_jobs(problems, environment, lambda _: FIRST_TIMEOUT, strict=True)
        strict = run([job for job in jobs if job.task_id not in dropped], "fresh", "strict")
        not_strict = {name: drop_reason([v], environment) for name, v in strict.items() if v.status != "pass"}
    facts = {**environment.describe(), "backend": backend, "modes": list(modes)}
    return KeptList(info.name, kept, dropped, timeouts, not_strict, facts, tuple(seconds))


def _read_record(path: str | Path | None, env_hash: str) -> dict[tuple[str, str], Outcome]:
    """Read the verdicts of a record, if there is one, by pass and problem."""
    outcomes: dict[tuple[str, str], Outcome] = {}
    for number, row in iterate_jsonl(path) if path and Path(path).is_file() else ():
        place = f"{path}, line {number}"
        if row.get("env_hash") != env_hash:
            raise ValueError(
                f"{place}: made in the environment {row.get('env_hash')}, but this one is {env_hash}; choose "
                "another folder, or remove the file to begin anew"
            )
        try:
            outcomes[row["run"], row["task_id"]] = Outcome(**row["verdict"])
        except (KeyError, TypeError) as error:
            raise ValueError(f"{place}: not a verdict on a reference ({error})") from error
    return outcomes


def _all_pass(runs: Sequence[Outcome]) -> bool:
    return all(run.status == "pass" for run in runs)


def reference_jobs(
    problems: Sequence[Problem], environment: Environment, timeouts: Callable[[str], float], *, strict: bool = False
) -> list[Job]:
    """Jobs that run the reference solutions."""
    answers = [(problem, Sample(problem.task_id, reference_answer(problem))) for problem in problems]
    return [make_job(p, answer, environment, strict, timeouts(p.task_id)) for p, answer in answers]


def time_limit(runs: Sequence[Outcome], usual: float) -> float:
    """Five times the quickest run of the reference (load only adds), in whole seconds, from the usual limit to 60."""
    return float(min(max(round(FACTOR * min(run.seconds for run in runs)), usual), LONGEST))


def drop_reason(runs: Sequence[Outcome], environment: Environment) -> str:
    """Why a problem is dropped, in one line without paths of this machine."""
    failed = [run for run in runs if run.status != "pass"]
    run = failed[0]
    text = next(iter(run.details.values()), "")
    lines = [line.strip() for line in text.splitlines() if line.strip(" ^~")]
    raised = re.compile(rf"[\w.]*{re.escape(run.exception)}\b") if run.exception else None
    # A report keeps the end of a message only: of a long one the exception's name says more than its last line.
    otherwise = run.exception or (lines[-1] if lines else "")
    last = next((line for line in reversed(lines) if raised and raised.match(line)), otherwise)
    for folder in sorted(environment.view.folders, key=lambda folder: -len(str(folder))):
        last = last.replace(str(folder), "<environment>")
    label = "timeout" if run.status == "timeout" else run.reason
    times = "" if len(failed) == len(runs) else f" (in {len(failed)} of {len(runs)} runs)"
    return f"{label}{times}: {last}"[:_REASON_LIMIT]


def compare_modes(problems: Sequence[Problem], *, workers: int = 2) -> dict[str, Any]:
    """Time a full pass over the references, usually the kept ones, with a fresh jail each and with forks in warm jails.

    Returns:
        Wall and CPU seconds and numbers of statuses by mode, the ids whose statuses differ, and what was used. CPU
        seconds are those of the programs themselves; unlike wall time they hardly grow on a busy machine.
    """
    benchmark = one_benchmark(problems).name
    environment = environment_for(benchmark)
    backend = check_sandbox(environment.view)
    jobs = reference_jobs(problems, environment, reference_timeouts(benchmark))
    statuses: dict[str, dict[str, str]] = {}
    table: dict[str, Any] = {}
    for mode in ("fresh", "forked"):
        begin = time.monotonic()
        done = list(run_jobs(jobs, environment, workers=workers, fast=mode == "forked", desc=f"{benchmark}, {mode}"))
        statuses[mode] = {job.task_id: outcome.status for job, outcome, _ in done}
        table[mode] = {
            "seconds": round(time.monotonic() - begin, 1),
            "cpu_seconds": round(sum(outcome.cpu_s for _, outcome, _ in done), 1),
            "verdicts": dict(Counter(statuses[mode].values())),
            "second_attempts": sum(attempts > 1 for _, _, attempts in done),
        }
    differing = [job.task_id for job in jobs if len({found[job.task_id] for found in statuses.values()}) > 1]
    return {
        "benchmark": benchmark,
        "programs": len(jobs),
        "workers": workers,
        "modes": table,
        "different_verdicts": differing,
        "backend": backend,
        "environment": environment.hash,
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
