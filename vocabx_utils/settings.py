"""Settings as frozen dataclasses that refuse names and types that they do not know."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from typing import Any, Literal, Self


class ConfigError(ValueError):
    """A setting is unknown, of the wrong type or out of range."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Values that are checked against their annotations; subclasses add ranges in `__post_init__`."""

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not fits(value, hints[field.name]):
                raise ConfigError(
                    f"{field.name} is {value!r} ({type(value).__name__}); expected {spell(hints[field.name])}."
                )
            self.require(field.name, is_finite(value), "a finite number")

    @classmethod
    def from_params(cls, **params: Any) -> Self:
        """Build the settings from notebook parameters; ConfigError for unknown names, wrong types and ranges."""
        unknown = sorted(set(params) - cls.field_names())
        if unknown:
            raise ConfigError(
                f"{cls.__name__}: unknown {', '.join(unknown)}. Known: {', '.join(sorted(cls.field_names()))}."
            )
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in params.items()}
        return cls(**values)

    @classmethod
    def field_names(cls) -> set[str]:
        """Return the names of the settings."""
        return {field.name for field in dataclasses.fields(cls)}

    def require(self, name: str, holds: bool, expected: str) -> None:
        """Raise `ConfigError` that names the setting, what was given and what was expected."""
        if not holds:
            raise ConfigError(f"{name} is {getattr(self, name)!r}; expected {expected}.")

    def require_at_least(self, least: int, *names: str) -> None:
        """Refuse settings below a number."""
        for name in names:
            self.require(name, getattr(self, name) >= least, f"{least} or more")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON-ready values."""
        return {k: list(v) if isinstance(v, tuple) else v for k, v in dataclasses.asdict(self).items()}


def is_finite(value: object) -> bool:
    """Return True unless a value is, or holds, a float that is infinite or no number."""
    if isinstance(value, list | tuple):
        return all(is_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


def type_of(default: object) -> Any:
    """Annotation that a default value stands for.

    >>> type_of([1, 2]), type_of(None)
    (list[int], typing.Any)
    """
    if default is None:
        return Any
    if isinstance(default, list | tuple):
        kinds = sorted({type(item) for item in default}, key=lambda kind: kind.__name__)
        return list[typing.Union[tuple(kinds)]] if kinds else list[Any]  # type: ignore[misc]  # noqa: UP007
    return type(default)


def fits(value: object, hint: Any) -> bool:
    """Whether a value has the annotated type; an int is a fine float, a bool no number, a tuple a fine list."""
    if hint is Any:
        return True
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in args and type(value) in {type(a) for a in args}
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, a) for a in args)
    if origin in (tuple, list):
        expected = tuple if origin is tuple else list | tuple
        return isinstance(value, expected) and all(fits(v, args[0]) for v in value)
    if hint is type(None):
        return value is None
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def spell(hint: Any) -> str:
    """Say in words what an annotation takes."""
    if hint is Any:
        return "any plain value"
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, args))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(spell(a) for a in args)
    if origin in (tuple, list):
        return "a list" if args[0] is Any else f"a list of {spell(args[0])}"
    return "None" if hint is type(None) else getattr(hint, "__name__", str(hint))
