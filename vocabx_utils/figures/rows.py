"""Where the learned rows point: cosines to the rows of their subtokens by epoch, beside the thesis's curves."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pandas as pd
from matplotlib.axes import Axes

from vocabx_utils import thesis
from vocabx_utils.analysis.similarity import POSITIONS
from vocabx_utils.figures.theme import (
    WIDEST,
    Drawing,
    cycle_style,
    legend_entries,
    new_axes,
    note,
    whole_epochs,
)
from vocabx_utils.names import variant_label
from vocabx_utils.rows import Matrix

GROUPINGS = {"subtokens": "number of subtokens", "frequency": "occurrences in the corpus"}
"""Columns that sort the tokens into groups, in words."""
_COLUMNS = 4  # panels: a page shows more of them with smaller letters
_TITLE = 22  # letters above such a panel
_LIGHTEST = 0.55  # of viridis: what is lighter has less than 3:1 on white


def cosine_chart(
    summary: pd.DataFrame, published: Sequence[thesis.CosineCurve] = (), ax: Axes | None = None, title: str = ""
) -> Axes:
    """Draw mean cosine by epoch, one curve for each subtoken position, with its bootstrap band.

    Args:
        summary: rows of one variant and one matrix from `similarity.summarize`: position, epoch, mean, low, high, n.
        published: curves of the thesis for the same matrix; drawn thin and grey, with the marker of their position.
    """
    ax = new_axes(ax)
    for curve in published:
        style = cycle_style(POSITIONS.index(curve.position)) | {"color": "0.45"}
        ax.plot(curve.epochs, curve.cosine, **style, lw=0.9, ms=2.5, label=f"thesis, {curve.position}")
    for position, part in summary.groupby("position", sort=False):
        _course(ax, part, f"{position} subtoken", cycle_style(POSITIONS.index(str(position))), alpha=0.18)
    ax.axhline(0, color="0.4", lw=0.8, ls="-", marker="")
    whole_epochs(ax)
    ax.set(xlabel="epoch", ylabel="cosine to the subtoken's row", title=title)
    return ax


def group_curve_chart(summary: pd.DataFrame, column: str, ax: Axes | None = None, title: str = "") -> Axes:
    """Draw mean cosine to one subtoken position by epoch, a curve with its band for each group in `column`."""
    ax = new_axes(ax)
    groups = list(dict.fromkeys(summary[column]))
    for at, group in enumerate(groups):
        shade = mpl.colormaps["viridis"](_LIGHTEST * at / max(len(groups) - 1, 1))  # darker means fewer, in grey too
        style = cycle_style(at) | {"color": shade}
        _course(ax, summary[summary[column] == group], str(group), style, alpha=0.15)
    whole_epochs(ax)
    ax.set(xlabel="epoch", title=title)
    return ax


def _course(ax: Axes, part: pd.DataFrame, name: str, style: Mapping[str, Any], alpha: float) -> None:
    """Draw mean by epoch with its band."""
    part = part.dropna(subset="mean").sort_values("epoch")
    if not part.empty:
        ax.plot(part["epoch"], part["mean"], **style, label=f"{name} (n = {part['n'].max()})")
        ax.fill_between(part["epoch"], part["low"], part["high"], color=style["color"], alpha=alpha, lw=0)


def draw_cosines(summary: pd.DataFrame, matrix: Matrix) -> Drawing:
    """Draw the cosines to first, intermediate and last subtoken by epoch, one panel for each trained variant.

    The thesis publishes curves from random initial rows only. They stand behind the variants that start there too;
    where a run has none with the same objective, they get a panel of their own.
    """
    table = summary[summary["matrix"] == matrix]
    panels = [(name, _published(matrix, name)) for name in _trained(table)]
    matched = {curve.objective for _, curves in panels for curve in curves}
    panels += [(f"random_{kind}", _published(matrix, f"random_{kind}")) for kind in ("kl", "ce") if kind not in matched]
    wide = 2 if len(panels) in (2, 4) else min(3, len(panels))
    high = -(-len(panels) // wide)
    room = len(panels) < wide * high  # for the legend
    size = (min(3.1 * wide + 1.8 * (not room), WIDEST), 2.7 * high + 0.5)
    fig, grid = plt.subplots(high, wide, figsize=size, squeeze=False)
    ends: list[str] = []
    for ax, (name, published) in zip(grid.flat, panels, strict=False):
        part = table[table["variant"] == name]
        only = ": thesis only" if part.empty else ""
        cosine_chart(part, published, ax, f"{variant_label(name)}{only}")
        if not only:
            ends.append(f"{variant_label(name)} {_final(part)}")
    for ax in list(grid.flat)[len(panels) :]:
        ax.set_axis_off()
    for ax in grid[:, 1:].flat:
        ax.set_ylabel("")
    legend = legend_entries(grid.flat)
    if room:
        grid[-1, -1].legend(legend.values(), legend, loc="center", title="cosine of a new row to its")
    else:
        fig.legend(legend.values(), legend, loc="outside right center")
    note(
        grid[0, 0],
        "1: the row points where its subtoken points; 0: it has nothing to do with it. Bands: 95 % bootstrap over "
        "tokens, n in the legend. Grey: curves of the thesis, which has them from random initial rows only, for its "
        "800 tokens. Vertical axes differ.",
    )
    alt = (
        f"Line charts of the mean cosine of new {matrix} rows to the rows of their subtokens by epoch, a panel for "
        f"each variant. Last epoch: {'; '.join(ends)}."
    )
    return Drawing(fig, alt)


def _trained(table: pd.DataFrame) -> list[str]:
    """Variants with more than one epoch, in the order of the table."""
    epochs = table.groupby("variant", sort=False)["epoch"].nunique()
    return [str(name) for name in epochs.index[epochs > 1]]


def _published(matrix: Matrix, variant: str) -> list[thesis.CosineCurve]:
    if not variant.startswith("random"):
        return []
    objective = "kl" if "_kl" in variant else "ce" if "_ce" in variant else ""
    return [c for c in thesis.COSINE_CURVES if (c.matrix, c.objective) == (matrix, objective)]


def _final(part: pd.DataFrame) -> str:
    """Mean cosines of the last epoch in words."""
    means = part[part["epoch"] == part["epoch"].max()].set_index("position")["mean"].dropna()
    return " and ".join(f"{means[place]:.3f} to the {place}" for place in POSITIONS if place in means) + " subtoken"


def draw_group_cosines(groups: pd.DataFrame, matrix: Matrix, grouping: str) -> Drawing:
    """Draw cosines by epoch for groups of tokens: a row for each subtoken position, a column for each variant.

    Of more than four trained variants only those from mean initial rows are drawn: random ones stay near 0.
    """
    table = groups[groups["matrix"] == matrix]
    trained = _trained(table)
    means = [name for name in trained if name.startswith("mean_")]
    names = trained if len(trained) <= _COLUMNS else (means or trained)[:_COLUMNS]
    seen = table.groupby("position", observed=True)["n"].sum()
    shown = [position for position in POSITIONS if seen.get(position, 0)]
    size = (min(2.2 * len(names), 9.4) + 0.4, 2.2 * len(shown) + 1.1)
    fig, grid = plt.subplots(len(shown), len(names), figsize=size, squeeze=False, sharex=True, sharey="col")
    for line, position in zip(grid, shown, strict=True):
        for ax, name in zip(line, names, strict=True):
            part = table[(table["variant"] == name) & (table["position"] == position)]
            title = textwrap.fill(variant_label(name), _TITLE) if ax in grid[0] else ""
            group_curve_chart(part, grouping, ax, title)
            ax.set_xlabel("epoch" if ax in grid[-1] else "")
        line[0].set_ylabel(f"cosine to the\n{position} subtoken")
    for ax in grid[0]:
        ax.title.set_fontsize("medium")
    legend, title = legend_entries(grid.flat), f"new {matrix} rows, by {GROUPINGS[grouping]}"
    fig.legend(legend.values(), legend, loc="outside upper center", ncols=len(legend), title=title)
    left_out = f" {len(trained) - len(names)} other variants are left out." if len(names) < len(trained) else ""
    shared = " The panels of a column share a vertical axis." if len(shown) > 1 else ""
    note(grid[0, 0], f"Bands: 95 % bootstrap over the n tokens of a group.{shared}{left_out}")
    counts = table.groupby(grouping, sort=False, observed=True)["n"].max()
    told = ", ".join(f"{group} (n = {n})" for group, n in counts.items())
    ends = "; ".join(_spread(table, name, shown[0], grouping) for name in names)
    alt = (
        f"Line charts of the cosine of new {matrix} rows to their {' and '.join(shown)} subtoken by epoch, a column "
        f"for each variant and a curve for each group of tokens by {GROUPINGS[grouping]}: {told}. Lowest and highest "
        f"group in the last epoch, {shown[0]} subtoken: {ends}."
    )
    return Drawing(fig, alt)


def _spread(table: pd.DataFrame, variant: str, position: str, grouping: str) -> str:
    """The groups with the lowest and the highest mean cosine of the last epoch in words."""
    part = table[(table["variant"] == variant) & (table["position"] == position)].dropna(subset="mean")
    part = part[part["epoch"] == part["epoch"].max()].sort_values("mean").iloc[[0, -1]]
    ends = (f"{group} {mean:.3f}" for group, mean in zip(part[grouping], part["mean"], strict=True))
    return f"{variant_label(variant)} {' and '.join(ends)}"
