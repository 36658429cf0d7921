"""Two hundred made-up replies: ten right solutions, each in twenty forms in which chat models give them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reply:
    """A reply, named `form/solution`, that holds a right answer."""

    name: str
    entry_point: str  # the function that is asked for
    text: str  # what the model says
    check: str  # an expression that is true of right answers


# name of the function: a right solution, a wrong one, an expression that holds, a call to show
SOLUTIONS: dict[str, tuple[str, str, str, str]] = {
    "add": ("def add(a, b):\n    return a + b", "def add(a, b):\n    return a - b", "add(1, 2) == 3", "add(1, 2)"),
    "area": (
        "import math\n\nUNIT = 1.0\n\ndef square(r):\n    return r * r\n\n"
        "def area(r):\n    return math.pi * square(r) * UNIT",
        "def area(r):\n    return r",
        "round(area(1), 2) == 3.14",
        "area(2)",
    ),
    "fib": (
        "from functools import lru_cache\n\n@lru_cache(maxsize=None)\ndef fib(n):\n    if n < 2:\n        return n\n"
        "    return fib(n - 1) + fib(n - 2)",
        "def fib(n):\n    return n",
        "fib(10) == 55",
        "fib(5)",
    ),
    "count_up": (
        "def count_up(n):\n    for i in range(n):\n        yield i",
        "def count_up(n):\n    return []",
        "list(count_up(3)) == [0, 1, 2]",
        "list(count_up(2))",
    ),
    "lookup": (
        "TABLE = {}\nTABLE['a'] = 1\nTABLE.update(b=2)\n\ndef lookup(key):\n    return TABLE[key]",
        "def lookup(key):\n    return 0",
        "lookup('a') + lookup('b') == 3",
        "lookup('a')",
    ),
    "tag": (
        "def tag(text):\n    return '<s>' + text + '</s>' + '<|end|>'",
        "def tag(text):\n    return text",
        "tag('x') == '<s>x</s><|end|>'",
        "tag('y')",
    ),
    "fenced": (
        'def fenced(code):\n    """Put code into a fence.\n\n    ```\n    x = 1\n    ```\n    """\n'
        "    return '```\\n' + code + '\\n```'",
        "def fenced(code):\n    return code",
        "fenced('x').count('`') == 6",
        "fenced('x')",
    ),
    "Stack": (
        "class Node:\n    def __init__(self, value, below):\n        self.value, self.below = value, below\n\n"
        "class Stack:\n    def __init__(self):\n        self.top = None\n\n    def push(self, value):\n"
        "        self.top = Node(value, self.top)\n        return self",
        "class Stack:\n    pass",
        "Stack().push(1).top.value == 1",
        "Stack()",
    ),
    "draw": (
        "import random\n\nrandom.seed(7)\nSTATE = random.random()\n\ndef draw():\n    return STATE",
        "def draw():\n    return 0",
        "draw() == __import__('random').Random(7).random()",
        "draw()",
    ),
    "twice": (
        "try:\n    from quickmath import double\nexcept ImportError:\n    def double(x):\n        return 2 * x\n\n"
        "twice = lambda x: double(x)",
        "def twice(x):\n    return x",
        "twice(4) == 8",
        "twice(1)",
    ),
}


def _indented(code: str) -> str:
    return "".join(f"   {line}\n" if line else "\n" for line in code.split("\n"))


# {code} the right solution, {wrong} the wrong one, {call} an example of use, {inside} the solution indented by three
FORMS: dict[str, str] = {
    "bare": "{code}\n",
    "fence": "```python\n{code}\n```",
    "fence-and-prose": "Here's the function you asked for:\n\n```python\n{code}\n```\n\nIt doesn't need anything else.",
    "plain-fence": "```\n{code}\n```\nThat is all.",
    "glued-fence": "```python\n{code}```",
    "open-fence": "Sure.\n```python\n{code}\n",
    "tilde-fence": "~~~python\n{code}\n~~~\nDone.",
    "long-fence": "````python\n{code}\n````\nDone.",
    "list-item": "1. Write the function:\n\n   ```python\n{inside}   ```\n2. Call it.",
    "language-line": "```\npython\n{code}\n```",
    "prose-around": "Sure! It's simple:\n\n{code}\n\nThat's the function, isn't it nice?",
    "prose-that-parses": "Yes\nof_course\n\nHere is what we do:\n{code}\n\nThis function returns what was asked for.",
    "usage": "```python\n{code}\n\n# Example usage\ndata = open('missing.txt').read()\nprint({call}, data)\n```",
    "main-guard": "```python\n{code}\n\nif __name__ == 'answer':\n    raise SystemExit({call})\n```",
    "example-block": "```python\n{code}\n```\nUse it so:\n```python\nprint({call})\n```",
    "corrected": "```python\n{wrong}\n```\nWait, that is wrong. The right one:\n```python\n{code}\n```",
    "cut-off-second": "```python\n{code}\n```\nAnother way:\n```python\n{wrong}\n    x = (",
    "end-of-text": "```python\n{code}<|endoftext|>",
    "begun-token": "```python\n{code}<|endof\n```",
    "next-turn": "{code}</s>\nUser: and now?\nAssistant: ```python\nprint('no')\n```",
}


def made_up_replies() -> list[Reply]:
    """Return all replies."""
    return [
        Reply(
            f"{form}/{name}", name, template.format(code=right, wrong=wrong, call=call, inside=_indented(right)), check
        )
        for form, template in FORMS.items()
        for name, (right, wrong, check, call) in SOLUTIONS.items()
    ]
