"""Prompts that tokenize as training does."""

from __future__ import annotations

import pytest
from evaluation.evaluation_parts import bigcodebench_problem, ds1000_problem, humaneval_problem, mbpp_problem
from transformers import PreTrainedTokenizerFast

from vocabx_utils.evaluation.answers import extract_answer, find_stop
from vocabx_utils.evaluation.benchmarks import Problem
from vocabx_utils.evaluation.prompts import build_prompt, ds1000_context, encode, reference_text

PROBLEMS = [humaneval_problem(), mbpp_problem(), bigcodebench_problem(), ds1000_problem(), ds1000_problem(inside=True)]
STYLES = ["thesis", "chat", "completion"]


@pytest.mark.parametrize("kind", ["gpt2", "qwen", "sentencepiece"])
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda p: p.task_id + p.prompt[-1:])
def test_prompt_ids_begin_the_ids_of_prompt_and_reference(
    tokenizers: dict[str, PreTrainedTokenizerFast], kind: str, style: str, problem: Problem
) -> None:
    tokenizer = tokenizers[kind]
    prompt = build_prompt(problem, tokenizer, style=style, prefill="code", wording="complete")
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
    [({"style": "talk"}, "style"), ({"prefill": "all"}, "prefill"), ({"wording": "hard"}, "wording")],
)
def test_unknown_names_are_refused(gpt2_like: PreTrainedTokenizerFast, change: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_prompt(humaneval_problem(), gpt2_like, **change)


def test_ds1000_context_ends_at_the_solution() -> None:
    question, code = ds1000_context(ds1000_problem())
    assert question == "How long is x?"
    assert code.endswith("# result = ... # put solution in this variable\n# BEGIN SOLUTION\n")
