"""The thesis's results table in the forms of this wing."""

from __future__ import annotations

import pytest

from vocabx_utils import statistics, thesis
from vocabx_utils.evaluation.published import published_counts, published_gains


def test_counts_are_those_of_the_table() -> None:
    lora = published_counts()
    assert list(lora) == ["random_untrained", "random_ce", "mean_ce", "random_kl_first", "mean_kl_first"]
    assert sum(count.passed for count in lora["mean_kl_first"].values()) == thesis.REFERENCE.combined
    assert {name: count.kept for name, count in lora["mean_ce"].items()} == {"bigcodebench": 1022, "ds1000": 929}
    assert list(published_counts("none")) == ["base"]


def test_gains_are_differences_to_the_base_model() -> None:
    gains = published_gains().set_index("model")
    assert len(gains) == 8
    row = gains.loc["mean init, KL, LoRA"]
    assert row.difference == pytest.approx(100 * (556 - 508) / 1951)
    gap = statistics.difference_interval(556, 1951, 508, 1951)
    assert (row.low, row.high) == pytest.approx((100 * gap.low, 100 * gap.high))
    assert gains.index[gains.high < 0].tolist() == ["random init, KL, LoRA"]
