"""One kind of verdict: every claim has a name and a rule, and the box names each claim once."""

import inspect
import json
import math

import pytest

from vocabx_utils import claims, thesis
from vocabx_utils.claims import losses, rows
from vocabx_utils.claims.verdict import signed, told, unseen
from vocabx_utils.intervals import Interval


@pytest.mark.parametrize("claim", thesis.CLAIMS)
def test_every_claim_has_a_judge_a_name_and_a_rule(claim: str) -> None:
    judge = getattr(claims, f"judge_{claim.lower()}")
    assert judge.__doc__.startswith(f"{claim}: ")
    verdict = claims.Verdict(claim, "cannot tell", "no numbers")
    assert verdict.name.startswith(f"{claim} ") and len(verdict.rule.split()) > 5
    assert str(verdict) == f"{verdict.name}: CANNOT TELL\n   no numbers"
    told = {"claim": verdict.name, "answer": "cannot tell", "reason": "no numbers", "rule": verdict.rule}
    assert verdict.to_dict() == {**told, "effects": {}} and verdict.measured


def test_a_verdict_is_read_back_as_it_was_written() -> None:
    effects = {"a": Interval(1.5, 1.25, 2.0), "b": Interval(0.5, -math.inf, math.inf)}
    verdict = claims.Verdict("C1", "cannot tell", "seen", effects, {"a": "confirmed", "b": "cannot tell"})
    stored = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    assert stored["effects"]["b"] == {"estimate": 0.5, "low": None, "high": None, "answer": "cannot tell"}
    assert claims.Verdict.from_dict(stored) == verdict and verdict.measured
    third = claims.Verdict("C1", "confirmed", "", {"a": Interval(1 / 3, 0, 1)}).to_dict()
    assert third["effects"]["a"]["estimate"] == 0.333333
    for broken in ({"claim": "C18 more", "answer": "confirmed"}, {"claim": "C1", "answer": "perhaps"}, {}):
        with pytest.raises(ValueError, match="expected a claim from C1 to C17"):
            claims.Verdict.from_dict(broken)


def test_the_rules_in_words_name_the_limits_in_the_code() -> None:
    words = {claim: claims.Verdict(claim, "cannot tell", "").rule for claim in ("C5", "C6", "C11", "C13")}
    assert rows.STILL == rows.FEW == 0.1
    assert "a tenth" in words["C5"] and "the tenth" in words["C6"]
    assert f"{100 * rows.ENOUGH:.0f} %" in words["C6"] and f"below {losses.HALF}" in words["C13"]
    assert pytest.approx(2 / 3) == losses.COUNTED and losses.LEVEL < 0.05
    assert f"above {inspect.signature(claims.judge_c11).parameters['poor'].default}" in words["C11"]


def test_the_box_has_a_row_a_claim() -> None:
    verdict = claims.Verdict("C4", "confirmed", "seen")
    box = claims.box([verdict])
    assert box.count("\n") == 2
    assert f"| C4 | {thesis.CLAIMS['C4']} | {verdict.rule} | **confirmed** | seen |" in box


def test_agreement_names_every_claim_once_under_its_verdict() -> None:
    verdicts = [
        claims.Verdict("C4", "cannot tell", ""),
        claims.Verdict("C5", "confirmed", ""),
        claims.Verdict("C6", "not confirmed", ""),
    ]
    told = [
        *("- **Agrees with the thesis:**", f"    - C5: {thesis.CLAIMS['C5']}"),
        *("- **Does not agree with the thesis:**", f"    - C6: {thesis.CLAIMS['C6']}"),
        *("- **This run cannot tell:**", f"    - C4: {thesis.CLAIMS['C4']}"),
    ]
    assert claims.agreement(verdicts).splitlines() == told
    further = [*verdicts, claims.Verdict("C11", "cannot tell", ""), unseen("C10", "anything")]
    told += [f"    - C11: {thesis.CLAIMS['C11']}", "- **Not measured in this run:**"]
    assert claims.agreement(further).splitlines() == [*told, f"    - C10: {thesis.CLAIMS['C10']}"]
    assert claims.agreement(verdicts[:1]).splitlines()[0].endswith("nothing.")


def test_what_was_not_measured_has_the_same_word_everywhere() -> None:
    verdict = unseen("C10", "anything")
    assert verdict.word == "not measured" and verdict.to_dict()["answer"] == "cannot tell"
    assert "| **not measured** |" in claims.box([verdict]) and "NOT MEASURED" in str(verdict)
    setting = claims.Setting("one", "first", "2026-01-01", None, {"C10": verdict})
    assert setting.answer("C10") == setting.answer("C11") == "not measured"


def test_intervals_in_words() -> None:
    inf = float("inf")
    assert told(Interval(0.5, -inf, inf), 1, "settings") == "0.500 (one run, no interval)"
    assert told(Interval(0.5, -inf, inf), 2, "sizes") == "0.500 (n = 2 sizes, too few for an interval)"
    assert signed(Interval(1, 0, 3), -1) == Interval(-1, -3, 0)
