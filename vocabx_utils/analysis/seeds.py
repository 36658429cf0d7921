"""What repeated runs say: the spread of a metric over seeds, and differences of methods that share their seeds.

A seed decides the corpus's splits, the first rows and the order of the data. Two variants of one run share all of it,
so their difference is taken run by run: what the seed does to both cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from scipy.stats import ttest_ind

from vocabx_utils.intervals import CONFIDENCE, Interval, judge, mean_interval, shared_level


def read_collected(path: str) -> pd.DataFrame:
    """Read a table that `vocabx collect` has written, `.csv` or `.parquet`."""
    if path.endswith(".parquet"):
        return pd.read_parquet(path)
    kinds: Any = {"epoch": "Int64", "seed": "Int64", "variant": object, "part": object}
    return pd.read_csv(path, dtype=kinds, low_memory=False).fillna({"variant": "", "part": ""})


def last_values(table: pd.DataFrame, metric: str, stage: str = "03_phase1_training", part: str = "") -> pd.DataFrame:
    """Take a metric of each run and variant at its last epoch.

    Returns:
        One line a run (index: run and seed, in order), one column a variant; NaN where a run lacks a variant.

    Raises:
        ValueError: the table holds no such values; the message names the metrics that it does hold.
    """
    here = table[(table["stage"] == stage) & (table["part"] == part) & (table["variant"] != "")]
    found = here[here["metric"] == metric]
    if found.empty:
        known = ", ".join(sorted(here["metric"].unique())) or "none"
        raise ValueError(f"no values of {metric!r} for notebook {stage}, part {part!r}; there are: {known}.")
    in_order = found.sort_values("epoch", na_position="first", kind="stable")
    last = in_order.groupby(["run", "seed", "variant"])["value"].last()
    return last.unstack("variant")[list(found["variant"].unique())].sort_index(level=["seed", "run"])


def spread_over_seeds(values: pd.DataFrame, confidence: float = CONFIDENCE) -> pd.DataFrame:
    """Describe each variant over the runs of `last_values`: n, mean, sd, lowest and highest, and limits of the mean.

    The limits are Student's. One run bounds nothing: its limits are infinite and its sd is NaN.
    """
    rows = {}
    for variant, column in values.items():
        known, mean = column.dropna(), mean_interval(column.dropna(), confidence)
        ends = {"lowest": known.min(), "highest": known.max(), "low": mean.low, "high": mean.high}
        rows[variant] = {"n": len(known), "mean": mean.estimate, "sd": known.std(), **ends}
    return _by_variant(rows)


def _by_variant(rows: dict[Any, dict[str, Any]]) -> pd.DataFrame:
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("variant").astype({"n": int})


def paired_differences(values: pd.DataFrame, reference: str, confidence: float | None = None) -> pd.DataFrame:
    """Compare each variant with one of them, run by run: the mean difference with Student's limits, and what it says.

    Args:
        values: of `last_values`.
        reference: the variant whose values are subtracted.
        confidence: of each interval; by default wide enough for all comparisons together (Bonferroni).

    Returns:
        One line a variant: n (runs that have both), difference, low, high, sd of the differences, and `above`, the
        answer to "the variant lies above the reference".

    Raises:
        ValueError: the reference is not among the variants.
    """
    if reference not in values:
        raise ValueError(f"reference is {reference!r}; expected one of {', '.join(map(str, values.columns))}.")
    others = [name for name in values.columns if name != reference]
    level = shared_level(len(others)) if confidence is None else confidence
    rows = {}
    for name in others:
        gaps = (values[name] - values[reference]).dropna()
        found = mean_interval(gaps, level)
        ends = {"difference": found.estimate, "low": found.low, "high": found.high, "sd": gaps.std()}
        rows[name] = {"n": len(gaps), **ends, "above": judge(found)}
    return _by_variant(rows)


def unpaired_difference(first: Sequence[float], second: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Return the difference of two means with Welch's limits, as if the two had no run in common."""
    found = ttest_ind(first, second, equal_var=False).confidence_interval(confidence)
    return Interval(float(found.low + found.high) / 2, float(found.low), float(found.high))
