"""Numbers that the thesis publishes, each with the LaTeX label of the table, figure or section it stands in.

Nothing here is measured by this project; notebooks 04 to 06 show these numbers beside their own.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from vocabx_utils.analysis.thesis_curves import (
    COSINE_CURVES,
    SEQUENTIAL_LOSSES,
    CosineCurve,
    SequentialCurve,
)
from vocabx_utils.analysis.thesis_examples import (
    ALIGNMENT_EXAMPLE,
    LOSS_PIPELINE,
    POSITION_MAPPING,
    TOKENIZATION_TABLE,
    AlignmentExample,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "ALIGNMENT_EXAMPLE",
    "AXES",
    "CLAIMS",
    "COSINE_CURVES",
    "HYPERPARAMETERS",
    "LOSS_PIPELINE",
    "POSITION_MAPPING",
    "RESULTS",
    "SEQUENTIAL_LOSSES",
    "TOKENIZATION_TABLE",
    "AlignmentExample",
    "AxisLimits",
    "CosineCurve",
    "Hyperparameter",
    "ResultRow",
    "SequentialCurve",
    "cosine_curve",
    "cosine_table",
    "hyperparameter_table",
    "results_table",
    "sequential_table",
]

Recipe = Literal["none", "lora", "full"]


@dataclass(frozen=True)
class ResultRow:
    """One row of the results table (`tab:combined_results`).

    Attributes:
        variant: name of the phase-1 variant in this project, or `base`.
        recipe: fine-tuning of the blocks: `none`, `lora`, or `full` (sequential).
        bigcodebench: problems passed of `BIGCODEBENCH_TOTAL`.
        ds1000: problems passed of `DS1000_TOTAL`.
        p_value: two-sided two-proportion z-test on combined counts against the reference row, as printed
            (three decimals). None for the reference.
        p_is_bound: True where the table prints "< p" instead of p.
    """

    variant: str
    recipe: Recipe
    bigcodebench: int
    ds1000: int
    p_value: float | None
    p_is_bound: bool = False
    label: str = "tab:combined_results"

    @property
    def combined(self) -> int:
        """Problems passed on both benchmarks together."""
        return self.bigcodebench + self.ds1000


BIGCODEBENCH_TOTAL = 1022
"""BigCodeBench-Instruct problems kept by the thesis (reference solution passes)."""
DS1000_TOTAL = 929
"""DS-1000 problems kept by the thesis."""
COMBINED_TOTAL = BIGCODEBENCH_TOTAL + DS1000_TOTAL

RESULTS: tuple[ResultRow, ...] = (
    ResultRow("base", "none", 213, 295, 0.084),
    ResultRow("random_untrained", "lora", 203, 289, 0.021),
    ResultRow("random_ce", "lora", 173, 314, 0.013),
    ResultRow("mean_ce", "lora", 142, 319, 0.001),
    ResultRow("random_kl_first", "lora", 129, 314, 0.001, p_is_bound=True),
    ResultRow("mean_kl_first", "lora", 216, 340, None),
    ResultRow("base", "full", 206, 321, 0.300),
    ResultRow("mean_ce", "full", 182, 304, 0.011),
    ResultRow("mean_kl_first", "full", 192, 294, 0.011),
)
REFERENCE = RESULTS[5]
"""The row all p-values refer to; it is also the best row, so it was chosen after the fact."""


@dataclass(frozen=True)
class Hyperparameter:
    """One setting of the thesis's experiments.

    Attributes:
        stage: `model`, `data`, `tokenizer`, `phase1`, `stage_a` (whole embedding and head), `lora` or
            `sequential`.
        value: None where the thesis does not state it.
        label: LaTeX label, or the title of the section without one.
    """

    stage: str
    name: str
    value: float | int | str | None
    label: str


_SETUP, _DATA, _LORA = "sec: Experimental Setup", "sec: Data and Models", "fig:finetune_loss"

HYPERPARAMETERS: tuple[Hyperparameter, ...] = (
    Hyperparameter("model", "name", "DeepSeek-Coder-7B-Instruct-v1.5 (text); its sizes fit 6.7b-instruct", _DATA),
    Hyperparameter("model", "vocabulary V", 32022, _DATA),
    Hyperparameter("model", "width D", 4096, _DATA),
    Hyperparameter("model", "transformer blocks", 32, _LORA),
    Hyperparameter("data", "data set", "CodeFeedback-Filtered-Instruction", _DATA),
    Hyperparameter("data", "pairs for the tokenizer", 1000, _DATA),
    Hyperparameter("data", "pairs for training", 5000, _DATA),
    Hyperparameter("data", "pairs for validation", 10000, _DATA),
    Hyperparameter("tokenizer", "new tokens N", 800, _DATA),
    Hyperparameter("tokenizer", "look-ahead of the alignment", 20, "alg:token-mapping"),
    Hyperparameter("tokenizer", "size of the fresh BPE", None, "alg:vocab-expansion"),
    Hyperparameter("phase1", "learning rate", 4.2e-4, _SETUP),
    Hyperparameter("phase1", "share of warm-up", 0.1, _SETUP),
    Hyperparameter("phase1", "schedule", "linear warm-up, linear decay", _SETUP),
    Hyperparameter("phase1", "epochs", 8, _SETUP),
    Hyperparameter("phase1", "epochs after the warm restart", 4, _SETUP),
    Hyperparameter("phase1", "temperature", 1.0, "sec: Future Work"),
    Hyperparameter("phase1", "optimiser", None, _SETUP),
    Hyperparameter("phase1", "batch size", None, _SETUP),
    Hyperparameter("phase1", "sequence length", None, _SETUP),
    Hyperparameter("stage_a", "epochs", 4, _SETUP),
    Hyperparameter("stage_a", "learning rate", None, _SETUP),
    Hyperparameter("lora", "rank", 128, _LORA),
    Hyperparameter("lora", "epochs", 4, _LORA),
    Hyperparameter("lora", "learning rate", 2.2e-4, _LORA),
    Hyperparameter("lora", "warm-up epochs", 1, _LORA),
    Hyperparameter("lora", "alpha", None, _LORA),
    Hyperparameter("lora", "dropout", None, _LORA),
    Hyperparameter("sequential", "learning rate", 4.2e-5, _SETUP),
    Hyperparameter("sequential", "epochs for blocks 1-16", 1, _SETUP),
    Hyperparameter("sequential", "epochs for blocks 17-32", 1, _SETUP),
)


@dataclass(frozen=True)
class AxisLimits:
    """Axis limits of a figure, in data units; None where the thesis lets its plotting package choose."""

    label: str
    x: tuple[float, float]
    y: tuple[float | None, float | None]
    x_label: str
    y_label: str


AXES: dict[str, AxisLimits] = {
    axes.label: axes
    for axes in (
        AxisLimits("fig:loss_gradient", (0, 1), (0, 5), "predicted probability p", "loss and gradient"),
        AxisLimits("fig:phase1_ce_loss", (0, 12), (0.5, 0.9), "epoch", "cross-entropy (nats per token)"),
        AxisLimits("fig:phase1_kl_loss", (0, 12), (0.07, None), "epoch", "KL divergence (nats per position)"),
        AxisLimits("fig:finetune_loss", (0, 8.6), (0.4, 0.9), "epoch", "cross-entropy (nats per token)"),
        AxisLimits("fig:sequential_finetune", (0, 6.5), (0.35, None), "epoch", "cross-entropy (nats per token)"),
        AxisLimits("fig:embedding_similarity", (0, 12), (None, None), "epoch", "cosine"),
        AxisLimits("fig:head_similarity", (0, 12), (None, None), "epoch", "cosine"),
    )
}
EMBEDDING_HEAD_EPOCHS = 4
"""Epochs of stage A; `fig:finetune_loss` and `fig:sequential_finetune` mark it by a dotted line."""
MEAN_INIT_COSINE = 0.6
"""Cosine to the subtokens that the thesis reports for mean initial rows (section `sec:mechanistic`)."""
COSINE_BOUND = 0.1
"""The thesis says that all final cosines from random rows stay below this (section `sec:mechanistic`)."""


CLAIMS: dict[str, str] = {
    "C1": "Under cross-entropy the KL divergence to the teacher rises.",
    "C2": "Final cross-entropy depends on how the head starts, not on the objective of the input rows.",
    "C3": "With KL, random initial rows generalise better than mean ones.",
    "C4": "KL pulls a row towards its first subtoken, cross-entropy to its last; inner ones count least.",
    "C5": "Mean initial rows (cosine about 0.6) hardly turn during training.",
    "C6": "A few coordinates of a row carry its meaning.",
    "C7": "Phase 1 helps the tasks that follow.",
    "C8": "Training the whole embedding and head (stage A) is necessary.",
    "C9": "LoRA beats sequential full fine-tuning and forgets less.",
    "C10": "Initial values and objective interact.",
    "C11": "Loss is a poor proxy for pass@1.",
    "C12": "The KL signal weakens as the share of new tokens grows.",
    "C13": "One forward pass with two optimisers halves the time.",
    "C14": "Cross-entropy suits short completion, KL open-ended tasks.",
    "C15": "DS-1000 has the highest density of new tokens.",
    "C16": "Models fail by writing natural language instead of code.",
    "C17": "A higher temperature and a share of cross-entropy help together.",
}
"""Claims of the thesis, in this project's words; the notebooks give each a verdict from measured numbers."""


def cosine_curve(matrix: str, objective: str, position: str) -> CosineCurve:
    """Return one published cosine curve.

    Args:
        matrix: `input` or `head`.
        objective: `kl` or `ce`.
        position: `first`, `intermediate` or `last`.

    Returns:
        The curve with 13 epochs.

    Raises:
        ValueError: if the thesis has no such curve.
    """
    for curve in COSINE_CURVES:
        if (curve.matrix, curve.objective, curve.position) == (matrix, objective, position):
            return curve
    raise ValueError(
        f"The thesis has no cosine curve for {matrix!r}, {objective!r}, {position!r}; "
        "choose input|head, kl|ce, first|intermediate|last."
    )


def cosine_table() -> pd.DataFrame:
    """Return all published cosines as a long table: label, matrix, objective, position, epoch, cosine."""
    import pandas as pd

    return pd.DataFrame(
        {
            "label": curve.label,
            "matrix": curve.matrix,
            "objective": curve.objective,
            "position": curve.position,
            "epoch": epoch,
            "cosine": value,
        }
        for curve in COSINE_CURVES
        for epoch, value in zip(curve.epochs, curve.cosine, strict=True)
    )


def sequential_table() -> pd.DataFrame:
    """Return the published losses of sequential fine-tuning: label, variant, split, epoch, loss (nats)."""
    import pandas as pd

    return pd.DataFrame(
        {
            "label": curve.label,
            "variant": curve.variant,
            "split": curve.split,
            "epoch": epoch,
            "loss": value,
        }
        for curve in SEQUENTIAL_LOSSES
        for epoch, value in zip(curve.epochs, curve.loss, strict=True)
    )


def results_table() -> pd.DataFrame:
    """Return the published results, one row per model: counts, totals, shares (0-1) and printed p-values."""
    import pandas as pd

    table = pd.DataFrame([{**asdict(row), "combined": row.combined} for row in RESULTS])
    table["bigcodebench_total"] = BIGCODEBENCH_TOTAL
    table["ds1000_total"] = DS1000_TOTAL
    table["combined_total"] = COMBINED_TOTAL
    for name in ("bigcodebench", "ds1000", "combined"):
        table[f"{name}_share"] = table[name] / table[f"{name}_total"]
    return table


def hyperparameter_table(stage: str | None = None) -> pd.DataFrame:
    """Return the settings, of all stages or of one, with "not stated" where the thesis is silent."""
    import pandas as pd

    rows = [asdict(item) for item in HYPERPARAMETERS if stage in (None, item.stage)]
    if not rows:
        known = sorted({item.stage for item in HYPERPARAMETERS})
        raise ValueError(f"Unknown stage {stage!r}; choose one of {known}.")
    for row in rows:
        row["value"] = "not stated" if row["value"] is None else row["value"]
    return pd.DataFrame(rows)
