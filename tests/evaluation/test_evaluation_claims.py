"""Verdicts on claims: decided where the numbers decide, else not."""

from __future__ import annotations

import pandas as pd
import pytest

from vocabx_utils import thesis
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


def test_stages_and_anchors_are_not_mixed() -> None:
    mixed = {"mean_ce": counts(100, 300), "tuned_mean_kl_last": counts(200, 200)}
    assert claims.short_and_long(mixed).outcome == "cannot tell"
    four = {"mean_ce": counts(1, 1), "random_ce": counts(1, 1), "mean_kl_last": counts(1, 1)}
    assert claims.interaction(four | {"random_kl_first": counts(1, 1)}).outcome == "cannot tell"
    assert "interaction" in claims.interaction(four | {"random_kl_last": counts(1, 1)}).reason


@pytest.mark.parametrize(
    ("rates", "outcome"),
    [
        ([0.1 + 0.05 * i for i in range(12)], "not confirmed"),
        ([0.6 - 0.05 * i for i in range(12)], "confirmed"),
        ([0.6, 0.1, 0.5, 0.2, 0.4, 0.3], "cannot tell"),  # a weak correlation of six says nothing
    ],
)
def test_loss_as_proxy(rates: list[float], outcome: str) -> None:
    losses = {str(i): 2.0 - 0.1 * i for i in range(len(rates))}
    assert claims.loss_as_proxy(losses, dict(zip(losses, rates, strict=True))).outcome == outcome
    assert claims.loss_as_proxy({"a": 1.0}, {"a": 0.5}).outcome == "cannot tell"
    assert claims.loss_as_proxy(losses, dict.fromkeys(losses, 0.0)).outcome == "cannot tell"


def test_density() -> None:
    few, some, many = ([(k + i % 2, 100) for i in range(50)] for k in (0, 2, 9))
    assert claims.densest_benchmark({"humaneval": few}).outcome == "cannot tell"
    assert claims.densest_benchmark({"humaneval": few, "ds1000": many}).outcome == "cannot tell"  # no BigCodeBench
    assert claims.densest_benchmark({"bigcodebench": some, "ds1000": many}).outcome == "confirmed"
    assert claims.densest_benchmark({"humaneval": many, "ds1000": some}).outcome == "not confirmed"
    assert claims.densest_benchmark({"bigcodebench": some, "ds1000": some}).outcome == "cannot tell"


def test_prose_and_ties() -> None:
    assert claims.prose_failures({"m": ["no code"] * 60 + ["syntax"] * 20 + [""] * 30}).outcome == "confirmed"
    assert claims.prose_failures({"m": ["syntax"] * 60}).outcome == "not confirmed"
    assert claims.prose_failures({"m": ["no code"]}).outcome == "cannot tell"
    tie = claims.prose_failures({"m": ["no code"] * 60 + ["syntax"] * 60 + ["timeout"] * 60})
    assert tie.outcome == "cannot tell" and "60 syntax" in tie.reason
    assert claims.prose_failures({"m": [""]}).outcome == "cannot tell"


def test_sentences_follow_the_intervals() -> None:
    rows = [("base", 0.0, 0.0, 0.0), ("a", 0.3, 0.1, 0.5), ("b", -0.3, -0.5, -0.1), ("c", -0.1, -0.3, 0.1)]
    table = pd.DataFrame([{"model": m, "n": 9, "difference": d, "low": lo, "high": hi} for m, d, lo, hi in rows])
    said = claims.likelihood_sentences(table, {name: name.upper() for name, *_ in rows}, "base", "these texts")
    words = ["A is worse than BASE", "B is better than BASE", "C shows no difference to BASE"]
    assert len(said) == 3 and all(word in sentence for word, sentence in zip(words, said, strict=True))
    assert "-0.1000 bits per byte [-0.3000, +0.1000], n = 9" in said[2]
