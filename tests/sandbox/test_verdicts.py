"""What counts as a pass: every rule of the protocol, on reports made by hand and on programs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from vocabx_utils.evaluation.environments import Environment
from vocabx_utils.evaluation.sandbox import Limits, Sandbox, Task
from vocabx_utils.evaluation.verdicts import REPORT_LIMIT, expected_tests, flags, judge

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
    verdict = sandbox.run(Task(solution, test, style), Limits(timeout_s=5, memory_mb=2048))
    assert (verdict.status, verdict.reason, verdict.exception) == outcome, verdict.details
    assert all(len(text) <= 400 for text in verdict.details.values())


@pytest.mark.sandbox
def test_details_show_the_line_that_failed(sandbox: Sandbox) -> None:
    verdict = sandbox.run(Task("def f():\n    return [][1]\n", "assert f() == 1", "asserts"))
    assert "return [][1]" in verdict.details["test_main"] and "/run/vocabx" not in verdict.details["test_main"]
