"""Run the unit tests and all notebooks against their stored outputs at the same time, as `make test` does.

python tools/run_tests.py --unit=WORDS --nbval=WORDS [--one-by-one]

WORDS are what follows `python -m pytest`. Each notebook is a process of its own that begins when those whose files it
reads have passed. The longest chain of notebooks decides how long all of it takes, so unit tests and the other
notebooks give way to it, and wait for each other. Beside unit tests a notebook has one thread; once they are done, the
chain has every core.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from vocabx_utils.cli.grid import NEEDS
from vocabx_utils.cli.notebooks import find_notebooks

# How far a job gives way. Sandboxed programs in unit tests have limits of seconds, so where the chain takes every core
# they still get a tenth of one, and their tests must see that a program has lowered the priority of others (19 is the
# lowest). Notebooks beside the chain have neither.
UNIT_NICE, NOTEBOOK_NICE = 10, 18
GB = 10  # two notebooks of up to 4 GB beside two processes of unit tests of 1 GB
UNIT = "unit tests"


@dataclass
class Job:
    """One call of pytest."""

    name: str
    words: Sequence[str]
    log: Path | None = None  # where its output goes; none: shown at once
    needs: Sequence[str] = ()
    nice: int = 0
    limited: bool = False  # whether limits of seconds hold in it
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, threads: int = 1) -> subprocess.Popen[bytes]:
        """Begin, with so many threads in each process."""
        command = [sys.executable, "-m", "pytest", *self.words]
        if further := max(0, self.nice - os.nice(0)):  # `nice` counts from where this process is
            command = ["nice", "-n", str(further), *command]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)} | self.environment
        if self.log is None:
            return subprocess.Popen(command, env=environment)
        with self.log.open("wb") as log:
            return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)


def chain_from(name: str, needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the longest chain of names that begins with this one and in which each needs the one before it.

    >>> chain_from("a", {"a": (), "b": ("a",), "c": ("a",), "d": ("a", "c")})
    ['a', 'c', 'd']
    """
    behind = [chain_from(other, needs) for other, needed in needs.items() if name in needed]
    return [name, *max(behind, key=len, default=[])]


def choose(waiting: Sequence[Job], passed: set[str], running: int, at_once: int) -> Job | None:
    """Return the job to begin now: of those that lack nothing, the one with the longest chain behind it."""
    ready = [job for job in waiting if set(job.needs) <= passed]
    if not ready or running >= at_once:
        return None
    needs = {job.name: job.needs for job in waiting}
    return max(ready, key=lambda job: len(chain_from(job.name, needs)))


def count_threads(job: Job, others: Sequence[Job]) -> int:
    """Return the threads of a job, by what runs beside it or may come to.

    Two threads are worth less than two processes, so a job has every core only beside what gives way to it, and beside
    nothing with limits in seconds.
    """
    alone = all(other.nice > job.nice and not other.limited for other in others)
    return (psutil.cpu_count() or 1) if alone else 1


def run_jobs(jobs: Sequence[Job], at_once: int) -> list[str]:
    """Run jobs and say how each one ended, with its log where it failed.

    Args:
        jobs: each stands behind those that it needs.
        at_once: how many run at the same time.

    Returns:
        Names of those that failed, or did not begin because one that they need failed.
    """
    waiting, running, passed, failed = list(jobs), dict[int, tuple[Job, subprocess.Popen[bytes], float]](), set(), []
    while waiting or running:
        while job := choose(waiting, passed, len(running), at_once):
            waiting.remove(job)
            beside = [other for other, _, _ in running.values()]
            later = [other for other in waiting if at_once > 1 and job.name not in other.needs]
            process = job.start(count_threads(job, [*beside, *later]))
            running[process.pid] = (job, process, time.monotonic())
        if not running:  # what is left needs one that failed
            return failed + [job.name for job in waiting]
        number, status, used = os.wait4(-1, 0)
        if number not in running:
            continue
        job, process, began = running.pop(number)
        process.returncode = os.waitstatus_to_exitcode(status)
        told = f"{(time.monotonic() - began) / 60:.1f} min, {(used.ru_utime + used.ru_stime) / 60:.1f} of the processor"
        if process.returncode:
            failed.append(job.name)
            if job.log is not None:
                print(job.log.read_text(encoding="utf-8", errors="replace"))
        else:
            passed.add(job.name)
        print(f"{job.name}: {'failed' if process.returncode else 'passed'} ({told})", flush=True)
    return failed


def notebook_jobs(words: Sequence[str], scratch: Path) -> list[Job]:
    """Make a job of each notebook; they share a fresh run folder, so that no stage is skipped as finished."""
    runs, words = {"VOCABX_RUNS": str(scratch / "runs")}, [*words, "-p", "no:cacheprovider"]
    chain = max((chain_from(name, NEEDS) for name in NEEDS), key=len)
    return [
        Job(
            name,
            [*words, str(path)],
            scratch / f"{name}.log",
            NEEDS.get(name, ()),
            0 if name in chain else NOTEBOOK_NICE,
            environment=runs,
        )
        for name, path in find_notebooks().items()
    ]


def main() -> int:
    """Run everything; the status is 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unit", default="", metavar="WORDS", help="none: the notebooks alone")
    parser.add_argument("--nbval", required=True, metavar="WORDS")
    parser.add_argument("--one-by-one", action="store_true", help="for a machine of little memory")
    asked = parser.parse_args()
    free = psutil.virtual_memory().available / 1e9
    if not asked.one_by_one and free < GB:
        print(f"{free:.0f} GB of memory are free, and all at once takes up to {GB}: one after the other.", flush=True)
        asked.one_by_one = True
    with tempfile.TemporaryDirectory(prefix="vocabx-") as scratch:
        jobs = notebook_jobs(shlex.split(asked.nbval), Path(scratch))
        if asked.unit:
            jobs.insert(0, Job(UNIT, shlex.split(asked.unit), nice=UNIT_NICE, limited=True))
        at_once = 1 if asked.one_by_one else 2
        failed = run_jobs(jobs, at_once)
    print(f"{len(jobs)} jobs, {len(failed)} of them failed", *failed, sep="\n  ")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
