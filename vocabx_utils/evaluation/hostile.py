"""Hostile programs that a sandbox must contain, each an answer to "add two numbers".

Eight of them are the self-test that runs before the first result; all are tests of the project. They take what
they attack (a file, a port, a secret) as values, and never name anything that is not made for the purpose.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vocabx_utils.evaluation.sandbox import Task

TEST = "assert add(2, 3) == 5\nassert add(-1, 1) == 0\n"
UNIT_TEST = """import unittest
class TestCases(unittest.TestCase):
    def test_small(self):
        self.assertEqual(add(2, 3), 5)
    def test_zero(self):
        self.assertEqual(add(-1, 1), 0)
"""
GOOD = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a - b\n"


@dataclass(frozen=True)
class Targets:
    """What the hostile programs attack on the host.

    Attributes:
        folder: A folder with a file ``secret`` and a file ``victim``; nothing else may appear in it.
        secret: A text that stands in the file, and in the environment variable ``VOCABX_PROBE_SECRET``.
        port: A port on which something listens on the host's loopback interface.
    """

    folder: Path
    secret: str
    port: int


@dataclass(frozen=True)
class Hostile:
    """One hostile program.

    Attributes:
        name: ``H01`` to ``H16``.
        title: What it does.
        code: The answer, with ``@FOLDER@`` and ``@PORT@`` in place of its targets.
        expect: Verdict that must come out; ``contained`` where any verdict will do if nothing leaked.
        style: Kind of test it answers.
    """

    name: str
    title: str
    code: str
    expect: Literal["fail", "timeout", "contained", "pass outside strict mode"]
    style: Literal["asserts", "unittest"] = "asserts"

    def task(self, targets: Targets) -> Task:
        """The program as a task against ``targets``."""
        code = self.code.replace("@FOLDER@", str(targets.folder)).replace("@PORT@", str(targets.port))
        return Task(code, UNIT_TEST if self.style == "unittest" else TEST, self.style)


HOSTILE: tuple[Hostile, ...] = (
    Hostile(
        "H01",
        "busy loop that ignores signals and swallows every exception",
        """
import signal
for number in (signal.SIGALRM, signal.SIGTERM, signal.SIGINT, signal.SIGXCPU):
    signal.signal(number, signal.SIG_IGN)
def add(a, b):
    while True:
        try:
            while True:
                pass
        except BaseException:
            continue
""",
        "timeout",
    ),
    Hostile(
        "H02",
        "ends the process with success",
        "import os\ndef add(a, b):\n    os._exit(0)\n",
        "fail",
    ),
    Hostile("H03", "sys.exit(0)", "import sys\ndef add(a, b):\n    sys.exit(0)\n", "fail"),
    Hostile(
        "H04",
        "claims a pass in every list and on every descriptor, then exits",
        """
import json, os, sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()):
            if isinstance(value, list):
                value.append("passed")
        frame = frame.f_back
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, json.dumps({"status": "pass"}).encode())
        except OSError:
            pass
    os._exit(0)
""",
        "fail",
    ),
    Hostile(
        "H05",
        "returns an object that equals everything",
        """
class Any:
    def __eq__(self, other):
        return True
def add(a, b):
    return Any()
""",
        "pass outside strict mode",
    ),
    Hostile(
        "H06",
        "replaces the methods of unittest",
        """
import unittest
for name in ("assertEqual", "assertTrue", "fail"):
    setattr(unittest.TestCase, name, lambda *args, **kwargs: None)
def run(self, result=None):
    result.testsRun += 1
    result.addSuccess(self)
unittest.TestCase.run = run
def add(a, b):
    return None
""",
        "fail",
        "unittest",
    ),
    Hostile("H07", "takes 6 GB", "def add(a, b):\n    x = bytearray(6 << 30)\n    return a + b\n", "fail"),
    Hostile(
        "H08",
        "150 forks",
        """
import posix, time
def add(a, b):
    made = 0
    for _ in range(150):
        try:
            if posix.fork() == 0:
                time.sleep(60)
                posix._exit(0)
            made += 1
        except OSError:
            pass
    raise RuntimeError(f"forks={made}")
""",
        "contained",
    ),
    Hostile(
        "H09",
        "a daemon that outlives its task",
        """
import os, time
def add(a, b):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1)
            open("@FOLDER@/late", "w").close()
            time.sleep(60)
        os._exit(0)
    return a + b
""",
        "contained",
    ),
    Hostile(
        "H10",
        "writes to and deletes from the host's folders",
        """
import posix, pathlib
def add(a, b):
    done = []
    for name, action in (
        ("unlink", lambda: posix.unlink("@FOLDER@/victim")),
        ("write", lambda: pathlib.Path("@FOLDER@/planted").write_text("x")),
        ("root", lambda: pathlib.Path("/planted").write_text("x")),
        ("usr", lambda: pathlib.Path("/usr/planted").write_text("x")),
        ("dev", lambda: pathlib.Path("/dev/planted").write_text("x")),
    ):
        try:
            action()
            done.append(name)
        except OSError:
            pass
    raise RuntimeError(f"done={done}")
""",
        "contained",
    ),
    Hostile(
        "H11",
        "looks for secrets in the environment, in other processes and in files",
        """
import glob, os
def add(a, b):
    found = [repr(dict(os.environ))]
    for path in ["@FOLDER@/secret", *glob.glob("/proc/*/environ"), *glob.glob("/root/*"), "/etc/passwd"]:
        try:
            found.append(open(path, "rb").read().decode(errors="replace"))
        except OSError:
            pass
    text = "".join(found)
    at = text.find("probe-")
    raise RuntimeError(text[at:at + 60] if at >= 0 else f"nothing, uid={os.getuid()}")
""",
        "contained",
    ),
    Hostile(
        "H12",
        "connects to a listener on the host",
        """
import socket
def add(a, b):
    with socket.create_connection(("127.0.0.1", @PORT@), timeout=2):
        return a + b
""",
        "fail",
    ),
    Hostile(
        "H13",
        "kills its parents",
        """
import ctypes, os
def add(a, b):
    libc = ctypes.CDLL(None)
    for pid in (os.getppid(), 1, -1):
        libc.kill(pid, 9)
    return a + b
""",
        "contained",
    ),
    Hostile(
        "H14",
        "floods standard output and the file system, reads standard input",
        """
import os, sys
def add(a, b):
    block = b"x" * (1 << 20)
    for _ in range(300):
        os.write(1, block)
    try:
        for number in range(8):
            with open(f"big{number}", "wb") as file:
                for _ in range(60):
                    file.write(block)
    except OSError:
        pass
    assert sys.stdin.read() == ""
    return a + b
""",
        "contained",
    ),
    Hostile(
        "H15",
        "leaves a thread that sleeps",
        """
import threading, time
def add(a, b):
    threading.Thread(target=time.sleep, args=(25,)).start()
    return a + b
""",
        "contained",
    ),
    Hostile(
        "H16",
        "replaces builtins",
        """
import builtins
builtins.isinstance = lambda *args: True
builtins.len = lambda *args: 0
builtins.abs = lambda *args: 0
def add(a, b):
    return None
""",
        "fail",
    ),
)
# Programs that give a right answer only where a protection of the jail stops them; "memory" must end by lack of it.
PROBES = {
    "memory": """
import os, time
def add(a, b):
    for _ in range(12):
        if os.fork() == 0:
            held = b"x" * (100 << 20)
            time.sleep(20)
            os._exit(0)
    held = b"x" * (150 << 20)
    time.sleep(1)
    for _ in range(12):
        if os.waitpid(-1, os.WNOHANG) == (0, 0):
            return a + b
    os._exit(1)
""",
    "namespaces": """
import ctypes
def add(a, b):
    assert ctypes.CDLL(None).unshare(0x10000000) == -1
    return a + b
""",
    "calls": """
import ctypes, os, socket
def add(a, b):
    libc = ctypes.CDLL(None)
    assert libc.shmget(1, 4096, 0o1666) == -1
    for family in (40, 38):
        try:
            socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue
        raise AssertionError(family)
    try:
        os.memfd_create("x")
    except OSError:
        return a + b
""",
    "processes": """
import os, time
def add(a, b):
    for _ in range(80):
        try:
            if os.fork() == 0:
                time.sleep(20)
                os._exit(0)
        except BlockingIOError:
            return a + b
""",
}
SELF_TEST = ("H02", "H04", "H08", "H09", "H10", "H11", "H12", "H13")

INFORMED = """
import json, os, sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        job = frame.f_locals.get("job")
        if isinstance(job, dict) and "nonce" in job:
            report = {"nonce": job["nonce"], "status": "done", "succeeded": ["test_main"], "failed": {},
                      "left_out": [], "canary": [3, 0], "changed": [], "rss_mb": 1, "cpu_s": 0.1}
            for descriptor in range(3, 64):
                try:
                    body = json.dumps(report).encode()
                    os.write(descriptor, len(body).to_bytes(8, "big") + body)
                except OSError:
                    pass
            os._exit(0)
        frame = frame.f_back
"""


def hostile(name: str) -> Hostile:
    """The program with that name (``H01`` to ``H16``)."""
    return next(item for item in HOSTILE if item.name == name)


@contextlib.contextmanager
def targets() -> Iterator[Targets]:
    """Make the targets, and take them away again."""
    secret = f"probe-{os.urandom(8).hex()}"
    before = os.environ.get("VOCABX_PROBE_SECRET")
    with tempfile.TemporaryDirectory(prefix="vocabx-probe-") as name, socket.socket() as listener:
        folder = Path(name)
        (folder / "secret").write_text(secret)
        (folder / "victim").write_text("alive")
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        os.environ["VOCABX_PROBE_SECRET"] = secret
        try:
            yield Targets(folder, secret, listener.getsockname()[1])
        finally:
            if before is None:
                del os.environ["VOCABX_PROBE_SECRET"]
            else:
                os.environ["VOCABX_PROBE_SECRET"] = before


def escapes(item: Hostile, targets: Targets, verdict: object) -> list[str]:
    """List what a hostile program achieved: an empty list means that it was contained.

    Args:
        item: The program.
        targets: What it attacked.
        verdict: Its verdict, a `Verdict`.
    """
    status, text = getattr(verdict, "status", ""), str(getattr(verdict, "details", ""))
    found = []
    if item.expect in ("fail", "timeout") and status != item.expect:
        found.append(f"the verdict is {status}, not {item.expect}")
    if targets.secret in text:
        found.append("it read the secret")
    if "uid=0" in text:
        found.append("it ran as root")
    if item.name == "H08" and not 0 < _number(text, "forks=") < 100:
        found.append("the number of processes is not limited")
    if item.name == "H10" and "done=[]" not in text:
        found.append("it wrote outside its own folders")
    if (targets.folder / "victim").read_text() != "alive" or len(list(targets.folder.iterdir())) != 2:
        found.append("it changed the host's files")
    return found


def _number(text: str, label: str) -> int:
    digits = text.rpartition(label)[2][:6]
    return int("".join(c for c in digits if c.isdigit()) or -1)
