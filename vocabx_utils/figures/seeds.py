"""Runs that differ in their seed: the values of each variant, and differences that are paired by run."""

from __future__ import annotations

import textwrap

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from vocabx_utils.figures.theme import FAINT, Drawing, note, variant_style
from vocabx_utils.names import METRICS, metric_label, variant_label

_HIGH, _WIDE = 32, 64  # letters of a label along each axis
_JITTER = 0.16  # how far the runs of one variant are spread, so that equal values stay visible


def draw_spread(values: pd.DataFrame, metric: str) -> Drawing:
    """Draw each run of each variant as a mark, runs of one seed joined: the table of `seeds.last_values`."""
    fig, ax = plt.subplots(figsize=(7.6, 3.8))
    offsets = np.linspace(-_JITTER, _JITTER, len(values)) if len(values) > 1 else np.zeros(1)
    for offset, (_, line) in zip(offsets, values.iterrows(), strict=True):
        ax.plot(np.arange(len(line)) + offset, line, color=FAINT, lw=0.6, ls="-", marker="", zorder=1)
    for at, (name, column) in enumerate(values.items()):
        style = variant_style(str(name))
        ax.plot(at + offsets, column, color=style["color"], marker=style["marker"], ls="", zorder=2)
        ax.hlines(column.mean(), at - 0.3, at + 0.3, color=style["color"], lw=2)
    labels = [textwrap.fill(variant_label(str(name)), _WIDE // max(len(values.columns), 1)) for name in values.columns]
    ax.set_xticks(range(len(labels)), labels)
    words, unit = METRICS.get(metric, (metric, ""))
    ax.set_ylabel("\n".join([textwrap.fill(words, _HIGH), *([f"({unit})"] if unit else [])]))
    ax.set_title(f"{words[:1].upper()}{words[1:]}, {len(values)} runs")
    note(ax, "One mark a run, thin lines join the variants of one run; bars are means.")
    ends = [f"{variant_label(str(n))} {c.min():.3f} to {c.max():.3f}, mean {c.mean():.3f}" for n, c in values.items()]
    return Drawing(
        fig, f"Marks of {metric_label(metric)} by variant, one for each of {len(values)} runs. {'; '.join(ends)}."
    )


def draw_differences(differences: pd.DataFrame, reference: str, metric: str) -> Drawing:
    """Draw the mean difference of each variant with its limits, around zero: the table of `paired_differences`."""
    fig, ax = plt.subplots(figsize=(7.6, 1.4 + 0.5 * len(differences)))
    for at, (name, line) in enumerate(differences.iterrows()):
        style = variant_style(str(name))
        arms = [[line["difference"] - line["low"]], [line["high"] - line["difference"]]]
        marks = {"color": style["color"], "marker": style["marker"], "ms": 9, "mec": "white"}  # told from the bar
        ax.errorbar(line["difference"], at, xerr=arms if np.isfinite(arms).all() else None, **marks)
    ax.axvline(0, color="black", lw=1)
    ax.set_yticks(range(len(differences)), [variant_label(str(name)) for name in differences.index])
    label = f"{metric_label(metric)}, minus that of {variant_label(reference)}, run by run"
    ax.set(ylim=(len(differences) - 0.5, -0.5), xlabel=textwrap.fill(label, _WIDE))
    runs = ", ".join(map(str, sorted(set(differences["n"]))))
    note(ax, f"n = {runs} runs; bars are simultaneous 95 % intervals (Student, Bonferroni).")
    found = [
        f"{variant_label(str(name))} {line['difference']:+.3f} ({line['low']:+.3f} to {line['high']:+.3f})"
        for name, line in differences.iterrows()
    ]
    return Drawing(
        fig,
        f"Mean difference of {metric_label(metric)} to {variant_label(reference)}, with limits: {'; '.join(found)}.",
    )
