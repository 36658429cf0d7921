"""A list of figures as data, and the loop that draws it: each figure from a run, with its alternative text.

A figure whose files a run does not have is left out with a reason; nothing is invented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vocabx_utils.analysis import plots
from vocabx_utils.runs import MissingStageError, Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Drawing", "FigureSpec", "Outcome", "draw_figures"]


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
