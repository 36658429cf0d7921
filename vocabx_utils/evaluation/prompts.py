"""From problem to prompt; `answers` reads the reply.

Three formats: `thesis` (its instruction template, with the code start inside the answer block), `chat`
(the model's own chat template) and `completion` (the bare text, for base models; few-shot for MBPP).
What stands at the beginning of the answer block is the *head*: nothing, an open fence, or an open fence and
the first lines of the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from transformers import PreTrainedTokenizerBase

from vocabx_utils import corpus
from vocabx_utils.evaluation.benchmarks import Problem

PromptStyle = Literal["thesis", "chat", "completion"]
Prefill = Literal["auto", "none", "fence", "code"]
Wording = Literal["instruct", "complete"]
PROMPT_STYLES: tuple[str, ...] = get_args(PromptStyle)
PREFILLS: tuple[str, ...] = get_args(Prefill)

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
_CHAT_PREFILLS = {"ds1000": "code", "bigcodebench": "none"}
_FIRST_WORDS = ("x", "def ", "import ", "return ", "result")
_TAIL = 120  # characters at the end of a prompt whose tokens what follows may change
DS1000_STOPS = ("</code>", "# SOLUTION END", "\nEND SOLUTION")
TEMPLATE_STOPS = ("\n### Instruction", "\n### Answer")  # the model goes on with a task of its own
_COMPLETION_STOPS: Mapping[str, tuple[str, ...]] = {
    "humaneval": ("\nclass ", "\ndef ", "\n#", "\nif ", "\nprint(", "\nassert ", f"\n{FENCE}"),
    "bigcodebench": ("\nclass ", "\ndef ", "\nif __name__", "\nprint(", "\nassert ", f"\n{FENCE}"),
    "mbpp": ("[DONE]",),
    "ds1000": (*DS1000_STOPS, f"\n{FENCE}"),
}


@dataclass(frozen=True)
class Prompt:
    """What the model is asked, and how its reply is to be read.

    Attributes:
        task_id: Id of the problem.
        text: Full text given to the tokenizer (with the template's special tokens).
        ids: Its token ids.
        kept: Part of the answer block that already belongs to the program.
        fenced: The answer block begins with an open code fence.
        stops: Texts after which nothing of the reply is used.
        settings: Format in short form, such as `"chat/fence"`, written into every sample.
    """

    task_id: str
    text: str
    ids: tuple[int, ...]
    kept: str
    fenced: bool
    stops: tuple[str, ...]
    settings: str


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

    Args:
        problem: The problem.
        tokenizer: Tokenizer of the model; with `style="chat"` its chat template is used.
        style: `"thesis"`, `"chat"` or `"completion"`.
        prefill: Head of the answer block: `"none"`, `"fence"`, `"code"` (fence and code start), or
            `"auto"`: `"code"` for the thesis's format; with `"chat"` what served Qwen2.5-Coder-0.5B best
            of the three (`results/bench/answers.json`): `"code"` for DS-1000, `"none"` for BigCodeBench,
            else `"fence"`. That was seen on the problems which are reported; the official prompts of EvalPlus
            and BigCodeBench are `"fence"`.
        wording: BigCodeBench only: `"instruct"` or `"complete"`.
        examples: MBPP with `style="completion"` only: the solved problems shown first.

    Returns:
        The prompt. Its text ends where every usual continuation starts a new token, so that prompt and
        reply tokenize as the same text does in training; what was cut off is left to the model.

    Raises:
        ValueError: Unknown style, prefill or wording, or a tokenizer without a chat template.
    """
    settings = prompt_settings(problem.benchmark, style, prefill, wording)
    prefill = resolve_prefill(problem.benchmark, style, prefill)
    query, head, kept = _parts(problem, style, prefill, wording, examples)
    if style == "completion":
        text = _bos(tokenizer) + query + head
    else:
        if style == "chat" and not getattr(tokenizer, "chat_template", None):
            raise ValueError(
                "this tokenizer has no chat template: use prompt style 'thesis' or 'completion', or a model with one"
            )
        text = corpus.prompt(query, cast(corpus.Template, style), tokenizer, prefill=head)
    probes = _probes(head if style != "completion" else head or query)
    stable, ids = stable_prefix(tokenizer, text, probes) if probes else (text, encode(tokenizer, text))
    cut = len(text) - len(stable)
    return Prompt(
        task_id=problem.task_id,
        text=stable,
        ids=tuple(ids),
        kept=kept[: max(0, len(kept) - cut)],
        fenced=style != "completion" and prefill != "none",
        stops=_stops(problem.benchmark, style, prefill),
        settings=settings,
    )


def prompt_settings(benchmark: str, style: str, prefill: str = "auto", wording: str = "instruct") -> str:
    """Return the format of a prompt in short form.

    >>> prompt_settings("bigcodebench", "chat")
    'chat/none/instruct'

    Raises:
        ValueError: Unknown style, prefill or wording.
    """
    if wording not in get_args(Wording):
        raise ValueError(f"unknown wording {wording!r}; expected one of {', '.join(get_args(Wording))}")
    short = f"{style}/{resolve_prefill(benchmark, style, prefill)}"
    return f"{short}/{wording}" if benchmark == "bigcodebench" else short


def resolve_prefill(benchmark: str, style: str, prefill: str) -> str:
    """Replace `"auto"` by what the style uses on this benchmark, and check both names.

    Raises:
        ValueError: Unknown style or prefill.
    """
    if style not in PROMPT_STYLES:
        raise ValueError(f"unknown prompt style {style!r}; expected one of {', '.join(PROMPT_STYLES)}")
    if prefill not in PREFILLS:
        raise ValueError(f"unknown prefill {prefill!r}; expected one of {', '.join(PREFILLS)}")
    if style == "completion":
        return "code"
    if prefill == "auto":
        return "code" if style == "thesis" else _CHAT_PREFILLS.get(benchmark, "fence")
    return prefill


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Tokenize a text that already holds the special tokens of its template."""
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def stable_prefix(tokenizer: PreTrainedTokenizerBase, text: str, probes: Sequence[str]) -> tuple[str, list[int]]:
    """Cut a text back to where the tokenization no longer depends on what follows.

    A prompt that ends in a line break is one token sequence alone and another one inside the full text if
    the tokenizer joins the break with the indentation after it. The model has then never seen the prompt's
    last token in this place. What follows is taken to be code; a blank line may still join.

    Args:
        tokenizer: Fast tokenizer.
        text: The prompt.
        probes: Usual continuations, such as `"    x"`.

    Returns:
        The longest prefix of `text` whose last tokens stay the same before every probe, and its ids. The
        whole text is returned where that would cost more than the last line.
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
    """Return prompt and reference solution as one text, and the character where the reference begins.

    The code start stands in the answer block, so that the reference continues it.

    Args:
        problem: The problem.
        tokenizer: Gives begin token and chat template.
        style: Prompt style.
    """
    query, head, _ = _parts(problem, style, resolve_prefill(problem.benchmark, style, "code"), "complete", ())
    if style == "completion":
        prompt = _bos(tokenizer) + query + head
    else:
        prompt = corpus.prompt(query, cast(corpus.Template, style), tokenizer, prefill=head)
    return prompt + problem.reference, len(prompt)


def _parts(
    problem: Problem, style: str, prefill: str, wording: str, examples: Sequence[Problem]
) -> tuple[str, str, str]:
    """Return the query, the head of the answer block and the part of the head that is program."""
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

    Returns:
        The question (empty for Matplotlib, whose task stands in comments) and the program, ending in a line
        that marks where the solution begins. The line that names the result variable becomes a comment.
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


def _bos(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the BOS token where the tokenizer itself would put one before a text."""
    bos = tokenizer.bos_token_id
    first = tokenizer("x")["input_ids"][:1]
    return str(tokenizer.bos_token) if bos is not None and first == [bos] else ""


def _probes(head: str) -> tuple[str, ...]:
    """Return usual continuations of the head, none where the reply starts freely."""
    if not head:
        return ()
    if not head.endswith("\n"):
        return ("\nx", "\n    x")
    last = head.rstrip().rsplit("\n", 1)[-1]
    inside = last[:1] in " \t" or last.endswith(":")
    return tuple("    " * inside + word for word in _FIRST_WORDS)


def _stops(benchmark: str, style: str, prefill: str) -> tuple[str, ...]:
    if style == "completion":
        return _COMPLETION_STOPS[benchmark]
    template = TEMPLATE_STOPS if style == "thesis" else ()
    return template + (DS1000_STOPS if benchmark == "ds1000" else ())
