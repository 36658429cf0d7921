"""Charts of what the analysis measures. Each takes data and axes and returns the axes; nothing is computed here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vocabx_utils.analysis import plots
from vocabx_utils.analysis.mechanisms import CausalTest, gaussian_top_k_share
from vocabx_utils.thesis import CosineCurve

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = [
    "causal_chart",
    "cosine_chart",
    "draws_note",
    "group_curve_chart",
    "layer_chart",
    "lens_chart",
    "map_chart",
    "metric_chart",
    "new_axes",
    "share_chart",
    "turn_chart",
    "whole_epochs",
]


def new_axes(ax: Axes | None = None) -> Axes:
    """Return the axes given, or those of a new figure."""
    import matplotlib.pyplot as plt

    return ax if ax is not None else plt.subplots()[1]


def cosine_chart(
    summary: pd.DataFrame, published: Sequence[CosineCurve] = (), ax: Axes | None = None, title: str = ""
) -> Axes:
    """Draw mean cosine by epoch, one curve for each subtoken position, with its bootstrap band.

    Args:
        summary: rows of one variant and one matrix from `similarity.summarize`: position, epoch, mean, low, high, n.
        published: curves of the thesis for the same matrix; drawn thin and grey, with the marker of their position.
        ax: where to draw.
        title: of the axes.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    for curve in published:
        style = plots.position_style(curve.position) | {"color": "0.55"}
        ax.plot(curve.epochs, curve.cosine, **style, lw=0.9, ms=2.5, alpha=0.9, label=f"thesis, {curve.position}")
    for position, part in summary.groupby("position", sort=False):
        part = part.dropna(subset="mean").sort_values("epoch")
        if part.empty:
            continue
        style = plots.position_style(str(position))
        ax.plot(part["epoch"], part["mean"], **style, label=f"{position} (n = {part['n'].max()})")
        ax.fill_between(part["epoch"], part["low"], part["high"], color=style["color"], alpha=0.18, lw=0)
    ax.axhline(0, color="0.4", lw=0.8, ls="-", marker="")
    whole_epochs(ax)
    ax.set(xlabel="epoch", ylabel="cosine to the subtoken's row", title=title)
    return ax


def whole_epochs(ax: Axes) -> None:
    """Put ticks of the horizontal axis at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


def group_curve_chart(summary: pd.DataFrame, column: str, ax: Axes | None = None, title: str = "") -> Axes:
    """Draw mean cosine to one subtoken position by epoch, one curve for each group of tokens, with bootstrap bands.

    Args:
        summary: rows of one variant, matrix and position from `similarity.summarize`, with `column`.
        column: the grouping column, such as the number of subtokens; groups are drawn in the order of the rows.
        ax: where to draw.
        title: of the axes.

    Returns:
        The axes.
    """
    import matplotlib as mpl

    ax = new_axes(ax)
    groups = list(dict.fromkeys(summary[column]))
    for at, group in enumerate(groups):
        part = summary[summary[column] == group].dropna(subset="mean").sort_values("epoch")
        if part.empty:
            continue
        shade = mpl.colormaps["viridis"](0.85 * at / max(len(groups) - 1, 1))  # darker means fewer, in grey too
        style = plots.cycle_style(at) | {"color": shade}
        ax.plot(part["epoch"], part["mean"], **style, label=f"{group} (n = {part['n'].max()})")
        ax.fill_between(part["epoch"], part["low"], part["high"], color=shade, alpha=0.15, lw=0)
    whole_epochs(ax)
    ax.set(xlabel="epoch", title=title)
    return ax


def metric_chart(
    metrics: Mapping[str, Sequence[Mapping[str, Any]]],
    key: str,
    ax: Axes | None = None,
    *,
    label: str = "",
    train_key: str | None = None,
) -> Axes:
    """Draw a validation metric of phase 1 by epoch, one curve for each variant; beside training data as in the thesis.

    Args:
        metrics: lines of `metrics.jsonl` by variant; values that are missing or not finite leave a gap.
        key: which metric.
        ax: where to draw.
        label: of the vertical axis, with its unit.
        train_key: metric of the training data, drawn solid; validation is dashed then.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    for variant, lines in metrics.items():
        style = plots.variant_style(variant)
        held_out = {"linestyle": "--"} if train_key else {}
        for name, look in ((key, held_out), (train_key, {"linestyle": "-", "lw": 1.0, "alpha": 0.7, "label": None})):
            points = [(line["epoch"], line[name]) for line in lines if name and _finite(line.get(name))]
            if points:
                ax.plot(*zip(*points, strict=True), **{**style, "label": plots.variant_label(variant), **look})
    whole_epochs(ax)
    ax.set(xlabel="epoch", ylabel=label or key)
    return ax


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and np.isfinite(value)


def share_chart(shares: Mapping[str, np.ndarray], ks: Sequence[int], width: int, ax: Axes | None = None) -> Axes:
    """Draw how much of the learned change the k largest coordinates hold.

    Args:
        shares: (N, len(ks)) energy shares by variant, from `mechanisms.top_k_share`.
        ks: numbers of coordinates.
        width: D.
        ax: where to draw.

    Returns:
        The axes. Lines are medians over tokens, bands the middle 50 %; the black line is what independent normal
        coordinates would give.
    """
    ax = new_axes(ax)
    for variant, values in shares.items():
        low, middle, high = np.nanquantile(values, [0.25, 0.5, 0.75], axis=0)
        style = plots.variant_style(variant)
        ax.plot(ks, middle, **style, label=plots.variant_label(variant))
        ax.fill_between(ks, low, high, color=style["color"], alpha=0.15, lw=0)
    ax.plot(ks, gaussian_top_k_share(width, ks), color="black", ls="--", marker="", label="normal coordinates")
    ax.set_xscale("log", base=2)
    ax.set(xlabel=f"coordinates kept, k of D = {width}", ylabel="share of |Δe|²", ylim=(0, 1.03))
    return ax


def causal_chart(test: CausalTest, ax: Axes | None = None, title: str = "") -> Axes:
    """Draw KL against the number of dimensions of the learned change that are kept.

    Args:
        test: result of `mechanisms.causal_sweep`.
        ax: where to draw.
        title: of the axes.

    Returns:
        The axes; horizontal lines mark the initial and the trained rows.
    """
    ax = new_axes(ax)
    names = {"top": "largest coordinates", "random": "random coordinates", "principal": "principal directions"}
    for at, (keep, part) in enumerate(test.table.groupby("keep", sort=False)):
        curve = part.groupby("k")["kl"].agg(["mean", "min", "max"])
        style = plots.position_style(("first", "intermediate", "last")[at % 3])
        ax.plot(curve.index, curve["mean"], **style, label=names.get(str(keep), str(keep)))
        ax.fill_between(curve.index, curve["min"], curve["max"], color=style["color"], alpha=0.18, lw=0)
    for value, text in ((test.kl_start, "initial rows"), (test.kl_end, "trained rows")):
        ax.axhline(value, color="0.3", lw=0.9, ls=(0, (4, 3)), marker="")
        ax.annotate(
            text,
            (0.02, value),
            (0, 2),
            xycoords=("axes fraction", "data"),
            textcoords="offset points",
            fontsize="small",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8},
        )
    ax.set_xscale("log", base=2)
    ax.set(xlabel=f"dimensions of the change kept, k of D = {test.width}", ylabel="KL (nats per position)", title=title)
    return ax


def draws_note(table: pd.DataFrame) -> str:
    """Say how often random coordinates were drawn, and with that what the band around their curve is.

    Args:
        table: of a `CausalTest`, of one variant or several.
    """
    draws = int(table.loc[table["keep"] == "random", "draw"].nunique())
    if draws < 2:
        return "Random coordinates: one draw (no bands)."
    return f"Random coordinates: mean of {draws} draws; bands: their range."


def layer_chart(table: pd.DataFrame, ax: Axes | None = None, title: str = "") -> Axes:
    """Draw how similar the student's hidden states are to the teacher's by layer, one curve for each place.

    Args:
        table: result of `divergence.hidden_similarity`.
        ax: where to draw.
        title: of the axes.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    for at, (place, part) in enumerate(table.groupby("place", sort=False)):
        style = plots.variant_style(plots.ORDERED[at % len(plots.ORDERED)])
        ax.plot(part["layer"], part["cosine"], **style, label=f"{place} (n = {part['n'].max()})")
    whole_epochs(ax)
    ax.set(xlabel="layer (0: embedding)", ylabel="cosine, student to teacher", title=title)
    return ax


def lens_chart(table: pd.DataFrame, ax: Axes | None = None, title: str = "") -> Axes:
    """Draw the logit lens as a grid: layers upwards, readers across, the likeliest next token in each cell.

    Args:
        table: result of `divergence.logit_lens`.
        ax: where to draw.
        title: of the axes.

    Returns:
        The axes; colour is the KL from the teacher's final prediction.
    """
    ax = new_axes(ax)
    readers = list(dict.fromkeys(table["reader"]))
    layers = sorted(table["layer"].unique())
    values = table.pivot(index="layer", columns="reader", values="kl").loc[layers, readers].to_numpy()
    tops = table.pivot(index="layer", columns="reader", values="top").loc[layers, readers].to_numpy()
    image = ax.imshow(values, origin="lower", aspect="auto", cmap="viridis_r", vmin=0)
    for (row, column), value in np.ndenumerate(values):
        color = "white" if value > 0.55 * values.max() else "black"
        shown = repr(tops[row, column][0])[1:-1][:12]
        ax.text(column, row, shown, ha="center", va="center", fontsize="xx-small", color=color, parse_math=False)
    ax.figure.colorbar(image, ax=ax, label="KL to the teacher's prediction (nats)")
    ax.set_xticks(range(len(readers)), readers)
    ax.set_yticks(range(0, len(layers), 5), layers[::5])
    ax.grid(visible=False)
    ax.set(ylabel="layer (0: embedding)")
    ax.set_title(title, parse_math=False)
    return ax


def turn_chart(statistics: Mapping[str, pd.DataFrame], ax: Axes | None = None) -> Axes:
    """Draw size against turn of the learned change, one point for each token.

    Args:
        statistics: `mechanisms.row_statistics` by variant.
        ax: where to draw.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    for variant, table in statistics.items():
        style = plots.variant_style(variant)
        relative = table["norm_change"] / table["norm_start"]
        label = f"{plots.variant_label(variant)} (n = {len(table)})"
        ax.scatter(relative, table["turn"], s=16, color=style["color"], marker=style["marker"], alpha=0.75, label=label)
    ax.set(xlabel="|Δe| / |initial row|", ylabel="cosine, initial to trained row")
    return ax


def map_chart(points: pd.DataFrame, chosen: int | None = None, ax: Axes | None = None) -> Axes:
    """Draw new rows on two principal directions, with one token's subtokens.

    Args:
        points: x, y, kind (`new` or `subtoken`), label and token (index of the token it belongs to).
        chosen: token to mark.
        ax: where to draw.

    Returns:
        The axes.
    """
    ax = new_axes(ax)
    new = points[points["kind"] == "new"]
    ax.scatter(new["x"], new["y"], s=12, color="0.7", marker="o", label=f"new tokens (n = {len(new)})")
    for kind, marker, color in (("new", "*", plots.PALETTE[3]), ("subtoken", "s", plots.PALETTE[0])):
        part = points[(points["kind"] == kind) & (points["token"] == chosen)]
        ax.scatter(part["x"], part["y"], s=70, color=color, marker=marker, label="chosen" if kind == "new" else kind)
        for row in part.itertuples():
            ax.annotate(
                repr(row.label), (row.x, row.y), (4, 4), textcoords="offset points", fontsize="small", parse_math=False
            )
    ax.set(xlabel="first principal direction", ylabel="second")
    ax.legend(fontsize="small")
    return ax
