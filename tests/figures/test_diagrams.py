"""Drawings without data: the curves of the loss and its gradient."""

import numpy as np
import pytest
from figures.figure_parts import lines

from vocabx_utils.figures.diagrams import draw_diagram, loss_gradient_chart, pipeline_diagram
from vocabx_utils.paths import project_root


def test_the_pipeline_has_every_notebook_in_a_box_that_nothing_else_touches() -> None:
    ax = pipeline_diagram()
    ax.figure.canvas.draw()
    named = {text.get_text()[:2] for text in ax.texts if text.get_text()[:2].isdigit()}
    notebooks = {path.name[:2] for path in (project_root() / "notebooks").glob("[0-9]*.ipynb")}
    assert named == notebooks - {"00"}
    boxes = [patch.get_window_extent() for patch in ax.patches]
    for text in (text for text in ax.texts if text.get_text()):
        around = text.get_window_extent()
        assert sum(box.overlaps(around) for box in boxes) == text.get_text()[:2].isdigit(), text.get_text()


def test_the_text_of_the_pipeline_names_every_notebook() -> None:
    alt = draw_diagram(pipeline_diagram).alt
    assert all(name in alt for name in ("01", "02", "03", "04", "05", "06", "07"))


def test_loss_and_gradient_values() -> None:
    drawn = lines(loss_gradient_chart())
    p, loss = drawn["cross-entropy loss, −ln p"]
    assert loss == pytest.approx([-np.log(x) for x in p])
    assert drawn["its gradient magnitude, 1/p"][1] == pytest.approx([1 / x for x in p])
