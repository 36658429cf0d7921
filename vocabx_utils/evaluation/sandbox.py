"""Run one program in the jail and judge it: fresh (a jail per program) or forked (a warm jail per worker)."""

from __future__ import annotations

import contextlib
import functools
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from vocabx_utils.evaluation import memory_group
from vocabx_utils.evaluation.jail import JailView, SandboxUnavailableError, find_bubblewrap
from vocabx_utils.evaluation.jailed import forkserver
from vocabx_utils.evaluation.jails import Ending, Jail, Program, WarmJail
from vocabx_utils.evaluation.outcomes import Outcome, expected_tests, judge

_START_ATTEMPTS = 3  # a jail that is dead before its job is replaced, and the job given to the new one
_TASKS_PER_JAIL = 100  # forked mode: what a task could leave in kernel objects lives no longer than this
_CALLS = {forkserver.RUN: "verdict_runner.run_job", forkserver.SERVE: "strict_candidate.serve_calls"}


@dataclass(frozen=True)
class Limits:
    """Resource limits of one program."""

    timeout_s: float = 10.0  # wall time in seconds
    # Address space of one process in MiB. Where there is a memory group, all processes and files of the program
    # together have this and `tmp_mb`, beside what the interpreter needs.
    memory_mb: int = 4096
    file_mb: int = 64  # largest file in MiB
    tmp_mb: int = 256  # all files together in MiB
    processes: int = 64  # and threads
    open_files: int = 256

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"the limit {name} must be positive, got {value}")

    def for_job(self) -> dict[str, float]:
        """Return the limits that the runner sets for itself; CPU time a little above the wall time."""
        return {**asdict(self), "cpu_s": int(self.timeout_s) + 2}


@dataclass(frozen=True)
class Strict:
    """Strict mode: the functions named are called in another process, which returns plain values only."""

    names: tuple[str, ...]  # functions of the solution that the test calls
    prelude: str = ""  # trusted code that defines what else the test needs, run in the trusted process


@dataclass(frozen=True)
class Task:
    """A program to run: `style` is `asserts`, `unittest` or `ds1000` (see `programs.build_program`)."""

    solution: str
    test: str
    style: str
    strict: Strict | None = None


class Sandbox:
    """Runs programs one after another; each worker has its own.

    Args:
        preload: modules to import once; with `forked` only.
        forked: keep one warm jail and fork in it for every program, instead of a fresh jail each.
    """

    def __init__(self, view: JailView, *, forked: bool = False, preload: tuple[str, ...] = ()) -> None:
        self.view, self.forked, self.preload = view, forked, preload
        self.bubblewrap = find_bubblewrap()
        self._warm: WarmJail | None = None
        self._tester: WarmJail | None = None
        self._group: memory_group.MemoryGroup | None = None

    def run(self, task: Task, limits: Limits | None = None) -> Outcome:
        """Run one program. One that did not report in time is a `timeout`, one that died a `crash`.

        A `SandboxUnavailableError` where no jail starts several times, a `ValueError` for a `unittest` without tests.
        """
        limits = limits or Limits()
        expected = expected_tests(task.test, task.style)
        nonce = secrets.token_hex(16)
        program = {"style": task.style, "solution": task.solution, "test": task.test}
        job = {"nonce": nonce, **program, "limits": limits.for_job()}
        ending = self._start_and_run(job, task, limits)
        outcome = judge(ending.report, nonce, expected, ending.seconds)
        if ending.expired:
            words = f"no report after {limits.timeout_s:g} s"
            outcome = replace(outcome, status="timeout", reason="", exception="", details={"ALL": words})
        # Whoever has reported is judged by the report, even if the kernel killed a helper of it.
        if ending.killed and (ending.expired or outcome.reason == "crash"):
            words = f"all processes and files together took more than {limits.memory_mb} MiB"
            outcome = replace(outcome, status="fail", reason="memory", exception="", details={"ALL": words})
        return outcome

    def _start_and_run(self, job: dict[str, Any], task: Task, limits: Limits) -> Ending:
        """Run a program; a jail that does not take it is no word about the program, so another one is tried."""
        for attempt in range(1, _START_ATTEMPTS + 1):
            warm = self.forked and attempt < _START_ATTEMPTS
            try:
                if task.strict is not None:
                    return self._run_strict(job, task.strict, limits, warm)
                with self._program(forkserver.RUN, limits, warm) as program:
                    return self._converse({program: job}, limits)
            except SandboxUnavailableError:
                self.close()  # the memory group, too: it may be what is gone
                if attempt == _START_ATTEMPTS:
                    raise
                time.sleep(0.1 * attempt)
        raise AssertionError("unreachable")

    def _converse(self, jobs: Mapping[Program, Mapping[str, Any]], limits: Limits) -> Ending:
        """Hand over the jobs in their order, and read the report of the first program."""
        kills = self._group.kills() if self._group else 0
        for program, job in jobs.items():
            program.hand_over(job)
        reporting, *candidate = jobs
        ending = reporting.listen(limits.timeout_s, *candidate)
        return replace(ending, killed=self._group is not None and self._group.kills() > kills)

    def _run_strict(self, job: dict[str, Any], strict: Strict, limits: Limits, warm: bool) -> Ending:
        """Run the test in a process of its own; it is trusted, so its jail may serve many programs."""
        names = {"names": list(strict.names), "prelude": strict.prelude}
        trusted = {**job, "solution": "", "strict": names}
        tester_end, candidate_end = socket.socketpair()
        with tester_end, candidate_end, self._program(forkserver.SERVE, limits, warm, candidate_end) as candidate:
            self._tester = self._ready(self._tester, grouped=False)
            with self._tester.program(forkserver.RUN, tester_end) as tester:
                tester_end.close()
                # The candidate begins last: what it spends before the clock runs counts for its processor time alone,
                # and where the tester was slow to come an endless loop looked like a crash.
                served = {"solution": job["solution"], "limits": job["limits"]}
                return self._converse({tester: trusted, candidate: served}, limits)

    @contextlib.contextmanager
    def _program(
        self, command: bytes, limits: Limits, warm: bool, calls: socket.socket | None = None
    ) -> Iterator[Program]:
        """Start a program in a warm jail or in a fresh one; it waits for its job."""
        self._limit_memory(limits)
        if warm:
            self._warm = self._ready(self._warm, grouped=True, tmp_mb=limits.tmp_mb)
            with self._warm.program(command, calls) as program:
                yield program
            return
        with Program(command) as program:
            passed = program.passed(calls)
            call = f"jailed.{_CALLS[command]}({', '.join(map(str, passed))})"
            with self._jail(call, passed, tmp_mb=limits.tmp_mb) as jail:
                program.take_place(jail, jail.ended)
                yield program

    def _ready(self, warm: WarmJail | None, *, grouped: bool, tmp_mb: int = 256) -> WarmJail:
        """A warm jail that is alive: the given one, or a new one."""
        if warm is not None and warm.alive and warm.tasks < _TASKS_PER_JAIL:
            return warm
        if warm is not None:
            warm.close()
        return WarmJail(functools.partial(self._jail, tmp_mb=tmp_mb, grouped=grouped), self.preload)

    def _jail(self, call: str, descriptors: Sequence[int], *, tmp_mb: int, grouped: bool = True) -> Jail:
        """Start a jail; where `grouped`, its memory counts for the group of this worker."""
        enter = self._enter_group if grouped else list
        return Jail(self.bubblewrap, self.view, call, descriptors, tmp_mb=tmp_mb, enter=enter)

    def _limit_memory(self, limits: Limits) -> None:
        if self._group is None and (parent := memory_group.group_parent()):
            with contextlib.suppress(OSError):
                self._group = memory_group.MemoryGroup(parent)
        if self._group is not None:
            with contextlib.suppress(OSError):  # a warm jail that holds more than a lower limit keeps the old one
                self._group.limit(self._memory(limits.memory_mb, limits.tmp_mb))

    def _memory(self, memory_mb: int, tmp_mb: int) -> int:
        return memory_mb + tmp_mb + memory_group.SERVER_MB

    def _enter_group(self, command: list[str]) -> list[str]:
        """The command of a jail, put under the memory limit of this worker where there is a way to."""
        if self._group is not None:
            return self._group.enter(command)
        limits = Limits()
        if memory_group.systemd_scopes():
            return memory_group.in_scope(command, self._memory(limits.memory_mb, limits.tmp_mb))
        return command

    def close(self) -> None:
        """End the warm jails, and remove the memory group."""
        for warm in (self._warm, self._tester):
            if warm is not None:
                warm.close()
        self._warm = self._tester = None
        if self._group is not None:
            self._group.close()
            self._group = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
