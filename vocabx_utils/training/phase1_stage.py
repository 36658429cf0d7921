"""Phase 1 in a run folder: the stage behind notebook 03, from notebook 01's files to one folder for each variant.

A variant writes, below its folder: `rows/epoch_NN.safetensors`, `tokens/epoch_NN.safetensors` (sums per new token),
`metrics.jsonl` (one line an epoch), `steps.jsonl` (one line a step), a checkpoint, and, when it is finished,
`provenance.json`. The arithmetic is in `phase1`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from accelerate import PartialState

from vocabx_utils import files, runs
from vocabx_utils.config import Phase1Config
from vocabx_utils.models import BaseModel, check_finite, load_base_model
from vocabx_utils.rows import NewToken, read_epoch
from vocabx_utils.student import Student
from vocabx_utils.tokenizer_files import extension_name, require_tokenizer
from vocabx_utils.training import fusing
from vocabx_utils.training.checks import (
    RowsNotTrainedError,
    bits_checksum,
    check_improved,
    check_judgeable,
    check_moved,
    count_spans,
    tell_spans,
)
from vocabx_utils.training.examples import AlignedSet
from vocabx_utils.training.loop import carry_out, claim
from vocabx_utils.training.objectives import parse_variant
from vocabx_utils.training.phase1 import Phase1Data, Phase1Training, Scores, new_student, prepare
from vocabx_utils.training.processes import leads, wait
from vocabx_utils.training.sharding import load_sharded_base, recompute_blocks
from vocabx_utils.training.starts import run_texts
from vocabx_utils.training.teacher import TeacherStates, teacher_cache
from vocabx_utils.vocabulary.initialization import require_focus
from vocabx_utils.vocabulary.tokens import Extension, load_extension

Starts = dict[tuple[int, ...], Scores]

# Settings that say where and how to compute, or choose texts that the fingerprints tell: a run may go on with others.
_NOT_IN_KEY = {
    "variants", "run_name", "model", "device", "dtype", "token_budget", "checkpoint_steps", "compile_blocks", "sharded",
    "gradient_checkpointing", "require_improvement", "train_limit", "validation_limit", "train_windows",
    "validation_windows",
}  # fmt: skip


_STORAGE = {"model": None, "bfloat16": torch.bfloat16, "float8": torch.float8_e4m3fn}


@dataclass(frozen=True)
class Phase1Stage:
    """What every variant of a run shares."""

    folder: Path
    base: BaseModel
    extension: Extension
    data: Phase1Data


@dataclass(frozen=True)
class VariantResult:
    """A finished variant."""

    folder: Path
    metrics: list[dict[str, Any]]  # one an epoch, epoch 0 first
    without_examples: list[int]  # ids of new tokens that no training example holds
    skipped_steps: int  # those that held nothing to learn from


def prepare_phase1(
    run: runs.Run,
    config: Phase1Config,
    *,
    base: BaseModel | None = None,
    processes: PartialState | None = None,
    tell: Callable[[str], None] = print,
) -> Phase1Stage:
    """Read notebook 01's files, check what can be known, and prepare examples and the teacher's states.

    Args:
        base: loaded from `config.model` unless given; with `gradient_checkpointing` its blocks are wrapped in place.
        tell: receives the size of each teacher cache before it is written.

    Raises:
        vocabx_utils.runs.MissingStageError: notebook 01 has not run.
        ValueError: the extension belongs to another base model or tokenizer, a variant's name is wrong, a weight is
            not finite, or no text holds a new token.
    """
    extension = load_extension(run.require("01", "extension"))
    if base is None and config.sharded:
        base = load_sharded_base(config.model, processes, dtype=config.dtype, tell=tell)
    elif base is None:
        base = load_base_model(config.model, device=config.device, dtype=config.dtype, quantization=config.quantization)
    if base.vocab_size != extension.V:
        raise ValueError(
            f"the extension of run {run.name!r} starts at id {extension.V}, the model {config.model!r} has "
            f"{base.vocab_size} ids: run notebook 01 with this model, or choose the model it was run with"
        )
    require_tokenizer(base, extension.original, extension_name(run))
    check_finite(base.model, base.name)
    if any(parse_variant(name).init == "focus" for name in config.variants):
        require_focus()
    if config.gradient_checkpointing == "always":
        recompute_blocks(base.model)
    folder, model = run.stage("03"), base
    config = replace(config, compile_blocks=fusing.settled(config.compile_blocks, folder))

    def cached(split: str, examples: AlignedSet, layer: int) -> TeacherStates:
        return teacher_cache(
            model, examples, layer=layer, token_budget=config.token_budget, likelihood=split == "validation",
            storage=_STORAGE[config.teacher_storage], tell=tell, processes=processes,
        ).to(model.device)  # fmt: skip

    train, validation = (
        [item.text for item in run_texts(run, split, base.tokenizer, limit or None)]
        for split, limit in (("train", config.train_limit), ("validation", config.validation_limit))
    )
    data = prepare(base, extension, train, validation, config, cached, tell)
    fusing.settle(base.model, folder)
    tell(tell_spans(data.train))
    return Phase1Stage(folder, base, extension, data)


def train_stage(
    stage: Phase1Stage, config: Phase1Config, *, processes: PartialState | None = None
) -> dict[str, VariantResult]:
    """Train every variant of the configuration; finished ones are read, killed ones go on."""
    starts: Starts = {}
    return {
        name: train_variant(
            name, stage.base, stage.extension.tokens, stage.data, config, stage.folder / name,
            processes=processes, spell=stage.extension.spell, starts=starts,
        )
        for name in config.variants
    }  # fmt: skip


def train_variant(
    name: str,
    base: BaseModel,
    tokens: Sequence[NewToken],
    data: Phase1Data,
    config: Phase1Config,
    folder: Path,
    *,
    processes: PartialState | None = None,
    spell: Callable[[int], str] = str,
    starts: Starts | None = None,
) -> VariantResult:
    """Train one variant, or go on with a killed one, or return a finished one.

    A resumed run ends with bit-identical rows on the CPU: order and schedule depend on seed and step alone, and
    the checkpoint holds both optimisers.

    Args:
        name: see `parse_variant`.
        base, tokens, data, config, spell: see `phase1.new_student` and `phase1.Phase1Training`.
        starts: validations of first values by their checksums, for one set of examples and one model; read, and added
            to, so that variants with the same first values share one.

    Raises:
        NonFiniteLossError: see there.
        RowsNotTrainedError: a frozen row moved, or a new row with training examples did not.
        NotImprovedError: `config.require_improvement` and a `kl_last` variant did not improve.
        vocabx_utils.runs.KeyMismatchError: the folder holds work with other settings.
    """
    recipe = parse_variant(name)
    key = {
        "variant": recipe.name,
        "settings": {k: v for k, v in config.key().items() if k not in _NOT_IN_KEY},
        "model": base.fingerprint,
        "dtype": str(base.dtype),
        "train": data.train.fingerprint(),
        "validation": data.validation.fingerprint(),
    }
    if claim(folder, key, processes) == "finished":
        sealed = runs.read_provenance(folder)
        metrics = files.read_jsonl(folder / "metrics.jsonl")
        return VariantResult(folder, metrics, sealed["without_examples"], sealed["skipped_steps"])
    check_judgeable(recipe, data.validation, config)
    student = new_student(recipe, base, tokens, config, data.aligned, spell)
    before = student.input_rows.detach().cpu().clone()
    frozen = [bits_checksum(rows) for rows in (base.input_rows, base.head_rows)]
    starts = {} if starts is None else starts
    first = bits_checksum(student.input_rows), bits_checksum(student.head_rows)
    training = Phase1Training(recipe, student, data, config, processes, starts.get(first))
    metrics = carry_out(
        training, folder, "metrics.jsonl", title=name, every=config.checkpoint_steps, processes=processes
    )
    if leads(processes) and training.total:
        pairs = training.log.values.tolist()
        files.write_jsonl(folder / "steps.jsonl", ({"input_loss": a, "head_loss": b} for a, b in pairs))
    if training.start is not None:
        starts[first] = training.start
    if [bits_checksum(rows) for rows in (base.input_rows, base.head_rows)] != frozen:
        raise RowsNotTrainedError(f"{name}: rows of the original vocabulary changed; they must stay bit-identical")
    missing = check_moved(recipe, before, student.input_rows.detach().cpu(), data.train)
    check_improved(recipe, metrics, config)
    if leads(processes):
        runs.finish(
            folder, seed=config.seed, without_examples=missing, skipped_steps=training.skipped,
            train_spans=count_spans(data.train),
            device=str(base.device), processes=1 if processes is None else processes.num_processes,
        )  # fmt: skip
    wait(processes)
    return VariantResult(folder, metrics, missing, training.skipped)


def final_model(stage: Phase1Stage, variant: str, epoch: int | None = None) -> Student:
    """Load the rows of a finished variant, of its last epoch by default."""
    rows = read_epoch(stage.folder / variant / "rows", epoch)
    return Student(stage.base.model, stage.extension.V, rows["input_rows"], rows["head_rows"])


def token_table(stage: Phase1Stage, variant: str) -> pd.DataFrame:
    """Return one line per new token of a finished variant: how it was seen, and what training did to it.

    Returns:
        Columns: id, text, subtokens (their number), train_count, places (validation), kl_start, kl_end (nats at the
        last subtoken, NaN where validation has none), ce_start, ce_end (as a target), moved (norm of the change of the
        input row over the norm of its start).
    """
    folder = stage.folder / variant
    start, end = (read_epoch(folder / "tokens", epoch) for epoch in (0, None))
    before, after = (read_epoch(folder / "rows", epoch)["input_rows"] for epoch in (0, None))

    def mean(sums: dict[str, Any], kind: str) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            return (sums[kind] / sums[f"{kind}_count"]).numpy()

    new = stage.extension.tokens
    return pd.DataFrame(
        {
            "id": [t.id for t in new],
            "text": [t.text for t in new],
            "subtokens": [len(t.subtokens) for t in new],
            "train_count": stage.data.train.counts(),
            "places": end["kl_count"].long().numpy(),
            "kl_start": mean(start, "kl"),
            "kl_end": mean(end, "kl"),
            "ce_start": mean(start, "ce"),
            "ce_end": mean(end, "ce"),
            "moved": ((after - before).norm(dim=1) / before.norm(dim=1)).numpy(),
        }
    )
