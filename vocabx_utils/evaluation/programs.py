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
        strict: compare values outside the answer's process.

    Raises:
        ValueError: strict mode for a benchmark whose answers do not return plain data.
    """
    solution, test, style = _parts(problem, answer)
    return Task(solution, test, style, strict_part(problem, test) if strict else None)


def _parts(problem: Problem, answer: str) -> tuple[str, str, str]:
    if problem.benchmark == "ds1000":
        calls = "\ntest_execution(code)\n" + ("test_string(code)\n" if "test_string(" in problem.test else "")
        return answer, problem.test + calls, "ds1000"
    if problem.benchmark == "bigcodebench":
        return f"{problem.code_start}\n    pass\n{answer}", problem.test, "unittest"
    if problem.benchmark == "humaneval":
        stub = f"{problem.code_start}\n    pass\n\n{answer}"
        return stub, f"{problem.test}\ncheck({problem.entry_point})\n", "asserts"
    setup = problem.metadata["test_setup_code"]
    return answer, f"{setup}\n{problem.test}\n" if setup else f"{problem.test}\n", "asserts"


def reference_answer(problem: Problem) -> str:
    """Return the reference solution in the form of an answer, to be given to `build_program`."""
    if problem.benchmark in ("mbpp", "ds1000"):
        return problem.reference
    return problem.complete_prompt + problem.reference


def strict_part(problem: Problem, test: str) -> Strict:
    """Say what strict mode must ask the candidate's process for, and what the trusted one defines itself.

    Raises:
        ValueError: a benchmark whose answers do not return plain data.
    """
    if not INFO[problem.benchmark].strict:
        plain = " and ".join(name for name, info in INFO.items() if info.strict)
        raise ValueError(f"strict mode is for {plain}, whose answers return plain data, not for {problem.benchmark}")
    if problem.benchmark == "humaneval":
        # Helpers of the prompt, such as `poly`, come from the prompt and not from the answer.
        return Strict((problem.entry_point,), f"{problem.code_start}\n    pass\n")
    binds, reads = global_names(test)
    return Strict(tuple(sorted({problem.entry_point} | (reads - binds - set(dir(builtins))))))
