"""Fine-tuning from top to bottom: open a stage, train it, one step, validate, close it.

Stage a learns the whole embedding and head, b adapters on every block (thesis eq. `lora_update`), c one half of the
blocks after the other; `stages` says what each frees. An optimiser is made new for each stage (momentum of another
stage would move rows that are frozen now), and the plan of batches is a function of the seed. It runs on one process or
many, data parallel or sharded.

Nothing here knows of files: `finetuning_stage` puts a run folder around it.

Shapes: V original vocabulary, N new tokens, D model width, B texts of a batch, T tokens.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedModel

from vocabx_utils.config import FineTuneConfig
from vocabx_utils.training import stages
from vocabx_utils.training.batches import Step, collate, padding_share, plan_epoch
from vocabx_utils.training.examples import ExampleSet
from vocabx_utils.training.loop import EpochDone, NonFiniteLossError, Record, StepDone, learning_rate
from vocabx_utils.training.loss_model import LossModel, peak_bytes, prepare, reset_peak, reshard, undo_preparation
from vocabx_utils.training.sharding import materialise, shard
from vocabx_utils.training.stage_files import new_rows_of


@dataclass(frozen=True)
class StageRun:
    """What one stage did."""

    stage: str  # "a", "b", "c1" or "c2"
    steps: int  # of the optimiser; tokens and texts that they read
    tokens: int
    texts: int
    seconds: float  # of the steps alone, resumed parts included
    peak_bytes: int  # of device memory on CUDA (all of the process), else of resident memory
    padding: float  # share of it in the batches
    trainable: int  # parameters
    frozen_tensors: int  # tensors whose bits were compared before and after, and were equal
    validation_loss: float  # mean nats per learned token at the end


class StageTraining:
    """One stage's training: `run` yields what each step and each validation gave (see `loop.Training`).

    Args:
        model: plain untied model; changed in place, wrapped by peft in stage "b" (then `trained` is the wrapper).
        limit: V + N.
        new_ids: ids of the new tokens.
        start_loss: validation loss of the model as it comes, measured here unless given.
        fill: for a sharded model without memory (`sharding.empty_model`): gives the `LossModel`, whose parts have
            memory now, their values.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        stage: stages.Stage,
        train: ExampleSet,
        validation: ExampleSet,
        config: FineTuneConfig,
        *,
        limit: int,
        new_ids: range = range(0),
        start_loss: float | None = None,
        fill: Callable[[nn.Module], None] | None = None,
    ) -> None:
        self.model, self.stage, self.config, self.new_ids = model, stage, config, new_ids
        self.train, self.validation, self.start_loss = train, validation, start_loss
        self.accelerator = Accelerator(cpu=on_cpu(model, config))
        dtype = stages.matrices_of(model)[1].dtype
        self.trained: Any = stages.open_stage(model, stage, config, new_ids=new_ids)
        self.rows_before = new_rows_of(model, new_ids)
        self.tuned = LossModel(model, limit, dtype, new_ids, train_rows=stage.key == "b" and config.rows_in_b)
        self.table = stages.trainable_table(self.tuned)
        tokens, longest = train.tokens * stage.epochs, max(len(example.ids) for example in train.examples)
        shape = (max(1, config.tokens_per_batch // longest), longest)
        if config.sharded:
            shard(self.tuned, stages.blocks_of(model), self.accelerator)
            if fill is not None:
                materialise(self.tuned, self.accelerator.device)
                fill(self.tuned)
        self.frozen = stages.checksums(self.tuned)  # of a sharded model each process holds its part only
        self.note = prepare(model, config, stage, tokens, shape)
        self.parameters: dict[str, Tensor] = {n: p for n, p in self.tuned.named_parameters() if p.requires_grad}
        self.optimisers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(
                list(self.parameters.values()), lr=stage.learning_rate, weight_decay=config.weight_decay, fused=True
            )
        ]
        self.trainable = sum(parameter.numel() for parameter in self.parameters.values())
        self.module: Any = self.tuned if config.sharded else self.accelerator.prepare(self.tuned)
        self.epochs = [
            self._plan(train, config.tokens_per_step, config.seed * 1_000_003 + epoch) for epoch in range(stage.epochs)
        ]
        self.check = self._plan(validation, config.tokens_per_batch)
        self.done = 0
        self.records: list[Record] = []

    def _plan(self, texts: ExampleSet, tokens_per_step: int, seed: int = 0) -> list[Step]:
        return plan_epoch(
            texts.examples,
            tokens_per_step=tokens_per_step,
            tokens_per_batch=self.config.tokens_per_batch,
            world=self.accelerator.num_processes,
            seed=seed,
        )

    @property
    def total(self) -> int:
        """Optimiser steps in all."""
        return sum(len(plan) for plan in self.epochs)

    # --- train

    def run(self) -> Iterator[StepDone | EpochDone]:
        """Validate the start, then train and validate every epoch that is left."""
        self.module.train()
        if not self.records:
            yield self.validate(0, self.start_loss)
        reset_peak()
        flat = [(step, epoch, step is plan[-1]) for epoch, plan in enumerate(self.epochs) for step in plan]
        for step, epoch, last in flat[self.done :]:
            record = self.step(step, self.done, epoch)
            self.done += 1
            self.records.append({**record, "step": self.done})
            note = f"loss {record['loss']:.4f}, {record['tokens'] / record['seconds']:,.0f} tokens/s"
            yield StepDone(self.done, note, self.records[-1], checkpoint=not last)
            if last:
                yield self.validate(epoch + 1)
        if self.config.sharded:
            reshard(self.tuned)

    def step(self, step: Step, number: int, epoch: int) -> Record:
        """Update what the stage frees once, over all batches of a step, each token weighing the same.

        Steps and epochs are counted from 0. Returns mean loss (nats per token), tokens, rate and seconds, for the
        journal; NonFiniteLossError names the texts.
        """
        started = time.perf_counter()
        if self.config.lora_dropout:
            # seeded by place, so that a continued run draws what an unbroken one would have drawn
            torch.manual_seed(self.config.seed * 1_000_003 + number)
        stage, accelerator, (optimiser,) = self.stage, self.accelerator, self.optimisers
        rate = learning_rate(number, [self.total], stage.warmup, peak=stage.learning_rate, after=stage.schedule)
        for group in optimiser.param_groups:
            group["lr"] = rate
        total = torch.zeros((), device=accelerator.device)
        for position, batch in enumerate(step.batches):
            ids, targets = _share(self.train, batch, accelerator)  # (B, T) each
            with self._synchronised(position == len(step.batches) - 1):
                loss = self.module(ids, targets)
                # processes average their gradients, hence the factor
                accelerator.backward(loss * (accelerator.num_processes / step.targets))
            total += loss.detach()
        if self.config.clip_norm:
            accelerator.clip_grad_norm_(self.module.parameters(), self.config.clip_norm)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        mean = float(accelerator.reduce(total, "sum")) / step.targets  # type: ignore[arg-type]
        if not torch.isfinite(torch.tensor(mean)):
            texts = sorted(k for batch in step.batches for k in batch)
            raise NonFiniteLossError(
                f"stage {stage.key}, step {number + 1}: the loss over training texts {texts} is {mean}; lower the "
                f"learning rate ({stage.learning_rate:g}) or look at those texts and run again"
            )
        tokens = sum(len(self.train.examples[k].ids) for batch in step.batches for k in batch)
        return {
            "kind": "step",
            "stage": stage.key,
            "epoch": epoch,
            "loss": mean,
            "targets": step.targets,
            "tokens": tokens,
            "rate": rate,
            "seconds": time.perf_counter() - started,
        }

    def _synchronised(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Let processes exchange gradients in the last batch of a step only."""
        if self.config.sharded:
            self.module.set_requires_gradient_sync(last)
        elif not last:
            return self.accelerator.no_sync(self.module)
        return contextlib.nullcontext()

    # --- validate

    def validate(self, epoch: int, known: float | None = None) -> EpochDone:
        """Close an epoch: its mean training loss and the validation loss, measured unless known."""
        loss = validation_loss(self.module, self.check, self.validation, self.accelerator) if known is None else known
        past = [r for r in self.records if r["kind"] == "step" and r["epoch"] == epoch - 1]
        learned = sum(r["targets"] for r in past)
        record = {
            "kind": "epoch",
            "stage": self.stage.key,
            "epoch": epoch,
            "loss": sum(r["loss"] * r["targets"] for r in past) / learned if learned else None,
            "validation_loss": loss,
            "validation_targets": sum(plan.targets for plan in self.check),
            "step": self.done,
        }
        self.records.append(record)
        # after the last step the stage itself is stored; a checkpoint of it would be written for nothing
        return EpochDone(epoch, record, checkpoint=0 < self.done < self.total)

    def counters(self) -> dict[str, Tensor]:
        """How many steps are done."""
        return {"progress": torch.tensor([self.done])}

    def resume(self, counters: dict[str, Tensor], records: Sequence[Record]) -> list[Record]:
        """Go on from there; return the records that lie before that place."""
        self.done = int(counters["progress"])
        self.records = [record for record in records if record["step"] <= self.done]
        return list(self.records)

    def result(self) -> StageRun:
        """What the stage did, once every step is done; RuntimeError where a tensor moved that was frozen."""
        changed = stages.moved(self.frozen, stages.checksums(self.tuned))
        if changed:
            raise RuntimeError(f"stage {self.stage.key} moved {len(changed)} frozen tensors, for example {changed[:3]}")
        steps = [record for record in self.records if record["kind"] == "step"]
        return StageRun(
            stage=self.stage.key,
            steps=len(steps),
            tokens=sum(record["tokens"] for record in steps),
            texts=len(self.train) * self.stage.epochs,
            seconds=sum(record["seconds"] for record in steps),
            peak_bytes=peak_bytes(),
            padding=padding_share((step for plan in self.epochs for step in plan), self.train.examples),
            trainable=self.trainable,
            frozen_tensors=len(self.frozen),
            validation_loss=next(r["validation_loss"] for r in reversed(self.records) if r["kind"] == "epoch"),
        )

    def close(self) -> Any:
        """Back to the model's own dtype, frozen and in evaluation mode; rows beside the matrices go into them.

        RuntimeError where a new row that stands in the training texts did not move.
        """
        undo_preparation(self.model)
        if self.stage.key != "b":
            for parameter in self.model.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.to(self.tuned.dtype)
        if self.tuned.new_input is not None and self.tuned.new_head is not None:
            rows = slice(self.new_ids.start, self.new_ids.stop)
            embedding, head = stages.matrices_of(self.model)
            embedding.data[rows] = self.tuned.new_input.data.to(self.tuned.dtype)
            head.data[rows] = self.tuned.new_head.data.to(self.tuned.dtype)
        self._check_rows()
        return self.trained.eval().requires_grad_(False)

    def _check_rows(self) -> None:
        """A stage that trains rows must have moved every new row that stands in the texts."""
        key, ids = self.stage.key, self.new_ids
        if not len(ids) or not (key == "a" or (key == "b" and self.config.rows_in_b)):
            return
        counts = self.train.occurrences(ids.start, len(ids), followed=True)
        for name, old, new in zip(("input", "head"), self.rows_before, new_rows_of(self.model, ids), strict=True):
            stays = (old.float() == new.float()).all(dim=1).cpu().numpy()  # (N,)
            if still := (np.flatnonzero(stays & (counts > 0)) + ids.start).tolist():
                raise RuntimeError(
                    f"stage {key} left {len(still)} {name} rows as they were although their tokens stand in the "
                    f"training texts: ids {still[:10]}; is the learning rate 0, or too small for the dtype of the "
                    "matrices?"
                )


@torch.no_grad()
def validation_loss(module: nn.Module, steps: Sequence[Step], texts: ExampleSet, accelerator: Accelerator) -> float:
    """Return the mean cross-entropy per learned token over a plan of texts, in nats.

    The module is a `LossModel`, possibly wrapped for several processes, which share every batch.
    """
    mode = module.training
    module.eval()
    total = torch.zeros((), device=accelerator.device)
    for step in steps:
        for batch in step.batches:
            ids, targets = _share(texts, batch, accelerator)
            total += module(ids, targets)
    module.train(mode)
    return float(accelerator.reduce(total, "sum")) / sum(step.targets for step in steps)  # type: ignore[arg-type]


def _share(texts: ExampleSet, batch: tuple[int, ...], accelerator: Accelerator) -> tuple[Tensor, Tensor]:
    ids, targets = collate(texts.examples, batch, rank=accelerator.process_index, world=accelerator.num_processes)
    device = accelerator.device
    return ids.to(device, non_blocking=True), targets.to(device, non_blocking=True)


def on_cpu(model: PreTrainedModel, config: FineTuneConfig) -> bool:
    """Sharded runs load on the CPU and shard to the GPUs; others train where the model lies."""
    return not torch.cuda.is_available() if config.sharded else model.device.type == "cpu"
