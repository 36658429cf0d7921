"""The trainings of an adaptation: what they warn of and what they read."""

from __future__ import annotations

from typing import Any

import pytest
from adaptation.conftest import Finished

from vocabx_utils.adaptation import learning, proposal
from vocabx_utils.adaptation.run import _harm
from vocabx_utils.adaptation.texts import Text
from vocabx_utils.corpus import Rendered


def test_what_was_learned_is_told_by_epoch(finished: Finished) -> None:
    rows = finished.made.summary["rows"]
    assert [row["epoch"] for row in rows["metrics"]] == list(range(finished.made.summary["sweep"]["epochs"] + 1))
    assert rows["metrics"][-1]["bpb"] < rows["metrics"][0]["bpb"]
    assert len(rows["counts"]) == 6 and min(rows["counts"]) > 0
    tried = finished.made.summary["sweep"]["runs"]
    assert len(tried) >= 3
    best = min(tried, key=lambda run: run["bits_per_byte"])
    assert finished.made.summary["sweep"]["learning_rate"] == best["learning_rate"]


def test_rare_tokens_and_losses_that_do_not_fall_are_warned_of(finished: Finished) -> None:
    extension = proposal.load(finished.made.folder / finished.made.summary["tokens"]["folder"])
    [warning] = learning._rare(extension, [100, 3, 100, 100, 0, 100])
    assert (
        warning.startswith("2 of 6 new tokens occur fewer than 8 times") and repr(extension.tokens[1].text) in warning
    )
    assert not learning._rare(extension, [8] * 6)
    assert not learning._worse([{"bpb": 2.0}, {"bpb": 1.9}])
    [worse] = learning._worse([{"bpb": 2.0}, {"bpb": 2.1}])
    assert "from 2.000 (first values) to 2.100" in worse


@pytest.mark.parametrize(("low", "high", "warned"), [(0.01, 0.03, True), (-0.01, 0.03, False), (-0.03, -0.01, False)])
def test_a_model_that_predicts_worse_than_the_base_is_warned_of(low: float, high: float, warned: bool) -> None:
    row = {"model": "after", "bits_per_byte": 1.02, "difference": 0.02, "low": low, "high": high}
    found = _harm({"likelihood": {"rows": [row]}})
    assert bool(found) == warned
    if warned:
        assert "0.020 [0.010, 0.030] more bits per byte" in found[0] and "(2.0 %)" in found[0]


def test_lora_reads_all_of_a_long_text_and_pairs_whole() -> None:
    long = "".join(f"line {k}\n" for k in range(1000))
    pair = Rendered("question answer", 9)
    found: list[Any] = learning._lines([Text("a", "t", long), Text("b", "t", "question answer", pair)])
    assert "".join(found[:-1]) == long and len(found) > 4 and found[-1] is pair
