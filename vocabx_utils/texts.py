"""What a tokenizer can take, checked before one sees it: the same way, and in the same words, in every wing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

_HALF = re.compile("[\ud800-\udfff]")


class TokenizerError(ValueError):
    """A tokenizer, a proposed token or a text cannot be used; the message says why and what to do."""


def half_character(text: str) -> str:
    """Say where a text holds a lone surrogate, which JSON can spell and no tokenizer takes; empty where none is.

    >>> half_character("ab\\ud800")
    "'\\\\ud800' at character 2, half of a surrogate pair that stands for no character"
    """
    bad = None if text.isascii() else _HALF.search(text)
    if bad is None:
        return ""
    return f"{bad.group()!a} at character {bad.start()}, half of a surrogate pair that stands for no character"


def require_text(text: str, what: str) -> str:
    """Return a text that a tokenizer can take; TokenizerError, which calls it `what`, for anything else."""
    if not isinstance(text, str):
        raise TokenizerError(f"{what} is {text!r} ({type(text).__name__}); expected a string.")
    if bad := half_character(text):
        raise TokenizerError(f"{what} holds {bad}. Mend it or leave it out.")
    return text


def text_list(texts: Iterable[Any], name: str = "texts", *, besides: type | tuple[type, ...] = ()) -> list[Any]:
    """Return texts as a list, for whoever reads them more than once; objects of the types `besides` stay as they are.

    TokenizerError for one string in place of a list, or for a text that no tokenizer takes.
    """
    if isinstance(texts, str):
        raise TokenizerError(f"{name} is one string of {len(texts)} characters; expected a list of texts.")
    given = enumerate(texts)
    return [text if isinstance(text, besides) else require_text(text, f"text {number}") for number, text in given]
