"""Classes of failures."""

from __future__ import annotations

import pytest
from evaluation.evaluation_parts import result

from vocabx_utils.evaluation.failures import failure_class, failure_table
from vocabx_utils.evaluation.results import Result

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


@pytest.mark.parametrize(("outcome", "sample", "expected"), CASES)
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
