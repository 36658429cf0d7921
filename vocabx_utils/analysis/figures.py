"""The list of figures that stand for the thesis's figures and tables, drawn from the files of a run.

Figures of the thesis that explain transformers in general (attention, MLP, projection with toy numbers, inference)
have no counterpart. Those of tokenizations need the vocabulary wing and stand in `vocabx_utils.cli.strip_figures`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vocabx_utils.analysis import diagrams, loss_figures, result_figures, row_figures
from vocabx_utils.analysis.drawings import Drawing, FigureSpec
from vocabx_utils.runs import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["FIGURES"]


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


FIGURES: tuple[FigureSpec, ...] = (
    FigureSpec("pipeline", "fig:complete_pipeline", _pipeline),
    FigureSpec("self_distillation", "fig:algo1", _self_distillation),
    FigureSpec("loss_gradient", "fig:loss_gradient", _loss_gradient),
    *loss_figures.FIGURES,
    *result_figures.FIGURES,
    *row_figures.FIGURES,
)
