"""Drawings that need no data: the pipeline, the self-distillation, and cross-entropy with its gradient."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch

from vocabx_utils.figures.theme import PALETTE, new_axes
from vocabx_utils.thesis import AXES

_PLAIN, _MARKED, _TEACHER = "#e8eef5", "#ffe3c2", "#e3f1e7"


def loss_gradient_chart(ax: Axes | None = None) -> Axes:
    """Draw −ln p, its gradient magnitude 1/p, and the squared error beside it (thesis, `fig:loss_gradient`)."""
    ax = new_axes(ax)
    limits = AXES["fig:loss_gradient"]
    p = np.linspace(0.005, 1, 400)
    curves = (
        (-np.log(p), "cross-entropy loss, −ln p", 0, "-"),
        (1 / p, "its gradient magnitude, 1/p", 3, "--"),
        (2 * (1 - p), "gradient magnitude of (1 − p)²", 7, ":"),
    )
    for values, label, color, line in curves:
        ax.plot(p, values, color=PALETTE[color], linestyle=line, marker="", label=label)
    ax.plot([1], [1], marker="o", color=PALETTE[3], ls="none")
    ax.annotate("1/p stays at 1 for p = 1", (1, 1), (-6, 44), textcoords="offset points", ha="right", fontsize="small")
    ax.set(xlabel=limits.x_label, ylabel="nats (loss), nats per unit of p (gradient)", xlim=limits.x, ylim=limits.y)
    ax.legend()
    return ax


def pipeline_diagram(ax: Axes | None = None) -> Axes:
    """Draw what each notebook takes and gives, and which parts move, for the thesis's `fig:complete_pipeline`."""
    ax = _canvas(ax, 13.2, 3.6)
    boxes = (
        ("pretrained\nmodel", "tokenizer, V ids", _PLAIN),
        ("01 new tokens", "N merges appended", _MARKED),
        ("02 alignment", "equal byte ends", _MARKED),
        ("03 phase 1", "only N + N rows move", _MARKED),
        ("04 fine-tuning", "embedding and head,\nthen blocks (LoRA or full)", _PLAIN),
        ("05 evaluation", "bits per byte, pass@1", _PLAIN),
    )
    for at, (name, below, color) in enumerate(boxes):
        x, y = 0.05 + 2.2 * at, 2.1
        _box(ax, x, y, 1.9, 1.05, name, color)
        ax.text(x + 0.95, y - 0.12, below, ha="center", va="top", fontsize="x-small", color="0.3")
        if at:
            _arrow(ax, (x - 0.27, y + 0.52), (x - 0.02, y + 0.52))
    _box(ax, 6.6, 0.1, 2.0, 0.8, "06 inside the model", _TEACHER)
    _arrow(ax, (7.6, 1.6), (7.6, 0.95))
    ax.text(5.4, 3.45, "vocabulary expansion", ha="center", fontsize="small", color="0.25")
    ax.plot([2.25, 8.65], [3.32, 3.32], color="0.5", lw=1, marker="", ls="-")
    return ax


def distillation_diagram(ax: Axes | None = None) -> Axes:
    """Draw two readings of one text by one frozen model, and the losses (thesis: `fig:algo1` with its algorithms)."""
    ax = _canvas(ax, 11.2, 3.9)
    for y, who, tokens, color in (
        (2.9, "teacher", (" num", "py", " as", " np"), _TEACHER),
        (0.9, "student", (" numpy", " as", " np"), _PLAIN),
    ):
        ax.text(0.05, y + 0.4, who, va="center", weight="bold", fontsize="small")
        for at, token in enumerate(tokens):
            new = token == " numpy"
            width = 1.58 if new else 0.74
            x = 1.05 + 0.84 * (at + (1 if who == "student" and at else 0))
            _box(ax, x, y, width, 0.8, token.replace(" ", "␣"), _MARKED if new else "white")
        _arrow(ax, (4.45, y + 0.4), (4.85, y + 0.4))
        _box(ax, 4.9, y, 2.0, 0.8, "same frozen\nblocks and head", color)
        _arrow(ax, (6.95, y + 0.4), (7.35, y + 0.4))
    _box(ax, 7.4, 2.9, 1.5, 0.8, "P over V", _TEACHER)
    _box(ax, 7.4, 0.9, 1.5, 0.8, "Q over V", _PLAIN)
    _box(ax, 9.3, 1.9, 1.75, 0.8, "KL(P ‖ Q)\nwhere both have\nread the same text", _MARKED)
    _arrow(ax, (8.95, 3.2), (9.3, 2.6))
    _arrow(ax, (8.95, 1.4), (9.3, 2.0))
    arrow = {"arrowstyle": "->", "color": PALETTE[3], "connectionstyle": "angle,angleA=180,angleB=90"}
    words = "gradient moves the new input row only"
    ax.annotate(words, (1.85, 0.85), (9.9, 0.3), fontsize="x-small", ha="center", va="top", arrowprops=arrow)
    extra = "beside it: the head rows learn by cross-entropy over V + N\nfrom the same hidden states, detached"
    ax.text(5.9, 2.3, extra, ha="center", va="center", fontsize="x-small", color="0.3")
    return ax


def _canvas(ax: Axes | None, width: float, height: float) -> Axes:
    ax = new_axes(ax, figsize=(width * 0.75, height * 0.75))
    ax.set(xlim=(0, width), ylim=(-0.3, height))
    ax.axis("off")
    return ax


def _box(ax: Axes, x: float, y: float, width: float, height: float, text: str, color: str) -> None:
    style = "round,pad=0,rounding_size=0.08"
    edge = 2.2 if color == _MARKED else 1.0  # what is new stands out in grey too
    ax.add_patch(FancyBboxPatch((x, y), width, height, boxstyle=style, facecolor=color, edgecolor="0.3", lw=edge))
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize="small")


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "0.3", "lw": 1.2})
