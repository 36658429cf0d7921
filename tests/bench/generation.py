"""Measure answer generation on a GPU and keep the answers for later execution.

    VOCABX_DATA=shared/data python tests/bench/generation.py --model MODEL --out "$OUT"

MODEL is a folder, a hub id or a GGUF file. For each prompt setting (`style:prefill`, several separated by
commas) all problems of all benchmarks are answered by the slot engine into `<out>/<setting>/samples.jsonl.gz`.
Timings, tokens and checks go to `<out>/timings.json` after every part, so that a time limit loses little.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path
from typing import Any

import torch
from bench_parts import free, synchronise

from vocabx_utils.evaluation.benchmarks import BENCHMARKS, Problem, load_benchmark
from vocabx_utils.evaluation.decoding import default_batch_size, generate
from vocabx_utils.evaluation.generation import SampleSettings, generate_samples
from vocabx_utils.evaluation.prompts import build_prompt
from vocabx_utils.models import BaseModel, load_base_model


def main() -> None:
    """Run the parts that were asked for, the most important first."""
    args = _arguments()
    args.out.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = {"arguments": {k: str(v) for k, v in vars(args).items()}, "torch": torch.__version__}
    start = time.perf_counter()
    base = load_base_model(args.model, dtype=args.dtype)
    device = torch.cuda.get_device_name() if base.device.type == "cuda" else "cpu"
    report |= {"model": base.describe(), "device": device, "load_s": round(time.perf_counter() - start, 1)}
    problems = [problem for name in args.benchmarks.split(",") for problem in load_benchmark(name, limit=args.limit)]
    for setting in args.settings.split(","):
        report[setting] = _whole(base, problems, setting, args, args.batch_size)
        _save(args.out, report)
    if args.second_batch:  # the same answers in other company: pass counts must agree within 2
        setting = args.settings.split(",")[0]
        few = [problem for problem in problems if problem.benchmark in ("humaneval", "mbpp")]
        report[f"{setting} batch {args.second_batch}"] = _whole(base, few, setting, args, args.second_batch)
        _save(args.out, report)
    if args.plain:
        report["plain"] = _plain(base, problems, args)
        _save(args.out, report)
    if args.checks:
        report["checks"] = _checks(base, problems, args)
        _save(args.out, report)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--settings", default="chat:auto,thesis:auto")
    parser.add_argument("--benchmarks", default=",".join(BENCHMARKS))
    parser.add_argument("--limit", type=int, help="problems of each benchmark")
    parser.add_argument("--max-new-tokens", type=int, default=448)
    parser.add_argument("--batch-size", type=int, help="slots; default: as memory allows, at most 512")
    parser.add_argument(
        "--second-batch", type=int, default=0, help="answer HumanEval and MBPP with this many slots too"
    )
    parser.add_argument("--plain", type=int, default=0, help="problems to answer with plain generate, batch 192")
    parser.add_argument("--checks", type=int, default=0, help="problems to answer with several batch sizes")
    return parser.parse_args()


def _whole(
    base: BaseModel, problems: list[Problem], setting: str, args: argparse.Namespace, batch_size: int | None
) -> dict[str, Any]:
    """Answer all problems with the slot engine and write the answers."""
    style, _, prefill = setting.partition(":")
    examples = load_benchmark("mbpp", split="prompt")[1:4] if style == "completion" else ()
    second = f"_batch{batch_size}" if batch_size != args.batch_size else ""
    folder = args.out / (setting.replace(":", "_") + second)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "samples.jsonl"
    path.unlink(missing_ok=True)
    free()
    synchronise()
    start = time.perf_counter()
    rows = generate_samples(
        base.model,
        base.tokenizer,
        problems,
        path,
        SampleSettings(
            style=style,
            prefill=prefill or "auto",
            examples=examples,
            max_new_tokens=args.max_new_tokens,
            batch_size=batch_size,
            engine="slots",
        ),
        desc=setting,
    )
    seconds = time.perf_counter() - start
    with gzip.open(folder / "samples.jsonl.gz", "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    path.unlink()
    tokens = sum(row["new_tokens"] for row in rows)
    return {
        "problems": len(rows),
        "seconds": round(seconds, 2),
        "new_tokens": tokens,
        "tokens_per_s": round(tokens / seconds),
        "prompt_tokens": sum(row["prompt_tokens"] for row in rows),
        "finish": {name: sum(row["finish"] == name for row in rows) for name in ("eos", "stop", "length")},
        "peak_gib": _peak(base),
    }


def _plain(base: BaseModel, problems: list[Problem], args: argparse.Namespace) -> dict[str, Any]:
    """Time plain generate on an even sample, and compare its answers with the slot engine's."""
    some = problems[:: max(1, len(problems) // args.plain)][: args.plain]
    prompts = [build_prompt(problem, base.tokenizer) for problem in some]
    result: dict[str, Any] = {"problems": len(some)}
    replies = {}
    for engine, size in (("plain", 192), ("slots", args.batch_size or _default(base, prompts, args))):
        free()
        synchronise()
        start = time.perf_counter()
        replies[engine] = generate(
            base.model,
            base.tokenizer,
            prompts,
            max_new_tokens=args.max_new_tokens,
            batch_size=size,
            engine=engine,  # type: ignore[arg-type]
        )
        seconds = time.perf_counter() - start
        result[engine] = {
            "seconds": round(seconds, 2),
            "batch": size,
            "extrapolated_s": round(seconds * len(problems) / len(some), 1),
        }
    pairs = zip(replies["plain"], replies["slots"], strict=True)
    result["equal_texts"] = sum(a.text == b.text for a, b in pairs)
    return result


def _checks(base: BaseModel, problems: list[Problem], args: argparse.Namespace) -> dict[str, Any]:
    """Answer the same problems with several batch sizes and in reverse order, in float32 and the given dtype."""
    some = problems[:: max(1, len(problems) // args.checks)][: args.checks]
    result: dict[str, Any] = {}
    for name, dtype in (("given", base.dtype), ("float32", torch.float32)):
        base.model.to(dtype)
        texts = {}
        for label, order, size in (("50", some, 50), ("7", some, 7), ("reversed", some[::-1], 16)):
            prompts = [build_prompt(problem, base.tokenizer) for problem in order]
            replies = generate(
                base.model,
                base.tokenizer,
                prompts,
                max_new_tokens=args.max_new_tokens,
                batch_size=size,
                engine="slots",
            )
            by_id = zip((problem.task_id for problem in order), (reply.text for reply in replies), strict=True)
            texts[label] = dict(by_id)
        reference = texts["50"]
        result[name] = {
            label: sum(found[task] == reference[task] for task in reference) for label, found in texts.items()
        }
        result[name]["problems"] = len(reference)
    base.model.to(base.dtype)
    return result


def _default(base: BaseModel, prompts: list[Any], args: argparse.Namespace) -> int:
    longest = max(len(prompt.ids) for prompt in prompts) + args.max_new_tokens
    return default_batch_size(base.model, longest)


def _peak(base: BaseModel) -> float | None:
    return round(torch.cuda.max_memory_allocated() / 2**30, 1) if base.device.type == "cuda" else None


def _save(out: Path, report: dict[str, Any]) -> None:
    (out / "timings.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(json.dumps({k: v for k, v in report.items() if k != "arguments"}), flush=True)


if __name__ == "__main__":
    main()
