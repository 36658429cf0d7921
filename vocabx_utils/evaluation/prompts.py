"""From problem to prompt; `answers` reads the reply.

Three formats: `thesis` (its instruction template, with the code start inside the answer block), `chat`
(the model's own chat template) and `completion` (the bare text, for base models; few-shot for MBPP).
What stands at the beginning of the answer block is the *head*: nothing, an open fence, or an open fence and
the first lines of the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from transformers import PreTrainedTokenizerBase

from vocabx_utils import corpus
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
_STYLES = ("thesis", "chat", "completion")
_PREFILLS = ("auto", "none", "fence", "code")
_WORDINGS = ("instruct", "complete")
_CHAT_PREFILLS = {"ds1000": "code", "bigcodebench": "none"}
_FIRST_WORDS = ("x", "def ", "import ", "return ", "result")
_TAIL = 120  # characters at the end of a prompt whose tokens what follows may change


@dataclass(frozen=True)
class Prompt:
    """What the model is asked, and how its reply is to be read."""

    task_id: str
    text: str  # all that the tokenizer gets, with the special tokens of the template
    ids: tuple[int, ...]  # its tokens
    kept: str  # part of the answer block that already belongs to the program
    fenced: bool  # the answer block begins with an open code fence
    stops: tuple[str, ...]  # texts after which nothing of the reply is used
    settings: str  # format in short form, such as `"chat/fence"`, written into every sample


def build_prompt(
    problem: Problem,
    tokenizer: PreTrainedTokenizerBase,
    *,
    style: str = "chat",
    prefill: str = "auto",
    wording: str = "instruct",
    examples: Sequence[Problem] = (),
) -> Prompt:
    """Build the prompt of one problem.

    Its text ends where every usual continuation starts a new token, so that prompt and reply tokenize as the same text
    does in training; what was cut off is left to the model.

    Args:
        style: `"thesis"`, `"chat"` (the chat template of the tokenizer) or `"completion"`.
        prefill: head of the answer block: `"none"`, `"fence"`, `"code"` (fence and code start), or
            `"auto"`: `"code"` for the thesis's format; with `"chat"` what served Qwen2.5-Coder-0.5B best
            of the three (`results/bench/answers.json`): `"code"` for DS-1000, `"none"` for BigCodeBench,
            else `"fence"`. That was seen on the problems which are reported; the official prompts of EvalPlus
            and BigCodeBench are `"fence"`.
        wording: BigCodeBench only: `"instruct"` or `"complete"`.
        examples: MBPP with `style="completion"` only: the solved problems shown first.

    Raises:
        ValueError: unknown style, prefill or wording, or a tokenizer without a chat template.
    """
    settings = prompt_settings(problem.benchmark, style, prefill, wording)
    prefill = resolve_prefill(problem.benchmark, style, prefill)
    query, head, kept = _prompt_parts(problem, style, prefill, wording, examples)
    if style == "chat" and not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            "this tokenizer has no chat template: use prompt style 'thesis' or 'completion', or a model with one"
        )
    text = _prompt_text(tokenizer, style, query, head)
    probes = _probes(head if style != "completion" else head or query)
    stable, ids = _stable_prefix(tokenizer, text, probes) if probes else (text, encode(tokenizer, text))
    cut = len(text) - len(stable)
    return Prompt(
        task_id=problem.task_id,
        text=stable,
        ids=tuple(ids),
        kept=kept[: max(0, len(kept) - cut)],
        fenced=style != "completion" and prefill != "none",
        stops=_stop_texts(problem.benchmark, style),
        settings=settings,
    )


def prompt_settings(benchmark: str, style: str, prefill: str = "auto", wording: str = "instruct") -> str:
    """Return the format of a prompt in short form; a `ValueError` for an unknown style, prefill or wording.

    >>> prompt_settings("bigcodebench", "chat")
    'chat/none/instruct'
    """
    if wording not in _WORDINGS:
        raise ValueError(f"unknown wording {wording!r}; expected one of {', '.join(_WORDINGS)}")
    short = f"{style}/{resolve_prefill(benchmark, style, prefill)}"
    return f"{short}/{wording}" if benchmark == "bigcodebench" else short


def resolve_prefill(benchmark: str, style: str, prefill: str) -> str:
    """Replace `"auto"` by what the style uses on this benchmark; a `ValueError` for an unknown style or prefill."""
    if style not in _STYLES:
        raise ValueError(f"unknown prompt style {style!r}; expected one of {', '.join(_STYLES)}")
    if prefill not in _PREFILLS:
        raise ValueError(f"unknown prefill {prefill!r}; expected one of {', '.join(_PREFILLS)}")
    if style == "completion":
        return "code"
    if prefill == "auto":
        return "code" if style == "thesis" else _CHAT_PREFILLS.get(benchmark, "fence")
    return prefill


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Tokenize a text that already holds the special tokens of its template."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def _stable_prefix(tokenizer: PreTrainedTokenizerBase, text: str, probes: Sequence[str]) -> tuple[str, list[int]]:
    """Cut a text back to where the tokenization no longer depends on what follows.

    A tokenizer may join the line break at the end of a prompt with the indentation after it: the model has then never
    seen the prompt's last token in this place. Probes are usual continuations, such as `"    x"`; a blank line may
    still join. The whole text is returned where the cut would cost more than the last line.
    """
    kept, tail = text, _TAIL
    for _ in range(8):
        end = kept[-tail:]
        encoded = tokenizer(end, add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = list(encoded["input_ids"]), encoded["offset_mapping"]
        rest = text[len(kept) :]
        longer = tokenizer([end + rest + probe for probe in probes], add_special_tokens=False)["input_ids"]
        same = min(_common(ids, other) for other in longer)
        if same == len(ids):
            return kept, encode(tokenizer, kept)
        kept = kept[: len(kept) - len(end) + offsets[same][0]]
        if kept[-1:] == "" or "\n" in text[len(kept) :].strip():
            break
    return text, encode(tokenizer, text)


def _common(one: Sequence[int], two: Sequence[int]) -> int:
    """Return how many ids both begin with."""
    return next((i for i, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))


def reference_text(problem: Problem, tokenizer: PreTrainedTokenizerBase, style: str = "thesis") -> tuple[str, int]:
    """Return prompt (with the code start in the answer block) and reference as one text, and where this begins."""
    query, head, _ = _prompt_parts(problem, style, resolve_prefill(problem.benchmark, style, "code"), "complete", ())
    prompt = _prompt_text(tokenizer, style, query, head)
    return prompt + problem.reference, len(prompt)


def _prompt_text(tokenizer: PreTrainedTokenizerBase, style: str, query: str, head: str) -> str:
    """Return query and head in the template of the style, or behind the BOS token that the tokenizer itself puts."""
    if style != "completion":
        return corpus.prompt(query, cast(corpus.Template, style), tokenizer, prefill=head)
    return begin_text(tokenizer) + query + head


def begin_text(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the begin token that the tokenizer itself puts before a text, as text; nothing where it puts none."""
    begun = tokenizer("x")["input_ids"][:1] == [tokenizer.bos_token_id]
    return str(tokenizer.bos_token) if begun else ""


def _probes(head: str) -> tuple[str, ...]:
    """Return usual continuations of the head, none where the reply starts freely."""
    if not head:
        return ()
    if not head.endswith("\n"):
        return ("\nx", "\n    x")
    last = head.rstrip().rsplit("\n", 1)[-1]
    inside = last[:1] in " \t" or last.endswith(":")
    return tuple("    " * inside + word for word in _FIRST_WORDS)


def _prompt_parts(
    problem: Problem, style: str, prefill: str, wording: str, examples: Sequence[Problem]
) -> tuple[str, str, str]:
    """Return the query, the head of the answer block and the part of the head that is program."""
    if style == "completion":
        if problem.benchmark == "mbpp":
            return _few_shot(problem, examples), "", ""
        if problem.benchmark == "ds1000":
            return problem.complete_prompt, "", ""
        return "", problem.complete_prompt, problem.complete_prompt
    query, start = _query_and_start(problem, style, prefill, wording)
    if prefill == "none":
        return query, "", ""
    lead = f"{_RESPONSE}\n" if style == "chat" and problem.benchmark != "ds1000" else ""
    head = f"{lead}{FENCE}python\n"
    if prefill != "code":
        return query, head, ""
    return query, head + start, "" if problem.benchmark == "ds1000" else start  # its test brings the program


def _query_and_start(problem: Problem, style: str, prefill: str, wording: str) -> tuple[str, str]:
    if problem.benchmark == "bigcodebench":
        return _bigcodebench_query_and_start(problem, style, prefill, wording)
    if problem.benchmark == "ds1000":
        question, context = ds1000_context(problem)
        if prefill != "code":
            return f"{_CONTINUE} Put it in a markdown code block.\n\n{problem.prompt.rstrip()}", ""
        return f"{_CONTINUE}\n\n{question or _fenced(context.rstrip(), 'python')}", context
    if problem.benchmark == "mbpp":
        tests = "\n".join(problem.metadata["test_list"])
        if style == "chat":
            return f'{_INSTRUCTION}\n{FENCE}\n"""\n{problem.prompt}\n{tests}\n"""\n{FENCE}\n', ""
        return f"{problem.prompt}\nThe code should pass these tests:\n{tests}", ""
    if style == "chat" or prefill != "code":
        return f"{_INSTRUCTION}\n{_fenced(problem.prompt.strip())}\n", problem.code_start
    return _COMPLETE, problem.code_start


def _bigcodebench_query_and_start(problem: Problem, style: str, prefill: str, wording: str) -> tuple[str, str]:
    complete = wording == "complete"
    start = problem.complete_prompt if complete else problem.code_start
    if style == "chat":
        task = _fenced(problem.complete_prompt.strip()) if complete else problem.prompt.strip()
        return f"{_INSTRUCTION}\n{task}\n", start
    if complete:
        return _COMPLETE, start
    # The thesis moves the code start from the end of the query into the answer block.
    return problem.prompt.split(f"\n{FENCE}")[0] if prefill == "code" else problem.prompt.strip(), start


def _fenced(code: str, language: str = "") -> str:
    return f"{FENCE}{language}\n{code}\n{FENCE}"


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


def _stop_texts(benchmark: str, style: str) -> tuple[str, ...]:
    if style == "completion":
        return _COMPLETION_STOPS[benchmark]
    template = TEMPLATE_STOPS if style == "thesis" else ()
    return template + (_DS1000_STOPS if benchmark == "ds1000" else ())
