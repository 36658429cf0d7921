"""The report: one file with everything in it, and sentences that agree with the numbers."""

from __future__ import annotations

import copy
import math
import re
from pathlib import Path

from adaptation.conftest import Finished

from vocabx_utils.adaptation.report import difference, headline, lead, write_report


def test_the_report_is_one_file_that_asks_nothing_of_a_network(finished: Finished) -> None:
    page = finished.made.report.read_text(encoding="utf-8")
    assert (
        not re.findall(r"(?:src|href)=[\"'](?!data:,)[^\"'#]", page) and "<script" not in page and "@import" not in page
    )
    assert page.count("<h2") == page.count("</h2>") == 7
    for words in ("What changed", "Tokens by file type", "Continuations", "Settings and provenance", "transformers 5"):
        assert words in page
    assert "Undefined" not in page and "{{" not in page


def test_the_numbers_are_those_of_the_summary(finished: Finished) -> None:
    summary = finished.made.summary
    page = finished.made.report.read_text(encoding="utf-8")
    rows = {row["model"]: row for row in summary["likelihood"]["rows"]}
    for name in ("base", "before", "after"):
        assert f"{rows[name]['bits_per_byte']:.4f}" in page
    assert len({len(row) for row in headline(summary)}) == 1
    assert f"{summary['tokens']['gains'][-1]['saved_per_1000'] / 10:.1f} %" in lead(summary)
    assert str(finished.made) == lead(summary)


def test_a_change_of_speed_is_told_where_all_rounds_agree(finished: Finished) -> None:
    summary = copy.deepcopy(finished.made.summary)
    for ratios, told in (([0.7, 1.0, 1.2], "no clear change of speed"), ([1.1, 1.2, 1.3], "1.20 times the characters")):
        summary["generation"]["speed"] |= {"ratio": 1.2, "ratios": ratios}
        assert told in lead(summary)


def test_text_is_shown_and_not_obeyed(finished: Finished, tmp_path: Path) -> None:
    summary = copy.deepcopy(finished.made.summary)
    summary["generation"]["prompts"][0]["after"]["text"] = "<script>alert(1)</script>"
    summary["warnings"] = ["a < b"]
    write_report(tmp_path / "report.html", summary)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)" in page and "<script>" not in page and "<b>Warning:</b> a &lt; b" in page


def test_a_difference_is_spelt_with_what_it_allows() -> None:
    assert difference({"difference": 0.02, "low": 0.01, "high": 0.03}) == "0.020 above the base's [0.010, 0.030]"
    assert difference({"difference": -0.02, "low": -0.05, "high": 0.03}).endswith("which may be chance")
    assert "too few texts" in difference({"difference": -0.02, "low": -math.inf, "high": math.inf})
