"""The parent's side of the verdict protocol: what a report must show to count as a pass."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from vocabx_utils.evaluation.statements import parse

Status = Literal["pass", "fail", "timeout"]
REPORT_LIMIT = 1 << 20  # bytes; a longer report is a forgery
_TEXT_LIMIT = 400  # characters kept of one failure
# What reaches the runner and its frames, its modules, other processes, or the comparison itself.
_SUSPICIOUS = (
    *("_exit", "__eq__", "unittest", "ctypes", "posix", "prlimit", "builtins", "sys.modules", "jailed"),
    *("inspect", "_getframe", "tb_frame", "f_back", "f_locals", "f_globals", "f_builtins", "gi_frame"),
    *("gc.get_", "get_objects", "get_referrers", "settrace", "setprofile", "linecache", "__subclasses__"),
    "__globals__",
)
_MEMORY = ("MemoryError", "ArrayMemoryError", "_ArrayMemoryError")
_REASONS = {"AssertionError": "assert", "CandidateDiedError": "crash", **dict.fromkeys(_MEMORY, "memory")}


@dataclass(frozen=True)
class Outcome:
    """What came of one program.

    The reason is empty for a pass and a timeout; else `assert` (a check failed), `error` (an exception), `syntax` (the
    solution does not compile), `memory`, `crash` (the process died without a report), `tamper` (a forged or unreadable
    report) or `tests_missing`.
    """

    status: Status  # in the words of the evaluator of BigCodeBench
    reason: str = ""
    exception: str = ""  # type of the first one, if there was one
    details: dict[str, str] = field(default_factory=dict)  # end of the traceback by test; `ALL`: whole program
    tests_run: int = 0  # tests that succeeded or failed
    tests_expected: int = 0  # tests that the test code defines
    seconds: float = 0.0  # wall time from the acceptance of the job to the report
    rss_mb: int = 0  # peak resident memory in MiB, as the process itself reported it
    cpu_s: float = 0.0  # CPU seconds of the process and its ended children, as it reported them


def expected_tests(test: str, style: str) -> frozenset[str]:
    """Read the names of the tests that a report must cover from the test code, without running it.

    A style other than `unittest` is wrapped as one test. A `ValueError` where no class `TestCases` with tests is there.
    """
    if style != "unittest":
        return frozenset({"test_main"})
    classes = {node.name: node for node in parse(test).body if isinstance(node, ast.ClassDef)}
    names = _test_methods("TestCases", classes)
    if not names:
        raise ValueError("the test code defines no tests in a class named TestCases")
    return frozenset(names)


def _test_methods(name: str, classes: dict[str, ast.ClassDef]) -> set[str]:
    if name not in classes:
        return set()
    found = set()
    for node in classes[name].body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test"):
            found.add(node.name)
    for base in classes[name].bases:
        if isinstance(base, ast.Name) and base.id != name:
            found |= _test_methods(base.id, classes)
    return found


def judge(report: bytes, nonce: str, expected: frozenset[str], seconds: float) -> Outcome:
    """Judge what was written to the verdict pipe; `nonce` is the secret of the job.

    Returns:
        A pass only if the report is one JSON document with the right nonce, every expected test and no other
        succeeded, the canary failed, and nothing that is watched was replaced.
    """
    return replace(_judge(report, nonce, expected), tests_expected=len(expected), seconds=seconds)


def _judge(report: bytes, nonce: str, expected: frozenset[str]) -> Outcome:
    if not report:
        return _fail("crash", "the process ended without a report")
    if len(report) > REPORT_LIMIT:
        return _fail("tamper", "the report is too long")
    try:
        data = json.loads(report)
        if not isinstance(data, dict) or data.get("nonce") != nonce:
            return _fail("tamper", "the report does not carry the nonce of its job")
        run = len(data["succeeded"]) + len(data["failed"])
        memory, cpu = int(data["rss_mb"]), float(data["cpu_s"])
        return replace(_judge_report(data, expected), tests_run=run, rss_mb=memory, cpu_s=cpu)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return _fail("tamper", f"the report is malformed ({type(error).__name__})")


def _judge_report(data: dict[str, Any], expected: frozenset[str]) -> Outcome:
    succeeded, failed = [str(name) for name in data["succeeded"]], dict(data["failed"])
    if data["changed"]:
        return _fail("tamper", "replaced: " + ", ".join(map(str, data["changed"])))
    if data["status"] != "done":
        kind = str(data["exception"])
        return _fail(failure_reason(kind, data["status"]), str(data["text"]), kind)
    if list(data["canary"]) != [3, 0]:
        return _fail("tamper", "a test that must fail did not")
    if failed:
        kinds = [str(kind) for kind, _ in failed.values()]
        # An error says more than a failed check beside it: report the first of the gravest kind.
        kind = next((kind for kind in kinds if kind != "AssertionError"), "AssertionError")
        details = {str(name)[:200]: str(text)[-_TEXT_LIMIT:] for name, (_, text) in failed.items()}
        return replace(_fail(failure_reason(kind), "", kind), details=details)
    if set(succeeded) != expected or len(succeeded) != len(expected):
        missing = sorted(expected - set(succeeded)) or ["none, but others ran"]
        return _fail("tests_missing", "did not succeed: " + ", ".join(missing))
    return Outcome("pass")


def _fail(reason: str, text: str, exception: str = "") -> Outcome:
    return Outcome("fail", reason, exception[:80], {"ALL": text[-_TEXT_LIMIT:]})


def failure_reason(kind: str, status: str = "done") -> str:
    """Return the reason of a failure from the type of its exception, and what the program had done by then."""
    if kind in ("SyntaxError", "IndentationError", "TabError") and status != "test_error":
        return "syntax"
    return _REASONS.get(kind, "error")


def flags(solution: str) -> list[str]:
    """Return the words in a solution at which a person should look; they do not change the outcome."""
    return [word for word in _SUSPICIOUS if re.search(rf"(?<![A-Za-z0-9]){re.escape(word)}", solution)]
