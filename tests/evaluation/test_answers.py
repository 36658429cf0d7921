"""Code read back from every kind of reply: published rules, right answers that they must not harm, DS-1000's script."""

from __future__ import annotations

import ast
import dataclasses
import itertools
from typing import Any

import pytest
from evaluation.evaluation_parts import (
    bigcodebench_problem,
    ds1000_problem,
    humaneval_problem,
    load_or_skip,
    mbpp_problem,
)
from evaluation.made_up_replies import Reply, made_up_replies
from transformers import PreTrainedTokenizerFast

from vocabx_utils.evaluation.answers import (
    ds1000_snippet,
    extract_answer,
    find_blocks,
    find_stop,
    longest_part,
    looks_like_prose,
)
from vocabx_utils.evaluation.kept import KeptList
from vocabx_utils.evaluation.programs import reference_answer
from vocabx_utils.evaluation.prompts import Prompt, build_prompt
from vocabx_utils.evaluation.statements import defines

ADD = "def add(a, b):\n    return a + b"
WRONG = "def add(a, b):\n    return a - b"
FENCED = 'def add(a, b):\n    """Add.\n\n    ```{}\n    add(1, 2)\n    ```\n    """\n    return a + b'
SPELT = [
    "<|endoftext|>",
    "<|endof",
    "<|",
    "<",
    "</s>",
    "</s",
    "</",
    "<|im_end|>",
    "<|EOT|>",
    "<|im_end|>\n<|im_start|>user\nHi",
]


def answer_to(prefill: str, reply: str, tokenizer: PreTrainedTokenizerFast, style: str = "chat") -> str:
    """Answer the addition problem."""
    problem = humaneval_problem()
    prompt = build_prompt(problem, tokenizer, style=style, prefill=prefill)
    cut = prompt.kept.endswith('"""') and not reply.startswith("\n")
    return extract_answer(problem, prompt, "\n" + reply if cut else reply)


def adds(answer: str) -> bool:
    """Execute an answer to the addition problem (texts of this file only)."""
    space: dict[str, Any] = {"__name__": "answer"}
    exec(answer, space)
    return space["add"](1, 2) == 3


REPLIES = [
    ("fence", f"{ADD}\n```\nThis adds."),
    ("fence", f"```python\n{ADD}\n```"),
    ("none", f"Here is the code:\n```python\n{ADD}\n```\nIt adds."),
    ("none", f"Try this:\n```\nx = 1\n```\nor\n```python\n{ADD}\n```"),
    ("none", f"```python\n{ADD}"),
    ("none", f"{ADD}\n"),
    ("code", "    return a + b\n```\n"),
    ("code", "\n    return a + b\n"),
    ("code", "\n    return a + b\n\nThis function adds the numbers a and b."),
    ("fence", f"{ADD}\n\ndef unfinished(x):\n    return (x +"),
    # two blocks that define the function: the last one that is whole
    ("none", f"```python\n{WRONG}\n```\nNo, that subtracts. Better:\n```python\n{ADD}\n```"),
    ("none", f"```python\n{ADD}\n```\nOr, shorter:\n```python\ndef add(a, b):\n    return (a +"),
    ("none", f"```python\n{ADD}\n```\nUse it so:\n```python\nprint(add(1, 2))\n```"),
    # prose around code without a fence: the longest part that parses
    ("none", f"Sure! Here's the function:\n\n{ADD}\n\nIt's short, isn't it?"),
    ("none", f"To solve this, we add.\nimport math\n{ADD}\nHope this helps!"),
    # a fence in a docstring or string closes nothing
    (
        "none",
        '```python\ndef add(a, b):\n    """Add.\n\n    ```\n    add(1, 2)\n    ```\n    """\n    return a + b\n```',
    ),
    (
        "fence",
        'def add(a, b):\n    """Add.\n\n    ```python\n    add(1, 2)\n    ```\n    """\n    return a + b\n```\nDone',
    ),
    ("fence", "def add(a, b):\n    mark = '```'\n    return a + b\n```\nDone"),
    ("code", "    '''\n```\n'''\n    return a + b\n```"),
    # other fences
    ("none", f"~~~python\n{ADD}\n~~~\nDone."),
    ("none", f"````python\n{ADD}\n````\nDone."),
    ("none", "1. First:\n   ```python\n   def add(a, b):\n       return a + b\n   ```\n2. Done"),
    ("none", f"```\npython\n{ADD}\n```"),
    ("fence", f"{ADD}```"),
    ("none", f"```python\r\n{ADD}\r\n```".replace("\n    ", "\r\n    ")),
    # a language named at the next fence: the first block was not closed
    ("none", f"```python\nx = 1\n```python\n{ADD}\n```"),
]


@pytest.mark.parametrize(("prefill", "reply"), REPLIES)
def test_code_is_found_in_every_kind_of_reply(gpt2_like: PreTrainedTokenizerFast, prefill: str, reply: str) -> None:
    assert adds(answer_to(prefill, reply, gpt2_like))


@pytest.mark.parametrize("token", SPELT)
@pytest.mark.parametrize(
    ("prefill", "reply"),
    [
        ("fence", f"{ADD}@"),
        ("fence", f"{ADD}\n@"),
        ("none", f"Here:\n```python\n{ADD}@\n```\n"),
        ("none", f"{ADD}@"),
        ("code", "    return a + b@"),
        ("code", "    c = a + b\n    return c@"),
    ],
)
def test_spelt_special_tokens_are_cut(gpt2_like: PreTrainedTokenizerFast, prefill: str, reply: str, token: str) -> None:
    """B58: a special token, or a piece of one, stood glued to the last line of right answers."""
    assert adds(answer_to(prefill, reply.replace("@", token), gpt2_like))


@pytest.mark.parametrize("token", ["<|endoftext|>", "</s>", "<|", "</div>"])
@pytest.mark.parametrize("wrap", ["```python\n{}\n```", "{}", "Prose first.\n\n{}\n\nProse last."])
def test_special_tokens_in_strings_stay(gpt2_like: PreTrainedTokenizerFast, token: str, wrap: str) -> None:
    code = f'def add(a, b):\n    names = ["{token}"] * 20\n    """{token}\n    """\n    return a + b'
    answer = answer_to("none", wrap.format(code), gpt2_like)
    assert answer.strip() == code


def test_what_follows_the_end_of_a_turn_is_not_read(gpt2_like: PreTrainedTokenizerFast) -> None:
    reply = f"```python\n{ADD}<|im_end|>\n<|im_start|>user\nAnd subtract?\n```python\n{WRONG}\n```"
    assert adds(answer_to("none", reply, gpt2_like))
    assert adds(answer_to("none", f"```python\n{ADD}\n```<|im_end|>\n```python\n{WRONG}\n```", gpt2_like))


def test_without_stop_the_reply_is_kept_whole(gpt2_like: PreTrainedTokenizerFast) -> None:
    """B57: a reply without any stop text was emptied."""
    problem = mbpp_problem()
    prompt = build_prompt(problem, gpt2_like)
    assert find_stop("def twice(x):\n    return x", prompt) is None
    assert extract_answer(problem, prompt, "def twice(x):\n    return x") == "def twice(x):\n    return x"
    assert extract_answer(problem, prompt, "no code at all") == "no code at all"


def test_stops(gpt2_like: PreTrainedTokenizerFast) -> None:
    """Our own fence ends the reply; one that the model opens does not: a later block may correct an earlier one."""
    open_fence = build_prompt(humaneval_problem(), gpt2_like, prefill="fence")
    free = build_prompt(humaneval_problem(), gpt2_like, prefill="none")
    assert find_stop("x = 1\n```", open_fence) == 9
    assert find_stop("```python\nx = 1\n", open_fence) is None
    assert find_stop("```python\nx = 1\n```\nDone", open_fence) == 19
    assert find_stop('def f():\n    """\n    ```', open_fence) is None, "the fence stands in a docstring"
    assert find_stop('def f():\n    """\n    ```\n    """\n```', open_fence) == 36
    assert find_stop("Text\n```python\nx = 1\n```", free) is None


def test_blocks_of_a_degenerate_reply_are_found_in_time(gpt2_like: PreTrainedTokenizerFast) -> None:
    free = build_prompt(humaneval_problem(), gpt2_like, prefill="none")
    assert len(find_blocks("```\n" * 400, free)) == 200
    reply = f"Here is\n{ADD}" + "</s>" * 500 + "\nx = (" * 150
    assert adds(extract_answer(humaneval_problem(), free, reply))


DS_REPLIES = [
    ("result = len(x)\n</code>\nEND SOLUTION", "result = len(x)\n"),
    ("```python\nresult = len(x)\n```\nprint(1)", "\nresult = len(x)\n"),
    ("result = len(x)\nEND SOLUTION", "result = len(x)"),
    ("<code>\nresult = len(x)\n# SOLUTION END\nprint(1)", "\nresult = len(x)\n"),
    ("    result = len(x)\n    return result\n", "    result = len(x)\n    return result\n"),
    (
        "import numpy as np\nx = np.arange(3)\nresult = len(x)\n",
        "import numpy as np\nx = np.arange(3)\nresult = len(x)\n",
    ),
    ("result = len(x)<|endof", "result = len(x)"),
    ("    return len(x)</s>", "    return len(x)"),
    ("result = x.replace('</s>', '')", "result = x.replace('</s>', '')"),
    ("result = len(x)<|im_end|>\n<|im_start|>user", "result = len(x)"),
]


@pytest.mark.parametrize(("reply", "expected"), DS_REPLIES)
def test_snippets_are_cut_as_the_official_script_does(
    gpt2_like: PreTrainedTokenizerFast, reply: str, expected: str
) -> None:
    """No line that repeats the given program is removed, nothing is indented anew."""
    problem = ds1000_problem()
    assert extract_answer(problem, build_prompt(problem, gpt2_like), reply) == expected


def test_no_reference_of_ds1000_is_changed() -> None:
    """The sandbox ran the references themselves: unchanged, they pass as replies, too."""
    listed = KeptList.read("ds1000")
    assert listed is not None
    changed = [p.task_id for p in load_or_skip("ds1000") if ds1000_snippet(p.reference) != p.reference]
    assert [task for task in changed if task not in listed.dropped] == []


@pytest.mark.parametrize("name", ["humaneval", "mbpp", "bigcodebench"])
def test_no_reference_is_changed(gpt2_like: PreTrainedTokenizerFast, name: str) -> None:
    """What extraction does to right answers it must not harm: at most unneeded statements are missing."""
    for problem, prefill in itertools.product(load_or_skip(name)[::3], ("none", "fence", "code")):
        prompt: Prompt = build_prompt(problem, gpt2_like, prefill=prefill, wording="complete")
        full = reference_answer(problem)
        reply = f"Here's the code:\n```python\n{full}\n```\nDone" if prefill == "none" else full[len(prompt.kept) :]
        answer = extract_answer(problem, prompt, reply if prefill == "none" else f"{reply}\n```")
        if answer.strip() != full.strip().replace("\r\n", "\n"):
            kept = {ast.unparse(node) for node in ast.parse(answer).body}
            lost = [n for n in ast.parse(full).body if ast.unparse(n) not in kept]
            names = {getattr(node, "name", "") for node in lost}
            assert problem.entry_point not in names and len(lost) <= 3, (problem.task_id, prefill, names)


def test_what_the_test_takes_from_the_answer_stays(gpt2_like: PreTrainedTokenizerFast) -> None:
    problem = mbpp_problem()
    problem = dataclasses.replace(problem, test="assert twice(Pair(2)) == 4\nassert [x for x in ()] == []")
    code = "class Pair:\n    pass\n\nx = 1\n\ndef twice(x):\n    return x"
    answer = extract_answer(problem, build_prompt(problem, gpt2_like), f"{code}\n```")
    assert "class Pair" in answer and "x = 1" not in answer


def test_the_longest_part_defines_the_function() -> None:
    prose = "It is\na\nlist\nof\nwords\nwhich\nparse\n"
    assert longest_part(f"{prose}But this does not.\n{ADD}", "add") == ADD
    assert longest_part(prose, "add") is None
    assert longest_part("add = lambda a, b: a + b", "add") == "add = lambda a, b: a + b"
    assert not defines('def add(a, b):\n    """Only words."""', "add")


@pytest.mark.parametrize(
    ("text", "prose"),
    [
        ("This function first creates a list of random names, ages and heights.", True),
        ("\n    The function is complete and returns the value that was asked for.", True),
        ("def f(x):\n    return x +\n", False),
        ("result = df.groupby('a').mean()", False),
        ("for i in range(3) print(i)", False),
        ("", False),
    ],
)
def test_prose_is_told_from_broken_code(text: str, prose: bool) -> None:
    assert looks_like_prose(text) is prose


def test_bigcodebench_answers_keep_the_code_start(gpt2_like: PreTrainedTokenizerFast) -> None:
    problem = bigcodebench_problem()
    prompt = build_prompt(problem, gpt2_like, style="thesis")
    answer = extract_answer(problem, prompt, "\n    return math.sqrt(x)\n```")
    assert answer.strip() == "import math\ndef task_func(x):\n    return math.sqrt(x)"


@pytest.mark.parametrize("reply", made_up_replies(), ids=lambda reply: reply.name)
def test_right_answers_in_made_up_replies_pass(gpt2_like: PreTrainedTokenizerFast, reply: Reply) -> None:
    """Ten solutions in twenty forms; `extraction.json` lists what EvalPlus makes of the same replies."""
    problem = dataclasses.replace(
        humaneval_problem(), entry_point=reply.entry_point, test=f"def check(c): ...\n{reply.check}"
    )
    answer = extract_answer(problem, build_prompt(problem, gpt2_like, prefill="none"), reply.text)
    space: dict[str, Any] = {"__name__": "answer"}
    exec(answer, space)
    assert eval(reply.check, space)
