"""Run one program in the jail and judge it: fresh (a jail per program) or forked (a warm jail per worker)."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import select
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any

from vocabx_utils.evaluation import memory_group
from vocabx_utils.evaluation.jail import (
    JailFiles,
    JailUser,
    JailView,
    SandboxUnavailableError,
    find_bubblewrap,
    jail_command,
    start_hint,
)
from vocabx_utils.evaluation.jailed import forkserver, protocol, syscalls
from vocabx_utils.evaluation.verdicts import REPORT_LIMIT, Verdict, expected_tests, judge

START_SECONDS = 60.0  # a jail that has not accepted its job by then did not start
START_ATTEMPTS = 3  # a jail that is dead before its job is replaced, and the job given to the new one
GRACE_SECONDS = 20.0  # until everything in a killed jail is gone
CLEAN_SECONDS = 3.0  # for a warm jail to clear up; one that needs longer is replaced
TASKS_PER_JAIL = 100  # forked mode: what a task could leave in kernel objects lives no longer than this
_CALLS = {forkserver.RUN: "verdict_runner.run_job", forkserver.SERVE: "strict_candidate.serve_calls"}


@dataclass(frozen=True)
class Limits:
    """Resource limits of one program.

    Attributes:
        timeout_s: Wall time in seconds.
        memory_mb: Address space of one process in MiB. Where there is a memory group, all processes and files of
            the program together have this and ``tmp_mb``, beside what the interpreter needs.
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
    """What came of one program: its report, whether time ran out, whether the kernel killed for lack of memory."""

    report: bytes
    expired: bool
    seconds: float
    killed: bool = False


class Sandbox:
    """Runs programs one after another; each worker has its own.

    Args:
        view: What the jail shows of the host.
        preload: Modules to import once; with ``forked`` only.
        forked: Keep one warm jail and fork in it for every program, instead of a fresh jail each.

    Raises:
        SandboxUnavailableError: There is no bubblewrap.
    """

    def __init__(self, view: JailView, *, forked: bool = False, preload: tuple[str, ...] = ()) -> None:
        self.view, self.forked, self.preload = view, forked, preload
        self.bubblewrap = find_bubblewrap()
        self._warm: _WarmJail | None = None
        self._tester: _WarmJail | None = None
        self._group: memory_group.MemoryGroup | None = None

    def run(self, task: Task, limits: Limits | None = None) -> Verdict:
        """Run one program.

        Args:
            task: Solution, test and style.
            limits: Resource limits.

        Returns:
            The verdict. A program that did not report in time is a ``timeout``, one that died a ``crash``.

        Raises:
            SandboxUnavailableError: The jail itself did not start, several times in a row.
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
        outcome = self._start_and_run(job, task, limits)
        verdict = judge(outcome.report, nonce, expected, outcome.seconds)
        if outcome.expired:
            words = f"no report after {limits.timeout_s:g} s"
            verdict = replace(verdict, status="timeout", reason="", exception="", details={"ALL": words})
        # Whoever has reported is judged by the report, even if the kernel killed a helper of it.
        if outcome.killed and (outcome.expired or verdict.reason == "crash"):
            words = f"all processes and files together took more than {limits.memory_mb} MiB"
            verdict = replace(verdict, status="fail", reason="memory", exception="", details={"ALL": words})
        return verdict

    def _start_and_run(self, job: dict[str, Any], task: Task, limits: Limits) -> _Outcome:
        """Run a program; a jail that does not take it is no word about the program, so another one is tried."""
        for attempt in range(1, START_ATTEMPTS + 1):
            warm = self.forked and attempt < START_ATTEMPTS
            try:
                if task.strict is not None:
                    return self._run_strict(job, task.strict, limits, warm)
                with self._program(forkserver.RUN, limits, warm) as program:
                    return self._converse(program, job, limits)
            except SandboxUnavailableError:
                self.close()  # the memory group, too: it may be what is gone
                if attempt == START_ATTEMPTS:
                    raise
                time.sleep(0.1 * attempt)
        raise AssertionError("unreachable")

    def _converse(
        self, program: _Program, job: Mapping[str, Any], limits: Limits, candidate: _Program | None = None
    ) -> _Outcome:
        kills = self._group.kills() if self._group else 0
        outcome = program.converse(job, limits.timeout_s, candidate)
        return replace(outcome, killed=self._group is not None and self._group.kills() > kills)

    def _run_strict(self, job: dict[str, Any], strict: Strict, limits: Limits, warm: bool) -> _Outcome:
        """Run the test in a process of its own; it is trusted, so its jail may serve many programs."""
        names = {"names": list(strict.names), "prelude": strict.prelude}
        trusted = {**job, "solution": "", "strict": names}
        tester_end, candidate_end = socket.socketpair()
        with tester_end, candidate_end, self._program(forkserver.SERVE, limits, warm, candidate_end) as candidate:
            candidate.hand_over({"solution": job["solution"], "limits": job["limits"]})
            self._tester = self._ready(self._tester, grouped=False)
            with self._tester.program(forkserver.RUN, tester_end) as tester:
                tester_end.close()
                return self._converse(tester, trusted, limits, candidate)

    @contextlib.contextmanager
    def _program(
        self, command: bytes, limits: Limits, warm: bool, calls: socket.socket | None = None
    ) -> Iterator[_Program]:
        """Start a program in a warm jail or in a fresh one; it waits for its job."""
        self._limit_memory(limits)
        if warm:
            self._warm = self._ready(self._warm, grouped=True, tmp_mb=limits.tmp_mb)
            with self._warm.program(command, calls) as program:
                yield program
            return
        with _Program(command) as program:
            passed = program.passed(calls)
            call = f"jailed.{_CALLS[command]}({', '.join(map(str, passed))})"
            with _Jail(self, call, passed, tmp_mb=limits.tmp_mb) as jail:
                program.take_place(jail, jail.ended)
                yield program

    def _ready(self, warm: _WarmJail | None, *, grouped: bool, tmp_mb: int = 256) -> _WarmJail:
        """A warm jail that is alive: the given one, or a new one."""
        if warm is not None and warm.alive and warm.tasks < TASKS_PER_JAIL:
            return warm
        if warm is not None:
            warm.close()
        return _WarmJail(self, grouped=grouped, tmp_mb=tmp_mb)

    def _limit_memory(self, limits: Limits) -> None:
        if self._group is None and (parent := memory_group.group_parent()):
            with contextlib.suppress(OSError):
                self._group = memory_group.MemoryGroup(parent)
        if self._group is not None:
            with contextlib.suppress(OSError):  # a warm jail that holds more than a lower limit keeps the old one
                self._group.limit(self._memory(limits.memory_mb, limits.tmp_mb))

    def _memory(self, memory_mb: int, tmp_mb: int) -> int:
        return memory_mb + tmp_mb + memory_group.SERVER_MB

    def enter_group(self, command: list[str]) -> list[str]:
        """The command of a jail, put under the memory limit of this worker where there is a way to."""
        if self._group is not None:
            return self._group.enter(command)
        limits = Limits()
        if memory_group.systemd_scopes():
            return memory_group.in_scope(command, self._memory(limits.memory_mb, limits.tmp_mb))
        return command

    def _end_warm_jails(self) -> None:
        for warm in (self._warm, self._tester):
            if warm is not None:
                warm.close()
        self._warm = self._tester = None

    def close(self) -> None:
        """End the warm jails, and remove the memory group."""
        self._end_warm_jails()
        if self._group is not None:
            self._group.close()
            self._group = None

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Jail:
    """A running jail; leaving it ends it.

    Args:
        sandbox: Whose jail it is.
        call: Python expression that runs inside.
        descriptors: What it inherits.
        tmp_mb: Size of its `/tmp`.
        grouped: Whether its memory counts for the group of the worker.
    """

    def __init__(
        self, sandbox: Sandbox, call: str, descriptors: Sequence[int], *, tmp_mb: int, grouped: bool = True
    ) -> None:
        self._first: int | None = None
        user = JailUser.new()
        self._info, info = os.pipe()
        files = JailFiles(
            _file_of(user.passwd),
            _file_of(user.group),
            _file_of(syscalls.jail_filter()) if syscalls.supported() else None,
            info,
        )
        try:
            command = jail_command(sandbox.bubblewrap, sandbox.view, call, user, files, tmp_mb=tmp_mb)
            self._process = subprocess.Popen(
                sandbox.enter_group(command) if grouped else command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=[*descriptors, *files.descriptors()],
                env=memory_group.variables(),
            )
        except BaseException as error:
            os.close(self._info)
            if isinstance(error, OSError):
                raise SandboxUnavailableError(f"the jail did not start: {error}") from error
            raise
        finally:
            for descriptor in files.descriptors():
                os.close(descriptor)
        self.ended = os.pidfd_open(self._process.pid)

    def note_start(self) -> None:
        """Remember the first process inside, to be able to wait for its end; call this while the jail runs."""
        if self._first is None and select.select([self._info], [], [], 0)[0]:
            found = re.search(rb'"child-pid": (\d+)', os.read(self._info, 4096))
            with contextlib.suppress(OSError):
                self._first = os.pidfd_open(int(found.group(1))) if found else None

    def complaint(self) -> str:
        """What bubblewrap or the interpreter wrote before it gave up (at most 400 characters)."""
        stderr = self._process.stderr
        if stderr is None or stderr.closed or not select.select([stderr], [], [], 0.2)[0]:
            return "no message"
        return os.read(stderr.fileno(), 4096).decode(errors="replace").strip()[-400:] or "no message"

    def end(self) -> None:
        """Kill the jail: its first process dies with bubblewrap, and with that one, which is waited for, all others."""
        if self._process.returncode is not None:
            return
        self.note_start()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        if self._first is not None:
            select.select([self._first], [], [], GRACE_SECONDS)
            os.close(self._first)
        os.close(self._info)
        os.close(self.ended)
        if self._process.stderr:
            self._process.stderr.close()

    def __enter__(self) -> _Jail:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


class _Program:
    """The parent's side of one program: the channel of its job and the pipe of its report."""

    def __init__(self, command: bytes) -> None:
        self._channel, self._theirs = socket.socketpair()
        self._reading, writing = os.pipe()
        self._writing = os.fdopen(writing, "wb", buffering=0)
        self._reports = command == forkserver.RUN
        self._jail: _Jail | None = None
        self._ended = -1
        self._calls: socket.socket | None = None

    def passed(self, calls: socket.socket | None) -> list[int]:
        """The descriptors that the program gets."""
        self._calls = calls
        report = [self._writing.fileno()] if self._reports else []
        return [self._theirs.fileno(), *report, *([calls.fileno()] if calls else [])]

    def take_place(self, jail: _Jail, ended: int) -> None:
        """Note the jail that has the program, and the descriptor that becomes readable when it has ended."""
        self._jail, self._ended = jail, ended
        self._theirs.close()
        self._writing.close()

    def __enter__(self) -> _Program:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._reading)
        for end in (self._channel, self._theirs, self._writing):
            end.close()

    def hand_over(self, job: Mapping[str, Any]) -> None:
        """Send the job and wait until the program has it.

        Raises:
            SandboxUnavailableError: It did not confirm, so the candidate has not begun.
        """
        assert self._jail is not None
        self._channel.settimeout(START_SECONDS)
        try:
            protocol.send_message(self._channel, job)
            accepted = self._channel.recv(1) == protocol.ACCEPTED
        except OSError:
            accepted = False
        if not accepted:
            complaint = self._jail.complaint()
            raise SandboxUnavailableError(f"the jail did not start: {complaint}. {start_hint(complaint)}")
        self._jail.note_start()

    def hang_up(self) -> None:
        """Close the socket over which it is called, whoever else may still hold its end."""
        assert self._calls is not None
        with contextlib.suppress(OSError):
            self._calls.shutdown(socket.SHUT_RDWR)

    def converse(self, job: Mapping[str, Any], timeout_s: float, candidate: _Program | None = None) -> _Outcome:
        """Hand over the job, then read the report until it is complete, the program ends or time is over.

        In strict mode ``candidate`` is the program whose functions this one calls; when that one has ended, this one
        is told.
        """
        self.hand_over(job)
        begin = time.monotonic()
        frame = b""
        while not _complete(frame):
            left = begin + timeout_s - time.monotonic()
            watched = [self._reading, self._ended, *([candidate._ended] if candidate else [])]
            ready = select.select(watched, [], [], left)[0] if left > 0 else []
            if not ready:
                return _Outcome(b"", True, time.monotonic() - begin)
            if candidate and ready == [candidate._ended]:
                candidate.hang_up()
                candidate = None
                continue
            # Its end is looked at after its report: a program may end and leave a report to be read. The pipe's own
            # end is not waited for, since a descriptor can live on in the kernel for seconds.
            if self._reading not in ready and not select.select([self._reading], [], [], 0)[0]:
                break
            part = os.read(self._reading, 1 << 16)
            if not part:
                break
            frame += part
        return _Outcome(_body(frame), False, time.monotonic() - begin)


class _WarmJail:
    """A jail with a fork server in it."""

    def __init__(self, sandbox: Sandbox, *, grouped: bool, tmp_mb: int) -> None:
        self.tasks, self.alive = 0, True
        self._control, theirs = socket.socketpair()
        call = f"jailed.forkserver.serve({theirs.fileno()}, {list(sandbox.preload)!r})"
        try:
            self._jail = _Jail(sandbox, call, [theirs.fileno()], tmp_mb=tmp_mb, grouped=grouped)
        except BaseException:
            self._control.close()
            raise
        finally:
            theirs.close()
        if not self._says(forkserver.READY, START_SECONDS):
            complaint = self._jail.complaint()
            self.close()
            raise SandboxUnavailableError(f"the warm jail did not start: {complaint}. {start_hint(complaint)}")

    @contextlib.contextmanager
    def program(self, command: bytes, calls: socket.socket | None = None) -> Iterator[_Program]:
        """Start a program by a fork; leaving it ends the program and clears up after it."""
        self.tasks += 1
        with _Program(command) as program:
            try:
                socket.send_fds(self._control, [command], program.passed(calls))
            except OSError as error:
                self.close()
                raise SandboxUnavailableError(f"the warm jail is dead ({error})") from error
            program.take_place(self._jail, self._control.fileno())
            try:
                yield program
            finally:
                self._clear_up()

    def _clear_up(self) -> None:
        """Ask the server to end the program and to make its place clean; a jail where that fails is closed."""
        with contextlib.suppress(OSError):
            self._control.sendall(forkserver.END)
        if not self._says(forkserver.DONE, CLEAN_SECONDS):
            self.close()

    def _says(self, expected: bytes, seconds: float) -> bool:
        self._control.settimeout(seconds)
        try:
            return self._control.recv(1) == expected
        except OSError:
            return False

    def close(self) -> None:
        """End the jail."""
        self.alive = False
        self._jail.end()
        self._control.close()


def _file_of(content: bytes) -> int:
    """Descriptor from which ``content`` can be read."""
    descriptor = os.memfd_create("vocabx")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _complete(frame: bytes) -> bool:
    """Tell whether a report is there, or more bytes than one may have."""
    there = len(frame) - protocol.LENGTH_BYTES
    length = int.from_bytes(frame[: protocol.LENGTH_BYTES], "big")
    return there >= 0 and (length > REPORT_LIMIT or there >= length)


def _body(frame: bytes) -> bytes:
    """The report behind its length; what is not exactly one report becomes one that no judge can read."""
    length, body = frame[: protocol.LENGTH_BYTES], frame[protocol.LENGTH_BYTES :]
    whole = len(length) == protocol.LENGTH_BYTES and int.from_bytes(length, "big") == len(body)
    return body if whole or not frame else b"\0" + frame
