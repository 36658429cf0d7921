"""Which statements of a program a function needs, read from the program without running it."""

from __future__ import annotations

import ast
import symtable
import warnings
from collections.abc import Sequence, Set
from dataclasses import dataclass

_DYNAMIC = {"eval", "exec", "globals", "vars"}


def parses(code: str) -> bool:
    """Tell whether Python reads a text as a module."""
    return parse_error(code) is None


def parse_error(code: str) -> Exception | None:
    """Return why Python does not read a text as a module, None where it does."""
    try:
        parse(code)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        return error
    return None


def parse(code: str) -> ast.Module:
    """Parse a module without a word about its invalid escapes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ast.parse(code)


def defines(code: str, name: str) -> bool:
    """Tell whether a module binds a name, if to a function to one with more than a docstring."""
    for node in parse(code).body if parses(code) else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name == name and any(not (isinstance(n, ast.Expr) and _is_text(n.value)) for n in node.body):
                return True
        elif name in _Statement.of(node).binds:
            return True
    return False


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def reachable(code: str, roots: Set[str]) -> str:
    """Keep the statements that the roots need, names that the test reads, and drop examples of use.

    Chat models like to show how the function is called. Executed with the answer that opens windows, reads files
    that are not there and fails tests that the function passes. Dropped is what neither binds nor changes anything that
    the roots need. Imports and set-up that concerns only modules (`random.seed(0)`) stay where something needed
    follows; comments stay.
    """
    statements = [_Statement.of(node) for node in parse(code).body] if parses(code) else []
    modules = frozenset().union(*(item.imports for item in statements))
    needed = _needed(statements, frozenset(roots), modules)
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
    """A top-level statement."""

    begin: int  # first line, decorators included
    end: int  # last line
    binds: frozenset[str]  # global names
    changes: frozenset[str]  # names whose objects it changes
    reads: frozenset[str]  # global names, in functions, too
    imports: frozenset[str]  # names that it binds to modules or what they hold

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
    """Return the names whose objects a statement changes: `x[0] = 1`, `x.y = 1`, `x.append(1)`."""
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
