"""Verdicts on claims: decided where the numbers decide, else not."""

from __future__ import annotations

import pytest

from vocabx_utils.analysis import thesis
from vocabx_utils.evaluation import claims
from vocabx_utils.evaluation.scoring import Count


def counts(bigcodebench: int, ds1000: int) -> dict[str, Count]:
    return {
        "bigcodebench": Count("bigcodebench", bigcodebench, 1022, 1140, bigcodebench),
        "ds1000": Count("ds1000", ds1000, 929, 1000, ds1000),
    }


THESIS = {row.variant: counts(row.bigcodebench, row.ds1000) for row in thesis.RESULTS if row.recipe == "lora"}


def test_the_thesis_own_counts_show_the_interaction_but_not_c14() -> None:
    assert claims.interaction(THESIS).outcome == "confirmed"
    assert claims.short_and_long(THESIS).outcome == "cannot tell"


def test_missing_variants_decide_nothing() -> None:
    few = {"mean_ce": counts(100, 100)}
    assert "random_kl" in claims.interaction(few).reason
    assert claims.short_and_long(few).outcome == "cannot tell"


def test_c14_in_all_directions() -> None:
    assert claims.short_and_long({"mean_ce": counts(100, 300), "mean_kl": counts(200, 200)}).outcome == "confirmed"
    assert claims.short_and_long({"mean_ce": counts(200, 300), "mean_kl": counts(100, 200)}).outcome == "not confirmed"


@pytest.mark.parametrize(
    ("rates", "outcome"),
    [([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], "not confirmed"), ([0.6, 0.1, 0.5, 0.2, 0.4, 0.3], "confirmed")],
)
def test_loss_as_proxy(rates: list[float], outcome: str) -> None:
    losses = {str(i): 2.0 - 0.1 * i for i in range(6)}
    assert claims.loss_as_proxy(losses, dict(zip(losses, rates, strict=True))).outcome == outcome
    assert claims.loss_as_proxy({"a": 1.0}, {"a": 0.5}).outcome == "cannot tell"
    assert claims.loss_as_proxy(losses, dict.fromkeys(losses, 0.0)).outcome == "cannot tell"


def test_density_and_prose() -> None:
    assert claims.densest_benchmark({"humaneval": 0.01}).outcome == "cannot tell"
    assert claims.densest_benchmark({"humaneval": 0.01, "ds1000": 0.02}).outcome == "confirmed"
    assert claims.densest_benchmark({"humaneval": 0.03, "ds1000": 0.02}).outcome == "not confirmed"
    assert claims.prose_failures(["no code"] * 60 + ["syntax"] * 20 + [""] * 30).outcome == "confirmed"
    assert claims.prose_failures(["syntax"] * 60).outcome == "not confirmed"
    assert claims.prose_failures(["no code"]).outcome == "cannot tell"
