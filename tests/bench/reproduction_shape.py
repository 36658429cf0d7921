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
from typing import Any

import finetune as tuning
import torch
from bench_parts import SHAPES, facts, free, known_json, matmul_ceiling, random_model, seconds_left

from vocabx_utils import files
from vocabx_utils.config import FineTuneConfig
from vocabx_utils.training.finetuning import StageTraining
from vocabx_utils.training.finetuning_stage import OutOfMemory, run_stage
from vocabx_utils.training.stages import plan_stages

STAGES = ("a", "b", "c1", "c2")
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
    budget = options.tokens_per_batch
    while True:
        try:
            return _steps(part, options, budget)
        except OutOfMemory:
            if budget <= options.length:
                raise
            budget //= 2
        free()


def _steps(part: str, options: argparse.Namespace, budget: int) -> dict[str, Any]:
    model = random_model(options.shape)
    limit, per_step = model.config.vocab_size, max(budget, options.step_tokens)
    config = FineTuneConfig(
        stages=(part[0],), a_epochs=1, b_epochs=1, max_length=options.length, tokens_per_batch=budget,
        tokens_per_step=per_step, compile_blocks=options.compiled,
    )  # fmt: skip
    stage = next(stage for stage in plan_stages(config) if stage.key == part)
    texts = tuning.random_texts(limit, options.length, per_step // options.length * options.steps)
    few = tuning.random_texts(limit, options.length, 1)
    flops = tuning.flops_per_token(model, part, config, limit, options.length)
    with tempfile.TemporaryDirectory(prefix="vocabx-shape-") as folder:
        training = StageTraining(model, stage, texts, few, config, limit=limit)
        result, records = run_stage(training, Path(folder) / part)
    steps = [record for record in records if record["kind"] == "step"]
    seconds = sorted(record["seconds"] for record in steps[len(steps) // 2 :])
    rate = steps[-1]["tokens"] / seconds[len(seconds) // 2]
    return {
        "T": options.length, "tokens_per_batch": budget, "tokens_per_step": per_step, "tokens_per_s": round(rate, 1),
        "flops_per_token": flops, "ceiling_share": rate * flops / matmul_ceiling(options.size),
        "peak_bytes": result.peak_bytes, "trainable": result.trainable,
        "step_seconds": [round(record["seconds"], 4) for record in steps],
    }  # fmt: skip


def _phase1(options: argparse.Namespace) -> dict[str, Any]:
    """The engine of `phase1.py` in a process of its own, as there."""
    workload = "tiny" if options.shape == "tiny" else "llama-6.7b-v32k"
    with tempfile.TemporaryDirectory(prefix="vocabx-shape-") as folder:
        result = Path(folder) / "result.json"
        script = Path(__file__).with_name("phase1.py")
        words = ["engine", "--workload", workload, "--engine", "ours", "--result", str(result)]
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
    command.add_argument("--shape", choices=list(SHAPES), default="llama-6.7b")
    command.add_argument("--length", type=int, default=1024, help="T of stages a, b and c")
    command.add_argument("--tokens-per-batch", type=int, default=4096, help="halved where memory does not suffice")
    command.add_argument("--step-tokens", type=int, default=32_768)
    command.add_argument("--steps", type=int, default=6)
    command.add_argument(
        "--compiled", choices=["auto", "on", "off"], default="on" if torch.cuda.is_available() else "off"
    )
    command.add_argument("--size", type=int, default=8192, help="of the matrix product that serves as ceiling")
    command.add_argument("--minutes", type=float, default=9.0)
