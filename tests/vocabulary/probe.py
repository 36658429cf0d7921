"""Two thousand lines of what tokenizers have been known to get wrong."""

from __future__ import annotations

import argparse
import inspect
import random
import textwrap

from vocabx_utils.vocabulary.audit import CHECK_TEXT, UNICODE_STRESS

ODD = (
    " ", "  ", "\t", "\t\t", "\r\n", "\n\n\n", "\r", "\x00", "\u00a0", "\u200d", "\ufeff", "\u2581", "\u2581x",
    "据", "文字", "データ", "한국어", "กลุ่ม", "🙂", "👩‍👩‍👧", "👍🏽", "🇩🇪",
    "é", "e\u0301", "y\u0301", "\u0301", "ﬁ", "½", "đ",
    "Ġ", "Ċ", ".", " .", ";", "(", ")", "->", "s.", "don't", "I'LL", "12345", "3.14", "0x7f", "_", "__init__", "<0x0A>",
)  # fmt: skip


def probe(controls: list[str] = (), words: list[str] = (), lines: int = 2000) -> list[str]:  # type: ignore[assignment]
    """Make the lines.

    Args:
        controls: texts of control tokens of the tokenizer, which also occur in the lines.
        words: further texts, for example of new tokens.
        lines: how many.

    Returns:
        Source lines at many depths of indentation, with LF, CR LF and tabs, and random mixtures.
    """
    code = "".join(inspect.getsource(module) for module in (argparse, textwrap)).splitlines(keepends=True)
    rng = random.Random(0)
    odd = [*ODD, *controls[:8], *words]
    out = [*UNICODE_STRESS, CHECK_TEXT, *controls[:8], "    return x", " hello", "", *words]
    while len(out) < lines:
        line = rng.choice(code)
        kind = rng.randrange(5)
        if kind == 0:
            line = " " * rng.randrange(1, 40) + line
        elif kind == 1:
            line = "\t" * rng.randrange(1, 9) + line.replace("\n", "\r\n")
        elif kind == 2:
            parts = line.split(" ")
            parts.insert(rng.randrange(len(parts) + 1), rng.choice(odd))
            line = " ".join(parts)
        elif kind == 3:
            line = "".join(rng.choice(odd) for _ in range(rng.randrange(1, 12)))
        out.append(line)
    return out[:lines]
