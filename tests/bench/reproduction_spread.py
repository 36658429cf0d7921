"""Arms beside each other: `pilot` and `run` on all visible cards, with `--processes` of them on each card.

The parent makes no model. It starts what is missing in the order of `run`, a process an arm and seed (or a way of the
pilot), which is the same command line for this one alone and writes into RESULTS/parts/<arm>-s<seed>. When it ends,
the parent takes its lines and answers over, each once, and removes the part. A parent that was killed has ended its
processes with it; the next one takes over what their parts hold, finished or not, and starts what is still missing.
A process that fails is started once more, where fewer run beside it (they may have filled the card); if it fails
again it is left out, its log stays in RESULTS/parts, and the exit status is 1.
With `--processes 1` and no more than one card nothing is started: arms follow each other in this process.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import reproduction_pilot as piloting
import reproduction_run as running
from bench_parts import known_lines, seconds_left
from reproduction_arms import Settings
from reproduction_pilot import folder_of
from reproduction_run import place_of

from vocabx_utils import files
from vocabx_utils.cli.cards import VISIBLE, visible_cards
from vocabx_utils.locks import writing

_SCRIPT = Path(__file__).with_name("reproduction.py")
_READ = ("settings.json", "metrics.jsonl", "answers.jsonl", "pilot.jsonl")  # what a process has to know of RESULTS
_WRITTEN = ("rows", "bits", "observed", "answers", "pilot", "metrics")


@dataclass
class Job:
    """What one process does."""

    name: str  # of its part
    words: Sequence[str]  # behind those of the parent
    lacks: Callable[[], Sequence[str]]  # what RESULTS does not hold of it yet
    rows: str = ""  # the file of rows that it makes, or finds


@dataclass
class Child:
    """A job that runs."""

    job: Job
    card: str
    process: subprocess.Popen[bytes]
    began: float


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of what can be spread."""
    told = "arms at a time on each visible card, or on the processor"
    command.add_argument("--processes", type=int, default=1, choices=range(1, 33), metavar="K", help=told)
    command.add_argument("--child", action="store_true", help=argparse.SUPPRESS)  # one of them, started by the parent


def run(options: argparse.Namespace) -> None:
    """Measure arms, beside each other where they may be."""
    _spread(options, _arms, running.run)


def pilot(options: argparse.Namespace) -> None:
    """Measure ways of the pilot, beside each other where they may be."""
    _spread(options, _ways, piloting.pilot)


def _arms(options: argparse.Namespace) -> list[Job]:
    running.refuse_other_settings(options)
    settings = Settings.read(options.results, options.set)
    return [
        Job(
            place_of(arm, seed), ("--arms", arm.name, "--seeds", str(seed)),
            lambda arm=arm, seed=seed: running.missing(options, arm, seed),
            running.rows_file(arm, settings, seed) if arm.start != "base" else "",
        )
        for arm, seed in running.asked(options)
    ]  # fmt: skip


def _ways(options: argparse.Namespace) -> list[Job]:
    return [
        Job(
            f"pilot-{folder_of(way)}", ("--sweep", way),
            lambda way=way: ["all of its answers"] if way in piloting.ways_left(options) else [],
        )
        for way in piloting.ways_left(options)
    ]  # fmt: skip


def _spread(
    options: argparse.Namespace,
    jobs: Callable[[argparse.Namespace], Sequence[Job]],
    alone: Callable[[argparse.Namespace], None],
) -> None:
    if options.child:
        alone(options)
        return
    parts = options.results / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    try:
        with writing(parts / "all"):
            for part in sorted(path for path in parts.iterdir() if path.is_dir()):
                _take_over(part, options.results)
                _log(part).unlink(missing_ok=True)
                print(f"{part.name}: taken over from a run that was ended", flush=True)
            cards = visible_cards() or [""]
            if len(cards) * options.processes > 1:
                Spread(options, [job for job in jobs(options) if job.lacks()], cards).run()
            else:
                alone(options)
    finally:
        if not any(parts.iterdir()):
            parts.rmdir()


class Spread:
    """The parent: what waits, what runs, what has failed."""

    def __init__(self, options: argparse.Namespace, jobs: Sequence[Job], cards: Sequence[str]) -> None:
        self.options, self.cards, self.places = options, cards, len(cards) * options.processes
        self.waiting, self.running = list(jobs), list[Child]()
        self.seconds: list[float] = []  # of those that ended well
        self.fewer: dict[str, int] = {}  # of a job that failed once: it starts where fewer than these run
        self.failed: list[str] = []

    def run(self) -> None:
        """Start and take over until nothing is left, or no time."""
        print(f"{len(self.waiting)} to do, {self.places} at a time", flush=True)
        while self.waiting or self.running:
            while found := self._next():
                self._start(*found)
            time.sleep(0.2)
            for child in [child for child in self.running if child.process.poll() is not None]:
                self._end(child)
        if self.failed:
            raise SystemExit(f"failed twice: {', '.join(self.failed)}; see {self.options.results / 'parts'}")

    def _on(self, card: str) -> int:
        return sum(child.card == card for child in self.running)

    def _next(self) -> tuple[Job, str] | None:
        """The job that can start now, and its card."""
        card = min(self.cards, key=self._on)
        beside, most = self._on(card), self.options.processes
        ready = [job for job in self.waiting if beside < self.fewer.get(job.name, most) and not self._waits_for(job)]
        if beside >= most or not ready:
            return None
        if seconds_left(self.options.started, self.options.minutes) < 1.2 * max(self.seconds, default=0):
            print(f"{len(self.waiting)} are left out, from {self.waiting[0].name} on: no time", flush=True)
            self.waiting.clear()
            return None
        return ready[0], card

    def _waits_for(self, job: Job) -> bool:
        """Whether the rows of its start are being made: they are not made twice."""
        if not job.rows or all(child.job.rows != job.rows for child in self.running):
            return False
        return not any((folder / job.rows).exists() for folder in self.options.rows)

    def _start(self, job: Job, card: str) -> None:
        self.waiting.remove(job)
        part = _make_part(job, self.options.results)
        minutes = seconds_left(self.options.started, self.options.minutes) / 60
        command = [sys.executable, str(_SCRIPT), *self.options.words, *job.words]
        command += ["--results", str(part), "--minutes", f"{minutes:.2f}", "--child"]
        threads = str(max(1, (os.cpu_count() or 1) // self.places))
        environment = {"OMP_NUM_THREADS": threads} | os.environ | ({VISIBLE: card} if card else {})
        with _log(part).open("wb") as log:
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(command, env=environment, preexec_fn=end_with_parent, **streams)
        self.running.append(Child(job, card, process, time.perf_counter()))
        print(f"{job.name} starts{_place(card)}; {self._left()}", flush=True)

    def _end(self, child: Child) -> None:
        self.running.remove(child)
        job, seconds = child.job, time.perf_counter() - child.began
        part = self.options.results / "parts" / job.name
        _take_over(part, self.options.results)
        told = f"{job.name} ends{_place(child.card)}, {seconds:.0f} s"
        if child.process.returncode == 0:
            self.seconds.append(seconds)
            _log(part).unlink()
            lacking = job.lacks()
            told += f", without {', '.join(lacking)}: no time" if lacking else ""
        else:
            told += f", exit status {child.process.returncode}, {_last_line(_log(part)) or 'nothing said'}"
            if job.name in self.fewer:
                self.failed.append(job.name)
                told += "; it failed twice and is left out"
            else:
                self.fewer[job.name] = max(1, self._on(child.card))
                self.waiting.append(job)
                told += "; it will be started once more"
        print(f"{told}; {self._left()}", flush=True)

    def _left(self) -> str:
        """How many are left, and when they will have ended at the pace so far."""
        left = f"{len(self.running)} run, {len(self.waiting)} wait"
        if not self.seconds:
            return left
        usual, now = sum(self.seconds) / len(self.seconds), time.perf_counter()
        rest = max((child.began + usual - now for child in self.running), default=0.0)
        seconds = max(rest, 0) + usual * len(self.waiting) / self.places
        return f"{left}, projected end {datetime.datetime.now() + datetime.timedelta(seconds=seconds):%H:%M:%S}"


def end_with_parent() -> None:
    """In a new process: the kernel ends it when its parent ends, killed or not."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


# --- parts ----------------------------------------------------------------------------------------------------------


def _make_part(job: Job, results: Path) -> Path:
    """The folder that a process writes into, with what it has to know of RESULTS."""
    part, answers = results / "parts" / job.name, results / "answers" / job.name
    part.mkdir(parents=True)
    for name in _READ:
        if (results / name).exists():
            shutil.copy2(results / name, part)
    if answers.exists():
        shutil.copytree(answers, part / "answers" / job.name)
    return part


def _take_over(part: Path, results: Path) -> None:
    """Add what a part holds to RESULTS, each line once, and remove it; what was broken off is left out."""
    answered = [f"{row['arm']}-s{row['seed']}/{row['benchmark']}" for row in known_lines(part / "answers.jsonl")]
    for row in known_lines(part / "pilot.jsonl"):
        answered += [f"pilot/{folder_of(row['setting'])}/{found['benchmark']}" for found in row["answers"]]
    for name in answered:
        source, target = (folder / "answers" / f"{name}.jsonl.gz" for folder in (part, results))
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            source.replace(target)
    finished = {(row["arm"], row["seed"]) for row in known_lines(part / "metrics.jsonl")}
    for name in _WRITTEN:
        known = {files.digest(row) for row in known_lines(results / f"{name}.jsonl")}
        for row in known_lines(part / f"{name}.jsonl"):
            broken_off = name in ("bits", "observed") and (row["arm"], row["seed"]) not in finished
            if files.digest(row) not in known and not broken_off:
                files.append_jsonl(results / f"{name}.jsonl", row)
    shutil.rmtree(part)


def _log(part: Path) -> Path:
    return part.with_name(f"{part.name}.log")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def _place(card: str) -> str:
    return f" on card {card}" if card else ""
