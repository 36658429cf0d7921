"""Programs made of problems and answers."""

from __future__ import annotations

from evaluation.evaluation_parts import bigcodebench_problem, ds1000_problem, humaneval_problem, mbpp_problem

from vocabx_utils.evaluation.programs import build_program, reference_answer


def test_programs_of_references_run() -> None:
    for problem in (humaneval_problem(), mbpp_problem(), bigcodebench_problem()):
        parts = build_program(problem, reference_answer(problem))
        space: dict[str, object] = {"__name__": "answer"}
        exec(parts.solution, space)
        exec(parts.test, space)
        assert parts.style == ("unittest" if problem.benchmark == "bigcodebench" else "asserts")


def test_answers_may_leave_out_imports_of_the_code_start() -> None:
    parts = build_program(humaneval_problem(), "def add(a: List[int], b) -> int:\n    return a + b\n")
    space: dict[str, object] = {}
    exec(parts.solution, space)
    exec(parts.test, space)
    assert callable(space["add"]) and space["add"](1, 2) == 3


def test_ds1000_programs_call_both_checks() -> None:
    problem = ds1000_problem()
    assert build_program(problem, "x").test.endswith("test_execution(code)\n")
    both = problem.__class__(**{**problem.__dict__, "test": "def test_string(code): ..."})
    assert build_program(both, "x").test.endswith("test_execution(code)\ntest_string(code)\n")
    assert build_program(both, "x").style == "ds1000"
