"""What several tests of figures need: a figure of the list by its name, and the curves of axes by their label."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.text import Text

from vocabx_utils.figures.catalogue import FIGURES
from vocabx_utils.figures.theme import Drawing
from vocabx_utils.runs import Run


def draw(name: str, run: Run) -> Drawing:
    [found] = [spec for spec in FIGURES if spec.name == name]
    return found.draw(run)


def points(ax: Axes) -> list[float]:
    """Where the points with error bars stand on the horizontal axis."""
    return [float(container.lines[0].get_xdata()[0]) for container in ax.containers]


def linear(color: object, alpha: float | None = None) -> np.ndarray:
    """Linear RGB of a colour as it looks on white."""
    *rgb, opacity = to_rgba(color, alpha)  # type: ignore[arg-type]
    shown = np.array(rgb) * opacity + 1 - opacity
    return np.where(shown <= 0.04045, shown / 12.92, ((shown + 0.055) / 1.055) ** 2.4)


def contrast(color: object, alpha: float | None = None) -> float:
    """Contrast with white by WCAG 2."""
    return 1.05 / (float(linear(color, alpha) @ [0.2126, 0.7152, 0.0722]) + 0.05)


def lines(ax: Axes) -> dict[str, tuple[list[float], list[float]]]:
    return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in ax.lines}


def cut_words(figure: Figure) -> list[str]:
    """Words of a figure, ticks aside, that reach beyond its edge, and titles that reach into the next one."""
    figure.draw_without_rendering()
    page = figure.bbox
    ticks = [tick for ax in figure.axes for axis in (ax.xaxis, ax.yaxis) for tick in axis.get_major_ticks()]
    numbers = {label for tick in ticks for label in (tick.label1, tick.label2)}
    shown = [text for text in figure.findobj(Text) if text.get_text() and text not in numbers]
    boxes = {text: text.get_window_extent() for text in shown}
    cut = [text.get_text() for text, box in boxes.items() if box.x0 < page.x0 or box.x1 > page.x1]
    titles = [ax.title for ax in figure.axes if ax.get_title()]
    met = [a.get_text() for at, a in enumerate(titles) for b in titles[:at] if boxes[a].overlaps(boxes[b])]
    return cut + met
