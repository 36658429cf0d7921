"""Token strips: two tokenizations of one text, one above the other, as HTML and as plain text.

A strip is data first (`Strip`), drawn by `Strip.html` for notebooks, `Strip.text` for terminals and as the text
alternative, and `strip_figures.draw_strip` for papers. The HTML is a plain table with column spans: it needs no
script and no style sheet, says everything by shape as well as by colour, and sets both text and background
colours, so that it reads the same in light and dark themes and after export.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from vocabx_utils.vocabulary.alignment import AlignedText, TokenizerPair, align_text
from vocabx_utils.vocabulary.boundaries import align_boundaries
from vocabx_utils.vocabulary.encoding import piece_ends
from vocabx_utils.vocabulary.spelling import spelling_of

Kind = Literal["same", "merged", "new", "recut", "special"]
Point = tuple[int, int]

KINDS: dict[Kind, str] = {
    "same": "same token on both sides",
    "merged": "old token inside a span that the other side spells differently",
    "new": "new token",
    "recut": "old token, other cut",
    "special": "special token, stands for no text",
}
MARKS: dict[Kind, str] = {"same": "", "merged": "", "new": "\u25c6", "recut": "\u25cb", "special": ""}
COLOURS: dict[Kind, str] = {
    "same": "#f3f3f3",
    "merged": "#fbdcae",
    "new": "#bfdff5",
    "recut": "#e6dcf1",
    "special": "#d9e8d3",
}
BORDERS: dict[Kind, str] = {
    "same": "1px solid #8a8a8a",
    "merged": "2px dashed #a65c00",
    "new": "3px double #00507d",
    "recut": "2px dotted #6b4a8e",
    "special": "1px solid #4d7a3d",
}
INK = "#1a1a1a"
_WHITESPACE = {" ": "\u00b7", "\n": "\u21b5", "\r": "\u240d", "\t": "\u2192", "\x7f": "\u2421"}


def visible(piece: bytes, limit: int = 24) -> str:
    """Spell bytes so that nothing is invisible.

    Spaces become `·`, line feeds `↵`, tabs `→`, carriage returns `␍`, other control characters their pictures, lone
    combining marks stand on `◌`, other unprintable characters show their code point, and bytes that are not a whole
    character their hexadecimal value.

    Args:
        piece: the bytes of one token.
        limit: longest text, in characters; what is longer is shortened in the middle.

    Returns:
        The text to show.

    Example:
        >>> visible(b" x\\n"), visible("⭢".encode()[:2])
        ('·x↵', '‹E2 AD›')
    """
    text = piece.decode("utf-8", errors="surrogateescape")
    shown, rest = "", list(text)
    while rest:
        char = rest.pop(0)
        if "\udc80" <= char <= "\udcff":
            broken = [ord(char) - 0xDC00]
            while rest and "\udc80" <= rest[0] <= "\udcff":
                broken.append(ord(rest.pop(0)) - 0xDC00)
            shown += f"\u2039{' '.join(f'{byte:02X}' for byte in broken)}\u203a"
        else:
            shown += _visible_char(char)
    if len(set(shown)) == 1 and len(shown) > 6:
        return f"{shown[0]}\u00d7{len(shown)}"
    half = limit // 2
    return shown if len(shown) <= limit else f"{shown[: half - 1]}\u2026{shown[len(shown) - half :]}"


def _visible_char(char: str) -> str:
    if char in _WHITESPACE:
        return _WHITESPACE[char]
    if char < " ":
        return chr(0x2400 + ord(char))
    category = unicodedata.category(char)
    if category.startswith("M"):
        return "\u25cc" + char
    if category.startswith(("Z", "C")):
        return f"\u2039U+{ord(char):04X}\u203a"
    return char


@dataclass(frozen=True)
class StripToken:
    """One token of a strip: position in its sequence, text to show, kind, and the points between which it lies."""

    index: int
    text: str
    kind: Kind
    start: Point
    stop: Point

    @property
    def label(self) -> str:
        """The text with the mark of its kind in front."""
        return MARKS[self.kind] + self.text


@dataclass(frozen=True)
class Strip:
    """Two tokenizations of one text, ready to draw.

    Attributes:
        original: tokens of O.
        extended: tokens of E.
        shared: points at which both sides have read the same text, and the start of the text.
    """

    original: tuple[StripToken, ...]
    extended: tuple[StripToken, ...]
    shared: frozenset[Point]

    @cached_property
    def summary(self) -> str:
        """One sentence that says what the strip shows; the text alternative of the picture."""
        count = {kind: sum(token.kind == kind for token in self.extended) for kind in KINDS}
        merged = sum(token.kind == "merged" for token in self.original)
        return (
            f"{len(self.original)} original tokens above {len(self.extended)} extended tokens of the same text: "
            f"{count['same']} the same, {count['new']} new, {count['recut']} old ones cut differently; "
            f"{merged} original tokens lie in differing spans."
        )

    @cached_property
    def points(self) -> list[Point]:
        """All points at which a token of either side begins or ends, in order: the edges of the columns."""
        tokens = self.original + self.extended
        return sorted({point for token in tokens for point in (token.start, token.stop)})

    def lines(self, width: int) -> list[tuple[Point, Point]]:
        """Cut the strip into lines of at most `width` characters, at shared points only."""
        length: dict[Point, int] = {}
        for row in (self.original, self.extended):
            used = 0
            for token in row:
                used += len(token.label) + 1
                length[token.stop] = max(length.get(token.stop, 0), used)
        edges = [point for point in self.points if point in self.shared]
        if len(edges) < 2:
            return [(self.points[0], self.points[-1])] if self.points else []
        cuts, used = [edges[0]], 0
        for before, point in pairwise(edges[1:]):
            if length.get(point, 0) - used > width and before != cuts[-1]:
                cuts.append(before)
                used = length.get(before, 0)
        return list(zip(cuts, [*cuts[1:], self.points[-1]], strict=True))

    def html(self, width: int = 84) -> str:
        """Draw the strip as an HTML table.

        Args:
            width: characters in a line before it is broken at the next shared boundary.

        Returns:
            HTML without scripts or style sheets. Each cell's tooltip says its position, kind and bytes.
        """
        tables = "".join(self._table(start, stop) for start, stop in self.lines(width))
        style = "overflow-x:auto;overflow-y:hidden;margin:0.4em 0"
        return (
            f'<div role="figure" aria-label="{html.escape(self.summary)}" style="{style}">{tables}{_legend(self)}</div>'
        )

    def _table(self, start: Point, stop: Point) -> str:
        points = [point for point in self.points if start <= point <= stop]
        column = {point: n for n, point in enumerate(points)}
        rows = [
            _row("original", _within(self.original, start, stop), column, len(points) - 1),
            _joint_row(self, points),
            _row("extended", _within(self.extended, start, stop), column, len(points) - 1),
        ]
        return (
            '<table style="border-collapse:separate;border-spacing:2px 0;margin:0.5em 0;border:none;'
            f'font-family:monospace;font-size:90%;width:auto"><tbody>{"".join(rows)}</tbody></table>'
        )

    def text(self, width: int = 84) -> str:
        """Draw the strip with characters: `|` at shared boundaries, `¦` where only one side has one."""
        parts = [self._text_lines(start, stop) for start, stop in self.lines(width)]
        return "\n\n".join(parts)

    def _text_lines(self, start: Point, stop: Point) -> str:
        points = [point for point in self.points if start <= point <= stop]
        rows = [_within(side, start, stop) for side in (self.original, self.extended)]
        at = column_places(rows, points)
        lines = []
        for name, row in zip(("original", "extended"), rows, strict=True):
            line = [" "] * (at[points[-1]] + 1)
            for token in row:
                left, right = at[token.start], at[token.stop]
                line[left + 1 : right] = token.label.ljust(right - left - 1)
                line[left] = "|" if token.start in self.shared else "\u00a6"
                line[right] = "|" if token.stop in self.shared else "\u00a6"
            lines.append(f"{name} {''.join(line)}".rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        return f"{self.summary}\n{self.text()}"


def column_places(rows: Sequence[Sequence[StripToken]], points: Sequence[Point]) -> dict[Point, int]:
    """Place the points of a line so that every token of every row has room for its label, in characters."""
    ends: dict[Point, list[tuple[Point, int]]] = {}
    for row in rows:
        for token in row:
            ends.setdefault(token.stop, []).append((token.start, len(token.label) + 1))
    place = {points[0]: 0} if points else {}
    for before, point in pairwise(points):
        needs = [place[start] + size for start, size in ends.get(point, [])]
        place[point] = max([place[before] + 1, *needs])
    return place


def _within(row: Sequence[StripToken], start: Point, stop: Point) -> list[StripToken]:
    return [token for token in row if token.start >= start and token.stop <= stop]


def _row(name: str, tokens: Sequence[StripToken], column: dict[Point, int], columns: int) -> str:
    cells, at = [], 0
    for token in tokens:
        if column[token.start] > at:
            cells.append(f'<td colspan="{column[token.start] - at}" style="border:none;background:none"></td>')
        span = column[token.stop] - column[token.start]
        style = (
            f"color:{INK};background:{COLOURS[token.kind]};border:{BORDERS[token.kind]};padding:2px 4px;"
            f"text-align:center;white-space:pre;{'font-style:italic;' if token.kind == 'special' else ''}"
        )
        title = html.escape(f"{name} position {token.index}: {KINDS[token.kind]}", quote=True)
        cells.append(f'<td colspan="{span}" title="{title}" style="{style}">{html.escape(token.label)}</td>')
        at = column[token.stop]
    if at < columns:
        cells.append(f'<td colspan="{columns - at}" style="border:none;background:none"></td>')
    head = (
        f'<th scope="row" style="text-align:right;padding-right:6px;font-weight:normal;background:none;'
        f'border:none">{name}</th>'
    )
    return f'<tr style="background:none">{head}{"".join(cells)}</tr>'


def _joint_row(strip: Strip, points: Sequence[Point]) -> str:
    """Draw the row between: a line at each shared boundary, and `k:m` where k old tokens stand for m others."""
    cells, at = [], 0
    style = "border:none;border-left:2px solid #808080;border-right:2px solid #808080;background:none;padding:0"
    for n, point in enumerate(points[1:], start=1):
        if point not in strip.shared:
            continue
        sizes = [len(_within(side, points[at], point)) for side in (strip.original, strip.extended)]
        kinds = {token.kind for token in _within(strip.extended, points[at], point)}
        label = "" if kinds <= {"same", "special"} else f"{sizes[0]}:{sizes[1]}"
        cells.append(f'<td colspan="{n - at}" style="{style};text-align:center;font-size:80%">{label or "&nbsp;"}</td>')
        at = n
    return f'<tr style="background:none"><th style="background:none;border:none"></th>{"".join(cells)}</tr>'


def _legend(strip: Strip) -> str:
    used = {token.kind for token in strip.original + strip.extended}
    items = [
        f'<span style="color:{INK};background:{COLOURS[kind]};border:{BORDERS[kind]};padding:0 4px">'
        f"{MARKS[kind] or '&nbsp;'}</span> {KINDS[kind]}"
        for kind in KINDS
        if kind in used
    ]
    return f'<div style="font-size:80%;line-height:2.2">{" &ensp; ".join(items)}</div>'


def token_strip(extension: TokenizerPair, text: str, *, add_special_tokens: bool = False) -> Strip:
    """Make the strip of a text under both tokenizers of an extension.

    Args:
        extension: anything with `original` and `extended`.
        text: the text; a few lines at most, or the picture gets long.
        add_special_tokens: let both tokenizers add their own specials.

    Returns:
        The strip; show it, or call its `html` or `text`.
    """
    return aligned_strip(extension, align_text(extension, text, add_special_tokens=add_special_tokens))


def aligned_strip(extension: TokenizerPair, aligned: AlignedText) -> Strip:
    """Make the strip of a text that is aligned already.

    Args:
        extension: the extension that aligned it.
        aligned: the aligned text.

    Returns:
        The strip.
    """
    both = extension.original, extension.extended
    spellings = [spelling_of(tokenizer) for tokenizer in both]
    sides = (aligned.original_ids, aligned.extended_ids)
    pieces = [
        [_shown(spelling.raws[i], bool(spelling.is_control[i]), tokenizer, int(i)) for i in ids]
        for spelling, ids, tokenizer in zip(spellings, sides, both, strict=True)
    ]
    known = set(spellings[0].pieces)
    fresh = {j for j, i in enumerate(aligned.extended_ids.tolist()) if i not in known}
    return _strip(aligned, pieces, fresh)


def strip_from_pieces(original: Sequence[str], extended: Sequence[str], new: Sequence[str] | None = None) -> Strip:
    """Make a strip from two ways to cut a text by hand, without any tokenizer.

    Args:
        original: the pieces of O.
        extended: the pieces of E.
        new: the pieces that are new tokens; by default those of E that do not occur in O.

    Returns:
        The strip.

    Raises:
        ValueError: if the two do not spell the same text.
    """
    if "".join(original) != "".join(extended):
        raise ValueError(f"the pieces spell {''.join(original)!r} and {''.join(extended)!r}; they must be one text")
    number = {piece: n for n, piece in enumerate(dict.fromkeys([*original, *extended]))}
    ids = [np.array([number[piece] for piece in side], dtype=np.int64) for side in (original, extended)]
    ends = [piece_ends(list(side)) for side in (original, extended)]
    none = [np.zeros(len(side), dtype=bool) for side in ids]
    aligned = AlignedText(ids[0], ids[1], ends[0], ends[1], align_boundaries(ends[0], ends[1]), none[0], none[1])
    wanted = set(extended) - set(original) if new is None else set(new)
    shown = [[visible(piece.encode()) for piece in side] for side in (original, extended)]
    return _strip(aligned, shown, {j for j, piece in enumerate(extended) if piece in wanted})


def _shown(piece: bytes, special: bool, tokenizer: object, index: int) -> str:
    if not special:
        return visible(piece)
    name = getattr(tokenizer, "convert_ids_to_tokens", None)
    return str(name(index)) if name else f"special {index}"


def _strip(aligned: AlignedText, pieces: Sequence[Sequence[str]], fresh: set[int]) -> Strip:
    in_group = [np.zeros(len(ids), dtype=bool) for ids in (aligned.original_ids, aligned.extended_ids)]
    for a, b, c, d in aligned.groups.tolist():
        in_group[0][a:b] = True
        in_group[1][c:d] = True
    slots = _zero_width_slots(aligned)
    special = (aligned.original_special, aligned.extended_special)
    ends = (aligned.original_ends.tolist(), aligned.extended_ends.tolist())
    room: dict[int, int] = {}
    for side in (0, 1):
        for position, slot in slots[side].items():
            room[ends[side][position]] = max(room.get(ends[side][position], 0), slot + 1)
    rows = []
    for side in (0, 1):
        row, before = [], 0
        for position, text in enumerate(pieces[side]):
            end = ends[side][position]
            kind: Kind = "same"
            if special[side][position]:
                kind = "special"
            elif side == 1 and position in fresh:
                kind = "new"
            elif in_group[side][position]:
                kind = "recut" if side else "merged"
            start, stop = (before, room.get(before, 0)), (end, 0)
            if position in slots[side]:
                start, stop = (end, slots[side][position]), (end, slots[side][position] + 1)
            row.append(StripToken(position, text, kind, start, stop))
            before = end
        rows.append(tuple(row))
    stops = [{token.index: token.stop for token in row} for row in rows]
    shared = {stops[0][i] for i, j in aligned.boundaries.tolist()}
    shared |= {(byte, size) for byte, size in room.items()}
    shared.add((0, 0))
    return Strip(rows[0], rows[1], frozenset(shared))


def _zero_width_slots(aligned: AlignedText) -> tuple[dict[int, int], dict[int, int]]:
    """Give each token without text a column of its own at its byte end; two that are paired share one."""
    zero = [np.diff(ends, prepend=0) == 0 for ends in (aligned.original_ends, aligned.extended_ends)]
    left: dict[int, int] = {}
    count: dict[int, int] = {}
    for position in np.flatnonzero(zero[0]).tolist():
        byte = int(aligned.original_ends[position])
        left[position] = count.get(byte, 0)
        count[byte] = left[position] + 1
    partner = {j: i for i, j in aligned.boundaries.tolist() if i in left}
    right: dict[int, int] = {}
    for position in np.flatnonzero(zero[1]).tolist():
        byte = int(aligned.extended_ends[position])
        if position in partner:
            right[position] = left[partner[position]]
        else:
            right[position] = count.get(byte, 0)
            count[byte] = right[position] + 1
    return left, right


__all__ = [
    "BORDERS",
    "COLOURS",
    "KINDS",
    "MARKS",
    "Strip",
    "StripToken",
    "aligned_strip",
    "column_places",
    "strip_from_pieces",
    "token_strip",
    "visible",
]
