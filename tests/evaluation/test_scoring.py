"""Tables and pass@k from results, and results that cannot be compared."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
from evaluation.evaluation_parts import result

from vocabx_utils import files
from vocabx_utils.evaluation.results import Result
from vocabx_utils.evaluation.scoring import (
    ResultsError,
    comparison_table,
    count_passes,
    mean_pass_at_k,
    measured_table,
    results_table,
)


def thesis_results(bigcodebench: int, ds1000: int) -> list[Result]:
    first = [result(f"BigCodeBench/{i}", i < bigcodebench) for i in range(1022)]
    return first + [result(f"DS-1000/{i}", i < ds1000) for i in range(929)]


def test_table_in_the_layout_of_the_thesis() -> None:
    counts = {"base": (213, 295), "mean + CE": (142, 319), "random + KL": (129, 314), "mean + KL": (216, 340)}
    results = {name: thesis_results(*numbers) for name, numbers in counts.items()}
    table = results_table(results, groups={"base": "Base Model"}).set_index("model")
    assert table.loc["base", "BigCodeBench pass (%)"] == 20.84
    assert table.loc["base", "BigCodeBench passed"] == "213/1022"
    assert table.loc["mean + KL", "DS-1000 pass (%)"] == 36.60
    assert table["combined passed"].tolist() == ["508/1951", "461/1951", "443/1951", "556/1951"]
    assert table["p-value"].tolist() == ["0.084", "0.001", "< 0.001", "reference"]
    assert set(table["kept"]) == set(table["total"]) == {1951}


def test_dropped_problems_are_counted_but_not_scored() -> None:
    results = [result("HumanEval/0", True), result("HumanEval/1", True), result("HumanEval/2")]
    count = count_passes(results, {"humaneval": ["HumanEval/0", "HumanEval/2"]})["humaneval"]
    assert (count.passed, count.kept, count.total, count.passed_total) == (1, 2, 3, 2)
    assert count.rate == 0.5
    table = results_table({"one": results}, kept={"humaneval": ["HumanEval/0", "HumanEval/2"]})
    assert (table.loc[0, "kept"], table.loc[0, "total"]) == (2, 3)


def test_comparison_uses_the_pairing() -> None:
    base = [result(f"Mbpp/{i}", i < 30) for i in range(100)]
    better = [result(f"Mbpp/{i}", i < 40) for i in range(100)]
    row = comparison_table({"base": base, "better": better}, reference="base").iloc[0]
    assert row["difference"] == pytest.approx(0.1)
    assert (row["only_model"], row["only_reference"]) == (10, 0)
    assert row["low"] > 0 and row["p_mcnemar"] < 0.01 < row["p_z"]
    assert row["p_holm"] == row["p_mcnemar"]


def test_results_that_cannot_be_compared() -> None:
    one, two = [result("Mbpp/1")], [result("Mbpp/2")]
    with pytest.raises(ResultsError, match="different problems"):
        results_table({"a": one, "b": two})
    with pytest.raises(ResultsError, match="environments"):
        results_table({"a": one, "b": [result("Mbpp/1", env_hash="other")]})
    with pytest.raises(ResultsError, match="several answers"):
        results_table({"a": [*one, result("Mbpp/1", sample=1)]})
    with pytest.raises(ResultsError, match="reference"):
        results_table({"a": one}, reference="c")
    with pytest.raises(ResultsError, match="at least one"):
        results_table({})
    with pytest.raises(ValueError, match="no id"):
        count_passes([result("Other/1")])


def test_mean_pass_at_k_averages_over_problems() -> None:
    several = [result("Mbpp/1", True), result("Mbpp/1", sample=1), result("Mbpp/2"), result("Mbpp/2", sample=1)]
    assert mean_pass_at_k(several) == pytest.approx(0.25)
    assert mean_pass_at_k(several, 2) == pytest.approx(0.5)


def test_stored_evaluations_become_one_table(tmp_path: Path) -> None:
    assert measured_table(tmp_path / "nothing").empty
    for variant, passed in (("base", True), ("mean_ce", False)):
        rows = [asdict(result("HumanEval/0", passed)), asdict(result("HumanEval/1"))]
        files.write_jsonl(tmp_path / "Model-1B" / variant / "results_humaneval.jsonl", rows)
    table = measured_table(tmp_path).loc["Model-1B"].set_index("model")
    assert table["HumanEval passed"].to_dict() == {"base": "1/2", "mean_ce": "0/2"}
