"""One writer at a time: a lock beside a folder or file, with the process that holds it.

The lock is the kernel's (`flock`), so it ends with its process, killed or not: what a dead process left behind is
taken over without asking. The file that carries it names host and process for the message.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import platform
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

from vocabx_utils.paths import runs_root, show_path

try:
    import fcntl
except ImportError:  # Windows: no lock, as before
    fcntl = None  # type: ignore[assignment]


_held: dict[Path, tuple[int, int]] = {}  # lock file to process id and descriptor


class BusyError(RuntimeError):
    """Another process works in the same place."""


def lock_path(place: Path) -> Path:
    """Return the lock file of a folder or file: hidden, beside it, so that the folder holds results only."""
    place = Path(place).resolve()
    return place.parent / f".{place.name[:200]}.lock"


def hold(place: Path, *, wait: float = 0) -> bool:
    """Take the lock of a folder or file until `release`, or until this process ends.

    Another process is waited for at most `wait` seconds; then BusyError names it. False if this process held the lock.
    """
    path = lock_path(place)
    if fcntl is None or _held.get(path, (0, 0))[0] == os.getpid():
        return False
    end = time.monotonic() + wait
    path.parent.mkdir(parents=True, exist_ok=True)
    while (descriptor := _try(path)) is None:
        if path.exists() and time.monotonic() >= end:
            raise BusyError(f"{show_path(Path(place))} is being written by {_holder(path)}. {_advice(path)}")
        time.sleep(0.05)
    _held[path] = os.getpid(), descriptor
    return True


def _try(path: Path) -> int | None:
    """Open and lock a lock file; None if another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:  # a file system without locks
        warnings.warn(f"{path.parent} cannot be locked ({error.strerror}): start one writer only.", stacklevel=4)
    if not _is_open(path, descriptor):  # its holder removed it in between
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps({"host": platform.node(), "process": os.getpid()}).encode())
    return descriptor


def _is_open(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False


def _advice(path: Path) -> str:
    if path.is_relative_to(runs_root().resolve()):
        return "Wait until that ends (or close that notebook's kernel), or choose another run name."
    return "Wait until that ends, or give another folder."


def _holder(path: Path) -> str:
    with contextlib.suppress(OSError, ValueError, KeyError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return f"process {found['process']} on {found['host']}"
    return "another process"


def release(place: Path) -> None:
    """Give up the lock of a folder or file; nothing happens if this process does not hold it."""
    _release(lock_path(place))


def _release(path: Path) -> None:
    if _held.get(path, (0, 0))[0] != os.getpid():
        return
    _, descriptor = _held.pop(path)
    path.unlink(missing_ok=True)  # while it is still locked: nobody else can have taken it
    os.close(descriptor)


@contextlib.contextmanager
def writing(place: Path, *, wait: float = 0) -> Iterator[None]:
    """Hold the lock of a folder or file inside a `with` block; see `hold`."""
    taken = hold(place, wait=wait)
    try:
        yield
    finally:
        if taken:
            release(place)


@atexit.register
def _release_all() -> None:
    for path in list(_held):
        _release(path)
