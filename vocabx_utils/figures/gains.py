"""What is gained: tokens saved by each strategy, the KL of each new token, what recipes and new tokens buy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from vocabx_utils.figures.labels import name_points
from vocabx_utils.figures.looks import drawable
from vocabx_utils.figures.patterns import lowest_pattern
from vocabx_utils.figures.theme import (
    ADVISED_COLOR,
    BASE_COLOR,
    FAINT,
    LEAST_KL,
    PALETTE,
    WIDEST,
    Drawing,
    cycle_style,
    legend_above,
    log_axes,
    note,
    plain_ticks,
)
from vocabx_utils.glyphs import visible
from vocabx_utils.measured import DOMAIN_ARMS, DOMAIN_TEXTS, RECIPE_COLUMNS, RECIPES, REFERENCE_RECIPES, recipe_setting
from vocabx_utils.names import variant_label

_NAMED = 5  # tokens whose text stands beside their point
_FAR = 3.0  # runs further from the best than so many times the median run are not drawn
_LARGE = 7  # size of the mark of a row of the report split
_TICKS = [digit * power for power in (1e-3, 1e-2, 0.1, 1.0, 10.0) for digit in (1, 1.5, 2, 3, 5, 7)]


def draw_phrases(table: pd.DataFrame, told: int = 800) -> Drawing:
    """Draw tokens saved against N, a column for each corpus, a row for each tokenizer; the text names size `told`.

    Args:
        table: columns tokenizer, corpus, strategy, n, saved_percent, as in `results/phrases/tokenizers.json`.
    """
    tokenizers, corpora = (list(table[name].unique()) for name in ("tokenizer", "corpus"))
    strategies = list(table["strategy"].unique())
    size = (3.1 * len(corpora) + 0.6, 2.5 * len(tokenizers) + 0.6)
    fig, axes = plt.subplots(len(tokenizers), len(corpora), figsize=size, squeeze=False, sharex=True, sharey=True)
    numbers = []
    for (tokenizer, corpus), rows in table.groupby(["tokenizer", "corpus"], sort=False):
        ax = axes[tokenizers.index(tokenizer), corpora.index(corpus)]
        for k, strategy in enumerate(strategies):
            line = rows[rows["strategy"] == strategy].sort_values("n")
            ax.plot(line["n"], line["saved_percent"], label=strategy, **cycle_style(k))
        ax.set(title=f"{tokenizer}, {corpus}", xscale="log")
        plain_ticks(ax, sorted(table["n"].unique()), "{:,}")
        at = rows[rows["n"] == told].set_index("strategy")["saved_percent"]
        if len(at):
            listed = ", ".join(f"{value:.1f} % ({strategy})" for strategy, value in at.items())
            numbers.append(f"{tokenizer} on {corpus}: {listed}")
    for ax in axes[-1]:
        ax.set_xlabel("new tokens N")
    for ax in axes[:, 0]:
        ax.set_ylabel("tokens saved (%)")
    axes[0, 0].set_ylim(0, 1.05 * table["saved_percent"].max())
    fig.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=len(strategies))
    alt = (
        "Line charts of tokens saved on held-out text against the number of new tokens, a panel for each tokenizer and "
        f"corpus on one scale, a line for each strategy. With {told} new tokens: {'; '.join(numbers)}."
    )
    return Drawing(fig, alt)


def draw_token_gains(tokens: pd.DataFrame, variant: str) -> Drawing:
    """Draw the KL at the last subtoken of each new token after training against that before; below the line is better.

    Args:
        tokens: columns text, kl_start, kl_end (nats, NaN where validation holds no such token); see `token_table`.
        variant: the trained variant, for the caption.
    """
    seen = tokens.dropna(subset=["kl_start", "kl_end"])
    start, end = (seen[name].clip(lower=LEAST_KL).to_numpy() for name in ("kl_start", "kl_end"))
    better = end < start
    fig, ax = plt.subplots(figsize=(6.4, 4.6))
    limits = [0.7 * min(start.min(), end.min()), 1.5 * max(start.max(), end.max())]
    ax.plot(limits, limits, color="0.4", lw=1, linestyle="-", marker="")
    for kind, chosen, colour, marker in (("fell", better, PALETTE[0], "o"), ("did not fall", ~better, PALETTE[4], "X")):
        label = f"KL {kind}: n = {chosen.sum()}"
        ax.scatter(start[chosen], end[chosen], color=colour, marker=marker, s=34, label=label)
    log_axes(ax, limits, limits)
    ax.set(xlabel="KL before training (nats)", ylabel="KL after training (nats)")
    ax.set_title("How far student and teacher differ after each new token")
    ax.legend(loc="upper left")
    note(ax, f"{variant_label(variant)}; validation, n = {len(seen)} new tokens, KL after the token. Line: no change.")
    worst = np.argsort(-end)[:_NAMED]
    texts = {at: drawable(visible(seen["text"].iloc[at])) for at in worst[np.argsort(start[worst])].tolist()}
    name_points(ax, np.column_stack([start, end]), texts)
    factor = float(np.exp(np.median(np.log(end / start))))
    alt = (
        f"Scatter plot of {len(seen)} new tokens for {variant_label(variant)}: KL at the last subtoken before training "
        f"on the horizontal axis, after training on the vertical one, both logarithmic. {better.sum()} points lie "
        f"below the line of no change; the median token keeps {factor:.0%} of its KL."
    )
    return Drawing(fig, alt)


def draw_frontier(
    sweeps: Mapping[str, Sequence[Mapping[str, Any]]], verdict: Mapping[str, Any], *, search: bool = True
) -> Drawing:
    """Draw KL at merged spans against bits per byte above the base's, a panel a setting: one small point a run.

    Large points with limits are rows of the report split, finalists with a black edge. They are of other texts than the
    small points, so that a row may stand a little apart from its run. References, which are to be led, are hollow. Runs
    far behind the others are left out, and the note counts them by family. The legend has all marks in one size, and
    below them what size and edge mean.

    Args:
        sweeps, verdict: see `measured.read_recipes`.
        search: False draws the rows of the report split alone, and a ring around the run that is advised.
    """
    judged = verdict.get("settings", {})
    columns = min(len(sweeps), 2)
    lines = -(-len(sweeps) // columns)
    size = (min(4.9 * columns, WIDEST), 3.3 * lines + 1.2)
    fig, axes = plt.subplots(lines, columns, figsize=size, squeeze=False)
    drawn, told, left_out = set[str](), [], Counter[str]()
    pale = 0.4 if judged else 1.0  # the report split is what counts
    for ax, (setting, rows) in zip(axes.flat, sweeps.items(), strict=False):
        found = judged.get(setting, {"rows": {}, "finalists": {}})
        whole = [row for row in rows if row.get("kl_last") is not None and row.get("bpb") is not None]
        if search:
            near, far = _draw_runs(ax, whole, pale)
            drawn.update(near)
            left_out.update(far)
        drawn |= _draw_rows(ax, found, ring=not search)
        ax.set(title="\n".join(recipe_setting(setting)), xlabel=f"{RECIPE_COLUMNS['kl_last']} (nats)")
        ax.set(ylabel="bits per byte above base", xscale="log")
        low, high = ax.get_xlim()
        plain_ticks(ax, (tick for tick in _TICKS if low <= tick <= high))
        told += _best_families(setting, whole) if search else _best_rows(setting, found)
    for ax in axes.flat[len(sweeps) :]:
        ax.set_axis_off()
    marks = {RECIPES[name]: Line2D([], [], markersize=6, **_recipe_look(name)) for name in RECIPES if name in drawn}
    legend_above(fig, marks | (_sizes(pale, judged) if search else {}))
    words, points = _told_frontier(left_out, bool(judged), search)
    note(axes[0, 0], f"Down and left is better. {words}")
    alt = (
        f"{RECIPE_COLUMNS['kl_last']} (horizontal, logarithmic) against bits per byte above those of the base model, a "
        f"panel for each setting, {points} {' '.join(told)}"
    )
    return Drawing(fig, alt)


def _recipe_look(family: str) -> dict[str, Any]:
    """Colour and marker of a family, the same in every figure."""
    if family not in RECIPES:
        return {"color": FAINT, "marker": "o", "linestyle": "none"}
    style = cycle_style([*RECIPES].index(family)) | {"linestyle": "none"}
    return style | ({"markerfacecolor": "none"} if family in REFERENCE_RECIPES else {})


def _draw_runs(ax: Axes, runs: Sequence[Mapping[str, Any]], pale: float) -> tuple[list[str], list[str]]:
    """Draw runs of a sweep but for those that lie far beyond the others: the families of both, a name a run."""
    places = np.array([(row["kl_last"], row["bpb"] - row["base_bpb"]) for row in runs]).reshape(-1, 2)
    limits = _FAR * np.median(places, 0) + (1 - _FAR) * places.min(0, initial=np.inf) if runs else [np.inf] * 2
    near, families = (places <= limits).all(1), np.array([row["family"] for row in runs], object)
    for name in RECIPES:
        own = places[(families == name) & near]
        if len(own):
            ax.plot(*own.T, markersize=4, alpha=pale, **_recipe_look(name))
    return list(families[near]), list(families[~near])


def _draw_rows(ax: Axes, found: Mapping[str, Any], ring: bool) -> set[str]:
    """Draw rows of the report split with their limits, and a ring around the advised one; return their families."""
    families = set()
    for name, row in found["rows"].items():
        if "above_base" in row and None not in [*row["kl_last"], *row["above_base"]]:
            edge = {"markeredgecolor": "black", "zorder": 4} if name in found["finalists"] else {"zorder": 3}
            (x, left, right), (y, low, high) = row["kl_last"], row["above_base"]
            bars: dict[str, Any] = {"yerr": [[y - low], [high - y]], "xerr": [[x - left], [right - x]]}
            family = name.split(":")[0]
            look = _recipe_look(family) | {"markersize": _LARGE, "elinewidth": 0.8}
            _, *parts = ax.errorbar(x, y, **bars, **look | edge)
            for part in (*parts[0], *parts[1]):  # below the marks, which bars would cross out where rows are near
                part.set(alpha=0.5, zorder=2)
            families.add(family)
            if ring and name == found.get("advice", {}).get("run"):
                ax.plot(x, y, marker="o", markersize=15, mfc="none", mec=ADVISED_COLOR, mew=1.5, zorder=5)
    return families


def _told_frontier(left_out: Counter[str], judged: bool, search: bool) -> tuple[str, str]:
    """What the note says of marks and bars, and the alternative text of points."""
    bars = "Bars: 95 % over seeds and texts."
    if not search:
        marks = "Hollow: references; filled: new; black edge: finalists; ring: the run that we advise."
        points = "a point with limits for each reference, each new recipe with the finalists, and the advised run."
        return f"{marks} Points of one kind differ in their rates. {bars}", points
    counted = ", ".join(f"{count} of {RECIPES[name]}" for name, count in left_out.most_common())
    beyond = f" {left_out.total()} runs lie far beyond: {counted}." if left_out else ""
    large = ", a large one with limits for each row of the report split" if judged else ""
    points = f"a small point for each run of the sweep{large}, families by colour and marker.{beyond}"
    return f"Hollow: references. {bars}{beyond}", points


def _sizes(pale: float, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Line2D]:
    """Marks that say in a legend what size and edge mean, as far as there are such points."""
    rows, finalists = (any(found[name] for found in settings.values()) for name in ("rows", "finalists"))
    known: list[tuple[str, dict[str, Any], bool]] = [
        ("a run of the sweep", {"markersize": 4, "alpha": pale}, True),
        ("a row of the report split", {"markersize": _LARGE}, rows),
        ("the same, a finalist", {"markersize": _LARGE, "markeredgecolor": "black"}, finalists),
    ]
    style: dict[str, Any] = {"color": FAINT, "marker": "o", "linestyle": "none"}
    return {words: Line2D([], [], **style | look) for words, look, shown in known if shown}


def _best_families(setting: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not rows:
        return []
    lowest = lowest_pattern((f"“{RECIPES[row['family']]}”", row) for row in rows)
    return [f"{', '.join(recipe_setting(setting))}: {lowest}"]


def _best_rows(setting: str, found: Mapping[str, Any]) -> list[str]:
    """Say which rows of the report split are lowest, and where the advised one is."""
    rows = {
        name: (row["kl_last"][0], row["above_base"][0]) for name, row in found["rows"].items() if "above_base" in row
    }
    if not rows:
        return []
    lowest = [min(rows, key=lambda name: rows[name][at]) for at in (0, 1)]
    named = {"lowest KL": lowest[0], "fewest bits": lowest[1], "advised": found.get("advice", {}).get("run")}
    parts = (
        f"{words} {RECIPES.get(name.split(':')[0], name)} ({rows[name][0]:.3f} nats, {rows[name][1]:+.4f} bits)"
        for words, name in named.items()
        if name in rows
    )
    return [f"{', '.join(recipe_setting(setting))}: {', '.join(parts)}."]


def draw_domains(rows: Sequence[Mapping[str, Any]]) -> Drawing:
    """Draw bits per byte against tokens per 1,000 bytes, a column for each text, a row for each model, a point an arm.

    Bars are the paired 95 % intervals of the difference to the base, put at its bits per byte. Points with more new
    tokens are larger, and the note says how many that is where. An untrained arm that lies above all others is left
    out, and the note says so.

    Args:
        rows: see `measured.read_domains`; those of a model and text without a base are left out.
    """
    known = [row for row in rows if row["above_base"]]
    known.sort(key=lambda row: [*DOMAIN_TEXTS, row["text"]].index(row["text"]))
    models, texts = (list(dict.fromkeys(row[name] for row in known)) for name in ("model", "text"))
    size = (min(4.9 * len(texts), WIDEST), 3.1 * len(models) + 0.9)
    fig, axes = plt.subplots(len(models), len(texts), figsize=size, squeeze=False)
    smallest = min((row["n"] for row in known if row["n"]), default=0)
    drawn: dict[str, Any] = {}
    told, beyond = [], 0
    for ax, (model, text) in zip(axes.flat, ((m, t) for m in models for t in texts), strict=True):
        own = [row for row in known if (row["model"], row["text"]) == (model, text)]
        if not own:
            ax.set_axis_off()
            continue
        highest = max(row["bpb"] for row in own if row["arm"] != "words_untrained")
        for row in own:
            if row["bpb"] > highest:
                beyond += 1
                continue
            gap, low, high = row["above_base"]
            bars = [[min(gap - low, 9.0)], [min(high - gap, 9.0)]]  # a few documents bound nothing
            look = _arm_style(row["arm"]) | {"markersize": 8 if row["n"] > smallest else 5}
            point = ax.errorbar(row["tokens_per_1000_bytes"], row["bpb"], yerr=bars, elinewidth=1, **look)
            drawn.setdefault(DOMAIN_ARMS[row["arm"]], point)
        ax.set_title("\n".join([*_domain(own[0]), f"n = {len(own[0]['bits'])} documents"]))
        ax.set(xlabel="tokens per 1,000 bytes", ylabel="bits per byte")
        told.append(_told_domain(own))
    legend_above(fig, drawn)
    left_out = f" {beyond} untrained point{'s lie' if beyond > 1 else ' lies'} above." if beyond else ""
    note(axes[-1, 0], f"Down and left is better.{_told_sizes(known)} Bars: 95 %, against the base.{left_out}")
    words = "Bits per byte of held-out documents against tokens per 1,000 bytes, a panel for each text and model."
    return Drawing(fig, f"{words}{_told_sizes(known)}{left_out} {' '.join(told)}")


def _domain(row: Mapping[str, Any]) -> tuple[str, str]:
    """What text and model of a record of `measured.read_domains` are called."""
    return DOMAIN_TEXTS.get(row["text"], row["text"]), row["model"].removesuffix("-Instruct")


def _told_sizes(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say how many new tokens small and large points have, and in which panels if large ones differ."""
    counts = {row["n"] for row in rows if row["n"]}
    places = {n: sorted({" with ".join(_domain(row)) for row in rows if row["n"] == n}) for n in counts - {min(counts)}}
    if not places:
        return f" N = {min(counts):,} new tokens." if counts else ""
    first, *others = sorted(places, key=lambda n: (-len(places[n]), n))
    large = "".join(f", but {n:,} in {' and '.join(places[n])}" for n in others)
    return f" Small points: N = {min(counts):,} new tokens; large: {first:,}{large}."


def _arm_style(arm: str) -> dict[str, Any]:
    """Colour by tokens and how their rows were made, filled and another marker after LoRA."""
    stem, tuned, moving = arm.partition("_lora")
    kinds = [name for name in DOMAIN_ARMS if "_lora" not in name]
    color = BASE_COLOR if stem == "base" else PALETTE[kinds.index(stem) - 1]
    marker = "s" if moving else "D" if tuned else "o"
    return {"color": color, "marker": marker, "linestyle": "none", "mfc": color if tuned else "white"}


def _told_domain(rows: Sequence[Mapping[str, Any]]) -> str:
    arms = {(row["arm"], row["n"]): row for row in rows}
    place = f"{', '.join(_domain(rows[0]))} (n = {len(rows[0]['bits'])} documents)"
    listed = [f"base {arms['base', 0]['bpb']:.3f} bits"]
    if ("base_lora", 0) in arms:
        listed.append(f"base + LoRA {arms['base_lora', 0]['bpb']:.3f}")
    if extended := [row for row in rows if row["n"]]:
        best = min(extended, key=lambda row: row["bpb"])
        name = f"{DOMAIN_ARMS[best['arm']]} with N = {best['n']:,}"
        listed.append(
            f"lowest of those with new tokens {best['bpb']:.3f} ({name}, {best['saved']:.0%} of tokens saved)"
        )
    return f"{place}: {', '.join(listed)}."
