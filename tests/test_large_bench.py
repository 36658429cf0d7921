"""The measurement of a base that one card cannot hold, end to end on a tiny model and two processes (CPU, gloo)."""

from __future__ import annotations

import importlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from forked import run_forked
from torch import nn

BENCH = Path(__file__).parent / "bench"
TINY = {
    "shape": "tiny", "load-shape": "tiny", "tokens": 128, "length": 64, "size": 128, "steps": 2, "warmup": 1,
    "label": "try", "minutes": 4,
}  # fmt: skip


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("large")


ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(BENCH.parents[1]), "OMP_NUM_THREADS": "1"}
FORKED = ("phase1", "lora", "quantised")  # as many processes, without a launcher; it starts the other part


@pytest.fixture
def measure(large: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Call the script here; its parts are processes of their own all the same."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    launch = subprocess.Popen

    def start(command: list[str], **options: Any) -> Any:
        words = command[command.index(large.__file__) + 1 :]
        if words[words.index("--part") + 1] not in FORKED:
            return launch(command, **options)
        count, log = int(command[command.index("--nproc-per-node") + 1]), tmp_path / "part.log"
        states = run_forked(large.main, words, log=log, count=count, environment=ENVIRONMENT)
        return Ended(states, log.read_text())

    monkeypatch.setattr(large.subprocess, "Popen", start)

    def call(*more: str) -> dict[str, Any]:
        given = [word for name, value in TINY.items() for word in (f"--{name}", str(value))]
        large.main(["measure", "--out", str(tmp_path / "out"), *given, *more])
        found: dict[str, Any] = json.loads((tmp_path / "out" / "large-try.json").read_text())
        return found

    return call


class Ended:
    """What `Popen` gives, of processes that have ended."""

    def __init__(self, states: list[int], told: str) -> None:
        self.returncode, self.told = max(map(abs, states)), told

    def __enter__(self) -> Ended:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def communicate(self, timeout: float | None = None) -> tuple[None, str]:
        return None, self.told


def test_every_part_on_the_tiny_shape(tmp_path: Path, large: Any, measure: Callable[..., dict[str, Any]]) -> None:
    found = measure("--scratch", str(tmp_path / "scratch"))
    assert set(found) == {"load", "phase1", "lora"} and not any("error" in row for row in found.values())
    load = found["load"]
    assert load["layers"] == 4 and load["equal_to_the_files"] and min(load["load_seconds"], load["peak_host_bytes"]) > 0
    assert not any((tmp_path / "scratch").iterdir())
    for name in ("phase1", "lora"):
        row = found[name]
        assert row["processes"] == 2 and row["steps"] == 3 and len(row["losses"]) == 3 and row["tokens_per_s"] > 0
        held = large.plan(large.SHAPES["tiny"], 2, 128, rank=row["rank"])
        assert row["calculated_bytes"] == held and 0 < row["ceiling_share"] < 1
    assert found["lora"]["frozen_tensors_moved"] == 0
    again = measure("--scratch", str(tmp_path / "scratch"))
    assert again == found  # what is there is not measured again

    report = importlib.import_module("report")
    shown = report.large_measured({"try": found})
    assert "| lora | tiny |" in shown and "to reach: at least 0.35" in shown and "4 layers of the shape tiny" in shown


def test_a_part_that_fails_is_noted_and_tried_again(measure: Callable[..., dict[str, Any]]) -> None:
    first = measure("--parts", "quantised")
    assert "the part quantised needs --model and --data" in first["quantised"]["error"]
    short = measure("--parts", "quantised", "--minutes", "0.1")
    assert short == first  # nothing is started that has no time


def test_the_plan_counts_what_a_card_holds(large: Any) -> None:
    shape = dict(
        hidden_size=8, intermediate_size=20, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=64,
    )  # fmt: skip
    block = sum(a * b for a, b in [(8, 8), (8, 4), (8, 4), (8, 8), (8, 20), (8, 20), (20, 8)])
    alone, tuned = large.plan(shape, 2, 10, new=5), large.plan(shape, 2, 10, rank=3)
    assert alone["blocks, sharded"] == 2 * 3 * block / 2 and alone["both matrices, whole"] == 2 * 2 * 64 * 8
    assert alone["what moves, with Adam"] == 2 * 5 * 8 * 16
    adapters = 3 * sum(a + b for a, b in [(8, 8), (8, 4), (8, 4), (8, 8), (8, 20), (8, 20), (20, 8)])
    assert tuned["what moves, with Adam"] == 3 * adapters * 16 / 2
    assert tuned["one gathered block, twice"] == 2 * (2 * block + 4 * adapters)
    one = 10 * 2 * (6 * 8 + 2 * 4 + 3 * 20)
    assert alone["saved states"] == 3 * 10 * 2 * 8 + one
    assert large.plan(shape, 2, 10, recompute=False)["saved states"] == 3 * one


def test_time_runs_out_for_all_processes_at_once(large: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large, "_most", lambda value, processes: value)
    monkeypatch.setattr(large.time, "perf_counter", lambda: 100.0)
    options = SimpleNamespace(started=0.0, limit=120.0)
    assert not large.out_of_time(options, None) and large.out_of_time(options, None, 21)


def test_random_weights_are_alike_in_every_process(large: Any) -> None:
    model = nn.ModuleDict({"norm": nn.LayerNorm(4), "lora_B": nn.Linear(4, 4), "up": nn.Linear(4, 4)})
    large.fill_random(model)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    large.fill_random(model)
    assert all(bool((tensor == before[name]).all()) for name, tensor in model.state_dict().items())
    assert bool((model["norm"].weight == 1).all()) and not model["lora_B"].weight.any() and model["up"].weight.any()
