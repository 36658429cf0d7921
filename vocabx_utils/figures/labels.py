"""Names beside points, each where it covers the fewest points and other names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.transforms import Bbox

from vocabx_utils.figures.theme import figure_of

FloatArray = npt.NDArray[np.float64]
_AWAY = (4.0, 10.0)  # points of type between a place and its name
_SIDES = [(x, y) for y, x in product((1, -1, 0), (1, -1, 0)) if (x, y) != (0, 0)]  # right and above first
_ALIGN = {1: "left", 0: "center", -1: "right"}, {1: "bottom", 0: "center", -1: "top"}


def name_points(ax: Axes, points: FloatArray, names: dict[int, str], *, radius: float = 4.0, **text: Any) -> None:
    """Write names beside some of the points of a scatter plot, on its final axes and in the order given.

    Args:
        points: (n, 2) in data coordinates, all that are drawn.
        names: by the row of the point.
        radius: of a drawn point, in points of type.
        text: how the names look, such as `color`.
    """
    figure = figure_of(ax)
    figure.draw_without_rendering()  # lays the axes out, so that pixels are those of the drawn figure
    pixel = figure.dpi / 72
    centres = ax.transData.transform(points)
    marks = [Bbox.from_bounds(x - r, y - r, 2 * r, 2 * r) for r in [radius * pixel] for x, y in centres]
    taken: list[Bbox] = []
    for row, name in names.items():
        tried = {}
        for away, (x, y) in product(_AWAY, _SIDES):
            look: dict[str, Any] = {"ha": _ALIGN[0][x], "va": _ALIGN[1][y], "fontsize": "small", **text}
            label = ax.annotate(name, tuple(points[row]), (x * away, y * away), textcoords="offset points", **look)
            tried[label] = label.get_window_extent()
        best = min(tried, key=lambda label: _cost(tried[label], marks, taken, ax.get_window_extent()))  # the first
        taken.append(tried.pop(best))
        for label in tried:
            label.remove()


def _cost(box: Bbox, marks: Sequence[Bbox], taken: Sequence[Bbox], inside: Bbox) -> float:
    """Count the points and names that a box covers; one that leaves the axes is the last choice."""
    outside = box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0 or box.y1 > inside.y1
    return 100.0 * outside + 3.0 * box.count_overlaps(taken) + box.count_overlaps(marks)
