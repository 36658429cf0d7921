"""Prompts that tokenize as training does, and code read back from every kind of reply."""

from __future__ import annotations

import itertools

import pytest
from evaluation_parts import bigcodebench_problem, ds1000_problem, humaneval_problem, mbpp_problem
from transformers import PreTrainedTokenizerFast

from vocabx_utils.evaluation.benchmarks import Problem, load_benchmark, reference_answer
from vocabx_utils.evaluation.prompts import (
    Prompt,
    _without_usage,
    build_prompt,
    ds1000_context,
    encode,
    extract_answer,
    find_stop,
    looks_like_prose,
    reference_text,
)

PROBLEMS = [humaneval_problem(), mbpp_problem(), bigcodebench_problem(), ds1000_problem(), ds1000_problem(inside=True)]
STYLES = ["thesis", "chat", "completion"]


@pytest.mark.parametrize("kind", ["gpt2", "qwen", "sentencepiece"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.task_id + p.prompt[-1:])
def test_prompt_ids_begin_the_ids_of_prompt_and_reference(
    tokenizers: dict[str, PreTrainedTokenizerFast], kind: str, style: str, problem: Problem
) -> None:
    tokenizer = tokenizers[kind]
    prompt = build_prompt(problem, tokenizer, style=style, prefill="code", variant="complete")
    text, end = reference_text(problem, tokenizer, style)
    assert text[:end].startswith(prompt.text)
    whole = encode(tokenizer, text)
    assert tuple(whole[: len(prompt.ids)]) == prompt.ids, "the model has never seen this end of a prompt"


def test_a_joined_line_break_is_left_to_the_model(gpt2_like: PreTrainedTokenizerFast) -> None:
    prompt = build_prompt(humaneval_problem(), gpt2_like, style="thesis")
    assert prompt.text.endswith('"""') and prompt.kept.endswith('"""')
    assert extract_answer(humaneval_problem(), prompt, "\n    return a + b\n```\nDone.").endswith(
        '"""\n    return a + b\n'
    )


def test_thesis_format_has_the_code_start_in_the_answer_block(gpt2_like: PreTrainedTokenizerFast) -> None:
    prompt = build_prompt(bigcodebench_problem(), gpt2_like, style="thesis")
    question, answer = prompt.text.split("### Answer:\n")
    assert question.startswith("<|begin|>### Instruction:\nReturn the root.\n")
    assert "def task_func" not in question
    assert answer.startswith("```python\nimport math\ndef task_func(x):")
    assert prompt.settings == "thesis/code/instruct"


def test_few_shot_mbpp(gpt2_like: PreTrainedTokenizerFast) -> None:
    prompt = build_prompt(mbpp_problem(), gpt2_like, style="completion", examples=[mbpp_problem(2), mbpp_problem(3)])
    assert prompt.text.count("[DONE]") == 2 and prompt.text.count("[BEGIN]") == 3
    assert find_stop("def twice(x):\n    return 2 * x\n[DONE]\n\nYou are", prompt) == 31


@pytest.mark.parametrize(
    ("change", "message"),
    [({"style": "talk"}, "style"), ({"prefill": "all"}, "prefill"), ({"variant": "hard"}, "variant")],
)
def test_unknown_names_are_refused(gpt2_like: PreTrainedTokenizerFast, change: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_prompt(humaneval_problem(), gpt2_like, **change)


REPLIES = [
    ("fence", "def add(a, b):\n    return a + b\n```\nThis adds."),
    ("fence", "```python\ndef add(a, b):\n    return a + b\n```"),
    ("none", "Here is the code:\n```python\ndef add(a, b):\n    return a + b\n```\nIt adds."),
    ("none", "Try this:\n```\nx = 1\n```\nor\n```python\ndef add(a, b):\n    return a + b\n```"),
    ("none", "```python\ndef add(a, b):\n    return a + b"),
    ("none", "def add(a, b):\n    return a + b\n"),
    ("code", "    return a + b\n```\n"),
    ("code", "\n    return a + b\n"),
    ("code", "\n    return a + b\n\nThis function adds the numbers a and b."),
    ("fence", "def add(a, b):\n    return a + b\n\ndef unfinished(x):\n    return (x +"),
]


@pytest.mark.parametrize(("prefill", "reply"), REPLIES)
def test_code_is_found_in_every_kind_of_reply(gpt2_like: PreTrainedTokenizerFast, prefill: str, reply: str) -> None:
    problem = humaneval_problem()
    prompt = build_prompt(problem, gpt2_like, prefill=prefill)
    cut = prompt.kept.endswith('"""') and not reply.startswith("\n")
    answer = extract_answer(problem, prompt, "\n" + reply if cut else reply)
    space: dict[str, object] = {}
    exec(answer, space)
    assert space["add"](1, 2) == 3  # type: ignore[operator]


def test_without_stop_the_reply_is_kept_whole(gpt2_like: PreTrainedTokenizerFast) -> None:
    """B57: a reply without any stop text was emptied."""
    problem = mbpp_problem()
    prompt = build_prompt(problem, gpt2_like)
    assert find_stop("def twice(x):\n    return x", prompt) is None
    assert extract_answer(problem, prompt, "def twice(x):\n    return x") == "def twice(x):\n    return x"
    assert extract_answer(problem, prompt, "no code at all") == "no code at all"


DS_REPLIES = [
    (False, "result = len(x)\n</code>\nEND SOLUTION", "result = len(x)"),
    (False, "    result = len(x)\n", "result = len(x)"),
    (False, "import numpy as np\nx = np.arange(3)\nresult = len(x)\n```", "result = len(x)"),
    (False, "result = len(x)\n# SOLUTION END\nprint(1)", "result = len(x)"),
    (True, "\n    result = len(x)\n    return result\n    ### END SOLUTION", "    result = len(x)\n    return result"),
    (True, "result = len(x)\nreturn result\n```", "    result = len(x)\n    return result"),
    (True, "def f(x):\n    return len(x)\n", "    return len(x)"),
]


@pytest.mark.parametrize(("inside", "reply", "expected"), DS_REPLIES)
def test_snippets_fit_their_place(gpt2_like: PreTrainedTokenizerFast, inside: bool, reply: str, expected: str) -> None:
    problem = ds1000_problem(inside)
    prompt = build_prompt(problem, gpt2_like)
    end = find_stop(reply, prompt)
    assert extract_answer(problem, prompt, reply[:end]) == expected
    assert extract_answer(problem, prompt, reply) == expected


def test_ds1000_context_ends_at_the_solution() -> None:
    question, code = ds1000_context(ds1000_problem())
    assert question == "How long is x?"
    assert code.endswith("# result = ... # put solution in this variable\n# BEGIN SOLUTION\n")


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


def test_stop_at_the_closing_fence_only(gpt2_like: PreTrainedTokenizerFast) -> None:
    open_fence = build_prompt(humaneval_problem(), gpt2_like, prefill="fence")
    free = build_prompt(humaneval_problem(), gpt2_like, prefill="none")
    assert find_stop("x = 1\n```", open_fence) == 9
    assert find_stop("```python\nx = 1\n", open_fence) is None
    assert find_stop("Text\n```python\nx = 1\n", free) is None
    assert find_stop("Text\n```python\nx = 1\n```", free) == 24


def test_no_reference_of_humaneval_is_changed(gpt2_like: PreTrainedTokenizerFast) -> None:
    """What extraction does to right answers it must not harm."""
    for problem, prefill in itertools.product(load_benchmark("humaneval", limit=60), ("fence", "code")):
        prompt: Prompt = build_prompt(problem, gpt2_like, prefill=prefill)
        full = reference_answer(problem)
        answer = extract_answer(problem, prompt, full[len(prompt.kept) :] + "\n```")
        assert answer.strip() == full.strip()


USED = "import math\n\nLIMIT = 3\n\ndef half(x):\n    return x / 2\n\ndef f(n, df=None):\n    return half(n) < LIMIT"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (f"{USED}\n\n# Example usage\ndf = open('data.csv')\nprint(f(df))", USED),
        (f"{USED}\n\nif __name__ == '__main__':\n    f(2)", USED),
        ("def f(n):\n    return g(n)\n\ndef g(n):\n    return K\n\nK = 1\nprint(f(2))", None),
        (
            "def f(n):\n    return h(n)\n\ntry:\n    from fast import h\nexcept ImportError:\n    h = abs\nf(1)",
            None,
        ),
        ("class f:\n    b = c\n\nprint(f)", "class f:\n    b = c"),
        ("def keep(g):\n    return g\n\n@keep\ndef f(n):\n    return n\n\nf(1)", None),
        ("def other(n):\n    return n\n\nprint(other(1))", "def other(n):\n    return n\n\nprint(other(1))"),
        ("def f(n):\n    return n +\n\nf(1)", "def f(n):\n    return n +\n\nf(1)"),
    ],
)
def test_an_example_of_use_is_dropped(answer: str, expected: str | None) -> None:
    """`None`: everything but the last line is needed, whatever the order of the definitions."""
    if expected is None:
        expected = answer.rpartition("\n")[0].rstrip()
    assert _without_usage(answer, "f").rstrip() == expected


def test_language_on_its_own_line(gpt2_like: PreTrainedTokenizerFast) -> None:
    free = build_prompt(humaneval_problem(), gpt2_like, prefill="none")
    reply = f"```\npython\ndef {humaneval_problem().entry_point}(x):\n    return x\n```"
    assert extract_answer(humaneval_problem(), free, reply).startswith("def ")
