"""What a share of cross-entropy buys: KL after merged spans against bits per byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from vocabx_utils.figures.labels import name_points
from vocabx_utils.figures.patterns import lowest_pattern
from vocabx_utils.figures.theme import FAINT, Drawing, note, plain_ticks, variant_style
from vocabx_utils.measured import ce_line
from vocabx_utils.names import variant_label


def draw_tradeoff(settings: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Drawing:
    """Draw KL after merged spans against bits per byte, one panel a setting; a line joins what differs in lambda alone.

    The untrained start lies far above all others and is left out; so are settings without another mean start.

    Args:
        settings: by title, rows by variant with `kl_last` (nats) and `bpb`; see `measured.by_setting`.
    """
    shown = {
        title: {name: row for name, row in rows.items() if name.startswith("mean_") and name != "mean_untrained"}
        for title, rows in settings.items()
    }
    shown = {title: rows for title, rows in shown.items() if rows}
    fig, axes = plt.subplots(1, len(shown), figsize=(4.4 * len(shown) + 1.6, 3.9), squeeze=False)
    told, drawn, places, ends = [], {}, [], []
    for ax, (title, rows) in zip(axes[0], shown.items(), strict=True):
        line = ce_line(rows)
        _, kl, bits = np.reshape(line, (-1, 3)).T
        (joined,) = ax.plot(kl, bits, "-o", color=FAINT, markersize=4, zorder=1)
        drawn["mean init, KL (last) + λ CE"] = joined
        points = [(x, y) for _, x, y in line]
        ends.append({at: f"λ = {line[at][0]:g}" for at in sorted({0, len(line) - 1}) if line})
        for name, row in rows.items():
            if (row["kl_last"], row["bpb"]) not in points[: len(line)]:
                points.append((row["kl_last"], row["bpb"]))
                look = {key: value for key, value in variant_style(name).items() if key != "linestyle"}
                (drawn[variant_label(name)],) = ax.plot(row["kl_last"], row["bpb"], linestyle="none", **look)
        ax.set(title=title, xlabel="KL at the last subtoken (nats)", ylabel="bits per byte", xscale="log")
        ax.margins(x=0.16)  # room for names on the left
        plain_ticks(ax, (0.2, 0.5, 1, 2, 5))
        told.append(f"In {title}, {lowest_pattern((variant_label(name), row) for name, row in rows.items())}")
        places.append(np.array(points))
    axes[0, -1].legend(list(drawn.values()), list(drawn), loc="upper left", bbox_to_anchor=(1, 1), fontsize="small")
    above = " The untrained start lies far above." * any("mean_untrained" in rows for rows in settings.values())
    note(axes[0, 0], f"Down and left is better. One run for each point.{above}")
    for ax, place, names in zip(axes[0], places, ends, strict=True):
        name_points(ax, place, names, color=FAINT)  # of the line, whatever stands beside them
    words = "KL at the last subtoken (horizontal, logarithmic) against bits per byte, one point for each objective."
    return Drawing(fig, f"{words}{above} {' '.join(told)}")
