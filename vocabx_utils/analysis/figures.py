"""The list of figures that stand for the thesis's figures and tables, drawn from the files of a run.

A figure whose files a run does not have is left out with a reason; nothing is invented. Figures of the thesis that
explain transformers in general (attention, MLP, projection with toy numbers) have no counterpart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vocabx_utils.analysis import charts, diagrams, plots, thesis
from vocabx_utils.analysis.mechanisms import CausalTest
from vocabx_utils.analysis.rows import Matrix
from vocabx_utils.runs import MissingStageError, Run, read_json, read_jsonl

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["FIGURES", "Drawing", "FigureSpec", "Outcome", "draw_figures"]


@dataclass(frozen=True)
class Drawing:
    """A figure with its alternative text."""

    figure: Figure
    alt: str


@dataclass(frozen=True)
class FigureSpec:
    """One figure of the list.

    Attributes:
        name: file name without extension.
        thesis: LaTeX label of its counterpart, empty if it goes beyond the thesis.
        draw: makes it from a run; raises `MissingStageError` where the run lacks the files.
    """

    name: str
    thesis: str
    draw: Callable[[Run], Drawing]


@dataclass(frozen=True)
class Outcome:
    """What became of one figure: the files written, or why there are none."""

    name: str
    paths: tuple[Path, ...]
    reason: str = ""


def draw_figures(
    run: Run, folder: Path, specs: Iterable[FigureSpec], formats: Sequence[plots.Format] = ("svg", "png")
) -> list[Outcome]:
    """Draw figures from a run into a folder, with `alt.json`.

    Args:
        run: where the numbers come from.
        folder: where the files go.
        specs: which figures; `FIGURES` for all that need the analysis alone.
        formats: see `plots.save_figure`.

    Returns:
        One outcome for each figure, in order.
    """
    import matplotlib.pyplot as plt

    plots.theme("notebook")
    outcomes = []
    for spec in specs:
        try:
            drawing = spec.draw(run)
        except MissingStageError as missing:
            outcomes.append(Outcome(spec.name, (), str(missing)))
            continue
        paths = plots.save_figure(drawing.figure, spec.name, drawing.alt, folder, formats)
        plt.close(drawing.figure)
        outcomes.append(Outcome(spec.name, tuple(paths)))
    return outcomes


# --- figures without data ----------------------------------------------------------------------------------


def _pipeline(_: Run) -> Drawing:
    alt = (
        "Diagram of the series: a pretrained model passes through new tokens (01), alignment (02), phase 1 (03), "
        "fine-tuning (04) and evaluation (05); notebook 06 looks inside after phase 1."
    )
    return Drawing(_figure(diagrams.pipeline_diagram()), alt)


def _self_distillation(_: Run) -> Drawing:
    alt = (
        "Diagram of self-distillation: the teacher reads the tokens num, py, as, np; the student reads numpy, as, np. "
        "Both go through the same frozen model to distributions P and Q over the original vocabulary; the KL "
        "divergence between them moves only the new input row."
    )
    return Drawing(_figure(diagrams.distillation_diagram()), alt)


def _loss_gradient(_: Run) -> Drawing:
    alt = (
        "Line chart over the predicted probability p from 0 to 1: the cross-entropy loss falls to 0 at p = 1 while its "
        "gradient magnitude 1/p stays at 1; the gradient of the squared error falls to 0."
    )
    return Drawing(_figure(diagrams.loss_gradient_chart()), alt)


def _figure(ax: object) -> Figure:
    return ax.figure  # type: ignore[attr-defined,no-any-return]


# --- losses --------------------------------------------------------------------------------------------------


def _phase1(run: Run, key: str, label: str, title: str, train_key: str | None = None) -> Drawing:
    import matplotlib.pyplot as plt

    metrics = _phase1_metrics(run)
    fig, ax = plt.subplots(figsize=(7.6, 4.2))
    charts.metric_chart(metrics, key, ax, label=label, train_key=train_key)
    ax.set_title(title)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    counts = next(iter(metrics.values()))[-1]
    places = sum(counts.get(name, 0) for name in _COUNTED[key])
    dotted = " Dotted: training data." if train_key else ""
    plots.note(ax, f"Validation, n = {places:,.0f} positions, one run for each variant (no bands).{dotted}")
    ends = [f"{plots.variant_label(v)} {m[0][key]:.3f} to {m[-1][key]:.3f}" for v, m in metrics.items() if key in m[-1]]
    return Drawing(fig, f"Line chart of {title} by epoch on validation data; first to last: {'; '.join(ends)}.")


_COUNTED = {
    "ce": ("n_old_targets", "n_new_targets"),
    "kl_identical": ("n_identical",),
    "kl_last": ("n_last",),
    "kl_pooled": ("n_identical", "n_first"),
}


def _phase1_metrics(run: Run) -> dict[str, list[dict]]:
    names = run.variants("03")
    if not names:
        run.require("03")
    metrics = {name: read_jsonl(run.require("03", f"{name}/metrics.jsonl")) for name in names}
    return {name: lines for name, lines in metrics.items() if lines}


def _phase1_ce(run: Run) -> Drawing:
    return _phase1(run, "ce", "cross-entropy (nats per token)", "cross-entropy in phase 1", "train_ce")


def _phase1_kl(run: Run) -> Drawing:
    return _phase1(run, "kl_identical", "KL (nats per position)", "KL at identical tokens")


def _phase1_kl_last(run: Run) -> Drawing:
    return _phase1(run, "kl_last", "KL (nats per position)", "KL at the last subtoken of merged spans")


def _phase1_kl_pooled(run: Run) -> Drawing:
    return _phase1(run, "kl_pooled", "KL (nats per position)", "KL pooled as in the thesis (identical and first)")


def _finetuning(run: Run) -> Drawing:
    import matplotlib.pyplot as plt

    names = run.variants("04")
    if not names:
        run.require("04")
    fig, ax = plt.subplots(figsize=(7.6, 4.2))
    ends = []
    for name in names:
        lines = _stage_losses(run.folder / "04_fine_tuning" / name)
        style = plots.variant_style(name)
        checks = [(x, line["validation_loss"]) for x, line in lines if _known(line.get("validation_loss"))]
        learned = [(x, line["loss"]) for x, line in lines if _known(line.get("loss"))]
        if checks:
            ax.plot(*zip(*checks, strict=True), **style, label=plots.variant_label(name))
            ends.append(f"{plots.variant_label(name)} {checks[0][1]:.3f} to {checks[-1][1]:.3f}")
        if learned:
            ax.plot(*zip(*learned, strict=True), **style | {"linestyle": ":", "lw": 1}, alpha=0.7)
    ax.set(xlabel="epoch (stages one after the other)", ylabel="cross-entropy (nats per token)", title="fine-tuning")
    ax.legend()
    plots.note(
        ax, "Solid or dashed: validation. Dotted: training. Models with and without new tokens count other tokens."
    )
    return Drawing(fig, f"Line chart of validation loss by epoch of fine-tuning; first to last: {'; '.join(ends)}.")


def _stage_losses(folder: Path) -> list[tuple[float, dict]]:
    """Epoch lines of all stages of a variant with a running epoch, stages in alphabetical order."""
    found: list[tuple[float, dict]] = []
    offset = 0.0
    for path in sorted(folder.glob("*/losses.jsonl")):
        lines = [line for line in read_jsonl(path) if line.get("kind", "epoch") == "epoch"]
        found += [(offset + line["epoch"], line) for line in lines]
        offset += max((line["epoch"] for line in lines), default=0)
    return found


def _known(value: object) -> bool:
    return isinstance(value, int | float) and bool(np.isfinite(value))


def _sequential(_: Run) -> Drawing:
    import matplotlib.pyplot as plt

    table = thesis.sequential_table()
    fig, ax = plt.subplots(figsize=(7.0, 4.0))
    for (variant, split), part in table.groupby(["variant", "split"]):
        style = plots.variant_style(str(variant)) | {"linestyle": "-" if split == "train" else "--"}
        ax.plot(part["epoch"], part["loss"], **style, label=f"{plots.variant_label(str(variant))}, {split}")
    ax.axvline(thesis.EMBEDDING_HEAD_EPOCHS, color="0.4", ls=":", marker="")
    ax.set(xlabel="epoch", ylabel="cross-entropy (nats per token)", title="sequential fine-tuning, published values")
    ax.legend(fontsize="small")
    plots.note(ax, "Values of the thesis (fig:sequential_finetune); dotted line: end of embedding-and-head training.")
    alt = (
        "Line chart of the thesis's losses in sequential fine-tuning by epoch: in the last epoch training loss drops "
        "to about 0.39 for both extended models while validation loss rises."
    )
    return Drawing(fig, alt)


# --- results -------------------------------------------------------------------------------------------------


def _published_results(_: Run) -> Drawing:
    import matplotlib.pyplot as plt

    rows = thesis.RESULTS
    fig, axes = plt.subplots(1, 3, figsize=(9.6, 4.0), sharey=True)
    parts = (
        ("bigcodebench", thesis.BIGCODEBENCH_TOTAL, "BigCodeBench"),
        ("ds1000", thesis.DS1000_TOTAL, "DS-1000"),
        ("combined", thesis.COMBINED_TOTAL, "both"),
    )
    names = [f"{plots.variant_label(row.variant)}, {_RECIPES[row.recipe]}" for row in rows]
    for ax, (key, total, title) in zip(axes, parts, strict=True):
        shares = np.array([getattr(row, key) for row in rows]) / total
        low, high = _wilson(shares, total)
        colors = [plots.PALETTE[1] if row is thesis.REFERENCE else "0.65" for row in rows]
        ends = np.array([shares - low, high - shares]) * 100
        ax.barh(
            names,
            shares * 100,
            color=colors,
            edgecolor="0.3",
            hatch=["//" if r is thesis.REFERENCE else "" for r in rows],
        )
        ax.errorbar(shares * 100, range(len(rows)), xerr=ends, fmt="none", ecolor="0.15", lw=1)
        ax.set(xlabel="passed (%)", title=f"{title} (n = {total:,})")
    axes[0].invert_yaxis()
    for at, row in enumerate(rows):
        p = "reference" if row.p_value is None else f"p {'<' if row.p_is_bound else '='} {row.p_value:.3f}"
        axes[2].text(31.5, at, p, va="center", fontsize="x-small")
    axes[2].set_xlim(0, 42)
    plots.note(
        axes[0], "Published counts (tab:combined_results). Bars: 95 % Wilson intervals. p: against the reference."
    )
    alt = (
        "Bar charts of published pass rates for nine models on BigCodeBench, DS-1000 and both, with 95 % intervals: "
        "mean init with KL and LoRA leads with 556 of 1951, the base model passes 508, random init with KL 443."
    )
    return Drawing(fig, alt)


_RECIPES = {"none": "as it is", "lora": "LoRA", "full": "full"}


def _wilson(share: np.ndarray, n: int, z: float = 1.959964) -> tuple[np.ndarray, np.ndarray]:
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return centre - half, centre + half


# --- inside the model ----------------------------------------------------------------------------------------


def _stage_table(run: Run, name: str) -> pd.DataFrame:
    import pandas as pd

    return pd.read_csv(run.require("06", name))


def _cosines(run: Run, matrix: Matrix) -> Drawing:
    import matplotlib.pyplot as plt

    table = _stage_table(run, "cosines.csv")
    table = table[table["matrix"] == matrix]
    variants = [v for v in table["variant"].unique() if table.loc[table["variant"] == v, "epoch"].nunique() > 1]
    fig, axes = plt.subplots(1, len(variants), figsize=(3.3 * len(variants), 3.9), squeeze=False)
    ends = []
    for ax, variant in zip(axes[0], variants, strict=True):
        part = table[table["variant"] == variant]
        objective = "kl" if "_kl" in variant else "ce"
        published = [c for c in thesis.COSINE_CURVES if (c.matrix, c.objective) == (matrix, objective)]
        charts.cosine_chart(part, published if variant.startswith("random") else (), ax, plots.variant_label(variant))
        final = part[part["epoch"] == part["epoch"].max()].set_index("position")["mean"]
        ends.append(f"{plots.variant_label(variant)} {final.get('first', np.nan):.3f}/{final.get('last', np.nan):.3f}")
        ax.legend(fontsize="x-small")
    plots.note(axes[0, 0], "Bands: 95 % bootstrap over tokens. Grey: the thesis's curves, random initial rows only.")
    what = "input rows" if matrix == "input" else "head rows"
    return Drawing(
        fig,
        f"Line charts of mean cosine of new {what} to their subtokens by epoch; final first/last: {'; '.join(ends)}.",
    )


def _input_cosines(run: Run) -> Drawing:
    return _cosines(run, "input")


def _head_cosines(run: Run) -> Drawing:
    return _cosines(run, "head")


def _causal(run: Run) -> Drawing:
    import matplotlib.pyplot as plt

    table, facts = _stage_table(run, "causal.csv"), read_json(run.require("06", "causal.json"))
    variants = list(dict.fromkeys(table["variant"]))
    fig, axes = plt.subplots(1, len(variants), figsize=(4.4 * len(variants), 3.9), squeeze=False, sharey=True)
    needed = []
    for ax, variant in zip(axes[0], variants, strict=True):
        fact = facts[variant]
        part = table[table["variant"] == variant]
        test = CausalTest(part, fact["kl_start"], fact["kl_end"], fact["width"])
        charts.causal_chart(test, ax, plots.variant_label(variant))
        k = test.coordinates_needed()
        needed.append(f"{plots.variant_label(variant)}: {'more than tested' if k is None else k} of {fact['width']}")
    axes[0, 0].legend(fontsize="small")
    plots.note(axes[0, 0], f"n = {facts[variants[0]]['positions']} positions; bands: range over random draws.")
    alt = (
        "Line charts of KL against kept dimensions of the learned change; coordinates for 90 % of the gain: "
        f"{'; '.join(needed)}."
    )
    return Drawing(fig, alt)


def _layers(run: Run) -> Drawing:
    import matplotlib.pyplot as plt

    table = _stage_table(run, "layers.csv")
    variants = list(dict.fromkeys(table["variant"]))
    fig, axes = plt.subplots(1, len(variants), figsize=(4.0 * len(variants), 3.9), squeeze=False, sharey=True)
    for ax, variant in zip(axes[0], variants, strict=True):
        charts.layer_chart(table[table["variant"] == variant], ax, plots.variant_label(variant))
    axes[0, 0].legend(fontsize="small")
    plots.note(
        axes[0, 0], "Mean over positions; n in the legend. Boundary: end of a merged span; after: tokens behind it."
    )
    last = table[(table["layer"] == table["layer"].max()) & (table["place"] == "boundary")].set_index("variant")[
        "cosine"
    ]
    ends = "; ".join(f"{plots.variant_label(v)} {last[v]:.3f}" for v in variants if v in last)
    return Drawing(
        fig,
        f"Line charts of hidden-state cosine, student to teacher, by layer; at boundaries in the last layer: {ends}.",
    )


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec("pipeline", "fig:complete_pipeline", _pipeline),
    FigureSpec("self_distillation", "fig:algo1", _self_distillation),
    FigureSpec("loss_gradient", "fig:loss_gradient", _loss_gradient),
    FigureSpec("phase1_ce", "fig:phase1_ce_loss", _phase1_ce),
    FigureSpec("phase1_kl", "fig:phase1_kl_loss", _phase1_kl),
    FigureSpec("phase1_kl_last", "", _phase1_kl_last),
    FigureSpec("phase1_kl_pooled", "fig:phase1_kl_loss", _phase1_kl_pooled),
    FigureSpec("finetuning", "fig:finetune_loss", _finetuning),
    FigureSpec("sequential_published", "fig:sequential_finetune", _sequential),
    FigureSpec("results_published", "tab:combined_results", _published_results),
    FigureSpec("input_cosines", "fig:embedding_similarity", _input_cosines),
    FigureSpec("head_cosines", "fig:head_similarity", _head_cosines),
    FigureSpec("causal", "", _causal),
    FigureSpec("layers", "", _layers),
)
