"""The results table as figures: the published counts, and pass counts and bits per byte of a run in the same form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vocabx_utils import thesis
from vocabx_utils.analysis import plots
from vocabx_utils.analysis.drawings import Drawing, FigureSpec
from vocabx_utils.runs import Run
from vocabx_utils.statistics import wilson_interval

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["FIGURES", "read_counts"]

Counts = Mapping[str, Mapping[str, tuple[int, int]]]
"""Problems passed and answered by benchmark, then by model."""

_RECIPES = {"none": "as it is", "lora": "LoRA", "full": "full"}
_PUBLISHED = {"BigCodeBench": ("bigcodebench", thesis.BIGCODEBENCH_TOTAL), "DS-1000": ("ds1000", thesis.DS1000_TOTAL)}
_ALL = "together"


def _pass_bars(ax: Axes, passed: Sequence[int | None], totals: Sequence[int], marked: Sequence[bool]) -> None:
    """Draw pass rates as bars from top to bottom with Wilson's interval; None leaves a row empty."""
    rows = [at for at, value in enumerate(passed) if value is not None and totals[at]]
    n = np.array([totals[at] for at in rows])
    shares = np.array([passed[at] for at in rows], dtype=float) / n
    found = [wilson_interval(int(passed[at] or 0), totals[at]) for at in rows]
    low, high = np.array([(interval.low, interval.high) for interval in found]).reshape(-1, 2).T
    colors = [plots.PALETTE[1] if marked[at] else "0.65" for at in rows]
    hatches = ["//" if marked[at] else "" for at in rows]
    ax.barh(rows, shares * 100, color=colors, edgecolor="0.3", hatch=hatches)
    ends = np.array([shares - low, high - shares]).clip(min=0) * 100
    ax.errorbar(shares * 100, rows, xerr=ends, fmt="none", ecolor="0.15", lw=1)
    ax.set_xlabel("passed (%)")


def _write_beside(ax: Axes, words: Mapping[int, str]) -> None:
    """Write a word at the right end of some rows, in room of its own."""
    low, high = ax.get_xlim()
    ax.set_xticks([tick for tick in ax.get_xticks() if low <= tick <= high])
    ax.set_xlim(low, high + 0.38 * (high - low))
    for at, word in words.items():
        ax.text(high + 0.02 * (high - low), at, word, va="center", fontsize="x-small")


def _published_results(_: Run) -> Drawing:
    import matplotlib.pyplot as plt

    rows = thesis.RESULTS
    fig, axes = plt.subplots(1, 3, figsize=(9.6, 4.0), sharey=True)
    parts = (*((key, total, title) for title, (key, total) in _PUBLISHED.items()),)
    marked = [row is thesis.REFERENCE for row in rows]
    for ax, (key, total, title) in zip(axes, (*parts, ("combined", thesis.COMBINED_TOTAL, "both")), strict=True):
        passed = [getattr(row, key) for row in rows]
        _pass_bars(ax, passed, [total] * len(rows), marked)
        ax.set_title(f"{title} (n = {total:,})")
        _write_beside(ax, {at: str(value) for at, value in enumerate(passed)})
    axes[0].set_yticks(
        range(len(rows)), [f"{plots.variant_label(row.variant)}, {_RECIPES[row.recipe]}" for row in rows]
    )
    axes[0].invert_yaxis()
    _write_beside(axes[2], {at: _p_words(row) for at, row in enumerate(rows)})
    plots.note(
        axes[0],
        "Published counts (tab:combined_results). Bars: pass rate; whiskers: 95 % Wilson interval; number: problems "
        "passed. p: two-proportion z-test against the hatched reference.",
    )
    alt = (
        "Bar charts of published pass rates for nine models on BigCodeBench, DS-1000 and both, with 95 % intervals: "
        "mean init with KL and LoRA leads with 556 of 1951, the base model passes 508, random init with KL 443."
    )
    return Drawing(fig, alt)


def _p_words(row: thesis.ResultRow) -> str:
    return "reference" if row.p_value is None else f"p {'<' if row.p_is_bound else '='} {row.p_value:.3f}"


# --- this run ----------------------------------------------------------------------------------------------------


def read_counts(table: pd.DataFrame) -> dict[str, dict[str, tuple[int, int]]]:
    """Read passed and answered problems out of the results table of notebook 05.

    Args:
        table: `table.csv`, with columns `<benchmark> passed` that hold `passed/answered`.

    Returns:
        By benchmark and model; `together` holds the sums where there are several benchmarks.
    """
    titles = [c.removesuffix(" passed") for c in table.columns if c.endswith(" passed") and c != "combined passed"]
    columns = {title: f"{title} passed" for title in titles}
    if len(titles) > 1:
        columns[_ALL] = "combined passed"
    return {
        title: {str(model): _fraction(text) for model, text in zip(table["model"], table[column], strict=True)}
        for title, column in columns.items()
    }


def _fraction(text: str) -> tuple[int, int]:
    passed, _, total = str(text).partition("/")
    return int(passed), int(total)


def _published_share(model: str, benchmark: str) -> float | None:
    """The thesis's pass rate, in per cent, of the same variant and recipe."""
    if benchmark not in _PUBLISHED:
        return None
    key, total = _PUBLISHED[benchmark]
    recipe = "full" if model.endswith("_full") else "lora" if model.startswith("tuned_") else "none"
    variant = model.removeprefix("tuned_").removesuffix("_full")
    found = [row for row in thesis.RESULTS if (row.variant, row.recipe) == (variant, recipe)]
    return 100 * getattr(found[0], key) / total if found else None


def _results(run: Run) -> Drawing:
    import matplotlib.pyplot as plt
    import pandas as pd

    bits = pd.read_csv(run.require("05", "bits_per_byte.csv"))
    path = run.folder / "05_benchmark_evaluation" / "table.csv"  # only where answers could be executed
    table = pd.read_csv(path) if path.exists() else pd.DataFrame({"model": []})
    counts = read_counts(table)
    models = list(dict.fromkeys([*bits["model"], *table["model"]]))
    texts = list(dict.fromkeys(bits["texts"]))
    wide = min(3, len(counts) + len(texts))
    high = -(-(len(counts) + len(texts)) // wide)
    size = (3.4 * wide + 1.6, (0.42 * len(models) + 1.6) * high)
    fig, grid = plt.subplots(high, wide, figsize=size, sharey=True, squeeze=False)
    axes = list(grid.flat)
    tests = dict(zip(table["model"], table.get("p-value", []), strict=False))
    for ax, (title, found) in zip(axes, counts.items(), strict=False):
        _draw_passes(ax, title, found, models, tests)
    for ax, title in zip(axes[len(counts) :], texts, strict=False):
        _draw_bits(ax, bits[bits["texts"] == title], models)
    for ax in axes[len(counts) + len(texts) :]:
        ax.set_visible(False)
    axes[0].set_yticks(range(len(models)), [plots.variant_label(name) for name in models])
    axes[0].set_ylim(len(models) - 0.4, -0.6)
    plots.note(axes[0], _results_note(counts))
    return Drawing(fig, _results_alt(run, counts, bits))


def _draw_passes(
    ax: Axes, title: str, found: Mapping[str, tuple[int, int]], models: Sequence[str], tests: Mapping[str, Any]
) -> None:
    passed = [found[name][0] if name in found else None for name in models]
    totals = [found[name][1] if name in found else 0 for name in models]
    _pass_bars(ax, passed, totals, [tests.get(name) == "reference" for name in models])
    for at, name in enumerate(models):
        if name in found and (share := _published_share(name, title)) is not None:
            ax.plot([share], [at], marker="D", mfc="none", mec="black", ls="none")
    ax.set_title(f"{title} (n = {max(totals):,})")
    words = {}
    for at, name in enumerate(models):
        p = tests.get(name)
        told = f"\n{p if p == 'reference' else f'p = {p}'}" if p is not None else ""
        words[at] = f"{found[name][0]}/{found[name][1]}{told}" if name in found else "not asked"
    _write_beside(ax, words)


def _draw_bits(ax: Axes, part: pd.DataFrame, models: Sequence[str]) -> None:
    """Draw differences to the reference with their intervals, filled where one excludes 0."""
    places = [models.index(name) for name in part["model"]]
    numbers = part[["difference", "low", "high"]].to_numpy(dtype=float)
    for at, (value, low, high) in zip(places, numbers, strict=True):
        error = [[max(value - low, 0)], [max(high - value, 0)]]
        fill = plots.PALETTE[0] if low > 0 or high < 0 else "white"
        ax.errorbar(value, at, xerr=error, fmt="o", color=plots.PALETTE[0], mfc=fill, ls="none")
    ax.axvline(0, color="0.4", lw=1, marker="")
    ax.locator_params(axis="x", nbins=4)
    ax.set_xlabel("difference in bits per byte")
    ax.set_title(f"{part['texts'].iloc[0]} (n = {part['n'].iloc[0]:,})")
    _write_beside(ax, {at: f"{value:.3f}" for at, value in zip(places, part["bits_per_byte"], strict=True)})


def _results_note(counts: Counts) -> str:
    bits = (
        "Bits per byte: difference to the base model or other reference, whiskers 95 % paired bootstrap over texts, "
        "filled where they exclude 0; number: the value itself. Lower is better."
    )
    if not counts:
        return f"No answers were executed in this run. {bits}"
    shown = any(_published_share(name, title) is not None for title, found in counts.items() for name in found)
    diamonds = "; diamonds: published rate of the same model" if shown else ""
    return (
        f"Bars: pass rate; whiskers: 95 % Wilson interval{diamonds}; p: two-proportion z-test against the hatched "
        f"reference. {bits}"
    )


def _results_alt(run: Run, counts: Counts, bits: pd.DataFrame) -> str:
    parts = [
        f"{title}: " + ", ".join(f"{plots.variant_label(name)} {k}/{n}" for name, (k, n) in found.items())
        for title, found in counts.items()
    ]
    for texts, part in bits.groupby("texts", sort=False):
        pairs = zip(part["model"], part["bits_per_byte"], strict=True)
        values = ", ".join(f"{plots.variant_label(model)} {value:.3f}" for model, value in pairs)
        parts.append(f"bits per byte, {texts}: {values}")
    return f"Bars of pass rates and points of bits per byte of run {run.name}, with intervals. {'; '.join(parts)}."


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec("results", "tab:combined_results", _results),
    FigureSpec("results_published", "tab:combined_results", _published_results),
)
