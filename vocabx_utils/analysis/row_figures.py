"""Figures of what notebook 06 measured: where rows point, the causal test, hidden states by layer."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from vocabx_utils import thesis
from vocabx_utils.analysis import charts, plots
from vocabx_utils.analysis.drawings import Drawing, FigureSpec
from vocabx_utils.analysis.mechanisms import CausalTest
from vocabx_utils.analysis.similarity import POSITIONS
from vocabx_utils.files import read_json
from vocabx_utils.rows import Matrix
from vocabx_utils.runs import Run

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.artist import Artist

__all__ = ["FIGURES", "GROUPINGS", "draw_cosines", "draw_group_cosines"]

_ROWS = {"input": "input rows", "head": "head rows"}
GROUPINGS = {"subtokens": "number of subtokens", "frequency": "occurrences in the corpus"}
"""Columns that sort the tokens into groups, in words."""


def _stage_table(run: Run, name: str) -> pd.DataFrame:
    import pandas as pd

    return pd.read_csv(run.require("06", name))


def _trained(table: pd.DataFrame) -> list[str]:
    """Variants with more than one epoch, in the order of the table."""
    epochs = table.groupby("variant", sort=False)["epoch"].nunique()
    return [str(name) for name in epochs.index[epochs > 1]]


def draw_cosines(summary: pd.DataFrame, matrix: Matrix) -> Drawing:
    """Draw the cosines to first, intermediate and last subtoken by epoch, one panel for each trained variant.

    The thesis publishes curves from random initial rows only. They stand behind the variants that start there too;
    where a run has none with the same objective, they get a panel of their own.

    Args:
        summary: `similarity.summarize` by variant, matrix, position and epoch.
        matrix: `input` or `head`.
    """
    import matplotlib.pyplot as plt

    table = summary[summary["matrix"] == matrix]
    panels = [(name, _published(matrix, name)) for name in _trained(table)]
    matched = {curve.objective for _, curves in panels for curve in curves}
    panels += [(f"random_{kind}", _published(matrix, f"random_{kind}")) for kind in ("kl", "ce") if kind not in matched]
    wide = 2 if len(panels) in (2, 4) else min(3, len(panels))
    high = -(-len(panels) // wide)
    fig, grid = plt.subplots(high, wide, figsize=(3.1 * wide + 1.5, 2.9 * high + 0.3), squeeze=False)
    ends: list[str] = []
    legend: dict[str, Artist] = {}
    for ax, (name, published) in zip(grid.flat, panels, strict=False):
        part = table[table["variant"] == name]
        only = ": thesis only" if part.empty else ""
        charts.cosine_chart(part, published, ax, f"{plots.variant_label(name)}{only}")
        handles, labels = ax.get_legend_handles_labels()
        legend.update(zip(labels, handles, strict=True))
        if not only:
            ends.append(f"{plots.variant_label(name)} {_final(part)}")
    for ax in list(grid.flat)[len(panels) :]:
        ax.set_visible(False)
    for ax in grid[:, 1:].flat:
        ax.set_ylabel("")
    fig.legend(handles=list(legend.values()), labels=list(legend), loc="outside right center", fontsize="small")
    plots.note(
        grid[0, 0],
        "Bands: 95 % bootstrap over tokens, n in the legend. Grey: curves of the thesis, which has them from random "
        "initial rows only and does not say for how many tokens. Vertical axes differ.",
    )
    alt = (
        f"Charts of the mean cosine of new {_ROWS[matrix]} to their subtokens by epoch, a panel for each variant; "
        f"last epoch, first/intermediate/last subtoken: {'; '.join(ends)}."
    )
    return Drawing(fig, alt)


def _published(matrix: Matrix, variant: str) -> list[thesis.CosineCurve]:
    if not variant.startswith("random"):
        return []
    objective = "kl" if "_kl" in variant else "ce" if "_ce" in variant else ""
    return [c for c in thesis.COSINE_CURVES if (c.matrix, c.objective) == (matrix, objective)]


def _final(part: pd.DataFrame) -> str:
    means = part[part["epoch"] == part["epoch"].max()].set_index("position")["mean"]
    values = [float(means.get(position, np.nan)) for position in POSITIONS]
    return "/".join("none" if np.isnan(value) else f"{value:.3f}" for value in values)


def draw_group_cosines(groups: pd.DataFrame, matrix: Matrix, grouping: str) -> Drawing:
    """Draw cosines by epoch for groups of tokens: a row for each subtoken position, a column for each variant.

    Args:
        groups: `similarity.summarize` by variant, matrix, position, epoch and `grouping`.
        matrix: `input` or `head`.
        grouping: `subtokens` or `frequency`, a column of `groups`.
    """
    import matplotlib.pyplot as plt

    table = groups[groups["matrix"] == matrix]
    names = _trained(table)
    seen = table.groupby("position", observed=True)["n"].sum()
    shown = [position for position in POSITIONS if seen.get(position, 0)]
    size = (2.5 * len(names) + 1.9, 2.3 * len(shown) + 0.6)
    fig, grid = plt.subplots(len(shown), len(names), figsize=size, squeeze=False, sharex=True, sharey="col")
    for line, position in zip(grid, shown, strict=True):
        for ax, name in zip(line, names, strict=True):
            part = table[(table["variant"] == name) & (table["position"] == position)]
            charts.group_curve_chart(part, grouping, ax, plots.variant_label(name) if ax in grid[0] else "")
            ax.set_xlabel("epoch" if ax in grid[-1] else "")
        line[0].set_ylabel(f"cosine to the {position}", fontsize="small")
        line[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="x-small", title=GROUPINGS[grouping])
        line[-1].get_legend().get_title().set_fontsize("x-small")
    plots.note(
        grid[0, 0],
        f"New {_ROWS[matrix]}. Bands: 95 % bootstrap over the n tokens of a group. Columns share a vertical axis.",
    )
    counts = table.groupby(grouping, sort=False, observed=True)["n"].max()
    told = ", ".join(f"{group} (n = {n})" for group, n in counts.items())
    alt = (
        f"Line charts of the cosine of new {_ROWS[matrix]} to their {', '.join(shown)} subtoken by epoch for groups of "
        f"tokens by {GROUPINGS[grouping]}: {told}; one column for each of {len(names)} variants."
    )
    return Drawing(fig, alt)


def _cosines(run: Run, matrix: Matrix) -> Drawing:
    return draw_cosines(_stage_table(run, "cosines.csv"), matrix)


def _groups(run: Run, matrix: Matrix, grouping: str) -> Drawing:
    table = _stage_table(run, "groups.csv")
    part = table[table["grouping"] == grouping].rename(columns={"group": grouping})
    return draw_group_cosines(part, matrix, grouping)


def _causal(run: Run) -> Drawing:
    import matplotlib.pyplot as plt

    table, facts = _stage_table(run, "causal.csv"), read_json(run.require("06", "causal.json"))
    variants = list(dict.fromkeys(table["variant"]))
    fig, axes = plt.subplots(1, len(variants), figsize=(4.4 * len(variants), 3.9), squeeze=False, sharey=True)
    needed = []
    for ax, variant in zip(axes[0], variants, strict=True):
        fact = facts[variant]
        part = table[table["variant"] == variant]
        test = CausalTest(part, fact["kl_start"], fact["kl_end"], fact["width"])
        charts.causal_chart(test, ax, plots.variant_label(variant))
        ax.label_outer(remove_inner_ticks=False)
        k = test.coordinates_needed()
        needed.append(f"{plots.variant_label(variant)}: {'more than tested' if k is None else k} of {fact['width']}")
    axes[0, -1].legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    plots.note(axes[0, 0], f"n = {facts[variants[0]]['positions']} positions. {charts.draws_note(table)}")
    alt = (
        "Line charts of KL against kept dimensions of the learned change; coordinates for 90 % of the gain: "
        f"{'; '.join(needed)}."
    )
    return Drawing(fig, alt)


def _layers(run: Run) -> Drawing:
    import matplotlib.pyplot as plt

    table = _stage_table(run, "layers.csv")
    variants = list(dict.fromkeys(table["variant"]))
    fig, axes = plt.subplots(1, len(variants), figsize=(4.0 * len(variants), 3.9), squeeze=False, sharey=True)
    for ax, variant in zip(axes[0], variants, strict=True):
        charts.layer_chart(table[table["variant"] == variant], ax, plots.variant_label(variant))
        ax.label_outer(remove_inner_ticks=False)
    axes[0, 0].legend(fontsize="small")
    plots.note(
        axes[0, 0],
        "Mean over positions (no bands); n in the legend. Boundary: end of a merged span; after: tokens behind it.",
    )
    last = table[(table["layer"] == table["layer"].max()) & (table["place"] == "boundary")].set_index("variant")[
        "cosine"
    ]
    ends = "; ".join(f"{plots.variant_label(v)} {last[v]:.3f}" for v in variants if v in last)
    return Drawing(
        fig,
        f"Line charts of hidden-state cosine, student to teacher, by layer; at boundaries in the last layer: {ends}.",
    )


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec("input_cosines", "fig:embedding_similarity", partial(_cosines, matrix="input")),
    FigureSpec("head_cosines", "fig:head_similarity", partial(_cosines, matrix="head")),
    FigureSpec("input_cosines_by_length", "", partial(_groups, matrix="input", grouping="subtokens")),
    FigureSpec("input_cosines_by_count", "", partial(_groups, matrix="input", grouping="frequency")),
    FigureSpec("head_cosines_by_length", "", partial(_groups, matrix="head", grouping="subtokens")),
    FigureSpec("head_cosines_by_count", "", partial(_groups, matrix="head", grouping="frequency")),
    FigureSpec("causal", "", _causal),
    FigureSpec("layers", "", _layers),
)
