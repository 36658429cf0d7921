"""Train and measure the arms of the reproduction.

Whatever is found is on disk at once, in RESULTS:

    rows.jsonl       phase 1 of a start and seed: metrics by epoch
    bits.jsonl       bits per byte problem by problem (of an arm and seed)
    observed.jsonl   what tuning did: stages, losses, bits per byte of the domain, another language, English
    metrics.jsonl    one line an arm and seed, written last: it is finished but for its answers
    answers.jsonl    one line an arm, seed and benchmark: characters and tokens, seconds
    answers/<arm>-s<seed>/<benchmark>.jsonl.gz

Rows are kept in the first folder of --rows as bf16 and found in all of them. A tuned model is not kept (a gigabyte):
an arm whose metrics are there but not all of its answers is tuned again, and `answers.jsonl` says so (`tuned_again`).
`processes` says for how many arms at a time the card was (`reproduction_spread.py`): seconds on a card that is shared
are no measure of speed.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import shutil
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from bench_parts import (
    facts,
    free,
    known_lines,
    phase1_training,
    records_of,
    refuse_others,
    rows_of,
    seconds_left,
    unextended,
)
from reproduction_arms import Arm, Settings, arms_of, row_settings, tune, tuning_config
from reproduction_data import Data, write_gz
from safetensors.torch import load_file

from vocabx_utils import files
from vocabx_utils.config import Phase1Config
from vocabx_utils.evaluation.benchmarks import Problem
from vocabx_utils.evaluation.generation import SampleSettings, generate_samples
from vocabx_utils.evaluation.kept import kept_problems
from vocabx_utils.evaluation.likelihood import Span, corpus_bits_per_byte, reference_spans, score_spans, shared_spans
from vocabx_utils.healing import Healer
from vocabx_utils.models import BaseModel, load_base_model
from vocabx_utils.training.examples import ExampleSet, encode
from vocabx_utils.training.forgetting import Snapshot
from vocabx_utils.training.objectives import parse_variant
from vocabx_utils.training.phase1 import Phase1Data, new_student, prepare
from vocabx_utils.training.starts import Start, from_rows
from vocabx_utils.vocabulary.spelling import spelling_of
from vocabx_utils.vocabulary.tokens import Extension

BENCHMARKS = ("humaneval", "mbpp", "ds1000", "bigcodebench")
"""In the order in which they are answered: the cheap ones first."""
_SECONDS = 0.03  # of an answer on a card, before one was measured


class Bench:
    """A model, the data, and what arms share; loaded when the first of them needs it."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.results = options, options.results
        self.settings = Settings.read(options.results, options.set)
        self.data = Data(options.data, options.label)
        self.known: dict[str, Extension] = {}
        self.aligned: tuple[tuple[Any, ...], Phase1Data] | None = None
        self.spans: dict[str, list[Span]] = {}
        few = options.pairs  # a trial measures little of everything
        self.sets = tuple(dataclasses.replace(group, texts=group.texts[:few]) for group in self.data.sets)
        extension = self.extension(self.settings.extension)
        base = load_base_model(options.model)
        # as another release of transformers reads a GGUF file's tokenizer
        self.base: BaseModel = dataclasses.replace(base, tokenizer=extension.original)

    def extension(self, name: str) -> Extension:
        """An extension by name, loaded once."""
        if name not in self.known:
            self.known[name] = self.data.extension(name)
        return self.known[name]

    def facts(self) -> dict[str, Any]:
        """Device, versions and date of a line, and how many processes could share the card."""
        return {"processes": self.options.processes} | facts()

    def problems(self, name: str) -> list[Problem]:
        """The kept problems of a benchmark, or the first of them."""
        return kept_problems(name)[: self.options.limit]

    # --- phase 1

    def phase1_data(self, name: str, config: Phase1Config) -> Phase1Data:
        """Examples and the teacher's states, kept while starts with the same texts follow each other."""
        key = (name, config.window, config.train_windows, config.phrase_dropout, config.seed if config.window else 0)
        if self.aligned is None or self.aligned[0] != key:
            self.aligned = None
            free()
            train, validation = (
                [r.text for r in self.data.render(split, "pairs", self.base.tokenizer, limit)]
                for split, limit in (("train", self.options.pairs), ("validation", min(500, self.options.pairs or 500)))
            )
            self.aligned = key, prepare(self.base, self.extension(name), train, validation, config)
        return self.aligned[1]

    def rows(self, arm: Arm, seed: int) -> tuple[dict[str, torch.Tensor], str]:
        """Input and head rows of an arm's start, and which variant they are: found, or trained now."""
        name = arm.extension(self.settings)
        assert name is not None
        extension = self.extension(name)
        counted = sum(len(ids) for ids in self.base.tokenizer(self._texts(), add_special_tokens=False)["input_ids"])
        variant, config = row_settings(arm.start, self.settings, seed, counted)
        recipe = parse_variant(variant)
        if recipe.objective is None:
            student = new_student(recipe, self.base, extension.tokens, config)
            return rows_of(student), variant
        file = rows_file(arm, self.settings, seed)
        for folder in self.options.rows:
            if (folder / file).exists():
                return {key: value.float() for key, value in load_file(folder / file).items()}, variant
        data = self.phase1_data(name, config)
        began = time.perf_counter()
        training = phase1_training(variant, self.base, extension, data, config)
        records = records_of(training)
        kept = {key: value.bfloat16() for key, value in rows_of(training.student).items()}
        files.write_tensors(self.options.rows[0] / file, kept)
        told = {"start": arm.start, "extension": name, "seed": seed, "variant": variant, "metrics": records}
        told |= {"train_tokens": data.train.tokens, "seconds": round(time.perf_counter() - began, 1)}
        files.append_jsonl(self.results / "rows.jsonl", told | {"config": _small(config.to_dict())} | self.facts())
        return {key: value.float() for key, value in kept.items()}, variant  # as a later loan finds them

    def _texts(self) -> list[str]:
        return [r.text for r in self.data.render("train", "pairs", self.base.tokenizer, self.options.pairs)]

    # --- tuning

    def start(self, arm: Arm, seed: int) -> Start:
        """An arm's model before it is tuned."""
        if arm.start == "base":
            return unextended(self.base)
        rows, _ = self.rows(arm, seed)
        name = arm.extension(self.settings)
        assert name is not None
        return from_rows(self.base, self.extension(name), rows["input"], rows["head"])

    def texts(self, split: str, tokenizer: Any, kind: str | None = None, loss_on: str | None = None) -> ExampleSet:
        """A split for tuning, under one tokenizer."""
        limit = self.options.pairs if split == "train" else min(500, self.options.pairs or 500)
        rendered = self.data.render(split, kind or self.settings.kind, tokenizer, limit)
        loss: Any = loss_on or self.settings.loss_on
        return encode(rendered, tokenizer, max_length=self.settings.max_length, loss_on=loss)

    def tuned(self, arm: Arm, settings: Settings, seed: int) -> tuple[Start, dict[str, Any]]:
        """Tune an arm; the base's own tokens plan its steps."""
        start = self.start(arm, seed)
        if not arm.stages:  # a copy, since phase 1 fuses the blocks of the model that all share
            return dataclasses.replace(start, model=copy.deepcopy(start.model)), {"stages": [], "epochs": []}
        kind, loss = settings.kind, settings.loss_on
        train, validation = (self.texts(split, start.tokenizer, kind, loss) for split in ("train", "validation"))
        planned = self.texts("train", self.base.tokenizer, kind, loss)
        return tune(start, train, validation, planned, tuning_config(arm, settings, seed))

    # --- measuring

    def all_spans(self, benchmark: str) -> list[Span]:
        """References of the kept problems, or (`pairs`) answers of validation pairs, for all tokenizers alike."""
        if benchmark not in self.spans:
            s = self.settings
            names = [n for n in self.data.names() if n in (s.extension, s.phrases, s.rare)]
            tokenizers = [self.base.tokenizer, *(self.extension(name).extended for name in names)]
            if benchmark == "pairs":
                limit = min(500, self.options.pairs or 500)
                rendered = self.data.render("validation", "pairs", self.base.tokenizer, limit)
                texts = ((str(k), r.text, r.answer_start) for k, r in enumerate(rendered))
                self.spans[benchmark] = shared_spans(texts, tokenizers)
            else:
                self.spans[benchmark] = reference_spans(self.problems(benchmark), tokenizers)
        return self.spans[benchmark]

    def bits(self, tuned: Start, benchmarks: Sequence[str]) -> dict[str, Any]:
        """Bits, bytes and ids by benchmark."""
        found = {}
        for name in benchmarks:
            scores = score_spans(
                tuned.model, tuned.tokenizer, self.all_spans(name), batch_tokens=self.options.batch_tokens
            )
            found[name] = {
                "ids": [score.task_id for score in scores], "bits": [round(score.bits, 3) for score in scores],
                "bytes": [score.bytes for score in scores], "tokens": sum(score.tokens for score in scores),
                "bpb": corpus_bits_per_byte(scores),
            }  # fmt: skip
        return found

    def answers(self, tuned: Start, name: str, benchmark: str, place: Path) -> dict[str, Any] | None:
        """Answer a benchmark into a compressed file; None where the time that is left would not do."""
        problems = self.problems(benchmark)
        known = [row["seconds"] / row["answers"] for row in known_lines(self.results / "answers.jsonl")[-4:]]
        wanted = 1.25 * len(problems) * max(known, default=_SECONDS if torch.cuda.is_available() else 0.0)
        if wanted > seconds_left(self.options.started, self.options.minutes):
            print(f"{name}: {benchmark} is left out, it would take {wanted:.0f} s", flush=True)
            return None
        healer = Healer(spelling_of(tuned.tokenizer).raws) if self.options.heal else None
        settings = SampleSettings(style="thesis", max_new_tokens=self.options.max_new_tokens, heal=healer)
        path = Path(tempfile.mkdtemp(prefix="vocabx-")) / f"{benchmark}.jsonl"  # never continued by another training
        began = time.perf_counter()
        rows = generate_samples(tuned.model, tuned.tokenizer, problems, path, settings, desc=f"{name} {benchmark}")
        seconds = time.perf_counter() - began
        place.mkdir(parents=True, exist_ok=True)
        with files.atomic_path(place / f"{benchmark}.jsonl.gz") as target:
            write_gz(target, rows)
        shutil.rmtree(path.parent)
        characters, tokens = sum(len(row["raw_solution"]) for row in rows), sum(row["new_tokens"] for row in rows)
        finish = [row["finish"] for row in rows]
        return {
            "benchmark": benchmark, "answers": len(rows), "characters": characters, "tokens": tokens,
            "seconds": round(seconds, 2), "characters_per_s": round(characters / seconds),
            "tokens_per_answer": round(tokens / len(rows), 1), "cut_off": finish.count("length"),
            "healed": healer is not None,
        }  # fmt: skip


def rows_file(arm: Arm, settings: Settings, seed: int) -> str:
    """Name of the file that keeps the rows of an arm's start; arms with one start share it."""
    label = settings.recipe.replace(":", "_") if arm.start == "recipe" else arm.start
    return f"{arm.extension(settings)}-{label}-s{seed}.safetensors"


def _small(config: dict[str, Any]) -> dict[str, Any]:
    names = "learning_rate head_learning_rate epochs warmup rate_after average_last head_fit ce_decay token_sampling"
    return {name: config[name] for name in (*names.split(), "batch_size", "window")}


def place_of(arm: Arm, seed: int) -> str:
    """Folder of an arm's answers."""
    return f"{arm.name}-s{seed}"


# --- run ------------------------------------------------------------------------------------------------------------


def run(options: argparse.Namespace) -> None:
    """Measure what is not there yet, seed by seed and arm by arm, while time is left."""
    options.results.mkdir(parents=True, exist_ok=True)
    wanted = asked(options)
    left = [(arm, seed) for arm, seed in wanted if missing(options, arm, seed)]
    print(f"{len(left)} of {len(wanted)} arms and seeds to do", flush=True)
    if not left:
        return
    refuse_other_settings(options)
    bench, longest = Bench(options), 0.0
    for place, (arm, seed) in enumerate(left):
        if seconds_left(options.started, options.minutes) < 1.2 * longest:
            print(f"{len(left) - place} are left out, from {arm.name}, seed {seed}, on: no time", flush=True)
            return
        longest = max(longest, _run_arm(bench, arm, seed))
        free()


def asked(options: argparse.Namespace) -> list[tuple[Arm, int]]:
    """Arms and seeds in the order in which they are measured."""
    return [(arm, seed) for seed in options.seeds for arm in arms_of(options.arms)]


def missing(options: argparse.Namespace, arm: Arm, seed: int) -> list[str]:
    """What an arm lacks: `metrics`, and benchmarks without answers."""
    done = any(row["arm"] == arm.name and row["seed"] == seed for row in known_lines(options.results / "metrics.jsonl"))
    folder = options.results / "answers" / place_of(arm, seed)
    return ["metrics"] * (not done) + [b for b in options.answer if not (folder / f"{b}.jsonl.gz").exists()]


def refuse_other_settings(options: argparse.Namespace) -> None:
    """SystemExit where RESULTS holds an arm that was tuned in another way."""
    path, here = options.results / "metrics.jsonl", Settings.read(options.results, options.set).tuning()
    refuse_others(path, known_lines(path), here, "--results")


def _run_arm(bench: Bench, arm: Arm, seed: int) -> float:
    """Measure an arm; returns the seconds that it took before its answers, which look at the time themselves."""
    options, results, began = bench.options, bench.results, time.perf_counter()
    lacking, name = missing(options, arm, seed), place_of(arm, seed)
    tuned, done = bench.tuned(arm, bench.settings, seed)
    trained = time.perf_counter() - began
    about = {"arm": arm.name, "seed": seed, "extension": arm.extension(bench.settings)}
    again = "metrics" not in lacking
    bits = bench.bits(tuned, ("humaneval",) if again else options.benchmarks)
    if not again:
        held_out = bench.bits(tuned, ("pairs",))["pairs"]
        seen = Snapshot(tuned.tokenizer, tuned.limit, tuned.new_ids, bench.sets, tokens_per_batch=options.batch_tokens)
        observed = {"end": seen("end", tuned.model)}
        files.append_jsonl(results / "bits.jsonl", about | {"benchmarks": bits})
        files.append_jsonl(results / "observed.jsonl", about | done | {"observed": observed})
        recipe = {"recipe": bench.settings.recipe} if arm.start == "recipe" else {}
        row = about | recipe | {
            "bpb": {benchmark: found["bpb"] for benchmark, found in bits.items()},
            "held_out_bpb": held_out["bpb"], "held_out_tokens": held_out["tokens"],
            "validation_loss": done["epochs"][-1]["validation_loss"] if done["epochs"] else None,
            "steps": {stage["stage"]: stage["steps"] for stage in done["stages"]},
            "bits_per_byte": observed["end"]["bits_per_byte"], "new_row_mass": observed["end"].get("new_row_mass"),
            "train_seconds": round(trained, 1), "seconds": round(time.perf_counter() - began, 1),
            "peak_bytes": max((stage["peak_bytes"] for stage in done["stages"]), default=0),
            "settings": bench.settings.tuning(), **bench.facts(),
        }  # fmt: skip
        files.append_jsonl(results / "metrics.jsonl", row)
        told = {k: round(v, 4) for k, v in row["bpb"].items()}
        print(f"{name}: {told}, held out {held_out['bpb']:.4f}, {row['steps']} steps, {row['seconds']} s", flush=True)
    seconds = time.perf_counter() - began
    for benchmark in (b for b in options.answer if b in lacking):
        found = bench.answers(tuned, name, benchmark, results / "answers" / name)
        if found is not None:
            more = {"tuned_again": again, "bpb_of_humaneval": bits.get("humaneval", {}).get("bpb")}
            files.append_jsonl(results / "answers.jsonl", about | found | more | bench.facts())
            print(f"{name}: {found}", flush=True)
    return seconds


def add_arguments(command: argparse.ArgumentParser, arms: Iterable[str]) -> None:
    """Options of what needs a model."""
    command.add_argument("--model", required=True, help="name, folder, hub id or GGUF file")
    command.add_argument("--data", type=Path, required=True, help="folder that prepare made")
    command.add_argument("--label", default="Qwen2.5-Coder-0.5B-Instruct", help="as in prepare")
    command.add_argument("--arms", nargs="+", default=list(arms), help="names, `core` or `descriptive`")
    command.add_argument("--seeds", type=int, nargs="+", default=[0])
    command.add_argument(
        "--rows", type=Path, nargs="+", default=[Path("/tmp/vocabx-rows")], help="the first is written to"
    )
    command.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="settings other than settings.json's"
    )
    command.add_argument(
        "--benchmarks", nargs="*", default=list(BENCHMARKS), choices=BENCHMARKS, help="for bits per byte"
    )
    command.add_argument("--answer", nargs="*", default=list(BENCHMARKS), choices=BENCHMARKS, help="to be answered")
    command.add_argument("--limit", type=int, help="problems of each benchmark, for a trial")
    command.add_argument("--pairs", type=int, help="training pairs, for a trial")
    command.add_argument("--max-new-tokens", type=int, default=448)
    command.add_argument("--batch-tokens", type=int, default=16_384, help="tokens of a forward pass that only measures")
    command.add_argument("--heal", action="store_true", help="take ends of prompts back, for tokens that cross words")
    command.add_argument("--minutes", type=float, default=9.0, help="start nothing that would end later")
    command.set_defaults(processes=1, child=False)
