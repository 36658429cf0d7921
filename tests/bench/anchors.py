"""Measure the objectives of phase 1 on one model and one corpus (the anchor table of the documentation).

Run:  python tests/bench/anchors.py --model MODEL --data FOLDER/python.jsonl.gz --out OUT

Every finished variant is one line of OUT/<label>-<corpus>-<strategy>.jsonl, written at once, and a variant that is
there already is skipped, so a run may be cut and continued: copy the files measured so far to OUT first. A variant
that fails is reported and left out, and the exit status is 1 at the end. A variant is written
`<input rows>_<objective>[@<schedule>][@n<N>]`, with the schedule `ours` (--rate, --epochs) or `thesis` (4.2e-4,
8 epochs and a warm restart of 4). Names of groups stand for lists: essential, pareto, others, random, inits, thesis,
sweep.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from bench_parts import device_name, known_lines, label_of, read_splits

from vocabx_utils import corpus, files, runs
from vocabx_utils.config import Phase1Config
from vocabx_utils.models import BaseModel, load_base_model
from vocabx_utils.student import Student
from vocabx_utils.training.continuations import continuations
from vocabx_utils.training.examples import AlignedSet, whole_texts
from vocabx_utils.training.objectives import parse_variant
from vocabx_utils.training.phase1 import Phase1Data
from vocabx_utils.training.phase1_stage import train_variant
from vocabx_utils.training.teacher import teacher_cache
from vocabx_utils.training.validation import base_bits_per_byte, evaluate
from vocabx_utils.vocabulary.alignment import align_texts
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.proposals import select_tokens
from vocabx_utils.vocabulary.tokens import Extension, load_extension

GROUPS: dict[str, list[str]] = {
    "essential": [
        "mean_untrained", "mean_kl_last", "mean_ce", "mean_kl_first", "mean_kl_none", "mean_kl_last_ce0.3",
        "mean_hidden_last",
    ],
    "pareto": [f"mean_kl_last_ce{weight}" for weight in ("0.1", "1", "0.03", "3")],
    "others": ["mean_hidden_first", "mean_cosine_last", "mean_kl_last_t2", "mean_kl_last_ce0.3_t2", "mean_ce_w4"],
    "random": ["random_untrained", "random_kl_last", "random_ce", "random_kl_first"],
    "inits": [
        "align_untrained", "align_kl_last", "focus_untrained", "focus_kl_last", "first_untrained", "last_untrained",
    ],
    "thesis": [
        "mean_ce@thesis", "mean_kl_first@thesis", "random_ce@thesis", "random_kl_first@thesis", "mean_kl_last@thesis",
    ],
    "sweep": [
        f"mean_{objective}@n{n}"
        for n in (100, 400, 1600)
        for objective in ("untrained", "kl_last", "ce")
    ],
}  # fmt: skip
MAX_LENGTH = 1024  # tokens of a text


@dataclass(frozen=True)
class Setup:
    """Everything that the variants with one N share."""

    extension: Extension
    data: Phase1Data  # its validation is the short one that draws the curves
    whole: AlignedSet
    whole_teacher: Any


def spelled(name: str, default_n: int) -> tuple[str, str, int]:
    """Split a variant's full name into variant, schedule and N."""
    variant, *marks = name.split("@")
    schedule, n = "ours", default_n
    for mark in marks:
        if mark[:1] == "n" and mark[1:].isdigit():
            n = int(mark[1:])
        elif mark in ("ours", "thesis"):
            schedule = mark
        else:
            raise SystemExit(f"unknown mark @{mark} in {name}")
    parse_variant(variant)
    return variant, schedule, n


class Bench:
    """Lazy setups by N, and one method that measures a variant."""

    def __init__(self, args: argparse.Namespace, base: BaseModel) -> None:
        self.args, self.base = args, base
        self.splits = read_splits(args.data)
        self.scratch = Path(tempfile.mkdtemp(prefix="anchors-"))
        self.setups: dict[int, Setup] = {}
        self.label = label_of(args.label, args.model)
        self.name = f"{self.label}-{args.data.name.split('.')[0]}"
        self.out = args.out / f"{self.name}-{args.strategy}.jsonl"

    def texts(self, split: str, limit: int) -> list[str]:
        pairs = self.splits[split][: limit or None]
        return [corpus.render(pair, "thesis", self.base.tokenizer).text for pair in pairs]

    def extension(self, n: int) -> Extension:
        made = self.args.data.parent / "extensions" / f"{self.name}-{self.args.strategy}-{n}"
        if made.exists():
            return load_extension(made)
        # rendered without a tokenizer: begin and end marks spelled out must not become parts of new tokens
        texts = [corpus.render(pair, "thesis").text for pair in self.splits["tokenizer"]]
        proposals = select_tokens(texts, self.base.tokenizer, n, strategy=self.args.strategy)
        return add_tokens(self.base.tokenizer, proposals, self.args.strategy)

    def setup(self, n: int) -> Setup:
        if n in self.setups:
            return self.setups[n]
        self.setups.clear()  # one N at a time: the teacher may fill the GPU
        began = time.perf_counter()
        extension = self.extension(n)
        sets, caches = {}, {}
        aligned = {s: align_texts(extension, self.texts(s, getattr(self.args, s))) for s in ("train", "validation")}
        vocab, new = self.base.vocab_size, extension.N
        sets["train"] = whole_texts(aligned["train"], vocab, new, max_length=MAX_LENGTH)
        sets["validation"] = whole_texts(aligned["validation"], vocab, new, max_length=MAX_LENGTH)
        few = sets["validation"].examples[: self.args.curve]
        sets["curve"] = replace(sets["validation"], examples=few)
        for split, examples in sets.items():
            cache = teacher_cache(
                self.base, examples, self.scratch / f"teacher-{n}-{split}", token_budget=self.args.token_budget,
                likelihood=split != "train",
            )  # fmt: skip
            caches[split] = cache.to(self.base.device)
        data = Phase1Data(
            sets["train"], sets["curve"], caches["train"], caches["curve"], aligned=aligned["train"]
        )  # fmt: skip
        self.setups[n] = Setup(extension, data, sets["validation"], caches["validation"])
        share = sets["train"].counts().sum() / sets["train"].tokens
        print(
            f"N = {n}: {len(sets['train'])} training examples, {sets['train'].tokens:,} tokens, {share:.2%} new, "
            f"prepared in {time.perf_counter() - began:.0f} s",
            flush=True,
        )
        return self.setups[n]

    def measure(self, name: str) -> dict[str, Any]:
        args, base = self.args, self.base
        variant, schedule, n = spelled(name, args.n)
        setup = self.setup(n)
        cycle = (args.thesis_epochs, args.thesis_restart) if schedule == "thesis" else (args.epochs, 0)
        rate = 4.2e-4 if schedule == "thesis" else args.rate
        config = Phase1Config(
            model="bench", learning_rate=rate, epochs=cycle[0], restart_epochs=cycle[1], batch_size=args.batch,
            token_budget=args.token_budget, window=0, max_length=MAX_LENGTH, seed=args.seed,
            checkpoint_steps=10**9, require_improvement=False,
        )  # fmt: skip
        folder = self.scratch / name
        if base.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        tokenizer = setup.extension.extended

        def spell(token: int) -> str:
            return str(tokenizer.convert_ids_to_tokens(token))

        result = train_variant(variant, base, setup.extension.tokens, setup.data, config, folder, spell=spell)
        epochs = len(result.metrics) - 1
        rows = files.read_tensors(folder / "rows" / f"epoch_{epochs:02d}.safetensors")
        model = Student(base.model, base.vocab_size, rows["input_rows"], rows["head_rows"])
        scores, _ = evaluate(model, setup.whole, setup.whole_teacher, token_budget=args.token_budget)
        after = continuations(
            model, setup.whole, setup.whole_teacher, setup.extension.tokens, token_budget=args.token_budget
        ).summary()
        seconds = sum(row["seconds"] for row in result.metrics)
        self.keep_rows(name, rows)
        cosines = [self.cosines(setup, folder, epoch) for epoch in range(epochs + 1)]
        shutil.rmtree(folder)
        return {
            "name": name, "variant": variant, "schedule": schedule, "n": n, "strategy": args.strategy,
            "model": self.label, "corpus": args.data.name.split(".")[0],
            "learning_rate": rate, "epochs": list(cycle), "batch": args.batch, "window": 0,
            "train_examples": len(setup.data.train), "train_tokens": setup.data.train.tokens,
            "new_share": float(setup.data.train.counts().sum() / setup.data.train.tokens),
            "validation_examples": len(setup.whole), "base_bpb": base_bits_per_byte(setup.whole_teacher, setup.whole),
            **scores, "after_merged_span": after, "cosines": cosines,
            "curve": [{k: v for k, v in row.items() if not k.startswith("n_")} for row in result.metrics],
            "without_examples": len(result.without_examples), "skipped_steps": result.skipped_steps,
            "train_seconds": round(seconds, 2),
            "train_tokens_per_s": round(setup.data.train.tokens * epochs / seconds) if epochs else None,
            "peak_bytes": torch.cuda.max_memory_allocated() if base.device.type == "cuda" else None,
        }  # fmt: skip

    def cosines(self, setup: Setup, folder: Path, epoch: int) -> dict[str, dict[str, float]]:
        """Mean cosine of the new rows to their first, mean intermediate and last subtoken, input and head."""
        rows = files.read_tensors(folder / "rows" / f"epoch_{epoch:02d}.safetensors")
        tokens = setup.extension.tokens
        found: dict[str, dict[str, float]] = {}
        for side, matrix in (("input", self.base.input_rows), ("head", self.base.head_rows)):
            new = rows[f"{side}_rows"].to(self.base.device)
            first = matrix[[t.subtokens[0] for t in tokens]].float()
            last = matrix[[t.subtokens[-1] for t in tokens]].float()
            inner = [k for k, t in enumerate(tokens) if len(t.subtokens) >= 3]
            middle = (
                torch.stack([matrix[list(tokens[k].subtokens[1:-1])].float().mean(0) for k in inner]) if inner else None
            )
            cosine = torch.nn.functional.cosine_similarity
            found[side] = {"first": float(cosine(new, first).mean()), "last": float(cosine(new, last).mean())}
            if middle is not None:
                found[side]["intermediate"] = float(cosine(new[inner], middle).mean())
        return found

    def keep_rows(self, name: str, rows: dict[str, torch.Tensor]) -> None:
        """Keep some variants' rows in one file, bfloat16 to stay small."""
        if name not in self.args.save_rows:
            return
        path = self.args.out / f"{self.name}-{self.args.strategy}-rows.safetensors"
        kept = files.read_tensors(path) if path.exists() else {}
        kept |= {f"{name}.{key}": value.bfloat16() for key, value in rows.items()}
        files.write_tensors(path, kept)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="packaged name, folder or GGUF file")
    parser.add_argument("--label", help="name of the model in the results; default: from the path")
    parser.add_argument("--data", type=Path, required=True, help="corpus written by prepare_corpora.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--variants", nargs="+", default=list(GROUPS))
    parser.add_argument("--strategy", choices=["added", "merges"], default="added")
    parser.add_argument("--n", type=int, default=800)
    parser.add_argument("--train", type=int, default=3000, help="pairs, 0 for all")
    parser.add_argument("--validation", type=int, default=1000)
    parser.add_argument("--curve", type=int, default=200, help="validation pairs for the curves over epochs")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--thesis-epochs", type=int, default=8)
    parser.add_argument("--thesis-restart", type=int, default=4)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--token-budget", type=int, default=32768)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=9.0, help="start no variant that would end later than this")
    parser.add_argument("--save-rows", nargs="*", default=["mean_kl_last", "mean_ce", "mean_kl_first"])
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is not there yet; 1 where a variant failed, else 0."""
    began, args = time.perf_counter(), parse(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    names = [name for group in args.variants for name in GROUPS.get(group, [group])]
    for name in names:
        spelled(name, args.n)
    base = load_base_model(args.model)
    print(json.dumps(base.describe()), f"loaded in {time.perf_counter() - began:.0f} s", flush=True)
    bench = Bench(args, base)
    rows = known_lines(bench.out)
    done = {row["name"] for row in rows}
    about = {"device": device_name(), "dtype": str(base.dtype).removeprefix("torch.")}
    about |= {"versions": runs.installed_versions(["torch", "transformers"]), "python": platform.python_version()}
    slowest, failed = max((row["seconds"] for row in rows), default=0.0), 0
    for name in names:
        start = time.perf_counter()
        if name in done:
            continue
        if start - began + slowest > 60 * args.minutes:
            print(f"{name} and what follows is left out: {args.minutes:g} minutes would not do")
            break
        try:
            row = bench.measure(name)
        except Exception:  # one bad variant must not cost the others their machine time
            failed += 1
            print(f"{name} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
            continue
        seconds = time.perf_counter() - start
        slowest = max(slowest, seconds)
        files.append_jsonl(bench.out, row | about | {"seconds": round(seconds, 1)})
        print(
            f"{name:28s} KL identical {row['kl_identical_all']:.4f} (after divergence {row['kl_identical']:.4f}) "
            f"last {row['kl_last']:.3f} first {row['kl_first']:.3f}  "
            f"bpb {row['bpb']:.4f} (base {row['base_bpb']:.4f})  "
            f"repeats {row['after_merged_span']['repeats']}/{row['after_merged_span']['places']}  {seconds:.0f} s",
            flush=True,
        )
    shutil.rmtree(bench.scratch, ignore_errors=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
