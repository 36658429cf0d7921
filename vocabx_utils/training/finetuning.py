"""Phase 2: unfreeze the model step by step, resumable at any moment.

One loop serves every stage: the plan of batches is a function of the seed, an optimiser is made new for each stage
(momentum of another stage would move rows that are frozen now), and a checkpoint holds only what moves. It runs on
one process, or on many through ``accelerate launch -m vocabx_utils.training.finetuning --config FILE``.

Legend: V original vocabulary, N new tokens, T tokens of a text, B texts of a batch, D model width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from vocabx_utils import runs
from vocabx_utils.config import FineTuneConfig
from vocabx_utils.training import stages
from vocabx_utils.training.batches import ExampleSet, Step, collate, plan_epoch
from vocabx_utils.training.fullhead import linear_cross_entropy, token_losses
from vocabx_utils.training.stage_files import load_stage, new_rows_of, save_stage

__all__ = ["FineTuned", "OutOfMemory", "StageRun", "Tuned", "fine_tune", "run_stage", "validation_loss"]

Observe = Callable[[str, PreTrainedModel], dict[str, Any]]


class OutOfMemory(RuntimeError):
    """The device ran out of memory; says which setting to lower and where the checkpoint lies."""


@dataclass(frozen=True)
class StageRun:
    """What one stage did.

    Attributes:
        stage: "a", "b", "c1" or "c2".
        steps: optimiser steps.
        tokens: tokens read.
        seconds: time of the training steps alone, resumed parts included.
        peak_bytes: peak device memory on CUDA (all of the process), else peak resident memory.
        padding: share of padding in the batches.
        trainable: number of trainable parameters.
        frozen_tensors: tensors whose bits were compared before and after, and were equal.
        validation_loss: mean nats per learned token at the end.
    """

    stage: str
    steps: int
    tokens: int
    seconds: float
    peak_bytes: int
    padding: float
    trainable: int
    frozen_tensors: int
    validation_loss: float


@dataclass(frozen=True)
class FineTuned:
    """A finished variant.

    Attributes:
        folder: the variant's folder.
        losses: one row per optimiser step (kind "step") and per epoch (kind "epoch").
        stages: one row per stage, fields of ``StageRun``.
        observed: what ``observe`` returned, by stage key, "start" first.
    """

    folder: Path
    losses: pd.DataFrame
    stages: pd.DataFrame
    observed: dict[str, dict[str, Any]] = field(default_factory=dict)


class Tuned(nn.Module):
    """The model as the training loop sees it: ids and targets in, one summed loss out.

    The embedding is looked up without a padding index (where pad = eos that index would silence the gradient of
    end-of-text), masters in float32 are cast once, and the logits never exist as a whole.

    Args:
        model: plain untied causal model, possibly with LoRA layers inside.
        limit: V + N; matrix rows from here on are padding.
        dtype: dtype of activations; under bf16 products run in autocast.
        new_ids: ids of the new tokens.
        train_rows: let the new rows move although the matrices are frozen (during LoRA).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        limit: int,
        dtype: torch.dtype = torch.float32,
        new_ids: range = range(0),
        train_rows: bool = False,
    ) -> None:
        super().__init__()
        _check_shape(model)
        self.tuned = model
        self.limit, self.dtype, self.new_ids = limit, dtype, new_ids
        self.new_input: nn.Parameter | None = None
        self.new_head: nn.Parameter | None = None
        if train_rows and len(new_ids):
            input_rows, head_rows = new_rows_of(model, new_ids)
            self.new_input = nn.Parameter(input_rows.float())
            self.new_head = nn.Parameter(head_rows.float())

    def hidden(self, ids: Tensor) -> Tensor:
        """Final hidden states (B, T, D) of right-padded ids (B, T)."""
        embedding = self.tuned.get_input_embeddings()
        rows = functional.embedding(ids, embedding.weight).to(self.dtype)
        if self.new_input is not None:
            places = (ids - self.new_ids.start).clamp(0, len(self.new_ids) - 1)
            new = functional.embedding(places, self.new_input).to(self.dtype)
            rows = torch.where((ids >= self.new_ids.start)[..., None], new, rows)
        states: Tensor = self.tuned.get_decoder()(inputs_embeds=rows, use_cache=False).last_hidden_state
        return states

    def head(self) -> tuple[Tensor, int]:
        """Head rows that count (V + N, D), and the first row that may learn."""
        weight: Tensor = self.tuned.get_output_embeddings().weight
        if self.new_head is None:
            return (weight if len(weight) == self.limit else weight[: self.limit]), 0
        old = weight[: self.new_ids.start].to(self.dtype)
        return torch.cat([old, self.new_head.to(self.dtype)]), self.new_ids.start

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Sum of the cross-entropy over the targets that count, float32, in nats."""
        cast = torch.autocast(ids.device.type, self.dtype) if self.dtype != torch.float32 else nullcontext()
        with cast:
            states = self.hidden(ids).flatten(0, 1)
            weight, learn_from = self.head()
        flat = targets.flatten()
        if not torch.is_grad_enabled():
            keep = flat >= 0
            return token_losses(states[keep], weight, flat[keep]).sum()
        return linear_cross_entropy(states.to(self.dtype), weight, flat, learn_from=learn_from)


def fine_tune(
    model: PreTrainedModel,
    train: ExampleSet,
    validation: ExampleSet,
    folder: Path,
    config: FineTuneConfig,
    *,
    limit: int,
    new_ids: range = range(0),
    origin: dict[str, Any] | None = None,
    observe: Observe | None = None,
) -> FineTuned:
    """Run the stages of a configuration one after the other, continuing whatever was done before.

    Args:
        model: plain untied model with the rows of phase 1 in place (or the base model); changed in place.
        train: encoded training texts.
        validation: encoded validation texts.
        folder: ``runs/<name>/04_fine_tuning/<variant>``.
        config: stages, rates, precision.
        limit: V + N, the ids that count.
        new_ids: ids of the new tokens, ``range(V, V + N)``; empty for the base model.
        origin: where the model comes from (base, extension, rows); export reads it again, and it is part of the key.
        observe: called with "start" and each finished stage's key; what it returns is stored as JSON.

    Returns:
        The finished variant.

    Raises:
        runs.KeyMismatchError: the folder holds work with other settings.
        OutOfMemory: the device ran out of memory; the last checkpoint is kept.
        RuntimeError: a tensor that had to stay moved, or a new row with examples did not move.
    """
    key = {
        **config.to_dict(),
        "limit": limit,
        "new_ids": [new_ids.start, new_ids.stop],
        "origin": origin or {},
        "train": _digest(train),
        "validation": _digest(validation),
    }
    plan = stages.plan_stages(config)
    if runs.claim(folder, key) != "finished":
        _observe("start", model, folder / "start", observe)
        for stage in plan:
            model = _finish_stage(model, stage, train, validation, folder, config, limit, new_ids, observe)
        if _is_main():
            runs.finish(folder, stages=[stage.key for stage in plan])
    return _read_back(folder, [stage.key for stage in plan])


def run_stage(
    model: PreTrainedModel,
    stage: stages.Stage,
    train: ExampleSet,
    validation: ExampleSet,
    folder: Path,
    config: FineTuneConfig,
    *,
    limit: int,
    new_ids: range = range(0),
) -> tuple[PreTrainedModel, StageRun]:
    """Train one stage with a new optimiser, from its checkpoint when there is one.

    Args:
        model: plain untied model; changed in place, wrapped by peft in stage "b".
        stage: what moves, for how long, how fast.
        train: encoded training texts.
        validation: encoded validation texts.
        folder: the stage's own folder; checkpoint and losses are written here.
        config: batch sizes, clipping, precision, seed.
        limit: V + N.
        new_ids: ids of the new tokens.

    Returns:
        The model (in evaluation mode, frozen) and what the stage did.

    Raises:
        OutOfMemory: names the setting to lower; the checkpoint is kept.
        RuntimeError: a frozen tensor moved, or a new row with examples did not.
    """
    accelerator = Accelerator(cpu=model.device.type == "cpu")
    dtype = model.get_output_embeddings().weight.dtype
    trained = stages.open_stage(model, stage, config, new_ids=new_ids)
    rows_before = new_rows_of(model, new_ids)
    tuned = Tuned(model, limit, dtype, new_ids, train_rows=stage.key == "b" and config.rows_in_b)
    frozen_before = stages.checksums(tuned)
    if accelerator.is_main_process:
        runs.write_json(folder / "trainable.json", stages.trainable_table(tuned).to_dict("records"))
    _checkpointing(model, config, stage)
    loop = _Loop(accelerator, tuned, stage, train, validation, folder, config)
    result = loop.run(len(frozen_before))
    tuned = loop.unwrapped()
    changed = stages.moved(frozen_before, stages.checksums(tuned)) if not loop.sharded else []
    if changed:
        raise RuntimeError(f"stage {stage.key} moved {len(changed)} frozen tensors, for example {changed[:3]}")
    _close(tuned, model, stage, new_ids)
    _check_rows(stage, config, rows_before, new_rows_of(model, new_ids), train, new_ids)
    trained.eval().requires_grad_(False)
    return trained, result


@torch.no_grad()
def validation_loss(tuned: nn.Module, steps: list[Step], texts: ExampleSet, accelerator: Accelerator) -> float:
    """Mean cross-entropy per learned token over all texts, in nats.

    Args:
        tuned: a ``Tuned`` module, possibly wrapped for several processes.
        steps: plan over the texts; every batch is shared by the processes.
        texts: encoded texts.
        accelerator: knows device and processes.
    """
    mode = tuned.training
    tuned.eval()
    total = torch.zeros((), device=accelerator.device)
    for step in steps:
        for batch in step.batches:
            ids, targets = _share(texts, batch, accelerator)
            total += tuned(ids, targets)
    tuned.train(mode)
    return float(accelerator.reduce(total, "sum")) / sum(step.targets for step in steps)  # type: ignore[arg-type]


class _Loop:
    """The steps of one stage: losses on disk, checkpoint, resume."""

    def __init__(
        self,
        accelerator: Accelerator,
        tuned: Tuned,
        stage: stages.Stage,
        train: ExampleSet,
        validation: ExampleSet,
        folder: Path,
        config: FineTuneConfig,
    ) -> None:
        self.accelerator, self.stage, self.train, self.config = accelerator, stage, train, config
        self.validation, self.folder = validation, folder
        self.sharded = accelerator.distributed_type == DistributedType.FSDP
        if self.sharded:  # sharded units need one dtype; the shipped configuration computes in bf16
            tuned.float()
        parameters = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
        fused = parameters[0].device.type == "cuda"
        optimiser = torch.optim.AdamW(
            parameters, lr=stage.learning_rate, weight_decay=config.weight_decay, fused=fused or None
        )
        self.trainable = sum(parameter.numel() for parameter in parameters)
        self.module, self.optimiser = accelerator.prepare(tuned, optimiser)
        self.epochs = [self._plan(epoch) for epoch in range(stage.epochs)]
        self.steps = sum(len(plan) for plan in self.epochs)
        self.check = plan_epoch(
            validation.examples,
            tokens_per_step=config.tokens_per_batch,
            tokens_per_batch=config.tokens_per_batch,
            world=accelerator.num_processes,
        )
        self.records: list[dict[str, Any]] = []

    def run(self, frozen_tensors: int) -> StageRun:
        """All steps that are left; validation at the start and after each epoch."""
        first = self._resume()
        self.module.train()
        if not self.records:
            self._validate(0, 0)
        done = 0
        _reset_peak()
        with _memory_advice(self.config, self.folder):
            for step, epoch, last in self._walk(first):
                record = self._step(step, done + first, epoch)
                self._write({**record, "step": done + first + 1})
                done += 1
                if last:
                    self._validate(epoch + 1, done + first)
                if last or (self.config.checkpoint_every and (done + first) % self.config.checkpoint_every == 0):
                    self._save(done + first)
        return self._result(frozen_tensors)

    def unwrapped(self) -> Tuned:
        """The module without what the distributed run put around it."""
        if self.sharded:
            from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

            options = StateDictOptions(full_state_dict=True, cpu_offload=True)
            whole = get_model_state_dict(self.module, options=options)
            self.whole_state = whole
        module: Tuned = self.accelerator.unwrap_model(self.module)
        return module

    def _plan(self, epoch: int) -> list[Step]:
        return plan_epoch(
            self.train.examples,
            tokens_per_step=self.config.tokens_per_step,
            tokens_per_batch=self.config.tokens_per_batch,
            world=self.accelerator.num_processes,
            seed=self.config.seed * 1_000_003 + epoch,
        )

    def _walk(self, first: int) -> Iterator[tuple[Step, int, bool]]:
        flat = [
            (step, epoch, number == len(plan) - 1)
            for epoch, plan in enumerate(self.epochs)
            for number, step in enumerate(plan)
        ]
        title = f"{self.folder.parent.name} {self.stage.key}: {self.stage.title}"
        if not self.accelerator.is_main_process:
            yield from flat[first:]
            return
        yield from runs.progress(flat[first:], desc=title, unit="step")

    def _step(self, step: Step, number: int, epoch: int) -> dict[str, Any]:
        """One optimiser step over all batches of ``step``, each token weighing the same."""
        started = time.perf_counter()
        if self.config.lora_dropout:
            # seeded by place, so that a continued run draws what an unbroken one would have drawn
            torch.manual_seed(self.config.seed * 1_000_003 + number)
        rate = self.stage.rate(number, self.steps)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        world = self.accelerator.num_processes
        total = torch.zeros((), device=self.accelerator.device)
        for position, batch in enumerate(step.batches):
            last = position == len(step.batches) - 1
            ids, targets = _share(self.train, batch, self.accelerator)
            with nullcontext() if last else self.accelerator.no_sync(self.module):
                loss = self.module(ids, targets)
                # processes average their gradients, hence the factor
                self.accelerator.backward(loss * (world / step.targets))
            total += loss.detach()
        if self.config.clip_norm:
            self.accelerator.clip_grad_norm_(self.module.parameters(), self.config.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        mean = float(self.accelerator.reduce(total, "sum")) / step.targets  # type: ignore[arg-type]
        if not torch.isfinite(torch.tensor(mean)):
            raise RuntimeError(
                f"stage {self.stage.key}, step {number + 1}: the loss is {mean}; lower the learning rate "
                f"({self.stage.learning_rate:g}) and run again, the last checkpoint is kept in {self.folder}"
            )
        tokens = sum(len(self.train.examples[k].ids) for batch in step.batches for k in batch)
        return {
            "kind": "step",
            "stage": self.stage.key,
            "epoch": epoch,
            "loss": mean,
            "targets": step.targets,
            "tokens": tokens,
            "rate": rate,
            "seconds": time.perf_counter() - started,
        }

    def _validate(self, epoch: int, step: int) -> None:
        loss = validation_loss(self.module, self.check, self.validation, self.accelerator)
        past = [r for r in self.records if r["kind"] == "step" and r["epoch"] == epoch - 1]
        learned = sum(r["targets"] for r in past)
        mean = sum(r["loss"] * r["targets"] for r in past) / learned if learned else None
        self._write(
            {
                "kind": "epoch",
                "stage": self.stage.key,
                "epoch": epoch,
                "loss": mean,
                "validation_loss": loss,
                "step": step,
            }
        )

    def _write(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        if self.accelerator.is_main_process:
            runs.append_jsonl(self.folder / "losses.jsonl", record)

    def _save(self, step: int) -> None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

        options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
        weights, state = get_state_dict(self.module, self.optimiser.optimizer, options=options)
        if not self.accelerator.is_main_process:
            return
        tensors = {f"weights/{name}": value.contiguous() for name, value in weights.items()}
        for name, slots in state["state"].items():
            tensors |= {f"{slot}/{name}": torch.as_tensor(value).contiguous() for slot, value in slots.items()}
        tensors["progress"] = torch.tensor([step])
        runs.write_tensors(self.folder / "checkpoint.safetensors", tensors)

    def _resume(self) -> int:
        """Load the checkpoint, forget what was logged after it, and return the number of finished steps."""
        path = self.folder / "checkpoint.safetensors"
        records = runs.read_jsonl(self.folder / "losses.jsonl") if (self.folder / "losses.jsonl").exists() else []
        if not path.exists():
            records = []
        else:
            tensors = runs.read_tensors(path)
            step = int(tensors.pop("progress"))
            records = [record for record in records if record["step"] <= step]
            self._restore(tensors)
        if self.accelerator.is_main_process:
            runs.write_jsonl(self.folder / "losses.jsonl", records)
        self.accelerator.wait_for_everyone()
        self.records = records
        return step if path.exists() else 0

    def _restore(self, tensors: dict[str, Tensor]) -> None:
        from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

        weights: dict[str, Tensor] = {}
        state: dict[str, dict[str, Tensor]] = {}
        for place, tensor in tensors.items():
            slot, name = place.split("/", 1)
            if slot == "weights":
                weights[name] = tensor
            else:
                state.setdefault(name, {})[slot] = tensor
        groups = [
            {**{k: v for k, v in group.items() if k != "params"}, "params": list(state)}
            for group in self.optimiser.param_groups
        ]
        options = StateDictOptions(full_state_dict=True, strict=False, ignore_frozen_params=True)
        set_state_dict(
            self.module,
            self.optimiser.optimizer,
            model_state_dict=weights,
            optim_state_dict={"state": state, "param_groups": groups},  # type: ignore[arg-type]
            options=options,
        )

    def _result(self, frozen_tensors: int) -> StageRun:
        steps = [record for record in self.records if record["kind"] == "step"]
        held = sum(
            max(len(self.train.examples[k].ids) for k in batch) * len(batch)
            for plan in self.epochs
            for step in plan
            for batch in step.batches
        )
        tokens = sum(record["tokens"] for record in steps)
        return StageRun(
            stage=self.stage.key,
            steps=len(steps),
            tokens=tokens,
            seconds=sum(record["seconds"] for record in steps),
            peak_bytes=_peak_bytes(),
            padding=1.0 - tokens / held,
            trainable=self.trainable,
            frozen_tensors=frozen_tensors,
            validation_loss=next(r["validation_loss"] for r in reversed(self.records) if r["kind"] == "epoch"),
        )


def _finish_stage(
    model: PreTrainedModel,
    stage: stages.Stage,
    train: ExampleSet,
    validation: ExampleSet,
    folder: Path,
    config: FineTuneConfig,
    limit: int,
    new_ids: range,
    observe: Observe | None,
) -> PreTrainedModel:
    """Load a finished stage, or run and store it; an adapter of an earlier stage is merged first."""
    if hasattr(model, "merge_and_unload"):
        model = model.merge_and_unload()
    place = folder / stage.key
    if (place / "result.json").exists():
        return load_stage(model, place, new_ids=new_ids)
    place.mkdir(parents=True, exist_ok=True)
    trained, result = run_stage(model, stage, train, validation, place, config, limit=limit, new_ids=new_ids)
    if _is_main():
        save_stage(trained, stage, place, new_ids=new_ids)
    _observe(stage.key, trained, place, observe)
    if _is_main():
        runs.write_json(place / "result.json", vars(result))
        (place / "checkpoint.safetensors").unlink(missing_ok=True)
    return trained


def _observe(name: str, model: PreTrainedModel, place: Path, observe: Observe | None) -> None:
    path = place / "observed.json"
    if observe is not None and _is_main() and not path.exists():
        place.mkdir(parents=True, exist_ok=True)
        runs.write_json(path, observe(name, model))


def _read_back(folder: Path, keys: list[str]) -> FineTuned:
    records = [record for key in keys for record in runs.read_jsonl(folder / key / "losses.jsonl")]
    results = [runs.read_json(folder / key / "result.json") for key in keys]
    seen = {key: folder / key / "observed.json" for key in ["start", *keys]}
    observed = {key: runs.read_json(path) for key, path in seen.items() if path.exists()}
    return FineTuned(folder, pd.DataFrame(records), pd.DataFrame(results), observed)


def _close(tuned: Tuned, model: PreTrainedModel, stage: stages.Stage, new_ids: range) -> None:
    """Back to the model's own dtype; rows that trained beside the matrices are written into them."""
    disable = getattr(model, "activation_checkpointing_disable", None) or model.gradient_checkpointing_disable
    disable()
    if stage.key != "b":
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(tuned.dtype)
    if tuned.new_input is not None and tuned.new_head is not None:
        rows = slice(new_ids.start, new_ids.stop)
        model.get_input_embeddings().weight.data[rows] = tuned.new_input.data.to(tuned.dtype)
        model.get_output_embeddings().weight.data[rows] = tuned.new_head.data.to(tuned.dtype)


def _check_rows(
    stage: stages.Stage,
    config: FineTuneConfig,
    before: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
    train: ExampleSet,
    new_ids: range,
) -> None:
    """A stage that trains rows must have moved every new row that stands in the texts."""
    if not len(new_ids) or not (stage.key == "a" or (stage.key == "b" and config.rows_in_b)):
        return
    counts = train.occurrences(new_ids.start, len(new_ids))
    for name, old, new in zip(("input", "head"), before, after, strict=True):
        still = stages.unmoved_rows(old, new, counts)
        if still:
            ids = [new_ids.start + number for number in still]
            raise RuntimeError(
                f"stage {stage.key} left {len(still)} {name} rows as they were although their tokens stand in the "
                f"training texts: ids {ids[:10]}; is the learning rate 0, or too small for the dtype of the matrices?"
            )


def _checkpointing(model: PreTrainedModel, config: FineTuneConfig, stage: stages.Stage) -> None:
    wanted = config.gradient_checkpointing
    if wanted == "always" or (wanted == "auto" and stage.key.startswith("c")):
        # renamed in transformers 5.2x; both names take the same keyword arguments in the same place
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})


def _check_shape(model: PreTrainedModel) -> None:
    """The loss reads the matrices directly, so what a model does around them must be nothing."""
    config = model.config
    head = model.get_output_embeddings()
    odd = [
        name
        for name, present in {
            "a head bias": getattr(head, "bias", None) is not None,
            "soft-capped logits": getattr(config, "final_logit_softcapping", None) is not None,
            "a scaled embedding": hasattr(model.get_input_embeddings(), "embed_scale"),
            "scaled logits": getattr(config, "logit_scale", 1.0) not in (None, 1.0)
            or getattr(config, "logits_scaling", 1.0) not in (None, 1.0),
        }.items()
        if present
    ]
    if odd:
        raise ValueError(f"{type(model).__name__} has {', '.join(odd)}; fine-tuning knows plain decoders only")


def _share(texts: ExampleSet, batch: tuple[int, ...], accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    ids, targets = collate(texts.examples, batch, rank=accelerator.process_index, world=accelerator.num_processes)
    device = accelerator.device
    return ids.to(device, non_blocking=True), targets.to(device, non_blocking=True)


@contextmanager
def _memory_advice(config: FineTuneConfig, folder: Path) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        kept = folder / "checkpoint.safetensors"
        further = "" if config.gradient_checkpointing == "always" else ", or set gradient_checkpointing='always'"
        raise OutOfMemory(
            f"out of memory with tokens_per_batch={config.tokens_per_batch}: halve it (tokens_per_step may stay, so "
            f"the result stays the same){further}, and run again; "
            + (f"it continues from {kept}" if kept.exists() else "no step was finished yet")
        ) from error


def _reset_peak() -> None:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peak_bytes() -> int:
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _is_main() -> bool:
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def _digest(texts: ExampleSet) -> str:
    from vocabx_utils import corpus

    return corpus.fingerprint(f"{example.first_target}:{','.join(map(str, example.ids))}" for example in texts.examples)
