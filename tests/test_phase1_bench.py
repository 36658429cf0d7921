"""The benchmark of phase 1 runs on its smallest workload and says what it must say."""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import be_script, run_forked

BENCH = Path(__file__).parent / "bench"
KEYS = {
    "tokens_per_s", "speedup_vs_plain", "speedup_vs_literal", "peak_bytes", "peak_ratio_vs_plain", "floor_share",
    "ceiling_share", "teacher_ceiling_share", "teacher_file_share", "busy_host_ratio", "time_to_quality_ratio",
    "device", "versions", "date",
}  # fmt: skip


@pytest.fixture
def phase1(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("phase1")


@pytest.fixture
def measure(phase1: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Call the script here on the tiny workload; of its parts only `floor` gets a process of its own, as all do."""
    monkeypatch.setenv("PYTHONPATH", str(BENCH.parent.parent))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(phase1.torch.cuda, "is_available", lambda: False)
    start = subprocess.run

    def call(words: list[str]) -> None:
        monkeypatch.setattr(sys, "argv", words)
        phase1.main()

    def run(line: list[str], **options: Any) -> Any:
        if str(BENCH / "phase1.py") not in line:
            return start(line, **options)
        if "floor" in line:
            log, environment = tmp_path / "floor.log", {"CUDA_VISIBLE_DEVICES": ""}
            [status] = run_forked(be_script, *line[1:], log=log, environment=environment)
            return subprocess.CompletedProcess(line, status, stderr=log.read_text())
        call(line[1:])
        return subprocess.CompletedProcess(line, 0)

    monkeypatch.setattr(subprocess, "run", run)
    return lambda: call(["phase1.py", "measure", "--workloads", "tiny", "--out", str(tmp_path)])


def test_every_engine_on_the_tiny_workload(
    tmp_path: Path, measure: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    measure()
    assert "tiny literal" in capsys.readouterr().out
    found = json.loads((tmp_path / "phase1-cpu.json").read_text())["tiny"]
    assert set(found) == KEYS
    rates = found["tokens_per_s"]["unfused"]
    assert set(rates) == {"literal", "plain", "ours", "floor"} and min(rates.values()) > 0
    assert set(found["tokens_per_s"]["fused"].values()) == {None}  # no compiler's turn on a CPU
    assert found["speedup_vs_plain"]["unfused"] == rates["ours"] / rates["plain"]
    details = json.loads((tmp_path / "phase1-cpu-details.json").read_text())["tiny"]["engines"]
    assert details["ours"]["step_tokens"] == details["literal"]["step_tokens"] == details["floor"]["step_tokens"]
    measure()
    assert "tiny literal" not in capsys.readouterr().out  # what is there is not measured again


def test_plain_takes_the_step_of_ours(phase1: Any) -> None:
    """Both sides, input rows by the same pairs and head rows by the same targets, in both of its forms."""
    import torch
    from phase1_engines import ours, plain

    problem = phase1.problem_of(phase1.WORKLOADS["tiny"], argparse.Namespace(micro=0, data=None))
    trainer = ours(problem)
    trainer.step([0, 1, 2, 3])
    for float32 in (False, True):
        step = plain(problem, float32=float32)
        step([0, 1, 2, 3])
        for name in ("input_rows", "head_rows"):
            theirs, own = (getattr(model, name).grad for model in (step.model, trainer.student))
            torch.testing.assert_close(theirs, own, rtol=1e-3, atol=1e-6)


def test_the_engines_train_alike(phase1: Any) -> None:
    """One step of `literal` and of `ours` moves the new head rows alike: same cross-entropy over the same positions."""
    import torch
    from phase1_engines import literal, ours

    problem = phase1.problem_of(phase1.WORKLOADS["tiny"], argparse.Namespace(micro=0, data=None))
    step, trainer = literal(problem), ours(problem)
    before = step.model.head_rows.detach().clone()
    step([0, 1, 2, 3])
    trainer.step([0, 1, 2, 3])
    moved = [rows.detach() - before for rows in (step.model.head_rows, trainer.student.head_rows)]
    gradients = [rows.grad for rows in (step.model.head_rows, trainer.student.head_rows)]
    assert moved[0].any()
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-6)


def test_a_missing_part_is_null(phase1: Any) -> None:
    found = phase1.summary({"engines": {"ours": {"tokens_per_s": 3.0, "flops_per_token": 2.0, "ceiling_flops": 12.0}}})
    assert set(found) == KEYS
    assert found["ceiling_share"] == {"unfused": 0.5, "fused": None}
    assert found["speedup_vs_literal"]["unfused"] is None


def test_a_part_of_the_scaling_benchmark_says_its_rate_and_sizes(phase1: Any, tmp_path: Path) -> None:
    scaling = importlib.import_module("scaling")
    options = argparse.Namespace(part="phase1 tiny", micro=0, compiled=False, model=None, data=None, scratch=tmp_path)
    scaling.worker(options)
    found = json.loads((tmp_path / "rate.json").read_text())
    tiny = phase1.WORKLOADS["tiny"]
    assert found.pop("tokens_per_s") > 0
    assert found == {
        "tokens_per_pass": tiny.micro, "tokens_per_step": scaling.LARGER * tiny.batch * tiny.length,
    }  # fmt: skip
