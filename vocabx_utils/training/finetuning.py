"""Phase 2: unfreeze the model step by step, resumable at any moment.

One loop serves every stage: the plan of batches is a function of the seed, an optimiser is made new for each stage
(momentum of another stage would move rows that are frozen now), and a checkpoint holds only what moves. It runs on
one process, or on many through ``accelerate launch -m vocabx_utils.training.finetuning --config FILE``.

Legend: V original vocabulary, N new tokens, T tokens of a text, B texts of a batch, D model width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, PartialState
from torch import Tensor
from transformers import PreTrainedModel

from vocabx_utils import files, folders, runs
from vocabx_utils.config import FineTuneConfig
from vocabx_utils.models import check_finite
from vocabx_utils.training import resume, stages
from vocabx_utils.training.batches import ExampleSet
from vocabx_utils.training.loop import Loop, OutOfMemory, StageRun
from vocabx_utils.training.stage_files import load_stage, new_rows_of, save_sharded, save_stage
from vocabx_utils.training.tuned import Tuned, check_shape

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FineTuned", "Measured", "OutOfMemory", "StageRun", "fine_tune", "run_stage"]

# Settings that bound memory or say where to compute: they do not change the result, so a run may continue with others.
_NOT_IN_KEY = (
    "run_name",
    "variants",
    "without_a",
    "full",
    "train_texts",
    "validation_texts",
    "device",
    "tokens_per_batch",
    "gradient_checkpointing",
    "checkpoint_every",
    "compile_blocks",
    "sharded",
)

Observe = Callable[[str, PreTrainedModel], dict[str, Any]]


@dataclass(frozen=True)
class Measured:
    """What one model gives, whichever variant asks: the end of a stage is the start of what comes after it.

    Attributes:
        observed: what ``observe`` returned, None if it was not asked.
        validation_loss: mean nats per learned token.
    """

    observed: dict[str, Any] | None
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

    def measured(self, stage: str) -> Measured:
        """The model after a stage, or before the first ("start"), for variants that begin with the same one."""
        epochs = self.losses[self.losses.kind == "epoch"]
        epoch = epochs.iloc[0] if stage == "start" else epochs[epochs.stage == stage].iloc[-1]
        return Measured(self.observed.get(stage), float(epoch.validation_loss))


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
        train: encoded training texts.
        validation: encoded validation texts.
        folder: ``runs/<name>/04_fine_tuning/<variant>``.
        config: stages, rates, precision.
        limit: V + N, the ids that count.
        new_ids: ids of the new tokens, ``range(V, V + N)``; empty for the base model.
        origin: where the model comes from (base, extension, rows); export reads it again, and it is part of the key.
        observe: called with "start" and each finished stage's key; what it returns is stored as JSON.
        start: the model as it comes, where another variant has measured it already.

    Returns:
        The finished variant.

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
        "train": _digest(train),
        "validation": _digest(validation),
    }
    processes = PartialState(cpu=_on_cpu(model, config))
    plan = stages.plan_stages(config)
    check_start(model, plan, config, train, validation, limit, new_ids)
    with processes.main_process_first():
        claimed = runs.claim(folder, key, writes=processes.is_main_process)
    if claimed != "finished":
        observe = None if config.sharded else observe
        known = start.observed if start else None
        _observe("start", model, folder / "start", observe if known is None else lambda *_: known, processes)
        loss = start.validation_loss if start else None
        for stage in plan:
            shared = (train, validation, folder, config, limit, new_ids, observe, processes)
            model, ran = _finish_stage(model, stage, *shared, loss)
            if ran and config.sharded:
                break  # weights that were sharded do not come back together: the next launch does the next stage
            loss = files.read_json(folder / stage.key / "result.json")["validation_loss"]
        done = [stage.key for stage in plan if (folder / stage.key / "result.json").exists()]
        if processes.is_main_process and len(done) == len(plan):
            counts = train.occurrences(new_ids.start, len(new_ids))
            unseen = [new_ids.start + number for number, count in enumerate(counts) if not count]
            runs.finish(folder, stages=done, new_ids_without_examples=unseen)
        processes.wait_for_everyone()
    return _read_back(folder, [stage.key for stage in plan])


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

    Args:
        model: as it comes.
        plan: all stages.
        config: of the stages.
        train, validation: encoded texts.
        limit: V + N.
        new_ids: ids of the new tokens.

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
    start_loss: float | None = None,
) -> tuple[Any, StageRun]:
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
        start_loss: validation loss of the model as it comes, measured here unless given.

    Returns:
        The model (in evaluation mode, frozen) and what the stage did.

    Raises:
        OutOfMemory: names the setting to lower; the checkpoint is kept.
        SpaceError: the stage's files would not fit on the disk; no step was taken.
        RuntimeError: a frozen tensor moved, or a new row with examples did not.
    """
    accelerator = Accelerator(cpu=_on_cpu(model, config))
    dtype = stages.matrices_of(model)[1].dtype
    trained = stages.open_stage(model, stage, config, new_ids=new_ids)
    rows_before = new_rows_of(model, new_ids)
    tuned = Tuned(model, limit, dtype, new_ids, train_rows=stage.key == "b" and config.rows_in_b)
    frozen_before = stages.checksums(tuned)
    if accelerator.is_main_process:
        _require_space(tuned, stage, folder)
        files.write_json(folder / "trainable.json", stages.trainable_table(tuned).to_dict("records"))
    _prepare(model, config, stage)
    loop = Loop(accelerator, tuned, stage, train, validation, folder, config, start_loss)
    if config.sharded:  # now that each process holds its part only
        frozen_before = stages.checksums(tuned)
    result = loop.run(len(frozen_before))
    changed = stages.moved(frozen_before, stages.checksums(tuned))
    if changed:
        raise RuntimeError(f"stage {stage.key} moved {len(changed)} frozen tensors, for example {changed[:3]}")
    if config.sharded:
        _save_sharded(trained, stage, tuned, folder, accelerator, new_ids, rows_before)
        return trained, result
    _close(tuned, model, stage, new_ids)
    _check_rows(stage, config, rows_before, new_rows_of(model, new_ids), train, new_ids)
    trained.eval().requires_grad_(False)
    return trained, result


def _finish_stage(
    model: Any,
    stage: stages.Stage,
    train: ExampleSet,
    validation: ExampleSet,
    folder: Path,
    config: FineTuneConfig,
    limit: int,
    new_ids: range,
    observe: Observe | None,
    processes: PartialState,
    start_loss: float | None,
) -> tuple[Any, bool]:
    """Load a finished stage, or run and store it; an adapter of an earlier stage is merged first.

    Returns:
        The model, and whether the stage ran now.
    """
    if hasattr(model, "merge_and_unload"):
        model, start_loss = model.merge_and_unload(), None  # merging rounds in the dtype of the weights
    place = folder / stage.key
    if (place / "result.json").exists():
        return load_stage(model, place, new_ids=new_ids), False
    place.mkdir(parents=True, exist_ok=True)
    trained, result = run_stage(
        model, stage, train, validation, place, config, limit=limit, new_ids=new_ids, start_loss=start_loss
    )
    if processes.is_main_process and not config.sharded:
        save_stage(trained, stage, place, new_ids=new_ids, refreeze=config.c_refreeze)
    _observe(stage.key, trained, place, observe, processes)
    processes.wait_for_everyone()
    if processes.is_main_process:
        files.write_json(place / "result.json", vars(result))
        (place / resume.FILE).unlink(missing_ok=True)
    processes.wait_for_everyone()
    return trained, True


def _save_sharded(
    trained: Any,
    stage: stages.Stage,
    tuned: Tuned,
    folder: Path,
    accelerator: Accelerator,
    new_ids: range,
    rows: tuple[Tensor, Tensor],
) -> None:
    state = resume.whole(tuned)
    if tuned.new_input is not None:
        rows = (state.pop("new_input").to(tuned.dtype), state.pop("new_head").to(tuned.dtype))
    if accelerator.is_main_process:
        save_sharded(trained, stage, folder, state, new_ids=new_ids, rows=rows)


def _observe(name: str, model: Any, place: Path, observe: Observe | None, processes: PartialState) -> None:
    path = place / "observed.json"
    if observe is not None and processes.is_main_process and not path.exists():
        place.mkdir(parents=True, exist_ok=True)
        files.write_json(path, observe(name, model))


def _read_back(folder: Path, keys: list[str]) -> FineTuned:
    import pandas as pd

    keys = [key for key in keys if (folder / key / "result.json").exists()]
    records = [record for key in keys for record in files.read_jsonl(folder / key / "losses.jsonl")]
    results = [files.read_json(folder / key / "result.json") for key in keys]
    seen = {key: folder / key / "observed.json" for key in ["start", *keys]}
    observed = {key: files.read_json(path) for key, path in seen.items() if path.exists()}
    return FineTuned(folder, pd.DataFrame(records), pd.DataFrame(results), observed)


def _close(tuned: Tuned, model: PreTrainedModel, stage: stages.Stage, new_ids: range) -> None:
    """Back to the model's own dtype; rows that trained beside the matrices are written into them."""
    disable = getattr(model, "activation_checkpointing_disable", None) or model.gradient_checkpointing_disable
    disable()
    _cast_adapter_inputs(model, True)
    for block in stages.blocks_of(model):
        block._compiled_call_impl = None
    if stage.key != "b":
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.to(tuned.dtype)
    if tuned.new_input is not None and tuned.new_head is not None:
        rows = slice(new_ids.start, new_ids.stop)
        embedding, head = stages.matrices_of(model)
        embedding.data[rows] = tuned.new_input.data.to(tuned.dtype)
        head.data[rows] = tuned.new_head.data.to(tuned.dtype)


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


def _prepare(model: PreTrainedModel, config: FineTuneConfig, stage: stages.Stage) -> None:
    """Gradient checkpointing and compilation as configured; both are undone when the stage closes."""
    wanted = config.gradient_checkpointing
    if wanted == "always" or (wanted == "auto" and stage.key.startswith("c")):
        # renamed in transformers 5.2x; both names take the same keyword arguments in the same place
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    # under autocast the products cast for themselves; peft's own cast to float32 would only cost memory traffic
    _cast_adapter_inputs(model, stages.matrices_of(model)[1].dtype == torch.float32)
    if config.compile_blocks:
        stages.compile_blocks(model)


def _cast_adapter_inputs(model: PreTrainedModel, cast: bool) -> None:
    layers: Any = model.modules()
    for module in layers:
        if hasattr(module, "lora_A"):
            module.cast_input_dtype_enabled = cast


def _on_cpu(model: PreTrainedModel, config: FineTuneConfig) -> bool:
    """Sharded runs load on the CPU and shard to the GPUs; others train where the model lies."""
    return not torch.cuda.is_available() if config.sharded else model.device.type == "cpu"


def _digest(texts: ExampleSet) -> str:
    from vocabx_utils import corpus

    return corpus.fingerprint(f"{example.first_target}:{','.join(map(str, example.ids))}" for example in texts.examples)


if __name__ == "__main__":
    from vocabx_utils.training.launch import main

    main()


def _require_space(tuned: Tuned, stage: stages.Stage, folder: Path) -> None:
    """Refuse a stage whose files would not fit: a checkpoint of weights and two moments, and the result beside it."""
    moved = sum(p.numel() * p.element_size() for p in tuned.parameters() if p.requires_grad)
    folders.require_space(folder, 4 * moved, f"stage {stage.key}", "make room, or use another disk (VOCABX_RUNS)")
