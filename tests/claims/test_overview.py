"""The verdicts of a run and of the stored results stand in one table, built from files."""

from __future__ import annotations

import sys
from pathlib import Path

import collect_claims
import pytest

from vocabx_utils import claims, files, paths, runs, thesis
from vocabx_utils.claims import Setting, Verdict
from vocabx_utils.intervals import Interval

ROOT = Path(__file__).parents[2]


def seen(claim: str, answer: str = "confirmed", reason: str = "seen", **parts: str) -> Verdict:
    return Verdict(claim, answer, reason, dict.fromkeys(parts or ["a"], Interval(1.0, 0.5, 2.0)), parts)  # type: ignore[arg-type]


def write(run: runs.Run, stage: str, *verdicts: Verdict) -> None:
    files.write_json(run.folder / stage / "verdicts.json", [verdict.to_dict() for verdict in verdicts])


def test_the_verdicts_of_a_run_are_collected_in_the_claims_order(tmp_path: Path) -> None:
    run = runs.Run("mine", tmp_path)
    write(run, "03_phase1_training", seen("C13"), seen("C2"), seen("C6", "cannot tell"))
    write(run, "06_mechanistic_analysis", seen("C6", "not confirmed"))
    for stage, date in (("03_phase1_training/mean_ce", "2026-01-31"), ("06_mechanistic_analysis", "2026-02-01")):
        provenance = {"finished": f"{date}T10:00:00+00:00", "git": f"rev of {stage[:2]}"}
        files.write_json(tmp_path / stage / "provenance.json", provenance)
    found = claims.collect(run)
    assert list(found.verdicts) == ["C2", "C6", "C13"]
    assert found.verdicts["C6"].answer == "not confirmed"  # the later notebook looked closer
    assert (found.name, found.title, found.date, found.revision) == ("mine", "mine run", "2026-02-01", "rev of 06")
    assert not claims.collect(runs.Run("empty", tmp_path / "empty")).verdicts


@pytest.mark.parametrize("content", [[{"claim": "C8", "verdict": "confirmed"}], ["C8"], 3])
def test_what_is_no_list_of_verdicts_is_named(tmp_path: Path, content: object) -> None:
    files.write_json(tmp_path / "04_fine_tuning" / "verdicts.json", content)
    with pytest.raises(ValueError, match=r"04_fine_tuning.*holds no list of verdicts"):
        claims.collect(runs.Run("broken", tmp_path))


def test_runs_of_older_versions_are_read(tmp_path: Path) -> None:
    tuned = {"C8, m, here": seen("C8").to_dict(), "C8, Qwen": seen("C8", "not confirmed").to_dict()}
    files.write_json(tmp_path / "04_fine_tuning" / "verdicts.json", tuned)
    answered = [{"claim": "C10", "outcome": "cannot tell", "reason": "too few"}]
    files.write_json(tmp_path / "05_benchmark_evaluation" / "verdicts.json", answered)
    found = claims.collect(runs.Run("older", tmp_path)).verdicts
    assert {claim: verdict.answer for claim, verdict in found.items()} == {"C8": "confirmed", "C10": "cannot tell"}


def test_settings_are_read_back_with_the_quick_run_first(tmp_path: Path) -> None:
    large = Setting("large", "L", "2026-01-01", None, {"C1": seen("C1", left="confirmed")})
    quick = Setting("quick", "Q", "2026-01-02", "abc", {"C2": seen("C2")})
    assert [large.write(tmp_path).name, quick.write(tmp_path).name] == ["large.json", "quick.json"]
    assert claims.read_settings(tmp_path) == [quick, large]
    assert claims.read_settings(tmp_path / "nothing") == []


def test_the_table_has_a_row_a_claim_and_a_column_a_setting() -> None:
    parts = seen("C1", "cannot tell", left="confirmed", right="cannot tell")
    unmeasured = Verdict("C3", "cannot tell", "not measured here: anything")
    one = Setting("one", "first", "2026-01-01", None, {"C1": parts, "C2": seen("C2"), "C3": unmeasured})
    head, _, *rows = claims.overview([one, Setting("two", "second", "2026-01-01", None, {})]).splitlines()
    assert head == "| claim | what the thesis says | confirmed if | first | second |"
    assert [row.split(" | ")[0] for row in rows] == [f"| {claim}" for claim in thesis.CLAIMS]
    assert rows[0].endswith("| cannot tell (left confirmed) | not measured |")
    assert rows[1].endswith("| **confirmed** | not measured |") and parts.rule in rows[0]
    assert rows[2].endswith("| not measured | not measured |")


def test_one_claim_is_told_with_what_the_thesis_also_says() -> None:
    setting = Setting("one", "first", "2026-01-01", None, {"C7": seen("C7", reason="0.9 [0.8, 0.95]")})
    told = claims.tell("C7", [setting])
    assert thesis.CLAIMS["C7"] in told and thesis.ALSO["C7"] in told and seen("C7").rule in told
    assert told.endswith("- *first* (2026-01-01): **confirmed**: 0.9 [0.8, 0.95]")
    assert "And also" not in claims.tell("C13", [setting]) and "**not measured**" in claims.tell("C13", [setting])


def test_the_stored_results_are_judged_and_kept() -> None:
    now = [f(ROOT / "results") for f in (claims.collect_stored, claims.collect_reproduction)]
    kept = {setting.name: setting for setting in claims.read_settings(ROOT / "results" / "claims")}
    assert set(kept) >= {"quick", "large", "reproduction"}
    told = {name: [v.to_dict() for v in found.verdicts.values()] for name, found in kept.items()}
    for found in now:
        assert told[found.name] == [v.to_dict() for v in found.verdicts.values()], "python tools/collect_claims.py"
    for verdict in (verdict for setting in kept.values() for verdict in setting.verdicts.values()):
        assert verdict.answer == "cannot tell" or verdict.effects, verdict.claim
    assert {"C1", "C4", "C8", "C10"} <= set(kept["quick"].verdicts)  # one of each notebook that judges
    assert all(verdict.measured for verdict in kept["reproduction"].verdicts.values())


def test_without_stored_results_nothing_is_measured(tmp_path: Path) -> None:
    found = claims.judge_stored(tmp_path)
    assert {verdict.answer for verdict in found} == {"cannot tell"} and not any(verdict.measured for verdict in found)


def test_the_tool_keeps_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VOCABX_ROOT", str(tmp_path))
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path / "runs"))
    assert collect_claims.main(["mine"]) == 1 and "no notebook of this run" in capsys.readouterr().out
    write(runs.Run("mine", paths.runs_root() / "mine"), "03_phase1_training", seen("C1"))
    assert collect_claims.main(["mine"]) == 0 and collect_claims.main([]) == 0
    assert [setting.name for setting in claims.read_settings(tmp_path / "results" / "claims")] == ["large", "mine"]
    assert sys.modules["collect_claims"].__doc__
