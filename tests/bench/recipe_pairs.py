"""What each lever does alone: pairs of runs of a sweep that differ in what a family tries and in nothing else.

How near a family comes to the best of each column depends on the rates that its grid holds; pairs do not. All numbers
are read from the lines of the sweeps, in nats, bits per byte, and margins (`recipe_verdict.MARGINS`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bench_parts import table_of
from recipe_runs import GRID, Run, parse_run
from recipe_verdict import MARGINS

from vocabx_utils.measured import RECIPE_COLUMNS, RECIPES

PAIRED = ("r2", "r3", "r4", "kl_hidden", "fade", "equal", "sampled", "texts")
"""Families that add one thing to the settings of another run."""
_LIGHT = 0.1  # a hidden weight up to here leaves the KL the larger part of the loss
_OFF_BUDGET = 0.01  # share of the budget
Sweeps = Mapping[str, Sequence[Mapping[str, Any]]]


def without(run: Run) -> tuple[str, str]:
    """What a run of such a family tries, in words, and the settings of the run that does not try it."""
    label = RECIPES[run.family]
    if run.family == "kl_hidden":
        weight = float(re.findall(r"_hidden([\d.]+)", run.objective)[0])
        label += f", weight {_LIGHT:g} or less" if weight <= _LIGHT else f", weight above {_LIGHT:g}"
        return label, re.sub(r"_hidden[\d.]+", "", run.settings)
    if run.family == "r2":
        return label, re.sub(r"_end[\dx.]+", "", run.settings)
    if run.family in ("r3", "r4"):  # rows averaged, head rows fitted
        return label, ":".join(word for word in run.settings.split(":") if not word.startswith(("avg", "fit")))
    if run.family == "equal" and run.data == "texts":
        label += ", in whole texts"
    # what the other families try is a word of their settings, which is also their name
    return label, ":".join(word for word in run.settings.split(":") if word != run.family)


def pairs(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """By what is tried, (P, 3) changes of the columns that it makes: shares of both KL, and bits per byte."""
    by_settings = {row["settings"]: row for row in rows if row.get("bpb") is not None}
    found: dict[str, list[list[float]]] = {}
    for row in (row for row in by_settings.values() if row["family"] in PAIRED):
        label, settings = without(parse_run(row["run"]))
        if (other := by_settings.get(settings)) is not None:
            changes = [
                row[column] - other[column] if column == "bpb" else row[column] / other[column] - 1
                for column in MARGINS
            ]
            found.setdefault(label, []).append(changes)
    return {label: np.array(changes) for label, changes in found.items()}


def pair_table(sweeps: Sweeps) -> str:
    """Tabulate `pairs` of every setting: median, lowest and highest change."""
    found = {setting: pairs(rows) for setting, rows in sweeps.items()}
    labels = list(dict.fromkeys(without(run)[0] for family in PAIRED for run in GRID[family]))
    lines = []
    for label in labels:
        for setting, of_setting in found.items():
            if label in of_setting:
                changes = of_setting[label]
                cells = [_spread(changes[:, k], column) for k, column in enumerate(MARGINS)]
                lines.append([label, setting, str(len(changes)), *cells])
    return table_of(["what is tried", "setting", "pairs", *RECIPE_COLUMNS.values()], lines)


def _spread(changes: np.ndarray, column: str) -> str:
    median, low, high = np.median(changes), changes.min(), changes.max()
    if column == "bpb":
        return f"{median:+.4f} ({low:+.4f} to {high:+.4f})"
    return f"{100 * median:+.0f} % ({100 * low:+.0f} to {100 * high:+.0f} %)"


def notes(sweeps: Sweeps) -> str:
    """Name runs of the grid that no sweep holds, families whose runs miss the budget, and sweeps of headers by file."""
    return "\n".join(f"* {line}" for line in (_missing(sweeps), _off_budget(sweeps), _by_file(sweeps)) if line)


def _missing(sweeps: Sweeps) -> str:
    told = []
    for setting, rows in sweeps.items():
        there = {row["run"] for row in rows}
        lacking = {family: sum(run.name not in there for run in runs) for family, runs in GRID.items()}
        words = [f"{count} of {len(GRID[family])} of {RECIPES[family]}" for family, count in lacking.items() if count]
        told += [f"{setting} lacks {', '.join(words)}"] if words else []
    return f"Not measured: {'; '.join(told)}." if told else "Every run of the grid is there, in every setting."


def _off_budget(sweeps: Sweeps) -> str:
    off: dict[str, list[float]] = {}
    for row in (row for rows in sweeps.values() for row in rows if "tokens" in row):
        share = (row["tokens"] + row["sampled"]) / row["budget"] - 1
        if abs(share) > _OFF_BUDGET:
            run = parse_run(row["run"])
            label = without(run)[0] if run.family in PAIRED else RECIPES[run.family]
            off.setdefault(label, []).append(100 * share)
    words = [f"{label} ({min(shares):+.1f} to {max(shares):+.1f} %)" for label, shares in off.items()]
    limit = f"{100 * _OFF_BUDGET:.0f} %"
    return f"Tokens read and written differ from the budget by more than {limit} in: {'; '.join(words)}." if off else ""


def _by_file(sweeps: Sweeps) -> str:
    """Say of which settings of headers the runs were read on the split that is disjoint by file alone."""
    found = [s for s, rows in sweeps.items() if s.endswith("headers") and any(r.get("split") == "sweep" for r in rows)]
    return f"Read on the sweep split by file, not by package: {', '.join(found)}." if found else ""
