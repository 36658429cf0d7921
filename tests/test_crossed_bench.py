"""Seeds and texts drawn together: against the truth, against plain sums, and at their borders."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from bench_scripts import bench, scripts  # noqa: F401  (a fixture of every test here)


def crossed_bootstrap(*given: Any, **options: Any) -> Any:
    return bench("crossed").crossed_bootstrap(*given, **options)


def seeds_and_texts(rng: np.random.Generator, of_seed: float, of_text: float) -> tuple[np.ndarray, ...]:
    """Sums (5, T) of two sides whose true means lie 0.1 apart, and sizes (T,)."""
    sizes = rng.integers(500, 3000, 60).astype(float)
    gap = 0.1 + rng.normal(0, of_seed, (5, 1)) + rng.normal(0, of_text, (1, 60)) + rng.normal(0, 0.1, (5, 60))
    shared = 5 + rng.normal(0, 1, (1, 60))
    return (shared + gap) * sizes, np.broadcast_to(shared, gap.shape) * sizes, sizes


@pytest.mark.parametrize(("of_seed", "of_text"), [(0.1, 0.02), (0.0, 0.3), (0.05, 0.2)])
def test_seeds_and_texts_together_cover_the_truth(of_seed: float, of_text: float) -> None:
    rng = np.random.default_rng(0)
    found = [crossed_bootstrap(*seeds_and_texts(rng, of_seed, of_text), resamples=500, seed=s) for s in range(200)]
    assert 0.90 <= np.mean([interval.low <= 0.1 <= interval.high for interval in found]) <= 0.99


def test_seeds_and_texts_against_plain_sums() -> None:
    one, two, sizes = seeds_and_texts(np.random.default_rng(3), 0.1, 0.2)
    means = [np.mean([row.sum() / sizes.sum() for row in side]) for side in (one, two)]
    absolute, relative = (crossed_bootstrap(one, two, sizes, relative=kind) for kind in (False, True))
    assert absolute.estimate == pytest.approx(means[0] - means[1])
    assert relative.estimate == pytest.approx(means[0] / means[1] - 1)
    assert absolute == crossed_bootstrap(one, two, sizes)
    assert absolute.low < absolute.estimate < absolute.high and (relative.low > 0) == (absolute.low > 0)
    same = crossed_bootstrap(one, one, sizes)
    assert (same.estimate, same.low, same.high) == (0, 0, 0)
    assert crossed_bootstrap(one[:1], two[:1], sizes).high == math.inf


def test_seeds_and_texts_refuse_what_does_not_fit() -> None:
    values = np.ones((2, 3))
    with pytest.raises(ValueError, match=r"expected \(S, T\)"):
        crossed_bootstrap(values, values, [1.0, 2.0])
    for sizes in ([-1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [math.nan, 1.0, 1.0]):
        with pytest.raises(ValueError, match="must be finite"):
            crossed_bootstrap(values, values, sizes)
