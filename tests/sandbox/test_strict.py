"""Strict mode: only plain values cross, and the comparison is out of the candidate's reach."""

from __future__ import annotations

import itertools
import math
from collections import Counter, OrderedDict, namedtuple
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vocabx_utils.evaluation.benchmarks import Problem
from vocabx_utils.evaluation.environments import Environment
from vocabx_utils.evaluation.execution import strict_part
from vocabx_utils.evaluation.jailed.literals import NotPlainError, decode, encode
from vocabx_utils.evaluation.sandbox import Limits, Sandbox, Strict, Task

_atoms = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False, allow_infinity=False)
)
_keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
_values = st.recursive(
    _atoms,
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(_keys, inner)
        | st.sets(_keys)
        | st.frozensets(_keys)
    ),
    max_leaves=12,
)


@given(_values)
def test_plain_values_survive_the_crossing(value: object) -> None:
    back = decode(encode(value))
    assert back == value
    assert type(back) is type(value)


def test_special_values_survive() -> None:
    assert math.isnan(decode(encode(float("nan"))))
    assert decode(encode([float("inf"), float("-inf")])) == [math.inf, -math.inf]
    assert decode(encode({frozenset({1}), frozenset()})) == {frozenset({1}), frozenset()}
    assert decode(encode(set())) == set()
    assert decode(encode(10**5000)) == 10**5000


def test_subclasses_lose_their_methods() -> None:
    class Sly(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    assert decode(encode(Sly(3))) != 4
    pair = namedtuple("pair", "a b")
    for value, plain in ((Counter("aab"), {"a": 2, "b": 1}), (OrderedDict(x=1), {"x": 1}), (pair(1, 2), (1, 2))):
        assert decode(encode(value)) == plain
        assert type(decode(encode(value))) is type(plain)


def test_what_is_not_plain_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    for value in (object(), [object()], lambda: 1, itertools.count(), loop):
        with pytest.raises(NotPlainError):
            encode(value)
    for text in ("__import__('os')", "open('x')", "x", "[1, y]", "1 if 1 else 2", "(" * 500, "{[1]: 2}", "f'{1}'"):
        with pytest.raises(NotPlainError):
            decode(text)


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("solution", "test", "status"),
    [
        ("def f(x): return x * 2", "assert f(2) == 4 and f('a') == 'aa'", "pass"),
        ("def f(x): return x", "assert f(2) == 4", "fail"),
        (
            "def f(x): raise ValueError('no')",
            "try:\n    f(1)\nexcept ValueError as e:\n    assert 'no' in str(e)\nelse:\n    assert False",
            "pass",
        ),
        ("def f(x): raise SystemExit", "assert f(1) == 1", "fail"),
        ("def f(x): return x\nassertEqual = None", "assert f(float('inf')) == float('inf')", "pass"),
        ("def f(x): return open", "assert f(1)", "fail"),
        ("def g(x): return x", "assert f(1) == 1", "fail"),
        ("def f(x:", "assert f(1) == 1", "fail"),
        ("while True: pass", "assert f(1) == 1", "timeout"),
        ("def f(x):\n    while True: pass", "assert f(1) == 1", "timeout"),
        ("import os\nos._exit(0)", "assert f(1) == 1", "fail"),
    ],
)
def test_strict_verdicts(solution: str, test: str, status: str, plain: Environment) -> None:
    with Sandbox(plain.view) as sandbox:
        verdict = sandbox.run(Task(solution, test, "asserts", Strict(("f",))), Limits(timeout_s=2))
    assert verdict.status == status, verdict.details


@pytest.mark.sandbox
def test_helpers_come_from_the_prompt_and_not_from_the_answer(plain: Environment) -> None:
    prompt = (
        "def poly(xs, x):\n    return sum(c * x**i for i, c in enumerate(xs))\n\n\ndef find_zero(xs):\n    ''' '''\n"
    )
    problem = Problem("HumanEval/32", "humaneval", prompt, prompt, prompt, "", "", "find_zero", "humaneval")
    test = "assert abs(poly([1, 2], find_zero([1, 2]))) < 1e-6"
    part = strict_part(problem, test)
    cheat = "def poly(xs, x):\n    return 0\ndef find_zero(xs):\n    return 7\n"
    right = "def find_zero(xs):\n    return -xs[0] / xs[1]\n"
    with Sandbox(plain.view) as sandbox:
        assert sandbox.run(Task(cheat, test, "asserts", part)).status == "fail"
        assert sandbox.run(Task(right, test, "asserts", part)).status == "pass"


def test_strict_mode_is_refused_for_other_benchmarks(make_problem: Callable[..., Problem]) -> None:
    import dataclasses

    problem = dataclasses.replace(make_problem(3), benchmark="ds1000")
    with pytest.raises(ValueError, match="strict mode is for humaneval and mbpp"):
        strict_part(problem, problem.test)


def test_names_that_a_test_needs_are_asked_for(make_problem: Callable[..., Problem]) -> None:
    problem = make_problem(3)
    test = "import math\nwanted = [x for x in (1, 2)]\nassert math.isclose(add_3(1), helper(wanted))\n"
    assert strict_part(problem, test).names == ("add_3", "helper")
