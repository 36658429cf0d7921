"""Fine-tuning in a run folder: the stages of a variant one after the other, continued wherever a killed run stood.

Each stage has a folder with its tensors (see `stage_files`), `losses.jsonl` (one line a step and one an epoch),
`trainable.json` and, when it is finished, `result.json`; until then a checkpoint. The arithmetic is in `finetuning`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from accelerate import PartialState
from transformers import PreTrainedModel

from vocabx_utils import files, folders, runs
from vocabx_utils.config import FineTuneConfig
from vocabx_utils.models import check_finite
from vocabx_utils.training import fusing, stages
from vocabx_utils.training.checkpoints import FILE, whole
from vocabx_utils.training.examples import ExampleSet
from vocabx_utils.training.finetuning import StageRun, StageTraining, on_cpu
from vocabx_utils.training.loop import Record, carry_out, claim
from vocabx_utils.training.loss_model import check_shape
from vocabx_utils.training.stage_files import load_stage, merged, save_stage

# Settings that bound memory or say where to compute: they do not change the result, so a run may continue with others.
_NOT_IN_KEY = (
    "run_name", "variants", "without_a", "full", "train_texts", "validation_texts", "device", "tokens_per_batch",
    "gradient_checkpointing", "checkpoint_every", "compile_blocks", "sharded",
)  # fmt: skip

Observe = Callable[[str, PreTrainedModel], dict[str, Any]]


class OutOfMemory(RuntimeError):
    """The device ran out of memory; says which setting to lower and where the checkpoint lies."""


@dataclass(frozen=True)
class Measured:
    """What one model gives, whichever variant asks: the end of a stage is the start of what comes after it."""

    observed: dict[str, Any] | None  # what `observe` returned, None if it was not asked
    validation_loss: float  # mean nats per learned token


@dataclass(frozen=True)
class FineTuned:
    """A finished variant."""

    folder: Path
    losses: pd.DataFrame  # one row per optimiser step (kind "step") and per epoch (kind "epoch")
    stages: pd.DataFrame  # one row per stage, fields of `StageRun`
    observed: dict[str, dict[str, Any]] = field(default_factory=dict)  # by stage key, "start" first

    def measured(self, stage: str) -> Measured:
        """The model after a stage, or before the first ("start"), for variants that begin with the same one."""
        epochs = self.losses[self.losses.kind == "epoch"]
        epoch = epochs.iloc[0] if stage == "start" else epochs[epochs.stage == stage].iloc[-1]
        return Measured(self.observed.get(stage), float(epoch.validation_loss))

    def to_dict(self) -> dict[str, Any]:
        """Return stages, epochs and observations as plain data, as `measured.stage_table` takes them."""
        epochs = self.losses[self.losses.kind == "epoch"]
        return {
            "stages": self.stages.to_dict("records"),
            "epochs": epochs[["stage", "epoch", "loss", "validation_loss"]].to_dict("records"),
            "observed": self.observed,
        }


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
    start: Measured | None = None,
) -> FineTuned:
    """Run the stages of a configuration one after the other, continuing whatever was done before.

    Args:
        model: plain untied model with the rows of phase 1 in place (or the base model); changed in place.
        folder: `runs/<name>/04_fine_tuning/<variant>`.
        limit: V + N, the ids that count.
        new_ids: ids of the new tokens, `range(V, V + N)`; empty for the base model.
        origin: where the model comes from (base, extension, rows); export reads it again, and it is part of the key.
        observe: called with "start" and each finished stage's key; what it returns is stored as JSON.
        start: the model as it comes, where another variant has measured it already.

    Raises:
        runs.KeyMismatchError: the folder holds work with other settings.
        OutOfMemory: the device ran out of memory; the last checkpoint is kept.
        RuntimeError: a tensor that had to stay moved, or a new row with examples did not move.
    """
    key = {
        **{name: value for name, value in config.to_dict().items() if name not in _NOT_IN_KEY},
        "limit": limit,
        "new_ids": [new_ids.start, new_ids.stop],
        "origin": origin or {},
        "train": train.fingerprint(),
        "validation": validation.fingerprint(),
    }
    processes = PartialState(cpu=on_cpu(model, config))
    plan = stages.plan_stages(config)
    check_start(model, plan, config, train, validation, limit, new_ids)
    finished = claim(folder, key, processes) == "finished"
    if finished or config.sharded:  # a sharded model cannot be looked at
        observe = None
    known = start.observed if start and observe else None
    loss = start.validation_loss if start else None
    observed = {"start": _observed("start", model, folder / "start", observe, processes, known)}
    done: list[tuple[StageRun, list[Record]]] = []
    current: Any = model  # wrapped by peft after stage b
    for stage in plan:
        place = folder / stage.key
        if not finished and (plain := merged(current)) is not current:
            current, loss = plain, None  # merging rounds in the dtype of the weights
        if (place / "result.json").exists():
            current = current if finished else load_stage(current, place, new_ids=new_ids)
            result = StageRun(**files.read_json(place / "result.json"))
            done.append((result, files.read_jsonl(place / "losses.jsonl")))
            observed[stage.key] = _observed(stage.key, current, place, None, processes)
        else:
            place.mkdir(parents=True, exist_ok=True)
            settings = replace(config, compile_blocks=fusing.settled(config.compile_blocks, place))
            training = StageTraining(
                current, stage, train, validation, settings, limit=limit, new_ids=new_ids, start_loss=loss
            )
            result, records = run_stage(training, place)
            _store(training, place)
            current = training.trained
            del training  # and with it the optimiser's memory
            observed[stage.key] = _observed(stage.key, current, place, observe, processes)
            processes.wait_for_everyone()
            if processes.is_main_process:
                files.write_json(place / "result.json", vars(result))
                (place / FILE).unlink(missing_ok=True)
            processes.wait_for_everyone()
            done.append((result, records))
            if config.sharded:
                break  # weights that were sharded do not come back together: the next launch does the next stage
        loss = result.validation_loss
    if not finished and processes.is_main_process and len(done) == len(plan):
        counts = train.occurrences(new_ids.start, len(new_ids))
        unseen = [new_ids.start + number for number, count in enumerate(counts) if not count]
        runs.finish(folder, stages=[stage.key for stage in plan], new_ids_without_examples=unseen)
    processes.wait_for_everyone()
    losses = pd.DataFrame([record for _, records in done for record in records])
    seen = {stage: value for stage, value in observed.items() if value is not None}
    return FineTuned(folder, losses, pd.DataFrame([vars(result) for result, _ in done]), seen)


def check_start(
    model: PreTrainedModel,
    plan: Sequence[stages.Stage],
    config: FineTuneConfig,
    train: ExampleSet,
    validation: ExampleSet,
    limit: int,
    new_ids: range,
) -> None:
    """Refuse, before anything is written, what would stop one of the stages at its end.

    Raises:
        ValueError: the family or the matrices do not fit, no blocks are found, a weight is not finite, or a text holds
            an id outside V + N.
    """
    for stage in plan:
        stages.check_stage(model, stage, config, new_ids)
    check_shape(model)
    check_finite(model)
    rows = len(stages.matrices_of(model)[1])
    if limit > rows:
        raise ValueError(
            f"texts may hold {limit} ids, the model has {rows} rows: extend it with models.with_extra_rows"
        )
    for name, part in (("training", train), ("validation", validation)):
        for number, example in enumerate(part.examples):
            if len(odd := example.ids[(example.ids < 0) | (example.ids >= limit)]):
                raise ValueError(
                    f"{name} text {number} holds id {odd[0]}, expected ids from 0 to {limit - 1}: it was encoded by "
                    "another tokenizer than the model's"
                )


def run_stage(training: StageTraining, folder: Path) -> tuple[StageRun, list[Record]]:
    """Train a new stage, from its checkpoint when there is one; `training.trained` is then frozen, in evaluation mode.

    Checkpoint and losses go to the folder.

    Raises:
        OutOfMemory: names the setting to lower; the checkpoint is kept.
        SpaceError: the stage's files would not fit on the disk; no step was taken.
        RuntimeError: a frozen tensor moved, or a new row with examples did not.
    """
    stage, config = training.stage, training.config
    if training.accelerator.is_main_process:
        # a checkpoint of weights and two moments, and the result beside it
        moved = sum(p.numel() * p.element_size() for p in training.parameters.values())
        folders.require_space(folder, 4 * moved, f"stage {stage.key}", "make room, or use another disk (VOCABX_RUNS)")
        files.write_json(folder / "trainable.json", training.table.to_dict("records"))
        fusing.settle(training.model, folder)
        if training.note:
            print(training.note)
    title = f"{folder.parent.name} {stage.key}: {stage.title}"
    try:
        records = carry_out(
            training, folder, "losses.jsonl", title=title, every=config.checkpoint_every, processes=PartialState()
        )
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "allocate memory" not in str(error):
            raise
        kept = folder / FILE
        further = "" if config.gradient_checkpointing == "always" else ", or set gradient_checkpointing='always'"
        raise OutOfMemory(
            f"out of memory with tokens_per_batch={config.tokens_per_batch}: halve it (tokens_per_step may stay, so "
            f"the result stays the same){further}, and run again; "
            + (f"it continues from {kept}" if kept.exists() else "no step was finished yet")
        ) from error
    result = training.result()
    if not config.sharded:
        training.close()
    return result, records


def _store(training: StageTraining, folder: Path) -> None:
    """Write what a stage moved; every process has to call it."""
    state, rows = {name: whole(p) for name, p in training.parameters.items()}, training.rows_before
    if training.tuned.new_input is not None:
        dtype = training.tuned.dtype
        rows = (state.pop("new_input").to(dtype), state.pop("new_head").to(dtype))
    if training.accelerator.is_main_process:
        save_stage(training.trained, training.stage, folder, state, new_ids=training.new_ids, rows=rows)


def _observed(
    name: str,
    model: Any,
    place: Path,
    observe: Observe | None,
    processes: PartialState,
    known: dict[str, Any] | None = None,
) -> dict[str, Any] | None:
    """What was stored of a model, or what is seen of it now; only the first process looks."""
    path = place / "observed.json"
    if path.exists():
        found: dict[str, Any] = files.read_json(path)
        return found
    if observe is None or not processes.is_main_process:
        return None
    seen = observe(name, model) if known is None else known
    files.write_json(path, seen)
    return seen
