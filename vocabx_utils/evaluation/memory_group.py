"""A limit on the memory of a whole jail: a control group of the kernel, where this user may make one.

Process limits count each process for itself and files in memory not at all; a control group counts everything.
Three ways lead to one: a folder of the memory controller that this user may write (root, or a delegated subtree of
cgroup v2), or else a scope that the user's systemd starts.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
SERVER_MB = 512  # what the interpreter and the libraries of a warm jail may take beside the program
_PREFIX = "vocabx-"
_numbers = itertools.count()


class MemoryGroup:
    """A group, below a folder of the memory controller, for the jails of one worker; `enter` starts processes in it."""

    def __init__(self, parent: Path) -> None:
        self.folder = parent / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
        self.folder.mkdir()
        self._limit = 0

    def limit(self, megabytes: int) -> None:
        """Set the most memory that all processes of the group may hold together, files in memory included."""
        if megabytes == self._limit:
            return
        number = str(megabytes << 20)
        if (self.folder / "memory.max").exists():
            (self.folder / "memory.max").write_text(number)
            files = ("memory.swap.max", "0")
        else:
            # cgroup v1: the limit with swap must not be below the one without, whichever is set first
            with contextlib.suppress(OSError):
                (self.folder / "memory.memsw.limit_in_bytes").write_text("-1")
            (self.folder / "memory.limit_in_bytes").write_text(number)
            files = ("memory.memsw.limit_in_bytes", number)
        with contextlib.suppress(OSError):  # a kernel that does not count swap
            (self.folder / files[0]).write_text(files[1])
        self._limit = megabytes

    def kills(self) -> int:
        """Return how many processes the kernel has killed because the group was full."""
        for name in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                lines = (self.folder / name).read_text().splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
        return 0

    def enter(self, command: list[str]) -> list[str]:
        """Return the command, started inside the group by a shell that moves itself there first."""
        move = 'echo $$ > "$0" && exec "$@"'
        return ["/bin/sh", "-c", move, str(self.folder / "cgroup.procs"), *command]

    def close(self) -> None:
        """Remove the group, whose processes have ended."""
        with contextlib.suppress(OSError):
            self.folder.rmdir()


@functools.lru_cache(maxsize=1)
def group_parent() -> Path | None:
    """Folder in which memory groups can be made, or None; groups of processes that are gone are removed from it."""
    for parent in _parents():
        if not os.access(parent, os.W_OK):
            continue
        for left in parent.glob(f"{_PREFIX}*"):
            if not Path(f"/proc/{left.name.removeprefix(_PREFIX).split('-')[0]}").exists():
                with contextlib.suppress(OSError):
                    left.rmdir()
        if _works(parent):
            return parent
    return None


def _works(parent: Path) -> bool:
    """Try a group: a folder may be writable and still not take a process."""
    group = None
    try:
        group = MemoryGroup(parent)
        group.limit(SERVER_MB)
        return subprocess.run(group.enter(["true"]), capture_output=True, timeout=10).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False
    finally:
        if group:
            group.close()


def _parents() -> Iterator[Path]:
    """This process's place in the memory controller, then (version 2) the places above that hand memory on."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield CGROUPS / "memory" / place.lstrip("/")
        elif not controllers:
            own = CGROUPS / place.lstrip("/")
            for folder in (own, *own.parents):
                if not folder.is_relative_to(CGROUPS):
                    break
                with contextlib.suppress(OSError):
                    if "memory" in (folder / "cgroup.subtree_control").read_text().split():
                        yield folder


@functools.lru_cache(maxsize=1)
def systemd_scopes() -> bool:
    """Tell whether the user's systemd starts scopes with a memory limit."""
    try:
        trial = subprocess.run(in_scope(["true"], SERVER_MB), capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return False
    return trial.returncode == 0


def in_scope(command: list[str], megabytes: int) -> list[str]:
    """Return the command, started in a scope of the user's systemd."""
    program = shutil.which("systemd-run") or "systemd-run"
    limits = ["-p", f"MemoryMax={megabytes}M", "-p", "MemorySwapMax=0"]
    user = ["--user"] if os.geteuid() else []
    return [program, *user, "--scope", "--quiet", "--collect", *limits, "--", *command]


def describe() -> str:
    """By what the memory of a jail is limited as a whole, empty where it is not."""
    if parent := group_parent():
        version = 2 if (parent / "cgroup.subtree_control").exists() else 1
        return f"a control group of the kernel (cgroup v{version})"
    return "a scope of systemd" if systemd_scopes() else ""


def variables() -> dict[str, str]:
    """Return the environment of the command that starts a jail: empty but for what reaches the user's systemd."""
    names = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS") if group_parent() is None and systemd_scopes() else ()
    return {name: os.environ[name] for name in names if name in os.environ}
