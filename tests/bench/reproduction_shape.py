"""The thesis's stages at its full shape: memory and hours, from a few real steps with random weights on one card.

deepseek-coder-6.7b-instruct has the shape `llama-6.7b` (32 blocks, width 4096, 32,256 rows). Stages a, b and c are
steps of `finetune.py`, phase 1 is the engine `ours` of `phase1.py` with texts of 2,048 tokens.
RESULTS/thesis-shape.json holds a line a part, written at once, and what the thesis's data would take: pairs, tokens a
pair and epochs are said beside it.

Memory is the peak that the allocator handed out, against the 46 GB of the thesis's card and against 80 GB. Hours on
eight cards divide by eight: data parallel steps at this size wait for little else, but that was not measured here.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import finetune as tuning
import phase1
import torch
from bench_parts import facts, free, known_json, matmul_ceiling, seconds_left

from vocabx_utils import files

STAGES = ("a", "b", "c1", "c2")
LENGTH, TOKENS_PER_BATCH, STEPS = 1024, 4096, 6  # of stages a, b and c; the first half of the steps is not timed
WORKLOADS = {"tiny": "tiny", "llama-6.7b": "llama-6.7b-v32k"}
"""Of `phase1.py`, by shape."""
# The thesis: 5,000 pairs "often in the thousands of tokens" in phase 1 (8 + 4 epochs), of which it names no mean; 4
# epochs of a and of b and one of each half in c, on as many pairs for want of another number.
PAIRS, TOKENS_PER_PAIR = 5_000, 1_000
EPOCHS = {"phase 1": 12, "a": 4, "b": 4, "c1": 1, "c2": 1}


def shape(options: argparse.Namespace) -> None:
    """Measure the parts that are not there yet."""
    path = options.results / "thesis-shape.json"
    content: dict[str, Any] = {"parts": {}} | known_json(path)
    for part in ("phase 1", *STAGES):
        if "peak_bytes" in content["parts"].get(part, {}) or seconds_left(options.started, options.minutes) < 100:
            continue
        try:
            found = _phase1(options) if part == "phase 1" else _stage(part, options)
        except (RuntimeError, subprocess.CalledProcessError) as error:
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        content["parts"][part] = found | _projected(part, found) | facts()
        content |= {
            "shape": options.shape,
            "assumed": {"pairs": PAIRS, "tokens_per_pair": TOKENS_PER_PAIR, "epochs": EPOCHS},
        }
        files.write_json(path, content)
        print(part, {k: v for k, v in found.items() if k != "step_seconds"}, flush=True)
        free()


def _projected(part: str, found: dict[str, Any]) -> dict[str, Any]:
    if "tokens_per_s" not in found:
        return {}
    hours = PAIRS * TOKENS_PER_PAIR * EPOCHS[part] / found["tokens_per_s"] / 3600
    peak = found["peak_bytes"] / 1e9
    return {"hours_one_card": round(hours, 3), "hours_eight_cards": round(hours / 8, 3), "peak_gb": round(peak, 1),
            "fits_46_gb": peak <= 46, "fits_80_gb": peak <= 80}  # fmt: skip


def _stage(part: str, options: argparse.Namespace) -> dict[str, Any]:
    """A few steps of one stage, with smaller batches where memory does not suffice."""
    with tempfile.TemporaryDirectory(prefix="vocabx-shape-") as folder:
        settings: Any = SimpleNamespace(
            length=LENGTH, tokens_per_batch={options.shape: TOKENS_PER_BATCH}, step_tokens=tuning.STEP_TOKENS,
            steps=STEPS, warmup=STEPS // 2, scratch=Path(folder),
        )  # fmt: skip
        ceiling = matmul_ceiling(phase1.WORKLOADS[WORKLOADS[options.shape]].size)
        return tuning.throughput(options.shape, part, ceiling, settings, compiled=torch.cuda.is_available())


def _phase1(options: argparse.Namespace) -> dict[str, Any]:
    """The engine of `phase1.py` in a process of its own, as there."""
    with tempfile.TemporaryDirectory(prefix="vocabx-shape-") as folder:
        result = Path(folder) / "result.json"
        script = Path(__file__).with_name("phase1.py")
        words = ["engine", "--workload", WORKLOADS[options.shape], "--engine", "ours", "--result", str(result)]
        subprocess.run([sys.executable, str(script), *words], check=True)
        found = files.read_json(result)
    peak = found["peak_bytes_above_weights"] + found["weight_bytes"]
    return {
        "tokens_per_s": round(found["tokens_per_s"], 1), "peak_bytes": peak,
        "teacher_seconds": found["teacher_seconds"],
        "flops_per_token": found["flops_per_token"], "step_seconds": found["step_seconds"],
        "ceiling_share": found["tokens_per_s"] * found["flops_per_token"] / found["ceiling_flops"],
    }  # fmt: skip


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `shape`."""
    command.add_argument("--shape", choices=list(WORKLOADS), default="llama-6.7b")
    command.add_argument("--minutes", type=float, default=9.0)
