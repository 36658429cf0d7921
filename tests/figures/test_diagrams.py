"""Drawings without data: the curves of the loss and its gradient."""

import numpy as np
import pytest
from figures.figure_parts import lines

from vocabx_utils.figures.diagrams import loss_gradient_chart


def test_loss_and_gradient_values() -> None:
    drawn = lines(loss_gradient_chart())
    p, loss = drawn["cross-entropy loss, −ln p"]
    assert loss == pytest.approx([-np.log(x) for x in p])
    assert drawn["its gradient magnitude, 1/p"][1] == pytest.approx([1 / x for x in p])
