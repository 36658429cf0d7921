"""Token strips and the loss pipeline as matplotlib figures, for papers (SVG, PDF) and for the README.

`draw_loss_pipeline` redraws the thesis's figure `fig:complete_loss_pipeline` from live data: both tokenizations,
the columns that the anchor keeps, the rows that are cut off, and the loss of each kept column.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Patch, Rectangle

from vocabx_utils.figures.looks import INK, LOOKS, Kind, drawable, visible
from vocabx_utils.figures.strips import NAMES, Point, Strip, StripToken, column_places
from vocabx_utils.vocabulary.alignment import MERGED, IntArray, KindArray

_TOP, _BOTTOM, _HIGH = 1.0, 0.0, 0.62
_FAINT = "#555555"
_SIZE, _SMALL, _INCHES = 9.5, 8.0, 0.1  # points of tokens and of their positions, and the width of a character
_NAMES = 9.5  # characters that `original` and `extended` take at the left
_LEAST = 52  # characters that the words of the matrices need side by side


def _drawable_strip(strip: Strip) -> Strip:
    above, below = (tuple(replace(token, text=drawable(token.text)) for token in row) for row in strip.rows)
    return Strip(above, below, strip.shared)


def _box(axes: Axes, left: float, right: float, bottom: float, kind: Kind) -> None:
    style: dict[str, Any] = {**LOOKS[kind].patch, "linewidth": 2.0 if kind == "new" else 1.0, "mutation_aspect": 0.3}
    shape = "round,pad=0,rounding_size=0.25" if kind in {"new", "special"} else "square,pad=0"
    axes.add_patch(FancyBboxPatch((left + 0.12, bottom), right - left - 0.24, _HIGH, boxstyle=shape, **style))


def _write(axes: Axes, x: float, y: float, text: str, size: float, *, back: bool = False, **style: Any) -> None:
    """Write a text, on a white ground where `back` says so."""
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6} if back else None
    style = {"ha": "center", "va": "center", "color": INK, "family": "DejaVu Sans Mono"} | style
    axes.text(x, y, text, fontsize=size, bbox=ground, **style)


def draw_strip(strip: Strip, *, width: int = 84, indices: bool = False) -> Axes:
    """Draw both tokenizations, one above the other, with shared boundaries joined.

    A line has at most `width` characters and ends at a shared boundary; lines are about equally long, and the figure no
    wider than it needs to be. With `indices`, each token's position stands beside it.
    """
    strip = _drawable_strip(strip)
    lines = _even_lines(strip, width)
    below, step = max(len(lines), 1), 2.9 if indices else 2.3
    widest = max((line.places[line.points[-1]] for line in lines), default=1)
    columns = 1 if widest < 60 else 2  # of the legend
    high = 0.42 * (step * below + 0.1) + 0.2 * -(-len(strip.kinds) // columns)
    _, ax = plt.subplots(figsize=(max(_INCHES * (widest + _NAMES + 1), 5.4), high))
    for n, line in enumerate(lines):
        _draw_line(ax, line, -n * step, indices)
    ax.set_xlim(-_NAMES, max(widest, 54 - _NAMES) + 0.5)
    ax.set_ylim(-(below - 1) * step - (0.4 if indices else 0.1), 2.0)
    _draw_legend(ax, strip, columns)
    ax.set_axis_off()
    return ax


def _even_lines(strip: Strip, width: int) -> list[Strip]:
    """Cut into as few lines as `width` allows, and make the longest of them as short as that number of lines allows."""
    lines = strip.lines(width)
    for less in range(width - 1, width // max(len(lines), 1) - 1, -1):
        shorter = strip.lines(less)
        if len(shorter) > len(lines):
            break
        lines = shorter
    return lines


def _draw_line(axes: Axes, line: Strip, base: float, indices: bool) -> None:
    at = line.places
    for name, row, bottom in zip(NAMES, line.rows, (base + _TOP, base + _BOTTOM), strict=True):
        _write(axes, -0.6, bottom + _HIGH / 2, name, _SIZE, ha="right", family="DejaVu Sans")
        for token in row:
            _draw_token(axes, token, at, bottom, above=row is line.original if indices else None)
    style: dict[str, Any] = {"color": "#444444", "linewidth": 0.8, "linestyle": "-", "marker": ""}
    for point in line.joints:
        axes.plot([at[point]] * 2, [base + _BOTTOM, base + _TOP + _HIGH], **style)
    for start, stop, label in line.groups():
        if label:
            left, right = at[start], at[stop]
            axes.fill_between([left, right], base + _BOTTOM + _HIGH, base + _TOP, color="#d8d8d8", linewidth=0)
            _write(axes, (left + right) / 2, base + (_BOTTOM + _HIGH + _TOP) / 2, label, _SMALL)


def _draw_token(axes: Axes, token: StripToken, at: Mapping[Point, int], bottom: float, *, above: bool | None) -> None:
    """Draw one token at its place, with its position `above` or below it, or without one."""
    left, right = at[token.start], at[token.stop]
    _box(axes, left, right, bottom, token.kind)
    _write(axes, (left + right) / 2, bottom + _HIGH / 2, token.label, _SIZE, back=bool(LOOKS[token.kind].hatch))
    if above is not None:
        y = bottom + _HIGH + 0.19 if above else bottom - 0.2
        _write(axes, (left + right) / 2, y, str(token.index), _SMALL, color=_FAINT)


def _draw_legend(axes: Axes, strip: Strip, columns: int) -> None:
    looks = [LOOKS[kind] for kind in strip.kinds]
    handles = [Patch(label=f"{look.mark} {look.meaning}".strip(), **look.patch) for look in looks]  # type: ignore[arg-type]
    style: dict[str, Any] = {"frameon": False, "fontsize": _SMALL + 0.5, "columnspacing": 1.2, "borderaxespad": 0.0}
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.0, 0.0), ncols=columns, **style)


def draw_token_ids(rows: Sequence[tuple[str, Sequence[str], Sequence[int], Collection[int]]]) -> Axes:
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
    _, ax = plt.subplots(figsize=(_INCHES * (width + 20), 0.66 * len(rows) + 0.5))
    for n, ((name, pieces, ids, _), row) in enumerate(zip(rows, tokens, strict=True)):
        base = -n * 1.5
        _write(ax, -0.8, base + _HIGH / 2, name, _SIZE, ha="right", family="DejaVu Sans")
        for token, piece, number in zip(row, pieces, ids, strict=True):
            left, right = at[token.start], at[token.stop]
            _box(ax, left, right, base, token.kind)
            shown = LOOKS[token.kind].mark + drawable(visible(piece.encode()))
            _write(ax, (left + right) / 2, base + _HIGH / 2, shown, _SIZE)
            _write(ax, (left + right) / 2, base - 0.24, str(number), _SMALL, color=_FAINT)
    ax.set_xlim(-18, width + 1)
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
    width: int = 84,
) -> list[Axes]:
    """Draw on four axes how the KL of one text is computed: columns kept by the anchor, rows cut off, losses.

    A column stands at the same place in all steps. Of a text of more than `width` characters a stretch around its first
    new token is drawn; the numbers are those of the whole text.

    Args:
        strip: both tokenizations of a short text.
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
    shown = _stretch(_drawable_strip(strip), width)
    at = shown.places
    widest = max(at[shown.points[-1]], _LEAST)
    heights = [1.6, 1.35, 1.2, 1.5]
    size = (_INCHES * (widest + _NAMES + 1), sum(heights) + 1.6)
    axes = list(plt.subplots(4, 1, figsize=size, height_ratios=heights, layout="constrained", sharex=True)[1])
    _draw_line(axes[0], shown, 0, indices=True)
    _draw_legend(axes[0], shown, columns=2)
    axes[0].set_ylim(-0.45, 2.0)
    _draw_kept(axes[1], shown, at, pairs)
    _draw_matrices(axes[2], widest, len(pairs), vocabulary, new_tokens)
    _draw_losses(axes[3], shown, at, (pairs, kind, losses), widest)
    titles = (
        "1  One text, two tokenizations" + (" (a part of it)" if len(shown.original) < len(strip.original) else ""),
        "2  Keep the pairs of columns that are compared (dotted: left out)",
        "3  Cut the student's new rows, then one softmax for each column",
        "4  One KL for each column; the loss is their mean",
    )
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title, loc="left", fontsize=_SIZE + 1)
    for ax in axes[:3]:
        ax.set_axis_off()
    axes[0].set_xlim(-_NAMES, widest + 0.5)
    return axes


def _stretch(strip: Strip, width: int) -> Strip:
    """Cut out the longest run of columns up to `width` characters that has the first new token in its first third."""
    edges = strip.joints
    fresh = next((token.start for token in strip.extended if token.kind == "new"), edges[0])
    first = max((n for n, edge in enumerate(edges) if edge <= fresh), default=0)

    def long(start: int, stop: int) -> int:
        part = strip.between(edges[start], edges[stop])
        return part.places[part.points[-1]]

    start = stop = first
    while start and long(start - 1, first) <= width // 3:
        start -= 1
    while stop + 1 < len(edges) and long(start, stop + 1) <= width:
        stop += 1
    while start and long(start - 1, stop) <= width:
        start -= 1
    return strip.between(edges[start], edges[max(stop, start + 1)])


def _draw_kept(axes: Axes, shown: Strip, at: Mapping[Point, int], pairs: IntArray) -> None:
    for side, name, row, bottom in ((0, "teacher", shown.original, _TOP - 0.25), (1, "student", shown.extended, 0.0)):
        kept = set(pairs[:, side].tolist())
        _write(axes, -0.6, bottom + _HIGH / 2, name, _SIZE, ha="right", family="DejaVu Sans")
        for token in row:
            if token.index in kept:
                _draw_token(axes, token, at, bottom, above=side == 0)
            else:
                left, right = at[token.start], at[token.stop]
                look: dict[str, Any] = {"fill": False, "edgecolor": "#767676", "linestyle": ":"}
                axes.add_patch(Rectangle((left + 0.12, bottom), right - left - 0.24, _HIGH, **look))
    axes.set_ylim(-0.4, 1.75)


def _draw_matrices(axes: Axes, widest: float, kept: int, vocabulary: int, new: int) -> None:
    unit, look = widest / 100, LOOKS["new"]
    panels = ((0, 23, "teacher's logits"), (35, 12, "P"), (53, 23, "student's logits"), (88, 12, "Q"))
    for x, wide, name in panels:
        axes.add_patch(Rectangle((x * unit, 0), wide * unit, 1.5, facecolor="#f3f3f3", edgecolor="#444444"))
        words = f"{name}\n{vocabulary:,}\n× {kept:,}"
        _write(axes, (x + wide / 2) * unit, 0.75, words, _SIZE, family="DejaVu Sans")
    axes.add_patch(Rectangle((53 * unit, 1.5), 23 * unit, 0.6, fc=look.fill, ec=look.edge, hatch="xx", ls="--"))
    _write(axes, 64.5 * unit, 1.8, f"{new:,} rows cut", _SMALL + 0.5, family="DejaVu Sans", back=True)
    for left in (23, 76):
        arrow = {"arrowstyle": "-|>", "color": "#444444", "lw": 1.2}
        axes.annotate("", ((left + 11) * unit, 0.75), ((left + 1) * unit, 0.75), arrowprops=arrow)
        _write(axes, (left + 6) * unit, 1.05, "softmax", _SMALL, family="DejaVu Sans")
    axes.set_ylim(-0.1, 2.3)


def _draw_losses(
    axes: Axes,
    shown: Strip,
    at: Mapping[Point, int],
    compared: tuple[IntArray, KindArray, npt.NDArray[np.float64]],
    widest: float,
) -> None:
    pairs, kind, losses = compared
    drawn = {token.index: (at[token.start] + at[token.stop]) / 2 for token in shown.extended}
    here = np.array([j in drawn for j in pairs[:, 1].tolist()], dtype=bool)
    place = np.array([drawn.get(j, 0.0) for j in pairs[:, 1].tolist()])
    merged = np.asarray(kind) == MERGED
    for mask, look, label in ((~merged, LOOKS["same"], "identical tokens"), (merged, LOOKS["merged"], "merged spans")):
        bars = axes.bar(place[mask & here], losses[mask & here], 1.8, color=look.edge, edgecolor="white", label=label)
        for bar in bars:
            bar.set_hatch(look.hatch)
    axes.set_xticks([])
    axes.spines["left"].set_position(("data", 0))
    axes.spines["bottom"].set_bounds(0, widest)  # lines begin at the axis: further left are its numbers
    _write(axes, -7.2, 0.5, "KL (nats)", _SIZE, family="DejaVu Sans", rotation=90, transform=axes.get_xaxis_transform())
    if len(losses):
        axes.plot([0, widest], [losses.mean()] * 2, color="#222222", linewidth=0.8, linestyle=":", marker="")
        title = f"dotted: mean of all {len(losses)} pairs, {losses.mean():.3f} nats"
        left = (_NAMES + 1) / (widest + _NAMES)  # right of the axis
        beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (left, 1.05)}
        beside |= {"frameon": True, "framealpha": 1, "edgecolor": "white"}  # no line of the grid runs through its words
        axes.legend(**beside, fontsize=_SMALL + 0.5, title=title, title_fontsize=_SMALL + 0.5, ncols=2)
        axes.set_ylim(0, 1.5 * float(losses.max()) or 1.0)
    axes.grid(visible=False)
    axes.hlines(axes.get_yticks()[1:], 0, widest, color=plt.rcParams["grid.color"], linewidth=0.8, zorder=0)
    axes.set_ylim(axes.get_ylim())
