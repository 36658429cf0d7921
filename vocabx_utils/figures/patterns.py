"""The main pattern of a chart in a sentence for its alternative text, computed from what the chart draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from vocabx_utils.analysis.mechanisms import gaussian_top_k_share
from vocabx_utils.figures.looks import visible
from vocabx_utils.names import variant_label


def lowest_pattern(named: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """Say which of some rows, each behind its name, has the lowest `kl_last` and which the lowest `bpb`."""
    rows = list(named)
    kl, bits = (min(rows, key=lambda pair: pair[1][key])[0] for key in ("kl_last", "bpb"))
    return f"{kl} has the lowest KL and {bits} the fewest bits per byte."


def forest_pattern(table: pd.DataFrame, digits: int = 3) -> str:
    """Say which difference is lowest and highest, and how many intervals exclude 0 (`results.forest_chart`)."""
    if table.empty:
        return "Nothing is drawn."
    low, high = (table.iloc[at] for at in (table["difference"].argmin(), table["difference"].argmax()))
    ends = [f"{row['model']} with {row['difference']:+.{digits}f}" for row in (low, high)]
    below, above = int((table["high"] < 0).sum()), int((table["low"] > 0).sum())
    return (
        f"The lowest is {ends[0]}, the highest {ends[1]}. Of {len(table)} intervals {below + above} exclude 0: {below} "
        f"below it and {above} above it."
    )


def failure_pattern(table: pd.DataFrame) -> str:
    """Say how many answers passed, and which class of failure is the most frequent (`results.failure_chart`)."""
    classes = [column for column in table.columns if column not in ("variant", "exceptions", "passed")]
    told = []
    for _, row in table.iterrows():
        counts = row[classes].astype(int)
        all_answers = int(row["passed"]) + int(counts.sum())
        most = f"most often {counts.idxmax()} ({counts.max()})" if counts.sum() else "no failure"
        told.append(f"{variant_label(row['variant'])} {int(row['passed'])} of {all_answers} passed, {most}")
    return f"{'; '.join(told)}."


def detectable_pattern(ax: Axes) -> str:
    """Say where each named curve of these axes begins and ends, in points (`results.detectable_chart`)."""
    told = []
    for line in ax.lines:
        x, y = (np.asarray(values, dtype=float) for values in line.get_data())
        known = np.isfinite(y)
        if line.get_transform() == ax.transData and known.any():  # a line across the whole axes is no curve
            (first, *_, last), (high, *_, low) = x[known][[0, -1]], y[known][[0, -1]]
            told.append(f"{line.get_label()}: {high:.1f} at {first:,.0f} problems, {low:.1f} at {last:,.0f}")
    return f"{'; '.join(told)}."


def share_pattern(shares: Mapping[str, np.ndarray], ks: Sequence[int], width: int) -> str:
    """Say which variants hold most and least of the change in their largest coordinates (`changes.share_chart`).

    It is told at the largest k of at most a tenth of the width.
    """
    at = max((n for n, k in enumerate(ks) if k <= width / 10), default=0)
    medians = {name: float(np.nanmedian(values[:, at])) for name, values in shares.items()}
    most, least = (choose(medians, key=medians.__getitem__) for choose in (max, min))
    ends = [f"{variant_label(name)} with {medians[name]:.3f}" for name in (most, least)]
    normal = gaussian_top_k_share(width, ks)[at]
    below = sum(value < normal for value in medians.values())
    return (
        f"At k = {ks[at]} of {width} the median share is highest for {ends[0]} and lowest for {ends[1]}; normal "
        f"coordinates have {normal:.3f}, more than {below} of {len(medians)} variants."
    )


def lens_pattern(table: pd.DataFrame) -> str:
    """Say what each reader expects after the last layer, and where its KL first stays below half of its middle one."""
    told = []
    for reader, part in table.groupby("reader", sort=False):
        part = part.sort_values("layer")
        last, kl = part.iloc[-1], part["kl"].to_numpy()
        half = float(np.median(kl)) / 2
        far = np.flatnonzero(kl >= half)
        near = part["layer"].iloc[far[-1] + 1] if len(far) and far[-1] + 1 < len(part) else None
        turn = f"below half of its median ({half:.2f}) from layer {near} on" if near is not None else "never near 0"
        who = f"{str(reader).partition(' ')[0]} at {visible(last['read'])}"
        told.append(f"{who}: {visible(last['top'][0])} with {last['probability']:.0%}, KL {max(kl[-1], 0):.2f}, {turn}")
    return f"After the last layer: {'; '.join(told)}."
