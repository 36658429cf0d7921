"""Running jails, fresh and warm, and the parent's side of the conversation with the programs in them."""

from __future__ import annotations

import contextlib
import os
import re
import select
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vocabx_utils.evaluation import memory_group
from vocabx_utils.evaluation.jail import (
    Bubblewrap,
    JailFiles,
    JailUser,
    JailView,
    SandboxUnavailableError,
    jail_command,
    start_hint,
)
from vocabx_utils.evaluation.jailed import forkserver, protocol, syscalls
from vocabx_utils.evaluation.outcomes import REPORT_LIMIT

START_SECONDS = 60.0  # a jail that has not accepted its job by then did not start
_GRACE_SECONDS = 20.0  # until everything in a killed jail is gone
CLEAN_SECONDS = 3.0  # for a warm jail to clear up; one that needs longer is replaced


@dataclass(frozen=True)
class Ending:
    """What came of one program: its report, whether time ran out, whether the kernel killed for lack of memory."""

    report: bytes
    expired: bool
    seconds: float
    killed: bool = False


class Jail:
    """A running jail; leaving it ends it.

    Args:
        call: Python expression that runs inside.
        descriptors: what it inherits.
        tmp_mb: size of its `/tmp` in MiB.
        enter: puts its command under a limit on memory.
    """

    def __init__(
        self,
        bubblewrap: Bubblewrap,
        view: JailView,
        call: str,
        descriptors: Sequence[int],
        *,
        tmp_mb: int,
        enter: Callable[[list[str]], list[str]] = list,
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
            command = jail_command(bubblewrap, view, call, user, files, tmp_mb=tmp_mb)
            self._process = subprocess.Popen(
                enter(command),
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
        """Return what bubblewrap or the interpreter wrote before it gave up (at most 400 characters)."""
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
            select.select([self._first], [], [], _GRACE_SECONDS)
            os.close(self._first)
        os.close(self._info)
        os.close(self.ended)
        if self._process.stderr:
            self._process.stderr.close()

    def __enter__(self) -> Jail:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()


class Program:
    """The parent's side of one program: the channel of its job and the pipe of its report."""

    def __init__(self, command: bytes) -> None:
        self._channel, self._theirs = socket.socketpair()
        self._reading, writing = os.pipe()
        self._writing = os.fdopen(writing, "wb", buffering=0)
        self._reports = command == forkserver.RUN
        self._jail: Jail | None = None
        self._ended = -1
        self._calls: socket.socket | None = None

    def passed(self, calls: socket.socket | None) -> list[int]:
        """Return the descriptors that the program gets."""
        self._calls = calls
        report = [self._writing.fileno()] if self._reports else []
        return [self._theirs.fileno(), *report, *([calls.fileno()] if calls else [])]

    def take_place(self, jail: Jail, ended: int) -> None:
        """Note the jail that has the program, and the descriptor that becomes readable when it has ended."""
        self._jail, self._ended = jail, ended
        self._theirs.close()
        self._writing.close()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._reading)
        for end in (self._channel, self._theirs, self._writing):
            end.close()

    def hand_over(self, job: Mapping[str, Any]) -> None:
        """Send the job; a `SandboxUnavailableError` where it is not confirmed: the candidate has not begun."""
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

    def listen(self, timeout_s: float, candidate: Program | None = None) -> Ending:
        """Read the report of a job handed over until it is complete, the program ends or `timeout_s` are over.

        In strict mode `candidate` is the program whose functions this one calls; when that one has ended, this one
        is told.
        """
        begin = time.monotonic()
        frame = b""
        while not _complete(frame):
            left = begin + timeout_s - time.monotonic()
            watched = [self._reading, self._ended, *([candidate._ended] if candidate else [])]
            ready = select.select(watched, [], [], left)[0] if left > 0 else []
            if not ready:
                return Ending(b"", True, time.monotonic() - begin)
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
        return Ending(_body(frame), False, time.monotonic() - begin)


class WarmJail:
    """A jail with a fork server in it.

    Args:
        start: starts a jail from an expression and the descriptors that it inherits.
        preload: modules that the server imports once.
    """

    def __init__(self, start: Callable[[str, Sequence[int]], Jail], preload: tuple[str, ...]) -> None:
        self.tasks, self.alive = 0, True
        self._control, theirs = socket.socketpair()
        call = f"jailed.forkserver.serve({theirs.fileno()}, {list(preload)!r})"
        try:
            self._jail = start(call, [theirs.fileno()])
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
    def program(self, command: bytes, calls: socket.socket | None = None) -> Iterator[Program]:
        """Start a program by a fork; leaving it ends the program and clears up after it."""
        self.tasks += 1
        with Program(command) as program:
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
    """Descriptor from which `content` can be read."""
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
