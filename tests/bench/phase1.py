"""Measure phase 1 against the method as we read the thesis, and against what the arithmetic allows.

    python tests/bench/phase1.py prepare --model MODEL --out DATA          (no GPU: texts and new tokens)
    python tests/bench/phase1.py measure --workloads NAME… --model MODEL --data DATA --out results/bench
    python tests/bench/phase1.py profile --workloads NAME --model MODEL --data DATA

Engines (`phase1_engines`) take the same steps over the same texts on the same hardware, each in a process of its own,
once with blocks as they are and, on a GPU, once with fused ones. After each part `measure` writes
OUT/phase1-<device>.json with one object per workload; rates and ratios hold a value for `unfused` and one for `fused`

    tokens_per_s            student tokens per second, per engine: the median over the timed steps; `plain`: the faster
                            of its two forms
    speedup_vs_plain        ours / plain, teacher cached before (its one pass is in the details)
    speedup_vs_literal      ours / literal
    peak_bytes              of ours, memory above the weights; the cached teacher counts
    peak_ratio_vs_plain     ours / plain
    floor_share             ours / floor
    ceiling_share           achieved FLOP/s of ours / FLOP/s of a large matrix product measured in the same call
    teacher_ceiling_share   the same of the teacher's one pass; the product runs in turns with it if the details say so
    teacher_file_share      the same with all checksums, writing and reading of the file
    busy_host_ratio         rate of ours with busy loops on all cores but one / its rate without
    time_to_quality_ratio   wall time in which ours comes to the validation KL at identical tokens with which literal
                            ends / literal's wall time, the teacher's pass included; null where text is random
    device, versions, date

and OUT/phase1-<device>-details.json with everything behind them. Parts that are there are not measured again.

FLOP per student token, recomputation not counted (P linear weights of the blocks, H = V · D, A = 2 · T · layers ·
heads · head width for the causal half of both attention products, k compared positions per token):
forward 2P + A + 2H, backward by states 2P + 2A, and at compared positions the gradient 2H, new rows 4 · N · D; the
blocks only at the share r of tokens that they do run over                          = r(4P + 3A) + 2H + 2kH + 4ND
The teacher's pass over training texts, per original token: forward 2P + A.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch._functorch.config as functorch
from bench_parts import (
    Peak,
    block_work,
    facts,
    known_json,
    matmul_ceiling,
    median_rate,
    product_rate,
    random_model,
    ratio,
    seconds_left,
    seconds_of,
    short_device,
    synchronise,
)
from phase1_engines import Problem, Step, floor, literal, ours, plain

from vocabx_utils import corpus, fetch, files, models
from vocabx_utils.config import Phase1Config
from vocabx_utils.student import Student
from vocabx_utils.training import softmax
from vocabx_utils.training.batches import epoch_batches, micro_batches
from vocabx_utils.training.examples import AlignedSet, choose_windows, whole_texts
from vocabx_utils.training.fusing import fuse
from vocabx_utils.training.loop import learning_rate
from vocabx_utils.training.teacher import TeacherStates, _passes, tokens_of_a_pass
from vocabx_utils.training.validation import evaluate
from vocabx_utils.vocabulary.alignment import AlignedText, align_texts
from vocabx_utils.vocabulary.boundaries import align_boundaries

ENGINES = ("literal", "plain", "plain32", "ours", "floor")


@dataclass(frozen=True)
class Workload:
    """What is measured: a shape with random weights, or a real model with prepared texts.

    Attributes:
        length: T.
        batch: texts in a step.
        micro: tokens in one forward pass, the same for every engine.
        shape: of `bench_parts.SHAPES`, None for a real model.
        size: of the matrix product that serves as ceiling.
        steps, warmup: timed steps and those before, in which the compiler meets every shape.
    """

    length: int
    batch: int
    micro: int
    shape: str | None = None
    new_tokens: int = 800
    size: int = 8192
    steps: int = 6
    warmup: int = 4
    quality: Quality | None = None


@dataclass(frozen=True)
class Quality:
    """How long training runs to compare wall times at equal validation KL; `micro` as in `Workload`.

    `literal_rate` is that of the ways that compare at the first subtoken. On a CPU it is the best of 1e-3, 3e-3 and
    1e-2 for them; with the last, that of the boundary, their KL rises.
    """

    texts: int
    validation: int
    length: int
    epochs: int
    batch: int
    window: int
    literal_rate: float
    rate: float
    evaluations: int
    micro: int


WORKLOADS = {
    "qwen-t1024": Workload(
        1024, 16, 8192, "qwen2.5-coder-0.5b", steps=10, warmup=8,
        quality=Quality(1500, 150, 1024, 3, 32, 48, 2e-3, 2e-3, 20, 8192),
    ),
    "qwen-t50": Workload(50, 16, 8192, "qwen2.5-coder-0.5b", steps=20, warmup=12),
    "llama-6.7b-v32k": Workload(2048, 8, 4096, "llama-6.7b"),
    "llama-6.7b-v128k": Workload(2048, 8, 4096, "llama-6.7b-v128k"),
    "smollm2-cpu": Workload(256, 4, 1024, size=2048, steps=3, warmup=1,
                            quality=Quality(40, 16, 128, 2, 8, 24, 1e-3, 1e-2, 4, 1024)),
    "tiny": Workload(64, 4, 128, "tiny", 12, 256, 2, 1),
}  # fmt: skip


# --- texts ----------------------------------------------------------------------------------------------------------


def prepare(options: argparse.Namespace) -> None:
    """Write texts and the extension, so that the measurement needs nothing but this folder and the model."""
    from vocabx_utils.vocabulary.extend import add_tokens
    from vocabx_utils.vocabulary.proposals import select_tokens

    pairs = corpus.pairs_from_packages()
    part = len(pairs) // 3
    sizes = {name: min(options.pairs, part) for name in ("tokenizer", "train")}
    splits = corpus.split_pairs(pairs, sizes | {"validation": min(options.validation, part)}, seed=0)
    tokenizer = models.load_tokenizer(options.model)
    texts = {name: [corpus.render(pair, "thesis", tokenizer).text for pair in found] for name, found in splits.items()}
    proposals = select_tokens(texts["tokenizer"], tokenizer, options.new_tokens, strategy=options.strategy)
    add_tokens(tokenizer, proposals, options.strategy).save(options.out / "extension")
    texts["documents"] = _joined(texts["train"], options.length, tokenizer)
    files.write_json(options.out / "texts.json", {name: texts[name] for name in ("documents", "train", "validation")})
    print(f"{options.out}: {len(texts['documents'])} documents of {options.length} tokens, {len(proposals)} new tokens")


def _joined(texts: list[str], length: int, tokenizer: Any) -> list[str]:
    """Join texts until each is long enough to be cut to `length` tokens under either tokenizer."""
    documents, current, tokens = [], "", 0
    for text in texts:
        current += text
        tokens += len(tokenizer(text, add_special_tokens=False)["input_ids"])
        if tokens > 1.4 * length:
            documents.append(current)
            current, tokens = "", 0
    return documents


def problem_of(w: Workload, options: argparse.Namespace) -> Problem:
    """Load or make the model, and the texts of exactly T tokens."""
    config = Phase1Config(
        learning_rate=1e-3, epochs=1, batch_size=w.batch, token_budget=options.micro or w.micro, window=0,
        max_length=w.length,
    )  # fmt: skip
    if w.shape is not None and options.data is None:
        model = random_model(w.shape)
        vocab, device = model.config.vocab_size, model.device
        base = models.BaseModel(w.shape, model, None, vocab, device, model.dtype, models.weights_fingerprint(model))  # type: ignore[arg-type]
        tokens, texts = _random_texts(vocab, w)
        return Problem(base, tokens, whole_texts(texts, vocab, w.new_tokens, max_length=w.length), config)
    from vocabx_utils.vocabulary.tokens import load_extension

    base = models.load_base_model(options.model)
    extension = load_extension(options.data / "extension")
    documents = files.read_json(options.data / "texts.json")["documents"][: w.batch * 8]
    train = whole_texts(align_texts(extension, documents), extension.V, extension.N, max_length=w.length)
    return Problem(base, tuple(extension.tokens), train, config)


@dataclass(frozen=True)
class _Token:
    id: int
    subtokens: tuple[int, ...]


def _random_texts(vocab: int, w: Workload) -> tuple[tuple[_Token, ...], list[AlignedText]]:
    """Texts of random ids with 2 % new tokens of two subtokens; every original id stands for one byte."""
    generator = np.random.default_rng(0)
    spelled = generator.integers(0, vocab, (w.new_tokens, 2))
    texts = []
    for _ in range(2 * w.batch):
        ids = generator.integers(0, vocab, w.length)
        at = generator.random(w.length) < 0.02
        ids[at] = vocab + generator.integers(0, w.new_tokens, int(at.sum()))
        original = np.concatenate([spelled[i - vocab] if i >= vocab else [i] for i in ids]).astype(np.int64)
        left, right = np.arange(1, len(original) + 1), np.cumsum(np.where(at, 2, 1))
        none = [np.zeros(len(ends), bool) for ends in (left, right)]
        texts.append(AlignedText(original, ids, left, right, align_boundaries(left, right), *none))
    return tuple(_Token(vocab + i, tuple(map(int, row))) for i, row in enumerate(spelled)), texts


# --- one engine, in a process of its own ----------------------------------------------------------------------------


def engine(options: argparse.Namespace) -> None:
    """Time one engine on one workload and write what was seen to a file."""
    torch.manual_seed(0)
    w = WORKLOADS[options.workload]
    problem = problem_of(w, options)
    if options.compiled:
        functorch.donated_buffer = options.engine != "literal"  # which runs backward twice over one graph
        fuse(problem.base.model)
    peak = Peak()
    found: dict[str, Any] = {"engine": options.engine, "compiled": bool(options.compiled)}
    if options.engine == "ours":
        for _ in range(3):  # the last one met every shape before
            began = time.perf_counter()
            cache = problem.cache(problem.train)
            synchronise()
            found["teacher_seconds"] = time.perf_counter() - began
        found |= teacher_pass(problem, w.size, tokens_of_a_pass(problem.base.device, problem.config.token_budget))
        found["teacher_tokens"] = sum(len(e.original_ids) for e in problem.train.examples)
        found["teacher_flops_per_token"] = teacher_flops_per_token(problem, w)
        found["teacher_bytes"] = cache.states.nbytes
        trainer = ours(problem, cache=cache)
        step = trainer.step
    else:
        step = starts()[options.engine](problem)
    processor, host = time.process_time(), []

    def watched(indices: list[int]) -> None:
        began = time.perf_counter()
        step(indices)
        host.append(time.perf_counter() - began)

    seconds, tokens = timed(watched, problem.train, w)
    skipped = skipped_share(problem, cache, w) if options.engine == "ours" else 0.0
    found |= {
        "skipped_share": skipped,
        # of all threads, steps before the timed ones included: tells a busy machine from slow code
        "cpu_seconds": time.process_time() - processor,
        "tokens_per_s": median_rate(seconds, tokens),
        "step_seconds": seconds,
        # until a step has started all it starts: where that is as long as the step, the card waits for the host
        "host_seconds": host[w.warmup :],
        "step_tokens": tokens,
        "micro_tokens": problem.config.token_budget,
        "peak_bytes_above_weights": peak.bytes(),
        "weight_bytes": sum(p.numel() * p.element_size() for p in problem.base.model.parameters()),
        "flops_per_token": flops_per_token(problem, w, skipped),
        "threads": torch.get_num_threads(),
        "vocab": problem.base.vocab_size,
        "new_tokens": len(problem.tokens),
    }
    if options.engine == "ours":
        found["ceiling_flops"] = matmul_ceiling(w.size)
        if torch.cuda.is_available():
            with busy_host():
                found["busy_tokens_per_s"] = median_rate(*timed(step, problem.train, replace(w, warmup=2)))
        used = softmax.compiled(softmax._exponentials), softmax.compiled(softmax._log_sum_exp)
        found["softmax_fused"] = torch.cuda.is_available() and all(step.compiled is not None for step in used)
    files.write_json(options.result, found)


def starts() -> dict[str, Callable[[Problem], Step]]:
    """What begins each engine but `ours`."""
    return {"literal": literal, "floor": floor, "plain": plain, "plain32": partial(plain, float32=True)}


@contextlib.contextmanager
def busy_host() -> Iterator[None]:
    """Keep all cores but one busy meanwhile."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range((os.cpu_count() or 2) - 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def timed(step: Any, train: AlignedSet, w: Workload) -> tuple[list[float], list[int]]:
    """Seconds and tokens of each timed step; the texts come round again where there are too few."""
    count = max(1, len(train) // w.batch)
    seconds, tokens = [], []
    for number in range(w.warmup + w.steps):
        first = number % count * w.batch
        indices = list(range(first, min(first + w.batch, len(train))))
        seconds.append(seconds_of(partial(step, indices)))
        tokens.append(sum(len(train.examples[i].ids) for i in indices))
    return seconds[w.warmup :], tokens[w.warmup :]


def skipped_share(problem: Problem, cache: TeacherStates, w: Workload) -> float:
    """Share of student tokens before a first divergence that the blocks did not run over, in steps as timed."""
    lengths = [len(example.ids) for example in problem.train.examples]
    parts = [
        part
        for first in range(0, len(lengths) - w.batch + 1, w.batch)
        for part in micro_batches(lengths, range(first, first + w.batch), problem.config.token_budget)
    ]
    read = sum(lengths[i] for part in parts for i in part)
    return sum(cache.beginnings.skipped(part, max(lengths[i] for i in part)) for part in parts) / read if read else 0.0


def flops_per_token(problem: Problem, w: Workload, skipped: float) -> float:
    """The formula of the module's first lines."""
    blocks, attention = block_work(problem.base.model, w.length)
    head = problem.base.vocab_size * problem.base.width
    compared = sum(len(e.pairs["last"]) for e in problem.train.examples) / problem.train.tokens
    new = len(problem.tokens) * problem.base.width
    return (1 - skipped) * (4 * blocks + 3 * attention) + 2 * head + 2 * compared * head + 4 * new


def ask_once(problem: Problem, tokens: int) -> None:
    """The teacher's pass over all texts, so many tokens at once, without likelihood, file and checksums."""
    for _ in _passes(problem.base, problem.train, -1, tokens, likelihood=False):
        pass
    synchronise()


def teacher_pass(problem: Problem, size: int, tokens: int, rounds: int = 5, times: int = 8) -> dict[str, float]:
    """Seconds of the teacher's pass alone over the texts: the median of several rounds.

    A round reads every text so many `times`, because a corpus is longer than these few texts, and what a pass takes
    before its first kernel counts once; the seconds are divided by them. After each round a square product of `size`
    runs for as long, since a card that is hot lowers its clock for both: `teacher_ceiling_flops` is the median of what
    it reaches then.
    """
    corpus = replace(problem, train=replace(problem.train, examples=problem.train.examples * times))
    took, ceilings = [], []
    for _ in range(rounds):
        took.append(seconds_of(partial(ask_once, corpus, tokens)))
        ceilings.append(product_rate(size, took[-1]))
    seconds = statistics.median(took) / times
    return {"teacher_pass_seconds": seconds, "teacher_ceiling_flops": statistics.median(ceilings)}


def teacher_flops_per_token(problem: Problem, w: Workload) -> float:
    """Of the teacher's one pass, likewise."""
    blocks, attention = block_work(problem.base.model, w.length)
    return 2 * blocks + attention


# --- wall time to equal quality -------------------------------------------------------------------------------------


def quality(options: argparse.Namespace) -> None:
    """Train with one set of parts until the validation KL at identical tokens is at a target, and write the curve.

    `literal` runs its schedule to the end and sets the target; each further way adds one part: the cached teacher,
    the boundary as anchor, windows around new tokens instead of whole texts, fused blocks where there is a compiler.
    """
    w = WORKLOADS[options.workload]
    q = w.quality
    assert q is not None
    torch.manual_seed(0)
    setup = problem_of(w, options)
    whole, windows, held = _quality_sets(q, options)
    train = windows if options.way in ("windows", "fused") else whole
    if options.way == "fused":
        fuse(setup.base.model)
    rate = q.literal_rate if options.way in ("literal", "cached") else q.rate  # both compare at the first subtoken
    config = replace(
        setup.config, epochs=q.epochs, batch_size=q.batch, learning_rate=rate, token_budget=options.micro or q.micro
    )
    problem = replace(setup, train=train, config=config)
    held_cache = problem.cache(held)
    _warm_up(problem, options.way)
    batches = [b for epoch in range(1, q.epochs + 1) for b in epoch_batches(train, q.batch, seed=0, epoch=epoch)]
    every = max(1, len(batches) // q.evaluations)
    synchronise()
    clock = time.perf_counter()
    if options.way == "literal":
        step = literal(problem)
        model: Student = step.model  # type: ignore[attr-defined]
    else:
        trainer = ours(problem, anchor="first" if options.way == "cached" else "last")
        model = trainer.student
        trainer.cycles = [len(batches)]
    synchronise()
    spent = time.perf_counter() - clock  # the teacher's pass over the training texts is part of ours

    def kl() -> float:
        return evaluate(model, held, held_cache, token_budget=config.token_budget)[0]["kl_identical"]

    curve = [{"step": 0, "seconds": spent, "tokens": 0, "kl_identical": kl()}]
    tokens = 0
    for number, indices in enumerate(batches):
        clock = time.perf_counter()
        if options.way == "literal":
            step(indices, learning_rate(number, [len(batches)], config.warmup))  # type: ignore[call-arg]
        else:
            trainer.step(indices)
            trainer.done += 1
        synchronise()
        spent += time.perf_counter() - clock
        tokens += sum(len(train.examples[i].ids) for i in indices)
        last = number == len(batches) - 1
        if (number + 1) % every == 0 or last:
            curve.append({"step": number + 1, "seconds": spent, "tokens": tokens, "kl_identical": kl()})
            print(options.way, curve[-1], flush=True)
            if not math.isfinite(curve[-1]["kl_identical"]):
                raise SystemExit(f"{options.way}: the validation KL is not finite at step {number + 1}")
            if options.target and curve[-1]["kl_identical"] <= options.target:
                break
    reached = None
    if options.target:
        reached = next((row["seconds"] for row in curve[1:] if row["kl_identical"] <= options.target), None)
    final = {"way": options.way, "seconds": spent, "kl_identical": curve[-1]["kl_identical"], "curve": curve}
    files.write_json(options.result, final | {"reached_seconds": reached, "train_tokens": train.tokens})


def _warm_up(problem: Problem, way: str) -> None:
    """A few steps of a copy, so that start-up and compilation, which happen once, stay out of the clock.

    The number of texts and their length both change, which is when the compiler stops taking them for constants.
    """
    batch, texts = problem.config.batch_size, problem.train.examples
    shortest = sorted((e for e in texts if len(e.pairs["last"])), key=lambda e: len(e.ids))[:batch]
    few = replace(problem, train=replace(problem.train, examples=(*texts[: 2 * batch], *shortest)))
    step: Any = literal(few) if way == "literal" else ours(few).step
    for first in range(0, len(few.train) - batch + 1, batch):
        step(list(range(first, first + max(1, batch - first // batch))))


def _quality_sets(q: Quality, options: argparse.Namespace) -> tuple[AlignedSet, AlignedSet, AlignedSet]:
    from vocabx_utils.vocabulary.tokens import load_extension

    extension = load_extension(options.data / "extension")
    texts = files.read_json(options.data / "texts.json")
    train = align_texts(extension, texts["train"][: q.texts])
    held = align_texts(extension, texts["validation"][: q.validation])
    size = (extension.V, extension.N)
    windows = choose_windows(train, *size, window=q.window, limit=10**9, per_token=16)
    return whole_texts(train, *size, max_length=q.length), windows, whole_texts(held, *size, max_length=q.length)


WAYS = ("literal", "cached", "boundary", "windows", "fused")


# --- everything, and the results ------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> None:
    """Run what is not yet in the details, one process a part, and write the results after each."""
    started = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    label = options.label or short_device()
    details_path = options.out / f"phase1-{label}-details.json"
    details = known_json(details_path)
    for name in options.workloads:
        found = details.setdefault(name, {})
        parts: list[tuple[str, str, list[str]]] = [("engines", e, ["engine", "--engine", e]) for e in ENGINES]
        cuda = torch.cuda.is_available()
        if cuda:
            parts += [("engines", f"{e} fused", ["engine", "--engine", e, "--compiled"]) for e in ENGINES]
        if WORKLOADS[name].quality:
            ways = WAYS if cuda else WAYS[:-1]
            parts += [("quality", way, ["quality", "--way", way]) for way in ways]
        for kind, key, command in parts:
            done = found.setdefault(kind, {})
            if key in done and "error" not in done[key]:
                continue
            left = seconds_left(started, options.minutes)
            if left < options.reserve:
                print(f"{name} {key} and what follows: {options.minutes:g} minutes would not do", flush=True)
                return
            if kind == "quality" and key != "literal":
                target = done.get("literal", {}).get("kl_identical")
                if target is None:
                    continue
                command = [*command, "--target", str(target)]
            done[key] = _in_process(name, command, options, left)
            found.update(facts() | {"dtype": "bfloat16" if torch.cuda.is_available() else "float32"})
            files.write_json(details_path, details)
            rows = {name: summary(row) for name, row in details.items() if row.get("engines")}
            files.write_json(options.out / f"phase1-{label}.json", rows)
            shown = {k: v for k, v in done[key].items() if not isinstance(v, list)}
            print(name, key, json.dumps(shown), flush=True)
    print(json.dumps({name: summary(row) for name, row in details.items()}, indent=1))


def _in_process(name: str, command: list[str], options: argparse.Namespace, left: float) -> dict[str, Any]:
    result = options.out / ".part.json"
    result.unlink(missing_ok=True)
    line = [sys.executable, __file__, *command, "--workload", name, "--result", str(result)]
    for flag, value in (("--model", options.model), ("--data", options.data), ("--micro", options.micro)):
        line += [flag, str(value)] if value else []
    try:
        done = subprocess.run(line, timeout=left, check=False, text=True, stderr=subprocess.PIPE)
    except subprocess.TimeoutExpired:
        return {"error": f"not finished in {left:.0f} s"}
    if done.returncode or not result.exists():
        tail = (done.stderr or "").strip().splitlines()
        return {"error": tail[-1][:500] if tail else f"exit status {done.returncode}"}
    found: dict[str, Any] = files.read_json(result)
    result.unlink()
    return found


def summary(found: dict[str, Any]) -> dict[str, Any]:
    """The keys of a result, from the parts of a workload; null where a part is missing."""
    by_blocks = {blocks: _summary(found.get("engines", {}), blocks) for blocks in ("unfused", "fused")}
    ways = found.get("quality", {})
    reached = [ways.get(way, {}).get("reached_seconds") for way in ("windows", "fused")]
    best = min((seconds for seconds in reached if seconds is not None), default=None)
    return {
        **{key: {blocks: row[key] for blocks, row in by_blocks.items()} for key in by_blocks["fused"]},
        "time_to_quality_ratio": ratio(best, ways.get("literal", {}).get("seconds")),
        **{key: found.get(key) for key in ("device", "versions", "date")},
    }


def _summary(engines: dict[str, Any], blocks: str) -> dict[str, Any]:
    """The ratios of engines that are alike in their blocks."""
    part = {name: engines.get(name + (" fused" if blocks == "fused" else ""), {}) for name in ENGINES}
    rate = {name: row.get("tokens_per_s") for name, row in part.items()}
    plain_name = max(("plain", "plain32"), key=lambda name: rate[name] or 0.0)
    own, best = part["ours"], part[plain_name]
    done = {
        "ceiling_share": (rate["ours"], own.get("flops_per_token")),
        **{
            f"teacher_{key}_share": (
                ratio(own.get("teacher_tokens"), own.get(f"teacher_{seconds}")), own.get("teacher_flops_per_token"),
            )
            for key, seconds in (("ceiling", "pass_seconds"), ("file", "seconds"))
        },
    }  # fmt: skip
    ceilings = {"teacher_ceiling_share": own.get("teacher_ceiling_flops")}  # read in turns with the pass
    return {
        "tokens_per_s": {name: rate[name] for name in ("literal", "ours", "floor")} | {"plain": rate[plain_name]},
        "speedup_vs_plain": ratio(rate["ours"], rate[plain_name]),
        "speedup_vs_literal": ratio(rate["ours"], rate["literal"]),
        "peak_bytes": own.get("peak_bytes_above_weights"),
        "peak_ratio_vs_plain": ratio(own.get("peak_bytes_above_weights"), best.get("peak_bytes_above_weights")),
        "floor_share": ratio(rate["ours"], rate["floor"]),
        **{
            key: ratio(speed * flops if speed and flops else None, ceilings.get(key) or own.get("ceiling_flops"))
            for key, (speed, flops) in done.items()
        },
        "busy_host_ratio": ratio(own.get("busy_tokens_per_s"), rate["ours"]),
    }


def profile(options: argparse.Namespace) -> None:
    """Print where the time of a step of `ours` goes, by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    for name in options.workloads:
        problem = problem_of(WORKLOADS[name], options)
        if options.compiled:
            fuse(problem.base.model)
        step = ours(problem).step
        indices = list(range(WORKLOADS[name].batch))
        for _ in range(4):
            step(indices)
        synchronise()
        cuda = torch.cuda.is_available()
        with record(activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]) as seen:
            step(indices)
            synchronise()
        print(seen.key_averages().table(sort_by="cuda_time_total" if cuda else "cpu_time_total", row_limit=25))


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("prepare")
    first.set_defaults(run=prepare)
    first.add_argument("--model", required=True, help="tokenizer: name, folder, hub id or GGUF file")
    first.add_argument("--out", type=Path, required=True)
    first.add_argument("--pairs", type=int, default=2000)
    first.add_argument("--validation", type=int, default=300)
    first.add_argument("--new-tokens", type=int, default=800)
    first.add_argument("--length", type=int, default=1024, help="tokens of a document")
    first.add_argument("--strategy", choices=["added", "merges"], default="merges")
    for name, run in (("measure", measure), ("profile", profile), ("engine", engine), ("quality", quality)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--model", default=fetch.DEFAULT_MODEL, help="name, folder, hub id or GGUF file")
        command.add_argument("--data", type=Path, help="folder that prepare made")
        command.add_argument("--micro", type=int, default=0, help="tokens of one forward pass, for every engine")
        if name != "measure":
            command.add_argument("--compiled", action="store_true", help="fuse the blocks")
        if name in ("measure", "profile"):
            command.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), required=True)
        if name == "measure":
            command.add_argument("--out", type=Path, default=Path("results/bench"))
            command.add_argument("--minutes", type=float, default=8.0)
            command.add_argument("--reserve", type=float, default=60.0, help="start nothing with fewer seconds left")
            command.add_argument("--label", default="", help="part of the file's name; default: the device")
        if name in ("engine", "quality"):
            command.add_argument("--workload", choices=list(WORKLOADS), required=True)
            command.add_argument("--result", type=Path, required=True)
    commands.choices["engine"].add_argument("--engine", choices=ENGINES, required=True)
    commands.choices["quality"].add_argument("--way", choices=WAYS, required=True)
    commands.choices["quality"].add_argument("--target", type=float, default=0.0)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
