"""Overlap of training pairs with problems."""

from __future__ import annotations

import pytest
from evaluation.evaluation_parts import humaneval_problem, mbpp_problem

from vocabx_utils.corpus import Pair
from vocabx_utils.evaluation.contamination import decontaminate, ngrams, overlap, words

COPIED = Pair("Write it.", "def twice(x):\n    return 2 * x")
CLEAN = Pair("Sum a list.", "def total(values):\n    return sum(values)")


def test_words_ignore_layout_and_case() -> None:
    assert words("Def  f(x):\n\treturn X") == ["def", "f", "(", "x", ")", ":", "return", "x"]


def test_short_texts_are_one_ngram() -> None:
    assert ngrams(list("abcdefgh"), 13) == {tuple("abcdefgh")}
    assert ngrams(list("abc"), 13) == set()
    assert len(ngrams(list("abcdef"), 3)) == 4


def test_a_copied_problem_is_found_by_text_and_by_name() -> None:
    problems = [mbpp_problem()]
    by_text = overlap([CLEAN, COPIED], problems, n=6)
    assert by_text.touched_pairs == {1} and by_text.hits[0].ngrams > 0
    renamed = Pair("Another.", "def twice(values): ...")
    by_name = overlap([CLEAN, renamed], problems)
    assert (by_name.hits[0].name, by_name.hits[0].ngrams, by_name.row()["by function name"]) == ("twice", 0, 1)


def test_a_problem_quoted_in_a_query_is_found() -> None:
    quoted = Pair("Please solve: write a FUNCTION that doubles a number.\nassert twice(2) == 4", "no")
    report = overlap([quoted], [mbpp_problem()], n=8)
    assert {hit.task_id for hit in report.hits} == {"Mbpp/11"} and report.row()["touched"] == 1


def test_text_shared_by_problems_does_not_count() -> None:
    problems = [humaneval_problem(0), humaneval_problem(1)]
    pair = Pair(problems[0].prompt, problems[0].reference)
    assert overlap([pair], problems).hits == ()


def test_everyday_names_do_not_count() -> None:
    assert overlap([Pair("q", "def add(x): ...")], [humaneval_problem()]).hits == ()


def test_filter_keeps_order_and_reports() -> None:
    left, reports = decontaminate([CLEAN, COPIED, CLEAN], [[mbpp_problem()], [humaneval_problem()]], n=6)
    assert left == [CLEAN, CLEAN]
    assert [report.row()["pairs touched"] for report in reports] == [1, 0]


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="n=1"):
        overlap([CLEAN], [mbpp_problem()], n=1)
