"""Plain Python values as text: how values cross between the candidate's process and the trusted one."""

from __future__ import annotations

import ast
import sys
from typing import Any

_ATOMS: tuple[Any, ...] = (int, float, complex, str, bytes)
_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset)
sys.set_int_max_str_digits(0)  # some problems return integers with thousands of digits


class NotPlainError(ValueError):
    """A value is not built from numbers, text, None and the built-in containers."""


def encode(value: Any) -> str:
    """Write a plain value as a Python literal.

    Subclasses become their plain base (a `Counter` a `dict`, a named tuple a `tuple`), so that no method of
    the candidate, such as an `__eq__` that always agrees, can travel.

    Raises:
        NotPlainError: the value, or a part of it, is not plain data.
    """
    try:
        return repr(_plain(value))
    except RecursionError:
        raise NotPlainError("the value is nested too deeply or contains itself") from None


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    for kind in _ATOMS:
        if isinstance(value, kind):
            return value if type(value) is kind else kind(value)
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in dict.items(value)}
    for container in _CONTAINERS:
        if isinstance(value, container):
            return container(_plain(item) for item in value)
    raise NotPlainError(f"a value of type {type(value).__name__} is not plain data")


class _Extras(ast.NodeTransformer):
    """Literals that `repr` writes but `ast.literal_eval` does not read: inf, nan and frozenset({...})."""

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id in ("inf", "nan"):
            return ast.copy_location(ast.Constant(float(node.id)), node)
        return node


def decode(text: str) -> Any:
    """Read what `encode` wrote; nothing is executed.

    Raises:
        NotPlainError: the text is not such a literal.
    """
    try:
        return _value(_Extras().visit(ast.parse(text, mode="eval").body))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise NotPlainError(f"not a plain literal: {text[:80]!r} ({type(error).__name__})") from error


def _value(node: Any) -> Any:
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return kind(_value(item) for item in node.elts)
    if isinstance(node, ast.Dict):
        return {_value(key): _value(item) for key, item in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "frozenset":
        return frozenset(_value(node.args[0])) if node.args else frozenset()
    return ast.literal_eval(node)
