"""The thesis's results table (`tab:combined_results`) in the forms in which this wing keeps results of its own."""

from __future__ import annotations

import pandas as pd

from vocabx_utils import statistics, thesis
from vocabx_utils.evaluation.scoring import Count
from vocabx_utils.names import published_label

TOTALS = {"bigcodebench": thesis.BIGCODEBENCH_TOTAL, "ds1000": thesis.DS1000_TOTAL}
"""Problems that the thesis kept, by benchmark."""
_RECIPES = {"none": "as it is", "lora": "LoRA", "full": "full"}


def published_counts(recipe: str = "lora") -> dict[str, dict[str, Count]]:
    """Return the printed pass counts of the variants of one recipe by benchmark, as `scoring.count_passes` counts them.

    >>> published_counts()["mean_ce"]["ds1000"].passed
    319
    """
    rows = {row.variant: row for row in thesis.RESULTS if row.recipe == recipe}
    return {
        variant: {
            name: Count(name, getattr(row, name), size, size, getattr(row, name)) for name, size in TOTALS.items()
        }
        for variant, row in rows.items()
    }


def published_gains() -> pd.DataFrame:
    """Compare every printed row with the base model, the first row, which nobody had to choose afterwards.

    Returns:
        One row a model: `model`, and in percentage points its `difference` in combined pass rate with Newcombe's limits
        `low` and `high`, which ignore that all models answered the same problems.
    """
    base, *others = thesis.RESULTS
    n, rows = thesis.COMBINED_TOTAL, []
    for row in others:
        gap = statistics.difference_interval(row.combined, n, base.combined, n)
        limits = {"difference": 100 * gap.estimate, "low": 100 * gap.low, "high": 100 * gap.high}
        rows.append({"model": f"{published_label(row.variant)}, {_RECIPES[row.recipe]}", **limits})
    return pd.DataFrame(rows)
