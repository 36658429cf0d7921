"""Classes of failures."""

from __future__ import annotations

import pytest
from evaluation.evaluation_parts import result

from vocabx_utils.evaluation.failures import failure_class, failure_table
from vocabx_utils.evaluation.results import Result

START = 'def f(x):\n    """Double a number.\n\n    >>> f(1)\n    2\n    """'
PROSE = "This function first creates a list of random names and then it writes them."
CASES = [
    (result("Mbpp/1", True), {}, ""),
    (result("Mbpp/1"), {"solution": "def f(): return 1"}, "wrong answer"),
    (result("Mbpp/1", status="timeout", reason=""), {}, "timeout"),
    (result("Mbpp/1", reason="error", exception="KeyError"), {"solution": "x"}, "exception"),
    (result("Mbpp/1", reason="syntax", exception="SyntaxError"), {"solution": "def f(:"}, "syntax"),
    (result("Mbpp/1", reason="syntax"), {"solution": PROSE}, "no code"),
    (result("Mbpp/1", reason="error", exception="NameError"), {"solution": ""}, "no code"),
    (result("Mbpp/1", reason="syntax"), {"solution": "def f(x):\n    return (x", "finish": "length"}, "truncated"),
    (result("Mbpp/1"), {"solution": "def f(): return 1", "finish": "length"}, "wrong answer"),
    (result("Mbpp/1", reason="memory"), {}, "memory"),
    (result("Mbpp/1", reason="tamper"), {}, "refused"),
    (result("Mbpp/1", reason="crash"), {}, "crash"),
]


def unloaded(text: str) -> Result:
    """Make the result of a solution that strict mode could not load, whose traceback ends in `text`."""
    shown = f"in compile_source\n    return compile(source)\n  File 'solution.py', line 7\n    x x\n      ^\n{text}\n\n"
    return result("Mbpp/1", reason="error", exception="CandidateLoadError", details={"test_main": shown})


def written(reply: str, **facts: str) -> dict[str, str]:
    """Make the row of a sample whose prompt ended in `START`."""
    return {"solution": START + reply.removeprefix("\n```"), "raw_solution": reply, **facts}


NOT_READ = "SyntaxError: invalid syntax"
LOAD_CASES = [
    (unloaded(NOT_READ), {}, "syntax"),
    (unloaded(NOT_READ), written("\n    return (x x)"), "syntax"),
    (unloaded(NOT_READ), written("\n    return (x x", finish="length"), "truncated"),
    (unloaded("IndentationError: unexpected indent"), written("\n  return x"), "syntax"),
    (unloaded(NOT_READ), written(f"\n```\n\n### Explanation:\n{PROSE}", finish="length"), "no code"),
    (unloaded("NameError: name 'y' is not defined"), written("\ny"), "exception"),
    (unloaded("ModuleNotFoundError: No module named 'x'"), written("\nimport x"), "exception"),
    (unloaded("MemoryError"), written("\n    x"), "memory"),
    (unloaded("AssertionError"), written("\n    return x\nassert f(1) == 2"), "wrong answer"),
    (unloaded("the end of a long message"), written("\n    return x"), "exception"),
]
EMPTY_CASES = [
    (result("Mbpp/1"), written("\n```\n"), "no code"),
    (result("Mbpp/1"), written("\n    # to do\n"), "no code"),
    (result("Mbpp/1"), written("\n    return x"), "wrong answer"),
    (result("Mbpp/1"), {"solution": START + "\n    return x", "raw_solution": "\n    return x```"}, "wrong answer"),
    (result("Mbpp/1"), {"solution": START + "\n    return x"}, "wrong answer"),
]


@pytest.mark.parametrize(("outcome", "sample", "expected"), CASES + LOAD_CASES + EMPTY_CASES)
def test_failure_classes(outcome: Result, sample: dict[str, str], expected: str) -> None:
    assert failure_class(outcome, sample) == expected


def test_failure_table_counts_by_variant() -> None:
    outcomes = [
        result("Mbpp/1", True),
        result("Mbpp/2", reason="error", details={"ALL": "Traceback\npandas.errors.KeyError: 3"}),
        result("Mbpp/3", reason="syntax"),
    ]
    samples = [{"task_id": "Mbpp/3", "solution": PROSE}]
    row = failure_table({"base": outcomes}, {"base": samples}).iloc[0]
    assert (row["passed"], row["exception"], row["no code"]) == (1, 1, 1)
    assert row["exceptions"] == "KeyError 1"


def test_an_answer_that_did_not_load_is_counted_by_what_loading_raised() -> None:
    outcomes = [unloaded("ModuleNotFoundError: No module named 'x'"), unloaded("the end of a long message")]
    assert failure_table({"base": outcomes}, {}).exceptions[0] == "ModuleNotFoundError 1, CandidateLoadError 1"
