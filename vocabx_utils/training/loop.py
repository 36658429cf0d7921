"""The optimiser steps of one stage: one process or many, resumable after each checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from vocabx_utils import files
from vocabx_utils.config import FineTuneConfig
from vocabx_utils.progress import progress
from vocabx_utils.training import resume, stages
from vocabx_utils.training.batches import ExampleSet, Step, collate, plan_epoch
from vocabx_utils.training.tuned import Tuned

__all__ = ["Loop", "OutOfMemory", "StageRun", "validation_loss"]


class OutOfMemory(RuntimeError):
    """The device ran out of memory; says which setting to lower and where the checkpoint lies."""


@dataclass(frozen=True)
class StageRun:
    """What one stage did.

    Attributes:
        stage: "a", "b", "c1" or "c2".
        steps: optimiser steps.
        tokens: tokens read.
        texts: texts read.
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
    texts: int
    seconds: float
    peak_bytes: int
    padding: float
    trainable: int
    frozen_tensors: int
    validation_loss: float


class Loop:
    """The steps of one stage: losses on disk, checkpoint, resume.

    Args:
        accelerator: device and processes.
        tuned: the model with the stage's tensors freed.
        stage: what moves, for how long, how fast.
        train: encoded training texts.
        validation: encoded validation texts.
        folder: the stage's folder.
        config: batch sizes, clipping, seed.
        start_loss: validation loss of the model as it comes, where an earlier stage measured it.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        tuned: Tuned,
        stage: stages.Stage,
        train: ExampleSet,
        validation: ExampleSet,
        folder: Path,
        config: FineTuneConfig,
        start_loss: float | None = None,
    ) -> None:
        self.accelerator, self.stage, self.train, self.config = accelerator, stage, train, config
        self.start_loss = start_loss
        self.validation, self.folder = validation, folder
        self.tuned = tuned
        if config.sharded:
            _shard(tuned, accelerator)
        parameters = [parameter for parameter in tuned.parameters() if parameter.requires_grad]
        self.optimiser = torch.optim.AdamW(
            parameters, lr=stage.learning_rate, weight_decay=config.weight_decay, fused=True
        )
        self.trainable = sum(parameter.numel() for parameter in parameters)
        self.module = tuned if config.sharded else accelerator.prepare(tuned)
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
            self._validate(0, 0, self.start_loss)
        done = 0
        _reset_peak()
        with _memory_advice(self.config, self.folder):
            steps = self._walk(first)
            for step, epoch, last in steps:
                record = self._step(step, done + first, epoch)
                if self.accelerator.is_main_process:
                    rate = record["tokens"] / record["seconds"]
                    steps.set_postfix_str(f"loss {record['loss']:.4f}, {rate:,.0f} tokens/s", refresh=False)
                self._write({**record, "step": done + first + 1})
                done += 1
                if last:
                    self._validate(epoch + 1, done + first)
                every = self.config.checkpoint_every
                # after the last step the stage itself is stored; a checkpoint of it would be written for nothing
                if done + first < self.steps and (last or (every and (done + first) % every == 0)):
                    self._save(done + first)
        if self.config.sharded:
            _reshard(self.tuned)
        return self._result(frozen_tensors)

    def _plan(self, epoch: int) -> list[Step]:
        return plan_epoch(
            self.train.examples,
            tokens_per_step=self.config.tokens_per_step,
            tokens_per_batch=self.config.tokens_per_batch,
            world=self.accelerator.num_processes,
            seed=self.config.seed * 1_000_003 + epoch,
        )

    def _walk(self, first: int) -> Any:
        """Steps that are left, each with its epoch and whether it ends one; with a progress line in one process."""
        flat = [
            (step, epoch, number == len(plan) - 1)
            for epoch, plan in enumerate(self.epochs)
            for number, step in enumerate(plan)
        ]
        title = f"{self.folder.parent.name} {self.stage.key}: {self.stage.title}"
        if not self.accelerator.is_main_process:
            return flat[first:]
        return progress(flat[first:], desc=title, unit="step")

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
            with self._synchronised(last):
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
            texts = sorted(k for batch in step.batches for k in batch)
            raise RuntimeError(
                f"stage {self.stage.key}, step {number + 1}: the loss over training texts {texts} is {mean}; lower the "
                f"learning rate ({self.stage.learning_rate:g}) or look at those texts and run again; the last "
                f"checkpoint is kept in {self.folder}"
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

    @contextmanager
    def _synchronised(self, last: bool) -> Iterator[None]:
        """Processes exchange gradients in the last batch of a step only."""
        if self.config.sharded:
            unit: Any = self.module
            unit.set_requires_gradient_sync(last)
            yield
            return
        with nullcontext() if last else self.accelerator.no_sync(self.module):
            yield

    def _validate(self, epoch: int, step: int, known: float | None = None) -> None:
        loss = validation_loss(self.module, self.check, self.validation, self.accelerator) if known is None else known
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
                "validation_targets": sum(plan.targets for plan in self.check),
                "step": step,
            }
        )

    def _write(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        if self.accelerator.is_main_process:
            files.append_jsonl(self.folder / "losses.jsonl", record)

    def _save(self, step: int) -> None:
        tensors = resume.gather(self.module, self.optimiser)
        if self.accelerator.is_main_process:
            tensors["progress"] = torch.tensor([step])
            files.write_tensors(self.folder / resume.FILE, tensors)

    def _resume(self) -> int:
        """Load the checkpoint, forget what was logged after it, and return the number of finished steps."""
        path = self.folder / resume.FILE
        records = files.read_jsonl(self.folder / "losses.jsonl") if (self.folder / "losses.jsonl").exists() else []
        if not path.exists():
            records = []
        else:
            tensors = files.read_tensors(path)
            step = int(tensors.pop("progress"))
            records = [record for record in records if record["step"] <= step]
            resume.restore(self.module, self.optimiser, tensors)
        if self.accelerator.is_main_process:
            files.write_jsonl(self.folder / "losses.jsonl", records)
        self.accelerator.wait_for_everyone()
        self.records = records
        return step if path.exists() else 0

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
            texts=len(self.train.examples) * self.stage.epochs,
            seconds=sum(record["seconds"] for record in steps),
            peak_bytes=_peak_bytes(),
            padding=1.0 - tokens / held,
            trainable=self.trainable,
            frozen_tensors=frozen_tensors,
            validation_loss=next(r["validation_loss"] for r in reversed(self.records) if r["kind"] == "epoch"),
        )


def _shard(tuned: Tuned, accelerator: Accelerator) -> None:
    """Spread every block, and the rest as one unit, over the processes (fully sharded data parallel)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if accelerator.num_processes < 2:
        raise ValueError("sharded=True needs several processes; start with accelerate launch, or set sharded=False")
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    for block in stages.blocks_of(tuned.tuned):
        fully_shard(block, mesh=mesh)
    fully_shard(tuned, mesh=mesh)


def _reshard(tuned: Tuned) -> None:
    """Let go of parameters that the last forward pass has put together."""
    units: Any = [tuned, *stages.blocks_of(tuned.tuned)]
    for unit in units:
        unit.reshard()


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
