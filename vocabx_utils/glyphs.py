"""Spell tokens so that nothing is invisible: the same way in tables, strips, figures and the explorer."""

from __future__ import annotations

import re
import unicodedata

_WHITESPACE = {" ": "\u00b7", "\n": "\u21b5", "\r": "\u240d", "\t": "\u2192", "\x7f": "\u2421"}
_BROKEN_OR_CHAR = re.compile("([\udc80-\udcff]+)|(.)", re.DOTALL)  # what `surrogateescape` makes of broken UTF-8


def visible(piece: bytes | str, limit: int = 24) -> str:
    """Spell the bytes of a token, or its text, so that nothing is invisible.

    Spaces become `·`, line feeds `↵`, tabs `→`, carriage returns `␍`, other control characters their pictures, lone
    combining marks stand on `◌`, other unprintable characters show their code point, and bytes that are not a whole
    character their hexadecimal value. What is longer than `limit` characters is shortened in the middle.

    Example:
        >>> visible(b" x\\n"), visible(" groupby"), visible("⭢".encode()[:2])
        ('·x↵', '·groupby', '‹E2 AD›')
    """
    text = piece if isinstance(piece, str) else piece.decode("utf-8", errors="surrogateescape")
    shown = _BROKEN_OR_CHAR.sub(lambda found: _visible_bytes(found[1]) if found[1] else _visible_char(found[2]), text)
    if len(set(shown)) == 1 and len(shown) > 6:
        return f"{shown[0]}\u00d7{len(shown)}"
    half = limit // 2
    return shown if len(shown) <= limit else f"{shown[: half - 1]}\u2026{shown[len(shown) - half :]}"


def _visible_bytes(escaped: str) -> str:
    return f"\u2039{' '.join(f'{ord(char) - 0xDC00:02X}' for char in escaped)}\u203a"


def _visible_char(char: str) -> str:
    if char in _WHITESPACE:
        return _WHITESPACE[char]
    if char < " ":
        return chr(0x2400 + ord(char))
    category = unicodedata.category(char)
    if category.startswith("M"):
        return "\u25cc" + char
    return f"\u2039U+{ord(char):04X}\u203a" if category.startswith(("Z", "C")) else char
