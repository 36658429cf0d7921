"""Hostile programs that a sandbox must contain, each an answer to "add two numbers".

The programs are files in `hostile-programs`, with an index of what each tries and what must come of it. Eight of them
are the self-test that runs before the first result; all are tests of the project. They take what they attack (a file,
a port, a secret) as values, and never name anything that is not made for the purpose.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vocabx_utils.evaluation.outcomes import Outcome
from vocabx_utils.evaluation.sandbox import Task

PROGRAMS = Path(__file__).parent / "hostile-programs"  # no name of a module: nothing imports them by accident
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
    """What the hostile programs attack on the host."""

    folder: Path  # with a file `secret` and a file `victim`; nothing else may appear in it
    secret: str  # stands in the file, and in the environment variable `VOCABX_PROBE_SECRET`
    port: int  # on which something listens on the loopback interface of the host


@dataclass(frozen=True)
class Hostile:
    """One hostile program."""

    name: str  # `H01` to `H16`
    title: str  # what it does
    code: str  # the answer, with `@FOLDER@` and `@PORT@` in place of its targets
    # status that must come out; `contained` where any will do if nothing leaked
    expect: Literal["fail", "timeout", "contained", "pass outside strict mode"]
    style: Literal["asserts", "unittest"] = "asserts"  # kind of test it answers
    must_say: str = ""  # pattern that its report must hold if it was contained
    otherwise: str = ""  # what it achieved where the pattern is missing

    def task(self, targets: Targets) -> Task:
        """Return the program as a task against `targets`."""
        code = self.code.replace("@FOLDER@", str(targets.folder)).replace("@PORT@", str(targets.port))
        return Task(code, UNIT_TEST if self.style == "unittest" else TEST, self.style)


def read_program(name: str) -> str:
    """Return the source of one of the programs."""
    return (PROGRAMS / f"{name}.py").read_text(encoding="utf-8")


_INDEX = json.loads((PROGRAMS / "index.json").read_text(encoding="utf-8"))
HOSTILE = tuple(Hostile(code=read_program(row["name"]), **row) for row in _INDEX["programs"])
SELF_TEST: tuple[str, ...] = tuple(_INDEX["self_test"])
# Programs that give a right answer only where a protection of the jail stops them; "memory" must end by lack of it.
PROBES = {name: read_program(f"probe_{name}") for name in _INDEX["probes"]}


def hostile(name: str) -> Hostile:
    """Return the program with that name (`H01` to `H16`)."""
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
            del os.environ["VOCABX_PROBE_SECRET"]
            if before is not None:
                os.environ["VOCABX_PROBE_SECRET"] = before


def escapes(item: Hostile, targets: Targets, outcome: Outcome) -> list[str]:
    """List what a hostile program achieved: an empty list means that it was contained."""
    text, found = str(outcome.details), []
    if item.expect in ("fail", "timeout") and outcome.status != item.expect:
        found.append(f"the verdict is {outcome.status}, not {item.expect}")
    if targets.secret in text:
        found.append("it read the secret")
    if "uid=0" in text:
        found.append("it ran as root")
    if not re.search(item.must_say, text):
        found.append(item.otherwise)
    if (targets.folder / "victim").read_text() != "alive" or len(list(targets.folder.iterdir())) != 2:
        found.append("it changed the host's files")
    return found
