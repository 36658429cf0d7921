"""The two figures of phase 2, drawn like the thesis's: losses by epoch, the change of stage marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["epoch_curve", "plot_losses", "stage_boundaries"]


def epoch_curve(losses: pd.DataFrame) -> pd.DataFrame:
    """Put the epochs of all stages on one axis.

    Args:
        losses: ``FineTuned.losses``.

    Returns:
        Columns stage, epoch (from 0, running through the stages), train, validation (nats per learned token). The
        start of a later stage repeats the end of the one before and is left out.
    """
    import pandas as pd

    rows: list[tuple[str, int, float, float]] = []
    offset = 0
    for stage, part in losses[losses.kind == "epoch"].groupby("stage", sort=False):
        columns = (part.epoch.tolist(), part.loss.tolist(), part.validation_loss.tolist())
        for epoch, train, validation in zip(*columns, strict=True):
            if epoch or not rows:
                rows.append((str(stage), offset + int(epoch), train, validation))
        offset += int(max(columns[0]))
    return pd.DataFrame(rows, columns=["stage", "epoch", "train", "validation"])


def stage_boundaries(curve: pd.DataFrame) -> list[int]:
    """Epochs at which one stage ends and the next begins."""
    return [int(epoch) for epoch in curve.groupby("stage", sort=False).epoch.max()[:-1]]


def plot_losses(
    curves: Mapping[str, pd.DataFrame], styles: Mapping[str, Mapping[str, Any]], ax: Axes | None = None
) -> Axes:
    """Draw training losses solid and validation losses dashed, a dotted line where a stage ends.

    Args:
        curves: ``epoch_curve`` by label.
        styles: colour and marker by label.
        ax: where to draw.
    """
    import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots()
    for label, curve in curves.items():
        style = {name: value for name, value in styles[label].items() if name != "linestyle"}
        ax.plot(curve.epoch, curve.train, linestyle="-", label=label, **style)
        ax.plot(curve.epoch, curve.validation, linestyle="--", alpha=0.8, **style)
        for epoch in stage_boundaries(curve):
            ax.axvline(epoch, color="0.4", linestyle=":", linewidth=1)
    ax.set_xlabel("epoch")
    ax.set_ylabel("cross-entropy (nats per token)")
    ax.legend(title="training solid, validation dashed", fontsize="small")
    return ax
