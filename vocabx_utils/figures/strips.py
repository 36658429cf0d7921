"""Token strips: two tokenizations of one text, one above the other, as HTML and as plain text.

A strip is data first (`Strip`), drawn by `Strip.html` for notebooks, `Strip.text` for terminals and as the text
alternative, and `strip_pictures.draw_strip` for papers. The HTML is a plain table with column spans: it needs no
script and no style sheet, says everything by shape as well as by colour, and sets both text and background
colours, so that it reads the same in light and dark themes and after export.
"""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from vocabx_utils.figures.looks import INK, LOOKS, Kind, spell_token, visible
from vocabx_utils.vocabulary.alignment import AlignedText, align_text
from vocabx_utils.vocabulary.boundaries import align_boundaries
from vocabx_utils.vocabulary.encoding import piece_ends
from vocabx_utils.vocabulary.spelling import spelling_of
from vocabx_utils.vocabulary.tokens import Extension

Point = tuple[int, int]
"""Bytes of the text before it, and a number among the points there: tokens without text take room too."""
NAMES = ("original", "extended")
"""Words beside the two rows."""
_EMPTY = "border:none;background:none"
_UNMARKED: dict[Kind, str] = {"same": " (no mark)", "merged": " (no mark, beside a ratio such as {})"}
"""How a legend names kinds without a mark where their colours and borders are not seen."""


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
        return LOOKS[self.kind].mark + self.text


Row = tuple[StripToken, ...]


@dataclass(frozen=True)
class Strip:
    """Two tokenizations of one text, ready to draw."""

    original: Row  # tokens of O
    extended: Row  # tokens of E
    shared: frozenset[Point]  # points at which both sides have read the same text, and the start of the text

    @cached_property
    def summary(self) -> str:
        """One sentence that says what the strip shows; the text alternative of the picture."""
        count = {kind: sum(token.kind == kind for token in self.extended) for kind in LOOKS}
        merged = sum(token.kind == "merged" for token in self.original)
        return (
            f"{len(self.original)} original tokens above {len(self.extended)} extended tokens of the same text: "
            f"{count['same']} the same, {count['new']} new, {count['recut']} old ones cut differently; "
            f"{merged} original tokens lie in differing spans."
        )

    @property
    def rows(self) -> tuple[Row, Row]:
        """Both rows of tokens, from top to bottom."""
        return self.original, self.extended

    @cached_property
    def kinds(self) -> list[Kind]:
        """Kinds of tokens in it, in the order of the legend."""
        used = {token.kind for token in self.original + self.extended}
        return [kind for kind in LOOKS if kind in used]

    @cached_property
    def points(self) -> list[Point]:
        """All points at which a token of either side begins or ends, in order: the edges of the columns."""
        return sorted({point for token in self.original + self.extended for point in (token.start, token.stop)})

    @cached_property
    def places(self) -> dict[Point, int]:
        """Where each point stands, in characters, so that every token has room for its label."""
        return column_places(self.rows, self.points)

    @cached_property
    def joints(self) -> list[Point]:
        """Points at which both sides have read the same text, in order."""
        return [point for point in self.points if point in self.shared]

    def lines(self, width: int) -> list[Strip]:
        """Cut the strip into lines of at most `width` characters, at shared points only."""
        length: dict[Point, int] = {}
        for row in self.rows:
            used = 0
            for token in row:
                used += len(token.label) + 1
                length[token.stop] = max(length.get(token.stop, 0), used)
        if len(self.joints) < 2:
            return [self] if self.points else []
        cuts, used = self.joints[:1], 0
        for before, point in pairwise(self.joints[1:]):
            if length.get(point, 0) - used > width and before != cuts[-1]:
                cuts.append(before)
                used = length.get(before, 0)
        return [self.between(*ends) for ends in zip(cuts, [*cuts[1:], self.points[-1]], strict=True)]

    def between(self, start: Point, stop: Point) -> Strip:
        """Cut out the part between two shared points."""
        above, below = (tuple(t for t in row if start <= t.start and t.stop <= stop) for row in self.rows)
        return Strip(above, below, self.shared)

    def groups(self) -> Iterator[tuple[Point, Point, str]]:
        """Yield neighbouring shared points, and `k:m` where k old tokens between them stand for m others."""
        for start, stop in pairwise(self.joints):
            part = self.between(start, stop)
            plain = {token.kind for token in part.extended} <= {"same", "special"}
            yield start, stop, "" if plain else f"{len(part.original)}:{len(part.extended)}"

    def html(self, width: int = 84) -> str:
        """Draw the strip as HTML tables; each cell's tooltip says its position and kind.

        A line has at most `width` characters and ends at a shared boundary.
        """
        tables = "".join(_table(line) for line in self.lines(width))
        label, style = html.escape(self.summary), "overflow-x:auto;overflow-y:hidden;margin:0.4em 0"
        return f'<div role="figure" aria-label="{label}" style="{style}">{tables}{_legend(self)}</div>'

    def text(self, width: int = 84) -> str:
        """Draw the strip with characters: `|` at shared boundaries, `¦` where only one side has one."""
        return "\n\n".join(_characters(line) for line in self.lines(width))

    def _repr_html_(self) -> str:
        return self.html()

    def __repr__(self) -> str:
        return f"{self.summary}\n{self.text()}"


def column_places(rows: Iterable[Sequence[StripToken]], points: Sequence[Point]) -> dict[Point, int]:
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


def _characters(line: Strip) -> str:
    at, shown = line.places, []
    for name, row in zip(NAMES, line.rows, strict=True):
        characters = [" "] * (at[line.points[-1]] + 1)
        for token in row:
            left, right = at[token.start], at[token.stop]
            characters[left + 1 : right] = token.label.ljust(right - left - 1)
            for place, point in ((left, token.start), (right, token.stop)):
                characters[place] = "|" if point in line.shared else "\u00a6"
        shown.append(f"{name} {''.join(characters)}".rstrip())
    return "\n".join(shown)


def _table(line: Strip) -> str:
    column = {point: n for n, point in enumerate(line.points)}
    above, below = (_row(name, row, column) for name, row in zip(NAMES, line.rows, strict=True))
    rows = f"{above}{_joint_row(line, column)}{below}"
    return (
        '<table style="border-collapse:separate;border-spacing:2px 0;margin:0.5em 0;border:none;'
        f'font-family:monospace;font-size:90%;width:auto"><tbody>{rows}</tbody></table>'
    )


def _row(name: str, tokens: Row, column: dict[Point, int]) -> str:
    cells, at = [], 0
    for token in tokens:
        left, right, look = column[token.start], column[token.stop], LOOKS[token.kind]
        if left > at:
            cells.append(f'<td colspan="{left - at}" style="{_EMPTY}"></td>')
        style = (
            f"color:{INK};background:{look.fill};border:{look.border} {look.edge};padding:2px 4px;"
            f"text-align:center;white-space:pre;{'font-style:italic;' if token.kind == 'special' else ''}"
        )
        title = html.escape(f"{name} position {token.index}: {look.meaning}", quote=True)
        cells.append(f'<td colspan="{right - left}" title="{title}" style="{style}">{html.escape(token.label)}</td>')
        at = right
    if (rest := len(column) - 1 - at) > 0:
        cells.append(f'<td colspan="{rest}" style="{_EMPTY}"></td>')
    head = (
        f'<th scope="row" style="text-align:right;padding-right:6px;font-weight:normal;background:none;'
        f'border:none">{name}</th>'
    )
    return f'<tr style="background:none">{head}{"".join(cells)}</tr>'


def _joint_row(line: Strip, column: dict[Point, int]) -> str:
    """Draw the row between: a line at each shared boundary, and the label of each group."""
    style = (
        "border:none;border-left:2px solid #808080;border-right:2px solid #808080;background:none;padding:0;"
        "text-align:center;font-size:80%"
    )
    cells = "".join(
        f'<td colspan="{column[stop] - column[start]}" style="{style}">{label or "&nbsp;"}</td>'
        for start, stop, label in line.groups()
    )
    return f'<tr style="background:none"><th style="background:none;border:none"></th>{cells}</tr>'


def _legend(strip: Strip) -> str:
    """Draw the legend as a list whose words hold without the swatches, which some web pages drop."""
    ratio = next((label for _, _, label in strip.groups() if label), "")
    entries = [
        f'<span style="color:{INK};background:{look.fill};border:{look.border} {look.edge};padding:0 4px">'
        f"{look.mark or '&nbsp;'}</span> {look.meaning}{_UNMARKED.get(kind, '').format(ratio)}"
        for kind, look in ((kind, LOOKS[kind]) for kind in strip.kinds)
    ]
    if ratio:
        entries.append(f"between the rows, {ratio} counts the original and the extended tokens of a span")
    items = "".join(f'<li style="margin:0">{entry}</li>' for entry in entries)
    return (
        '<ul style="list-style:none;display:flex;flex-wrap:wrap;gap:0 1.2em;margin:0.2em 0;padding:0;'
        f'font-size:80%;line-height:2.2">{items}</ul>'
    )


def token_strip(extension: Extension, text: str) -> Strip:
    """Make the strip of a text, a few lines at most, under both tokenizers of an extension, without added specials."""
    return aligned_strip(extension, align_text(extension, text, add_special_tokens=False))


def aligned_strip(extension: Extension, aligned: AlignedText) -> Strip:
    """Make the strip of a text that this extension aligned already."""
    known, other = (spelling_of(tokenizer) for tokenizer in (extension.original, extension.extended))
    old_ids, new_ids = aligned.original_ids.tolist(), aligned.extended_ids.tolist()
    pieces = ([spell_token(known, i) for i in old_ids], [spell_token(other, i) for i in new_ids])
    return _strip(aligned, pieces, {j for j, i in enumerate(new_ids) if i not in known.pieces})


def strip_from_pieces(original: Sequence[str], extended: Sequence[str]) -> Strip:
    """Make a strip from two ways to cut a text by hand; pieces of E that O does not have are new.

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
    shown = [[visible(piece.encode()) for piece in side] for side in (original, extended)]
    return _strip(aligned, shown, {j for j, piece in enumerate(extended) if piece not in original})


def _strip(aligned: AlignedText, pieces: Sequence[Sequence[str]], fresh: Collection[int]) -> Strip:
    in_group: tuple[set[int], set[int]] = (set(), set())
    for a, b, c, d in aligned.groups.tolist():
        in_group[0].update(range(a, b))
        in_group[1].update(range(c, d))
    slots = _zero_width_slots(aligned)
    special = (aligned.original_special, aligned.extended_special)
    ends = (aligned.original_ends.tolist(), aligned.extended_ends.tolist())
    room: dict[int, int] = {}  # points beside one another at a byte end
    for side in (0, 1):
        for position, slot in slots[side].items():
            room[ends[side][position]] = max(room.get(ends[side][position], 0), slot + 1)

    def kind_of(side: int, position: int) -> Kind:
        if special[side][position]:
            return "special"
        if side == 1 and position in fresh:
            return "new"
        if position in in_group[side]:
            return "recut" if side else "merged"
        return "same"

    rows: list[Row] = []
    for side in (0, 1):
        row, before = [], 0
        for position, (text, end) in enumerate(zip(pieces[side], ends[side], strict=True)):
            if (own := slots[side].get(position)) is None:
                start, stop = (before, room.get(before, 0)), (end, 0)
            else:
                start, stop = (end, own), (end, own + 1)
            row.append(StripToken(position, text, kind_of(side, position), start, stop))
            before = end
        rows.append(tuple(row))
    shared = {rows[0][i].stop for i, _ in aligned.boundaries.tolist()} | set(room.items()) | {(0, 0)}
    return Strip(rows[0], rows[1], frozenset(shared))


def _zero_width_slots(aligned: AlignedText) -> tuple[dict[int, int], dict[int, int]]:
    """Give each token without text a column of its own at its byte end; two that are paired share one."""
    partner = {j: i for i, j in aligned.boundaries.tolist()}
    count: dict[int, int] = {}
    slots: tuple[dict[int, int], dict[int, int]] = ({}, {})
    for side, ends in enumerate((aligned.original_ends, aligned.extended_ends)):
        for position in np.flatnonzero(np.diff(ends, prepend=0) == 0).tolist():
            byte = int(ends[position])
            if side and partner.get(position) in slots[0]:
                slots[1][position] = slots[0][partner[position]]
            else:
                slots[side][position] = count.get(byte, 0)
                count[byte] = slots[side][position] + 1
    return slots
