"""Figures of losses by epoch: phase 1, LoRA, and sequential fine-tuning beside the published values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vocabx_utils import thesis
from vocabx_utils.analysis import charts, plots
from vocabx_utils.analysis.drawings import Drawing, FigureSpec
from vocabx_utils.files import read_json, read_jsonl
from vocabx_utils.runs import MissingStageError, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FIGURES", "LossPoint", "read_curve"]

_NATS = "cross-entropy (nats per token)"
_COUNTED = {
    "ce": ("n_old_targets", "n_new_targets"),
    "kl_identical": ("n_identical",),
    "kl_last": ("n_last",),
    "kl_pooled": ("n_identical", "n_first"),
}

# --- phase 1 -------------------------------------------------------------------------------------------------


def _phase1(run: Run, key: str, label: str, title: str, train_key: str | None = None) -> Drawing:
    import matplotlib.pyplot as plt

    metrics = _phase1_metrics(run)
    fig, ax = plt.subplots(figsize=(7.6, 4.2))
    charts.metric_chart(metrics, key, ax, label=label, train_key=train_key)
    ax.set_title(title)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    counts = next(iter(metrics.values()))[-1]
    places = sum(counts.get(name, 0) for name in _COUNTED[key])
    both = " Training solid, validation dashed." if train_key else ""
    plots.note(ax, f"Validation, n = {places:,.0f} positions, one run for each variant (no bands).{both}")
    ends = [f"{plots.variant_label(v)} {m[0][key]:.3f} to {m[-1][key]:.3f}" for v, m in metrics.items() if key in m[-1]]
    return Drawing(fig, f"Line chart of {title} by epoch on validation data; first to last: {'; '.join(ends)}.")


def _phase1_metrics(run: Run) -> dict[str, list[dict[str, Any]]]:
    names = run.variants("03")
    if not names:
        run.require("03")
    metrics = {name: read_jsonl(run.require("03", f"{name}/metrics.jsonl")) for name in names}
    return {name: lines for name, lines in metrics.items() if lines}


# --- fine-tuning -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LossPoint:
    """Losses of a variant of notebook 04 at the end of one epoch, in nats per token.

    Attributes:
        stage: `a`, `b`, `c1` or `c2`; the point of epoch 0 bears the name of the first one.
        epoch: counted through all stages.
        train: mean of the epoch, None before training.
        validation: after the epoch, None where it was not measured.
        targets: validation tokens, 0 where the run did not write them down.
    """

    stage: str
    epoch: int
    train: float | None
    validation: float | None
    targets: int = 0


def read_curve(run: Run, variant: str) -> list[LossPoint]:
    """Read the losses of a variant of notebook 04, stages one after the other.

    A variant that branches off another one begins with the stages of that one. The start of a later stage repeats
    the end of the one before and is left out.

    Args:
        run: the run.
        variant: its name.

    Returns:
        Points in order, none if nothing was logged.
    """
    return _joined(_stage_lines(run, variant))


def _stage_lines(run: Run, variant: str, upto: str = "") -> list[tuple[str, list[dict[str, Any]]]]:
    folder = run.folder / "04_fine_tuning" / variant
    origin = read_json(folder / "key.json").get("origin", {}) if (folder / "key.json").exists() else {}
    found = _stage_lines(run, origin["variant"], origin["stage"]) if origin.get("kind") == "branch" else []
    for path in sorted(folder.glob("*/losses.jsonl")):
        if not upto or path.parent.name <= upto:
            lines = [line for line in read_jsonl(path) if line.get("kind", "epoch") == "epoch"]
            found.append((path.parent.name, lines))
    return found


def _joined(stages: list[tuple[str, list[dict[str, Any]]]]) -> list[LossPoint]:
    points: list[LossPoint] = []
    offset = 0
    for stage, lines in stages:
        for line in lines:
            if line["epoch"] or not points:
                train, held = _known(line.get("loss")), _known(line.get("validation_loss"))
                count = int(line.get("validation_targets", 0))
                points.append(LossPoint(stage, offset + line["epoch"], train, held, count))
        offset += max((line["epoch"] for line in lines), default=0)
    return points


def _known(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else None


def _curves(run: Run, wanted: Callable[[list[LossPoint]], bool], what: str) -> dict[str, list[LossPoint]]:
    names = run.variants("04")
    if not names:
        run.require("04")
    curves = {name: read_curve(run, name) for name in names}
    found = {name: curve for name, curve in curves.items() if curve and wanted(curve)}
    if not found:
        raise MissingStageError(
            f"Run {run.name!r} has no variant with {what}; name one in the parameters of notebook 04_fine_tuning."
        )
    return found


def _blocks_moved(curve: list[LossPoint]) -> bool:
    return any(point.stage.startswith("c") for point in curve)


def _draw_curve(ax: Axes, name: str, curve: list[LossPoint]) -> str:
    """Draw training solid and validation dashed; return first and last validation loss in words."""
    style, label = plots.variant_style(name), plots.variant_label(name)
    for key, line in (("train", "-"), ("validation", "--")):
        known = [(p.epoch, value) for p in curve if (value := getattr(p, key)) is not None]
        if known:
            ax.plot(*zip(*known, strict=True), **style | {"linestyle": line}, label=f"{label}, {key}")
    held = [p.validation for p in curve if p.validation is not None]
    return f"{label} {held[0]:.3f} to {held[-1]:.3f}" if held else ""


def _finish(ax: Axes, title: str) -> None:
    charts.whole_epochs(ax)
    ax.set(xlabel="epoch (stages one after the other)", ylabel=_NATS, title=title)


def _counted(curves: dict[str, list[LossPoint]]) -> str:
    """How many validation tokens, as far as the run wrote them down; tokenizers cut the same texts differently."""
    counts = sorted({point.targets for curve in curves.values() for point in curve if point.targets})
    if not counts:
        return "validation"
    return f"validation, n = {' or '.join(f'{count:,}' for count in counts)} tokens"


_ONE_RUN = "one run for each variant (no bands)"
_UNLIKE = "Models with and without new tokens count other tokens."


def _finetuning(run: Run) -> Drawing:
    import matplotlib.pyplot as plt

    curves = _curves(run, lambda curve: not _blocks_moved(curve), "stage a or b")
    fig, ax = plt.subplots(figsize=(8.4, 4.2))
    ends = [_draw_curve(ax, name, curve) for name, curve in curves.items()]
    _mark_stages(ax, curves)
    _finish(ax, "fine-tuning: embedding and head, then LoRA")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    words = f"Solid: training. Dashed: {_counted(curves)}, {_ONE_RUN}. Dotted line: end of stage a. {_UNLIKE}"
    plots.note(ax, words)
    alt = (
        f"Line chart of training and validation loss by epoch of fine-tuning; validation, first to last: {_told(ends)}."
    )
    return Drawing(fig, alt)


def _mark_stages(ax: Axes, curves: dict[str, list[LossPoint]]) -> None:
    ends = {max(p.epoch for p in curve if p.stage == "a") for curve in curves.values() if _later_than_a(curve)}
    for end in ends:
        ax.axvline(end, color="0.4", ls=":", marker="", lw=1)


def _later_than_a(curve: list[LossPoint]) -> bool:
    return curve[0].stage == "a" and curve[-1].stage != "a"


def _told(ends: list[str]) -> str:
    return "; ".join(end for end in ends if end)


def _sequential(run: Run) -> Drawing:
    import matplotlib.pyplot as plt

    curves = _curves(run, _blocks_moved, "sequential full fine-tuning (stage c)")
    fig, (left, right) = plt.subplots(1, 2, figsize=(9.6, 5.2))
    published = _published(left)
    ends = [_draw_curve(right, name, curve) for name, curve in curves.items()]
    _mark_stages(right, curves)
    _finish(left, "thesis")
    _finish(right, "this run")
    for ax in (left, right):
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), fontsize="small")
    plots.note(
        left,
        "Left: values of the thesis (fig:sequential_finetune). Right: this run. Solid: training. Dashed: "
        f"{_counted(curves)}, {_ONE_RUN}. Dotted line: end of stage a. Other models, texts and tokens: compare shapes.",
    )
    alt = (
        f"Two line charts of losses in sequential fine-tuning. Thesis, validation: {_told(published)}, rising in the "
        f"last epoch. This run, validation, first to last: {_told(ends)}."
    )
    return Drawing(fig, alt)


def _sequential_published(_: Run) -> Drawing:
    import matplotlib.pyplot as plt

    fig, ax = plt.subplots(figsize=(8.4, 4.2))
    _published(ax)
    _finish(ax, "sequential fine-tuning, published values")
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")
    plots.note(
        ax,
        "Values of the thesis (fig:sequential_finetune), one run for each model (no bands; it does not say how many "
        "texts). Solid: training. Dashed: validation. Dotted line: end of embedding-and-head training.",
    )
    alt = (
        "Line chart of the thesis's losses in sequential fine-tuning by epoch: in the last epoch training loss drops "
        "to about 0.39 for both extended models while validation loss rises."
    )
    return Drawing(fig, alt)


def _published(ax: Axes) -> list[str]:
    """Draw the thesis's sequential losses; return first and last validation loss of each model in words."""
    table = thesis.sequential_table()
    ends = []
    for name, part in table.groupby("variant"):
        wide = part.pivot(index="epoch", columns="split", values="loss").sort_index()
        points = [
            LossPoint(
                "a" if epoch <= thesis.NUMBERS["embedding_head_epochs"] else "c",
                epoch,
                _known(wide.at[epoch, "train"]),
                _known(wide.at[epoch, "validation"]),
            )
            for epoch in wide.index.astype(int).tolist()
        ]
        ends.append(_draw_curve(ax, str(name), points))
    ax.axvline(thesis.NUMBERS["embedding_head_epochs"], color="0.4", ls=":", marker="", lw=1)
    return ends


_POSITION = "KL (nats per position)"
_pooled = partial(_phase1, key="kl_pooled", label=_POSITION, title="KL pooled as in the thesis (identical and first)")
_last = partial(_phase1, key="kl_last", label=_POSITION, title="KL at the last subtoken of merged spans")
_identical = partial(_phase1, key="kl_identical", label=_POSITION, title="KL at identical tokens")
_ce = partial(_phase1, key="ce", label=_NATS, title="cross-entropy in phase 1", train_key="train_ce")

FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec("phase1_ce", "fig:phase1_ce_loss", _ce),
    FigureSpec("phase1_kl", "fig:phase1_kl_loss", _identical),
    FigureSpec("phase1_kl_last", "", _last),
    FigureSpec("phase1_kl_pooled", "fig:phase1_kl_loss", _pooled),
    FigureSpec("finetuning", "fig:finetune_loss", _finetuning),
    FigureSpec("sequential", "fig:sequential_finetune", _sequential),
    FigureSpec("sequential_published", "fig:sequential_finetune", _sequential_published),
)
