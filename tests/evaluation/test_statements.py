"""Which statements of an answer are kept."""

from __future__ import annotations

import pytest

from vocabx_utils.evaluation.statements import reachable

USED = "import math\n\nLIMIT = 3\n\ndef half(x):\n    return x / 2\n\ndef f(n, df=None):\n    return half(n) < LIMIT"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (f"{USED}\n\n# Example usage\ndf = open('data.csv')\nprint(f(df))", USED),
        (f"{USED}\n\nif __name__ == '__main__':\n    f(2)", USED),
        ("def f(n):\n    return g(n)\n\ndef g(n):\n    return K\n\nK = 1\nprint(f(2))", None),
        ("def f(n):\n    return h(n)\n\ntry:\n    from fast import h\nexcept ImportError:\n    h = abs\nf(1)", None),
        ("class f:\n    b = c\n\nprint(f)", "class f:\n    b = c"),
        ("def keep(g):\n    return g\n\n@keep\ndef f(n):\n    return n\n\nf(1)", None),
        ("def other(n):\n    return n\n\nprint(other(1))", "def other(n):\n    return n\n\nprint(other(1))"),
        ("table = {}\ntable[1] = 2\ndef f(n):\n    return table[n]\nprint(f(1))", None),
        ("def f(n):\n    return table[n]\ntable = [0]\nfor i in range(3):\n    table.append(i)\nprint(f(1))", "for"),
        ("import random\nrandom.seed(0)\ndef f(n):\n    return random.random()\nrandom.seed(1)", None),
        ("def f(n):\n    return n\nf(1)\ndef g(n):\n    return f(n)", "def f(n):\n    return n"),
        ("def g():\n    return 1\nprint(g())\ndef f(n):\n    return n", "def f(n):\n    return n"),
        ("def f(n):\n    return eval('g(n)')\ndef g(n):\n    return n\nprint(f(1))", None),
        ("def f(a, a):\n    return a", "def f(a, a):\n    return a"),
    ],
)
def test_what_the_function_does_not_reach_is_dropped(answer: str, expected: str | None) -> None:
    """`None`: everything but the last line is needed, whatever the order of the definitions."""
    if expected is None or expected == "for":
        expected = answer.rpartition("\n")[0].rstrip()
    assert reachable(answer, frozenset({"f"})).rstrip() == expected
