"""Profile `gpu` from an empty folder to notebook 07, on a tiny model with rows to spare; else only a card runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from matrix.matrix_models import save_for_a_run

from vocabx_utils.profiles import PROFILES

SMALLER: dict[str, dict[str, Any]] = {
    "01_tokenizer_extension": {
        "n_tokens": 40, "tokenizer_pairs": 300, "train_pairs": 240, "validation_pairs": 60, "comparison_bytes": 100_000,
    },
    "02_alignment": {"texts": 60, "kl_texts": 4, "kl_tokens": 128},
    "03_phase1_training": {
        "epochs": 1, "batch_size": 8, "token_budget": 2048, "window": 50, "require_improvement": False,
    },
    "04_fine_tuning": {
        "train_texts": 16, "validation_texts": 6, "max_length": 192, "tokens_per_step": 1024, "tokens_per_batch": 1024,
        "a_epochs": 1, "b_epochs": 1, "lora_rank": 4, "lora_alpha": 4, "measured_texts": 4, "measured_chars": 400,
        "new_tokens": 8,
    },
    "05_benchmark_evaluation": {"bits_problems": 4, "held_out_pairs": 4, "answer_problems": 2, "max_new_tokens": 32},
    "06_mechanistic_analysis": {"windows": 6, "before": 24, "after": 24, "kept": [4, 64], "draws": 1, "batch_size": 4},
}  # fmt: skip
"""Sizes of the profile; which variants, stages and benchmarks it has stays as it is."""


def test_profile_gpu_runs_through_on_a_model_with_rows_to_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_for_a_run(tmp_path / "model", spare_rows=90)  # more than the new tokens take
    content = yaml.safe_load((PROFILES / "gpu.yaml").read_text(encoding="utf-8"))
    content |= {"model": str(tmp_path / "model")} | {name: content[name] | SMALLER[name] for name in SMALLER}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # threads of tiny matrices wait for each other
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path / "runs"))
    words = ["run", "--profile", str(tmp_path / "small.yaml"), "--run-name", "small"]
    done = subprocess.run([sys.executable, "-m", "vocabx_utils", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    run = tmp_path / "runs" / "small"
    assert len(list(run.glob("*.ipynb"))) == 8
    for name in content["05_benchmark_evaluation"]["answer_variants"]:
        assert (run / "05_benchmark_evaluation" / name / "samples.jsonl").exists(), name
