"""Numbers that the thesis publishes, each with the LaTeX label of the table, figure or section it stands in.

They stand in `thesis.json`; nothing there is measured by this project. Of the losses of phase 1 and of LoRA the
thesis's sources hold axis limits only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

_DATA: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
CITATION: dict[str, Any] = _DATA["citation"]
"""The thesis itself: title, author, kind, university, year and arXiv number."""
CLAIMS: dict[str, str] = _DATA["claims"]
"""Claims of the thesis, in this project's words; `vocabx_utils.claims` judges each from measured numbers."""
ALSO: dict[str, str] = _DATA["also"]
"""What the thesis itself holds against some of these claims, by claim: its own numbers, or what it did not run."""
NUMBERS: dict[str, float] = {name: found["value"] for name, found in _DATA["numbers"].items()}
"""Single numbers of its text and figures."""


@dataclass(frozen=True)
class ResultRow:
    """One row of the results table (`tab:combined_results`)."""

    # phase-1 variant by its name in this project, or `base`; KL variants have the name of one reading, anchor `first`
    variant: str
    recipe: Literal["none", "lora", "full"]  # fine-tuning of the blocks: `none`, `lora`, or `full` (sequential)
    # problems passed
    bigcodebench: int
    ds1000: int
    # two-sided two-proportion z-test on combined counts against the reference row, as printed (three decimals);
    # None for the reference
    p_value: float | None
    p_is_bound: bool = False  # the table prints "< p" instead of p

    @property
    def combined(self) -> int:
        """Problems passed on both benchmarks together."""
        return self.bigcodebench + self.ds1000


RESULTS = tuple(ResultRow(**row) for row in _DATA["results"]["rows"])
REFERENCE = RESULTS[_DATA["results"]["reference"]]
"""The row all p-values refer to; it is also the best row, so it was chosen after the fact."""
BIGCODEBENCH_TOTAL: int = _DATA["results"]["totals"]["bigcodebench"]
"""BigCodeBench-Instruct problems kept by the thesis (reference solution passes)."""
DS1000_TOTAL: int = _DATA["results"]["totals"]["ds1000"]
COMBINED_TOTAL = BIGCODEBENCH_TOTAL + DS1000_TOTAL


@dataclass(frozen=True)
class AxisLimits:
    """Axis limits of a figure, in units that the thesis does not name; None where its package chooses."""

    label: str
    x: tuple[float, float]
    y: tuple[float | None, float | None]
    x_label: str
    y_label: str


AXES = {axes["label"]: AxisLimits(**axes | {side: tuple(axes[side]) for side in ("x", "y")}) for axes in _DATA["axes"]}


@dataclass(frozen=True)
class CosineCurve:
    """Mean cosine of the new rows to one of their subtokens, by epoch of phase 1, from random initial rows."""

    label: str
    matrix: Literal["input", "head"]
    objective: Literal["kl", "ce"]  # loss of the *input* rows. Head rows learn by cross-entropy in both cases.
    # which subtoken; `intermediate` is the mean over inner subtokens (tokens of three or more)
    position: Literal["first", "intermediate", "last"]
    cosine: tuple[float, ...]  # one value for each epoch, epoch 0 (before training) first

    @property
    def epochs(self) -> tuple[int, ...]:
        """Epochs of `cosine`, 0 first."""
        return tuple(range(len(self.cosine)))


COSINE_CURVES = tuple(CosineCurve(**curve | {"cosine": tuple(curve["cosine"])}) for curve in _DATA["cosines"])


@dataclass(frozen=True)
class AlignmentExample:
    """One text under the original and the extended tokenizer, as token strings.

    `similar` and `divergent` hold index pairs (original, extended), counted from 0.
    """

    label: str
    original: tuple[str, ...]
    extended: tuple[str, ...]
    similar: tuple[tuple[int, int], ...]
    divergent: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


_EXAMPLES = {
    name: AlignmentExample(**{key: _tuples(value) for key, value in found.items()})
    for name, found in _DATA["examples"].items()
}
ALIGNMENT_EXAMPLE = _EXAMPLES["token_mapping"]
"""Worked example of the token mapping: `int CellConnectDLS(void) { return 0; }`."""
LOSS_PIPELINE = _EXAMPLES["loss_pipeline"]
"""The text of the loss figure, which also sets `num` beside `numpy` and `st` beside `std`.

Which distributions are compared depends on the reading. Where a column holds the logits that predict its token, that
pair lies before the merged span, and the figure's pairs are those of anchor `last`. Where it holds the logits after its
token, they are those of anchor `first`.
"""
POSITION_MAPPING = _EXAMPLES["position_mapping"]
"""AweDist's mapping. The thesis writes pairs as (extended, original); here they are (original, extended)."""
TOKENIZATION_TABLE: tuple[tuple[str, int], ...] = _tuples(_DATA["tokenization"]["tokens"])
"""Tokens and ids of `def calculate_sum(a, b):` in `tab:tokenization_process` (without its closing `):`)."""


def cite() -> str:
    """Return the reference to the thesis in one line.

    >>> print(cite())  # doctest: +ELLIPSIS
    Max Rehman Linder, "Vocabulary Expansion of ...", Master's thesis in applied mathematics, KTH ... arXiv:2508.15807
    """
    found = CITATION
    where = f"{found['kind']}, {found['university']}, {found['year']}, arXiv:{found['arxiv']}"
    return f'{found["author"]}, "{found["title"]}", {where}'


def cosine_table() -> pd.DataFrame:
    """Return all published cosines as a long table: label, matrix, objective, position, epoch, cosine."""
    rows = [
        curve | {"cosine": value, "epoch": at} for curve in _DATA["cosines"] for at, value in enumerate(curve["cosine"])
    ]
    return pd.DataFrame(rows, columns=["label", "matrix", "objective", "position", "epoch", "cosine"])


def sequential_table() -> pd.DataFrame:
    """Return the published losses of sequential fine-tuning: label, variant, split, epoch, loss (no unit is given).

    With new tokens, epochs 1-4 train embedding and head, 5 the first half of the blocks, 6 the second half. The base
    model has the last two only.
    """
    return (
        pd.DataFrame(_DATA["sequential_losses"])
        .explode(["epochs", "loss"], ignore_index=True)
        .rename(columns={"epochs": "epoch"})
        .astype({"epoch": int, "loss": float})
    )


def hyperparameter_table(*stages: str) -> pd.DataFrame:
    """Return the settings of these stages (none: of all), with "not stated" where the thesis is silent.

    Stages are `model`, `data`, `tokenizer`, `phase1`, `stage_a` (whole embedding and head), `lora` and `sequential`.
    """
    known = sorted({row["stage"] for row in _DATA["hyperparameters"]})
    for stage in stages:
        if stage not in known:
            raise ValueError(f"Unknown stage {stage!r}; choose one of {known}.")
    rows = [row for row in _DATA["hyperparameters"] if not stages or row["stage"] in stages]
    return pd.DataFrame(row | {"value": "not stated" if row["value"] is None else row["value"]} for row in rows)
