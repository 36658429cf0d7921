"""Both strategies side by side."""

from __future__ import annotations

from typing import Any

from vocabx_utils.vocabulary.comparison import Halves, compare_strategies


def test_comparison_of_strategies(smollm_like: Any, domain: list[str]) -> None:
    halves = {"python": Halves(domain[::2], domain[1::2])}
    table = compare_strategies(halves, smollm_like, sizes=(10, 40), min_count=3)
    assert len(table) == 4 and (table.found == table.n).all()
    saved = table.set_index(["strategy", "n"]).saved_per_1000
    assert saved["merges", 40] > saved["merges", 10] > 0
    assert saved["added", 40] > saved["added", 10] > 0
