"""docs/performance.md holds what the committed result files hold, and says so where they hold nothing."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "bench"))
    return importlib.import_module("report")


def page(report: Any, results: Path, folder: Path) -> str:
    folder.mkdir()
    shutil.copy(ROOT / "docs" / "performance.md", folder)
    report.write(results, folder)
    return (folder / "performance.md").read_text(encoding="utf-8")


def test_the_committed_page_is_what_the_files_say(report: Any, tmp_path: Path) -> None:
    committed = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert page(report, ROOT / "results" / "bench", tmp_path / "docs") == committed


def test_numbers_come_from_files_and_goals_are_judged(report: Any, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    empty = page(report, results, tmp_path / "empty")
    assert empty.count("not measured |") >= 4 and not (tmp_path / "empty" / "figures" / "cost.svg").exists()
    both = {
        "tokens_per_s": {"literal": 1000.0, "plain": 1200.0, "ours": 2345.0, "floor": None}, "speedup_vs_plain": 2.5,
        "speedup_vs_literal": 3.0, "peak_bytes": 12e9, "peak_ratio_vs_plain": 0.3, "floor_share": None,
        "ceiling_share": 0.4, "teacher_ceiling_share": None, "teacher_file_share": 0.2, "busy_host_ratio": 0.95,
    }  # fmt: skip
    row = {key: {"unfused": value, "fused": value} for key, value in both.items()}
    row |= {"time_to_quality_ratio": 0.1, "device": "Some GPU", "versions": {}, "date": "2000-01-01"}
    (results / "phase1-x.json").write_text(json.dumps({"qwen-t1024": row}))
    curve = [{"tokens": n, "seconds": 1.0 + n} for n in (0, 10)]
    ways = {"literal": {"seconds": 20.0, "kl_identical": 0.5, "curve": curve}, "windows": {"error": "no"}}
    details = {"qwen-t1024": {"device": "Some GPU", "quality": ways, "engines": {}}}
    (results / "phase1-x-details.json").write_text(json.dumps(details))
    (results / "scaling-x.json").write_text(
        json.dumps({"phase1 a": {"tokens_per_s": {"1": 10.0, "2": 19.0}, "speedup": 1.9, "device": "Some GPU"}})
    )
    full = page(report, results, tmp_path / "full")
    assert "| qwen-t1024 | Some GPU | unfused | 1,000 | 1,200 | 2,345 | not measured | 2.50 | 3.00 | 12.0 |" in full
    assert "| fused | 1,000 | 1,200 | 2,345 | not measured | 2.50 ✓ (to reach: at least 2) | 3.00 |" in full
    assert "12.0 ✗ (to reach: at most 10)" in full and "1.90 ✓" in full
    assert (tmp_path / "full" / "figures" / "cost.svg").exists()


def test_minutes_of_tests_and_notebooks_are_added_up(report: Any, tmp_path: Path) -> None:
    jobs = ("unit tests", "03_phase1_training", "04_fine_tuning", "05_benchmark_evaluation", "06_mechanistic_analysis")
    row = {"revision": "abc", "minutes": 9.0, "jobs": {job: {"minutes": 2.0, "cpu_minutes": 1.5} for job in jobs}}
    (tmp_path / "tests.json").write_text(json.dumps({"machine": {"cores": 2}, "before": row}))
    lines = report.make_test_table(tmp_path / "tests.json").splitlines()
    assert lines[2:] == ["| before | abc | 9.0 | 2.0 (1.5) | 2.0 (1.5) | 2.0 (1.5) | 2.0 (1.5) | 7.5 |"]
    (tmp_path / "run.json").write_text(json.dumps({"00": {"seconds": 90.0}, "01": {"seconds": 60.0}}))
    assert "took 2.5 minutes" in report.quick_run_sentence(tmp_path / "run.json")


def test_a_choice_is_told_where_it_was_read(report: Any) -> None:
    row = {"products": 8.0, "fused_passes": 1.0}
    found = {"device": "NVIDIA T", "us_per_position": {"7": row}}
    assert report.head_table({"t": found}).endswith("| NVIDIA T | 7 | 8.00 | 1.00 |")
    told = report.head_table({"t": found | {"choice_us": {"9": 200.4, "64": 31.0}}})
    assert told.endswith(
        "\n\nOne greedy choice for 64 replies: 200 µs with 9 rows (NVIDIA T), 31 µs with 64 rows (NVIDIA T)."
    )
