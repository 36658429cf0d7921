"""Names of points keep apart from points and from each other."""

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.transforms import Bbox

from vocabx_utils.figures.labels import name_points
from vocabx_utils.figures.theme import theme


def boxes(points: np.ndarray, names: dict[int, str]) -> tuple[plt.Axes, list[Bbox]]:
    theme()
    fig, ax = plt.subplots()
    ax.scatter(*points.T, s=34)
    ax.set(xlim=(0, 10), ylim=(0, 10))
    name_points(ax, points, names)
    fig.draw_without_rendering()
    return ax, [text.get_window_extent() for text in ax.texts]


def test_a_lonely_point_has_its_name_to_the_right_and_above() -> None:
    ax, (box,) = boxes(np.array([[5.0, 5.0]]), {0: "one"})
    x, y = ax.transData.transform((5, 5))
    assert box.x0 > x and box.y0 > y
    assert ax.texts[0].get_text() == "one"


def test_names_cover_neither_points_nor_each_other_where_there_is_room() -> None:
    points = np.array([[5.0, 5.0], [5.6, 5.3], [4.6, 5.4], [5.2, 4.5], [9.9, 9.9], [0.1, 5.0]])
    names = {row: f"token {row}" for row in range(len(points))}
    ax, placed = boxes(points, names)
    assert [text.get_text() for text in ax.texts] == list(names.values())
    assert not any(a.overlaps(b) for a, b in combinations(placed, 2))
    centres = ax.transData.transform(points)
    assert not any(box.contains(x, y) for box in placed for x, y in centres)
    inside = ax.get_window_extent()
    assert all(inside.x0 <= box.x0 and box.x1 <= inside.x1 and box.y1 <= inside.y1 for box in placed)


def test_crowded_names_are_all_written() -> None:
    points = np.full((12, 2), 5.0)
    ax, _ = boxes(points, {row: f"name {row}" for row in range(12)})
    assert len(ax.texts) == 12
