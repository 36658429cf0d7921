"""Drawings that need no data: the pipeline, the self-distillation, and cross-entropy with its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from vocabx_utils.figures.theme import PALETTE, Drawing, figure_of
from vocabx_utils.thesis import AXES

_SMALL = 9  # points
_PLAIN, _MARKED, _TEACHER = "#e8eef5", "#ffe3c2", "#e3f1e7"


def loss_gradient_chart() -> Axes:
    """Draw −ln p, its gradient magnitude 1/p, and the squared error beside it (thesis, `fig:loss_gradient`)."""
    _, ax = plt.subplots()
    limits = AXES["fig:loss_gradient"]
    p = np.linspace(0.005, 1, 400)
    curves = (
        (-np.log(p), "cross-entropy loss, −ln p", 0, "-"),
        (1 / p, "its gradient magnitude, 1/p", 4, "--"),
        (2 * (1 - p), "gradient magnitude of (1 − p)²", 6, ":"),
    )
    for values, label, color, line in curves:
        ax.plot(p, values, color=PALETTE[color], linestyle=line, marker="", label=label)
    ax.plot([1], [1], marker="o", color=PALETTE[4], ls="none", clip_on=False)
    ax.annotate("1/p is still 1 at p = 1", (1, 1), (-6, 40), textcoords="offset points", ha="right")
    ax.set(xlabel=limits.x_label, ylabel="nats (loss), nats per unit of p (gradient)", xlim=limits.x, ylim=limits.y)
    ax.set_title("Cross-entropy pulls at every p, squared error fades")
    ax.legend()
    return ax


def pipeline_diagram() -> Axes:
    """Draw what each notebook takes and gives, and which parts move, for the thesis's `fig:complete_pipeline`."""
    ax = _canvas(9.4, 3.3)
    boxes = (
        ("01\nnew tokens", "num + py → numpy:\nN merges are\nappended to V ids", _MARKED),
        ("02\nalignment", "where have both\nread the same\nbytes?", _MARKED),
        ("03\nphase 1", "only the N new rows\nof embedding and\nhead are trained", _MARKED),
        ("04\nfine-tuning", "embedding and\nhead, then blocks\n(LoRA or full)", _PLAIN),
        ("05\nevaluation", "bits per byte,\nproblems solved", _PLAIN),
    )
    for at, (name, below, color) in enumerate(boxes):
        x, y = 0.05 + 1.9 * at, 1.95
        _box(ax, x, y, 1.5, 0.75, name, color)
        ax.text(x + 0.75, y - 0.1, below, ha="center", va="top", fontsize=_SMALL, color="0.25")
        if at:
            _arrow(ax, (x - 0.38, y + 0.37), (x - 0.03, y + 0.37))
    _box(ax, 3.85, 0.1, 1.5, 0.7, "06\ninside the model", _TEACHER)
    _arrow(ax, (4.6, 1.22), (4.6, 0.85))
    _box(ax, 7.65, 0.1, 1.5, 0.7, "07\ncompare runs", _TEACHER)
    _arrow(ax, (8.4, 1.4), (8.4, 0.85))
    ax.text(7.55, 0.45, "the method,\nor the seed?", ha="right", va="center", fontsize=_SMALL, color="0.25")
    ax.text(2.7, 3.02, "new tokens and their rows: all that the model had stays as it was", ha="center")
    ax.plot([0.05, 5.35], [2.9, 2.9], color="0.4", lw=1, marker="", ls="-")
    return ax


def distillation_diagram() -> Axes:
    """Draw two readings of one text by one frozen model, and the losses (thesis: `fig:algo1` with its algorithms)."""
    ax = _canvas(9.6, 3.9)
    for y, who, tokens, color in (
        (2.55, "teacher reads\n4 tokens", (" num", "py", " as", " np"), _TEACHER),
        (0.75, "student reads\n3 tokens", (" numpy", " as", " np"), _PLAIN),
    ):
        ax.text(0.02, y + 0.35, who, va="center", weight="bold")
        for at, token in enumerate(tokens):
            new = token == " numpy"
            width = 1.42 if new else 0.68
            x = 1.35 + 0.74 * (at + (1 if who.startswith("student") and at else 0))
            _box(ax, x, y, width, 0.7, token.replace(" ", "·"), _MARKED if new else "white", family="DejaVu Sans Mono")
        _arrow(ax, (4.34, y + 0.35), (4.64, y + 0.35))
        _box(ax, 4.68, y, 1.5, 0.7, "the same\nfrozen model", color)
        _arrow(ax, (6.22, y + 0.35), (6.52, y + 0.35))
    _box(ax, 6.56, 2.55, 1.25, 0.7, "predicts P", _TEACHER)
    _box(ax, 6.56, 0.75, 1.25, 0.7, "predicts Q", _PLAIN)
    _box(ax, 8.1, 1.55, 1.48, 0.9, "loss: KL(P ‖ Q),\nwhere both read\nthe same text", _MARKED)
    _arrow(ax, (7.45, 2.5), (8.05, 2.2))
    _arrow(ax, (7.45, 1.5), (8.05, 1.8))
    red: dict[str, Any] = {"color": PALETTE[4], "lw": 1.6, "marker": "", "ls": "-"}
    ax.plot([8.84, 8.84, 2.06], [1.5, 0.2, 0.2], **red)
    ax.annotate("", (2.06, 0.7), (2.06, 0.19), arrowprops={"arrowstyle": "-|>", "color": PALETTE[4], "lw": 1.6})
    ax.text(5.4, 0.12, "its gradient changes only the input row of the new token", ha="center", va="top")
    beside = "beside it, the head row of ·numpy learns by cross-entropy when to be predicted"
    ax.text(4.5, 2.0, beside, ha="center", va="center", fontsize=_SMALL, color="0.25")
    title = "A new token learns to stand for the tokens it replaces, from the model's own predictions"
    ax.set_title(title, fontsize="large")
    return ax


_ALT: dict[Callable[[], Axes], str] = {
    pipeline_diagram: (
        "Diagram of the series: a pretrained model passes through new tokens (01), alignment (02), phase 1 (03), "
        "fine-tuning (04) and evaluation (05); until phase 1 it stays as it is but for the rows of its new tokens. "
        "Notebook 06 looks inside after phase 1; 07 compares whole runs and asks what is the method and what the seed."
    ),
    distillation_diagram: (
        "Diagram of self-distillation: the teacher reads one text as four tokens, num, py, as, np; the student reads "
        "it as three, with the new token numpy. The same frozen model predicts P and Q from them. The loss is the KL "
        "divergence between P and Q where both have read the same text, and its gradient moves only the input row of "
        "the new token; its head row learns by cross-entropy."
    ),
    loss_gradient_chart: (
        "Line chart over the predicted probability p from 0 to 1: the cross-entropy loss falls to 0 at p = 1 while its "
        "gradient magnitude 1/p is still 1 there; the gradient of the squared error falls to 0."
    ),
}
"""Each diagram with its alternative text."""


def draw_diagram(diagram: Callable[[], Axes]) -> Drawing:
    """Draw one of the diagrams of this module, with its alternative text."""
    return Drawing(figure_of(diagram()), _ALT[diagram])


def _canvas(width: float, height: float) -> Axes:
    """Axes without an axis, an inch for each unit."""
    _, ax = plt.subplots(figsize=(width, height))
    ax.set(xlim=(0, width), ylim=(-0.15, height - 0.15))
    ax.axis("off")
    return ax


def _box(ax: Axes, x: float, y: float, width: float, height: float, text: str, color: str, **words: Any) -> None:
    style = "round,pad=0,rounding_size=0.08"
    edge = 2.2 if color == _MARKED else 1.0  # what is new stands out in grey too
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=color, edgecolor="0.3", lw=edge))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", **words)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "0.3", "lw": 1.2})
