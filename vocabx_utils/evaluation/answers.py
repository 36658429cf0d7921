"""From the model's reply to the code that is executed.

For HumanEval, MBPP and BigCodeBench the published way of EvalPlus (Liu et al., NeurIPS 2023) and BigCodeBench: the
longest part of the reply that parses, and of it the definitions that the function under test reaches. Where that
way loses right answers (a second, corrected block, decorated functions, set-up statements) this module keeps them;
``docs/evaluation.md`` lists every difference that was found. DS-1000 snippets are cut as its official script does.
"""

from __future__ import annotations

import ast
import re
import symtable
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from vocabx_utils.evaluation.benchmarks import Problem
from vocabx_utils.evaluation.prompts import FENCE, TEMPLATE_STOPS, Prompt

# The text of a special token that a model spelt out, whole or begun: "<|endoftext|>", "<|endof", "</s>", "<".
# Outside strings and comments none of these is Python.
_TURN_END = re.compile(r"<\|\w+\|>|</s>|<｜[^\n｜]+｜>|<(?:start|end)_of_turn>|\[/INST\]")
_SPELT_TOKEN = re.compile(_TURN_END.pattern + r"|<\|\w*\|?|<｜[^\n｜]*|<(?:/s?)?(?=\s*\Z)")
_MOST_CUTS = 8  # places of such text that are tried from either end: a degenerate reply repeats one for ever
_OPENING = re.compile(r"^[ \t>]*(?:[-*+][ \t]+|\d+[.)][ \t]+)?(?P<fence>`{3,}|~{3,})(?P<info>[^\n`]*)(?:\n|\Z)", re.M)
_FENCES = (FENCE, "~~~")
_OPEN_STRING = re.compile(r"unterminated (?P<triple>triple-quoted )?(?:f-|t-)?string")
_LANGUAGE_LINE = re.compile(r"\A\s*(?:python3?|py)[ \t]*\n")  # some models break the line after the fence
_DYNAMIC = {"eval", "exec", "globals", "vars"}


def extract_answer(problem: Problem, prompt: Prompt, completion: str) -> str:
    """Take the program (DS-1000: the snippet) out of the model's reply.

    Args:
        problem: The problem.
        prompt: The prompt that was answered.
        completion: Text that the model generated after the prompt.

    Returns:
        Code to be given to ``benchmarks.program``. Where no part of the reply defines the function under test, the
        first block or the whole reply, so that a person sees what failed.
    """
    if problem.benchmark == "ds1000":
        return ds1000_snippet(completion)
    completion = completion.replace("\r\n", "\n").replace("\r", "\n")  # as Python counts lines
    text = _cut_at(completion, (*TEMPLATE_STOPS, *(("[DONE]",) if problem.benchmark == "mbpp" else ())))
    blocks = [] if prompt.settings.startswith("completion") else find_blocks(text, prompt)
    # The last block that is closed and parses as a whole, else the last with a part that will do; an open one may
    # be cut off anywhere.
    for wanted in (lambda b: b.closed and parses(prompt.kept + b.code), lambda b: b.closed, lambda b: not b.closed):
        for block in filter(wanted, reversed(blocks)):
            if found := longest_part(prompt.kept + block.code, problem.entry_point):
                return reachable(found, _roots(problem))
    if found := longest_part(prompt.kept + text, problem.entry_point):
        return reachable(found, _roots(problem))
    return prompt.kept + (blocks[0].code if blocks else text)


def ds1000_snippet(completion: str) -> str:
    """Cut a DS-1000 reply as the official script does; text of special tokens goes, too.

    Args:
        completion: Text that the model generated after the prompt.

    Returns:
        The snippet with its indentation, and with every line, repeated or not.
    """
    text = _cut_at(completion, ("</code>", "# SOLUTION END")).replace(f"{FENCE}python", "")
    text = _cut_at(text, (FENCE, "\nEND SOLUTION")).replace("<code>", "")
    return next((shorter for shorter in _cuts(text) if _snippet_parses(shorter)), text)


def find_stop(text: str, prompt: Prompt) -> int | None:
    """Return where the used part of a growing reply ends, or ``None`` while it has not ended.

    A reply that begins inside our fence ends with it. One that opens its own fences is read to its end: a later
    block may correct an earlier one.

    Args:
        text: What the model generated so far.
        prompt: The prompt that is being answered.

    Returns:
        Character offset; the text before it decides the answer.
    """
    ends = [at for stop in prompt.stops if (at := text.find(stop)) >= 0]
    if prompt.fenced and (blocks := find_blocks(text, prompt)) and blocks[0].closed:
        ends.append(blocks[0].end)
    return min(ends) if ends else None


@dataclass(frozen=True)
class Block:
    """A fenced block of a reply.

    Attributes:
        code: Its text.
        closed: Whether its closing fence came.
        end: Offset behind the closing fence, or the length of the reply.
    """

    code: str
    closed: bool
    end: int


def find_blocks(text: str, prompt: Prompt) -> list[Block]:
    """Find the fenced blocks of a reply; a fence inside a string or docstring closes nothing.

    Args:
        text: The reply.
        prompt: The prompt that was answered: its fence may be open, and its code start precedes the first block.

    Returns:
        The blocks in their order, up to a spelt-out end of the turn between blocks.
    """
    blocks: list[Block] = []
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
        blocks.append(Block(code, end is not None, len(text) if end is None else end))
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
    """Tell whether a text that is continued after ``code`` stands inside a string."""
    try:
        _parse(code)
    except SyntaxError as error:
        if found := _OPEN_STRING.search(str(error.msg)):
            return bool(found["triple"]) or error.lineno == code.count("\n") + 1
    except (ValueError, MemoryError, RecursionError):
        pass
    return False


def longest_part(text: str, entry_point: str) -> str | None:
    """Return the lines that parse together and define the function under test, as many as there are.

    Text of special tokens, which may be glued to the last line, is cut where that gives more lines.

    Args:
        text: Prose and code.
        entry_point: Name of the function.

    Returns:
        Consecutive lines of ``text``, or None where none define the function.
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
    try:
        _parse(code)
    except SyntaxError as error:
        return max(error.lineno or code.count("\n") + 1, 1)
    except (ValueError, MemoryError, RecursionError):
        return code.count("\n") + 1
    return None


def _filled(lines: Sequence[str]) -> int:
    return sum(bool(line.strip()) for line in lines)


def defines(code: str, name: str) -> bool:
    """Tell whether a module binds a name, if to a function to one with more than a docstring."""
    tree = _tree(code)
    for node in tree.body if tree else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == name and any(not (isinstance(n, ast.Expr) and _is_text(n.value)) for n in node.body):
                return True
        elif name in _Statement.of(node).binds:
            return True
    return False


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def reachable(code: str, roots: frozenset[str]) -> str:
    """Keep the statements that the function under test needs, and drop examples of use.

    Chat models like to show how the function is called. Executed with the answer that opens windows, reads files
    that are not there and fails tests that the function passes.

    Args:
        code: A module that parses.
        roots: Names that the test reads.

    Returns:
        ``code`` without the statements that neither bind nor change anything that the roots need. Imports and
        set-up that concerns only modules (``random.seed(0)``) stay where something needed follows; comments stay.
    """
    tree = _tree(code)
    statements = [_Statement.of(node) for node in tree.body] if tree else []
    modules = frozenset().union(*(item.imports for item in statements))
    needed = _needed(statements, roots, modules)
    wanted = [item for item in statements if item.touches(modules) & needed]
    if not wanted:
        return code
    own = frozenset().union(*(item.binds for item in statements)) - modules | {"__name__"}
    lines = code.split("\n")
    last = wanted[-1].end
    keep = [True] * last + [False] * (len(lines) - last)
    for item in (item for item in statements if item.end <= last and item not in wanted):
        set_up = not item.binds and not item.reads & own
        keep[item.begin - 1 : item.end] = [set_up or bool(item.imports)] * (item.end - item.begin + 1)
    for item in wanted:  # two statements on one line stay together
        keep[item.begin - 1 : item.end] = [True] * (item.end - item.begin + 1)
    if all(kept or not line.strip() for kept, line in zip(keep, lines, strict=True)):
        return code
    return "\n".join(line for kept, line in zip(keep, lines, strict=True) if kept)


def _needed(statements: Sequence[_Statement], roots: frozenset[str], modules: frozenset[str]) -> frozenset[str]:
    """Return the names that the roots reach over what the statements read."""
    needed, wider = frozenset[str](), roots
    while wider != needed:
        needed = wider
        wider = needed.union(*(item.reads for item in statements if item.touches(modules) & needed))
    # What `eval` reads cannot be seen.
    return needed.union(*(item.binds for item in statements)) if needed & _DYNAMIC else needed


@dataclass(frozen=True)
class _Statement:
    """A top-level statement.

    Attributes:
        begin: Its first line, decorators included.
        end: Its last line.
        binds: Global names that it binds.
        changes: Names whose objects it changes.
        reads: Global names that it reads, in functions, too.
        imports: Names that it binds to modules or what they hold.
    """

    begin: int
    end: int
    binds: frozenset[str]
    changes: frozenset[str]
    reads: frozenset[str]
    imports: frozenset[str]

    @classmethod
    def of(cls, node: ast.stmt) -> _Statement:
        """Look at a statement."""
        begin = min([node.lineno, *(item.lineno for item in getattr(node, "decorator_list", ()))])
        binds, reads = global_names(ast.unparse(node))
        aliases = [a for n in ast.walk(node) if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names]
        imports = frozenset((alias.asname or alias.name).split(".")[0] for alias in aliases) & binds
        return cls(begin, node.end_lineno or node.lineno, binds, _changed(node), reads, imports)

    def touches(self, modules: frozenset[str]) -> frozenset[str]:
        """Return what it binds or changes; what it sets in a module is not counted."""
        return self.binds | (self.changes - modules)


def _changed(node: ast.stmt) -> frozenset[str]:
    """Return the names whose objects a statement changes: ``x[0] = 1``, ``x.y = 1``, ``x.append(1)``."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return frozenset()  # that happens when it is called
    targets: list[ast.expr] = []
    for item in ast.walk(node):
        if isinstance(item, ast.Subscript | ast.Attribute) and not isinstance(item.ctx, ast.Load):
            targets.append(item)
        elif isinstance(item, ast.Expr) and isinstance(item.value, ast.Call):
            targets.append(item.value.func)
    roots = (_root(target) for target in targets if isinstance(target, ast.Subscript | ast.Attribute))
    return frozenset(name for name in roots if name)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Subscript | ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def global_names(source: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the global names that a module binds, and those that it reads anywhere, functions included."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes such as "\\w"
            table = symtable.symtable(source, "<answer>", "exec")
    except SyntaxError:  # what parses but does not compile, such as a double argument
        return frozenset(), frozenset()
    top = table.get_symbols()
    binds = {symbol.get_name() for symbol in top if symbol.is_assigned() or symbol.is_imported()}
    reads = {symbol.get_name() for symbol in top if symbol.is_referenced()}
    inner = list(table.get_children())
    while inner:
        scope = inner.pop()
        reads |= {symbol.get_name() for symbol in scope.get_symbols() if symbol.is_global()}
        inner.extend(scope.get_children())
    return frozenset(binds), frozenset(reads)


def _roots(problem: Problem) -> frozenset[str]:
    """Return the function under test and what else its test takes from the answer (MBPP: ``Pair``)."""
    binds, reads = global_names(problem.test)
    return frozenset({problem.entry_point}) | (reads - binds)


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


def parses(code: str) -> bool:
    """Tell whether Python reads a text as a module."""
    return _tree(code) is not None


def _tree(code: str) -> ast.Module | None:
    try:
        return _parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _parse(code: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)
