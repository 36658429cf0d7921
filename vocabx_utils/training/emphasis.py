"""Which aligned pairs an objective compares, and how much each of them counts.

A long span changes the student most right where it ends. An objective may weigh that boundary and the positions behind
it more than others, or compare nowhere else (`objectives.Objective.end_weight`, `after`, `end_only`).

Shapes: P pairs of an anchor, K of them compared.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vocabx_utils.training.examples import AlignedExample, Ints
from vocabx_utils.training.objectives import Objective


def near_ends(example: AlignedExample, objective: Objective) -> npt.NDArray[np.bool_]:
    """Tell which pairs end a divergent group, or lie at most `after` student tokens behind such an end, (P,)."""
    places, merged = example.pairs[objective.anchor][:, 1], example.merged[objective.anchor]
    ends = np.concatenate([[-1 - objective.after], places[merged]])  # the first one is far from every place
    return places - ends[np.searchsorted(ends, places, side="right") - 1] <= objective.after


def chosen_pairs(example: AlignedExample, objective: Objective) -> npt.NDArray[np.bool_] | None:
    """Tell which pairs of its anchor an objective compares, (P,) of which K are True; None for all of them."""
    return near_ends(example, objective) if objective.end_only else None


def pair_weights(example: AlignedExample, objective: Objective) -> npt.NDArray[np.float64] | None:
    """Return the weight of each compared pair, (K,), or None where all weigh 1."""
    if objective.end_only or objective.end_weight == 1:
        return None
    return np.where(near_ends(example, objective), objective.end_weight, 1.0)


def count_pairs(example: AlignedExample, objective: Objective) -> tuple[int, float, Ints]:
    """Return how many pairs are compared, what all weigh together, and the student's positions of the compared ones.

    The sum is what the loss divides by: with it the identical pairs before the divergence, of KL 0 and weight 1, unless
    the objective compares at ends only.
    """
    chosen, weights = chosen_pairs(example, objective), pair_weights(example, objective)
    places = example.pairs[objective.anchor][:, 1]
    if chosen is not None:
        places = places[chosen]
    total = len(places) if weights is None else float(weights.sum())
    return len(places), total + (0 if objective.end_only else example.prefix_pairs), places
