"""The jail's side of the protocol: take a job, confirm it, prepare the process, give a verdict.

A job is JSON behind eight bytes of length, read from a socket. One byte confirms that the runner has it, so
that the parent can tell a jail that did not start from a candidate that died. The verdict is one JSON document
behind its length, on a pipe of its own, whose end nobody has to wait for.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

ACCEPTED = b"k"
LENGTH_BYTES = 8
WORK_FOLDER = Path("/tmp/w")
MATPLOTLIB_SEED = Path("/run/vocabx/matplotlib")
_MIB = 1 << 20


def receive_exactly(channel: socket.socket, count: int) -> bytes:
    """Read ``count`` bytes.

    Raises:
        EOFError: the other side closed first.
    """
    parts = []
    while count:
        part = channel.recv(min(count, _MIB))
        if not part:
            raise EOFError("the channel was closed inside a message")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def receive_message(channel: socket.socket, limit: int = 64 * _MIB) -> Any:
    """Read one JSON message behind its length.

    Raises:
        EOFError: the other side closed first.
        ValueError: the message is longer than ``limit`` bytes or is not JSON.
    """
    length = int.from_bytes(receive_exactly(channel, LENGTH_BYTES), "big")
    if length > limit:
        raise ValueError(f"a message of {length} bytes; at most {limit} are accepted")
    return json.loads(receive_exactly(channel, length))


def send_message(channel: socket.socket, value: Any) -> None:
    """Write one JSON message behind its length."""
    channel.sendall(_frame(value))


def _frame(value: Any) -> bytes:
    body = json.dumps(value).encode()
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def accept_job(job_fd: int) -> tuple[dict[str, Any], Callable[[], None]]:
    """Read the job.

    Args:
        job_fd: descriptor of the job socket.

    Returns:
        The job, and a function that confirms it and closes the socket. Call it last before the candidate.
    """
    channel = socket.socket(fileno=job_fd)
    job = receive_message(channel)

    def confirm() -> None:
        channel.sendall(ACCEPTED)
        channel.close()

    return job, confirm


def silence() -> None:
    """Point standard input, output and error at /dev/null: what a candidate prints is nobody's concern."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    os.close(null)


def enter_work_folder() -> None:
    """Make the private working folder, the home of the candidate, and enter it."""
    WORK_FOLDER.mkdir(parents=True, exist_ok=True)
    os.chdir(WORK_FOLDER)
    if MATPLOTLIB_SEED.is_dir():  # a ready font list saves matplotlib a second in every fresh process
        shutil.copytree(MATPLOTLIB_SEED, os.environ["MPLCONFIGDIR"], dirs_exist_ok=True)


def apply_limits(limits: dict[str, float]) -> None:
    """Lower the resource limits of this process and its children for good."""
    cpu = int(limits["cpu_s"])
    _lower(resource.RLIMIT_AS, int(limits["memory_mb"]) * _MIB)
    _lower(resource.RLIMIT_CPU, cpu, cpu + 1)
    _lower(resource.RLIMIT_FSIZE, int(limits["file_mb"]) * _MIB)
    _lower(resource.RLIMIT_NPROC, int(limits["processes"]))
    _lower(resource.RLIMIT_NOFILE, int(limits["open_files"]))
    _lower(resource.RLIMIT_CORE, 0)


def _lower(which: int, soft: int, hard: int | None = None) -> None:
    ceiling = resource.getrlimit(which)[1]
    wanted = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        wanted, soft = min(wanted, ceiling), min(soft, ceiling)
    resource.setrlimit(which, (soft, wanted))


def give_verdict(verdict_fd: int, verdict: dict[str, Any]) -> None:
    """Write the verdict and end the process at once: no exit handler, no thread may delay or follow it."""
    frame = memoryview(_frame(verdict))
    with contextlib.suppress(OSError):
        while frame:
            frame = frame[os.write(verdict_fd, frame) :]
    os._exit(0)


def peak_memory_mb() -> int:
    """Peak resident memory of this process in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def cpu_seconds() -> float:
    """CPU time of this process and of its children that ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
