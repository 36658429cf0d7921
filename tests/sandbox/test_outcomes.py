"""What counts as a pass: every rule of the protocol, on reports made by hand and on programs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from vocabx_utils.evaluation import jails
from vocabx_utils.evaluation.environments import Environment
from vocabx_utils.evaluation.outcomes import REPORT_LIMIT, expected_tests, flags, judge
from vocabx_utils.evaluation.sandbox import Limits, Sandbox, Task

NONCE = "5" * 32
GOOD = {
    "nonce": NONCE,
    "status": "done",
    "succeeded": ["test_a", "test_b"],
    "failed": {},
    "left_out": [],
    "canary": [3, 0],
    "changed": [],
    "rss_mb": 20,
    "cpu_s": 0.1,
}
EXPECTED = frozenset({"test_a", "test_b"})


def _judge(**changes: object) -> tuple[str, str]:
    verdict = judge(json.dumps({**GOOD, **changes}).encode(), NONCE, EXPECTED, 0.1)
    return verdict.status, verdict.reason


def test_a_report_that_shows_everything_passes() -> None:
    verdict = judge(json.dumps(GOOD).encode(), NONCE, EXPECTED, 0.5)
    assert (verdict.status, verdict.tests_run, verdict.tests_expected) == ("pass", 2, 2)
    assert (verdict.seconds, verdict.rss_mb) == (0.5, 20)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"nonce": "6" * 32}, "tamper"),
        ({"canary": [2, 1]}, "tamper"),
        ({"canary": [0, 0]}, "tamper"),
        ({"changed": ["TestCase.run"]}, "tamper"),
        ({"succeeded": ["test_a"]}, "tests_missing"),
        ({"succeeded": []}, "tests_missing"),
        ({"succeeded": ["test_a"], "left_out": ["test_b"]}, "tests_missing"),
        ({"succeeded": ["test_a", "test_b", "test_c"]}, "tests_missing"),
        ({"succeeded": ["test_a", "test_b", "test_b"]}, "tests_missing"),
        ({"failed": {"test_b": ["AssertionError", "x"]}}, "assert"),
        ({"failed": {"test_a": ["AssertionError", "x"], "test_b": ["KeyError", "x"]}}, "error"),
        ({"failed": {"test_b": ["MemoryError", "x"]}}, "memory"),
        ({"status": "solution_error", "exception": "SyntaxError", "text": "x"}, "syntax"),
        ({"status": "solution_error", "exception": "NameError", "text": "x"}, "error"),
        ({"succeeded": None}, "tamper"),
        ({"failed": [1, 2]}, "tamper"),
        ({"rss_mb": "much"}, "tamper"),
        ({"cpu_s": []}, "tamper"),
    ],
)
def test_every_rule_is_needed(changes: dict[str, object], reason: str) -> None:
    assert _judge(**changes) == ("fail", reason)


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (b"", "crash"),
        (b'{"status": "pass"}', "tamper"),
        (b"[]", "tamper"),
        (json.dumps(GOOD).encode() * 2, "tamper"),
        (b'{"status": "pass"}' + json.dumps(GOOD).encode(), "tamper"),
        (json.dumps(GOOD).encode() + b" " * REPORT_LIMIT, "tamper"),
        (b"[" * 100_000, "tamper"),
        (b"\xff\xfe", "tamper"),
    ],
)
def test_what_is_not_one_report_fails(report: bytes, reason: str) -> None:
    verdict = judge(report, NONCE, EXPECTED, 0.1)
    assert (verdict.status, verdict.reason) == ("fail", reason)


def test_expected_tests_are_read_from_the_source() -> None:
    source = """
import unittest
class Base(unittest.TestCase):
    def test_inherited(self): pass
class TestCases(Base):
    def setUp(self): pass
    def test_one(self): pass
    async def test_two(self): pass
    def helper(self): pass
class Other(unittest.TestCase):
    def test_other(self): pass
"""
    assert expected_tests(source, "unittest") == {"test_inherited", "test_one", "test_two"}
    assert expected_tests("assert True", "asserts") == {"test_main"}
    with pytest.raises(ValueError, match="no tests"):
        expected_tests("import unittest", "unittest")


def test_flags_name_what_a_person_should_see() -> None:
    assert flags("import os\nos._exit(0)\nclass A:\n    def __eq__(self, o): return True") == ["_exit", "__eq__"]
    assert flags("def compose(x):\n    return x  # on_exit") == []
    for word in ("builtins", "inspect", "tb_frame", "f_back", "f_locals", "prlimit"):
        assert word in flags(f"import os\nx = os.{word}\n"), word
    assert flags("__builtins__['len'] = 0") == ["builtins"]


@pytest.fixture(scope="module")
def sandbox(plain: Environment) -> Iterator[Sandbox]:
    with Sandbox(plain.view, forked=True) as sandbox:
        yield sandbox


UNIT = "import unittest\nclass TestCases(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(), 1)\n"


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("solution", "test", "style", "outcome"),
    [
        ("def f(): return 1", UNIT, "unittest", ("pass", "", "")),
        ("def f(): return 2", UNIT, "unittest", ("fail", "assert", "AssertionError")),
        ("def f(): raise KeyError('x')", UNIT, "unittest", ("fail", "error", "KeyError")),
        ("def f(: return 1", UNIT, "unittest", ("fail", "syntax", "SyntaxError")),
        ('def f(): return 1\n"""', UNIT, "unittest", ("fail", "syntax", "SyntaxError")),
        ("import nowhere", UNIT, "unittest", ("fail", "error", "ModuleNotFoundError")),
        ("def f(): import unittest; raise unittest.SkipTest", UNIT, "unittest", ("fail", "tests_missing", "")),
        (
            "import unittest\nclass TestCases(unittest.TestCase):\n    def test_x(self): pass\n"
            "import sys\nsys.modules['unittest'].TestCase = TestCases\ndef f(): return 2",
            UNIT,
            "unittest",
            ("fail", "tamper", ""),
        ),
        ("def f(): return 1", "assert f() == 1", "asserts", ("pass", "", "")),
        ("def f(): return 0", "assert f() == 1", "asserts", ("fail", "assert", "AssertionError")),
        ("result = 1", "env = {}\nexec(code, env)\nassert env['result'] == 1", "ds1000", ("pass", "", "")),
        (
            "result = 2",
            "env = {}\nexec(code, env)\nassert env['result'] == 1",
            "ds1000",
            ("fail", "assert", "AssertionError"),
        ),
        ("result = (", "env = {}\nexec(code, env)", "ds1000", ("fail", "syntax", "SyntaxError")),
        ("x = [0] * 10**10", "assert True", "asserts", ("fail", "memory", "MemoryError")),
        (
            "class E(Exception):\n    def __str__(self): raise ValueError\ndef f(): raise E",
            "f()",
            "asserts",
            ("fail", "error", "E"),
        ),
    ],
)
def test_programs_get_their_verdicts(
    solution: str, test: str, style: str, outcome: tuple[str, str, str], sandbox: Sandbox
) -> None:
    verdict = sandbox.run(Task(solution, test, style), Limits(timeout_s=20, memory_mb=2048))
    assert (verdict.status, verdict.reason, verdict.exception) == outcome, verdict.details
    assert all(len(text) <= 400 for text in verdict.details.values())


@pytest.mark.sandbox
def test_details_show_the_line_that_failed(sandbox: Sandbox) -> None:
    verdict = sandbox.run(Task("def f():\n    return [][1]\n", "assert f() == 1", "asserts"))
    assert "return [][1]" in verdict.details["test_main"] and "/run/vocabx" not in verdict.details["test_main"]


FORGERIES = {
    "compile": "import builtins\nr = builtins.compile\nbuiltins.compile = lambda s, *a, **k: r('pass', *a, **k)\n",
    "exec": "import builtins\nbuiltins.exec = lambda *a, **k: None\n",
    "compile for a moment": """
import builtins
real = builtins.compile
def once(source, *args, **options):
    builtins.compile = real
    return real("pass", *args, **options)
builtins.compile = once
""",
    "sorted and checks": """
import builtins, unittest
builtins.sorted = lambda *args, **options: []
unittest.TestCase.assertEqual = lambda *args, **options: None
""",
    "all that a report is made of": """
import builtins
builtins.len = lambda value: 3
builtins.getattr = lambda *args: "test_a"
builtins.str = lambda value: "test_a"
""",
}


@pytest.mark.sandbox
@pytest.mark.parametrize("style", ["asserts", "unittest"])
@pytest.mark.parametrize("name", FORGERIES)
def test_builtins_of_the_candidate_are_not_those_of_the_runner(name: str, style: str, sandbox: Sandbox) -> None:
    test = UNIT if style == "unittest" else "assert f() == 1"
    verdict = sandbox.run(Task(FORGERIES[name] + "def f(): return 2\n", test, style), Limits(timeout_s=20))
    assert verdict.status == "fail", verdict
    assert flags(FORGERIES[name])


@pytest.mark.sandbox
@pytest.mark.parametrize("forked", [False, True], ids=["fresh", "forked"])
def test_the_end_of_the_pipe_is_not_waited_for(forked: bool, plain: Environment) -> None:
    """A descriptor that was sent to a socket that nobody reads lives on in the kernel."""
    cycle = """
import os, socket
left, right = socket.socketpair()
for descriptor in [int(name) for name in os.listdir('/proc/self/fd')]:
    try:
        socket.send_fds(left, [b'x'], [descriptor])
    except OSError:
        pass
socket.send_fds(left, [b'x'], [left.fileno(), right.fileno()])
"""
    with Sandbox(plain.view, forked=forked) as sandbox:
        begin = time.monotonic()
        verdict = sandbox.run(Task(cycle + "def f(): return 1\n", "assert f() == 1", "asserts"))
        assert verdict.status == "pass"
        silent = sandbox.run(Task(cycle + "os._exit(0)\n", "assert f() == 1", "asserts"))
        assert (silent.status, silent.reason) == ("fail", "crash")
        assert time.monotonic() - begin < 5


@pytest.mark.parametrize("size", [0, 1, 5, 70_000])
def test_a_report_stands_behind_its_length(size: int) -> None:
    frame = size.to_bytes(8, "big") + b"x" * size
    assert jails._complete(frame) and jails._body(frame) == b"x" * size
    assert not any(jails._complete(frame[:cut]) for cut in {0, 4, len(frame) - 1})
    for odd in (frame + b"y", json.dumps(GOOD).encode(), frame[:4] or b"x"):
        assert judge(jails._body(odd), NONCE, EXPECTED, 0.1).reason == "tamper"
    assert jails._complete((REPORT_LIMIT + 1).to_bytes(8, "big"))  # and nobody waits for a giant
