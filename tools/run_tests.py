"""Run the unit tests and all notebooks against their stored outputs at the same time, as `make test` does.

python tools/run_tests.py --unit=WORDS --nbval=WORDS [--one-by-one]

WORDS are what follows `python -m pytest`. Each notebook is a process of its own that begins when those whose files it
reads have passed, two at a time, with one thread; what is left alone at the end has every core. The longest chain of
notebooks decides how long all of it takes, so the other notebooks and the unit tests give way to it.
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

# The lowest priority but one: beside the chain it gets 2 % of a core. At the lowest one (19), or in the idle class of
# Linux, tests of the sandbox could no longer see that a program has lowered the priority of others.
NICE = 18
GB = 10  # two notebooks of up to 4 GB beside two processes of unit tests of 1 GB
UNIT = "unit tests"


@dataclass
class Job:
    """One call of pytest."""

    name: str
    words: Sequence[str]
    log: Path | None = None  # where its output goes; none: shown at once
    needs: Sequence[str] = ()
    gives_way: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def start(self, threads: int = 1) -> subprocess.Popen[bytes]:
        """Begin, with so many threads in each process."""
        command = [sys.executable, "-m", "pytest", *self.words]
        if self.gives_way:
            command = ["nice", "-n", str(max(0, NICE - os.nice(0))), *command]  # counted from where this process is
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


def run_jobs(jobs: Sequence[Job], at_once: int) -> list[str]:
    """Run jobs and say how each one ended, with its log where it failed.

    Two threads of a notebook are worth less than two processes, and would starve what gives way, whose sandboxed
    programs have limits of seconds; so only a job that nothing runs beside or waits behind has every core.

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
            process = job.start(1 if running or waiting else psutil.cpu_count() or 1)
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
        Job(name, [*words, str(path)], scratch / f"{name}.log", NEEDS.get(name, ()), name not in chain, runs)
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
            jobs.insert(0, Job(UNIT, shlex.split(asked.unit), gives_way=True))
        at_once = 1 if asked.one_by_one else 2 + bool(asked.unit)
        failed = run_jobs(jobs, at_once)
    print(f"{len(jobs)} jobs, {len(failed)} of them failed", *failed, sep="\n  ")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
