"""Measure how phase 1 and fine-tuning speed up with the number of GPUs (or, for a trial, of CPU processes).

    python tests/bench/scaling.py measure --processes 1 2 --model MODEL --data DATA --out results/bench

For each number of processes `accelerate launch` takes the same global step: phase 1 shares the texts of a step and
the rows of the teacher cache by rank, fine-tuning (stages a and b at a shape with random weights) runs under DDP.
`measure` writes OUT/scaling-<device>.json: per workload the tokens per second by number of processes, `speedup`,
the rate of the most processes over that of one, and the tokens of a pass and of a global step. MODEL and DATA are those
of `phase1.py`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import finetune
import phase1
import torch
from bench_parts import facts, known_json, median_rate, ratio, seconds_left, short_device
from phase1_engines import ours

from vocabx_utils import files
from vocabx_utils.training.fusing import fuse
from vocabx_utils.training.processes import joined

LARGER = 4  # global steps of this file over those of phase1.py and finetune.py


def measure(options: argparse.Namespace) -> None:
    """Launch every part once for each number of processes; what is in the file already is not measured again."""
    started = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"scaling-{options.label or short_device()}.json"
    results = known_json(path)
    parts = [f"phase1 {name}" for name in options.workloads] + [
        f"finetune-{stage} {shape}" for shape in options.shapes for stage in ("a", "b")
    ]
    for part in parts:
        row = results.setdefault(part, {"tokens_per_s": {}})
        for count in options.processes:
            if str(count) in row["tokens_per_s"]:
                continue
            left = seconds_left(started, options.minutes)
            if left < options.reserve:
                print(f"{part} with {count} and what follows: {options.minutes:g} minutes would not do")
                return
            found = _launch(part, count, options, left)
            if found is None:
                continue
            row["tokens_per_s"][str(count)] = found.pop("tokens_per_s")
            rates = {int(n): value for n, value in row["tokens_per_s"].items()}
            most = max(rates)
            row |= {"processes": most, "speedup": ratio(rates[most], rates.get(1)), **found, **facts()}
            files.write_json(path, results)
            print(part, row["tokens_per_s"], flush=True)


def _launch(part: str, count: int, options: argparse.Namespace, left: float) -> dict[str, Any] | None:
    with tempfile.TemporaryDirectory(prefix="vocabx-scaling-") as scratch:
        result = Path(scratch) / "rate.json"
        launcher = ["-m", "accelerate.commands.launch", "--num_processes", str(count), "--num_machines", "1"]
        launcher += ["--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
        # --multi_gpu starts the processes also where there is no GPU; they then talk through gloo
        launcher += ["--multi_gpu"] if count > 1 else []
        command = [sys.executable, *launcher, __file__, "worker", "--part", part, "--scratch", scratch]
        for flag, value in (("--model", options.model), ("--data", options.data), ("--micro", options.micro)):
            command += [flag, str(value)] if value else []
        command += ["--compiled"] if options.compiled else []
        try:
            subprocess.run(command, timeout=left, check=True)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            print(f"{part} with {count}: {error}", file=sys.stderr, flush=True)
            return None
        found: dict[str, Any] = files.read_json(result)
        return found


def worker(options: argparse.Namespace) -> None:
    """One process of a part; the first one writes the rate."""
    torch.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    kind, name = options.part.split(" ")
    found = _phase1(name, options) if kind == "phase1" else _finetune(kind.removeprefix("finetune-"), name, options)
    if int(os.environ.get("RANK", "0")) == 0:
        files.write_json(options.scratch / "rate.json", found)


def _phase1(name: str, options: argparse.Namespace) -> dict[str, Any]:
    w = phase1.WORKLOADS[name]
    w = replace(w, batch=LARGER * w.batch)  # so that every process has some micro-batches of a step
    problem = phase1.problem_of(w, options)
    if options.compiled:
        fuse(problem.base.model)
    with joined(cpu=not torch.cuda.is_available()) as processes:
        cache = problem.cache(problem.train, options.scratch / "teacher", processes)
        seconds, tokens = phase1.timed(ours(problem, cache=cache, processes=processes).step, problem.train, w)
        processes.wait_for_everyone()
    return {
        "tokens_per_s": median_rate(seconds, tokens),
        "tokens_per_pass": problem.config.token_budget,
        "tokens_per_step": w.batch * w.length,
    }


def _finetune(stage: str, shape: str, options: argparse.Namespace) -> dict[str, Any]:
    small = shape == "tiny"
    settings: Any = SimpleNamespace(
        length=64 if small else 1024, step_tokens=512 if small else LARGER * finetune.STEP_TOKENS,
        steps=4 if small else 6, warmup=2, scratch=options.scratch,
    )  # fmt: skip
    budget = 128 if small else finetune.TOKENS_PER_BATCH[shape]
    row = finetune.measured(shape, stage, 1.0, settings, budget, options.compiled)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return {
        "tokens_per_s": row["tokens_per_s"],
        "tokens_per_pass": row["tokens_per_batch"],
        "tokens_per_step": row["tokens_per_step"],
    }


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, run in (("measure", measure), ("worker", worker)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--model", default="", help="for workloads with a real model, as in phase1.py")
        command.add_argument("--data", type=Path)
        command.add_argument("--micro", type=int, default=0)
        command.add_argument("--compiled", action="store_true")
    first = commands.choices["measure"]
    first.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    first.add_argument("--workloads", nargs="*", default=["qwen-t1024"], choices=list(phase1.WORKLOADS))
    first.add_argument("--shapes", nargs="*", default=["qwen2.5-coder-0.5b"], choices=list(finetune.SHAPES))
    first.add_argument("--out", type=Path, default=Path("results/bench"))
    first.add_argument("--label", default="")
    first.add_argument("--minutes", type=float, default=8.0)
    first.add_argument("--reserve", type=float, default=60.0, help="start nothing with fewer seconds left")
    commands.choices["worker"].add_argument("--part", required=True)
    commands.choices["worker"].add_argument("--scratch", type=Path, required=True)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
