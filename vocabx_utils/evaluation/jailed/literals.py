"""Plain Python values as text: how values cross between the candidate's process and the trusted one."""

from __future__ import annotations

import ast
import itertools
import sys
from collections import deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from decimal import Decimal
from fractions import Fraction
from typing import Any

_ATOMS: tuple[Any, ...] = (int, float, complex, str, bytes)
_CALLED: tuple[Any, ...] = (range, Decimal, Fraction, bytearray)
_LONGEST = 1_000_000  # items of an iterator that are fetched; a longer one is taken for endless
sys.set_int_max_str_digits(0)  # some problems return integers with thousands of digits


class NotPlainError(ValueError):
    """A value is not built from numbers, text, None and the built-in containers."""


def encode(value: Any) -> str:
    """Write a plain value as a Python literal.

    Subclasses become their plain base (a `Counter` a `dict`, a named tuple a `tuple`, a numpy scalar a number), so
    that no method of the candidate, such as an `__eq__` that always agrees, can travel. What is not a literal but
    plain nevertheless (ranges, iterators, views of dictionaries, deques, decimals and fractions) becomes a call of
    its kind: it compares on the other side as it would have on this one.

    Raises:
        NotPlainError: the value, or a part of it, is not plain data.
    """
    try:
        return _text(value)
    except RecursionError:
        raise NotPlainError("the value is nested too deeply or contains itself") from None


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return repr(value)
    for kind in _ATOMS:
        if isinstance(value, kind):
            return repr(value if type(value) is kind else kind(value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)}: {_text(item)}" for key, item in dict.items(value)) + "}"
    if isinstance(value, list):
        return f"[{_items(value)}]"
    if isinstance(value, tuple):
        return f"({_items(value)},)" if tuple.__len__(value) else "()"
    if isinstance(value, set):
        return f"{{{_items(value)}}}" if set.__len__(value) else "set()"
    return _call(value)


def _items(values: Any) -> str:
    return ", ".join(map(_text, values))


def _call(value: Any) -> str:
    """Plain values that have no literal."""
    if isinstance(value, frozenset):
        return f"frozenset([{_items(value)}])"
    for kind in _CALLED:
        if isinstance(value, kind):
            return repr(value if type(value) is kind else kind(value))
    if isinstance(value, deque):
        return f"deque([{_items(value)}], {value.maxlen})"
    for view, name in ((KeysView, "dict_keys"), (ValuesView, "dict_values"), (ItemsView, "dict_items")):
        if isinstance(value, view) and type(value).__module__ == "builtins":
            return f"{name}([{_items(value)}])"
    if isinstance(value, Iterator):
        items = list(itertools.islice(value, _LONGEST + 1))
        if len(items) > _LONGEST:
            raise NotPlainError(f"an iterator of more than {_LONGEST} items")
        return f"iter([{_items(items)}])"
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == ():
        return _text(value.item())
    raise NotPlainError(f"a value of type {type(value).__name__} is not plain data")


class _Extras(ast.NodeTransformer):
    """Literals that `repr` writes but `ast.literal_eval` does not read: inf and nan."""

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
    except (SyntaxError, ValueError, ArithmeticError, TypeError, RecursionError, MemoryError) as error:
        raise NotPlainError(f"not a plain literal: {text[:80]!r} ({type(error).__name__})") from error


# What a call in a literal may name: how many arguments of which types it takes, and what it makes of them.
_CALLS: dict[str, tuple[tuple[Any, ...], Callable[..., Any]]] = {
    "set": ((), set),
    "frozenset": ((list,), frozenset),
    "iter": ((list,), iter),
    "range": ((int, int, int), range),
    "deque": ((list, int | None), deque),
    "Decimal": ((str,), Decimal),
    "Fraction": ((int, int), Fraction),
    "bytearray": ((bytes,), bytearray),
    "dict_keys": ((list,), lambda items: dict.fromkeys(items).keys()),
    "dict_values": ((list,), lambda items: dict(enumerate(items)).values()),
    "dict_items": ((list,), lambda items: dict(items).items()),
}


def _value(node: Any) -> Any:
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        kind = {ast.List: list, ast.Tuple: tuple, ast.Set: set}[type(node)]
        return kind(_value(item) for item in node.elts)
    if isinstance(node, ast.Dict):
        return {_value(key): _value(item) for key, item in zip(node.keys, node.values, strict=True)}
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        kinds, make = _CALLS[node.func.id]
        arguments = [_value(argument) for argument in node.args]
        # a range may leave its step out; nothing else may be left out or be of another type
        enough = len(arguments) == len(kinds) or (make is range and len(arguments) == 2)
        if node.keywords or not enough or not all(map(isinstance, arguments, kinds)):
            raise TypeError(f"arguments of {node.func.id}")
        return make(*arguments)
    return ast.literal_eval(node)


def copy_into(original: Any, changed: Any) -> None:
    """Give the containers inside ``original`` the content of ``changed``, as the call that changed them did.

    Containers that both have in the same place stay the same objects.

    Args:
        original: Arguments of a call.
        changed: What they were after it.
    """
    if isinstance(original, tuple) and isinstance(changed, tuple):
        for old, new in zip(original, changed, strict=False):
            copy_into(old, new)
    elif isinstance(original, list) and isinstance(changed, list):
        original[:] = [*map(_kept, original, changed), *changed[len(original) :]]
    elif isinstance(original, dict) and isinstance(changed, dict):
        items = {key: _kept(original.get(key), item) for key, item in changed.items()}
        original.clear()
        original.update(items)
    elif isinstance(original, set) and isinstance(changed, set):
        original.intersection_update(changed)
        original.update(changed)
    elif isinstance(original, deque | bytearray) and isinstance(changed, type(original)):
        original.clear()
        original.extend(changed)


def _kept(original: Any, changed: Any) -> Any:
    """The original container with new content, or the new value where it is not the same kind of container."""
    copy_into(original, changed)
    return original if type(original) is type(changed) and original == changed else changed
