"""Strict mode: only plain values cross, and the comparison is out of the candidate's reach."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, OrderedDict, deque, namedtuple
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from evaluation.evaluation_parts import result
from hypothesis import given
from hypothesis import strategies as st

from vocabx_utils.evaluation.benchmarks import Problem
from vocabx_utils.evaluation.environments import Environment
from vocabx_utils.evaluation.failures import failure_class
from vocabx_utils.evaluation.jailed.literals import NotPlainError, copy_into, decode, encode
from vocabx_utils.evaluation.programs import strict_part
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


@pytest.mark.parametrize(
    "value",
    [
        range(5),
        range(8, 0, -2),
        deque([1, [2]], 4),
        Decimal("1.50"),
        Fraction(2, 6),
        bytearray(b"ab"),
        [range(2), (Decimal(3),)],
        {"a": frozenset({1, 2})},
    ],
)
def test_plain_values_without_a_literal_survive(value: object) -> None:
    back = decode(encode(value))
    assert back == value
    assert type(back) is type(value)


def test_iterators_and_views_compare_as_they_did() -> None:
    assert list(decode(encode(number * 2 for number in range(3)))) == [0, 2, 4]
    assert decode(encode(map(str, [1]))) != ["1"]  # as in the official test
    table = {"b": 1, "a": [2]}
    assert decode(encode(table.keys())) == {"a", "b"}
    assert sorted(decode(encode(table.keys()))) == ["a", "b"]
    assert list(decode(encode(table.values()))) == [1, [2]]
    assert dict(decode(encode(table.items()))) == table
    assert list(decode(encode(reversed([1, 2])))) == [2, 1]


def test_numpy_scalars_are_numbers() -> None:
    numbers = [np.int64(3), np.float32(0.5), np.float64(2.5), np.bool_(True), np.str_("x"), np.complex64(1j)]
    back = decode(encode(numbers))
    assert back == [3, 0.5, 2.5, True, "x", 1j]
    assert [type(value) for value in back] == [int, float, float, bool, str, complex]
    with pytest.raises(NotPlainError):
        encode(np.array([1, 2]))  # `array == list` has no truth value in the official test either


def test_changes_in_place_come_back_into_the_same_objects() -> None:
    inner, table, seen = [1], {"k": [1], "gone": 0}, {1, 2}
    arguments = ([inner, 5, [9]], table, seen, deque([1]))
    kept = table["k"]
    copy_into(arguments, ([[1, 7], 6], {"k": [2], "new": 1}, {2, 3}, deque([4, 5])))
    assert arguments == ([[1, 7], 6], {"k": [2], "new": 1}, {2, 3}, deque([4, 5]))
    assert arguments[0][0] is inner and table["k"] is kept


@pytest.mark.parametrize(
    "text",
    [
        "range(1)",
        "range(*[1, 2])",
        "iter('ab')",
        "bytearray(10)",
        "Fraction('1e9')",
        "Decimal(1)",
        "deque([], 'x')",
        "range(0, 1, 0)",
        "dict_items([1])",
        "frozenset([[]])",
        "range(start=1)",
        "dict([])",
    ],
)
def test_calls_in_a_literal_take_their_own_arguments_only(text: str) -> None:
    with pytest.raises(NotPlainError):
        decode(text)


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
        ("def f(x): x.sort()", "a = [3, 1]\nf(a)\nassert a == [1, 3]", "pass"),
        ("def f(x): x[0].append(2); x.pop()", "a = [b := [1], 5]\nf(a)\nassert a == [[1, 2]] and b is a[0]", "pass"),
        ("def f(x): pass", "a = [3, 1]\nf(a)\nassert a == [1, 3]", "fail"),
        ("def f(**o): o['x'].add(3)", "a = {1}\nf(x=a)\nassert a == {1, 3}", "pass"),
        ("def f(x): yield from range(x)", "assert list(f(3)) == [0, 1, 2] and sum(f(3)) == 3", "pass"),
        ("def f(x): return range(x)", "assert list(f(3)) == [0, 1, 2] and f(3) == range(3)", "pass"),
        ("def f(x): return range(x)", "assert f(3) == [0, 1, 2]", "fail"),
        ("import numpy as np\ndef f(x): return np.sum(x)", "assert f([1, 2]) == 3", "pass"),
        ("def f(x): return x.keys()", "assert sorted(f({2: 0, 1: 0})) == [1, 2]", "pass"),
        ("import builtins\nbuiltins.compile = lambda *a, **k: 1\ndef f(x): return 2", "assert f(1) == 1", "fail"),
    ],
)
@pytest.mark.parametrize("forked", [False, True], ids=["fresh", "forked"])
def test_strict_verdicts(solution: str, test: str, status: str, forked: bool, plain: Environment) -> None:
    limits = Limits(timeout_s=2 if status == "timeout" else 20)  # the machine may be busy
    with Sandbox(plain.view, forked=forked) as sandbox:
        verdict = sandbox.run(Task(solution, test, "asserts", Strict(("f",))), limits)
    assert verdict.status == status, verdict.details


@pytest.mark.sandbox
@pytest.mark.parametrize("forked", [False, True], ids=["fresh", "forked"])
def test_a_tester_that_is_slow_to_come_does_not_turn_a_timeout_into_a_crash(
    forked: bool, plain: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = Sandbox._ready

    def slow(self: Sandbox, *args: object, grouped: bool, **kwargs: object) -> object:
        if not grouped:  # the tester's jail: longer than the candidate's processor time
            time.sleep(3.5)
        return ready(self, *args, grouped=grouped, **kwargs)

    monkeypatch.setattr(Sandbox, "_ready", slow)
    with Sandbox(plain.view, forked=forked) as sandbox:
        verdict = sandbox.run(Task("while True: pass", "f(1)", "asserts", Strict(("f",))), Limits(timeout_s=0.5))
    assert verdict.status == "timeout", verdict.details


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        ("\n    return (x x)", "syntax"),
        ("\n    return (x +", "truncated"),
        ("\n```\n### Explanation:\nThis function adds a number to the number that it gets.", "no code"),
        ("\n```\n", "no code"),
        ("\n    return missing", "exception"),
        ("\n    return 0", "wrong answer"),
    ],
)
def test_failures_of_answers_that_do_not_load_have_a_class(reply: str, expected: str, plain: Environment) -> None:
    start = 'def f(x):\n    """Add a number.\n    """'
    solution = start + reply.replace("\n```", "")
    with Sandbox(plain.view) as sandbox:
        outcome = sandbox.run(Task(solution, "assert f(1) == 2", "asserts", Strict(("f",))))
    found = result("Mbpp/1", reason=outcome.reason, exception=outcome.exception, details=outcome.details)
    finish = "length" if expected == "truncated" else "stop"
    assert failure_class(found, {"solution": solution, "raw_solution": reply, "finish": finish}) == expected


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
