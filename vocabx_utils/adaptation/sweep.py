"""The learning rate and the number of epochs, chosen by short trainings that are judged on the validation files.

One rate does not fit all models: 1e-2 served a 135M model best, a fifth of that one of half a billion. The search walks
over a grid with two rates a decade. It begins at 3e-3 and 1e-2, goes on beyond the better end as long as bits per
byte of the validation windows fall, and stops at the first rate that is worse. Then, at the best rate, the number of
epochs is doubled as long as that closes at least a twentieth more of what training has won. Each training reads a share
of the windows (`settings.Sizes.sweep_windows`) in the same order, so that the same seed chooses the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vocabx_utils.adaptation.learning import Bench
from vocabx_utils.training.loop import NonFiniteLossError
from vocabx_utils.training.phase1_stage import Starts

GRID = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
_FIRST = (3, 4)  # places on the grid where the search begins
EPOCHS = 2  # without a sweep
_WORTH = 0.05  # share of the won bits per byte that twice as many epochs must add

Judge = Callable[[float, int], float]


def choose(judge: Judge, *, rate: float = 0.0, epochs: int = 0, max_epochs: int = 4) -> tuple[float, int]:
    """Return the learning rate and the epochs that a search ends with.

    Args:
        judge: validation bits per byte after a training with a rate and epochs; with 0 epochs, before it.
        rate, epochs: what is fixed already; 0 is searched for.

    Example:
        >>> choose(lambda rate, epochs: abs(rate - 1e-3) + 1 / (1 + epochs), epochs=1)
        (0.001, 1)
    """
    rate = rate or _best_rate(lambda r: judge(r, epochs or 1))
    return rate, epochs or _enough_epochs(lambda e: judge(rate, e), max_epochs)


def _best_rate(judge: Callable[[float], float]) -> float:
    low, high = _FIRST
    scores = {place: judge(GRID[place]) for place in _FIRST}
    step = 1 if scores[high] < scores[low] else -1
    place = high if step > 0 else low
    while 0 <= place + step < len(GRID):
        scores[place + step] = judge(GRID[place + step])
        if not scores[place + step] < scores[place]:
            break
        place += step
    return GRID[place]


def _enough_epochs(judge: Callable[[int], float], most: int) -> int:
    start, epochs = judge(0), 1
    while 2 * epochs <= most:
        won, more = start - judge(epochs), judge(epochs) - judge(2 * epochs)
        if not more > _WORTH * max(won, 0.0):
            break
        epochs *= 2
    return epochs


def sweep(bench: Bench, folder: Path) -> dict[str, Any]:
    """Choose rate and epochs, as far as the settings leave them open; each training has a folder below `folder`.

    Returns:
        `learning_rate`, `epochs`, `windows`, `tokens_per_second` (validation included), and `runs`: one mapping a
        training with rate, epochs and bits per byte (null where the loss became infinite).
    """
    settings, sizes = bench.settings, bench.sizes
    data = bench.data(sizes.sweep_windows, 1)
    starts: Starts = {}
    seen: dict[tuple[float, int], tuple[float, float]] = {}
    passed = [0, 0.0]  # tokens trained and validated, seconds

    def judge(rate: float, epochs: int) -> float:
        if epochs == 0:
            return next(start for start, _ in seen.values() if math.isfinite(start))
        if (rate, epochs) not in seen:
            config = bench.config(sizes.sweep_windows, rate, epochs)
            try:
                result = bench.train(data, config, folder / f"rate-{rate:g}-epochs-{epochs}", starts)
                passed[0] += epochs * data.train.tokens
                passed[1] += sum(row["seconds"] for row in result.metrics)
                start, end = result.metrics[0]["bpb"], result.metrics[-1]["bpb"]
                seen[rate, epochs] = start, math.inf if end is None else end
            except NonFiniteLossError:
                seen[rate, epochs] = math.nan, math.inf
            bench.tell(f"  rate {rate:g}, epochs {epochs}: {seen[rate, epochs][1]:.4f} bits per byte")
        return seen[rate, epochs][1]

    rate, epochs = choose(judge, rate=settings.learning_rate, epochs=settings.epochs, max_epochs=sizes.max_epochs)
    runs = [
        {"learning_rate": r, "epochs": e, "bits_per_byte": end if math.isfinite(end) else None, "start": start}
        for (r, e), (start, end) in seen.items()
    ]
    found = {"learning_rate": rate, "epochs": epochs, "windows": len(data.train), "runs": runs}
    return found | {"tokens_per_second": passed[0] / passed[1] if passed[1] else None}
