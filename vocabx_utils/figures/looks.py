"""How a token looks on every medium: what its bytes are shown as, and the mark, colours and lines of its kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from matplotlib.font_manager import FontProperties, findfont, get_font

from vocabx_utils.glyphs import visible as visible
from vocabx_utils.vocabulary.spelling import Spelling, spelling_of

Kind = Literal["same", "merged", "new", "recut", "special"]


@dataclass(frozen=True)
class Look:
    """How one kind of token looks on every medium: its mark, colours, and lines of a style sheet and of matplotlib."""

    meaning: str
    mark: str
    fill: str
    edge: str
    border: str
    line: Literal["-", "--", ":"] = "-"
    hatch: str = ""

    @property
    def patch(self) -> dict[str, str]:
        """Keywords of a patch of matplotlib."""
        return {"facecolor": self.fill, "edgecolor": self.edge, "linestyle": self.line, "hatch": self.hatch}


LOOKS: dict[Kind, Look] = {
    "same": Look("same token on both sides", "", "#f3f3f3", "#8a8a8a", "1px solid"),
    "merged": Look(
        "old token inside a span that the other side spells differently",
        "",
        "#fbdcae",
        "#a65c00",
        "2px dashed",
        "--",
        "///",
    ),
    "new": Look("new token", "\u25c6", "#bfdff5", "#00507d", "3px double"),
    "recut": Look("old token, other cut", "\u25cb", "#e6dcf1", "#6b4a8e", "2px dotted", ":", "..."),
    "special": Look("special token, stands for no text", "", "#d9e8d3", "#4d7a3d", "1px solid"),
}
INK = "#1a1a1a"


def spell_token(spelling: Spelling, index: int) -> str:
    """Spell one token id so that nothing is invisible; a special token shows its name."""
    return spelling.pieces[index] if spelling.is_control[index] else visible(spelling.raws[index])


def visible_tokens(tokenizer: Any, ids: Iterable[int]) -> str:
    """Spell token ids so that nothing is invisible, with a bar between two; special tokens show their name.

    Example:
        >>> from vocabx_utils.models import load_tokenizer
        >>> tokenizer = load_tokenizer("smollm2-135m")
        >>> visible_tokens(tokenizer, tokenizer(" skipna=").input_ids)
        '·skip | na | ='
    """
    spelling = spelling_of(tokenizer)
    return " | ".join(spell_token(spelling, int(i)) for i in ids)


def drawable(text: str) -> str:
    """Replace characters that the font of pictures lacks by their code points: an emoji by `U+1F642`, for example."""
    known = _font_characters()
    return "".join(char if ord(char) in known else f"U+{ord(char):04X}" for char in text)


@cache
def _font_characters() -> frozenset[int]:
    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans Mono"))).get_charmap())
