"""Measure what new tokens that cross words cost and gain, on one model and one domain.

    python tests/bench/phrases.py prepare --model MODEL --texts python --out DATA [--root FOLDER]     (no GPU)
    python tests/bench/phrases.py measure --model MODEL --data DATA --out OUT [--runs RUN …] [--minutes M]
    python tests/bench/phrases.py answers --model MODEL --data DATA --out FOLDER [--runs RUN …] [--heal]
    python tests/bench/phrases.py score --answers FOLDER --out OUT

`prepare` writes texts and extensions for every N: strategies `merges`, `phrases` (crossing words only), `both`, and
`literal`, which is `both` with added tokens instead of phrases that the pre-tokenizer lets through; on demand also
`unbroken`, which is `both` without line breaks inside tokens.
A run is `<strategy>:<N>:<objective>[:<rate>[:<rate of the head>[:<dropout>]]]`, for example `both:800:kl_last:1e-3`.
`measure` trains and writes one line a run to OUT/<label>-<texts>.jsonl at once; runs that are there are skipped.
`answers` lets base, rows, and both after LoRA on the same texts answer HumanEval and MBPP, and `score` executes what
they wrote (in the sandbox, where no GPU is needed) and writes FOLDER's figures to OUT.

A line holds: tokens per 1,000 bytes of held-out text and share saved, new_share of positions, KL (nats a position) at
identical places and at the last subtoken, bits per byte of student and base with the paired interval of their
difference over documents, characters a second of greedy generation, seconds and tokens of training.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from bench_parts import (
    facts,
    known_lines,
    label_of,
    phase1_training,
    records_of,
    rows_of,
    synchronise,
    unextended,
    while_time_lasts,
)
from domain_texts import KINDS, documents, read_texts, split_texts
from safetensors.torch import load_file, save_file

from vocabx_utils import corpus, files, models
from vocabx_utils.config import Phase1Config
from vocabx_utils.evaluation.benchmarks import load_benchmark
from vocabx_utils.evaluation.decoding import generate, prepare_engine
from vocabx_utils.evaluation.evaluate import evaluate_answers
from vocabx_utils.evaluation.generation import SampleSettings, generate_samples
from vocabx_utils.evaluation.prompts import Prompt
from vocabx_utils.healing import Healer
from vocabx_utils.models import BaseModel, load_base_model
from vocabx_utils.resampling import paired_bootstrap
from vocabx_utils.statistics import wilson_interval
from vocabx_utils.student import Student
from vocabx_utils.training.fusing import fuse
from vocabx_utils.training.in_memory import fine_tune
from vocabx_utils.training.loss_model import peak_bytes, reset_peak
from vocabx_utils.training.objectives import parse_variant
from vocabx_utils.training.phase1 import Phase1Data, prepare
from vocabx_utils.training.prompt_cuts import choose_cuts, list_cuts, measure_cuts, summarize_cuts
from vocabx_utils.training.starts import Start, from_rows
from vocabx_utils.vocabulary.encoding import encode_all
from vocabx_utils.vocabulary.extend import extend_tokenizer
from vocabx_utils.vocabulary.options import TokenOptions
from vocabx_utils.vocabulary.spelling import spelling_of
from vocabx_utils.vocabulary.tokens import Extension, load_extension

STRATEGIES = ("merges", "phrases", "both", "literal", "unbroken")
DOCSTRING = re.compile(r"""\s*(\"{3}|'{3}|>>>)""")
RATE = 1e-3  # where a run names no other
_BYTES = {"tokenizer": 5_000_000, "train": 12_000_000, "validation": 1_500_000}


# --- texts and extensions -------------------------------------------------------------------------------------------


def prepare_data(options: argparse.Namespace) -> None:
    """Write texts and extensions."""
    splits = split_texts(read_texts(options.texts, options.root), _BYTES | {"validation": options.validation_bytes})
    tokenizer = models.load_tokenizer(options.model)
    texts = {
        "train": documents(splits["train"], options.characters, options.documents),
        "validation": documents(splits["validation"], options.characters, options.validation),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    files.write_json(options.out / "texts.json", {"kind": options.texts, **texts})
    if options.texts == "python":  # what LoRA learns from
        pairs = corpus.split_pairs(corpus.pairs_from_packages(max_chars=1200), {"lora": options.pairs})["lora"]
        files.write_jsonl(options.out / "pairs.jsonl", [asdict(pair) for pair in pairs])
    for strategy in options.strategies:
        for n in options.n:
            began = time.perf_counter()
            extension = _extended(options, tokenizer, splits["tokenizer"], n, strategy)
            extension.save(options.out / "extensions" / f"{strategy}-{n}")
            print(
                f"{options.texts} {strategy} {n}: {extension.N} tokens, {time.perf_counter() - began:.0f} s", flush=True
            )


def _extended(options: argparse.Namespace, tokenizer: Any, texts: list[str], n: int, strategy: str) -> Extension:
    if strategy == "merges":
        return extend_tokenizer(
            tokenizer, texts, n, "merges", TokenOptions(min_count=options.min_count or 4, min_files=3)
        )
    least = options.min_count or max(8, 24_000 // n)  # of 5 MB; smaller domains ask for fewer
    chosen = TokenOptions(
        min_count=least, min_files=3, mix_words=strategy != "phrases", across_digits=options.digits,
        phrase_form="literal" if strategy == "literal" else "patterns", line_breaks=strategy != "unbroken",
    )  # fmt: skip
    return extend_tokenizer(tokenizer, texts, n, "phrases", chosen)


# --- phase 1 --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What a run's name says."""

    name: str
    strategy: str
    n: int
    objective: str
    rate: float
    head_rate: float
    dropout: float


def parse_run(name: str) -> Run:
    """Read `<strategy>:<N>:<objective>[:<rate>[:<rate of the head>[:<dropout>]]]`."""
    strategy, n, objective, *numbers = name.split(":")
    known = [float(number) for number in numbers] + [0.0] * 3
    parse_variant(f"mean_{objective}")
    return Run(name, strategy, int(n), objective, known[0] or RATE, known[1], known[2])


class Bench:
    """A model, texts, and what runs with the same tokens share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.base: BaseModel = load_base_model(options.model)
        if self.base.device.type == "cuda":
            fuse(self.base.model)
        self.texts = files.read_json(options.data / "texts.json")
        self.kind = self.texts["kind"]
        self.label = label_of(options.label, options.model)
        self.path = options.out / f"{self.label}-{self.kind}.jsonl"
        self.train = self.texts["train"][: options.documents]
        self.validation = self.texts["validation"][: options.validation]
        self.known: tuple[tuple[str, int, float], Extension, Phase1Data] | None = None
        self.begin = self.base.tokenizer.eos_token_id
        self.base_bits: np.ndarray | None = None
        self.plain: Any = None

    def config(self, run: Run) -> Phase1Config:
        options = self.options
        more = {"phrase_dropout": run.dropout, "head_learning_rate": run.head_rate}
        return Phase1Config.from_params(
            variants=[f"mean_{run.objective}"], learning_rate=run.rate, epochs=options.epochs, window=0,
            batch_size=options.batch, token_budget=options.token_budget, max_length=1024, head_init="mean",
            require_improvement=False, compile_blocks="off", seed=options.seed,
            **{name: value for name, value in more.items() if value},
        )  # fmt: skip

    def data(self, run: Run) -> tuple[Extension, Phase1Data]:
        """Examples and teacher, kept while runs with the same tokens follow each other."""
        key = (run.strategy, run.n, run.dropout)
        if self.known is None or self.known[0] != key:
            self.known = None
            extension = load_extension(self.options.data / "extensions" / f"{run.strategy}-{run.n}")
            self.known = key, extension, prepare(self.base, extension, self.train, self.validation, self.config(run))
        return self.known[1], self.known[2]

    def rows(self, run: Run) -> tuple[Extension, Phase1Data, Student, list[dict[str, Any]], float]:
        """Train a run."""
        began = time.perf_counter()
        extension, data = self.data(run)
        prepared = time.perf_counter() - began
        training = phase1_training(f"mean_{run.objective}", self.base, extension, data, self.config(run))
        reset_peak()
        return extension, data, training.student, records_of(training), prepared

    def measure(self, name: str) -> dict[str, Any]:
        """Train and measure one run."""
        run = parse_run(name)
        extension, data, student, records, prepared = self.rows(run)
        last = records[-1]
        sizes, counted = self.sizes(), self.counted(extension.original, extension.extended)
        n_bytes = sum(sizes)
        bits = self.bits(student, extension.extended)
        if self.base_bits is None:
            self.base_bits = self.bits(Student(self.base.model, self.base.vocab_size), extension.original)
        gap = paired_bootstrap(bits, self.base_bits, weights=sizes)
        seconds = sum(record["seconds"] for record in records)
        row = {
            "run": name, "model": self.label, "text": self.kind, "strategy": run.strategy, "n": run.n,
            "objective": run.objective, "rate": run.rate, "head_rate": run.head_rate, "dropout": run.dropout,
            "epochs": len(records) - 1, "train_tokens": data.train.tokens, "train_documents": len(self.train),
            "documents": len(self.validation), **counted,
            "new_share": round(last["n_new_targets"] / (last["n_new_targets"] + last["n_old_targets"]), 4),
            "kl_identical": last["kl_identical"], "kl_identical_all": last["kl_identical_all"],
            "kl_last": last["kl_last"], "ce_new": last["ce_new"],
            "bpb": float(sum(bits) / n_bytes), "base_bpb": float(sum(self.base_bits) / n_bytes),
            "bpb_difference": [gap.estimate, gap.low, gap.high],
            "start": {k: records[0][k] for k in ("kl_identical", "kl_last", "bpb", "ce_new")},
            "seconds": round(seconds, 1), "prepared_s": round(prepared, 1),
            "seen": int((data.train.counts() > 0).sum()), "peak_bytes": peak_bytes(),
        }  # fmt: skip
        if self.options.speed and self.base.device.type == "cuda":
            row |= self.speed(extension, student, row["saved"])
        if self.options.cuts:
            row |= self.cuts(extension, student)
        if self.options.keep:
            save_file(rows_of(student), self._kept(name))
        return row

    def _kept(self, name: str) -> Path:
        self.options.keep.mkdir(parents=True, exist_ok=True)
        return Path(self.options.keep / f"{name.replace(':', '_')}.safetensors")

    def start(self, name: str) -> Start:
        """The model with the rows of a run: those that `measure --keep` left, or trained now."""
        run = parse_run(name)
        extension = load_extension(self.options.data / "extensions" / f"{run.strategy}-{run.n}")
        if self.options.keep and (path := self._kept(name)).exists():
            kept = load_file(path, device=str(self.base.device))
        else:
            _, _, student, _, _ = self.rows(run)
            kept = {"input": student.input_rows.detach(), "head": student.head_rows.detach()}
        own = replace(self.base, tokenizer=extension.original)  # as another release of transformers reads it
        return from_rows(own, extension, kept["input"], kept["head"])

    def sizes(self) -> list[int]:
        """UTF-8 bytes of each validation document."""
        return [len(text.encode()) for text in self.validation]

    def counted(self, original: Any, extended: Any) -> dict[str, float]:
        """Tokens per 1,000 bytes of the validation documents under both tokenizers, and the share saved."""
        before, after = (sum(map(len, encode_all(t, self.validation))) for t in (original, extended))
        n_bytes = sum(self.sizes())
        return {
            "tokens_per_1000_bytes": round(1000 * after / n_bytes, 2),
            "base_tokens_per_1000_bytes": round(1000 * before / n_bytes, 2), "saved": round(1 - after / before, 4),
        }  # fmt: skip

    def bits(self, student: Student, tokenizer: Any) -> np.ndarray:
        """Bits of each validation document behind a begin token, which leaves no byte out under any tokenizer."""
        ids = [[self.begin, *found] for found in encode_all(tokenizer, self.validation)]
        nats = student.negative_log_likelihood(ids, batch_tokens=self.options.token_budget)
        return np.asarray(nats) / np.log(2)

    def cuts(self, extension: Extension, student: Student) -> dict[str, Any]:
        """KL right behind prompts that end inside a new token, at its end, and elsewhere."""
        found = choose_cuts(list_cuts(extension, self.validation[:100]), self.options.cuts, self.options.seed)
        table = summarize_cuts(
            measure_cuts(self.base, student, extension, found, token_budget=self.options.token_budget)
        )
        return {"cuts": {str(place): row for place, row in table.round(5).to_dict("index").items()}}

    def speed(self, extension: Extension, student: Student, saved: float) -> dict[str, Any]:
        """Characters a second, greedy, of base and student, with as many prompts and about as much text."""
        base = replace(self.base, tokenizer=extension.original)  # as another release of transformers reads it
        start = from_rows(base, extension, student.input_rows.detach(), student.head_rows.detach())
        return self.speed_of([(start.model, start.tokenizer, saved)], extension.original)[0]

    def speed_of(self, models: Sequence[tuple[Any, Any, float]], original: Any) -> list[dict[str, Any]]:
        """The same of models that are not fused, each with its tokenizer and the share that it saves of held-out text.

        Each round reads the base once and then every model; the first does not count, since steps are recorded in it.
        Told are, of each model, the readings with the median gain, all gains, and the lowest and highest.
        """
        if self.plain is None:
            self.plain = copy.deepcopy(self.base.model)  # without fused blocks, as the student's copy
        everyone = [(self.plain, original, 0.0), *models]
        read = [self._reader(model, tokenizer, round(self.options.reply * (1 - s))) for model, tokenizer, s in everyone]
        rounds = [[reading() for reading in read] for _ in range(self.options.speed + 1)][1:]
        return [_median_gain([(base, own[at]) for base, *own in rounds]) for at in range(len(models))]

    def _reader(self, model: Any, tokenizer: Any, reply: int) -> Callable[[], dict[str, float]]:
        """Return what times greedy replies to the beginnings of held-out texts, from the prompts to the last token."""
        texts = [text[:600] for text in self.validation[: self.options.prompts]]
        prompts = [
            Prompt(str(k), text, tuple(ids), "", False, (), "plain")
            for k, (text, ids) in enumerate(zip(texts, encode_all(tokenizer, texts), strict=True))
        ]
        engine = prepare_engine(model, tokenizer, prompts, reply, batch_size=len(prompts))

        def read() -> dict[str, float]:
            synchronise()
            began = time.perf_counter()
            replies = generate(model, tokenizer, prompts, max_new_tokens=reply, batch_size=len(prompts), engine=engine)
            synchronise()
            seconds = time.perf_counter() - began
            characters, tokens = sum(len(r.text) for r in replies), sum(len(r.ids) for r in replies)
            return {
                "characters_per_s": round(characters / seconds), "tokens_per_s": round(tokens / seconds),
                "characters": characters, "tokens": tokens, "seconds": round(seconds, 3),
            }  # fmt: skip

        return read


def _median_gain(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """What is told of the readings of a base and a model that were made in turns."""
    gains = [own["characters_per_s"] / base["characters_per_s"] for base, own in pairs]
    at = gains.index(statistics.median_low(gains))
    told = {"base_speed": pairs[at][0], "speed": pairs[at][1], "speed_gain": round(gains[at], 4)}
    told["speed_gains"] = [round(gain, 4) for gain in gains]
    return told | {"speed_range": [round(min(gains), 4), round(max(gains), 4)]}


def measure(options: argparse.Namespace) -> None:
    """Measure the runs that are not there yet, while time is left."""
    bench = Bench(options)
    options.out.mkdir(parents=True, exist_ok=True)
    rows = known_lines(bench.path)
    of_these = {(options.epochs, len(bench.train)), (0, len(bench.train))}  # `untrained` has no epochs
    done = {row["run"] for row in rows if (row["epochs"], row.get("train_documents")) in of_these}
    left = [run for run in options.runs if run not in done]
    for name in while_time_lasts(left, options, 1.2, lambda n, name: f"{name} and what follows is left out"):
        began = time.perf_counter()
        row = bench.measure(name)
        files.append_jsonl(bench.path, row | facts())
        shown = ("saved", "new_share", "kl_identical", "kl_last", "bpb", "base_bpb", "seconds")
        print(name, {k: row[k] for k in shown}, f"{time.perf_counter() - began:.0f} s", flush=True)


def answers(options: argparse.Namespace) -> None:
    """Write the answers of base and rows, each as they are and after LoRA."""
    bench = Bench(options)
    base = bench.base
    problems = [p for name in ("humaneval", "mbpp") for p in load_benchmark(name, limit=options.limit)]
    pairs = files.read_jsonl(options.data / "pairs.jsonl")
    tuned_on = [corpus.render(corpus.Pair(**pair), "thesis", base.tokenizer) for pair in pairs]
    starts = {"base": unextended(base)}
    for name in options.runs:
        starts[name.replace(":", "_")] = bench.start(name)
    bench.known = None
    for name, start in starts.items():
        _answer(start, name, problems, options)
        tuned = fine_tune(
            start, tuned_on, "b", validation_texts=tuned_on[:50], b_epochs=options.lora_epochs,
            b_rate=options.lora_rate, tokens_per_step=16_384, tokens_per_batch=16_384, loss_on="answer",
        )  # fmt: skip
        _answer(tuned, f"{name}_lora", problems, options)


def _answer(start: Start, name: str, problems: Sequence[Any], options: argparse.Namespace) -> None:
    began = time.perf_counter()
    healer = Healer(spelling_of(start.tokenizer).raws) if options.heal else None
    settings = SampleSettings(style="thesis", max_new_tokens=448, heal=healer)
    rows = generate_samples(start.model, start.tokenizer, problems, options.out / f"{name}.jsonl", settings, desc=name)
    seconds, characters = time.perf_counter() - began, sum(len(row["raw_solution"]) for row in rows)
    print(json.dumps({"answers": name, "seconds": round(seconds, 1), "characters": characters}), flush=True)


def score(options: argparse.Namespace) -> None:
    """Execute the answers of `answers`."""
    found = files.read_json(options.out) if options.out.exists() else []
    lora = {"lora_rate": options.lora_rate, "lora_epochs": options.lora_epochs}
    for path in sorted(options.answers.glob("*.jsonl")):
        for benchmark, beginning in (("humaneval", "HumanEval/"), ("mbpp", "Mbpp/")):
            rows = [row for row in files.read_jsonl(path) if row["task_id"].startswith(beginning)]
            table = evaluate_answers(benchmark, rows, fast=True)
            interval = wilson_interval(int(table["passed"].sum()), len(table))
            finishes = [row["finish"] for row in rows]
            found.append({
                "model": path.stem, "benchmark": benchmark, "answers": len(table), "passed": int(table["passed"].sum()),
                "pass_at_1": float(table["passed"].mean()), "low": interval.low, "high": interval.high,
                "healed": any(row.get("healed") for row in rows), "cut_off": finishes.count("length"),
                "tokens_per_answer": float(np.mean([row["new_tokens"] for row in rows])),
                "failures": {k: int(n) for k, n in table.loc[~table["passed"], "failure"].value_counts().items()},
                # the prompt ends behind the docstring, so nothing of one belongs into the answer
                "docstring_again": sum(DOCSTRING.match(row["raw_solution"]) is not None for row in rows),
                **(lora if path.stem.endswith("_lora") else {}),
                "passed_ids": table.loc[table["passed"], "task_id"].tolist(),
            })  # fmt: skip
            print({k: v for k, v in found[-1].items() if k != "passed_ids"}, flush=True)
    files.write_json(options.out, found)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, action in (("prepare", prepare_data), ("measure", measure), ("answers", answers)):
        command = commands.add_parser(name)
        command.set_defaults(action=action)
        command.add_argument("--model", required=True, help="name, folder, hub id or GGUF file")
        command.add_argument("--documents", type=int, default=3000, help="training documents, at most")
        command.add_argument("--validation", type=int, default=300, help="validation documents")
        command.add_argument("--out", type=Path, required=True)
        if name == "prepare":
            command.add_argument("--texts", choices=KINDS, required=True)
            command.add_argument("--root", type=Path, help="another folder of texts")
            command.add_argument("--n", type=int, nargs="+", default=[200, 800, 3200])
            command.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=STRATEGIES[:4])
            command.add_argument(
                "--min-count", type=int, default=0, help="places of each token; 0 for the usual number"
            )
            command.add_argument("--characters", type=int, default=3000, help="of a document")
            command.add_argument("--digits", action="store_true", help="let phrases hold digits")
            command.add_argument("--pairs", type=int, default=2000, help="for LoRA, where texts are python")
            command.add_argument("--validation-bytes", type=int, default=_BYTES["validation"])
            continue
        command.add_argument("--data", type=Path, required=True, help="folder that prepare made")
        command.add_argument("--label", help="name of the model in the results")
        command.add_argument("--runs", nargs="+", default=["both:800:kl_last"])
        command.add_argument("--epochs", type=int, default=2)
        command.add_argument("--batch", type=int, default=16, help="documents in a step")
        command.add_argument("--token-budget", type=int, default=16_384)
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--minutes", type=float, default=9.0, help="start nothing that would end later")
        command.add_argument("--keep", type=Path, help="folder for trained rows, which `answers` then finds")
        command.add_argument("--speed", type=int, default=3, help="readings of generation, 0 for none")
        command.add_argument("--cuts", type=int, default=0, help="cut prompts of each kind of place, 0 for none")
        command.add_argument("--prompts", type=int, default=64, help="prompts of the speed measurement")
        command.add_argument("--reply", type=int, default=256, help="tokens of the base's reply there")
        command.add_argument("--limit", type=int, help="problems of each benchmark")
        command.add_argument("--heal", action="store_true", help="take ends of prompts back before answering")
    scoring = commands.add_parser("score")
    scoring.set_defaults(action=score)
    scoring.add_argument("--answers", type=Path, required=True)
    scoring.add_argument("--out", type=Path, default=Path("results/phrases/answers.json"))
    for command in (commands.choices["answers"], scoring):  # of the LoRA that the answers come from
        command.add_argument("--lora-epochs", type=int, default=2)
        command.add_argument("--lora-rate", type=float, default=2.2e-4)
    options = parser.parse_args(arguments)
    options.started = time.perf_counter()
    options.action(options)


if __name__ == "__main__":
    main()
