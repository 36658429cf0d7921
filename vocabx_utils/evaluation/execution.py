"""Execute answers: plan, run on several workers, retry alone what load may have spoilt, resume."""

from __future__ import annotations

import ast
import builtins
import contextlib
import hashlib
import json
import queue
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vocabx_utils import locks
from vocabx_utils.evaluation.benchmarks import KEPT_FOLDER, Problem, program
from vocabx_utils.evaluation.environments import Environment, check_libraries, environment_for
from vocabx_utils.evaluation.outcomes import Outcome, flags
from vocabx_utils.evaluation.results import Result, ResultsFile
from vocabx_utils.evaluation.samples import Sample, match_samples, read_samples
from vocabx_utils.evaluation.sandbox import Limits, Sandbox, Strict, Task
from vocabx_utils.evaluation.selftest import check_sandbox
from vocabx_utils.runs import progress, read_json

TIMEOUTS = {"humaneval": 5.0, "mbpp": 5.0, "ds1000": 30.0, "bigcodebench": 10.0}
STRICT_BENCHMARKS = ("humaneval", "mbpp")
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
    out_path: str | Path,
    environment: Environment | None = None,
    workers: int = 2,
    strict: bool = True,
    *,
    fast: bool = False,
    timeout_s: float | None = None,
) -> list[Result]:
    """Execute answers in the sandbox and file the results.

    Results that the file already holds are not computed again; a file of other answers, limits or another
    environment is refused. Timeouts and crashes are run once more, alone and in a fresh jail, so that neither load
    nor another answer changes scores.

    Args:
        samples: Path of a samples file, or rows with ``task_id`` and ``solution`` (and ``sample``).
        problems: The problems, all of one benchmark; each must have a sample.
        out_path: Results file (JSON Lines), appended to.
        environment: Where the answers run; None for that of the benchmark.
        workers: Programs at the same time.
        strict: Compare values outside the candidate's process, where a benchmark's tests allow that (HumanEval and
            MBPP). Problems whose reference does not return plain data run as usual; each result says how it was
            obtained.
        fast: Fork in warm jails instead of starting a fresh jail for each program.
        timeout_s: Seconds for each program instead of the benchmark's own.

    Returns:
        Results in the order of the problems.

    Raises:
        ValueError: Samples that do not fit the problems.
        ResultsMismatchError: The results file holds something else.
        SandboxUnavailableError: There is no sandbox that holds; nothing was executed.
        EnvironmentMissingError: The environment is not built or lacks a library.
    """
    rows = read_samples(samples) if isinstance(samples, str | Path) else samples
    pairs = match_samples(rows, problems)
    benchmark = one_benchmark(problems)
    environment = environment or environment_for(benchmark)
    check_libraries(environment, [problem.library for problem in problems])
    timeouts, outside = reference_timeouts(benchmark), strict_ids(problems) if strict else frozenset()
    jobs = [
        make_job(
            problem,
            sample,
            environment,
            problem.task_id in outside,
            timeout_s or timeouts(problem.task_id),
        )
        for problem, sample in pairs
    ]
    file = ResultsFile(out_path)
    file.check({(job.task_id, job.sample): job.key for job in jobs}, environment.hash)
    left = [job for job in jobs if (job.task_id, job.sample) not in file.rows]
    if left:
        backend = check_sandbox(environment.view)
        with locks.writing(file.path):
            for job, outcome, attempts in run_jobs(left, environment, workers=workers, fast=fast):
                file.append(_result(job, outcome, attempts, environment, backend))
    return [file.rows[job.task_id, job.sample] for job in jobs]


def one_benchmark(problems: Sequence[Problem]) -> str:
    """Name of the benchmark of all the problems.

    Raises:
        ValueError: There are none, or of several benchmarks.
    """
    names = sorted({problem.benchmark for problem in problems})
    if len(names) != 1:
        raise ValueError(f"expected problems of one benchmark, got {', '.join(names) or 'no problems'}")
    return names[0]


def reference_timeouts(benchmark: str) -> Callable[[str], float]:
    """Seconds for each problem: those of the benchmark, or of the kept list where its reference needs longer."""
    special = _kept_list(benchmark).get("timeouts", {})
    return lambda task_id: float(special.get(task_id, TIMEOUTS[benchmark]))


def strict_ids(problems: Sequence[Problem]) -> frozenset[str]:
    """Ids of the problems, all of one benchmark, whose answers can be compared outside their own process."""
    benchmark = one_benchmark(problems)
    if benchmark not in STRICT_BENCHMARKS:
        return frozenset()
    return frozenset(problem.task_id for problem in problems) - set(_kept_list(benchmark).get("not_strict", {}))


def _kept_list(benchmark: str) -> dict[str, Any]:
    file = KEPT_FOLDER / f"{benchmark}.json"
    return dict(read_json(file)) if file.is_file() else {}


def make_job(problem: Problem, sample: Sample, environment: Environment, strict: bool, timeout_s: float) -> Job:
    """Combine a problem and an answer into a job.

    Raises:
        ValueError: Strict mode for a benchmark whose answers do not return plain data.
    """
    parts = program(problem, sample.solution)
    task = Task(parts.solution, parts.test, parts.style)
    if strict:
        task = replace(task, strict=strict_part(problem, parts.test))
    limits = Limits(timeout_s=timeout_s)
    facts = [asdict(task), asdict(limits), environment.hash]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return Job(problem.task_id, sample.sample, task, limits, key)


def strict_part(problem: Problem, test: str) -> Strict:
    """What strict mode must ask the candidate's process for, and what the trusted one defines itself.

    Raises:
        ValueError: Another benchmark than HumanEval and MBPP.
    """
    if problem.benchmark not in STRICT_BENCHMARKS:
        raise ValueError(
            f"strict mode is for {' and '.join(STRICT_BENCHMARKS)}, whose answers return plain data, not for "
            f"{problem.benchmark}"
        )
    if problem.benchmark == "humaneval":
        # Helpers of the prompt, such as `poly`, come from the prompt and not from the answer.
        return Strict((problem.entry_point,), f"{problem.code_start}\n    pass\n")
    return Strict(tuple(sorted({problem.entry_point, *_free_names(test)})))


def _free_names(source: str) -> list[str]:
    """Names that the code reads but neither defines nor finds among the builtins."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in the benchmark's own code
        nodes = list(ast.walk(ast.parse(source)))
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    bound |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
    return sorted(read - bound - set(dir(builtins)))


def run_jobs(
    jobs: Sequence[Job],
    environment: Environment,
    *,
    workers: int = 2,
    fast: bool = False,
    retry: Callable[[Job], bool] = lambda job: True,
    desc: str = "executing",
) -> Iterator[tuple[Job, Outcome, int]]:
    """Run programs and yield each with its outcome and number of attempts, as they are done.

    Args:
        jobs: The programs.
        environment: Where they run.
        workers: Programs at the same time, 1 or more.
        fast: Fork in warm jails.
        retry: Tells whether a timeout or crash, and in warm jails a lack of memory, is run once more, alone and in
            a fresh jail, after all others.
        desc: Title of the progress display.

    Raises:
        ValueError: Fewer than one worker.
        SandboxUnavailableError: A jail did not start.
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
