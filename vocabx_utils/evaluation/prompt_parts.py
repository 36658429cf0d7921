"""What each benchmark asks, in each format: query, head of the answer block, and the texts that end a reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vocabx_utils.evaluation.benchmarks import Problem

FENCE = "```"
# EvalPlus (Liu et al., NeurIPS 2023) and BigCodeBench word their prompts so; Qwen2.5-Coder's figures use them.
_INSTRUCTION = (
    "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
)
_RESPONSE = (
    "Below is a Python script with a self-contained function that solves the problem and passes corresponding tests:"
)
_COMPLETE = "Complete the following Python function so that it does what its docstring says."
_CONTINUE = "Solve the problem by continuing the Python program. Write only the code that is missing."
_DS1000_STOPS = ("</code>", "# SOLUTION END", "\nEND SOLUTION")
TEMPLATE_STOPS = ("\n### Instruction", "\n### Answer")  # the model goes on with a task of its own
_COMPLETION_STOPS: Mapping[str, tuple[str, ...]] = {
    "humaneval": ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\nassert ", f"\n{FENCE}"),
    "bigcodebench": ("\nclass ", "\ndef ", "\nif __name__", "\nprint(", "\nassert ", f"\n{FENCE}"),
    "mbpp": ("[DONE]",),
    "ds1000": (*_DS1000_STOPS, f"\n{FENCE}"),
}


def prompt_parts(
    problem: Problem, style: str, prefill: str, wording: str, examples: Sequence[Problem]
) -> tuple[str, str, str]:
    """Return the query, the head of the answer block and the part of the head that is program.

    The arguments are those of `prompts.build_prompt`, without `"auto"`.
    """
    if style == "completion":
        if problem.benchmark == "mbpp":
            return _few_shot(problem, examples), "", ""
        if problem.benchmark == "ds1000":
            return problem.complete_prompt, "", ""
        return "", problem.complete_prompt, problem.complete_prompt
    query, start, kept = _PARTS[problem.benchmark](problem, style, prefill, wording)
    if prefill == "none":
        return query, "", ""
    lead = f"{_RESPONSE}\n" if style == "chat" and problem.benchmark != "ds1000" else ""
    head = f"{lead}{FENCE}python\n"
    return (query, head + start, kept) if prefill == "code" else (query, head, "")


def _humaneval_parts(problem: Problem, style: str, prefill: str, wording: str) -> tuple[str, str, str]:
    fenced = f"{FENCE}\n{problem.prompt.strip()}\n{FENCE}"
    query = f"{_INSTRUCTION}\n{fenced}\n" if style == "chat" or prefill != "code" else _COMPLETE
    return query, problem.code_start, problem.code_start


def _mbpp_parts(problem: Problem, style: str, prefill: str, wording: str) -> tuple[str, str, str]:
    tests = "\n".join(problem.metadata["test_list"])
    if style == "chat":
        return f'{_INSTRUCTION}\n{FENCE}\n"""\n{problem.prompt}\n{tests}\n"""\n{FENCE}\n', "", ""
    return f"{problem.prompt}\nThe code should pass these tests:\n{tests}", "", ""


def _bigcodebench_parts(problem: Problem, style: str, prefill: str, wording: str) -> tuple[str, str, str]:
    complete = wording == "complete"
    start = problem.complete_prompt if complete else problem.code_start
    if style == "chat":
        task = f"{FENCE}\n{problem.complete_prompt.strip()}\n{FENCE}" if complete else problem.prompt.strip()
        return f"{_INSTRUCTION}\n{task}\n", start, start
    if complete:
        return _COMPLETE, start, start
    # The thesis moves the code start from the end of the query into the answer block.
    query = problem.prompt.split(f"\n{FENCE}")[0] if prefill == "code" else problem.prompt.strip()
    return query, start, start


def _ds1000_parts(problem: Problem, style: str, prefill: str, wording: str) -> tuple[str, str, str]:
    question, context = ds1000_context(problem)
    if prefill != "code":
        return f"{_CONTINUE} Put it in a markdown code block.\n\n{problem.prompt.rstrip()}", "", ""
    task = question or f"{FENCE}python\n{context.rstrip()}\n{FENCE}"
    return f"{_CONTINUE}\n\n{task}", context, ""


_PARTS = {
    "humaneval": _humaneval_parts,
    "mbpp": _mbpp_parts,
    "bigcodebench": _bigcodebench_parts,
    "ds1000": _ds1000_parts,
}


def ds1000_context(problem: Problem) -> tuple[str, str]:
    """Split a DS-1000 prompt into the question and the program that is to be continued.

    The question is empty for Matplotlib, whose task stands in comments. The program ends in a line that marks where the
    solution begins; the line that names the result variable becomes a comment.
    """
    text = problem.complete_prompt
    question, found, rest = text.rpartition("\nA:\n")
    if not found:
        return "", text
    code = rest.partition("<code>")[2].lstrip("\n")
    if "</code>" not in code:
        return question.removeprefix("Problem:").strip(), code
    code, _, tail = code.partition("</code>")
    notes = tail.replace("<code>", "").replace("BEGIN SOLUTION", "").strip().splitlines()
    comments = "".join(f"# {note.strip()}\n" for note in notes if note.strip())
    return question.removeprefix("Problem:").strip(), f"{code.rstrip()}\n{comments}# BEGIN SOLUTION\n"


def _few_shot(problem: Problem, examples: Sequence[Problem]) -> str:
    """Return the prompt of Austin et al. (2021): solved examples, then the task, up to `[BEGIN]`."""
    shown = [f"{_mbpp_task(example)}{example.reference.strip()}\n[DONE]\n\n" for example in examples]
    return "".join(shown) + _mbpp_task(problem)


def _mbpp_task(problem: Problem) -> str:
    tests = "\n".join(problem.metadata["test_list"])
    return (
        f"You are an expert Python programmer, and here is your task: {problem.prompt} "
        f"Your code should pass these tests:\n\n{tests}\n[BEGIN]\n"
    )


def stop_texts(benchmark: str, style: str) -> tuple[str, ...]:
    """Return the texts after which nothing of a reply is used."""
    if style == "completion":
        return _COMPLETION_STOPS[benchmark]
    template = TEMPLATE_STOPS if style == "thesis" else ()
    return template + (_DS1000_STOPS if benchmark == "ds1000" else ())
