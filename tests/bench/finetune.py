"""Measure fine-tuning on one GPU: what each stage costs, and what it does to bits per byte.

    python tests/bench/finetune.py prepare --model MODEL --out DATA            (no GPU: texts and new tokens)
    python tests/bench/finetune.py measure --model MODEL --data DATA --out OUT (one GPU, no network)

`measure` writes, after each part, OUT/LABEL.json (variants: bits per byte, time, memory) and OUT/finetune-DEVICE.json
(tokens per second by stage and shape, as a share of a matrix-product ceiling measured in the same run). What OUT holds
already is not measured again, and with --scratch FOLDER a variant that was cut goes on at its last epoch. A part that
fails is noted with its error, and tried again by the next call.

FLOP per token, recomputation not counted (P linear weights of the blocks, H head weights that count, R adapter
weights, A = 2 · T · layers · heads · head width for the causal half of both attention products):
stage a  forward 2P + 2H + A, backward by states 2P + 2H + 2A, head gradient 2H      = 4P + 6H + 3A
stage b  forward 2P + 2H + 2R + A, by states the same with 2A, adapter gradients 2R  = 4P + 4H + 6R + 3A
stage c1 as a without the head's gradient, with those of half the blocks             = 5P + 4H + 3A
stage c2 forward whole, backward through the second half only                        = 4P + 4H + 2A
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bench_parts import (
    SHAPES,
    block_work,
    free,
    known_json,
    label_of,
    matmul_ceiling,
    random_model,
    read_sets,
    read_splits,
    seconds_left,
    short_device,
    write_sets,
)
from bench_parts import facts as bench_facts

from vocabx_utils import corpus, files, models
from vocabx_utils.config import FineTuneConfig
from vocabx_utils.training import stages
from vocabx_utils.training.examples import Example, ExampleSet, encode
from vocabx_utils.training.finetuning import StageTraining
from vocabx_utils.training.finetuning_stage import OutOfMemory, fine_tune, run_stage
from vocabx_utils.training.forgetting import Snapshot, forgetting_texts

# of one forward pass, as many as an 80 GB card holds; halved where memory does not suffice
TOKENS_PER_BATCH = {"qwen2.5-coder-0.5b": 32_768, "llama-6.7b": 4096, "llama-6.7b-v128k": 4096, "tiny": 32_768}
STEP_TOKENS = 32_768
PROMPT = (
    "### Instruction:\nCompute the mean of column b for each group of column a of a data frame.\n\n"
    "### Answer:\n```python\n"
)


def prepare(options: argparse.Namespace) -> None:
    """Write texts and the extension, so that the measurement needs nothing but this folder and the model.

    With --corpus and --strategy added they are those of anchors.py, and its rows fit.
    """
    from vocabx_utils.vocabulary.extend import add_tokens
    from vocabx_utils.vocabulary.proposals import select_tokens

    splits = read_splits(options.corpus) if options.corpus else _package_splits(options)
    tokenizer = models.load_tokenizer(options.model)
    # rendered without a tokenizer: begin and end marks spelled out must not become parts of new tokens
    texts = [corpus.render(pair, "thesis").text for pair in splits["tokenizer"]]
    proposals = select_tokens(texts, tokenizer, options.new_tokens, strategy=options.strategy)
    add_tokens(tokenizer, proposals, options.strategy).save(options.out / "extension")
    for name in ("train", "validation"):
        files.write_jsonl(options.out / f"{name}.jsonl", [vars(pair) for pair in splits[name]])
    held = [corpus.render(pair, "thesis", tokenizer).text for pair in splits["validation"]]
    sets = forgetting_texts(held, max_texts=options.validation, max_chars=1200)
    write_sets(options.out / "texts.json", sets)
    print(f"{options.out}: {len(splits['train'])} training texts, {len(proposals)} new tokens")


def _package_splits(options: argparse.Namespace) -> dict[str, list[corpus.Pair]]:
    pairs = corpus.pairs_from_packages()
    sizes = {
        "tokenizer": min(options.pairs, len(pairs) // 3),
        "train": min(options.pairs, len(pairs) // 2),
        "validation": options.validation,
    }
    return corpus.split_pairs(pairs, sizes, seed=0)


def measure(options: argparse.Namespace) -> None:
    """Ceiling, the variants, then throughput by shape; everything found so far is on disk at any time."""
    options.started = time.perf_counter()
    options.scratch = options.scratch or Path(tempfile.mkdtemp(prefix="vocabx-bench-"))  # weights are no results
    options.out.mkdir(parents=True, exist_ok=True)
    ceiling = matmul_ceiling(options.size)
    facts = bench_facts() | {"ceiling_flops": ceiling}
    print(f"{facts['device']}: matrix products {ceiling / 1e12:.0f} TFLOP/s", flush=True)
    if options.model:
        measure_variants(facts, options)
    measure_throughput(facts, options)


def measure_throughput(facts: dict[str, Any], options: argparse.Namespace) -> None:
    """Stages a and b at each shape, with and without compiled blocks."""
    path = options.out / f"finetune-{short_device()}.json"
    rows = known_json(path).get("workloads", [])
    done = {(row["shape"], row["stage"], row["compiled"]): row for row in rows if "error" not in row}
    for place in ((s, k, c) for s in options.shapes for k in ("a", "b") for c in options.compiled):
        if place in done or not _time_left(options, 75):
            continue
        shape, key, compiled = place
        try:
            row = throughput(shape, key, facts["ceiling_flops"], options, compiled=compiled)
        except Exception as error:
            row = {"error": _report(f"{shape}, stage {key}", error)}
        done[place] = {"shape": shape, "stage": key, "compiled": compiled, **row}
        files.write_json(path, {**facts, "workloads": list(done.values())})
        print({k: v for k, v in done[place].items() if k != "step_seconds"}, flush=True)


def throughput(shape: str, key: str, ceiling: float, options: argparse.Namespace, *, compiled: bool) -> dict[str, Any]:
    """Tokens per second of one stage at a shape with random weights and texts of exactly T tokens."""
    budget = options.tokens_per_batch.get(shape, TOKENS_PER_BATCH[shape])
    while True:
        try:
            return measured(shape, key, ceiling, options, budget, compiled)
        except OutOfMemory:
            if budget <= options.length:
                raise
            budget //= 2
        free()


def measured(
    shape: str, key: str, ceiling: float, options: argparse.Namespace, budget: int, compiled: bool
) -> dict[str, Any]:
    """Time a stage at one size of batch; processes that were launched together share each step."""
    free()
    model = random_model(shape)
    limit = model.config.vocab_size
    per_step = max(budget, options.step_tokens)
    config = FineTuneConfig(
        stages=(key[0],), a_epochs=1, b_epochs=1, max_length=options.length, tokens_per_batch=budget,
        tokens_per_step=per_step, compile_blocks="on" if compiled else "off",
    )  # fmt: skip
    texts = random_texts(limit, options.length, per_step // options.length * options.steps)
    few = ExampleSet(texts.examples[:1], 0, 0)
    stage = next(stage for stage in stages.plan_stages(config) if stage.key == key)
    folder = options.scratch / f"{shape}-{key}-{budget}-{compiled}"
    flops = flops_per_token(model, key, config, limit, options.length)
    weights = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    result, _ = run_stage(StageTraining(model, stage, texts, few, config, limit=limit), folder)
    (folder / "checkpoint.safetensors").unlink(missing_ok=True)
    records = [record for record in files.read_jsonl(folder / "losses.jsonl") if record["kind"] == "step"]
    seconds = [record["seconds"] for record in records][options.warmup :]
    rate = records[-1]["tokens"] / statistics.median(seconds)
    return {
        "T": options.length,
        "tokens_per_batch": budget,
        "tokens_per_step": per_step,
        "tokens_per_s": rate,
        "flops_per_token": flops,
        "ceiling_share": rate * flops / ceiling,
        "ceiling_flops": ceiling,
        "peak_bytes": result.peak_bytes,
        "weight_bytes": weights,
        "trainable": result.trainable,
        "step_seconds": seconds,
    }


def flops_per_token(model: Any, key: str, config: FineTuneConfig, limit: int, length: int) -> float:
    """The formula of the module's first lines."""
    blocks, attention = block_work(model, length)
    head = limit * model.config.hidden_size
    adapters = sum(
        config.lora_rank * sum(module.weight.shape)
        for module in stages.blocks_of(model).modules()
        if isinstance(module, torch.nn.Linear)
    )
    return {
        "a": 4 * blocks + 6 * head + 3 * attention,
        "b": 4 * blocks + 4 * head + 6 * adapters + 3 * attention,
        "c1": 5 * blocks + 4 * head + 3 * attention,
        "c2": 4 * blocks + 4 * head + 2 * attention,
    }[key]


def random_texts(limit: int, length: int, count: int) -> ExampleSet:
    """Texts of exactly `length` random ids: no padding, nothing to learn but the cost is real."""
    ids = np.random.default_rng(0).integers(0, limit, (count, length))
    return ExampleSet(tuple(Example(row, 1) for row in ids), 0, 0)


PLAN = {
    "expanded a+b": ("a", "b"),
    "expanded a+c": ("c",),  # goes on from stage a of the first
    "base b": ("b",),
    "expanded b": ("b",),  # for the epochs of both stages of the first, so that it takes as many steps
    "base c": ("c",),
}


def measure_variants(facts: dict[str, Any], options: argparse.Namespace) -> None:
    """Every stage of one variant, the controls without expansion, and the ablation of stage a."""
    path = options.out / f"{label_of(options.label, options.model)}.json"
    variants = known_json(path).get("variants", {})
    if all("stages" in variants.get(name, {}) for name in PLAN):
        return
    setting = Setting(options)
    about = {"model": options.label or setting.base.name, "new_tokens": setting.extension.N, "start": setting.start}
    for name, keys in PLAN.items():
        longest = max((found["seconds"] for found in variants.values() if "seconds" in found), default=90.0)
        if "stages" in variants.get(name, {}) or not _time_left(options, longest):
            continue
        try:
            variants[name] = setting.tune(name, keys, facts["ceiling_flops"])
        except Exception as error:
            variants[name] = {"error": _report(name, error)}
        files.write_json(path, {**facts, **about, "variants": variants})
        free()


class Setting:
    """What all variants share: the base, the new tokens, the texts."""

    def __init__(self, options: argparse.Namespace) -> None:
        from vocabx_utils.vocabulary.tokens import load_extension

        self.options, self.base = options, models.load_base_model(options.model)
        self.extension = load_extension(options.data / "extension")
        self.input_rows, self.head_rows, self.start = start_rows(self.base, self.extension, options)
        self.sets = read_sets(options.data / "texts.json")

    def tune(self, name: str, keys: tuple[str, ...], ceiling: float) -> dict[str, Any]:
        """Run one variant, with smaller batches where memory does not suffice."""
        while True:
            try:
                return self._tune(name, keys, ceiling)
            except OutOfMemory:
                if self.options.variant_batch // 2 < self.options.length:
                    raise
                self.options.variant_batch //= 2
            free()

    def _tune(self, name: str, keys: tuple[str, ...], ceiling: float) -> dict[str, Any]:
        options, base, extension = self.options, self.base, self.extension
        expanded = name.startswith("expanded")
        limit = extension.V + extension.N if expanded else base.vocab_size
        tokenizer = extension.extended if expanded else base.tokenizer
        new_ids = range(extension.V, limit) if expanded else range(limit, limit)
        model = models.with_extra_rows(base, self.input_rows[: len(new_ids)], self.head_rows[: len(new_ids)])
        if name == "expanded a+c":
            after_a = options.scratch / _folder("expanded a+b") / "a" / "embeddings.safetensors"
            keys = keys if after_a.exists() else ("a", *keys)
            if after_a.exists():
                stored = files.read_tensors(after_a)
                for matrix, rows in zip(stages.matrices_of(model), (stored["input"], stored["head"]), strict=True):
                    matrix.data.copy_(rows)
        epochs = options.epochs * (2 if name == "expanded b" else 1)
        config = FineTuneConfig(
            stages=keys, a_epochs=options.epochs, b_epochs=epochs, max_length=options.length,
            b_warmup=1 / epochs if epochs > 1 else 0.25,  # the thesis: the first epoch
            tokens_per_batch=options.variant_batch, tokens_per_step=options.step_tokens,
        )  # fmt: skip
        texts = [self._texts(part, tokenizer) for part in ("train", "validation")]
        whole = max(4096, options.variant_batch)  # its texts are never cut
        observe = Snapshot(tokenizer, limit, new_ids, self.sets, options.prompt, tokens_per_batch=whole)
        began = time.perf_counter()
        folder = options.scratch / _folder(name)
        done = fine_tune(model, *texts, folder, config, limit=limit, new_ids=new_ids, observe=observe)
        rows = done.stages.to_dict("records")
        for row in rows:
            flops = flops_per_token(model, row["stage"], config, limit, int(row["tokens"] / row["texts"]))
            row["tokens_per_s"] = row["tokens"] / row["seconds"]
            row["ceiling_share"] = row["tokens_per_s"] * flops / ceiling
        epochs = done.losses[done.losses.kind == "epoch"][["stage", "epoch", "loss", "validation_loss"]]
        final = list(done.observed.values())[-1]["bits_per_byte"]
        print(
            name,
            {k: round(v, 4) for k, v in final.items()},
            f"{time.perf_counter() - options.started:.0f} s",
            flush=True,
        )
        return {
            "stages": rows,
            "epochs": epochs.astype(object).where(epochs.notna(), None).to_dict("records"),
            "observed": done.observed,
            "train_tokens": texts[0].tokens,
            "tokens_per_batch": options.variant_batch,
            "seconds": round(time.perf_counter() - began, 1),
        }

    def _texts(self, part: str, tokenizer: Any) -> ExampleSet:
        pairs = corpus.pairs_from_jsonl(self.options.data / f"{part}.jsonl")
        rendered = [corpus.render(pair, "thesis", tokenizer) for pair in pairs]
        return encode(rendered, tokenizer, max_length=self.options.length)


def start_rows(base: Any, extension: Any, options: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor, str]:
    """Rows of phase 1 where given, else subtoken means for the input and the first subtoken for the head."""
    if options.rows:
        rows = files.read_tensors(options.rows)
        prefix = f"{options.variant}." if options.variant else ""
        found = rows[f"{prefix}input_rows"].float(), rows[f"{prefix}head_rows"].float()
        if len(found[0]) != extension.N:
            raise SystemExit(f"{options.rows} holds {len(found[0])} rows, the extension has {extension.N} new tokens")
        return *found, f"phase 1, {options.variant or options.rows.name}"
    input_rows = torch.stack([base.input_rows[list(t.subtokens)].float().mean(0) for t in extension.tokens])
    head_rows = torch.stack([base.head_rows[t.subtokens[0]].float() for t in extension.tokens])
    return input_rows.cpu(), head_rows.cpu(), "mean of subtokens, head of the first; untrained"


def _folder(name: str) -> str:
    return name.replace(" ", "-")


def _report(what: str, error: Exception) -> str:
    print(f"{what} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
    return f"{type(error).__name__}: {error}"


def _time_left(options: argparse.Namespace, needed: float) -> bool:
    return needed < seconds_left(options.started, options.minutes)


def _budgets(text: str) -> dict[str, int]:
    return {name: int(size) for name, size in (part.split("=") for part in text.split(","))}


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("prepare")
    first.set_defaults(run=prepare)
    first.add_argument("--model", required=True, help="tokenizer: name, folder, hub id or GGUF file")
    first.add_argument("--out", type=Path, required=True)
    first.add_argument("--corpus", type=Path, help="corpus of prepare_corpora.py; installed packages without it")
    first.add_argument("--strategy", choices=["merges", "added"], default="merges")
    first.add_argument("--pairs", type=int, default=3000)
    first.add_argument("--validation", type=int, default=200)
    first.add_argument("--new-tokens", type=int, default=800)
    second = commands.add_parser("measure")
    second.set_defaults(run=measure)
    second.add_argument("--model", default="", help="folder, GGUF file or name; empty for throughput alone")
    second.add_argument("--label", help="name of the model in the results; default: from the path")
    second.add_argument("--scratch", type=Path, help="folder for weights and checkpoints, kept between calls")
    second.add_argument("--data", type=Path, help="folder that prepare made")
    second.add_argument("--out", type=Path, required=True)
    second.add_argument("--rows", type=Path, help="rows/epoch_NN.safetensors of phase 1; mean of subtokens without it")
    second.add_argument("--variant", help="which variant of --rows, where anchors.py wrote it")
    second.add_argument("--shapes", nargs="*", default=["qwen2.5-coder-0.5b", "llama-6.7b"], choices=list(SHAPES))
    second.add_argument("--compiled", nargs="*", type=lambda text: text == "yes", default=[False, True], help="yes, no")
    second.add_argument("--length", type=int, default=1024, help="T")
    second.add_argument("--tokens-per-batch", type=_budgets, default=TOKENS_PER_BATCH)
    second.add_argument("--variant-batch", type=int, default=16_384)
    second.add_argument("--step-tokens", type=int, default=STEP_TOKENS)
    second.add_argument("--steps", type=int, default=9)
    second.add_argument("--warmup", type=int, default=4, help="steps that are not timed")
    second.add_argument("--epochs", type=int, default=2, help="of stages a and b")
    second.add_argument("--size", type=int, default=8192, help="of the matrix product")
    second.add_argument("--minutes", type=float, default=9.0, help="start nothing that would end later")
    second.add_argument("--prompt", default=PROMPT, help="continued greedily after each stage")
    options = parser.parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    main()
