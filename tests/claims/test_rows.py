"""Claims about rows follow from planted numbers, in all three directions; the sample is new tokens or texts."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixtures.tiny_run import build_run

from vocabx_utils import claims
from vocabx_utils.analysis import similarity
from vocabx_utils.rows import read_histories, read_tokens


def cosines(gains: dict[str, tuple[float, float]], n: int = 40, noise: float = 0.01) -> pd.DataFrame:
    """Gains of the first and the last cosine from epoch 0 to 2, by variant."""
    rng = np.random.default_rng(1)
    rows = []
    for variant, (first, last) in gains.items():
        for token in range(n):
            for position, gain in (("first", first), ("intermediate", 0.0), ("last", last)):
                for epoch in (0, 2):
                    value = 0.5 + gain * epoch / 2 + noise * rng.normal()
                    rows.append((variant, "input", epoch, token, position, value))
    return pd.DataFrame(rows, columns=["variant", "matrix", "epoch", "token", "position", "cosine"])


@pytest.mark.parametrize(
    ("gains", "noise", "answer"),
    [
        ({"random_kl_last": (0.1, 0.02), "random_ce": (0.01, 0.05)}, 0.01, "confirmed"),
        ({"random_kl_last": (0.1, 0.02), "random_ce": (0.05, 0.01)}, 0.01, "not confirmed"),
        ({"random_kl_last": (0.1, 0.02), "random_ce": (0.0, 0.0)}, 0.05, "cannot tell"),
        ({"random_kl_last": (0.1, 0.02)}, 0.01, "cannot tell"),  # CE is lacking
        ({"random_ce": (0.05, 0.01)}, 0.01, "not confirmed"),  # one that turns the other way is enough
        ({"random_hidden_last": (0.1, 0.0), "random_kl_last_ce0.3": (0.1, 0.0), "mean_ce": (0.1, 0)}, 0, "cannot tell"),
    ],
)
def test_c4(gains: dict[str, tuple[float, float]], noise: float, answer: str) -> None:
    assert claims.judge_c4(claims.training_ends(cosines(gains, noise=noise)), "tokens").answer == answer


def test_c4_subtracts_the_start_and_names_its_sample() -> None:
    before, after = {"first": [0.3, 0.5], "last": [0.1, 0.2]}, {"first": [0.31, 0.51], "last": [0.15, 0.25]}
    verdict = claims.judge_c4({"random_ce": (before, after)}, "settings")
    assert verdict.effects["random_ce"].estimate == pytest.approx(-0.04)
    assert "n = 2 settings" in verdict.reason and verdict.reason.endswith("not measured here: random_kl")
    one = {name: ({"first": [0.0], "last": [0.0]}, {"first": [0.1], "last": [0.0]}) for name in ("random_kl_first",)}
    assert "one run, no interval" in claims.judge_c4(one, "settings").reason
    assert claims.judge_c4({}, "tokens").reason == "not measured here: random_ce and random_kl"


def test_a_start_at_the_mean_counts_for_c5_only() -> None:
    ends = claims.training_ends(cosines({"mean_ce": (0.0, 0.0), "random_ce": (0.3, 0.3), "random_kl_last": (0.3, 0.3)}))
    assert set(claims.judge_c4(ends, "tokens").effects) == {"random_ce", "random_kl_last"}
    assert set(claims.judge_c5(ends, 0.6, 0.7).effects) == {"mean_ce"}


@pytest.mark.parametrize(
    ("gains", "noise", "answer"),
    [
        ({"mean_ce": (0.01, 0.01)}, 0.01, "confirmed"),
        ({"mean_ce": (-0.2, -0.2)}, 0.01, "not confirmed"),
        ({"mean_ce": (0.01, 0.01), "mean_kl_last": (0.2, 0.2)}, 0.01, "not confirmed"),
        ({"mean_ce": (0.01, 0.01), "mean_hidden_last": (0.2, 0.2)}, 0.01, "confirmed"),  # not the thesis's objective
        ({"mean_ce": (0.0, 0.0)}, 1.0, "cannot tell"),
        ({"mean_ce": (0.2, -0.2)}, 0.0, "confirmed"),  # the mean of both ends
        ({"random_ce": (0.9, 0.9)}, 0.01, "cannot tell"),
    ],
)
def test_c5(gains: dict[str, tuple[float, float]], noise: float, answer: str) -> None:
    verdict = claims.judge_c5(claims.training_ends(cosines(gains, noise=noise)), 0.6, 0.7)
    assert verdict.answer == answer
    assert ("alone gives 0.600 (0.700" in verdict.reason) == ("mean_ce" in gains)


def test_c5_over_settings_says_nothing_of_subtokens_that_it_does_not_know() -> None:
    side = {"first": [0.6, 0.5, 0.55], "last": [0.7, 0.6, 0.65]}
    verdict = claims.judge_c5({"mean_ce": (side, side)}, sample="settings")
    assert verdict.answer == "confirmed" and verdict.reason.endswith("n = 3 settings")


def test_the_limit_of_c5_is_a_tenth_of_the_start() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, 100)
    start = np.append(0.6 + noise, np.nan)  # a token without subtokens has no cosine
    for change, answer in ((0.01, "confirmed"), (-0.2, "not confirmed"), (0.061, "cannot tell")):
        end = start + change + 3 * np.append(noise[::-1], 0)
        ends = {"mean_kl_last": ({"first": start, "last": start}, {"first": end, "last": end})}
        verdict = claims.judge_c5(ends, 0.6, 0.7)
        assert verdict.answer == answer and "n = 100 tokens" in verdict.reason


@pytest.mark.parametrize("sample", ["tokens", "texts"])
def test_c6(sample: str) -> None:
    rng = np.random.default_rng(0)
    start = rng.uniform(1, 3, 60)
    end = 0.2 * start * rng.uniform(0.8, 1.2, 60)
    few = {share: start - share * (start - end) * rng.uniform(0.95, 1.05, 60) for share in (0.97, 0.6, 0.9)}
    for share, answer in ((0.97, "confirmed"), (0.6, "not confirmed"), (0.9, "cannot tell")):
        verdict = claims.judge_c6({"random_ce": (start, few[share], end)}, sample)
        assert verdict.answer == answer and f"n = 60 {sample}" in verdict.reason
        assert "random init, CE 0." in verdict.reason  # labels, as in tables and legends
    both = {"random_ce": (start, few[0.97], end), "random_kl_last": (start, few[0.6], end)}
    mixed = claims.judge_c6(both, sample)
    assert mixed.answer == "not confirmed" and mixed.effects["random_kl_last"].estimate == pytest.approx(0.6, abs=0.01)
    none = claims.judge_c6({"random_ce": (start, start, start * rng.uniform(0.9, 1.1, 60))}, sample)
    assert none.answer == "cannot tell" and "no certain gain" in none.reason
    assert claims.judge_c6({"random_ce": (start[:1], few[0.97][:1], end[:1])}, sample).answer == "cannot tell"
    assert claims.judge_c6({}, sample).answer == "cannot tell"


def test_c6_is_decided_by_random_starts_and_by_the_thesis_objectives() -> None:
    rng = np.random.default_rng(0)
    start = rng.uniform(1, 3, 60)
    end, few = 0.2 * start * rng.uniform(0.8, 1.2, 60), start * rng.uniform(0.6, 0.7, 60)
    sums = (start, few, end)  # little of the gain is kept
    others = {"mean_kl_last": sums, "random_hidden_last": sums, "random_kl_last_ce0.3": sums}
    verdict = claims.judge_c6(others, "texts")
    assert verdict.answer == "cannot tell" and set(verdict.parts.values()) == {"not confirmed"}
    assert verdict.reason.endswith("not measured here: a random start, from which the thesis argues")
    assert claims.judge_c6({**others, "random_ce": (start, end, end)}, "texts").answer == "confirmed"
    assert claims.judge_c6({**others, "random_ce": sums}, "texts").answer == "not confirmed"


def test_cosines_of_a_run_with_a_planted_turn(tmp_path: Path) -> None:
    tiny = build_run(tmp_path, width=512, vocab_size=200, n=24)
    histories = read_histories(tiny.run)
    table = similarity.cosines_by_epoch(histories.values(), read_tokens(tiny.run), tiny.original)  # type: ignore[arg-type]
    ends = claims.training_ends(table)
    assert set(ends) == {name for name, history in histories.items() if history.last > 0}
    found = claims.judge_c4(ends, "tokens")  # KL was planted to pull to the first subtoken
    assert found.effects["random_kl_last"].low > 0 and found.answer == "cannot tell"  # there is no random_ce
