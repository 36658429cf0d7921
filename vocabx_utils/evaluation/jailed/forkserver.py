"""Fast mode: one warm process in the jail, a fork for every task.

The server sees neither programs nor nonces: it receives the descriptors of a task, forks, and the child reads the
job. After each task everything else in the jail is killed, its writable folders are emptied, and the server looks
whether it is itself still as it was when it began; if anything is not as it should be, it ends, and the parent
starts a new jail.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import protocol, strict_candidate, syscalls, verdict_runner

READY, DONE = b"r", b"d"  # said by the server
RUN, SERVE, END = b"t", b"c", b"e"  # told to it: run a test, serve the calls of a test elsewhere, end the program
_FUNCTIONS: dict[bytes, Callable[..., None]] = {RUN: verdict_runner.run_job, SERVE: strict_candidate.serve_calls}
_DESCRIPTORS = 3  # most that a program gets: job, verdict, calls
_PR_SET_DUMPABLE = 4
_WRITABLE = ("/tmp", "/dev/shm")
_LIMITS = sorted(value for name, value in vars(resource).items() if name.startswith("RLIMIT_"))
_PROTECTED = 60  # threads of the server that a filter can hold


def serve(control_fd: int, modules: list[str]) -> None:
    """Import ``modules``, then fork one child per set of descriptors until the control socket closes."""
    control = socket.socket(fileno=control_fd)
    # Not dumpable: a child of the same user may not trace the server or take its descriptors.
    _set_dumpable(False)
    protocol.enter_work_folder()
    _import(modules)
    kept, state, fence = _kept_places(), _state(), _fence()
    control.sendall(READY)
    while True:
        command, descriptors, _, _ = socket.recv_fds(control, 1, _DESCRIPTORS)
        if not command:
            os._exit(0)
        if command == END:  # of a program that had ended by itself
            continue
        child = os.fork()
        if child == 0:
            control.close()
            _become_program(fence)
            _FUNCTIONS[command](*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        _wait(child, control)
        if not (_kill_others() and _empty_folders(kept) and _state() == state):
            os._exit(1)  # the parent starts a new jail
        protocol.enter_work_folder()
        control.sendall(DONE)


def _become_program(fence: bytes) -> None:
    _set_dumpable(True)
    os.setsid()
    with contextlib.suppress(OSError):  # where memory runs out, this process goes and not the server
        Path("/proc/self/oom_score_adj").write_text("1000")
    if fence:
        syscalls.load_filter(fence)
    _reseed()


def _wait(child: int, control: socket.socket) -> None:
    """Wait until the child has ended or the parent wants it to."""
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, control.fileno()], [], [])[0] and control.recv(1) != END:
        os._exit(0)
    os.close(ended)


def _state() -> list[Any]:
    """What another process of the same user could change of this one, and what a task could leave in the kernel."""
    limits = [resource.getrlimit(which) for which in _LIMITS]
    scheduling = [os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0), os.sched_getparam(0).sched_priority]
    objects = [len(file.read_text().splitlines()) for file in sorted(Path("/proc/sysvipc").glob("*"))]
    return [limits, scheduling, sorted(os.sched_getaffinity(0)), objects]


def _fence() -> bytes:
    """The filter that keeps a child from reaching this process, empty where there is none for this machine."""
    threads = [int(folder.name) for folder in Path("/proc/self/task").iterdir()]
    return syscalls.child_filter([1, *threads][:_PROTECTED], [os.getpgrp()]) if syscalls.supported() else b""


def _set_dumpable(value: bool) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, int(value), 0, 0, 0)


def _import(modules: list[str]) -> None:
    saved = os.dup(2)
    protocol.silence()
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    os.dup2(saved, 2)
    os.close(saved)


def _reseed() -> None:
    """Give the child its own random state, as a fresh process would have (`random` reseeds itself)."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()


def _kill_others() -> bool:
    """Kill and reap whatever the task left in this pid namespace; tell whether nothing is left."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return True
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.001)
    return False


def _kept_places() -> set[str]:
    """Mount points and what is above them: an interpreter that lives below the host's /tmp is shown there."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = [Path(line.split()[4].replace("\\040", " ")) for line in lines]
    return {str(place) for mount in mounts for place in (mount, *mount.parents)}


def _empty_folders(kept: set[str]) -> bool:
    """Delete all in the writable folders but the places that are kept; tell whether that worked."""
    try:
        for folder in _WRITABLE:
            _empty(folder, kept)
    except OSError:
        return False
    return True


def _empty(folder: str, kept: set[str]) -> None:
    """Delete by a list and not by recursion: a task may leave folders deeper than any stack, and locked ones."""
    waiting, emptied = [folder], []
    while waiting:
        place = waiting.pop()
        if place not in kept:
            Path(place).chmod(0o700)
            emptied.append(place)
        with os.scandir(place) as found:
            entries = list(found)
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                if entry.path not in kept:
                    Path(entry.path).unlink()
            elif entry.path not in kept or _writable(entry.path):
                waiting.append(entry.path)
    for place in reversed(emptied):
        Path(place).rmdir()


def _writable(place: str) -> bool:
    """Tell whether a kept folder belongs to the jail's own file systems; one of the host is shown read-only."""
    return not os.statvfs(place).f_flag & os.ST_RDONLY
