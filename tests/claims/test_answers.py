"""Claims about benchmarks: decided where the numbers decide, else not."""

from __future__ import annotations

import pandas as pd
import pytest

from vocabx_utils import claims, thesis
from vocabx_utils.evaluation.scoring import Count


def counts(bigcodebench: int, ds1000: int) -> dict[str, Count]:
    return {
        "bigcodebench": Count("bigcodebench", bigcodebench, 1022, 1140, bigcodebench),
        "ds1000": Count("ds1000", ds1000, 929, 1000, ds1000),
    }


THESIS = {row.variant: counts(row.bigcodebench, row.ds1000) for row in thesis.RESULTS if row.recipe == "lora"}


def test_the_thesis_own_counts_show_the_interaction_but_not_c14() -> None:
    assert claims.judge_c10(THESIS).answer == "confirmed"
    assert claims.judge_c14(THESIS).answer == "cannot tell"


def test_missing_variants_decide_nothing() -> None:
    few = {"mean_ce": counts(100, 100)}
    assert "random_kl" in claims.judge_c10(few).reason
    assert claims.judge_c14(few).answer == "cannot tell"


def test_c14_in_all_directions() -> None:
    assert claims.judge_c14({"mean_ce": counts(100, 300), "mean_kl": counts(200, 200)}).answer == "confirmed"
    assert claims.judge_c14({"mean_ce": counts(200, 300), "mean_kl": counts(100, 200)}).answer == "not confirmed"


def test_stages_and_anchors_are_not_mixed() -> None:
    mixed = {"mean_ce": counts(100, 300), "tuned_mean_kl_last": counts(200, 200)}
    assert claims.judge_c14(mixed).answer == "cannot tell"
    four = {"mean_ce": counts(1, 1), "random_ce": counts(1, 1), "mean_kl_last": counts(1, 1)}
    assert claims.judge_c10(four | {"random_kl_first": counts(1, 1)}).answer == "cannot tell"
    assert "interaction" in claims.judge_c10(four | {"random_kl_last": counts(1, 1)}).reason


@pytest.mark.parametrize(
    ("rates", "answer"),
    [
        ([0.1 + 0.05 * i for i in range(12)], "not confirmed"),
        ([0.6 - 0.05 * i for i in range(12)], "confirmed"),
        ([0.6, 0.1, 0.5, 0.2, 0.4, 0.3], "cannot tell"),  # a weak correlation of six says nothing
    ],
)
def test_loss_as_proxy(rates: list[float], answer: str) -> None:
    losses = {str(i): 2.0 - 0.1 * i for i in range(len(rates))}
    assert claims.judge_c11(losses, dict(zip(losses, rates, strict=True))).answer == answer
    assert claims.judge_c11({"a": 1.0}, {"a": 0.5}).answer == "cannot tell"
    assert claims.judge_c11(losses, dict.fromkeys(losses, 0.0)).answer == "cannot tell"


def test_density() -> None:
    few, some, many = ([(k + i % 2, 100) for i in range(50)] for k in (0, 2, 9))
    assert claims.judge_c15({"humaneval": few}).answer == "cannot tell"
    assert claims.judge_c15({"humaneval": few, "ds1000": many}).answer == "cannot tell"  # no BigCodeBench
    assert claims.judge_c15({"bigcodebench": some, "ds1000": many}).answer == "confirmed"
    assert claims.judge_c15({"humaneval": many, "ds1000": some}).answer == "not confirmed"
    assert claims.judge_c15({"bigcodebench": some, "ds1000": some}).answer == "cannot tell"


def test_prose_and_ties() -> None:
    assert claims.judge_c16({"m": ["no code"] * 60 + ["syntax"] * 20 + [""] * 30}).answer == "confirmed"
    assert claims.judge_c16({"m": ["syntax"] * 60}).answer == "not confirmed"
    assert claims.judge_c16({"m": ["no code"]}).answer == "cannot tell"
    tie = claims.judge_c16({"m": ["no code"] * 60 + ["syntax"] * 60 + ["timeout"] * 60})
    assert tie.answer == "cannot tell" and "60 syntax" in tie.reason
    assert claims.judge_c16({"m": [""]}).answer == "cannot tell"


def test_sentences_follow_the_intervals() -> None:
    rows = [("base", 0.0, 0.0, 0.0), ("a", 0.3, 0.1, 0.5), ("b", -0.3, -0.5, -0.1), ("c", -0.1, -0.3, 0.1)]
    table = pd.DataFrame([{"model": m, "n": 9, "difference": d, "low": lo, "high": hi} for m, d, lo, hi in rows])
    said = claims.likelihood_sentences(table, {name: name.upper() for name, *_ in rows}, "base", "these texts")
    words = ["A is worse than the BASE", "B is better than the BASE", "C shows no difference to the BASE"]
    assert len(said) == 3 and all(word in sentence for word, sentence in zip(words, said, strict=True))
    other = claims.likelihood_sentences(table, {name: name.upper() for name, *_ in rows}, "a", "these texts")
    assert any("B is better than A:" in sentence for sentence in other)  # a variant's name takes no article
    assert "-0.1000 bits per byte [-0.3000, +0.1000], n = 9" in said[2]
