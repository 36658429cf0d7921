"""Phase 1 from top to bottom: prepare, train one variant, one step, validate.

The N new input rows and the N new head rows are learned with everything else frozen (thesis fig. `complete_pipeline`
and `complete_loss_pipeline`): the input rows by an objective, usually the KL against the same model under its original
tokenizer (eq. `kl_def`), the head rows by cross-entropy. One student forward serves both sides. Two AdamW optimisers
without weight decay are new for every variant, so no momentum is carried over.

Nothing here knows of files: `phase1_stage` puts a run folder around it; `in_memory` has all of it in one call.

Shapes: V original ids, N new tokens, D width, B texts, T tokens, P positions with a target, K of them compared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from accelerate import PartialState
from torch import Tensor
from torch.optim import AdamW, Optimizer

from vocabx_utils.config import Phase1Config
from vocabx_utils.models import BaseModel
from vocabx_utils.rows import NewToken
from vocabx_utils.student import Student
from vocabx_utils.training.averaging import Average
from vocabx_utils.training.batches import align_batch, epoch_batches, equal_shares
from vocabx_utils.training.blocks import quick_blocks
from vocabx_utils.training.checks import LossLog, StepFacts, check_taught
from vocabx_utils.training.dropout import drop_phrases
from vocabx_utils.training.examples import AlignedSet, choose_windows, whole_texts
from vocabx_utils.training.fusing import fuse_where_it_pays
from vocabx_utils.training.goals import Goals, serve
from vocabx_utils.training.head_fit import fit_head, head_states
from vocabx_utils.training.loop import EpochDone, NonFiniteLossError, StepDone, learning_rate
from vocabx_utils.training.objectives import Objective, Recipe, parse_variant
from vocabx_utils.training.processes import sum_over
from vocabx_utils.training.sharding import even_parts, idle_pass
from vocabx_utils.training.step_losses import batch_losses
from vocabx_utils.training.teacher import TeacherStates, ask_teacher
from vocabx_utils.training.validation import base_bits_per_byte, evaluate
from vocabx_utils.vocabulary.alignment import AlignedText, align_texts
from vocabx_utils.vocabulary.initialization import head_rows, input_rows
from vocabx_utils.vocabulary.tokens import Extension

_POOLED = {"first": "kl_pooled", "last": "kl_pooled_last", "none": "kl_identical"}
Teacher = Callable[[str, AlignedSet, int], TeacherStates]
Scores = tuple[dict[str, float], dict[str, Tensor]]


# --- prepare ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Phase1Data:
    """Examples and teachers, shared by all variants."""

    train: AlignedSet
    validation: AlignedSet
    train_teacher: TeacherStates  # of the last layer
    validation_teacher: TeacherStates
    layers: dict[int, TeacherStates] = field(default_factory=dict)  # of training, for objectives on hidden states
    aligned: Sequence[AlignedText] = ()  # for the first values `align` and `focus`


def prepare(
    base: BaseModel,
    extension: Extension,
    train: Sequence[str],
    validation: Sequence[str],
    config: Phase1Config,
    teacher: Teacher | None = None,
    tell: Callable[[str], None] = print,
) -> Phase1Data:
    """Align the texts, cut examples around new tokens, and ask the teacher once.

    Args:
        base, extension: the teacher, and both tokenizers with the new tokens.
        train, validation: texts.
        config: sizes, and the variants whose layers the teacher has to show.
        teacher: gives the states of a split's examples at a layer; they are kept in memory unless it is given.
        tell: on CUDA, receives the line that says whether blocks are fused.

    Raises:
        ValueError: a variant's name is wrong or names a layer that the model lacks, or no text holds a new token.
    """
    objectives = [parse_variant(name).objective for name in config.variants]
    layers = sorted({o.layer for o in objectives if o is not None and o.layer != -1})
    count = base.model.config.get_text_config().num_hidden_layers
    if beyond := [layer for layer in layers if layer > count]:
        raise ValueError(f"layers {beyond} of the variants' names do not exist: {base.name} has layers 0 to {count}")

    def cut(texts: Sequence[AlignedText], limit: int) -> AlignedSet:
        size, window = (extension.V, extension.N), config.window
        if window:
            return choose_windows(texts, *size, window=window, limit=limit, seed=config.seed)
        return whole_texts(texts, *size, max_length=config.max_length)

    aligned, held = (align_texts(extension, texts) for texts in (train, validation))
    learned = cut(drop_phrases(aligned, extension.V, config.phrase_dropout, config.seed), config.train_windows)
    judged = cut(held, config.validation_windows)
    for name, count, part in (("training", len(train), learned), ("validation", len(validation), judged)):
        check_taught(name, count, part)
    if note := _fuse(base, learned, config):
        tell(note)

    def in_memory(split: str, examples: AlignedSet, layer: int) -> TeacherStates:
        return ask_teacher(
            base, examples, layer=layer, token_budget=config.token_budget, likelihood=split == "validation"
        ).to(base.device)

    ask = teacher or in_memory
    return Phase1Data(
        learned,
        judged,
        ask("train", learned, -1),
        ask("validation", judged, -1),
        {layer: ask("train", learned, layer) for layer in layers},
        aligned,
    )


def _fuse(base: BaseModel, train: AlignedSet, config: Phase1Config) -> str:
    """Fuse the blocks where all variants' epochs over the training examples pay for it."""
    lengths = [len(example.ids) for example in train.examples]
    trained = sum(parse_variant(name).objective is not None for name in config.variants)
    length = max(lengths)
    texts = max(1, min(config.batch_size, config.token_budget // length))
    tokens = sum(lengths) * (config.epochs + config.restart_epochs) * trained
    return fuse_where_it_pays(base.model, config.compile_blocks, tokens, (texts, length))


def new_student(
    recipe: Recipe,
    base: BaseModel,
    tokens: Sequence[NewToken],
    config: Phase1Config,
    aligned: Sequence[AlignedText] = (),
    spell: Callable[[int], str] = str,
) -> Student:
    """Return a student with the first values of its rows (thesis alg. `embed-init` and `head_init`).

    `tokens` are the N new ones in order of id; `aligned` texts serve `align` and `focus`, the text of an id `focus`.
    """
    generator = torch.Generator().manual_seed(config.seed)
    rows = input_rows(recipe.init, base, tokens, generator, aligned=aligned, spell=spell)
    heads = head_rows(recipe.head_init(config.head_init), base, tokens, generator)
    return Student(base.model, base.vocab_size, rows, heads)


# --- train one variant --------------------------------------------------------------------------------------


class Phase1Training:
    """One variant's training: `run` yields what each step and each validation gave (see `loop.Training`).

    Without an objective the start is only measured.

    Args:
        student: its rows are changed in place.
        processes: those that share each step.
        start: validation of the first values, where another variant with the same ones has done it.
    """

    def __init__(
        self,
        recipe: Recipe,
        student: Student,
        data: Phase1Data,
        config: Phase1Config,
        processes: PartialState | None = None,
        start: Scores | None = None,
    ) -> None:
        self.recipe, self.student, self.data, self.config = recipe, student, data, config
        self.processes, self.start = processes, start
        student.blocks = quick_blocks(student.model)
        self.parameters: dict[str, Tensor] = {"input_rows": student.input_rows, "head_rows": student.head_rows}
        for rows in self.parameters.values():
            rows.grad = torch.zeros_like(rows)  # also where a process has no part of a step
        fused = True if student.device.type == "cuda" else None
        self.rates = [config.learning_rate, config.head_learning_rate or config.learning_rate]
        self.optimisers: list[Optimizer] = [
            AdamW([rows], lr=rate, weight_decay=0.0, fused=fused)
            for rows, rate in zip(self.parameters.values(), self.rates, strict=True)
        ]
        self.facts = StepFacts.of(data.train, recipe.objective)
        self.lengths = [len(example.ids) for example in data.train.examples]
        self.epochs = 0 if recipe.objective is None else config.epochs + config.restart_epochs
        per_epoch = math.ceil(len(data.train) / config.batch_size)
        self.cycles = [n * per_epoch for n in (config.epochs, config.restart_epochs) if n]
        self.epoch, self.step_of_epoch, self.done, self.skipped = 0, 0, 0, 0
        self.totals = self._zeros()  # (3,) of this epoch: loss of the input side, of the head side, summed KL
        self.shares = equal_shares(data.train) if self.epochs and config.token_sampling == "equal" else None
        averaged = round(config.average_last * self.total)
        self.average = Average(self.parameters, self.total - averaged + 1) if averaged else None
        self.log = LossLog(recipe.name, config.learning_rate, every=1 if student.device.type == "cpu" else 8)

    def _zeros(self) -> Tensor:
        return torch.zeros(3, dtype=torch.float64, device=self.student.device)

    @property
    def total(self) -> int:
        """Steps in all, 0 for an untrained variant."""
        return sum(self.cycles) if self.epochs else 0

    def run(self) -> Iterator[StepDone | EpochDone]:
        """Validate the start, then train and validate every epoch that is left."""
        if self.epoch == 0:
            yield self.close_epoch(0.0)
        while self.epoch <= self.epochs:
            yield from self._epoch()

    def _epoch(self) -> Iterator[StepDone | EpochDone]:
        steps = epoch_batches(
            self.data.train, self.config.batch_size, seed=self.config.seed, epoch=self.epoch, shares=self.shares
        )
        began, tokens, note = time.perf_counter(), 0, ""
        for number in range(self.step_of_epoch, len(steps)):
            indices = steps[number]
            if self.facts.is_empty(indices):
                self.skipped += 1
                losses = self._zeros()
            else:
                losses = self.step(indices)
            self.step_of_epoch, self.done = number + 1, self.done + 1
            if self.average is not None:
                self.average.add(self.done)
            tokens += int(self.facts.tokens[indices].sum())
            last = self.step_of_epoch == len(steps)
            if self.log.add(losses, f"step {number + 1} of epoch {self.epoch}, examples {indices}", last):
                rate = tokens / (time.perf_counter() - began)
                note = f"loss {self.log.values[-1, 0]:.4f}, {rate:,.0f} tokens/s"
            yield StepDone(self.done, note, checkpoint=not last)
        if self.done == self.total:
            self._finish()
        yield self.close_epoch(time.perf_counter() - began)

    def _finish(self) -> None:
        """Take the mean of the rows and fit those of the head, where that is asked for."""
        if self.average is not None:
            self.average.settle()
        if self.config.head_fit:
            train, teacher, budget = self.data.train, self.data.train_teacher, self.config.token_budget
            known = head_states(self.student, train, teacher, token_budget=budget)
            fit_head(self.student, known, strength=self.config.head_fit)

    def step(self, indices: Sequence[int]) -> Tensor:
        """Update both sides once, from the training examples of a step (over all processes).

        Returns:
            (3,) loss of the input side, of the head side, and the summed KL, float64, still on the device.
        """
        share = learning_rate(self.done, self.cycles, self.config.warmup, after=self.config.rate_after)
        for optimiser, peak in zip(self.optimisers, self.rates, strict=True):
            optimiser.zero_grad(set_to_none=False)
            optimiser.param_groups[0]["lr"] = peak * share
        objective = self.recipe.objective
        assert objective is not None
        if self.config.ce_decay and objective.match is not None:
            objective = replace(objective, ce_weight=objective.ce_weight * (1 - self.done / self.total))
        # Means run over the whole step, whatever part of it this process and this micro-batch hold.
        kl_scale, ce_scale = self.facts.scales(indices, objective.new_target_weight)
        losses = self._zeros()
        model, budget = self.student.model, self.config.token_budget
        for part in even_parts(model, self.lengths, indices, budget, self.processes):
            if part:
                losses += self._backward(part, objective, kl_scale, ce_scale)
            else:
                idle_pass(self.student)
        sum_over([*(rows.grad for rows in self.parameters.values() if rows.grad is not None), losses], self.processes)
        for optimiser in self.optimisers:
            optimiser.step()
        self.totals += losses
        return losses

    def _backward(self, part: list[int], objective: Objective, kl_scale: float, ce_scale: float) -> Tensor:
        """Run the student over a micro-batch and add its gradients."""
        student, data = self.student, self.data
        anchor = None if objective.match is None else objective.anchor
        batch = align_batch(data.train, part, anchor, data.train_teacher.rows, objective).to(student.device)
        beginnings = data.train_teacher.beginnings
        final, layer = beginnings.hidden(
            student, batch.ids, part, layer=objective.layer, new_at=batch.new_at
        )  # (B, T, D) each
        old = beginnings.sums(student, batch, part)
        teacher: Tensor | Goals | None = None
        if objective.match is not None and len(batch.teacher_rows) > 0:
            states = data.train_teacher if objective.layer == -1 else data.layers[objective.layer]
            known = states.goals if serve(objective, student.transform) else states
            teacher = known.take(batch.teacher_rows, student.device)  # of K positions
        scales = kl_scale, ce_scale
        input_loss, head_loss, kl = batch_losses(student, batch, final, layer, teacher, objective, scales, old)
        (input_loss + head_loss).backward()
        return torch.stack([input_loss.detach(), head_loss.detach(), kl]).double()

    def close_epoch(self, seconds: float) -> EpochDone:
        """Validate the student; what an epoch leaves are its scores, its rows and sums per new token."""
        epoch, data, config = self.epoch, self.data, self.config
        known, teacher, budget = self.start if epoch == 0 else None, data.validation_teacher, config.token_budget
        scores, per_token = known or evaluate(
            self.student, data.validation, teacher, token_budget=budget, processes=self.processes
        )
        if epoch == 0:
            self.start = scores, per_token
        row = {"epoch": epoch, "train_loss": math.nan, "train_ce": math.nan, **scores}
        if epoch:
            row["train_loss"], row["train_ce"], _ = (self.totals / max(1, self.step_of_epoch)).tolist()
        objective, compared = self.recipe.objective, int(self.facts.compared.sum())
        if epoch and objective is not None and objective.match == "kl" and objective.temperature == 1 and compared:
            # the same mean as that metric of the validation, over the positions that this objective compares
            at_ends = "kl_ends" if objective.after else "kl_last"
            row[f"train_{at_ends if objective.end_only else _POOLED[objective.anchor]}"] = (
                float(self.totals[2]) / compared
            )
        row["base_bpb"] = base_bits_per_byte(teacher, data.validation)
        row["seconds"] = round(seconds, 3)
        # JSON has no NaN: a mean over no position is null
        record = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}
        tensors = {"rows": self.parameters, "tokens": per_token}
        self.epoch, self.step_of_epoch, self.totals = epoch + 1, 0, self._zeros()
        return EpochDone(epoch, record, tensors, checkpoint=epoch > 0)

    def counters(self) -> dict[str, Tensor]:
        """How far the training has come, after a look at the losses and rows that a checkpoint would keep."""
        self.log.check()
        if not all(bool(torch.isfinite(rows).all()) for rows in self.parameters.values()):
            raise NonFiniteLossError(f"{self.recipe.name}: a new row is not finite after step {self.done}")
        place = torch.tensor([self.epoch, self.step_of_epoch, self.done, self.skipped])
        averages = {} if self.average is None else self.average.state()
        return {"place": place, "totals": self.totals, "losses": self.log.values, **averages}

    def resume(self, counters: dict[str, Tensor], records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Go on from there; return the validations that lie before that place."""
        self.epoch, self.step_of_epoch, self.done, self.skipped = counters["place"].tolist()
        self.totals, self.log.values = counters["totals"].to(self.student.device), counters["losses"]
        if self.average is not None:
            self.average.load(counters)
        return [record for record in records if record["epoch"] < self.epoch]
