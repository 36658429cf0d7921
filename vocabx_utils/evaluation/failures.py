"""Why answers failed: one class each, counted by variant."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from vocabx_utils.evaluation.answers import looks_like_prose
from vocabx_utils.evaluation.outcomes import failure_reason
from vocabx_utils.evaluation.results import Result

FAILURE_CLASSES = (
    *("wrong answer", "exception", "syntax", "no code", "timeout"),
    *("truncated", "memory", "crash", "refused"),
)
# other reasons are classes themselves
_REASONS = {"assert": "wrong answer", "error": "exception", "tamper": "refused", "tests_missing": "refused"}
_EXCEPTION = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Interrupt|Exit|Iteration|Warning))\b", re.MULTILINE)
_LOADING = "CandidateLoadError"  # strict mode: the solution did not load; the traceback ends in the reason
_UNREADABLE = ("NameError", "SyntaxError", "IndentationError", "TabError")  # of text that is no program


def exception_name(result: Result) -> str:
    """Return the type of the exception that made an answer fail, of one that did not load the inner one, or `""`."""
    name = str(result.exception).rsplit(".", 1)[-1]
    if name and name != _LOADING:
        return name
    found = [kind for text in result.details.values() for kind in _EXCEPTION.findall(text)]
    return str(found[-1]) if found else name


def _own_part(sample: Mapping[str, Any]) -> str:
    """Return the lines of an answer that the model wrote, without comments and the code start that its prompt gave."""
    lines = [line for line in str(sample.get("solution", "")).splitlines() if not line.lstrip().startswith("#")]
    if "raw_solution" in sample:
        written = [line.strip() for line in str(sample["raw_solution"]).splitlines()]
        # What was glued to the end of a line, such as a fence, is not in the answer.
        lines = [line for line in lines if any(raw.startswith(line.strip()) for raw in written if line.strip())]
    return "\n".join(lines)


def failure_class(result: Result, sample: Mapping[str, Any] | None = None) -> str:
    """Name the way in which an answer, whose row in the samples file is `sample`, failed.

    Natural language instead of code, the commonest failure that the thesis reports, is `no code`, and so is an answer
    to which the model added nothing. One that was cut off at the token limit and does not compile is `truncated`.

    Returns:
        `""` for a pass, else one of `FAILURE_CLASSES`.
    """
    if result.passed:
        return ""
    if result.status == "timeout":
        return "timeout"
    raised = exception_name(result)
    reason = failure_reason(raised) if result.exception == _LOADING else result.reason
    unreadable = reason == "syntax" or raised in _UNREADABLE
    if sample and (unreadable or reason == "assert"):
        own = _own_part(sample)
        if not own.strip() or (unreadable and looks_like_prose(own)):
            return "no code"
    if unreadable and sample and sample.get("finish") == "length":
        return "truncated"
    named = _REASONS.get(reason, reason)
    return named if named in FAILURE_CLASSES else "exception"


def failure_table(
    results: Mapping[str, Sequence[Result]], samples: Mapping[str, Sequence[Mapping[str, Any]]]
) -> pd.DataFrame:
    """Count the classes of failures of each variant, whose rows in the samples files are `samples`.

    Returns:
        One row per variant: `passed`, every class that occurs, and `exceptions`, the commonest types.
    """
    rows = []
    for variant, outcomes in results.items():
        by_task = {(row["task_id"], row.get("sample", 0)): row for row in samples.get(variant, ())}
        classes = [(row, failure_class(row, by_task.get((row.task_id, row.sample)))) for row in outcomes]
        counts = Counter(name for _, name in classes if name)
        types = Counter(exception_name(row) or "unknown" for row, name in classes if name == "exception")
        common = ", ".join(f"{name} {count}" for name, count in types.most_common(3))
        passed = sum(row.passed for row in outcomes)
        rows.append({"variant": variant, "passed": passed, **counts, "exceptions": common})
    columns = ["variant", "passed", *(c for c in FAILURE_CLASSES if any(c in row for row in rows)), "exceptions"]
    return pd.DataFrame(rows, columns=columns).fillna(0).astype({c: int for c in columns[1:-1]})
