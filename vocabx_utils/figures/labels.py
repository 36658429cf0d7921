"""Names beside points, each where it covers the fewest points and other names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.text import Annotation
from matplotlib.transforms import Bbox

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
    figure = ax.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # lays the axes out, so that pixels are those of the drawn figure
    pixel = figure.dpi / 72
    centres = ax.transData.transform(points)
    marks = [Bbox.from_bounds(x - r, y - r, 2 * r, 2 * r) for r in [radius * pixel] for x, y in centres]
    taken: list[Bbox] = []
    for row, name in names.items():
        found = [_annotate(ax, points[row], name, side, away, text) for away, side in product(_AWAY, _SIDES)]
        boxes = [label.get_window_extent() for label in found]
        costs = [_cost(box, marks, taken, ax.get_window_extent()) for box in boxes]
        best = int(np.argmin(costs))  # of equals the first
        taken.append(boxes[best])
        for at, label in enumerate(found):
            if at != best:
                label.remove()


def _annotate(
    ax: Axes, point: FloatArray, name: str, side: tuple[int, int], away: float, text: dict[str, Any]
) -> Annotation:
    (x, y), horizontal, vertical = side, _ALIGN[0][side[0]], _ALIGN[1][side[1]]
    look: dict[str, Any] = {"ha": horizontal, "va": vertical, "fontsize": "small", **text}
    return ax.annotate(name, tuple(point), (x * away, y * away), textcoords="offset points", **look)


def _cost(box: Bbox, marks: Sequence[Bbox], taken: Sequence[Bbox], inside: Bbox) -> float:
    """Count the points and names that a box covers; one that leaves the axes is the last choice."""
    outside = box.x0 < inside.x0 or box.x1 > inside.x1 or box.y0 < inside.y0 or box.y1 > inside.y1
    return 100.0 * outside + 3.0 * box.count_overlaps(taken) + box.count_overlaps(marks)
