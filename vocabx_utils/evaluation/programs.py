"""From problem and answer to the program that the sandbox runs."""

from __future__ import annotations

import builtins

from vocabx_utils.evaluation.benchmarks import INFO, Problem
from vocabx_utils.evaluation.sandbox import Strict, Task
from vocabx_utils.evaluation.statements import global_names


def build_program(problem: Problem, answer: str, *, strict: bool = False) -> Task:
    """Combine a problem and an answer.

    The answer is the whole program (or, for DS-1000, the snippet). For HumanEval and BigCodeBench the code
    start precedes it with `pass` as body, as in BigCodeBench's calibrated mode: this supplies imports and
    helper functions that an answer leaves out, and the answer's own definition replaces the stub.

    Args:
        answer: code taken from the model's reply, see `answers.extract_answer`.
        strict: compare values outside the answer's process; a `ValueError` where answers do not return plain data.
    """
    test, style = f"{problem.test}\n", "asserts"
    if problem.benchmark == "ds1000":
        calls = "test_execution(code)\n" + ("test_string(code)\n" if "test_string(" in problem.test else "")
        test, style = test + calls, "ds1000"
    elif problem.benchmark == "bigcodebench":
        answer, test, style = f"{problem.code_start}\n    pass\n{answer}", problem.test, "unittest"
    elif problem.benchmark == "humaneval":
        answer = f"{problem.code_start}\n    pass\n\n{answer}"
        test += f"check({problem.entry_point})\n"
    elif setup := problem.metadata["test_setup_code"]:
        test = f"{setup}\n{test}"
    return Task(answer, test, style, strict_part(problem, test) if strict else None)


def reference_answer(problem: Problem) -> str:
    """Return the reference solution in the form of an answer, to be given to `build_program`."""
    if problem.benchmark in ("mbpp", "ds1000"):
        return problem.reference
    return problem.complete_prompt + problem.reference


def strict_part(problem: Problem, test: str) -> Strict:
    """Say what strict mode asks the process of the candidate for, and what the trusted one defines itself."""
    if not INFO[problem.benchmark].strict:
        plain = " and ".join(name for name, info in INFO.items() if info.strict)
        raise ValueError(f"strict mode is for {plain}, whose answers return plain data, not for {problem.benchmark}")
    if problem.benchmark == "humaneval":
        # Helpers of the prompt, such as `poly`, come from the prompt and not from the answer.
        return Strict((problem.entry_point,), f"{problem.code_start}\n    pass\n")
    binds, reads = global_names(test)
    return Strict(tuple(sorted({problem.entry_point} | (reads - binds - set(dir(builtins))))))
