"""Phase 1: learn the N new rows on each side, with everything else frozen.

One student forward serves both sides. Two AdamW optimisers without weight decay, one for the input rows and one
for the head rows, are new for every variant, so no momentum is carried over. A variant writes, below its folder:
``rows/epoch_NN.safetensors``, ``tokens/epoch_NN.safetensors`` (sums per new token), ``metrics.jsonl`` (one line an
epoch), ``steps.jsonl`` (one line a step) and, when it is finished, ``provenance.json``.

Several processes: ``accelerate launch --multi_gpu -m vocabx_utils.training.distillation --config profile.yaml``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from vocabx_utils import files, paths, runs
from vocabx_utils.config import Phase1Config
from vocabx_utils.models import BaseModel
from vocabx_utils.progress import progress
from vocabx_utils.rows import write_epoch
from vocabx_utils.training import validation
from vocabx_utils.training.checkpoints import Position, load_checkpoint, save_checkpoint
from vocabx_utils.training.examples import Batch, Example, ExampleSet, collate, epoch_batches, micro_batches
from vocabx_utils.training.extended import ExtendedModel, rows_checksum
from vocabx_utils.training.group import Group
from vocabx_utils.training.objectives import Objective, hidden_distance, parse_objective, phase1_loss
from vocabx_utils.training.schedule import rate_factor
from vocabx_utils.training.teacher import TeacherCache
from vocabx_utils.vocabulary.initialization import INPUT_METHODS, SubtokenLike, head_rows, input_rows

__all__ = [
    "NonFiniteLossError",
    "NotImprovedError",
    "Phase1Data",
    "RowsNotTrainedError",
    "Trainer",
    "Variant",
    "VariantResult",
    "parse_variant",
    "train_variant",
]


_POOLED = {"first": "kl_pooled", "last": "kl_pooled_last", "none": "kl_identical"}
Starts = dict[tuple[int, ...], tuple[dict[str, float], validation.TokenScores]]
"""Validations by checksums of the rows, for one set of examples and one model."""


class NonFiniteLossError(RuntimeError):
    """A loss became infinite or NaN; the message names the batch, the last good checkpoint stands."""


class RowsNotTrainedError(RuntimeError):
    """A new row with training examples did not change, or a frozen one did."""


class NotImprovedError(RuntimeError):
    """Training left the validation KL no better than the untrained start."""


@dataclass(frozen=True)
class Variant:
    """What a variant's name says.

    Attributes:
        name: as given.
        init: first values of the input rows.
        objective: None for an untrained variant.
    """

    name: str
    init: str
    objective: Objective | None

    def head_init(self, choice: str = "auto") -> str:
        """First values of the head rows: the thesis pairs random with random and mean with first."""
        if choice != "auto":
            return choice
        return "random" if self.init == "random" else "first"


def parse_variant(name: str) -> Variant:
    """Read a variant from its name, for example ``mean_kl_last`` or ``random_untrained``.

    Raises:
        ValueError: unknown first values or objective.
    """
    init, _, objective = name.partition("_")
    if init not in INPUT_METHODS or not objective:
        raise ValueError(
            f"variant {name!r}: expected <input rows>_<objective> with input rows {', '.join(INPUT_METHODS)}"
        )
    return Variant(name, init, None if objective == "untrained" else parse_objective(objective))


@dataclass(frozen=True)
class Phase1Data:
    """Examples and teachers, shared by all variants of a run.

    Attributes:
        train, validation: the two splits.
        train_teacher, validation_teacher: their caches, last layer.
        layers: training caches of other layers, for hidden-state objectives.
        aligned: texts for the first values ``align`` and ``focus``.
    """

    train: ExampleSet
    validation: ExampleSet
    train_teacher: TeacherCache
    validation_teacher: TeacherCache
    layers: dict[int, TeacherCache] = field(default_factory=dict)
    aligned: Sequence[Any] = ()


@dataclass(frozen=True)
class VariantResult:
    """What `train_variant` returns.

    Attributes:
        folder: of the variant.
        metrics: one mapping per epoch, epoch 0 first.
        without_examples: ids of new tokens that no training example holds.
        skipped_steps: steps that held nothing to learn from.
    """

    folder: Path
    metrics: list[dict[str, Any]]
    without_examples: list[int]
    skipped_steps: int


def train_variant(
    name: str,
    base: BaseModel,
    tokens: Sequence[SubtokenLike],
    data: Phase1Data,
    config: Phase1Config,
    folder: Path,
    *,
    group: Group | None = None,
    spell: Callable[[int], str] = str,
    on_step: Callable[[int], None] | None = None,
    starts: Starts | None = None,
) -> VariantResult:
    """Train one variant, or go on with a killed one, or return a finished one.

    A resumed run ends with bit-identical rows on the CPU: order and schedule depend on seed and step alone, and
    the checkpoint holds both optimisers.

    Args:
        name: variant, see `parse_variant`.
        base: frozen base model.
        tokens: the N new tokens in order of id.
        data: examples and teacher caches.
        config: schedule and sizes.
        folder: where the variant is written.
        group: processes that share each step.
        spell: text of an id, for the first values ``focus``.
        on_step: called after every step with the number of steps done, before a checkpoint is written.
        starts: validations of first values that other variants have done, read and added to.

    Returns:
        Metrics and what did not train.

    Raises:
        NonFiniteLossError: see there.
        RowsNotTrainedError: a frozen row moved, or a new row with training examples did not.
        NotImprovedError: ``config.require_improvement`` and a ``kl_last`` variant did not improve.
        vocabx_utils.runs.KeyMismatchError: the folder holds work with other settings.
    """
    variant, group = parse_variant(name), group or Group()
    state = _claimed(variant, base, data, config, folder, group)
    if state == "finished":
        return _finished(folder)
    _check_judgeable(variant, data.validation, config)
    generator = torch.Generator().manual_seed(config.seed)
    rows = input_rows(variant.init, base, tokens, generator, aligned=data.aligned, spell=spell)
    heads = head_rows(variant.head_init(config.head_init), base, tokens, generator)
    model = ExtendedModel(base, rows, heads)
    frozen = (rows_checksum(base.input_rows), rows_checksum(base.head_rows))
    trainer = Trainer(variant, model, data, config, folder, group, on_step, {} if starts is None else starts)
    trainer.run()
    if (rows_checksum(base.input_rows), rows_checksum(base.head_rows)) != frozen:
        raise RowsNotTrainedError(f"{name}: rows of the original vocabulary changed; they must stay bit-identical")
    missing = _check_rows(variant, model.input_rows.detach().cpu(), rows, data.train)
    metrics = files.read_jsonl(folder / "metrics.jsonl")
    _check_improved(variant, metrics, config)
    if group.leads:
        runs.finish(
            folder, seed=config.seed, without_examples=missing, skipped_steps=trainer.position.skipped,
            device=str(base.device), processes=group.world,
        )  # fmt: skip
    group.barrier()
    return VariantResult(folder, metrics, missing, trainer.position.skipped)


def _claimed(
    variant: Variant, base: BaseModel, data: Phase1Data, config: Phase1Config, folder: Path, group: Group
) -> str:
    loose = {"variants", "run_name", "model", "device", "dtype", "token_budget", "checkpoint_steps", "compile_blocks"}
    loose |= {"require_improvement", "train_limit", "validation_limit", "train_windows", "validation_windows"}
    settings = {k: v for k, v in config.to_dict().items() if k not in loose}
    key = {
        "variant": variant.name,
        "settings": settings,
        "model": base.fingerprint,
        "dtype": str(base.dtype),
        "train": data.train.fingerprint(),
        "validation": data.validation.fingerprint(),
    }
    state = runs.claim(folder, key) if group.leads else ""
    group.barrier()
    return state or runs.claim(folder, key, writes=False)


def _finished(folder: Path) -> VariantResult:
    sealed = runs.read_provenance(folder)
    metrics = files.read_jsonl(folder / "metrics.jsonl")
    return VariantResult(folder, metrics, sealed["without_examples"], sealed["skipped_steps"])


class Trainer:
    """The loop over steps; everything that a checkpoint must hold is in `position` and the optimisers.

    `train_variant` makes one and runs it; benchmarks take single steps.
    """

    def __init__(
        self,
        variant: Variant,
        model: ExtendedModel,
        data: Phase1Data,
        config: Phase1Config,
        folder: Path,
        group: Group,
        on_step: Callable[[int], None] | None,
        starts: Starts,
    ) -> None:
        self.variant, self.model, self.data, self.config = variant, model, data, config
        self.folder, self.group, self.on_step, self.starts = folder, group, on_step, starts
        self.rows: dict[str, Tensor] = {"input_rows": model.input_rows, "head_rows": model.head_rows}
        fused = True if model.device.type == "cuda" else None
        self.optimizers: dict[str, Optimizer] = {
            name: AdamW([tensor], lr=config.learning_rate, weight_decay=0.0, fused=fused)
            for name, tensor in self.rows.items()
        }
        self.facts = _facts(data.train, variant.objective)
        per_epoch = math.ceil(len(data.train) / config.batch_size)
        self.cycles = [n * per_epoch for n in (config.epochs, config.restart_epochs) if n]
        self.position = Position(1, 0, 0, 0, self._zeros(), torch.zeros(0, 2, dtype=torch.float64))
        # Losses stay on the device between checks: reading one waits for the GPU.
        self.pending: list[tuple[int, int, list[int], Tensor]] = []
        self.check_every = 1 if model.device.type == "cpu" else 8

    def _zeros(self) -> Tensor:
        return torch.zeros(3, dtype=torch.float64, device=self.model.device)

    @property
    def epochs(self) -> int:
        """Epochs in all, 0 for an untrained variant."""
        if self.variant.objective is None:
            return 0
        return self.config.epochs + self.config.restart_epochs

    def run(self) -> None:
        """Validate the start, then train and validate every epoch that is left."""
        found = load_checkpoint(self.folder, self.rows, self.optimizers)
        if found is None:
            if self.group.leads:  # a run killed before its first checkpoint left the start's line
                (self.folder / "metrics.jsonl").unlink(missing_ok=True)
            self._close_epoch(0, 0.0)
        else:
            self.position = found
            if self.group.leads:
                kept = [row for row in files.read_jsonl(self.folder / "metrics.jsonl") if row["epoch"] < found.epoch]
                files.write_jsonl(self.folder / "metrics.jsonl", kept)
            self.group.barrier()
        if self.epochs == 0:
            return
        with progress(total=sum(self.cycles), desc=self.variant.name, unit="step") as bar:
            bar.update(self.position.steps)
            while self.position.epoch <= self.epochs:
                self._epoch(bar)
        if self.group.leads:
            names = ("input_loss", "head_loss")
            losses = [dict(zip(names, pair, strict=True)) for pair in self.position.losses.tolist()]
            files.write_jsonl(self.folder / "steps.jsonl", losses)

    def _epoch(self, bar: Any) -> None:
        c, here = self.config, self.position
        steps = epoch_batches(self.data.train, c.batch_size, seed=c.seed, epoch=here.epoch)
        began, tokens = time.perf_counter(), 0
        for number in range(here.step, len(steps)):
            indices = steps[number]
            if self._empty(indices):
                here.skipped += 1
                losses = self._zeros()
            else:
                losses = self.step(indices)
            self.pending.append((here.epoch, number, indices, losses))
            here.step, here.steps = number + 1, here.steps + 1
            tokens += int(self.facts.tokens[indices].sum())
            if len(self.pending) >= self.check_every or here.step == len(steps):
                self._check_losses()
                rate = tokens / (time.perf_counter() - began)
                bar.set_postfix_str(f"loss {here.losses[-1, 0]:.4f}, {rate:,.0f} tokens/s", refresh=False)
            bar.update(1)
            if self.on_step is not None:
                self.on_step(here.steps)
            if here.steps % c.checkpoint_steps == 0 and here.step < len(steps):
                self._save()
        self._close_epoch(here.epoch, time.perf_counter() - began)
        here.epoch, here.step, here.totals = here.epoch + 1, 0, self._zeros()
        self._save()

    def _empty(self, indices: list[int]) -> bool:
        """True where a step has no new token, or nothing that its objective could compare."""
        objective = self.variant.objective
        assert objective is not None
        nothing = self.facts.new_tokens[indices].sum() == 0
        return bool(nothing or (objective.match is not None and self.facts.compared[indices].sum() == 0))

    def step(self, indices: list[int]) -> Tensor:
        """Update both sides once.

        Args:
            indices: training examples of the step, over all processes.

        Returns:
            (3,) loss of the input side, of the head side, and the summed KL, float64, still on the device.
        """
        factor = rate_factor(self.position.steps, self.cycles, self.config.warmup)
        for optimizer in self.optimizers.values():
            optimizer.zero_grad(set_to_none=False)
            for settings in optimizer.param_groups:
                settings["lr"] = self.config.learning_rate * factor
        objective = self.variant.objective
        assert objective is not None
        # Means run over the whole step, whatever part of it this process and this micro-batch hold.
        aligned = max(1, int(self.facts.aligned[indices].sum()))
        weighted = self.facts.targets[indices] + (objective.new_target_weight - 1) * self.facts.new_targets[indices]
        scale = 1.0 / max(1.0, float(weighted.sum()))
        losses = self._zeros()
        own = indices[self.group.rank :: self.group.world]
        for part in micro_batches(self.facts.tokens_list, own, self.config.token_budget):
            losses += self._backward(part, objective, 1.0 / aligned, scale)
        gradients = []
        for parameter in self.rows.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        self.group.sum_([*gradients, losses])
        for optimizer in self.optimizers.values():
            optimizer.step()
        self.position.totals += losses
        return losses

    def _backward(self, part: list[int], objective: Objective, kl_scale: float, ce_scale: float) -> Tensor:
        model, data = self.model, self.data
        anchor = None if objective.match is None else objective.anchor
        batch = collate(data.train, part, anchor, data.train_teacher.rows).to(model.device)
        hidden, layer = data.train_teacher.prefixes.hidden(
            model, batch.ids, part, layer=objective.layer, new_at=batch.new_at
        )
        flat = hidden.reshape(-1, hidden.shape[-1])
        by_kl = objective.match == "kl" and len(batch.teacher_rows) > 0
        terms = phase1_loss(
            flat.index_select(0, batch.positions),  # its gradient needs no sort, as that of an index would
            model.head,
            model.head_rows,
            batch.targets,
            ce_coefficient=_coefficients(batch, model.vocab_size, objective.new_target_weight, ce_scale),
            ce_weight=objective.ce_weight,
            teacher_hidden=data.train_teacher.take(batch.teacher_rows, model.device) if by_kl else None,
            kl_coefficient=kl_scale if by_kl else 0.0,
            temperature=objective.temperature,
            transform=model.transform,
        )
        loss = terms.input_loss
        if objective.match in ("hidden", "cosine") and len(batch.teacher_rows) > 0:
            teacher = data.train_teacher if objective.layer == -1 else data.layers[objective.layer]
            mine = layer.reshape(-1, layer.shape[-1]).index_select(0, batch.positions[: len(batch.teacher_rows)])
            theirs = teacher.take(batch.teacher_rows, model.device)
            distance, _ = hidden_distance(mine, theirs, objective.match, kl_scale)
            loss = loss + distance
        (loss + terms.head_loss).backward()
        return torch.stack([loss.detach(), terms.head_loss.detach(), terms.kl.sum()]).double()

    def _check_losses(self) -> None:
        """Move pending losses to the log; stop at the first that is not finite."""
        values = torch.stack([losses for *_, losses in self.pending]).cpu()
        for (epoch, number, indices, _), pair in zip(self.pending, values, strict=True):
            if not torch.isfinite(pair).all():
                raise NonFiniteLossError(
                    f"{self.variant.name}: loss {pair[:2].tolist()} (input side, head side) at step {number + 1} of "
                    f"epoch {epoch}, examples {indices} of the training set. The last good checkpoint in "
                    f"{paths.show_path(self.folder)} stands; lower learning_rate ({self.config.learning_rate:g}) "
                    "or look at those examples, then run again under another run name."
                )
        self.position.losses = torch.cat([self.position.losses, values[:, :2]])
        self.pending.clear()

    def _save(self) -> None:
        if self.pending:
            self._check_losses()
        if not all(bool(torch.isfinite(tensor).all()) for tensor in self.rows.values()):
            raise NonFiniteLossError(f"{self.variant.name}: a new row is not finite after step {self.position.steps}")
        if self.group.leads:
            save_checkpoint(self.folder, self.rows, self.optimizers, self.position)

    def _close_epoch(self, epoch: int, seconds: float) -> None:
        """Validate and write the epoch's rows and metrics; rows first, since a metrics line says they are there."""
        data, teacher = self.data, self.data.validation_teacher
        scores, per_token = self._validate(epoch)
        steps = max(1, self.position.step)
        train = (self.position.totals / steps).tolist() if epoch else [math.nan] * 3
        if not self.group.leads:
            return
        write_epoch(self.folder / "rows", epoch, self.rows)
        write_epoch(self.folder / "tokens", epoch, per_token.tensors())
        row = {"epoch": epoch, "train_loss": train[0], "train_ce": train[1], **scores}
        objective, compared = self.variant.objective, int(self.facts.compared.sum())
        if epoch and objective is not None and objective.match == "kl" and objective.temperature == 1 and compared:
            # the same mean as that metric of the validation, over the positions that this anchor compares
            row[f"train_{_POOLED[objective.anchor]}"] = float(self.position.totals[2]) / compared
        row["base_bpb"] = validation.base_bits_per_byte(teacher, data.validation)
        row["seconds"] = round(seconds, 3)
        # JSON has no NaN: a mean over no position is null
        plain = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        files.append_jsonl(self.folder / "metrics.jsonl", plain)

    def _validate(self, epoch: int) -> tuple[dict[str, float], validation.TokenScores]:
        """Evaluate; variants with the same first values share what that gives before training."""
        data = self.data
        key = tuple(rows_checksum(rows) for rows in self.rows.values()) if epoch == 0 else ()
        if key in self.starts:
            return self.starts[key]
        found = validation.evaluate(
            self.model,
            data.validation,
            data.validation_teacher,
            token_budget=self.config.token_budget,
            group=self.group,
        )
        if epoch == 0:
            self.starts[key] = found
        return found


def _coefficients(batch: Batch, vocab_size: int, new_weight: float, scale: float) -> Tensor:
    weights = torch.full(batch.targets.shape, scale, device=batch.targets.device)
    return weights if new_weight == 1 else torch.where(batch.targets >= vocab_size, scale * new_weight, weights)


@dataclass(frozen=True)
class _Facts:
    """Counts per training example, so that a step's means need no communication."""

    tokens: np.ndarray
    tokens_list: list[int]
    targets: np.ndarray
    new_targets: np.ndarray
    new_tokens: np.ndarray
    aligned: np.ndarray
    compared: np.ndarray


def _facts(examples: ExampleSet, objective: Objective | None) -> _Facts:
    anchor = objective.anchor if objective is not None else "last"
    tokens, new_tokens, new_targets, compared, prefix = [], [], [], [], []
    for example in examples.examples:
        is_new = example.extended_ids >= examples.vocab_size
        tokens.append(len(example.extended_ids))
        new_tokens.append(int(is_new.sum()))
        new_targets.append(int(is_new[1:].sum()))
        compared.append(len(example.pairs[anchor]))
        prefix.append(example.prefix_pairs)
    counts = [np.array(values, np.int64) for values in (tokens, new_targets, new_tokens, compared, prefix)]
    return _Facts(counts[0], tokens, counts[0] - 1, counts[1], counts[2], counts[3] + counts[4], counts[3])


def _learnable(example: Example, objective: Objective, vocab_size: int) -> np.ndarray:
    """Ids of new tokens in an example that the objective's loss depends on."""
    at = example.new_at(vocab_size)
    end = -1
    if objective.match is not None and len(example.pairs[objective.anchor]):
        end = int(example.pairs[objective.anchor][:, 1].max())
    if objective.ce_weight > 0:
        end = max(end, len(example.extended_ids) - 2)
    return example.extended_ids[at[at <= end]]


def _check_rows(variant: Variant, after: Tensor, before: Tensor, train: ExampleSet) -> list[int]:
    """Raise if a row with examples did not move; return the ids without examples."""
    missing = (np.flatnonzero(train.counts() == 0) + train.vocab_size).tolist()
    if variant.objective is None:
        return missing
    parts = [_learnable(example, variant.objective, train.vocab_size) for example in train.examples]
    learnable = np.unique(np.concatenate([np.zeros(0, np.int64), *parts])) - train.vocab_size
    moved = (after != before).any(1).numpy()
    stuck = [int(i) + train.vocab_size for i in learnable if not moved[i]]
    if stuck:
        raise RowsNotTrainedError(
            f"{variant.name}: {len(stuck)} new rows have training examples and did not change, ids {stuck[:10]}"
        )
    return missing


def _must_improve(variant: Variant, config: Phase1Config) -> bool:
    objective = variant.objective
    return (
        objective is not None and config.require_improvement and (objective.match, objective.anchor) == ("kl", "last")
    )


def _check_judgeable(variant: Variant, validation_set: ExampleSet, config: Phase1Config) -> None:
    """Refuse, before the first step, a validation that could not show an improvement at the end."""
    if _must_improve(variant, config) and not any(e.merged["last"].any() for e in validation_set.examples):
        raise NotImprovedError(
            f"{variant.name}: validation holds no merged span, so improvement cannot be judged. Give it texts with new "
            "tokens, or set require_improvement = False."
        )


def _check_improved(variant: Variant, metrics: list[dict[str, Any]], config: Phase1Config) -> None:
    if not _must_improve(variant, config):
        return
    start, end = metrics[0]["kl_last"], metrics[-1]["kl_last"]
    if end is None or not end < start:
        raise NotImprovedError(
            f"{variant.name}: validation KL at the last subtoken went from {start:.4f} to {end or math.nan:.4f}, "
            f"not below its untrained start. Try another learning_rate (now {config.learning_rate:g}) or more epochs; "
            "require_improvement = False accepts it."
        )


if __name__ == "__main__":
    from vocabx_utils.training.phase1 import main

    main()
