"""Fast mode: one warm process in the jail, a fork for every task.

The server sees neither programs nor nonces: it receives the two descriptors of a task, forks, and the child
reads the job. After each task everything else in the jail is killed and its writable folders are emptied.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import shutil
import signal
import socket
import sys
import time
from pathlib import Path

from . import protocol, verdict_runner

READY = b"r"
DONE = b"d"
_PR_SET_DUMPABLE = 4
_WRITABLE = (Path("/tmp"), Path("/dev/shm"))


def serve(control_fd: int, modules: list[str]) -> None:
    """Import ``modules``, then fork one child per pair of descriptors until the control socket closes."""
    control = socket.socket(fileno=control_fd)
    # Not dumpable: a child of the same user may not trace the server or take its descriptors.
    _set_dumpable(False)
    protocol.enter_work_folder()
    _import(modules)
    mounts = _mounts()
    control.sendall(READY)
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1, 2)
        if not data:
            os._exit(0)
        child = os.fork()
        if child == 0:
            control.close()
            _set_dumpable(True)
            os.setsid()
            _reseed()
            verdict_runner.run_job(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        os.waitpid(child, 0)
        if not (_kill_others() and _empty_folders(mounts)):
            os._exit(1)  # the parent starts a new jail
        protocol.enter_work_folder()
        control.sendall(DONE)


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
    """Kill whatever the task left in this pid namespace; tell whether nothing is left."""
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            return True
        time.sleep(0.001)
    return False


def _mounts() -> list[Path]:
    """Mount points in the jail: an interpreter that lives below the host's /tmp is shown there, read-only."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [Path(line.split()[4].replace("\\040", " ")) for line in lines]


def _empty_folders(mounts: list[Path]) -> bool:
    return all([_empty(folder, mounts) for folder in _WRITABLE])


def _empty(folder: Path, mounts: list[Path]) -> bool:
    """Delete all in a folder but mount points and their parents; tell whether that worked."""
    clean = True
    for path in list(folder.iterdir()):
        if path in mounts:
            continue
        if any(path in mount.parents for mount in mounts):
            clean = _empty(path, mounts) and clean
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, onerror=_unlock)
            clean = clean and not path.exists()
        else:
            path.unlink()
    return clean


def _unlock(function: object, path: str, error: object) -> None:
    """Open the folder that a task has locked, and try again."""
    place = Path(path)
    with contextlib.suppress(OSError):
        place.parent.chmod(0o700)
        place.chmod(0o700)
        shutil.rmtree(place, ignore_errors=True) if place.is_dir() else place.unlink()
