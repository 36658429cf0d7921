"""How often the rules of the claims err, and the table that says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "bench"))
from claim_rates import MOST, Case, cases, table  # noqa: E402

CASES = list(cases())
STORED = json.loads((ROOT / "results" / "bench" / "claim_rates.json").read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("case", CASES, ids=[f"{case.claim}, {case.truth}, n = {case.n}" for case in CASES])
def test_a_rule_errs_in_one_of_twenty_at_most(case: Case) -> None:
    """On fewer samples than the stored rates have; a rule that errs in one of ten would be seen with 300, too."""
    assert case.rates(draws=300)["wrong"] <= MOST


def test_the_stored_rates_are_those_of_the_script_and_none_errs_more() -> None:
    assert max(row["wrong"] for row in STORED) <= MOST
    for case, row in list(zip(CASES, STORED, strict=True))[::9]:
        assert case.rates() == row, (case.claim, case.truth)


def test_every_rule_is_tried_under_both_truths() -> None:
    assert {case.claim for case in CASES} == {"C10", "C11", "C12", "C13", "C14", "C15", "C16"}
    for claim in {case.claim for case in CASES}:
        wrong = {case.wrong for case in CASES if case.claim == claim}
        assert {("confirmed",), ("not confirmed",)} <= wrong


def test_with_enough_data_each_rule_decides() -> None:
    for claim in {case.claim for case in CASES}:
        for answer in ("confirmed", "not confirmed"):
            assert max(row[answer] for row in STORED if row["claim"] == claim) > 0.15


def test_the_page_shows_the_stored_rates() -> None:
    assert [(row["claim"], row["truth"], row["n"]) for row in STORED] == [(c.claim, c.truth, c.n) for c in CASES]
    page = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")
    assert f"<!-- claim rates -->\n{table(STORED)}\n<!-- end -->" in page
