"""From the model's reply to the code that is executed.

For HumanEval, MBPP and BigCodeBench the published way of EvalPlus (Liu et al., NeurIPS 2023) and BigCodeBench: the
longest part of the reply that parses, and of it the definitions that the function under test reaches. Where that
way loses right answers (a second, corrected block, decorated functions, set-up statements) this module keeps them;
`docs/evaluation.md` lists every difference that was found. DS-1000 snippets are cut as its official script does.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vocabx_utils.evaluation.benchmarks import Problem
from vocabx_utils.evaluation.prompts import FENCE, TEMPLATE_STOPS, Prompt
from vocabx_utils.evaluation.statements import defines, global_names, parse_error, parses, reachable

# The text of a special token that a model spelt out, whole or begun: "<|endoftext|>", "<|endof", "</s>", "<".
# Outside strings and comments none of these is Python.
_TURN_END = re.compile(r"<\|\w+\|>|</s>|<｜[^\n｜]+｜>|<(?:start|end)_of_turn>|\[/INST\]")
_SPELT_TOKEN = re.compile(_TURN_END.pattern + r"|<\|\w*\|?|<｜[^\n｜]*|<(?:/s?)?(?=\s*\Z)")
_MOST_CUTS = 8  # places of such text that are tried from either end: a degenerate reply repeats one for ever
_OPENING = re.compile(r"^[ \t>]*(?:[-*+][ \t]+|\d+[.)][ \t]+)?(?P<fence>`{3,}|~{3,})(?P<info>[^\n`]*)(?:\n|\Z)", re.M)
_FENCES = (FENCE, "~~~")
_OPEN_STRING = re.compile(r"unterminated (?P<triple>triple-quoted )?(?:f-|t-)?string")
_LANGUAGE_LINE = re.compile(r"\A\s*(?:python3?|py)[ \t]*\n")  # some models break the line after the fence


def extract_answer(problem: Problem, prompt: Prompt, completion: str) -> str:
    """Take the program (DS-1000: the snippet) out of the text that the model generated after the prompt.

    Returns:
        Code to be given to `programs.build_program`. Where no part of the reply defines the function under test, the
        first block or the whole reply, so that a person sees what failed.
    """
    if problem.benchmark == "ds1000":
        return ds1000_snippet(completion)
    completion = completion.replace("\r\n", "\n").replace("\r", "\n")  # as Python counts lines
    text = _cut_at(completion, (*TEMPLATE_STOPS, *(("[DONE]",) if problem.benchmark == "mbpp" else ())))
    blocks = [] if prompt.settings.startswith("completion") else find_blocks(text, prompt)
    # The last block that is closed and parses as a whole, else the last with a part that will do; an open one may
    # be cut off anywhere.
    blocks_last_first = sorted(reversed(blocks), key=lambda b: (not b.closed, not parses(prompt.kept + b.code)))
    for code in (*(block.code for block in blocks_last_first), text):
        if found := longest_part(prompt.kept + code, problem.entry_point):
            # What the test takes from the answer is needed, too (MBPP: `Pair`).
            binds, reads = global_names(problem.test)
            return reachable(found, {problem.entry_point} | (reads - binds))
    return prompt.kept + (blocks[0].code if blocks else text)


def ds1000_snippet(completion: str) -> str:
    """Cut a DS-1000 reply as the official script does, indentation and repeated lines kept; special tokens go, too."""
    text = _cut_at(completion, ("</code>", "# SOLUTION END")).replace(f"{FENCE}python", "")
    text = _cut_at(text, (FENCE, "\nEND SOLUTION")).replace("<code>", "")
    return next((shorter for shorter in _cuts(text) if _snippet_parses(shorter)), text)


def find_stop(text: str, prompt: Prompt) -> int | None:
    """Return the offset at which the used part of a growing reply ends, or `None` while it has not ended.

    A reply that begins inside our fence ends with it. One that opens its own fences is read to its end: a later
    block may correct an earlier one.
    """
    ends = [at for stop in prompt.stops if (at := text.find(stop)) >= 0]
    if prompt.fenced and (blocks := find_blocks(text, prompt)) and blocks[0].closed:
        ends.append(blocks[0].end)
    return min(ends) if ends else None


@dataclass(frozen=True)
class _Block:
    """A fenced block of a reply."""

    code: str
    closed: bool  # its closing fence came
    end: int  # offset behind the closing fence, or the length of the reply


def find_blocks(text: str, prompt: Prompt) -> list[_Block]:
    """Find the fenced blocks of a reply, the prompt's open one included, up to a spelt-out end of the turn.

    A fence inside a string closes nothing.
    """
    blocks: list[_Block] = []
    is_open, at, fence, indented = prompt.fenced and not text.lstrip().startswith(_FENCES), 0, FENCE, False
    while True:
        if not is_open:
            opening = _OPENING.search(text, at)
            if opening is None or _TURN_END.search(text[at : opening.start()]):
                return blocks
            at, fence = opening.end(), opening["fence"]
            indented = opening.group()[0] != fence[0]
        kept = "" if blocks else prompt.kept
        close, end = _closing(text, at, fence, kept, indented)
        code = textwrap.dedent(text[at:close]) if indented else text[at:close]
        turn_ends = any(not _in_string(kept + code[: match.start()]) for match in _TURN_END.finditer(code))
        code = _LANGUAGE_LINE.sub("", code)
        blocks.append(_Block(code, end is not None, len(text) if end is None else end))
        if end is None or turn_ends:
            return blocks
        # A fence that names a language closes what the model forgot to close, and opens the next block.
        is_open, at, indented = bool(_LANGUAGE_LINE.match(text[end:].partition("\n")[0] + "\n")), end, False


def _closing(text: str, begin: int, fence: str, kept: str, indented: bool) -> tuple[int, int | None]:
    """Return where a block's code ends and where the text after its fence begins (None: it is not closed)."""
    mark = re.escape(fence[0]) + f"{{{len(fence)},}}"
    # Models glue backticks to the last line of code; "~~~x" may be Python.
    for match in re.compile(mark if fence[0] == "`" else rf"^[ \t]*{mark}", re.M).finditer(text, begin):
        before = text[begin : match.start()]
        if not _in_string(kept + (textwrap.dedent(before) if indented else before)):
            return match.start(), match.end()
    return len(text), None


def _in_string(code: str) -> bool:
    """Tell whether a text that is continued after `code` stands inside a string."""
    error = parse_error(code)
    if not isinstance(error, SyntaxError) or not (found := _OPEN_STRING.search(str(error.msg))):
        return False
    return bool(found["triple"]) or error.lineno == code.count("\n") + 1


def longest_part(text: str, entry_point: str) -> str | None:
    """Return the most consecutive lines that parse together and define the function under test, or None.

    Text of special tokens, which may be glued to the last line, is cut where that gives more lines.
    """
    best, most = None, 0
    for shorter in _cuts(text):
        for part in _maximal_parts(shorter.split("\n"), most):
            lines = _filled(part)
            code = "\n".join(part)
            if lines > most and defines(code, entry_point):
                best, most = code, lines
    return best


def _maximal_parts(lines: Sequence[str], least: int) -> Iterator[list[str]]:
    """Yield for every line at which a program can begin the longest range from there that parses."""
    for begin, line in enumerate(lines):
        if not line.strip() or line[0] in " \t":
            continue
        part = list(lines[begin:])
        while part and _filled(part) > least:
            wrong = _first_error("\n".join(part))
            if wrong is None:
                yield part
                break
            # No range from here that holds the line of the error parses.
            part = part[: min(wrong, len(part)) - 1]


def _first_error(code: str) -> int | None:
    """Return the number of the line at which parsing fails (the last one where it has none), None if it succeeds."""
    error = parse_error(code)
    line = getattr(error, "lineno", None) or code.count("\n") + 1
    return max(line, 1) if error else None


def _filled(lines: Sequence[str]) -> int:
    return sum(bool(line.strip()) for line in lines)


def looks_like_prose(answer: str) -> bool:
    """Tell whether an answer is natural language instead of code (thesis, discussion of BigCodeBench).

    An answer counts as prose if it does not parse and most of its lines that are neither blank nor comments
    read as sentences: several words, no assignment, call or keyword.
    """
    if parses(answer) or parses(textwrap.dedent(answer)):
        return False
    lines = [line.strip() for line in answer.splitlines() if line.strip() and not line.strip().startswith("#")]
    sentences = [line for line in lines if _SENTENCE.match(line) and not _CODE_SIGN.search(line)]
    return bool(lines) and 2 * len(sentences) >= len(lines)


_SENTENCE = re.compile(r"^[-*\d.)\s]*[\"'`]?[A-Z]?[\w'`\"-]+([ ,]+[\w'`\"().,:;-]+){3,}[.:;!?]?$")
_CODE_SIGN = re.compile(
    r"[=\[\]{}]|\w\(|^\s*(def|class|import|from|return|if|for|while|with|try|else|elif|raise|assert)\b"
)


def _cut_at(text: str, stops: Sequence[str]) -> str:
    for stop in stops:
        text = text.partition(stop)[0]
    return text


def _cuts(text: str) -> Iterator[str]:
    """Yield the text, and what stands before each of the first places where a special token is spelt out."""
    yield text
    places = [match.start() for match in _SPELT_TOKEN.finditer(text)]
    for place in dict.fromkeys(places[:_MOST_CUTS] + places[-_MOST_CUTS:]):
        yield text[:place]


def _snippet_parses(code: str) -> bool:
    """Tell whether a snippet parses where it stands: at the top level or in a function."""
    return parses(code) or parses(f"def place():\n{code}\n    pass")
