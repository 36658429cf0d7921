"""Run one program in the jail and judge it: fresh (a jail per program) or forked (a warm jail per worker)."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from vocabx_utils.evaluation.jail import INSTALL_HINT, JailView, SandboxUnavailableError, find_bubblewrap, jail_command
from vocabx_utils.evaluation.jailed import forkserver, protocol
from vocabx_utils.evaluation.verdicts import REPORT_LIMIT, Verdict, expected_tests, judge

START_SECONDS = 60.0  # a jail that has not accepted its job by then did not start
GRACE_SECONDS = 20.0  # until everything in a killed jail is gone
TASKS_PER_JAIL = 100  # forked mode: what a task could leave in kernel objects lives no longer than this


@dataclass(frozen=True)
class Limits:
    """Resource limits of one program.

    Attributes:
        timeout_s: Wall time in seconds.
        memory_mb: Address space of one process in MiB.
        file_mb: Largest file in MiB.
        tmp_mb: Size of all files together in MiB.
        processes: Processes and threads.
        open_files: Open files.
    """

    timeout_s: float = 10.0
    memory_mb: int = 4096
    file_mb: int = 64
    tmp_mb: int = 256
    processes: int = 64
    open_files: int = 256

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not value > 0:
                raise ValueError(f"the limit {name} must be positive, got {value}")

    def for_job(self) -> dict[str, float]:
        """The limits that the runner sets for itself; CPU time a little above the wall time."""
        return {**asdict(self), "cpu_s": int(self.timeout_s) + 2}


@dataclass(frozen=True)
class Strict:
    """Strict mode: the functions named are called in another process, which returns plain values only.

    Attributes:
        names: Functions of the solution that the test calls.
        prelude: Trusted code that defines what else the test needs, run in the trusted process.
    """

    names: tuple[str, ...]
    prelude: str = ""


@dataclass(frozen=True)
class Task:
    """A program to run: ``style`` is ``asserts``, ``unittest`` or ``ds1000`` (see `benchmarks.Program`)."""

    solution: str
    test: str
    style: str
    strict: Strict | None = None


@dataclass(frozen=True)
class _Outcome:
    report: bytes
    accepted: bool
    expired: bool
    seconds: float
    complaint: str = ""


class Sandbox:
    """Runs programs one after another; each worker has its own.

    Args:
        view: What the jail shows of the host.
        slot: Number of the worker.
        preload: Modules to import once; with ``forked`` only.
        forked: Keep one warm jail and fork in it for every program, instead of a fresh jail each.

    Raises:
        SandboxUnavailableError: There is no bubblewrap.
    """

    def __init__(self, view: JailView, *, slot: int = 0, forked: bool = False, preload: tuple[str, ...] = ()) -> None:
        self.view, self.slot, self.forked, self.preload = view, slot, forked, preload
        self.bubblewrap = find_bubblewrap()
        self._warm: _WarmJail | None = None

    def run(self, task: Task, limits: Limits | None = None) -> Verdict:
        """Run one program.

        Args:
            task: Solution, test and style.
            limits: Resource limits.

        Returns:
            The verdict. A program that did not report in time is a ``timeout``, one that died a ``crash``.

        Raises:
            SandboxUnavailableError: The jail itself did not start.
            ValueError: The test code of a ``unittest`` task defines no tests.
        """
        limits = limits or Limits()
        expected = expected_tests(task.test, task.style)
        nonce = secrets.token_hex(16)
        job = {
            "nonce": nonce,
            "style": task.style,
            "solution": task.solution,
            "test": task.test,
            "limits": limits.for_job(),
        }
        outcome = self._execute(job, task, limits)
        if not outcome.accepted:
            raise SandboxUnavailableError(f"the jail did not start: {outcome.complaint}. {INSTALL_HINT}")
        if outcome.expired:
            details = {"ALL": f"no report after {limits.timeout_s:g} s"}
            return Verdict("timeout", details=details, tests_expected=len(expected), seconds=outcome.seconds)
        return judge(outcome.report, nonce, expected, outcome.seconds)

    def _execute(self, job: dict[str, Any], task: Task, limits: Limits) -> _Outcome:
        if task.strict is not None:
            return self._run_strict(job, task.strict, limits)
        if not self.forked:
            return self._run_fresh("jailed.verdict_runner.run_job", job, limits)
        if self._warm is None or self._warm.tasks >= TASKS_PER_JAIL:
            self._start_warm(limits)
        assert self._warm is not None
        outcome = self._warm.run(job, limits)
        if outcome.expired or not outcome.report or not self._warm.alive:
            self.close()
        return outcome

    def _start_warm(self, limits: Limits) -> None:
        self.close()
        self._warm = _WarmJail(self, limits)

    def _run_fresh(
        self, function: str, job: dict[str, Any], limits: Limits, calls: socket.socket | None = None
    ) -> _Outcome:
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        extra = [calls.fileno()] if calls else []
        try:
            call = f"{function}({theirs.fileno()}, {writing})"
            process = self._start(call, limits, [theirs.fileno(), writing, *extra])
        finally:
            theirs.close()
            os.close(writing)
        with ours, process:
            try:
                return _converse(ours, reading, job, limits.timeout_s, process)
            finally:
                _end(process)
                _wait_for_silence(reading)

    def _run_strict(self, job: dict[str, Any], strict: Strict, limits: Limits) -> _Outcome:
        tester_end, candidate_end = socket.socketpair()
        names = {"names": list(strict.names), "prelude": strict.prelude}
        trusted = {**job, "solution": "", "strict": {**names, "calls_fd": tester_end.fileno()}}
        candidate = {"solution": job["solution"], "limits": job["limits"]}
        with tester_end, self._candidate(candidate, candidate_end, limits):
            return self._run_fresh("jailed.verdict_runner.run_job", trusted, limits, tester_end)

    @contextlib.contextmanager
    def _candidate(self, job: dict[str, Any], calls: socket.socket, limits: Limits) -> Iterator[None]:
        """Keep the candidate's process of strict mode; the other end of ``calls`` is with the trusted one."""
        ours, theirs = socket.socketpair()
        call = f"jailed.strict_candidate.serve_calls({theirs.fileno()}, {calls.fileno()})"
        process = self._start(call, limits, [theirs.fileno(), calls.fileno()])
        theirs.close()
        calls.close()
        with ours, process:
            try:
                _hand_over(ours, job)
                yield
            finally:
                _end(process)

    def _start(self, call: str, limits: Limits, descriptors: list[int]) -> subprocess.Popen[bytes]:
        command = jail_command(self.bubblewrap, self.view, call, slot=self.slot, tmp_mb=limits.tmp_mb)
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=descriptors,
            env={},
        )

    def close(self) -> None:
        """End the warm jail, if there is one."""
        if self._warm is not None:
            self._warm.close()
            self._warm = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _WarmJail:
    """A jail with a fork server in it."""

    def __init__(self, sandbox: Sandbox, limits: Limits) -> None:
        self.tasks, self.alive = 0, True
        self._control, theirs = socket.socketpair()
        call = f"jailed.forkserver.serve({theirs.fileno()}, {list(sandbox.preload)!r})"
        self._process = sandbox._start(call, limits, [theirs.fileno()])
        theirs.close()
        self._control.settimeout(START_SECONDS)
        if not self._signal(forkserver.READY):
            complaint = _complaint(self._process)
            self.close()
            raise SandboxUnavailableError(f"the warm jail did not start: {complaint}. {INSTALL_HINT}")

    def run(self, job: Mapping[str, Any], limits: Limits) -> _Outcome:
        self.tasks += 1
        ours, theirs = socket.socketpair()
        reading, writing = os.pipe()
        try:
            socket.send_fds(self._control, [b"t"], [theirs.fileno(), writing])
        except OSError:
            self.alive = False
        finally:
            theirs.close()
            os.close(writing)
        with ours:
            try:
                outcome = _converse(ours, reading, job, limits.timeout_s, self._process)
                if outcome.expired or not outcome.accepted:
                    _end(self._process)
                else:
                    self._control.settimeout(GRACE_SECONDS)
                    self.alive = self.alive and self._signal(forkserver.DONE)
                return outcome
            finally:
                if not self.alive:
                    _end(self._process)
                _wait_for_silence(reading)

    def _signal(self, expected: bytes) -> bool:
        try:
            return self._control.recv(1) == expected
        except OSError:
            return False

    def close(self) -> None:
        self._control.close()
        _end(self._process)
        if self._process.stderr:
            self._process.stderr.close()


def _hand_over(channel: socket.socket, job: Mapping[str, Any]) -> bool:
    """Send the job; tell whether the runner confirmed it."""
    channel.settimeout(START_SECONDS)
    try:
        protocol.send_message(channel, job)
        return channel.recv(1) == protocol.ACCEPTED
    except OSError:
        return False


def _converse(
    channel: socket.socket,
    reading: int,
    job: Mapping[str, Any],
    timeout_s: float,
    process: subprocess.Popen[bytes],
) -> _Outcome:
    """Hand over the job, then read the report until its end, the deadline or too many bytes."""
    if not _hand_over(channel, job):
        _end(process)
        return _Outcome(b"", False, False, 0.0, _complaint(process))
    begin = time.monotonic()
    report = b""
    while len(report) <= REPORT_LIMIT:
        left = begin + timeout_s - time.monotonic()
        if left <= 0 or not select.select([reading], [], [], left)[0]:
            return _Outcome(report, True, True, time.monotonic() - begin)
        part = os.read(reading, 1 << 16)
        if not part:
            break
        report += part
    return _Outcome(report, True, False, time.monotonic() - begin)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the jail: its first process dies with bubblewrap, and all others with that one."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    process.wait()


def _wait_for_silence(reading: int) -> None:
    """Wait until no process holds the verdict pipe any more: then all that ran in the jail is gone.

    Raises:
        SandboxUnavailableError: Something survived.
    """
    deadline = time.monotonic() + GRACE_SECONDS
    try:
        while (left := deadline - time.monotonic()) > 0:
            if select.select([reading], [], [], left)[0] and not os.read(reading, 1 << 16):
                return
    finally:
        os.close(reading)
    raise SandboxUnavailableError("a process survived the end of its jail; nothing more is executed")


def _complaint(process: subprocess.Popen[bytes]) -> str:
    """What bubblewrap or the interpreter wrote before it gave up (at most 400 characters)."""
    if process.stderr is None or not select.select([process.stderr], [], [], 0.2)[0]:
        return "no message"
    return os.read(process.stderr.fileno(), 4096).decode(errors="replace").strip()[-400:] or "no message"
