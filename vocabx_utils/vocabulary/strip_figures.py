"""Token strips and the loss pipeline as matplotlib figures, for papers (SVG, PDF) and for the README.

`draw_loss_pipeline` redraws the thesis's figure `fig:complete_loss_pipeline` from live data: both tokenizations,
the columns that the anchor keeps, the rows that are cut off, and the loss of each kept column.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vocabx_utils.vocabulary.alignment import MERGED, IntArray, KindArray
from vocabx_utils.vocabulary.strips import (
    COLOURS,
    INK,
    KINDS,
    MARKS,
    Kind,
    Point,
    Strip,
    StripToken,
    column_places,
    visible,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EDGES = {"same": "#8a8a8a", "merged": "#a65c00", "new": "#00507d", "recut": "#6b4a8e", "special": "#4d7a3d"}
LINES = {"same": "-", "merged": "--", "new": "-", "recut": ":", "special": "-"}
HATCHES = {"same": "", "merged": "///", "new": "", "recut": "...", "special": ""}
_TOP, _BOTTOM, _HIGH = 1.0, 0.0, 0.62


@cache
def _font_characters() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(get_font(findfont(FontProperties(family="DejaVu Sans Mono"))).get_charmap())


def drawable(text: str) -> str:
    """Replace characters that the figure's font lacks by their code points.

    Args:
        text: the label of a token.

    Returns:
        The same text with `U+1F642` in place of an emoji, for example.
    """
    known = _font_characters()
    return "".join(char if ord(char) in known else f"U+{ord(char):04X}" for char in text)


def _plain(strip: Strip) -> Strip:
    sides = [
        tuple(StripToken(t.index, drawable(t.text), t.kind, t.start, t.stop) for t in row)
        for row in (strip.original, strip.extended)
    ]
    return Strip(sides[0], sides[1], strip.shared)


def _box(axes: Axes, left: float, bottom: float, width: float, height: float, kind: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    axes.add_patch(
        FancyBboxPatch(
            (left, bottom),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.25" if kind in {"new", "special"} else "square,pad=0",
            facecolor=COLOURS[kind],  # type: ignore[index]
            edgecolor=EDGES[kind],
            linestyle=LINES[kind],
            linewidth=2.0 if kind == "new" else 1.0,
            hatch=HATCHES[kind],
            mutation_aspect=0.3,
        )
    )


def _write(axes: Axes, x: float, y: float, text: str, size: float, **style: Any) -> None:
    backing = (
        {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6} if style.pop("back", False) else None
    )
    style = {"ha": "center", "va": "center", "color": INK, "family": "DejaVu Sans Mono"} | style
    axes.text(x, y, text, fontsize=size, bbox=backing, **style)


def draw_strip(
    strip: Strip, ax: Axes | None = None, *, width: int = 84, indices: bool = False, legend: bool = True
) -> Axes:
    """Draw both tokenizations, one above the other, with shared boundaries joined.

    Args:
        strip: the strip.
        ax: axes to draw on; made if not given.
        width: characters in a line before it is broken at the next shared boundary.
        indices: write each token's position under or above it.
        legend: explain the kinds of boxes below the strip.

    Returns:
        The axes.
    """
    strip = _plain(strip)
    lines = strip.lines(width)
    if ax is None:
        from matplotlib import pyplot as plt

        _, ax = plt.subplots(figsize=(0.105 * (width + 14), 0.95 * max(len(lines), 1) + 0.3))
    step = 2.9 if indices else 2.3
    for n, (start, stop) in enumerate(lines):
        _draw_line(ax, strip, start, stop, -n * step, 8.5, indices)
    ax.set_xlim(-9.5, width + 4)
    ax.set_ylim(-(max(len(lines), 1) - 1) * step - 0.4, 2.0)
    if legend:
        _draw_legend(ax, strip)
    ax.set_axis_off()
    return ax


def _draw_line(axes: Axes, strip: Strip, start: Point, stop: Point, base: float, size: float, indices: bool) -> None:
    points = [point for point in strip.points if start <= point <= stop]
    rows = [[t for t in row if start <= t.start and t.stop <= stop] for row in (strip.original, strip.extended)]
    at = column_places(rows, points)
    for name, row, bottom in (("original", rows[0], base + _TOP), ("extended", rows[1], base + _BOTTOM)):
        _write(axes, -0.6, bottom + _HIGH / 2, name, size, ha="right")
        for token in row:
            left, right = at[token.start], at[token.stop]
            _box(axes, left + 0.12, bottom, right - left - 0.24, _HIGH, token.kind)
            back = token.kind in {"merged", "recut"}
            _write(axes, (left + right) / 2, bottom + _HIGH / 2, token.label, size, back=back)
            if indices:
                y = bottom + _HIGH + 0.16 if name == "original" else bottom - 0.18
                _write(axes, (left + right) / 2, y, str(token.index), size * 0.7, color="#555555")
    for point in points:
        if point in strip.shared:
            axes.plot(
                [at[point]] * 2,
                [base + _BOTTOM, base + _TOP + _HIGH],
                color="#444444",
                linewidth=0.8,
                linestyle="-",
                marker="",
            )
    _shade_groups(axes, strip, points, at, base)


def _shade_groups(axes: Axes, strip: Strip, points: Sequence[Point], at: dict[Point, int], base: float) -> None:
    shared = [point for point in points if point in strip.shared]
    middle = (_BOTTOM + _HIGH + _TOP) / 2
    for before, point in pairwise(shared):
        sides = [[t for t in row if before <= t.start and t.stop <= point] for row in (strip.original, strip.extended)]
        if {token.kind for token in sides[1]} <= {"same", "special"}:
            continue
        axes.fill_between([at[before], at[point]], base + _BOTTOM + _HIGH, base + _TOP, color="#d8d8d8", linewidth=0)
        _write(axes, (at[before] + at[point]) / 2, base + middle, f"{len(sides[0])}:{len(sides[1])}", 6.5)


def _draw_legend(axes: Axes, strip: Strip) -> None:
    from matplotlib.patches import Patch

    used = {token.kind for token in strip.original + strip.extended}
    handles = [
        Patch(
            facecolor=COLOURS[kind],
            edgecolor=EDGES[kind],
            linestyle=LINES[kind],  # type: ignore[arg-type]
            hatch=HATCHES[kind],
            label=f"{MARKS[kind]} {meaning}".strip(),
        )
        for kind, meaning in KINDS.items()
        if kind in used
    ]
    style: dict[str, Any] = {
        "ncols": len(handles),
        "frameon": False,
        "fontsize": 7,
        "columnspacing": 1.2,
        "borderaxespad": 0.0,
    }
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.06, 0.0), **style)


def draw_token_ids(
    rows: Sequence[tuple[str, Sequence[str], Sequence[int], Collection[int]]], ax: Axes | None = None
) -> Axes:
    """Draw several ways to cut one text into tokens, each token with its id, characters above one another.

    Args:
        rows: from top to bottom: name, the pieces of the text as they are, their ids, and positions of new tokens.
        ax: axes to draw on; made if not given.

    Returns:
        The axes.

    Raises:
        ValueError: a row has not one id for each piece, or the rows do not begin alike.
    """
    texts = ["".join(pieces) for _, pieces, _, _ in rows]
    longest = max(texts, key=len, default="")
    for (name, pieces, ids, _), text in zip(rows, texts, strict=True):
        if len(pieces) != len(ids) or not longest.startswith(text):
            found = f"{len(pieces)} pieces and {len(ids)} ids that spell {text!r}"
            raise ValueError(f"{name} has {found}; expected one id for each piece, and a beginning of {longest!r}")
    tokens = [_row_tokens(pieces, ids, new) for _, pieces, ids, new in rows]
    points = sorted({point for row in tokens for token in row for point in (token.start, token.stop)})
    at = column_places(tokens, points)
    width = max(at.values(), default=0)
    if ax is None:
        from matplotlib import pyplot as plt

        _, ax = plt.subplots(figsize=(0.105 * (width + 26), 0.62 * len(rows) + 0.5))
    for n, ((name, pieces, ids, _), row) in enumerate(zip(rows, tokens, strict=True)):
        base = -n * 1.5
        _write(ax, -0.8, base + _HIGH / 2, name, 8.5, ha="right", family="DejaVu Sans")
        for token, piece, number in zip(row, pieces, ids, strict=True):
            left, right = at[token.start], at[token.stop]
            _box(ax, left + 0.12, base, right - left - 0.24, _HIGH, token.kind)
            shown = MARKS[token.kind] + drawable(visible(piece.encode()))
            _write(ax, (left + right) / 2, base + _HIGH / 2, shown, 8.5)
            _write(ax, (left + right) / 2, base - 0.22, str(number), 7, color="#555555")
    ax.set_xlim(-21, width + 1)
    ax.set_ylim(-1.5 * (len(rows) - 1) - 0.5, 0.8)
    ax.set_axis_off()
    return ax


def _row_tokens(pieces: Sequence[str], ids: Sequence[int], new: Collection[int]) -> list[StripToken]:
    """Tokens whose text is long enough for the piece and for its id below it."""
    tokens, start = [], 0
    for at, (piece, number) in enumerate(zip(pieces, ids, strict=True)):
        kind: Kind = "new" if at in new else "same"
        shown = visible(piece.encode())
        text = shown.ljust(len(str(number)))
        tokens.append(StripToken(at, text, kind, (start, 0), (start + len(piece), 0)))
        start += len(piece)
    return tokens


def draw_loss_pipeline(
    strip: Strip,
    pairs: IntArray,
    kind: KindArray,
    *,
    vocabulary: int,
    new_tokens: int,
    kl: npt.ArrayLike | None = None,
    axes: Sequence[Axes] | None = None,
    width: int = 110,
) -> Sequence[Axes]:
    """Draw how the KL of one text is computed: columns kept by the anchor, rows cut off, one loss a column.

    Args:
        strip: both tokenizations of a short text (one line of it).
        pairs: the compared positions, (P, 2), from `AlignedText.pairs`.
        kind: their kinds, (P,).
        vocabulary: V, rows that both logit matrices have.
        new_tokens: N, rows that only the student's has.
        kl: KL of each pair in nats, (P,); without it the fourth panel shows only the pairs.
        axes: four axes, from top to bottom; made if not given.
        width: characters in a line.

    Returns:
        The four axes.

    Raises:
        ValueError: if the numbers of pairs, kinds and losses differ.
    """
    losses = None if kl is None else np.asarray(kl, dtype=float)
    if len(pairs) != len(kind) or (losses is not None and len(losses) != len(pairs)):
        given = "none" if losses is None else len(losses)
        raise ValueError(f"{len(pairs)} pairs, {len(kind)} kinds and {given} losses; there must be one for each pair")
    lines = max(len(strip.lines(width)), 1)
    if axes is None:
        from matplotlib import pyplot as plt

        heights = [1.15 * lines + 0.4, 1.6, 1.9, 1.7]
        _, made = plt.subplots(4, 1, figsize=(11, sum(heights) + 1.2), height_ratios=heights, layout="constrained")
        axes = list(made)
    draw_strip(strip, axes[0], width=width, indices=True)
    axes[0].set_title("1  One text, two tokenizations", loc="left", fontsize=10)
    _draw_kept(axes[1], _plain(strip), pairs, kind)
    _draw_matrices(axes[2], len(strip.original), len(strip.extended), len(pairs), vocabulary, new_tokens)
    _draw_losses(axes[3], pairs, kind, losses)
    return axes


def _draw_kept(axes: Axes, strip: Strip, pairs: IntArray, kind: KindArray) -> None:
    x = 0.0
    for (i, j), what in zip(pairs.tolist(), kind.tolist(), strict=True):
        left, right = strip.original[i], strip.extended[j]
        room = max(len(left.label), len(right.label), len(str(i)), 2) + 1
        for token, bottom in ((left, _TOP), (right, _BOTTOM)):
            shape = token.kind if what == MERGED else "same"
            _box(axes, x + 0.12, bottom, room - 0.24, _HIGH, shape)
            _write(axes, x + room / 2, bottom + _HIGH / 2, token.label, 8, back=shape in {"merged", "recut"})
        _write(axes, x + room / 2, _TOP + _HIGH + 0.2, str(i), 6, color="#555555")
        _write(axes, x + room / 2, _BOTTOM - 0.2, str(j), 6, color="#555555")
        x += room
    for name, bottom in (("teacher", _TOP), ("student", _BOTTOM)):
        _write(axes, -0.6, bottom + _HIGH / 2, name, 8.5, ha="right")
    axes.set_xlim(-9.5, max(x, 30) + 1)
    axes.set_ylim(-0.5, 2.1)
    axes.set_axis_off()
    axes.set_title("2  Keep the columns that the anchor pairs", loc="left", fontsize=10)


def _draw_matrices(axes: Axes, original: int, extended: int, kept: int, vocabulary: int, new: int) -> None:
    from matplotlib.patches import Rectangle

    axes.set_title("3  Cut the student's new rows, then one softmax a column", loc="left", fontsize=10)
    panels = [
        (0.0, original, False, "teacher logits", original),
        (16.0, extended, True, "student logits", extended),
        (34.0, kept, False, "P", kept),
        (50.0, kept, False, "Q", kept),
    ]
    widest = max(original, extended, kept, 1)
    for x, columns, has_new, name, count in panels:
        wide = 12 * columns / widest
        axes.add_patch(Rectangle((x, 0), wide, 2, facecolor="#f3f3f3", edgecolor="#444444"))
        _write(axes, x + wide / 2, 1, f"{name}\n{vocabulary:,} x {count}", 8, family="DejaVu Sans")
        if has_new:
            axes.add_patch(Rectangle((x, 2), wide, 0.7, facecolor=COLOURS["new"], edgecolor=EDGES["new"], hatch="xx"))
            _write(axes, x + wide / 2, 2.35, f"{new:,} new rows: cut", 7, family="DejaVu Sans", back=True)
    _write(axes, 31, 1, "\u2192", 14)
    axes.set_xlim(-9.5, 64)
    axes.set_ylim(-0.2, 2.9)
    axes.set_axis_off()


def _draw_losses(axes: Axes, pairs: IntArray, kind: KindArray, losses: npt.NDArray[np.float64] | None) -> None:
    place = np.arange(len(pairs))
    merged = np.asarray(kind) == MERGED
    names = [f"{i}|{j}" for i, j in pairs.tolist()]
    heights = np.zeros(len(pairs)) if losses is None else losses
    for mask, colour, hatch, label in (
        (~merged, "#8a8a8a", "", "identical tokens"),
        (merged, EDGES["merged"], "///", "merged spans"),
    ):
        axes.bar(place[mask], heights[mask], color=colour, hatch=hatch, edgecolor="white", label=label)
    axes.set_xticks(place, names, fontsize=6.5, rotation=90)
    axes.set_xlabel("compared positions, teacher | student")
    axes.set_ylabel("KL (nats)")
    if losses is not None and len(losses):
        axes.axhline(float(losses.mean()), color="#222222", linewidth=0.8, linestyle=":")
        title = f"mean {losses.mean():.3f} nats\nn = {len(losses)}"
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, title=title)
    axes.set_title("4  One KL a column; the loss is their mean", loc="left", fontsize=10)
