"""Claims about phase 1 as a whole: decided where an interval decides, else not."""

from __future__ import annotations

from typing import Any

import pytest

from vocabx_utils import claims

NAMES = ("M, python", "M, headers", "Q, python", "Q, headers")
FACTORS = (1.0, 1.02, 0.98, 1.01)  # settings differ a little


def over(results: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Four settings whose last line of each variant differs by a few per cent."""
    return {
        title: {
            name: [
                *lines[:1],
                *({key: value * factor ** (1 + at) for key, value in last.items()} for last in lines[1:]),
            ]
            for at, (name, lines) in enumerate(results.items())
        }
        for title, factor in zip(NAMES, FACTORS, strict=True)
    }


def one(results: dict[str, Any]) -> dict[str, Any]:
    return {"this run": results}


def lines(key: str, **last: float) -> dict[str, list[dict[str, float]]]:
    """A start, and two epochs of which the last changes nothing: the loss has levelled off."""
    return {name: [{key: 1.0}, {key: value}, {key: value}] for name, value in last.items()}


@pytest.mark.parametrize(("end", "answer"), [(1.3, "confirmed"), (0.7, "not confirmed"), (1.005, "cannot tell")])
def test_c1(end: float, answer: str) -> None:
    results = lines("kl_pooled", mean_ce=end)
    assert claims.judge_c1(over(results)).answer == answer
    alone = claims.judge_c1(one(results))
    assert alone.answer == "cannot tell" and "one run, no interval" in alone.reason
    assert claims.judge_c1({}).reason.startswith("not measured here")


def test_runs_of_one_model_and_corpus_are_one_setting() -> None:
    twice = {"M, python": lines("kl_pooled", mean_ce=1.3), "M, python, N = 100": lines("kl_pooled", mean_ce=1.31)}
    assert "one run, no interval" in claims.judge_c1(twice).reason


def test_c1_has_an_answer_for_each_start() -> None:
    mean, random = over(lines("kl_pooled", mean_ce=1.3)), one(lines("kl_pooled", random_ce=0.9))
    verdict = claims.judge_c1(mean | random)
    assert verdict.answer == "cannot tell"
    assert verdict.parts == {"from mean rows": "confirmed", "from random rows": "cannot tell"}
    assert "n = 4 settings (confirmed); from random rows 0.900 (one run, no interval) (cannot tell)" in verdict.reason
    both = claims.judge_c1(over(lines("kl_pooled", mean_ce=1.3, random_ce=0.7)))
    assert both.answer == "not confirmed" and both.parts["from mean rows"] == "confirmed"


@pytest.mark.parametrize(("init", "objective", "answer"), [(1.5, 1.05, "confirmed"), (1.1, 2.0, "not confirmed")])
def test_c2(init: float, objective: float, answer: str) -> None:
    results = lines("ce", mean_ce=1.0, mean_kl_first=objective, mean_kl_last=1.0, random_kl_last=init)
    assert claims.judge_c2(over(results)).answer == answer
    assert claims.judge_c2(one(results)).answer == "cannot tell"


def test_c3() -> None:
    assert claims.judge_c3(over(lines("kl_pooled", random_kl_first=0.5, mean_kl_first=0.6))).answer == "confirmed"
    assert claims.judge_c3(over(lines("kl_pooled", random_kl_first=0.7, mean_kl_first=0.6))).answer == "not confirmed"
    assert claims.judge_c3(one(lines("kl_pooled", random_kl_first=0.5, mean_kl_first=0.6))).answer == "cannot tell"
    assert claims.judge_c3(over(lines("kl_pooled_last", random_kl_last=0.5, mean_kl_last=0.6))).answer == "confirmed"


def curve(key: str, *values: float) -> list[dict[str, float]]:
    return [{key: value} for value in values]


@pytest.mark.parametrize("still", [(1.0, 0.9, 0.9 / 1.04), (1.0, 0.5)])  # two points do not show that it levelled off
def test_a_loss_that_still_moves_says_nothing_about_the_end(still: tuple[float, ...]) -> None:
    results = lines("kl_pooled_last", mean_kl_last=0.6) | {"random_kl_last": curve("kl_pooled_last", *still)}
    verdict = claims.judge_c3({title: results for title in NAMES})
    assert verdict.answer == "cannot tell" and verdict.measured and not verdict.effects
    assert "has not levelled off: random_kl_last of M, python, random_kl_last of M, headers" in verdict.reason
    results = lines("ce", mean_ce=1.0, mean_kl_first=1.05, mean_kl_last=1.0) | {"random_kl_last": curve("ce", *still)}
    assert not claims.judge_c2(over(results)).effects
    assert claims.judge_c2(over({**results, **lines("ce", random_kl_last=1.5)})).answer == "confirmed"


def test_c7_compares_with_both_untrained_starts() -> None:
    starts = {"mean_untrained": 1.0, "random_untrained": 1.3}
    assert claims.judge_c7(over(lines("bpb", **starts))).answer == "cannot tell"
    for end, answer in ((0.9, "confirmed"), (1.1, "not confirmed"), (0.995, "cannot tell")):
        assert claims.judge_c7(over(lines("bpb", **starts, mean_ce=end))).answer == answer
    assert claims.judge_c7(one(lines("bpb", **starts, mean_ce=0.5))).answer == "cannot tell"


def sizes(*kept: float) -> dict[int, dict[str, float]]:
    return {100 * 2**at: {"share": 0.01 * 2**at, "kept": value} for at, value in enumerate(kept)}


def test_c12_needs_three_sizes() -> None:
    assert claims.judge_c12({"M": sizes(0.9, 0.8, 0.69, 0.6)}).answer == "confirmed"
    assert claims.judge_c12({"M": sizes(0.6, 0.7, 0.81, 0.9)}).answer == "not confirmed"
    assert claims.judge_c12({"M": sizes(0.9, 0.7)}).answer == "cannot tell"
    assert claims.judge_c12({"M": sizes(0.9)}).reason.startswith("not measured here")
    assert claims.judge_c12({}).reason.startswith("not measured here")


def test_c12_leaves_out_sizes_whose_tokens_had_no_examples() -> None:
    gains = sizes(0.9, 0.8, 0.69, 0.6)
    gains[800]["untaught"] = 0.25
    verdict = claims.judge_c12({"M": gains})
    assert verdict.effects == claims.judge_c12({"M": sizes(0.9, 0.8, 0.69)}).effects
    assert "25% of the new tokens without a training example" in verdict.reason
    gains = {size: row | {"untaught": 0.25 * (size > 100)} for size, row in gains.items()}
    alone = claims.judge_c12({"M": gains})
    assert alone.answer == "cannot tell" and alone.reason.startswith("no two sizes")


def test_c13() -> None:
    two = [1.0, 1.1, 0.9, 1.0, 1.05]
    for ratio, answer in ((0.5, "confirmed"), (0.75, "not confirmed"), (0.6, "cannot tell")):
        once = [seconds * ratio * noise for seconds, noise in zip(two, (1, 1.02, 0.98, 1.01, 0.99), strict=True)]
        assert claims.judge_c13(once, two).answer == answer
    alone = claims.judge_c13([0.5], [1.0])
    assert alone.answer == "cannot tell" and "counting passes alone gives 0.67" in alone.reason


@pytest.mark.parametrize(("both", "answer"), [(0.8, "confirmed"), (1.2, "not confirmed"), (1.0, "cannot tell")])
def test_c17(both: float, answer: str) -> None:
    last = {"mean_kl_last": 1.0, "mean_kl_last_t2": 1.0, "mean_kl_last_ce0.3": 1.0, "mean_kl_last_ce0.3_t2": both}
    results = {name: [{"bpb": value, "kl_last": value}] for name, value in last.items()}
    assert claims.judge_c17(over(results)).answer == answer
    assert claims.judge_c17(one(results)).answer == "cannot tell"
    assert claims.judge_c17({}).reason.startswith("not measured here")
