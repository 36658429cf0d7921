"""Losses by epoch: phase 1, and fine-tuning beside the values that the thesis publishes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from vocabx_utils import thesis
from vocabx_utils.figures.theme import Drawing, cycle_style, new_axes, note, variant_style, whole_epochs
from vocabx_utils.names import variant_label

Metrics = Mapping[str, Sequence[Mapping[str, Any]]]
"""Lines of `metrics.jsonl` of phase 1 by variant."""
Curves = Mapping[str, pd.DataFrame]
"""What `epoch_curve` returns, by variant."""

_NATS = "cross-entropy (nats per token)"
_POSITION = "KL (nats per position)"
_BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
_ONE_RUN = "one run for each variant (no bands)"


_METRICS: dict[str, tuple[str, str, tuple[str, ...], str | None]] = {
    "ce": ("cross-entropy in phase 1", _NATS, ("n_old_targets", "n_new_targets"), "train_ce"),
    "kl_identical": ("KL at identical tokens", _POSITION, ("n_identical",), None),
    "kl_last": ("KL at the last subtoken of merged spans", _POSITION, ("n_last",), None),
    "kl_pooled": ("KL pooled as in the thesis (identical and first)", _POSITION, ("n_identical", "n_first"), None),
}
"""Validation metrics: title, unit, the counts of their positions, and the name on training data if that is drawn."""


def metric_chart(
    metrics: Metrics, key: str, ax: Axes | None = None, *, label: str = "", train_key: str | None = None
) -> Axes:
    """Draw a validation metric of phase 1 by epoch, one curve for each variant; missing values leave a gap.

    The metric `train_key` of the training data is drawn solid, as in the thesis; validation is dashed then.
    """
    ax = new_axes(ax)
    for variant, lines in metrics.items():
        style = variant_style(variant) | {"label": variant_label(variant)}
        held_out = {"linestyle": "--"} if train_key else {}
        for name, look in ((key, held_out), (train_key, {"linestyle": "-", "lw": 1.0, "alpha": 0.7, "label": None})):
            points = [(line["epoch"], line[name]) for line in lines if name and _finite(line.get(name))]
            if points:
                ax.plot(*zip(*points, strict=True), **{**style, **look})
    whole_epochs(ax)
    ax.set(xlabel="epoch", ylabel=label or key)
    return ax


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))


def draw_metric(metrics: Metrics, key: str) -> Drawing:
    """Draw `ce`, `kl_identical`, `kl_last` or `kl_pooled` of phase 1 by epoch."""
    title, unit, counted, train = _METRICS[key]
    fig, ax = plt.subplots(figsize=(7.6, 4.2))
    metric_chart(metrics, key, ax, label=unit, train_key=train)
    ax.set_title(title)
    ax.legend(**_BESIDE)
    counts = next(iter(metrics.values()))[-1]
    places = sum(counts.get(name, 0) for name in counted)
    both = " Training solid, validation dashed." if train else ""
    note(ax, f"Validation, n = {places:,.0f} positions, {_ONE_RUN}.{both}")
    ends = [f"{variant_label(v)} {m[0][key]:.3f} to {m[-1][key]:.3f}" for v, m in metrics.items() if key in m[-1]]
    alt = f"Line chart of {title} by epoch on validation data; first to last: {'; '.join(ends)}."
    return Drawing(fig, alt)


def epoch_curve(losses: pd.DataFrame) -> pd.DataFrame:
    """Put the epochs of all stages of fine-tuning on one axis: lines of `losses.jsonl` with their `stage`, in order.

    Returns:
        Columns stage, epoch (from 0, running through the stages), train and validation (nats per learned token; NaN
        where not measured) and targets (validation tokens, 0 where not written down). The start of a later stage
        repeats the end of the one before and is left out.
    """
    parts: list[pd.DataFrame] = []
    offset = 0
    for stage, part in losses[losses["kind"] == "epoch"].groupby("stage", sort=False):
        counted = part["validation_targets"].fillna(0).astype(int) if "validation_targets" in part else 0
        columns: dict[str, Any] = {
            "stage": stage,
            "epoch": offset + part["epoch"].astype(int),
            "train": part["loss"].astype(float),
            "validation": part["validation_loss"].astype(float),
            "targets": counted,
        }
        parts.append(pd.DataFrame(columns)[(part["epoch"] > 0) | (not parts)])
        offset += int(part["epoch"].max())
    return pd.concat(parts, ignore_index=True)


def stage_ends(curve: pd.DataFrame) -> dict[str, int]:
    """Return the last epoch of each stage that another one follows."""
    ends = curve.groupby("stage", sort=False)["epoch"].max().iloc[:-1]
    return {str(stage): int(epoch) for stage, epoch in ends.items()}


def _published_curves() -> dict[str, pd.DataFrame]:
    """Return the losses that the thesis publishes for sequential fine-tuning, in the form of `epoch_curve`."""
    curves = {}
    for name, part in thesis.sequential_table().groupby("variant"):
        curve = part.pivot(index="epoch", columns="split", values="loss").sort_index().reset_index()
        before = curve["epoch"] <= thesis.NUMBERS["embedding_head_epochs"]
        curves[str(name)] = curve.assign(stage=np.where(before, "a", "c"), targets=0)
    return curves


def loss_chart(
    curves: Curves, ax: Axes | None = None, *, splits: bool = True, marked: Collection[str] = ("a",)
) -> Axes:
    """Draw training losses solid and validation losses dashed, one epoch after the other through all stages.

    With `splits` the legend names both lines of a variant. The end of a `marked` stage, if another follows, is dotted.
    """
    ax = new_axes(ax)
    for name, curve in curves.items():
        label = variant_label(name)
        for key, line in (("train", "-"), ("validation", "--")):
            known = curve[np.isfinite(curve[key])]
            shown = f"{label}, {key}" if splits else label if key == "train" else None
            if len(known):
                ax.plot(known["epoch"], known[key], **variant_style(name) | {"linestyle": line}, label=shown)
    ends = {at for curve in curves.values() for stage, at in stage_ends(curve).items() if stage in marked}
    for end in sorted(ends):
        ax.axvline(end, color="0.4", ls=":", marker="", lw=1)
    whole_epochs(ax)
    ax.set(xlabel="epoch (stages one after the other)", ylabel=_NATS)
    return ax


def draw_finetuning(curves: Curves) -> Drawing:
    """Draw variants that went through stages a and b: embedding and head, then LoRA."""
    fig, ax = plt.subplots(figsize=(8.4, 4.2))
    loss_chart(curves, ax).set_title("fine-tuning: embedding and head, then LoRA")
    ax.legend(**_BESIDE, fontsize="small")
    note(
        ax,
        f"Solid: training. Dashed: {_counted(curves)}, {_ONE_RUN}. Dotted line: end of stage a. Models with and "
        "without new tokens count other tokens.",
    )
    alt = (
        "Line chart of training and validation loss by epoch of fine-tuning; validation, first to last: "
        f"{_first_to_last(curves)}."
    )
    return Drawing(fig, alt)


def draw_sequential(curves: Curves) -> Drawing:
    """Draw variants whose blocks moved, one half after the other, beside the published ones."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.6, 5.2))
    published = _published_curves()
    for ax, some, title in ((left, published, "thesis"), (right, curves, "this run")):
        loss_chart(some, ax).set_title(title)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize="small")
    note(
        left,
        "Left: values of the thesis (fig:sequential_finetune). Right: this run. Solid: training. Dashed: "
        f"{_counted(curves)}, {_ONE_RUN}. Dotted line: end of stage a. Other models, texts and tokens: compare shapes.",
    )
    alt = (
        f"Two line charts of losses in sequential fine-tuning. Thesis, validation: {_first_to_last(published)}, rising "
        f"in the last epoch. This run, validation, first to last: {_first_to_last(curves)}."
    )
    return Drawing(fig, alt)


def draw_sequential_published() -> Drawing:
    """Draw the published losses of sequential fine-tuning alone."""
    fig, ax = plt.subplots(figsize=(8.4, 4.2))
    loss_chart(_published_curves(), ax).set_title("sequential fine-tuning, published values")
    ax.legend(**_BESIDE, fontsize="small")
    note(
        ax,
        "Values of the thesis (fig:sequential_finetune), one run for each model (no bands; it does not say how many "
        "texts). Solid: training. Dashed: validation. Dotted line: end of embedding-and-head training.",
    )
    alt = (
        "Line chart of the thesis's losses in sequential fine-tuning by epoch: in the last epoch training loss drops "
        "to about 0.39 for both extended models while validation loss rises."
    )
    return Drawing(fig, alt)


def _counted(curves: Curves) -> str:
    """How many validation tokens, as far as the run wrote them down; tokenizers cut the same texts differently."""
    counts = sorted({count for curve in curves.values() for count in curve["targets"] if count})
    return f"validation, n = {' or '.join(f'{count:,}' for count in counts)} tokens" if counts else "validation"


def _first_to_last(curves: Curves) -> str:
    """First and last validation loss of each variant in words."""
    held = {name: curve["validation"][np.isfinite(curve["validation"])].tolist() for name, curve in curves.items()}
    return "; ".join(f"{variant_label(name)} {v[0]:.3f} to {v[-1]:.3f}" for name, v in held.items() if v)


def draw_wrong_pairs(losses: pd.DataFrame) -> Drawing:
    """Draw the KL of wrong pairs against that of the true partners.

    Args:
        losses: columns `order` (the reading of "smallest offsets"), `wrong place` and `true partner`, in nats.
    """
    fig, ax = plt.subplots(figsize=(5, 4.2))
    for at, (order, part) in enumerate(losses.groupby("order")):
        style = cycle_style(at) | {"linestyle": "none", "alpha": 0.7, "label": f"smallest by {order}, n = {len(part)}"}
        ax.plot(part["true partner"], part["wrong place"], **style)
    end = max(1.0, 1.1 * float(losses["true partner"].max())) if len(losses) else 1.0
    ax.plot([0, end], [0, end], color="0.4", linewidth=1, marker="", linestyle="--", label="equal cost")
    ax.set(xlabel="KL at the true partner (nats)", ylabel="KL at the wrong place (nats)")
    ax.set_title("What a wrong pair costs")
    ax.legend(loc="upper right")
    above = int((losses["wrong place"] > losses["true partner"]).sum())
    alt = (
        f"Scatter of {len(losses)} wrong pairs: the KL at the wrong place over the KL at the true partner, with the "
        f"diagonal. {above} of {len(losses)} points lie above it, where the wrong place costs more."
    )
    return Drawing(fig, alt)
