"""Run one solution against its test and report what happened, in a form that is hard to forge.

The report carries the parent's nonce, the names of the tests that really succeeded, whether a canary test
that must fail did fail, and which members of `unittest` and which builtins are no longer those of before the
candidate ran. The parent judges (`outcomes.judge`); nothing is decided here.

A candidate in the same interpreter can still find the nonce by walking frames: only `strict` mode, which
compares in another process, closes that.
"""

from __future__ import annotations

import builtins
import linecache
import socket
import sys
import traceback
import types
import unittest
from collections.abc import Callable
from typing import Any

from . import protocol, proxies

TEXT_LIMIT = 400  # characters of a traceback that are kept, its end
TESTS_LIMIT = 200  # failing tests that are described
_SOURCES = ("prelude.py", "solution.py", "test.py")  # tracebacks are shown from the first of these on
_WATCHED_CLASSES = (unittest.TestCase, unittest.TestResult, unittest.TestLoader, unittest.TestSuite)
# Tests legitimately patch these; nobody has a reason to replace any other.
_PATCHABLE = {"open", "print", "input", "exit", "quit", "help", "_"}
_WATCHED_BUILTINS = sorted(set(vars(builtins)) - _PATCHABLE)

# Everything below keeps the builtins of before the candidate: who replaces `compile` or `sorted` replaces it for
# the candidate and the test, not for the code that judges.
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]


class Recorder(unittest.TestResult):
    """Collects by name which tests succeeded and what the others raised."""

    def __init__(self) -> None:
        super().__init__()
        self.succeeded: list[str] = []
        self.failed: dict[str, tuple[str, str]] = {}
        self.left_out: list[str] = []

    def _note(self, test: Any, error: Any) -> None:
        if len(self.failed) < TESTS_LIMIT:
            self.failed[_name(test)] = describe(error[1])

    def addSuccess(self, test: Any) -> None:
        self.succeeded.append(_name(test))

    def addFailure(self, test: Any, err: Any) -> None:
        self._note(test, err)

    def addError(self, test: Any, err: Any) -> None:
        self._note(test, err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._note(test, err)

    def addSkip(self, test: Any, reason: str) -> None:
        self.left_out.append(_name(test))

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self.succeeded.append(_name(test))

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.failed[_name(test)] = ("AssertionError", "unexpected success")


def describe(error: BaseException) -> tuple[str, str]:
    """Name of the exception's type, and the end of its traceback."""
    try:
        trace = error.__traceback__
        while trace and trace.tb_frame.f_code.co_filename not in _SOURCES:
            trace = trace.tb_next
        text = "".join(traceback.format_exception(type(error), error, trace or error.__traceback__))
    except BaseException as second:  # a hostile __str__ must not cost the verdict
        text = f"(the exception could not be shown: {type(second).__name__})"
    return type(error).__name__, text[-TEXT_LIMIT:]


def run_job(job_fd: int, verdict_fd: int, calls_fd: int = -1) -> None:
    """Take a job from ``job_fd``, run it, write the verdict to ``verdict_fd``. Does not return.

    In strict mode the functions of the solution are called over ``calls_fd``.
    """
    job, confirm = protocol.accept_job(job_fd)
    protocol.silence()
    protocol.enter_work_folder()
    protocol.apply_limits(job["limits"])
    report, give = run_program, protocol.give_verdict
    confirm()
    give(verdict_fd, report(job, calls_fd))


def run_program(job: dict[str, Any], calls_fd: int = -1) -> dict[str, Any]:
    """Execute solution, test and canary.

    Args:
        job: ``nonce``, ``style``, ``solution``, ``test``; in strict mode also ``strict`` (see `proxies`).
        calls_fd: Socket to the candidate's process in strict mode.

    Returns:
        The report, ready for JSON.
    """
    changed = watch()
    recorder, canary = Recorder(), Recorder()
    verdict: dict[str, Any] = {"nonce": job["nonce"], "status": "done"}
    try:
        stage = "test"
        namespace, test = new_module(job, calls_fd), compile_source(job["test"], "test.py")
        stage = "solution"
        if job["style"] != "ds1000" and "strict" not in job:
            run_source(job["solution"], "solution.py", namespace)
        stage = "test"
        load_tests(job["style"], test, namespace).run(recorder)
        _canary().run(canary)
    except BaseException as error:
        verdict["status"] = f"{stage}_error"
        verdict["exception"], verdict["text"] = describe(error)
    verdict["succeeded"] = recorder.succeeded
    verdict["failed"] = recorder.failed
    verdict["left_out"] = recorder.left_out
    verdict["canary"] = [len(canary.failed), len(canary.succeeded)]
    verdict["changed"] = changed()
    verdict["rss_mb"], verdict["cpu_s"] = protocol.peak_memory_mb(), protocol.cpu_seconds()
    return verdict


def watch() -> Callable[[], list[str]]:
    """Remember what must stay as it is; return a function that names what changed."""
    before = _members()

    def changed() -> list[str]:
        after = _members()
        return sorted(name for name in {**before, **after} if before.get(name) is not after.get(name))[:20]

    return changed


def _members() -> dict[str, Any]:
    members = {f"builtins.{name}": vars(builtins).get(name) for name in _WATCHED_BUILTINS}
    for owner in _WATCHED_CLASSES:
        members[f"unittest.{owner.__name__}"] = vars(unittest).get(owner.__name__)
        members.update({f"{owner.__name__}.{name}": value for name, value in vars(owner).items()})
    return members


def new_module(job: dict[str, Any], calls_fd: int = -1) -> dict[str, Any]:
    """Register the module in which solution and test run; return its namespace."""
    module = types.ModuleType("__test__")
    module.__file__ = "__test__.py"
    sys.modules["__test__"] = module
    namespace = vars(module)
    namespace["__builtins__"] = vars(builtins)  # the interpreter's, not those that this file keeps
    if job["style"] == "ds1000":
        namespace["code"] = job["solution"]
    if "strict" in job:
        strict = job["strict"]
        run_source(strict["prelude"], "prelude.py", namespace)
        namespace.update(proxies.make_proxies(strict["names"], socket.socket(fileno=calls_fd)))
    return namespace


def run_source(source: str, file: str, namespace: dict[str, Any]) -> None:
    """Compile and execute."""
    exec(compile_source(source, file), namespace)


def compile_source(source: str, file: str) -> types.CodeType:
    """Compile; the lines are kept so that tracebacks and `inspect` can show them."""
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    return compile(source, file, "exec", dont_inherit=True)


def load_tests(style: str, test: types.CodeType, namespace: dict[str, Any]) -> unittest.TestSuite:
    """Tests of the class `TestCases`, or the whole test code as the one test `test_main`."""
    if style == "unittest":
        exec(test, namespace)
        return unittest.TestLoader().loadTestsFromTestCase(namespace["TestCases"])

    class TestCases(unittest.TestCase):
        def test_main(self) -> None:
            exec(test, namespace)

    return unittest.TestLoader().loadTestsFromTestCase(TestCases)


def _canary() -> unittest.TestSuite:
    """Three tests that must fail; where one does not, the test machinery was tampered with."""

    class Canary(unittest.TestCase):
        def test_equal(self) -> None:
            self.assertEqual(1, 2)

        def test_true(self) -> None:
            self.assertTrue(False)

        def test_raises(self) -> None:
            raise RuntimeError

    return unittest.TestLoader().loadTestsFromTestCase(Canary)


def _name(test: Any) -> str:
    return str(getattr(test, "_testMethodName", None) or test)[:200]
