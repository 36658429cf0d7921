"""Losses by epoch: phase 1, and fine-tuning beside the values that the thesis publishes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from vocabx_utils import thesis
from vocabx_utils.figures.theme import (
    LEAST_KL,
    Drawing,
    cycle_style,
    legend_above,
    legend_by_end,
    log_axes,
    new_axes,
    note,
    variant_style,
    whole_epochs,
)
from vocabx_utils.names import metric_label, published_label, variant_label

Metrics = Mapping[str, Sequence[Mapping[str, Any]]]
"""Lines of `metrics.jsonl` of phase 1 by variant."""
Curves = Mapping[str, pd.DataFrame]
"""What `epoch_curve` returns, by variant."""

_NATS = "cross-entropy (nats per token)"
_POSITION = "KL (nats per position)"
_DIFFER = "How far student and teacher differ"
_BESIDE: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1, 0.5)}
_ONE_RUN = "one run for each variant (no bands)"

_METRICS: dict[str, tuple[str, str, tuple[str, ...], str | None]] = {
    "ce": ("How well the next token is predicted", _NATS, ("n_old_targets", "n_new_targets"), "train_ce"),
    "kl_identical": (f"{_DIFFER} after a token both have", _POSITION, ("n_identical",), None),
    "kl_last": (f"{_DIFFER} after a new token", _POSITION, ("n_last",), None),
    "kl_pooled": (f"{_DIFFER}, pooled as in the thesis", _POSITION, ("n_identical", "n_first"), None),
}
"""Validation metrics: title, unit, the counts of their positions, and the name on training data if that is drawn."""


def metric_chart(
    metrics: Metrics, key: str, ax: Axes | None = None, *, label: str = "", train_key: str | None = None
) -> Axes:
    """Draw a validation metric of phase 1 by epoch, one curve for each variant; missing values leave a gap.

    The metric `train_key` of the training data is a thin line without markers, so that the validation curve of each
    variant keeps its own marker and line. A variant that was not trained is a dotted line at its value: what lies
    below it was learned.
    """
    ax = new_axes(ax)
    last = max((line["epoch"] for lines in metrics.values() for line in lines), default=0)
    for variant, lines in metrics.items():
        style = variant_style(variant) | {"label": variant_label(variant)}
        seen: dict[str, Any] = {"linestyle": "-", "lw": 0.8, "marker": "", "label": None}
        for name, look in ((train_key, seen), (key, {})):
            points = [(line["epoch"], line[name]) for line in lines if name and _finite(line.get(name))]
            if len(lines) == 1 and points and name == key:
                points, look = [*points, (last, points[0][1])], {"linestyle": ":", "markevery": [0]}
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
    legend_by_end(ax, **_BESIDE)
    counts = next(iter(metrics.values()))[-1]
    places = sum(counts.get(name, 0) for name in counted)
    both = " Thin, without markers: training." if train else ""
    kinds = " and ".join(name.removeprefix("n_").replace("_", " ") for name in counted)
    dotted = " Dotted: not trained." * any(line.get_linestyle() == ":" for line in ax.lines)
    note(ax, f"Lower is better. Validation, n = {places:,.0f} positions ({kinds}), {_ONE_RUN}.{both}{dotted}")
    ends = [f"{variant_label(v)} {m[0][key]:.3f} to {m[-1][key]:.3f}" for v, m in metrics.items() if key in m[-1]]
    alt = (
        f"Line chart of {metric_label(key)} by epoch of phase 1 on validation data, a curve for each variant. From the "
        f"first to the last epoch: {'; '.join(ends)}."
    )
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


def _published_curves() -> dict[str, pd.DataFrame]:
    """Return the losses that the thesis publishes for sequential fine-tuning, in the form of `epoch_curve`."""
    curves = {}
    for name, part in thesis.sequential_table().groupby("variant"):
        curve = part.pivot(index="epoch", columns="split", values="loss").sort_index().reset_index()
        before = (curve["epoch"] <= thesis.NUMBERS["embedding_head_epochs"]) & (name != "base")  # which has no stage a
        curves[str(name)] = curve.assign(stage=np.where(before, "a", "c"), targets=0)
    return curves


def _stages(curve: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame, int]]:
    """Yield each stage of a curve, its rows, and the epoch at which it begins."""
    begun = 0
    for stage, part in curve.groupby("stage", sort=False):
        yield str(stage), part, begun
        begun = int(part["epoch"].max())


def _places(curves: Curves) -> dict[str, tuple[int, int]]:
    """First and last epoch of each stage on an axis that all curves share, wherever a curve enters it."""
    length: dict[str, int] = {}
    for stage, part, begun in (found for curve in curves.values() for found in _stages(curve)):
        length[stage] = max(length.get(stage, 0), int(part["epoch"].max()) - begun)
    ends = dict(zip(sorted(length), accumulate(length[stage] for stage in sorted(length)), strict=True))
    return {stage: (end - length[stage], end) for stage, end in ends.items()}


def _shift(curve: pd.DataFrame, places: Mapping[str, tuple[int, int]]) -> pd.Series:
    """Epochs of a curve, each stage moved to its place; a first row, before any training, moves with its stage."""
    return pd.concat([part["epoch"] - begun + places[stage][0] for stage, part, begun in _stages(curve)])


def loss_chart(curves: Curves, ax: Axes | None = None, label: Callable[[str], str] = variant_label) -> Axes:
    """Draw training losses solid and validation losses dashed, one epoch after the other through all stages.

    All curves share one axis: one that enters at a later stage begins there. The end of stage a, if another follows, is
    dotted and named. `label` spells a variant.
    """
    ax = new_axes(ax)
    places = _places(curves)
    for name, curve in curves.items():
        epochs = _shift(curve, places)
        for key, line, told in (("train", "-", label(name)), ("validation", "--", None)):
            known = np.isfinite(curve[key])
            if known.any():
                style = variant_style(name) | {"linestyle": line, "label": told}
                ax.plot(epochs[known], curve[key][known], **style)
    ax.margins(y=0.1)
    if "a" in places and len(places) > 1:
        end = places["a"][1]
        ax.axvline(end, color="0.4", ls=":", marker="", lw=1)
        beside: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        ax.annotate("end of stage a ", (end, 1), (-2, -2), ha="right", va="top", fontsize="small", **beside)
    whole_epochs(ax)
    ax.set(xlabel="epoch (stages one after the other)", ylabel=_NATS)
    return ax


def draw_finetuning(curves: Curves) -> Drawing:
    """Draw variants that went through stages a and b: embedding and head, then LoRA."""
    fig, ax = plt.subplots(figsize=(9.2, 4.2))
    loss_chart(curves, ax).set_title("Fine-tuning: embedding and head (stage a), then LoRA (stage b)")
    legend_by_end(ax, **_BESIDE)
    note(
        ax,
        f"Lower is better. Solid: training; dashed: {_counted(curves)}, {_ONE_RUN}. What has no stage a begins at its "
        "end. Models with and without new tokens count other tokens: compare the shape of their curves.",
    )
    alt = (
        "Line chart of training and validation loss by epoch of fine-tuning, a colour for each variant; those without "
        f"stage a begin at its end. Validation, first to last: {_first_to_last(curves)}."
    )
    return Drawing(fig, alt)


def draw_sequential(curves: Curves) -> Drawing:
    """Draw variants whose blocks moved, one half after the other, beside the published ones."""
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.6, 4.6))
    published = _published_curves()
    for ax, some, title, label in (
        (left, published, "thesis", published_label),
        (right, curves, "this run", variant_label),
    ):
        loss_chart(some, ax, label).set_title(title)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=1 if len(some) < 2 else 2)
    note(
        left,
        "Left: values of the thesis (fig:sequential_finetune). Right: this run. Solid: training; dashed: "
        f"{_counted(curves)}, {_ONE_RUN}. After stage a one half of the blocks moves, then the other. Other models, "
        "texts and tokens: compare shapes.",
    )
    alt = (
        "Two line charts of losses in sequential fine-tuning. Thesis, validation: "
        f"{_first_to_last(published, published_label)}, rising in the last epoch. This run, validation, first to last: "
        f"{_first_to_last(curves)}."
    )
    return Drawing(fig, alt)


def draw_sequential_published() -> Drawing:
    """Draw the published losses of sequential fine-tuning alone."""
    fig, ax = plt.subplots(figsize=(8.4, 4.2))
    title = "Thesis: in the last epoch training loss falls and validation loss rises"
    loss_chart(_published_curves(), ax, published_label).set_title(title)
    legend_by_end(ax, **_BESIDE)
    note(
        ax,
        "Values of the thesis (fig:sequential_finetune), one run for each model (no bands; it does not say how many "
        "texts). Solid: training; dashed: validation. Stage a: embedding and head; then one half of the blocks, then "
        "the other. The base model has no stage a.",
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


def _first_to_last(curves: Curves, label: Callable[[str], str] = variant_label) -> str:
    """First and last validation loss of each variant in words."""
    held = {name: curve["validation"][np.isfinite(curve["validation"])].tolist() for name, curve in curves.items()}
    return "; ".join(f"{label(name)} {v[0]:.3f} to {v[-1]:.3f}" for name, v in held.items() if v)


def draw_wrong_pairs(losses: pd.DataFrame) -> Drawing:
    """Draw the KL of wrong pairs against that of the true partners, both logarithmic, for most true ones are near 0.

    Args:
        losses: columns `order` (the reading of "smallest offsets"), `wrong place` and `true partner`, in nats, and
            `text`, the number of the text that holds the pair.
    """
    fig, ax = plt.subplots(figsize=(5.6, 4.6))
    costs = losses[["true partner", "wrong place"]].astype(float).clip(lower=LEAST_KL)
    for at, (order, part) in enumerate(losses.groupby("order")):
        style = cycle_style(at) | {"linestyle": "none", "alpha": 0.7, "label": f"smallest by {order}, n = {len(part)}"}
        ax.plot(*costs.loc[part.index].to_numpy().T, **style)
    across, up = (
        (0.7 * costs[name].min(), 1.5 * costs[name].max()) if len(costs) else (LEAST_KL, 1.0) for name in costs
    )
    ends = [min(across[0], up[0]), max(across[1], up[1])]
    ax.plot(ends, ends, color="0.4", linewidth=1, marker="", linestyle="--", label="equal cost")
    log_axes(ax, across, up)
    ax.set(xlabel="KL at the true partner (nats)", ylabel="KL at the wrong place (nats)")
    ax.set_title("What a wrong pair costs")
    legend_above(fig, {str(line.get_label()): line for line in ax.lines}, columns=2)  # pairs lie in every corner
    texts = f"{losses['text'].nunique()} text{'s' * (losses['text'].nunique() != 1)}"
    low = (losses[list(costs)] < LEAST_KL).any(axis=None)
    edge = f" Below {LEAST_KL:g} nats: drawn at {LEAST_KL:g}." if low else ""
    note(ax, f"n = {len(losses)} pairs of {texts}; those of one text are not independent.{edge}")
    above = int((losses["wrong place"] > losses["true partner"]).sum())
    alt = (
        f"Scatter of {len(losses)} wrong pairs of {texts}: the KL at the wrong place over the KL at the true "
        f"partner, both logarithmic, with the diagonal. {above} of {len(losses)} points lie above it, where the wrong "
        "place costs more."
    )
    return Drawing(fig, alt)
