"""What a learned change does: its spread over coordinates, the causal test, hidden states by layer, the logit lens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter

from vocabx_utils.analysis.mechanisms import CausalTest, gaussian_top_k_share
from vocabx_utils.figures.looks import visible
from vocabx_utils.figures.theme import (
    WIDEST,
    Drawing,
    cycle_style,
    new_axes,
    note,
    plain_ticks,
    variant_style,
    whole_epochs,
)
from vocabx_utils.names import variant_label

_PLACES = {
    "boundary": "end of a new token",
    "1 after": "1 token later",
    "2-4 after": "2 to 4 tokens later",
    "5+ after": "5 or more later",
}
"""Distances of `divergence.hidden_similarity` in words."""
_NO_KL = 0.01
"""Nats below which two predictions count as the same, on a logarithmic scale of colours."""
_KEPT = {"top": "largest coordinates", "random": "random coordinates"}


def share_chart(shares: Mapping[str, np.ndarray], ks: Sequence[int], width: int) -> Axes:
    """Draw how much of the learned change the k largest coordinates hold: `mechanisms.top_k_share` by variant.

    Medians and middle 50 % of the tokens; the black line is what independent normal coordinates would give.
    """
    _, ax = plt.subplots()
    for variant, values in shares.items():
        low, middle, high = np.nanquantile(values, [0.25, 0.5, 0.75], axis=0)
        style = variant_style(variant)
        ax.plot(ks, middle, **style, label=variant_label(variant))
        ax.fill_between(ks, low, high, color=style["color"], alpha=0.15, lw=0)
    ax.plot(ks, gaussian_top_k_share(width, ks), color="black", ls="--", marker="", label="normal coordinates")
    _powers(ax, ks)
    ax.set(xlabel=f"coordinates kept, k of D = {width}", ylabel="share of the change, |Δe|²", ylim=(0, 1.03))
    return ax


def _powers(ax: Axes, ks: Sequence[int]) -> None:
    """Make the horizontal axis logarithmic, with plain numbers at no more of the values than there is room for."""
    ax.set_xscale("log", base=2)
    plain_ticks(ax, ks[:: 1 + (len(ks) - 1) // 9], "{}")


def causal_chart(test: CausalTest, ax: Axes | None = None, title: str = "") -> Axes:
    """Draw KL against the coordinates of the learned change that are kept, with that of initial and trained rows."""
    ax = new_axes(ax)
    for at, (keep, part) in enumerate(test.table.groupby("keep", sort=False)):
        curve = part.groupby("k")["kl"].agg(["mean", "min", "max"])
        style = cycle_style(at)
        ax.plot(curve.index, curve["mean"], **style, label=_KEPT.get(str(keep), str(keep)))
        ax.fill_between(curve.index, curve["min"], curve["max"], color=style["color"], alpha=0.18, lw=0)
    # curves begin near the one line and end near the other: each is named where they are far
    named = ((test.kl_start, "initial rows", "right", (0, 3)), (test.kl_end, "trained rows", "left", (5, -3)))
    for value, text, side, beside in named:
        ax.axhline(value, color="0.3", lw=0.9, ls=(0, (4, 3)), marker="")
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "ha": side}
        ax.annotate(text, (float(side == "right"), value), beside, va="bottom" if side == "right" else "top", **place)
    _powers(ax, sorted(test.table["k"].unique()))
    ax.margins(y=0.08)
    ax.set(xlabel=f"coordinates kept, k of D = {test.width}", ylabel="KL (nats per position)", title=title)
    return ax


def _draws_note(table: pd.DataFrame) -> str:
    """Say how often a `CausalTest` drew random coordinates, and with that what the band around their curve is."""
    draws = int(table.loc[table["keep"] == "random", "draw"].nunique())
    if draws < 2:
        return "Random coordinates: one draw (no bands)."
    return f"Random coordinates: mean of {draws} draws; bands: their range."


def draw_causal(table: pd.DataFrame, facts: Mapping[str, Mapping[str, Any]]) -> Drawing:
    """Draw the causal test by variant: tables of `CausalTest`s, and `kl_start`, `kl_end`, `width`, `positions`.

    Variants that have facts and are not in the table are named in the note: they were measured, and left out for want
    of room.
    """
    axes, fig, room = _panels(table, 3.7, beside=1.9)
    needed = []
    for variant, ax in axes.items():
        fact = facts[variant]
        test = CausalTest(table[table["variant"] == variant], fact["kl_start"], fact["kl_end"], fact["width"])
        causal_chart(test, ax, variant_label(variant))
        k = test.coordinates_needed()
        found = f"{'more than tested' if k is None else k} of {fact['width']}"
        needed.append(f"{variant_label(variant)} {found} (KL {test.kl_start:.3f} to {test.kl_end:.3f})")
    _label_left(axes.values())
    first = next(iter(axes.values()))
    place: Any = "center" if room else "outside right center"
    (room or fig).legend(*first.get_legend_handles_labels(), loc=place, title="kept of the change")
    positions, left_out = facts[next(iter(axes))]["positions"], _left_out(axes, facts)
    note(first, f"Lower is better. n = {positions} positions. {_draws_note(table)}{left_out}")
    alt = (
        "Line charts of KL against the number of coordinates of the learned change that are kept, a panel for each "
        "variant, with lines at the KL of the initial and of the trained rows. Coordinates for 90 % of the gain: "
        f"{'; '.join(needed)}.{left_out}"
    )
    return Drawing(fig, alt)


def _left_out(drawn: Mapping[str, Axes], measured: Iterable[str]) -> str:
    if not (rest := [variant_label(name) for name in measured if name not in drawn]):
        return ""
    return f" Measured too, and not drawn so that the panels keep their size: {'; '.join(rest)}."


def _panels(table: pd.DataFrame, width: float, beside: float = 0) -> tuple[dict[str, Axes], Figure, Axes | None]:
    """Make axes for the variants of a table, three in a row; of more, each initialisation has rows of its own.

    Returns:
        The axes by variant, `width` inches wide or what fits a page with `beside` at the right; the figure; and axes
        that are left over, for a legend.
    """
    names = [str(name) for name in dict.fromkeys(table["variant"])]
    lines = [names]
    if len(names) > 3:
        kinds = dict.fromkeys(name.partition("_")[0] for name in names)
        alike = [[name for name in names if name.partition("_")[0] == kind] for kind in kinds]
        lines = [part[at : at + 3] for part in alike for at in range(0, len(part), 3)]
    wide = max(map(len, lines))
    room = any(len(line) < wide for line in lines)
    size = (min(width * wide + beside * (not room), WIDEST), 3.2 * len(lines) + 0.7)
    fig, grid = plt.subplots(len(lines), wide, figsize=size, squeeze=False, sharey="row")
    axes: dict[str, Axes] = {}
    spare: Axes | None = None
    for line, row in zip(lines, grid, strict=True):
        for ax in row[len(line) :]:
            ax.set_axis_off()
            spare = ax
        axes |= dict(zip(line, row, strict=False))
    return axes, fig, spare


def _label_left(axes: Iterable[Axes]) -> None:
    """Keep the label of the vertical axis in the first column only."""
    for ax in axes:
        if (place := ax.get_subplotspec()) is not None and not place.is_first_col():
            ax.set_ylabel("")


def draw_layers(table: pd.DataFrame) -> Drawing:
    """Draw `divergence.hidden_similarity` by layer, one panel for each variant, one curve for each place."""
    axes, fig, room = _panels(table, 4.0)
    for variant, ax in axes.items():
        places = table[table["variant"] == variant].groupby("place", sort=False)
        for at, (place, part) in enumerate(places):
            label = f"{_PLACES.get(str(place), place)} (n = {part['n'].max()})"
            ax.plot(part["layer"], part["cosine"], **cycle_style(at), markevery=2, label=label)
        whole_epochs(ax)
        ax.set(xlabel="layer (0: embedding)", ylabel="cosine, student to teacher", title=variant_label(variant))
    first = next(iter(axes.values()))
    (room or first).legend(*first.get_legend_handles_labels(), loc="lower right", title="hidden state at the")
    note(first, "1: student and teacher have the same state. Mean over positions (no bands), n in the legend.")
    last = table[table["layer"] == table["layer"].max()]
    _label_left(axes.values())
    ends = []
    for variant, part in last.groupby("variant", sort=False):
        values = zip(part["place"], part["cosine"], strict=True)
        ends.append(f"{variant_label(str(variant))} " + ", ".join(f"{v:.3f} at {_PLACES.get(p, p)}" for p, v in values))
    alt = (
        "Line charts of the cosine between the hidden states of student and teacher by layer, a panel for each variant "
        f"and a curve for each distance to a new token. In the last layer: {'; '.join(ends)}."
    )
    return Drawing(fig, alt)


def lens_chart(table: pd.DataFrame, ax: Axes | None = None, title: str = "") -> Axes:
    """Draw `divergence.logit_lens` as a grid: layers upwards, readers across, the likeliest next token in each cell.

    A column is named by its reader and the token that it has read last. Beside a cell's token stands its probability.
    Colour is the KL from the teacher's final prediction on a logarithmic scale, so that layers differ in colour though
    the first ones, which know nothing yet, are many times as far away as the last.
    """
    ax = new_axes(ax)
    readers = table.drop_duplicates("reader")
    layers = sorted(table["layer"].unique())
    values, tops, shares = (
        table.pivot(index="layer", columns="reader", values=name).loc[layers, readers["reader"]].to_numpy()
        for name in ("kl", "top", "probability")
    )
    known = values[values > _NO_KL]
    norm = LogNorm(known.min(initial=1.0), known.max(initial=1.0) * 1.001, clip=True)
    image = ax.imshow(values.clip(min=_NO_KL), origin="lower", aspect="auto", cmap="viridis_r", norm=norm)
    for (row, column), value in np.ndenumerate(values):
        color = "white" if norm(max(value, _NO_KL)) > 0.55 else "black"
        shown = f"{visible(tops[row, column][0], 12)}  {shares[row, column]:.0%}"
        ax.text(column, row, shown, ha="center", va="center", fontsize=8, color=color, parse_math=False)
    bar = ax.figure.colorbar(image, ax=ax, extend="min" if values.min() < norm.vmin else "neither")
    bar.set_label("KL to the teacher's prediction (nats, logarithmic)")
    bar.ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    bar.ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    bar.ax.minorticks_off()
    names = [
        f"{who.partition(' ')[0]},\nread {visible(read, 16)}" for who, read in readers[["reader", "read"]].to_numpy()
    ]
    ax.set_xticks(range(len(names)), names, parse_math=False)
    ticks = [at for at, layer in enumerate(layers) if layer % 5 == 0]
    ax.set_yticks(ticks, [str(layers[at]) for at in ticks])
    ax.grid(visible=False)
    ax.set(ylabel="layer (0: embedding)")
    ax.set_title(title, parse_math=False)
    return ax
