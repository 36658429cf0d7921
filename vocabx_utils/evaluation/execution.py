"""Execute answers: plan, run on several workers, retry alone what load may have spoilt, resume."""

from __future__ import annotations

import contextlib
import json
import queue
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vocabx_utils import locks
from vocabx_utils.evaluation.benchmarks import Problem, one_benchmark
from vocabx_utils.evaluation.environments import Environment, check_libraries, environment_for
from vocabx_utils.evaluation.kept import reference_timeouts, strict_ids
from vocabx_utils.evaluation.outcomes import Outcome, flags
from vocabx_utils.evaluation.programs import build_program
from vocabx_utils.evaluation.results import Result, ResultsFile
from vocabx_utils.evaluation.samples import Sample, match_samples, read_samples
from vocabx_utils.evaluation.sandbox import Limits, Sandbox, Task
from vocabx_utils.evaluation.selftest import check_sandbox
from vocabx_utils.files import hash_bytes
from vocabx_utils.progress import progress

_RETRIED = ("crash",)
_RETRIED_WARM = ("crash", "memory")  # what an earlier program in the same jail might have caused


@dataclass(frozen=True)
class Job:
    """One program to run, with the name under which its result is filed."""

    task_id: str
    sample: int
    task: Task
    limits: Limits
    key: str


def execute(
    samples: str | Path | Iterable[Mapping[str, Any] | Sample],
    problems: Sequence[Problem],
    out_path: str | Path | None = None,
    environment: Environment | None = None,
    workers: int = 2,
    strict: bool = True,
    *,
    fast: bool = False,
    known: Iterable[Result] = (),
) -> list[Result]:
    """Execute answers in the sandbox and file the results, which are returned in the order of the problems.

    Results that the file already holds are not computed again; a file of other answers, limits or another
    environment is refused. Timeouts and crashes are run once more, alone and in a fresh jail, so that neither load
    nor another answer changes scores.

    Args:
        samples: path of a samples file, or rows with `task_id` and `solution` (and `sample`).
        problems: all of one benchmark; each must have a sample.
        out_path: results file (JSON Lines), appended to; None keeps the results in memory only.
        environment: where the answers run; None for that of the benchmark.
        workers: programs at the same time.
        strict: compare values outside the candidate's process, where a benchmark's tests and its reference allow that
            (HumanEval and MBPP); each result says whether they did.
        fast: fork in warm jails instead of starting a fresh jail for each program.
        known: results of other answers; those of the very same program, limits and environment are taken over.

    Raises:
        ValueError: samples that do not fit the problems, or (`ResultsMismatchError`) the results file.
        SandboxUnavailableError: there is no sandbox that holds; nothing was executed.
        EnvironmentMissingError: the environment is not built or lacks a library.
    """
    rows = read_samples(samples) if isinstance(samples, str | Path) else samples
    pairs = match_samples(rows, problems)
    benchmark = one_benchmark(problems).name
    environment = environment or environment_for(benchmark)
    check_libraries(environment, [problem.library for problem in problems])
    timeouts, outside = reference_timeouts(benchmark), strict_ids(problems) if strict else frozenset()
    jobs = [
        make_job(problem, sample, environment, problem.task_id in outside, timeouts(problem.task_id))
        for problem, sample in pairs
    ]
    file = ResultsFile(out_path)
    file.check({(job.task_id, job.sample): job.key for job in jobs}, environment.hash)
    left = [job for job in jobs if (job.task_id, job.sample) not in file.rows]
    by_key = {result.key: result for result in known}
    new = [job for job in left if job.key not in by_key]
    backend = check_sandbox(environment.view) if new else ""
    with locks.writing(file.path) if left and file.path else contextlib.nullcontext():
        for job in (job for job in left if job.key in by_key):
            file.append(replace(by_key[job.key], task_id=job.task_id, sample=job.sample))
        for job, outcome, attempts in run_jobs(new, environment, workers=workers, fast=fast) if new else ():
            file.append(_result(job, outcome, attempts, environment, backend))
    return [file.rows[job.task_id, job.sample] for job in jobs]


def make_job(problem: Problem, sample: Sample, environment: Environment, strict: bool, timeout_s: float) -> Job:
    """Combine a problem and an answer into a job; a `ValueError` for strict mode where answers are no plain data."""
    task = build_program(problem, sample.solution, strict=strict)
    limits = Limits(timeout_s=timeout_s)
    facts = [asdict(task), asdict(limits), environment.hash]
    key = hash_bytes([json.dumps(facts, sort_keys=True).encode()])
    return Job(problem.task_id, sample.sample, task, limits, key)


def run_jobs(
    jobs: Sequence[Job],
    environment: Environment,
    *,
    workers: int = 2,
    fast: bool = False,
    retry: Callable[[Job], bool] = lambda job: True,
    desc: str = "executing",
) -> Iterator[tuple[Job, Outcome, int]]:
    """Run programs and yield each with its outcome and number of attempts, as they are done; see `execute`.

    Args:
        retry: tells whether a timeout or crash, and in warm jails a lack of memory, is run once more, alone and in
            a fresh jail, after all others.
    """
    if workers < 1:
        raise ValueError(f"expected at least one worker, got {workers}")
    again: list[Job] = []
    retried = _RETRIED_WARM if fast else _RETRIED
    with progress(total=len(jobs), desc=desc, unit="program") as bar:
        with contextlib.closing(_in_parallel(jobs, environment, workers, fast)) as outcomes:
            for job, outcome in outcomes:
                spoilt = outcome.status == "timeout" or outcome.reason in retried
                if spoilt and retry(job):
                    again.append(job)
                    continue
                bar.update(1)
                yield job, outcome, 1
        with Sandbox(environment.view) as sandbox:
            for job in again:
                outcome = sandbox.run(job.task, job.limits)
                bar.update(1)
                yield job, outcome, 2


def _in_parallel(
    jobs: Sequence[Job], environment: Environment, workers: int, fast: bool
) -> Generator[tuple[Job, Outcome]]:
    """Run on threads (each waits for its jail); the longest time limits first, so that none is left to the end."""
    idle: queue.SimpleQueue[Sandbox] = queue.SimpleQueue()

    def work(job: Job) -> tuple[Job, Outcome]:
        sandbox = idle.get()
        try:
            return job, sandbox.run(job.task, job.limits)
        finally:
            idle.put(sandbox)

    with contextlib.ExitStack() as stack:
        for _ in range(min(workers, len(jobs))):
            sandbox = Sandbox(environment.view, forked=fast, preload=environment.preload)
            idle.put(stack.enter_context(sandbox))
        # Entered last: the threads have ended before the jails, which die with the threads that started them.
        pool = stack.enter_context(futures.ThreadPoolExecutor(workers))
        try:
            running = [pool.submit(work, job) for job in sorted(jobs, key=lambda job: -job.limits.timeout_s)]
            for done in futures.as_completed(running):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _result(job: Job, outcome: Outcome, attempts: int, environment: Environment, backend: str) -> Result:
    return Result(
        task_id=job.task_id,
        sample=job.sample,
        **{**asdict(outcome), "seconds": round(outcome.seconds, 3), "cpu_s": round(outcome.cpu_s, 3)},
        attempts=attempts,
        timeout_s=job.limits.timeout_s,
        key=job.key,
        backend=backend,
        environment=environment.name,
        env_hash=environment.hash,
        strict=job.task.strict is not None,
        flags=flags(job.task.solution),
    )
