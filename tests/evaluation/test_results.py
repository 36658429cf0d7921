"""Results of full-size evaluations, read from their folder."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from evaluation.evaluation_parts import result

from vocabx_utils import files
from vocabx_utils.evaluation.results import read_measured


def test_stored_evaluations_are_read_by_model_and_variant(tmp_path: Path) -> None:
    assert read_measured(tmp_path / "nothing") == {}
    for variant in ("base", "mean_ce"):
        for name in ("humaneval", "mbpp"):
            path = tmp_path / "Model-1B" / variant / f"results_{name}.jsonl"
            files.write_jsonl(path, [asdict(result(f"{name}/0"))])
    found = read_measured(tmp_path)
    assert {variant: len(rows) for variant, rows in found["Model-1B"].items()} == {"base": 2, "mean_ce": 2}
