"""The forest plot of differences, and the difference that a number of problems can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vocabx_utils.statistics import smallest_detectable_difference

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


def forest_plot(
    table: pd.DataFrame,
    *,
    unit: str,
    reference: str,
    labels: Mapping[str, str] | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the difference of each model to the reference with its interval.

    Args:
        table: Columns ``model``, ``difference``, ``low``, ``high``; rows are drawn from top to bottom.
        unit: Unit of the difference, written on the axis.
        reference: Name of the reference, written at zero.
        labels: Spelled-out names of the models.
        ax: Axes to draw on.

    Returns:
        The axes.
    """
    ax = ax or _new_axes()
    places = np.arange(len(table))[::-1]
    values = table["difference"].to_numpy()
    errors = np.array([values - table["low"].to_numpy(), table["high"].to_numpy() - values])
    clear = (table["low"].to_numpy() > 0) | (table["high"].to_numpy() < 0)
    for place, value, error, sure in zip(places, values, errors.T, clear, strict=True):
        ax.errorbar(
            value,
            place,
            xerr=error[:, None],
            fmt="o",
            color="#0173b2",
            mfc="#0173b2" if sure else "white",
            linestyle="none",
        )
    ax.axvline(0, color="0.4", linewidth=1)
    names = [(labels or {}).get(name, name) for name in table["model"]]
    ax.set_yticks(places, names)
    ax.set_ylim(-0.6, len(table) - 0.4)
    base = (labels or {}).get(reference, reference)
    ax.set_xlabel(f"difference to {base} ({unit})\nfilled: interval excludes 0")
    return ax


def failure_chart(table: pd.DataFrame, labels: Mapping[str, str] | None = None, ax: Axes | None = None) -> Axes:
    """Draw passed answers and the classes of failures of each variant as stacked bars.

    Args:
        table: See ``failures.failure_table``.
        labels: Spelled-out names of the variants.
        ax: Axes to draw on.

    Returns:
        The axes.
    """
    ax = ax or _new_axes()
    names = [(labels or {}).get(name, name) for name in table["variant"]]
    left = np.zeros(len(table))
    hatches = ("", "//", "..", "xx", "--", "\\\\", "++", "oo", "**", "||")
    classes = [column for column in table.columns if column not in ("variant", "exceptions")]
    for column, hatch in zip(classes, hatches, strict=False):
        counts = table[column].to_numpy(dtype=float)
        ax.barh(names, counts, left=left, label=column, hatch=hatch, edgecolor="white")
        left += counts
    ax.invert_yaxis()
    ax.set_xlabel("answers")
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=4)
    return ax


def detectable_chart(
    rate: float,
    sizes: Sequence[int],
    *,
    discordant: Sequence[float] = (0.05, 0.2),
    power: float = 0.8,
    ax: Axes | None = None,
) -> Axes:
    """Draw the smallest detectable difference against the number of problems.

    Args:
        rate: Pass rate of the reference.
        sizes: Numbers of problems.
        discordant: Shares of problems with different verdicts, one line each for the paired test.
        power: Probability with which the difference is to be found.
        ax: Axes to draw on.

    Returns:
        The axes.
    """
    ax = ax or _new_axes()
    z_test = [100 * smallest_detectable_difference(rate, n, power=power) for n in sizes]
    ax.plot(sizes, z_test, label="two-proportion z-test")
    for share in discordant:
        paired = [100 * smallest_detectable_difference(rate, n, power=power, discordant=share) for n in sizes]
        ax.plot(sizes, paired, label=f"McNemar, {share:.0%} of verdicts differ")
    ax.set_xscale("log")
    ax.set_xticks(list(sizes), [str(n) for n in sizes])
    ax.minorticks_off()
    ax.set_xlabel("problems")
    ax.set_ylabel("smallest detectable difference (points)")
    ax.legend()
    return ax


def _new_axes() -> Any:
    import matplotlib.pyplot as plt

    _, ax = plt.subplots()
    return ax
