"""Measure a base that one card cannot hold: loaded into shards, phase 1 and LoRA; and a 4-bit base on one card.

    python tests/bench/large.py plan                                             (no GPU: what a card has to hold)
    python tests/bench/large.py measure --processes 2 --scratch SCRATCH --out results/bench
    python tests/bench/large.py measure --parts quantised --model MODEL --data DATA --out results/bench

Each part runs in processes of its own (`torchrun`), and after each OUT/large-<device>.json is written; parts that are
there are not measured again. A part that runs out of its time leaves what it has.

    load       random weights of --load-shape are written to SCRATCH, a file a layer, as many as the time allows, and
               read into shards: first from the page cache, then, where time is left, from the disk
    phase1     random weights of --shape made as shards on the cards; the teacher's pass, then --steps steps
    lora       the same of fine-tuning's stage b
    quantised  MODEL as it is and with 4-bit blocks on one card: bits per byte, and phase 1 under both. MODEL and DATA
               are those of `phase1.py`

Rates count tokens of all cards; FLOP per token are those of `phase1.py` and `finetune.py`, recomputation not counted,
and the ceiling is that of a matrix product in the same call, on every card at once. A card receives the blocks of the
others twice a pass, forward and backward: `gather_seconds` is what that takes alone at the measured rate of a gathered
block, and hides behind the arithmetic where a step takes longer.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import finetune
import phase1
import torch
from accelerate import PartialState
from bench_parts import (
    SHAPES,
    facts,
    free,
    known_json,
    layer_weights,
    matmul_ceiling,
    own_memory,
    phase1_training,
    records_of,
    seconds_left,
    short_device,
    synchronise,
)
from phase1_engines import Problem, ours
from safetensors.torch import safe_open, save_file
from torch import Tensor, nn
from transformers import AutoConfig

from vocabx_utils import files, models
from vocabx_utils.config import FineTuneConfig, Phase1Config
from vocabx_utils.student import Student
from vocabx_utils.training import sharding, stages
from vocabx_utils.training.examples import ExampleSet, whole_texts
from vocabx_utils.training.finetuning import StageTraining
from vocabx_utils.training.loop import StepDone
from vocabx_utils.training.phase1 import prepare
from vocabx_utils.training.processes import joined
from vocabx_utils.training.softmax import default_chunk
from vocabx_utils.training.validation import evaluate

# machines are rented by the minute: room for 20 steps of a 70B shape on two cards, and for 65 GB of files
SECONDS = {"load": 130.0, "phase1": 210.0, "lora": 240.0, "quantised": 150.0}
NEW_TOKENS, RANK = 800, 128
CARDS = (2, 4, 8)  # of the calculation
GIB = 1 << 30
Save = Callable[[dict[str, Any]], None]


# --- what a card has to hold, calculated ----------------------------------------------------------------------------


def plan(
    shape: dict[str, Any], cards: int, tokens: int, *, new: int = NEW_TOKENS, recompute: bool = True, rank: int = 0
) -> dict[str, float]:
    """Bytes on each card, in bf16, by what they are for; nothing is measured here.

    Args:
        tokens: of a pass on one card.
        rank: of the adapters of LoRA, 0 for phase 1.
    """
    width, inner, layers = (shape[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    kv = shape["num_key_value_heads"] / shape["num_attention_heads"]
    layer = layer_weights(shape)
    matrices = 2 * 2 * shape["vocab_size"] * width
    # the chunk of logits and its gradient
    chunk = 2 * default_chunk(shape["vocab_size"], torch.device("cuda")) * shape["vocab_size"] * (4 + 2)
    # of one block for the backward pass: two norms, q, k, v, attention's output, three inner states
    states = tokens * 2 * (6 * width + 2 * width * kv + 3 * inner)
    inputs = tokens * 2 * width
    adapters = rank * (2 * width * 2 + 2 * width * (1 + kv) + 3 * (width + inner))  # numbers of a block
    moved = layers * adapters / cards if rank else 2 * new * width
    return {
        "blocks, sharded": 2 * layer * layers / cards,
        "one gathered block, twice": 2 * (2 * layer + 4 * adapters),
        "both matrices, whole": matrices * (1 + 1 / cards if rank else 1),  # fine-tuning has them sharded and gathered
        "what moves, with Adam": moved * 4 * 4,  # float32 with gradient and both moments
        "chunk of logits": chunk,
        "saved states": layers * inputs + states if recompute else layers * states,
    }


def show_plan(options: argparse.Namespace) -> None:
    """Print the calculation for some numbers of cards."""
    shape = SHAPES[options.shape]
    for cards in CARDS:
        for name, rank in (("phase 1", 0), (f"LoRA of rank {RANK}", RANK)):
            parts = plan(shape, cards, options.tokens, rank=rank)
            shown = ", ".join(f"{key} {value / GIB:.1f}" for key, value in parts.items())
            print(f"{options.shape}, {cards} cards, {name}: {sum(parts.values()) / GIB:.1f} GiB a card = {shown}")


# --- the driver -----------------------------------------------------------------------------------------------------


def measure(options: argparse.Namespace) -> None:
    """Launch the parts that are not in the file yet, one after the other, and write the file after each."""
    started = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"large-{options.label or short_device()}.json"
    results = known_json(path)
    show_plan(options)
    for part in options.parts:
        left = seconds_left(started, options.minutes)
        if part in results and "error" not in results[part]:
            continue
        if left < options.reserve:
            print(f"{part} and what follows: {options.minutes:g} minutes would not do", flush=True)
            break
        limit = min(left - 0.4 * options.reserve, SECONDS[part])
        results[part] = {**_launch(part, options, limit), **facts()}
        files.write_json(path, results)
        print(f"{part}, {time.perf_counter() - started:.0f} s: {_short(results[part])}", flush=True)


def _launch(part: str, options: argparse.Namespace, limit: float) -> dict[str, Any]:
    """Run a part in processes of its own; what it had written stays where it fails or is ended."""
    count = 1 if part == "quantised" else options.processes
    with tempfile.TemporaryDirectory(prefix="vocabx-large-") as scratch:
        result = Path(scratch) / "part.json"
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
        command += [__file__, "worker", "--part", part, "--result", str(result), "--limit", str(limit)]
        command += ["--scratch", str((options.scratch or Path(scratch)).resolve())]
        for name in ("shape", "load_shape", "tokens", "length", "texts", "steps", "warmup", "size", "model", "data"):
            value = getattr(options, name)
            command += [f"--{name.replace('_', '-')}", str(value)] if value else []
        command += ["--compiled"] if options.compiled else []
        grace = limit + 45  # it looks at the time itself, between steps
        error = None
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
            try:
                _, told = running.communicate(timeout=grace)
                if running.returncode:
                    error = _last_error(told)
                    print(told[-6000:], file=sys.stderr, flush=True)
            except subprocess.TimeoutExpired:
                running.terminate()  # torchrun ends its workers
                _, told = running.communicate()
                error = f"not finished in {grace:.0f} s"
                print(told[-3000:], file=sys.stderr, flush=True)
        found = known_json(result)
        shutil.rmtree((options.scratch or Path(scratch)) / options.load_shape, ignore_errors=True)
    return found | ({"error": error} if error else {})


def _last_error(told: str) -> str:
    lines = [line for line in told.splitlines() if "Error" in line and "ChildFailedError" not in line]
    return (lines[0] if lines else told[-300:])[:500]


def _short(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not isinstance(value, list | dict)}


# --- one process of a part ------------------------------------------------------------------------------------------


def worker(options: argparse.Namespace) -> None:
    """One process of a part; the first one writes what was found, also while it goes on."""
    options.started = time.perf_counter()
    torch.manual_seed(0)
    if options.part == "quantised":
        quantised(options, lambda found: files.write_json(options.result, found))
        return
    with joined(cpu=not torch.cuda.is_available()) as processes:
        models.avoid_cudnn_attention()

        def save(found: dict[str, Any]) -> None:
            if processes.is_main_process:
                files.write_json(options.result, found)

        about = {"processes": processes.num_processes, "ceiling_flops": matmul_ceiling(options.size)}
        {"load": load, "phase1": run_phase1, "lora": run_lora}[options.part](options, processes, about, save)
        processes.wait_for_everyone()


def out_of_time(options: argparse.Namespace, processes: PartialState, needed: float = 0.0) -> bool:
    """Whether any process has fewer seconds left than needed; all of them get the same answer."""
    late = time.perf_counter() - options.started + needed > options.limit
    return _most(float(late), processes) > 0


def _most(value: float, processes: PartialState) -> float:
    """The largest value of all processes."""
    tensor = torch.tensor(value, dtype=torch.float64, device=processes.device)
    torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX)
    return float(tensor)


def model_config(shape: str, **changes: Any) -> Any:
    """The configuration of a shape, untied."""
    return AutoConfig.for_model(**SHAPES[shape] | changes, tie_word_embeddings=False)


@torch.no_grad()
def fill_random(module: nn.Module) -> None:
    """Random weights of the usual size, made where each part lies; norms are 1, and adapters begin at 0.

    What every process holds whole is the same in all of them.
    """
    for number, (name, parameter) in enumerate(module.named_parameters()):
        torch.manual_seed(number)
        placed: Any = parameter
        local: Tensor = placed.to_local() if hasattr(placed, "to_local") else parameter
        if "norm" in name:
            local.fill_(1.0)
        elif "lora_B" in name:
            local.zero_()
        else:
            local.normal_(0.0, 0.02)


class Memory:
    """Peaks of this process between the start and a reading, in bytes: on the card, and anonymous memory of the host.

    Pages of mapped files are the system's, which may drop them, and are not counted.
    """

    def __init__(self) -> None:
        free()
        self.host, self._ended = 0, threading.Event()
        self._looks = threading.Thread(target=self._look, daemon=True)
        self._looks.start()

    def _look(self) -> None:
        while not self._ended.wait(0.05):
            self.host = max(self.host, own_memory("RssAnon"))

    def read(self, processes: PartialState) -> dict[str, float]:
        """The peaks so far, the largest of all processes."""
        cuda = torch.cuda.is_available()
        card = torch.cuda.max_memory_allocated() if cuda else 0
        held = torch.cuda.max_memory_reserved() if cuda else 0
        names = {"peak_card_bytes": card, "peak_card_reserved_bytes": held, "peak_host_bytes": self.host}
        return {name: _most(float(value), processes) for name, value in names.items()}

    def end(self) -> None:
        """Stop looking."""
        self._ended.set()
        self._looks.join()


def gathering(model: Any, processes: PartialState) -> dict[str, float]:
    """What a card receives: bytes a second while a block's message is gathered, and seconds of a whole pass."""
    blocks = stages.blocks_of(model)
    size = sum(p.numel() * p.element_size() for p in blocks[0].parameters())
    part = torch.zeros(size // 2 // processes.num_processes, dtype=torch.bfloat16, device=processes.device)
    whole = torch.zeros(len(part) * processes.num_processes, dtype=part.dtype, device=part.device)
    for rounds in (2, 10 if torch.cuda.is_available() else 1):
        synchronise()
        began = time.perf_counter()
        for _ in range(rounds):
            torch.distributed.all_gather_into_tensor(whole, part)
        synchronise()
        took = (time.perf_counter() - began) / rounds
    return {"gather_bytes_per_s": (whole.nbytes - part.nbytes) / took, "gather_seconds": 2 * len(blocks) * took}


# --- load -----------------------------------------------------------------------------------------------------------


def load(options: argparse.Namespace, processes: PartialState, about: dict[str, Any], save: Save) -> None:
    """Write a model in files, a layer each, and read it into shards."""
    folder = options.scratch / options.load_shape
    began = time.perf_counter()
    layers = write_layers(folder, options, processes)
    found = {**about, "shape": options.load_shape, "layers": layers, "write_seconds": time.perf_counter() - began}
    found["file_bytes"] = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    save(found)
    for name in ("load", "cold_load"):
        if name == "cold_load":
            # what is not on the disk yet has to be written before it can be dropped
            if out_of_time(options, processes, 2 * found["write_seconds"] + 4 * found["load_seconds"]):
                return
            drop_from_cache(folder, processes)
        model = sharding.empty_model(AutoConfig.from_pretrained(folder), models.pick_dtype("auto", processes.device))
        memory = Memory()
        processes.wait_for_everyone()
        began = time.perf_counter()
        sharding.spread(model, processes)
        sharding.read_weights(model, folder)
        synchronise()
        processes.wait_for_everyone()
        found[f"{name}_seconds"] = time.perf_counter() - began
        found |= memory.read(processes) if name == "load" else {}
        memory.end()
        found["weight_bytes_per_card"] = sharding.card_bytes(model, processes.num_processes).total
        save(found)
        if name == "load":
            found["equal_to_the_files"] = equal_to_files(model, folder)
            save(found)
        del model
        free()


def write_layers(folder: Path, options: argparse.Namespace, processes: PartialState) -> int:
    """Write a file for each layer that the time allows, no two alike, and one for the rest; returns their number."""
    dtype = models.pick_dtype("auto", processes.device)
    model = sharding.empty_model(model_config(options.load_shape), dtype)
    prefix, blocks = stages.block_prefix(model), stages.blocks_of(model)
    first = {
        name: torch.randn(tensor.shape, dtype=dtype, device=processes.device).mul_(0.02)
        for name, tensor in blocks[0].state_dict().items()
    }
    if processes.is_main_process:
        folder.mkdir(parents=True, exist_ok=True)
        rest = {name: tensor for name, tensor in model.state_dict().items() if not name.startswith(f"{prefix}.")}
        made = {name: torch.randn(t.shape, dtype=dtype, device=processes.device).cpu() for name, t in rest.items()}
        save_file(made, folder / "rest.safetensors", {"format": "pt"})
    processes.wait_for_everyone()
    written = 0
    for number in range(0, len(blocks), processes.num_processes):
        mine = number + processes.process_index
        if mine < len(blocks):
            tensors = {f"{prefix}.{mine}.{name}": (t * (1 + mine / 64)).cpu() for name, t in first.items()}
            save_file(tensors, folder / f"layer-{mine:03d}.safetensors", {"format": "pt"})
        written = min(number + processes.num_processes, len(blocks))
        if out_of_time(options, processes, 0.5 * options.limit):  # loading needs the other half
            break
    if processes.is_main_process:
        model_config(options.load_shape, num_hidden_layers=written).save_pretrained(folder)
    processes.wait_for_everyone()
    return written


def equal_to_files(model: Any, folder: Path) -> bool:
    """Compare a tensor of every file with what was loaded; every process has to call it."""
    state, same = model.state_dict(), True
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            name = sorted(file.keys())[0]
            same &= torch.equal(models.gathered(state[name]).cpu(), file.get_tensor(name))
    return same


def drop_from_cache(folder: Path, processes: PartialState) -> None:
    """Ask the system to drop the files from its memory, so that they are read from the disk."""
    for number, path in enumerate(sorted(folder.glob("*.safetensors"))):
        if number % processes.num_processes == processes.process_index:
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    processes.wait_for_everyone()


# --- steps ----------------------------------------------------------------------------------------------------------


def run_phase1(options: argparse.Namespace, processes: PartialState, about: dict[str, Any], save: Save) -> None:
    """Phase 1 over texts of random ids of exactly T tokens."""
    config = model_config(options.shape)
    model = sharding.empty_model(config, models.pick_dtype("auto", processes.device))
    note = sharding.require_room(model, processes)
    began = time.perf_counter()
    sharding.spread(model, processes)
    fill_random(model)
    sharding.recompute_blocks(model)
    synchronise()
    found = {**about, **described(options, processes, 0), "placed": note, "fill_seconds": time.perf_counter() - began}
    found |= gathering(model, processes)
    save(found)
    per_step = processes.num_processes * max(1, options.tokens // options.length)
    w = phase1.Workload(options.length, per_step, options.tokens, options.shape, NEW_TOKENS)
    tokens, texts = phase1._random_texts(config.vocab_size, w)
    if options.texts:
        texts = texts[: options.texts]
    train = whole_texts(texts, config.vocab_size, NEW_TOKENS, max_length=options.length)
    # the teacher reads a little more: a new token stands for two of its own
    settings = Phase1Config(
        learning_rate=1e-3, epochs=1, batch_size=per_step, token_budget=int(1.05 * options.tokens), window=0,
        max_length=options.length, sharded=True, compile_blocks="on" if options.compiled else "off",
    )  # fmt: skip
    base = models.BaseModel(
        options.shape, model, None, config.vocab_size, processes.device, model.dtype,  # type: ignore[arg-type]
        models.weights_fingerprint(model),
    )  # fmt: skip
    problem = Problem(base, tokens, train, settings)
    if options.compiled:
        phase1.fuse(model)
    began = time.perf_counter()
    cache = problem.cache(train, Path(options.result).parent / "teacher", processes)
    synchronise()
    found["teacher_seconds"] = time.perf_counter() - began
    trainer = ours(problem, cache=cache, processes=processes)
    flops = phase1.flops_per_token(problem, w, 0.0)
    memory = Memory()

    def steps() -> Iterator[tuple[float, float, int]]:
        trainer.cycles = [10**6]
        while True:
            first = trainer.done * per_step % len(train)
            indices = [(first + k) % len(train) for k in range(per_step)]
            began = time.perf_counter()
            losses = trainer.step(indices)
            trainer.done += 1
            loss = float(losses[0])
            yield loss, time.perf_counter() - began, sum(len(train.examples[i].ids) for i in indices)

    follow(steps(), options, processes, found, flops, memory, save)


def run_lora(options: argparse.Namespace, processes: PartialState, about: dict[str, Any], save: Save) -> None:
    """Fine-tuning's stage b over texts of random ids of exactly T tokens."""
    config = model_config(options.shape)
    limit = config.vocab_size
    model = sharding.empty_model(config, models.pick_dtype("auto", processes.device))
    per_step = processes.num_processes * max(1, options.tokens // options.length) * options.length
    settings = FineTuneConfig(
        stages=("b",), b_epochs=1, max_length=options.length, tokens_per_batch=max(options.tokens, options.length),
        tokens_per_step=per_step, compile_blocks="on" if options.compiled else "off", sharded=True, lora_rank=RANK,
        gradient_checkpointing="always",
    )  # fmt: skip
    flops = finetune.flops_per_token(model, "b", settings, limit, options.length)
    count = options.steps + options.warmup
    texts = finetune.random_texts(limit, options.length, per_step // options.length * count)
    few = ExampleSet(texts.examples[:1], 0, 0)
    (stage,) = stages.plan_stages(settings)
    began = time.perf_counter()
    training = StageTraining(model, stage, texts, few, settings, limit=limit, fill=fill_random)
    synchronise()
    found = {**about, **described(options, processes, RANK), "fill_seconds": time.perf_counter() - began}
    found["trainable"] = training.trainable
    save(found)
    memory = Memory()

    def steps() -> Iterator[tuple[float, float, int]]:
        for event in training.run():
            if isinstance(event, StepDone) and event.record is not None:
                yield event.record["loss"], event.record["seconds"], event.record["tokens"]

    follow(steps(), options, processes, found, flops, memory, save)
    found["frozen_tensors_moved"] = len(stages.moved(training.frozen, frozen_now(training)))
    save(found)


def frozen_now(training: StageTraining) -> dict[str, int]:
    """Checksums of the frozen parts after the last step."""
    from vocabx_utils.training.loss_model import reshard

    reshard(training.tuned)
    return stages.checksums(training.tuned)


def described(options: argparse.Namespace, processes: PartialState, rank: int) -> dict[str, Any]:
    """What was asked for, and the bytes of a card that were calculated for it."""
    held = plan(SHAPES[options.shape], processes.num_processes, options.tokens, rank=rank)
    return {
        "shape": options.shape, "T": options.length, "tokens_per_pass": options.tokens, "new_tokens": NEW_TOKENS,
        "rank": rank, "recompute": True, "compiled": options.compiled, "warmup": options.warmup,
        "calculated_bytes": held,
    }  # fmt: skip


def follow(
    steps: Iterator[tuple[float, float, int]],
    options: argparse.Namespace,
    processes: PartialState,
    found: dict[str, Any],
    flops: float,
    memory: Memory,
    save: Save,
) -> None:
    """Take steps while there is time, and note after each what is known; seven arguments, since it ends both parts.

    Args:
        steps: loss, seconds and tokens of each.
        flops: per token.
    """
    seconds: list[float] = []
    losses: list[float] = []
    for loss, took, tokens in steps:
        took = _most(took, processes)
        seconds.append(took)
        losses.append(loss)
        timed = seconds[min(options.warmup, len(seconds) - 1) :]
        rate = tokens / sorted(timed)[len(timed) // 2]
        found |= {
            "steps": len(seconds), "step_seconds": seconds, "losses": losses, "tokens_per_step": tokens,
            "tokens_per_s": rate, "flops_per_token": flops,
            "ceiling_share": rate * flops / (found["ceiling_flops"] * processes.num_processes),
            **memory.read(processes),
        }  # fmt: skip
        save(found)
        if len(seconds) == options.steps + options.warmup or out_of_time(options, processes, took + 8):
            break
    memory.end()


# --- fewer bits -----------------------------------------------------------------------------------------------------


def quantised(options: argparse.Namespace, save: Save) -> None:
    """Phase 1 under a model as it is and under the same with 4-bit blocks, on one card."""
    from vocabx_utils.vocabulary.tokens import load_extension

    if not options.model or not options.data:
        raise ValueError("the part quantised needs --model and --data")
    extension = load_extension(options.data / "extension")
    texts = files.read_json(options.data / "texts.json")
    some = options.texts or 600
    train, held = texts["train"][:some], texts["validation"][: max(8, some // 4)]
    config = Phase1Config(
        variants=("mean_kl_last",), learning_rate=2e-3, epochs=2, batch_size=32, token_budget=8192,
        train_windows=4 * some, validation_windows=some,
    )  # fmt: skip
    found: dict[str, Any] = {"texts": some, "new_tokens": extension.N}
    first: tuple[Any, Any] | None = None
    for name in ("none", "4bit"):
        free()
        base = models.load_base_model(options.model, quantization=name)
        row: dict[str, Any] = {"weight_bytes": sum(t.nbytes for t in base.model.state_dict().values())}
        data = prepare(base, extension, train, held, config)
        training = phase1_training("mean_kl_last", base, extension, data, config)
        began = time.perf_counter()
        records = records_of(training)
        row |= {"seconds": time.perf_counter() - began, "start": records[0], "end": records[-1]}
        row["peak_card_bytes"] = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
        first = first or (base, data)
        # what the rows are worth under the model as it is
        whole, seen = first
        judge = Student(whole.model, whole.vocab_size, training.student.input_rows, training.student.head_rows)
        row["on_the_model_as_it_is"], _ = evaluate(judge, seen.validation, seen.validation_teacher)
        found[name] = row
        save(found)


# --- command line ---------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, run in (("plan", show_plan), ("measure", measure), ("worker", worker)):
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        command.add_argument("--shape", default="llama-3-70b", choices=list(SHAPES))
        command.add_argument("--tokens", type=int, default=8192, help="of a pass on one card")
        if name == "plan":
            continue
        command.add_argument("--load-shape", default="qwen2.5-32b", choices=list(SHAPES))
        command.add_argument("--length", type=int, default=2048, help="T")
        command.add_argument("--texts", type=int, default=0, help="at most; default: what the steps need")
        command.add_argument("--steps", type=int, default=20, help="timed ones")
        command.add_argument("--warmup", type=int, default=1, help="steps that are not timed")
        command.add_argument("--size", type=int, default=8192, help="of the matrix product")
        command.add_argument("--compiled", action="store_true", help="fuse the blocks")
        command.add_argument("--model", default="", help="of the part quantised")
        command.add_argument("--data", type=Path, help="folder that phase1.py prepare made")
        command.add_argument("--scratch", type=Path, help="folder with room for the files of --load-shape")
    first, second = commands.choices["measure"], commands.choices["worker"]
    first.add_argument("--parts", nargs="+", default=["phase1", "load", "lora"], choices=list(SECONDS))
    first.add_argument("--processes", type=int, default=2)
    first.add_argument("--minutes", type=float, default=9.5, help="of all parts")
    first.add_argument("--reserve", type=float, default=60.0, help="start nothing with fewer seconds left")
    first.add_argument("--out", type=Path, default=Path("results/bench"))
    first.add_argument("--label", default="", help="part of the file's name; default: the device")
    second.add_argument("--part", choices=list(SECONDS), required=True)
    second.add_argument("--result", type=Path, required=True)
    second.add_argument("--limit", type=float, required=True, help="seconds")
    options = parser.parse_args(arguments)
    options.run(options)


if __name__ == "__main__":
    main()
