"""The pilot of the reproduction: how may LoRA train on this data without unlearning what the benchmarks ask?

`own` lets the base model write bodies for the training prompts: text from which LoRA unlearns nothing, to be taken
alone or with every second body from the packages (`mixed`). `pilot` tunes the base model in each way of a sweep and
lets it answer HumanEval and MBPP; `choose` (in `reproduction_score`) takes the way with the fewest bits per byte on
validation pairs among those that lose at most 3 points on each.
RESULTS/pilot.jsonl holds a line a way, and answers/pilot/ their answers.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import Any

from bench_parts import free, known_lines, while_time_lasts
from reproduction_arms import Arm, Settings, parse_arm
from reproduction_data import OWN, completion_prompt, completions, write_gz
from reproduction_run import Bench

from vocabx_utils import files
from vocabx_utils.evaluation.decoding import generate
from vocabx_utils.evaluation.prompts import Prompt
from vocabx_utils.evaluation.statements import parses
from vocabx_utils.vocabulary.encoding import encode_all

SWEEP = (
    "mixed:answer:5e-5:1", "own:answer:5e-5:1", "completion:answer:1e-5:1", "mixed:answer:1e-4:2",
    "completion:answer:5e-5:1", "functions:answer:5e-5:1", "completion:answer:1e-4:2", "pairs:answer:2.2e-4:2",
    "own:answer:1e-4:2", "completion:answer:2e-5:1", "mixed:answer:5e-5:1:a1e-4", "mixed:answer:5e-5:1:a3e-5",
    "mixed:answer:5e-5:1:a1e-5",
)  # fmt: skip
"""The first four were set when the others had lost 12 points and more on HumanEval."""


def own(options: argparse.Namespace) -> None:
    """Let the base model answer training and validation prompts, and keep the bodies that are whole Python."""
    bench, rows, began = Bench(options), [], time.perf_counter()
    tokenizer = bench.base.tokenizer
    for split, limit in (("train", options.pairs), ("validation", min(500, options.pairs or 500))):
        asked = completions(bench.data.pairs[split][:limit], bench.data.functions[split][:limit])
        texts = [completion_prompt(found, tokenizer) for _, found in asked]
        prompts = [
            Prompt(str(k), text, tuple(ids), "", True, ("```",), "own")
            for (k, _), text, ids in zip(asked, texts, encode_all(tokenizer, texts), strict=True)
        ]
        replies = generate(bench.base.model, tokenizer, prompts, max_new_tokens=options.max_new_tokens)
        for (k, found), reply in zip(asked, replies, strict=True):
            body = reply.text.split("```")[0]
            if reply.finish != "length" and body.strip() and parses(found.code[: found.body] + body):
                rows.append({"split": split, "pair": k, "body": body.rstrip() + "\n"})
        kept = sum(row["split"] == split for row in rows)
        print(f"own {split}: {kept} of {len(asked)} bodies kept, {time.perf_counter() - began:.0f} s", flush=True)
    write_gz(options.data / OWN, rows)


def folder_of(name: str) -> str:
    """Folder of the answers of a way of the pilot."""
    return name.replace(":", "_")


def pilot_settings(name: str, settings: Settings) -> tuple[Arm, Settings]:
    """Read `<kind>:<loss on>:<rate>:<epochs>[:a<rate of stage a>]`, or `base`."""
    if name == "base":
        return parse_arm("base"), settings
    kind, loss, rate, epochs, *more = name.split(":")
    changed = dict(kind=kind, loss_on=loss, lora_rate=float(rate), b_epochs=int(epochs), a_epochs=0)
    if more:
        changed |= {"a_rate": float(more[0].removeprefix("a")), "a_epochs": settings.a_epochs}
    return parse_arm("base_a_lora" if more else "base_lora"), dataclasses.replace(settings, **changed)


def ways_left(options: argparse.Namespace) -> list[str]:
    """Ways that are not measured yet; the others are judged by `base`."""
    done = {row["setting"] for row in known_lines(options.results / "pilot.jsonl")}
    wanted = options.sweep if options.child else ("base", *options.sweep)
    return [name for name in dict.fromkeys(wanted) if name not in done]


def pilot(options: argparse.Namespace) -> None:
    """Tune the base model in each way, and let it answer HumanEval and MBPP."""
    options.results.mkdir(parents=True, exist_ok=True)
    left = ways_left(options)
    if not left:
        return
    bench = Bench(options)
    for name in while_time_lasts(left, options, 1.2, lambda _, name: f"{name} and what follows is left out"):
        began = time.perf_counter()
        arm, settings = pilot_settings(name, bench.settings)
        tuned, did = bench.tuned(arm, settings, 0)
        row: dict[str, Any] = {"setting": name, "held_out_bpb": bench.bits(tuned, ("pairs",))["pairs"]["bpb"]}
        row |= {"epochs": did["epochs"], "steps": {stage["stage"]: stage["steps"] for stage in did["stages"]}}
        row["bpb"] = {b: found["bpb"] for b, found in bench.bits(tuned, options.answer).items()}
        place = options.results / "answers" / "pilot" / folder_of(name)
        row["answers"] = [bench.answers(tuned, f"pilot {name}", benchmark, place) for benchmark in options.answer]
        if None in row["answers"]:
            return
        row["settings"] = settings.tuning()
        row |= {"seconds": time.perf_counter() - began} | bench.facts()
        files.append_jsonl(options.results / "pilot.jsonl", row)
        told = {k: round(v, 4) for k, v in row["bpb"].items()}
        print(f"{name}: held out {row['held_out_bpb']:.4f}, {told}, {time.perf_counter() - began:.0f} s", flush=True)
        free()
