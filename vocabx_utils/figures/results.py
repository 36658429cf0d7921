"""Evaluations as figures: pass counts, differences with their intervals, failures, what a number of problems shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from vocabx_utils import thesis
from vocabx_utils.analysis.collected import read_passes
from vocabx_utils.figures.theme import PALETTE, WIDEST, Drawing, cycle_style, figure_of, new_axes, note, plain_ticks
from vocabx_utils.names import TUNED, published_label, variant_label
from vocabx_utils.statistics import smallest_detectable_difference, wilson_interval

Counts = Mapping[str, Mapping[str, tuple[int, int]]]
"""Problems passed and answered by benchmark, then by model."""

_RECIPES = {"none": "as it is", "lora": "LoRA", "full": "full"}
_PUBLISHED = {"BigCodeBench": ("bigcodebench", thesis.BIGCODEBENCH_TOTAL), "DS-1000": ("ds1000", thesis.DS1000_TOTAL)}
_HATCHES = ("", "//", "..", "xx", "--", "\\\\", "++", "oo", "**", "||")


def forest_chart(
    table: pd.DataFrame, ax: Axes | None = None, *, label: str = "", places: Sequence[int] | None = None
) -> Axes:
    """Draw differences with their intervals, filled where one excludes 0.

    Args:
        table: columns `model`, `difference`, `low`, `high`.
        label: of the horizontal axis: difference to what, in which unit.
        places: row of each model on axes that others share; without them the models are named from top to bottom.
    """
    ax = new_axes(ax)
    rows = np.arange(len(table))[::-1] if places is None else places
    numbers = table[["difference", "low", "high"]].to_numpy(dtype=float)
    for row, (value, low, high) in zip(rows, numbers, strict=True):
        error = [[max(value - low, 0)], [max(high - value, 0)]]
        fill = PALETTE[0] if low > 0 or high < 0 else "white"
        ax.errorbar(value, row, xerr=error, fmt="o", color=PALETTE[0], mfc=fill, ls="none")
    ax.axvline(0, color="0.4", lw=1, marker="")
    ax.set_xlabel(label)
    if places is None:
        ax.set_yticks(rows, table["model"])
        ax.set_ylim(-0.6, len(table) - 0.4)
        ax.set_xlabel(f"{label}\nfilled: interval excludes 0")
    ax.locator_params(axis="x", nbins=5 if places is None else 4)  # beside others there is less room
    return ax


def failure_chart(table: pd.DataFrame) -> Axes:
    """Draw passed answers and the classes of failures of each variant (`failures.failure_table`) as stacked bars."""
    _, ax = plt.subplots(figsize=(7.6, 0.45 * len(table) + 2.0))
    names = [variant_label(name) for name in table["variant"]]
    left = np.zeros(len(table))
    classes = [column for column in table.columns if column not in ("variant", "exceptions")]
    for column, hatch in zip(classes, _HATCHES, strict=False):
        counts = table[column].to_numpy(dtype=float)
        ax.barh(names, counts, left=left, label=column, hatch=hatch, edgecolor="white")
        left += counts
    ax.invert_yaxis()
    ax.set_xlabel("answers")
    ax.grid(visible=False, axis="y")
    figure_of(ax).legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return ax


def draw_forgetting(relative: pd.DataFrame, texts: int) -> Drawing:
    """Draw bits per byte after fine-tuning minus those of the untouched base model, a group of bars for each variant.

    Args:
        relative: a row for each variant, a column for each set of texts.
        texts: of each set.
    """
    fig, ax = plt.subplots(figsize=(8.2, 0.62 * len(relative) + 1.7), layout="constrained")
    high = 0.8 / relative.shape[1]
    rows = np.arange(len(relative))
    told = []
    for at, (name, hatch) in enumerate(zip(relative, _HATCHES, strict=False)):
        column = relative[name]
        places = rows - 0.4 + (at + 0.5) * high
        ax.barh(places, column, high, color=PALETTE[at], hatch=hatch, edgecolor="white", label=str(name))
        ends = " to ".join(
            f"{column.iloc[at]:+.3f} ({variant_label(str(column.index[at]))})"
            for at in (int(column.argmin()), int(column.argmax()))
        )
        told.append(f"{name} {ends}, {int((column < 0).sum())} of {len(column)} below 0")
    ax.axvline(0, color="0.2", linewidth=1, marker="")
    ax.set_yticks(rows, [variant_label(str(name)) for name in relative.index])
    ax.invert_yaxis()
    ax.grid(visible=False, axis="y")
    ax.set_xlabel("bits per byte,\nminus the untouched base model")
    ax.locator_params(axis="x", nbins=6)
    handles = ax.get_legend_handles_labels()
    fig.legend(*handles, loc="outside upper right", ncols=relative.shape[1], title="texts")
    note(ax, f"n = {texts} texts in each set. Left of 0 is better than the base model.")
    alt = (
        "Bar chart of bits per byte after all stages minus those of the untouched base model, a group of bars for each "
        f"of {len(relative)} variants and a bar for each set of texts: {'; '.join(told)}."
    )
    return Drawing(fig, alt)


def detectable_chart(rate: float, sizes: Sequence[int], *, power: float = 0.8) -> Axes:
    """Draw the smallest difference found with this `power` against the number of problems, at a reference's pass rate.

    The paired test has lines for 5 % and for 20 % of verdicts that differ. Where these are too few for any difference
    to be found, it has no point, and the note says so.
    """
    _, ax = plt.subplots()
    missing = []
    for share in (None, 0.05, 0.2):
        found = [100 * smallest_detectable_difference(rate, n, power=power, discordant=share) for n in sizes]
        label = f"McNemar, {share:.0%} of verdicts differ" if share else "two-proportion z-test"
        ax.plot(sizes, found, label=label)
        if none := [f"{n:,}" for n, points in zip(sizes, found, strict=True) if not np.isfinite(points)]:
            missing.append(
                f"{label}: no point at {', '.join(none)} problems; no difference has a power of {power:.0%} there."
            )
    if missing:
        note(ax, " ".join(missing))
    ax.set_xscale("log")
    plain_ticks(ax, sizes, "{}")
    ax.set(xlabel="problems", ylabel="smallest detectable difference (points)")
    ax.legend()
    return ax


def draw_saved(table: pd.DataFrame, told: int = 800) -> Drawing:
    """Draw what both strategies save, a panel for each corpus of `compare_strategies`; the text names size `told`."""
    names = list(table["corpus"].unique())
    size = (min(3.4 * len(names), WIDEST), 3.2)
    fig, axes = plt.subplots(1, len(names), figsize=size, squeeze=False, sharey=True)
    for ax, name in zip(axes.flat, names, strict=True):
        for strategy, look in (("added", 4), ("merges", 0)):  # `merges` looks as in `draw_phrases`
            rows = table[(table["corpus"] == name) & (table["strategy"] == strategy)]
            ax.plot(rows["found"], rows["saved_per_1000"], label=strategy, **cycle_style(look))
        ax.set(xlabel="new tokens N", ylabel="tokens saved per 1,000", title=name)
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.legend()
        ax.label_outer()
    axes[0, 0].set_ylim(0, 1.05 * table["saved_per_1000"].max())
    n = min(told, table["n"].max())
    at = table[table["n"] == n].pivot(index="corpus", columns="strategy", values="saved_per_1000")
    numbers = "; ".join(f"{row.Index} {row.added:.0f} (added) and {row.merges:.0f} (merges)" for row in at.itertuples())
    alt = (
        "Tokens saved per 1,000 original tokens against the number of new tokens, a panel for each corpus, "
        f"all on one scale, and a line for each strategy. With {n} new tokens: {numbers}."
    )
    return Drawing(fig, alt)


def _pass_points(ax: Axes, counts: Mapping[int, tuple[int, int]], reference: Collection[int]) -> None:
    """Draw pass rates by row as points, which show a rate of 0 too, with Wilson's interval.

    The reference is a filled square on a line through all rows.
    """
    for row, (passed, total) in counts.items():
        found = wilson_interval(passed, total)
        share = 100 * found.estimate
        ends = 100 * np.array([[found.estimate - found.low], [found.high - found.estimate]]).clip(min=0)
        color, marker, fill = (PALETTE[4], "s", PALETTE[4]) if row in reference else (PALETTE[0], "o", "white")
        ax.errorbar(share, row, xerr=ends, color=color, ls="none", ms=5.5, marker=marker, mfc=fill)
        if row in reference:
            ax.axvline(share, color=color, lw=1, ls=":", marker="")
    ax.set_xlim(left=-1)
    ax.set_xlabel("problems passed (%)")


def _write_beside(ax: Axes, words: Mapping[int, str], room: float = 0.44) -> None:
    """Write words at the right end of some rows, in room of their own: a share of the width so far."""
    low, high = ax.get_xlim()
    ax.set_xticks([tick for tick in ax.get_xticks() if low <= tick <= high])
    ax.set_xlim(low, high + room * (high - low))
    for at, word in words.items():
        ax.text(high + 0.02 * (high - low), at, word, va="center", fontsize="small")


def draw_published_results() -> Drawing:
    """Draw the thesis's results table (`tab:combined_results`)."""
    rows = thesis.RESULTS
    fig, axes = plt.subplots(1, 3, figsize=(9.6, 4.4), sharey=True)
    parts = _PUBLISHED | {"both": ("combined", thesis.COMBINED_TOTAL)}
    for ax, (title, (key, total)) in zip(axes, parts.items(), strict=True):
        counts = {at: (getattr(row, key), total) for at, row in enumerate(rows)}
        _pass_points(ax, counts, [rows.index(thesis.REFERENCE)])
        ax.set_title(f"{title} (n = {total:,})")
        if key != "combined":
            _write_beside(ax, {at: str(passed) for at, (passed, _) in counts.items()})
    labels = [f"{published_label(row.variant)}, {_RECIPES[row.recipe]}" for row in rows]
    axes[0].set_yticks(range(len(rows)), labels)
    axes[0].invert_yaxis()
    words = {}
    for at, row in enumerate(rows):
        told = "reference" if row.p_value is None else f"p {'<' if row.p_is_bound else '='} {row.p_value:.3f}"
        words[at] = f"{row.combined}, {told}"
    _write_beside(axes[2], words, 0.6)
    leader, base = thesis.REFERENCE, rows[0]
    more = leader.combined - base.combined
    fig.suptitle(f"Thesis: the best model passes {more} problems more than the base model (p = {base.p_value:.3f})")
    note(
        axes[0],
        "Published counts (tab:combined_results). Whiskers: 95 % Wilson interval; number: problems passed. p: "
        "two-proportion z-test against the reference (square, dotted line). Which subtoken the thesis's KL compares, "
        "first or last, depends on the reading.",
    )
    least = min(rows, key=lambda row: row.combined)
    named = ", ".join(f"{labels[rows.index(row)]} {row.combined}" for row in (leader, base, least))
    alt = (
        f"Points with 95 % intervals: published pass rates of {len(rows)} models on BigCodeBench, DS-1000 and both. Of "
        f"{thesis.COMBINED_TOTAL:,} problems the best model, the base model and the last one pass: {named}."
    )
    return Drawing(fig, alt)


def _read_counts(table: pd.DataFrame) -> dict[str, dict[str, tuple[int, int]]]:
    """Problems passed and answered by benchmark and model; `together` holds the sums where there are several."""
    counts: dict[str, dict[str, tuple[int, int]]] = {}
    for model, benchmark, passed, answered in read_passes(table.to_dict("records")):
        counts.setdefault(benchmark, {})[model] = passed, answered
    together = counts.pop("combined", {})
    return counts | ({"together": together} if len(counts) > 1 else {})


def _published_share(model: str, benchmark: str) -> float | None:
    """The thesis's pass rate, in per cent, of the same variant and recipe."""
    if benchmark not in _PUBLISHED:
        return None
    key, total = _PUBLISHED[benchmark]
    recipe = "full" if model.endswith("_full") else "lora" if model.startswith(TUNED) else "none"
    variant = model.removeprefix(TUNED).removesuffix("_full")
    found = [row for row in thesis.RESULTS if (row.variant, row.recipe) == (variant, recipe)]
    return 100 * getattr(found[0], key) / total if found else None


def draw_results(bits: pd.DataFrame, table: pd.DataFrame, run: str) -> Drawing:
    """Draw pass counts and bits per byte of a run, from `bits_per_byte.csv` and `table.csv` of notebook 05.

    Where no answer was run, the table has only a column `model`, empty.
    """
    counts = _read_counts(table)
    models = list(dict.fromkeys([*bits["model"], *table["model"]]))
    texts = list(dict.fromkeys(bits["texts"]))
    wide = min(3, len(counts) + len(texts))
    high = -(-(len(counts) + len(texts)) // wide)
    size = (2.55 * wide + 2.0, (0.42 * len(models) + 1.1) * high + 0.9)
    fig, grid = plt.subplots(high, wide, figsize=size, sharey=True, squeeze=False)
    axes = list(grid.flat)
    tests = dict(zip(table["model"], table.get("p-value", []), strict=False))
    for ax, (title, found) in zip(axes, counts.items(), strict=False):
        _draw_passes(ax, title, found, models, tests)
    for ax, title in zip(axes[len(counts) :], texts, strict=False):
        _draw_bits(ax, bits[bits["texts"] == title], models)
    for ax in axes[len(counts) + len(texts) :]:
        ax.set_visible(False)
    axes[0].set_yticks(range(len(models)), [variant_label(name) for name in models])
    axes[0].set_ylim(len(models) - 0.4, -0.6)
    note(axes[0], _results_note(counts, "reference" in tests.values()))
    return Drawing(fig, _results_alt(run, counts, bits))


def _draw_passes(
    ax: Axes, title: str, found: Mapping[str, tuple[int, int]], models: Sequence[str], tests: Mapping[str, Any]
) -> None:
    counts = {at: found[name] for at, name in enumerate(models) if name in found}
    _pass_points(ax, counts, [at for at, name in enumerate(models) if tests.get(name) == "reference"])
    words = dict.fromkeys(range(len(models)), "not asked")
    for at, (passed, total) in counts.items():
        if (share := _published_share(models[at], title)) is not None:
            ax.plot([share], [at], marker="D", mfc="none", mec="black", ls="none", ms=7)
        p = tests.get(models[at])
        words[at] = f"{passed}/{total}" + ("" if p is None else "\nreference" if p == "reference" else f"\np = {p}")
    ax.set_title(f"{title} (n = {max(total for _, total in counts.values()):,})")
    _write_beside(ax, words)


def _draw_bits(ax: Axes, part: pd.DataFrame, models: Sequence[str]) -> None:
    places = [models.index(name) for name in part["model"]]
    forest_chart(part, ax, label="bits per byte, difference", places=places)
    ax.set_title(f"{part['texts'].iloc[0]} (n = {part['n'].iloc[0]:,})")
    _write_beside(ax, {at: f"{value:.3f}" for at, value in zip(places, part["bits_per_byte"], strict=True)})


def _results_note(counts: Counts, reference: bool) -> str:
    bits = (
        "Bits per byte: difference to the base model or other reference, whiskers 95 % paired bootstrap over texts, "
        "filled where they exclude 0; number: the value itself. Lower is better."
    )
    if not counts:
        return f"No answers were executed in this run. {bits}"
    shown = any(_published_share(name, title) is not None for title, found in counts.items() for name in found)
    diamonds = "; diamonds: published rate of the same variant, KL read as KL (first)" if shown else ""
    tests = " p: two-proportion z-test against the reference (square, dotted line)." if reference else ""
    return f"Problems passed: whiskers are 95 % Wilson intervals{diamonds}.{tests} {bits}"


def _results_alt(run: str, counts: Counts, bits: pd.DataFrame) -> str:
    parts = [
        f"{title}: " + ", ".join(f"{variant_label(name)} {k}/{n}" for name, (k, n) in found.items())
        for title, found in counts.items()
    ]
    for texts, part in bits.groupby("texts", sort=False):
        pairs = zip(part["model"], part["bits_per_byte"], strict=True)
        values = ", ".join(f"{variant_label(model)} {value:.3f}" for model, value in pairs)
        parts.append(f"bits per byte, {texts}: {values}")
    return f"Pass rates and bits per byte of each model of run {run} as points with intervals. {'; '.join(parts)}."
