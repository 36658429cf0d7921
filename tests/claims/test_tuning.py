"""Claims about fine-tuning, and its curves."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from vocabx_utils import claims
from vocabx_utils.claims import judge_tuned

judge_c8, judge_c9 = (partial(judge, steps=(9, 9)) for judge in (claims.judge_c8, claims.judge_c9))

SIZES = [100, 200, 150, 120, 180, 90]


def snapshot(**shift):
    bits = {name: [size * (1.0 + by) for size in SIZES] for name, by in shift.items()}
    return {"bits": bits, "bytes": {name: SIZES for name in shift}}


def end(bits, sizes):
    return {"b": {"bits": {"domain": bits}, "bytes": {"domain": sizes}}}


def test_texts_are_compared_one_by_one():
    rng = np.random.default_rng(0)
    first = rng.normal(100, 5, 200)
    gap = judge_c8(end(first, [50] * 200), end(first + 3 + rng.normal(0, 1, 200), [50] * 200)).effects["domain"]
    assert gap.estimate == pytest.approx(-0.06, abs=0.005) and gap.low < gap.estimate < gap.high < 0
    none = judge_c8(end(rng.normal(0, 1, 50), [10] * 50), end(rng.normal(0, 1, 50), [10] * 50)).effects["domain"]
    assert none.low < 0 < none.high
    assert judge_c8(end([1.0], [3]), end([2.0], [3])).answer == "cannot tell"  # one text bounds nothing
    for first, second, sizes in (([1.0], [1.0, 2.0], [3]), ([], [], [])):
        with pytest.raises(ValueError, match="expected one of each"):
            judge_c8(end(first, sizes), end(second, sizes))


@pytest.mark.parametrize(("shift", "answer"), [(-0.1, "confirmed"), (0.1, "not confirmed"), (0.0, "cannot tell")])
def test_c8(shift, answer):
    verdict = judge_c8({"start": snapshot(domain=9), "b": snapshot(domain=shift)}, {"b": snapshot(domain=0)})
    assert verdict.answer == answer and "n = 6" in verdict.reason


@pytest.mark.parametrize(
    ("domain", "prose", "answer"),
    [(-0.1, -0.1, "confirmed"), (-0.1, 0.1, "not confirmed"), (0.1, -0.1, "not confirmed"), (-0.1, 0, "cannot tell")],
)
def test_c9(domain, prose, answer):
    lora = {"a": snapshot(domain=5, prose=5), "b": snapshot(domain=domain, prose=prose)}
    assert judge_c9(lora, {"c2": snapshot(domain=0, prose=0)}).answer == answer


def tuned(observed, **steps):
    return {"observed": observed, "stages": [{"stage": stage, "steps": count} for stage, count in steps.items()]}


@pytest.mark.parametrize(
    ("without", "blocks", "answers"),
    [
        (12, 4, ("confirmed", "confirmed")),
        (8, 4, ("cannot tell", "confirmed")),  # the two of stage a came on top
        (12, 2, ("confirmed", "cannot tell")),
    ],
)
def test_a_variant_that_took_more_steps_settles_nothing(without, blocks, answers):
    low, high = snapshot(domain=-0.1, prose=-0.1), snapshot(domain=0.1, prose=0.1)
    variants = {
        "m": tuned({"a": high, "b": low}, a=4, b=8),
        "m_no_a": tuned({"b": high}, b=without),
        "m_full": tuned({"c1": high, "c2": high}, c1=4, c2=blocks),
    }
    verdicts = judge_tuned(variants, "m", without_a="m_no_a", full="m_full")
    assert tuple(verdict.answer for verdict in verdicts) == answers
    for verdict, answer in zip(verdicts, answers, strict=True):
        assert ("steps each" in verdict.reason) == (answer == "confirmed")
        assert ("may have done it" in verdict.reason) == (answer == "cannot tell")


def test_variants_that_were_not_tuned_are_named():
    verdicts = judge_tuned({"m": tuned({"b": snapshot(domain=0)}, a=1, b=1)}, "m", without_a="m_no_a", full="m_full")
    assert [verdict.answer for verdict in verdicts] == ["cannot tell"] * 2
    assert "m_no_a" in verdicts[0].reason and "m_full" in verdicts[1].reason
