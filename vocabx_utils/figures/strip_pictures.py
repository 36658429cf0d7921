"""Token strips and the loss pipeline as matplotlib figures, for papers (SVG, PDF) and for the README.

`draw_loss_pipeline` redraws the thesis's figure `fig:complete_loss_pipeline` from live data: both tokenizations,
the columns that the anchor keeps, the rows that are cut off, and the loss of each kept column.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle

from vocabx_utils.figures.looks import INK, LOOKS, Kind, drawable, visible
from vocabx_utils.figures.strips import Strip, StripToken, column_places
from vocabx_utils.figures.theme import new_axes
from vocabx_utils.vocabulary.alignment import MERGED, IntArray, KindArray

_TOP, _BOTTOM, _HIGH = 1.0, 0.0, 0.62
_FAINT = "#555555"


def _drawable_strip(strip: Strip) -> Strip:
    sides = [tuple(replace(t, text=drawable(t.text)) for t in row) for row in (strip.original, strip.extended)]
    return Strip(sides[0], sides[1], strip.shared)


def _box(axes: Axes, left: float, right: float, bottom: float, kind: Kind) -> None:
    style: dict[str, Any] = {**LOOKS[kind].patch, "linewidth": 2.0 if kind == "new" else 1.0, "mutation_aspect": 0.3}
    shape = "round,pad=0,rounding_size=0.25" if kind in {"new", "special"} else "square,pad=0"
    axes.add_patch(FancyBboxPatch((left + 0.12, bottom), right - left - 0.24, _HIGH, boxstyle=shape, **style))


def _write(axes: Axes, x: float, y: float, text: str, size: float, *, back: bool = False, **style: Any) -> None:
    """Write a text, on a white ground where `back` says so."""
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6} if back else None
    style = {"ha": "center", "va": "center", "color": INK, "family": "DejaVu Sans Mono"} | style
    axes.text(x, y, text, fontsize=size, bbox=ground, **style)


def draw_strip(
    strip: Strip, ax: Axes | None = None, *, width: int = 84, indices: bool = False, legend: bool = True
) -> Axes:
    """Draw both tokenizations, one above the other, with shared boundaries joined.

    A line has at most `width` characters and ends at a shared boundary.
    With `indices`, each token's position stands beside it.
    """
    strip = _drawable_strip(strip)
    lines = strip.lines(width)
    below = max(len(lines), 1)
    ax = new_axes(ax, figsize=(0.105 * (width + 14), 0.95 * below + 0.3))
    step = 2.9 if indices else 2.3
    for n, line in enumerate(lines):
        _draw_line(ax, line, -n * step, indices)
    ax.set_xlim(-9.5, width + 4)
    ax.set_ylim(-(below - 1) * step - 0.4, 2.0)
    if legend:
        _draw_legend(ax, strip)
    ax.set_axis_off()
    return ax


def _draw_line(axes: Axes, line: Strip, base: float, indices: bool) -> None:
    at = column_places((line.original, line.extended), line.points)
    for name, row, bottom in (("original", line.original, base + _TOP), ("extended", line.extended, base + _BOTTOM)):
        _write(axes, -0.6, bottom + _HIGH / 2, name, 8.5, ha="right")
        for token in row:
            left, right = at[token.start], at[token.stop]
            _box(axes, left, right, bottom, token.kind)
            _write(axes, (left + right) / 2, bottom + _HIGH / 2, token.label, 8.5, back=bool(LOOKS[token.kind].hatch))
            if indices:
                y = bottom + _HIGH + 0.16 if name == "original" else bottom - 0.18
                _write(axes, (left + right) / 2, y, str(token.index), 8.5 * 0.7, color=_FAINT)
    style: dict[str, Any] = {"color": "#444444", "linewidth": 0.8, "linestyle": "-", "marker": ""}
    for point in line.points:
        if point in line.shared:
            axes.plot([at[point]] * 2, [base + _BOTTOM, base + _TOP + _HIGH], **style)
    for start, stop, label in line.groups():
        if label:
            left, right = at[start], at[stop]
            axes.fill_between([left, right], base + _BOTTOM + _HIGH, base + _TOP, color="#d8d8d8", linewidth=0)
            _write(axes, (left + right) / 2, base + (_BOTTOM + _HIGH + _TOP) / 2, label, 6.5)


def _draw_legend(axes: Axes, strip: Strip) -> None:
    looks = [LOOKS[kind] for kind in strip.kinds]
    handles = [Patch(label=f"{look.mark} {look.meaning}".strip(), **look.patch) for look in looks]  # type: ignore[arg-type]
    style: dict[str, Any] = {"frameon": False, "fontsize": 7, "columnspacing": 1.2, "borderaxespad": 0.0}
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.06, 0.0), ncols=len(handles), **style)


def draw_token_ids(
    rows: Sequence[tuple[str, Sequence[str], Sequence[int], Collection[int]]], ax: Axes | None = None
) -> Axes:
    """Draw several ways to cut one text into tokens, each token with its id, characters above one another.

    Args:
        rows: from top to bottom: name, the pieces of the text as they are, their ids, and positions of new tokens.

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
    ax = new_axes(ax, figsize=(0.105 * (width + 26), 0.62 * len(rows) + 0.5))
    for n, ((name, pieces, ids, _), row) in enumerate(zip(rows, tokens, strict=True)):
        base = -n * 1.5
        _write(ax, -0.8, base + _HIGH / 2, name, 8.5, ha="right", family="DejaVu Sans")
        for token, piece, number in zip(row, pieces, ids, strict=True):
            left, right = at[token.start], at[token.stop]
            _box(ax, left, right, base, token.kind)
            shown = LOOKS[token.kind].mark + drawable(visible(piece.encode()))
            _write(ax, (left + right) / 2, base + _HIGH / 2, shown, 8.5)
            _write(ax, (left + right) / 2, base - 0.22, str(number), 7, color=_FAINT)
    ax.set_xlim(-21, width + 1)
    ax.set_ylim(-1.5 * (len(rows) - 1) - 0.5, 0.8)
    ax.set_axis_off()
    return ax


def _row_tokens(pieces: Sequence[str], ids: Sequence[int], new: Collection[int]) -> list[StripToken]:
    """Tokens whose text is long enough for the piece and for its id below it."""
    tokens, start = [], 0
    for at, (piece, number) in enumerate(zip(pieces, ids, strict=True)):
        text = visible(piece.encode()).ljust(len(str(number)))
        stop = start + len(piece)
        tokens.append(StripToken(at, text, "new" if at in new else "same", (start, 0), (stop, 0)))
        start = stop
    return tokens


def draw_loss_pipeline(
    strip: Strip,
    pairs: IntArray,
    kind: KindArray,
    *,
    vocabulary: int,
    new_tokens: int,
    kl: npt.ArrayLike,
    width: int = 110,
) -> list[Axes]:
    """Draw on four axes how the KL of one text is computed: columns kept by the anchor, rows cut off, losses.

    Args:
        strip: both tokenizations of a short text (one line of it).
        pairs: the compared positions, (P, 2), from `AlignedText.pairs`.
        kind: their kinds, (P,).
        vocabulary: V, rows that both logit matrices have.
        new_tokens: N, rows that only the student's has.
        kl: KL of each pair in nats, (P,).

    Raises:
        ValueError: if the numbers of pairs, kinds and losses differ.
    """
    losses = np.asarray(kl, dtype=float)
    if not len(pairs) == len(kind) == len(losses):
        given = f"{len(pairs)} pairs, {len(kind)} kinds and {len(losses)} losses"
        raise ValueError(f"{given}; there must be one for each pair")
    heights = [1.15 * max(len(strip.lines(width)), 1) + 0.4, 1.6, 1.9, 1.7]
    axes = list(plt.subplots(4, 1, figsize=(11, sum(heights) + 1.2), height_ratios=heights, layout="constrained")[1])
    draw_strip(strip, axes[0], width=width, indices=True)
    _draw_kept(axes[1], _drawable_strip(strip), pairs, kind)
    _draw_matrices(axes[2], len(strip.original), len(strip.extended), len(pairs), vocabulary, new_tokens)
    _draw_losses(axes[3], pairs, kind, losses)
    titles = (
        "1  One text, two tokenizations",
        "2  Keep the columns that the anchor pairs",
        "3  Cut the student's new rows, then one softmax a column",
        "4  One KL a column; the loss is their mean",
    )
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title, loc="left", fontsize=10)
    return axes


def _draw_kept(axes: Axes, strip: Strip, pairs: IntArray, kind: KindArray) -> None:
    x = 0.0
    for (i, j), what in zip(pairs.tolist(), kind.tolist(), strict=True):
        left, right = strip.original[i], strip.extended[j]
        room = max(len(left.label), len(right.label), len(str(i)), 2) + 1
        for token, bottom in ((left, _TOP), (right, _BOTTOM)):
            shape: Kind = token.kind if what == MERGED else "same"
            _box(axes, x, x + room, bottom, shape)
            _write(axes, x + room / 2, bottom + _HIGH / 2, token.label, 8, back=bool(LOOKS[shape].hatch))
        _write(axes, x + room / 2, _TOP + _HIGH + 0.2, str(i), 6, color=_FAINT)
        _write(axes, x + room / 2, _BOTTOM - 0.2, str(j), 6, color=_FAINT)
        x += room
    for name, bottom in (("teacher", _TOP), ("student", _BOTTOM)):
        _write(axes, -0.6, bottom + _HIGH / 2, name, 8.5, ha="right")
    axes.set_xlim(-9.5, max(x, 30) + 1)
    axes.set_ylim(-0.5, 2.1)
    axes.set_axis_off()


def _draw_matrices(axes: Axes, original: int, extended: int, kept: int, vocabulary: int, new: int) -> None:
    widest = max(original, extended, kept, 1)
    panels = ((0, original, "teacher logits"), (16, extended, "student logits"), (34, kept, "P"), (50, kept, "Q"))
    for x, columns, name in panels:
        wide = 12 * columns / widest
        axes.add_patch(Rectangle((x, 0), wide, 2, facecolor="#f3f3f3", edgecolor="#444444"))
        _write(axes, x + wide / 2, 1, f"{name}\n{vocabulary:,} x {columns}", 8, family="DejaVu Sans")
        if name == "student logits":
            look = LOOKS["new"]
            axes.add_patch(Rectangle((x, 2), wide, 0.7, facecolor=look.fill, edgecolor=look.edge, hatch="xx"))
            _write(axes, x + wide / 2, 2.35, f"{new:,} new rows: cut", 7, family="DejaVu Sans", back=True)
    _write(axes, 31, 1, "\u2192", 14)
    axes.set_xlim(-9.5, 64)
    axes.set_ylim(-0.2, 2.9)
    axes.set_axis_off()


def _draw_losses(axes: Axes, pairs: IntArray, kind: KindArray, losses: npt.NDArray[np.float64]) -> None:
    place = np.arange(len(pairs))
    merged = np.asarray(kind) == MERGED
    for mask, colour, hatch, label in (
        (~merged, LOOKS["same"].edge, "", "identical tokens"),
        (merged, LOOKS["merged"].edge, "///", "merged spans"),
    ):
        axes.bar(place[mask], losses[mask], color=colour, hatch=hatch, edgecolor="white", label=label)
    axes.set_xticks(place, [f"{i}|{j}" for i, j in pairs.tolist()], fontsize=6.5, rotation=90)
    axes.set(xlabel="compared positions, teacher | student", ylabel="KL (nats)")
    if len(losses):
        axes.axhline(float(losses.mean()), color="#222222", linewidth=0.8, linestyle=":")
        title = f"mean {losses.mean():.3f} nats\nn = {len(losses)}"
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, title=title)
