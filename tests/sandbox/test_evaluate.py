"""A list of answers in, a table out."""

from __future__ import annotations

import pytest

from vocabx_utils.evaluation.evaluate import evaluate_answers


@pytest.mark.sandbox
def test_rows_of_a_model_are_taken_as_they_are(make_problem) -> None:
    problems = [make_problem(number) for number in (11, 12, 13)]
    rows = [
        {"task_id": "Mbpp/13", "solution": "I am sorry, I cannot help you with this one.", "finish": "eos"},
        {"task_id": "Mbpp/11", "solution": "def add_11(x):\n    return x + 11", "sample": 0},
        {"task_id": "Mbpp/11", "solution": "def add_11(x):\n    return x + 1", "sample": 1},
    ]
    table = evaluate_answers(problems, rows, strict=False, fast=True)
    assert table[["task_id", "sample", "passed", "failure"]].to_numpy().tolist() == [
        ["Mbpp/11", 0, True, ""],
        ["Mbpp/11", 1, False, "wrong answer"],
        ["Mbpp/13", 0, False, "no code"],
    ]
    assert table["kept"].tolist() == [True] * 3


def test_answers_that_fit_no_problem_are_named(make_problem) -> None:
    with pytest.raises(ValueError, match=r"1 unknown \(Mbpp/99\)"):
        evaluate_answers([make_problem(11)], {"Mbpp/99": "x = 1"})
    with pytest.raises(ValueError, match="at least one answer"):
        evaluate_answers("mbpp", {})
    with pytest.raises(ValueError, match="answer 1: expected a text in 'solution'"):
        evaluate_answers("mbpp", [{"task_id": "Mbpp/11"}])
