"""What several tests of figures need: a figure of the list by its name, and the curves of axes by their label."""

from __future__ import annotations

from matplotlib.axes import Axes

from vocabx_utils.figures.catalogue import FIGURES
from vocabx_utils.figures.theme import Drawing
from vocabx_utils.runs import Run


def draw(name: str, run: Run) -> Drawing:
    [found] = [spec for spec in FIGURES if spec.name == name]
    return found.draw(run)


def lines(ax: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines}
