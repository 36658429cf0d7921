"""The stage behind notebook 03: examples and teachers from notebook 01's files, and the variants one after another."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vocabx_utils import files, runs
from vocabx_utils.config import Phase1Config, check_shared, load_profile, notebook_params
from vocabx_utils.models import BaseModel, check_finite, extension_name, load_base_model, require_tokenizer
from vocabx_utils.rows import epoch_files, read_epoch
from vocabx_utils.training.distillation import Phase1Data, Starts, VariantResult, parse_variant, train_variant
from vocabx_utils.training.examples import ExampleSet, choose_windows, whole_texts
from vocabx_utils.training.extended import ExtendedModel
from vocabx_utils.training.group import Group
from vocabx_utils.training.stages import compile_blocks
from vocabx_utils.training.starts import run_texts
from vocabx_utils.training.teacher import teacher_cache
from vocabx_utils.vocabulary.alignment import AlignedText, align_texts
from vocabx_utils.vocabulary.initialization import require_focus
from vocabx_utils.vocabulary.tokens import Extension, load_extension

__all__ = ["Phase1Stage", "final_model", "prepare_phase1", "token_table", "train_stage"]


@dataclass(frozen=True)
class Phase1Stage:
    """What every variant of a run shares.

    Attributes:
        folder: of the stage.
        base: frozen base model.
        extension: of notebook 01.
        data: examples and teacher caches.
        aligned: aligned texts by split.
    """

    folder: Path
    base: BaseModel
    extension: Extension
    data: Phase1Data
    aligned: dict[str, list[AlignedText]]


def prepare_phase1(
    run: runs.Run,
    config: Phase1Config,
    *,
    base: BaseModel | None = None,
    group: Group | None = None,
    tell: Callable[[str], None] = print,
) -> Phase1Stage:
    """Align notebook 01's texts, cut examples and run the teacher once.

    Args:
        run: the run.
        config: of the stage.
        base: the base model, loaded from ``config.model`` unless given.
        group: processes that share the teacher's work.
        tell: receives the size of each teacher cache before it is written.

    Returns:
        The stage, ready for `train_stage`.

    Raises:
        vocabx_utils.runs.MissingStageError: notebook 01 has not run.
        ValueError: the extension belongs to another base model or tokenizer, a variant's name is wrong, a weight is
            not finite, or no text holds a new token.
    """
    group = group or Group()
    extension = load_extension(run.require("01", "extension"))
    base = base or load_base_model(config.model, device=config.device, dtype=config.dtype)
    if base.vocab_size != extension.V:
        raise ValueError(
            f"the extension of run {run.name!r} starts at id {extension.V}, the model {config.model!r} has "
            f"{base.vocab_size} ids: run notebook 01 with this model, or choose the model it was run with"
        )
    require_tokenizer(base, extension.original, extension_name(run))
    check_finite(base.model, base.name)
    objectives = [parse_variant(name).objective for name in config.variants]
    layers = {o.layer for o in objectives if o is not None and o.layer != -1}
    _check_layers(base, layers)
    if any(parse_variant(name).init == "focus" for name in config.variants):
        require_focus()
    if config.compile_blocks:
        compile_blocks(base.model)
    folder = run.stage("03")
    aligned: dict[str, list[AlignedText]] = {}
    sets: dict[str, ExampleSet] = {}
    for split, limit in (("train", config.train_limit), ("validation", config.validation_limit)):
        texts = [item.text for item in run_texts(run, split, base.tokenizer, limit or None)]
        aligned[split] = align_texts(extension, texts)
        sets[split] = _examples(aligned[split], extension, config, split)

    def cache(split: str, layer: int = -1) -> Any:
        place = folder / "teacher" / (split if layer == -1 else f"{split}_layer_{layer}")
        return teacher_cache(
            base, sets[split], place, layer=layer, token_budget=config.token_budget, tell=tell,
            rank=group.rank, world=group.world, barrier=group.barrier,
            prefix_bytes=0 if config.compile_blocks else None,
        ).to(base.device)  # fmt: skip

    data = Phase1Data(
        sets["train"],
        sets["validation"],
        cache("train"),
        cache("validation"),
        {layer: cache("train", layer) for layer in sorted(layers)},
        aligned["train"],
    )
    return Phase1Stage(folder, base, extension, data, aligned)


def _check_layers(base: BaseModel, layers: set[int]) -> None:
    count = base.model.config.get_text_config().num_hidden_layers
    if beyond := sorted(layer for layer in layers if layer > count):
        raise ValueError(f"layers {beyond} of the variants' names do not exist: {base.name} has layers 0 to {count}")


def _examples(aligned: Sequence[AlignedText], extension: Extension, config: Phase1Config, split: str) -> ExampleSet:
    if config.window == 0:
        return whole_texts(aligned, extension.V, extension.N, max_length=config.max_length)
    limit = config.train_windows if split == "train" else config.validation_windows
    return choose_windows(
        aligned, extension.V, extension.N, window=config.window, limit=limit, seed=config.seed
    )  # fmt: skip


def train_stage(stage: Phase1Stage, config: Phase1Config, *, group: Group | None = None) -> dict[str, VariantResult]:
    """Train every variant of the configuration; finished ones are read, killed ones go on.

    Args:
        stage: from `prepare_phase1`.
        config: of the stage.
        group: processes that share each step.

    Returns:
        Results by variant name.
    """
    tokenizer = stage.extension.extended

    def spell(token: int) -> str:
        return str(tokenizer.convert_ids_to_tokens(token))

    starts: Starts = {}
    return {
        name: train_variant(
            name,
            stage.base,
            stage.extension.tokens,
            stage.data,
            config,
            stage.folder / name,
            group=group,
            spell=spell,
            starts=starts,
        )
        for name in config.variants
    }


def final_model(stage: Phase1Stage, variant: str, epoch: int | None = None) -> ExtendedModel:
    """Load a variant's rows.

    Args:
        stage: from `prepare_phase1`.
        variant: a finished variant.
        epoch: which epoch, the last by default.
    """
    rows = read_epoch(stage.folder / variant / "rows", epoch)
    return ExtendedModel(stage.base, rows["input_rows"], rows["head_rows"], stage.extension.V)


def token_table(stage: Phase1Stage, variant: str) -> pd.DataFrame:
    """Return one line per new token: how it was seen, and what training did to it.

    Args:
        stage: from `prepare_phase1`.
        variant: a finished variant.

    Returns:
        Columns: id, text, subtokens (their number), train_count, places (validation), kl_start, kl_end (nats at the
        last subtoken, NaN where validation has none), ce_start, ce_end (as a target), moved (norm of the change of the
        input row over the norm of its start).
    """
    folder = stage.folder / variant
    tokens, rows = epoch_files(folder / "tokens"), epoch_files(folder / "rows")
    start, end = (files.read_tensors(tokens[epoch]) for epoch in (min(tokens), max(tokens)))
    before, after = (files.read_tensors(rows[epoch])["input_rows"] for epoch in (min(rows), max(rows)))

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


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the variants of a profile: the entry point of ``accelerate launch``."""
    import argparse
    import dataclasses

    from vocabx_utils.training.group import join_group

    parser = argparse.ArgumentParser(description="Phase 1 in one process or several (accelerate launch).")
    parser.add_argument("--config", default="quick", help="profile: a shipped name or a YAML file")
    parser.add_argument("--run-name", help="run folder, over the profile's")
    parser.add_argument("--variants", nargs="+", help="variants, over the profile's")
    given = parser.parse_args(sys.argv[1:] if arguments is None else arguments)
    declared = {field.name: None for field in dataclasses.fields(Phase1Config)}
    profile = load_profile(given.config)
    check_shared(profile, given.config)
    params = notebook_params(profile, "03_phase1_training", declared)
    config = Phase1Config.from_params(**params)
    if given.run_name:
        config = replace(config, run_name=given.run_name)
    if given.variants:
        config = replace(config, variants=tuple(given.variants))
    with join_group() as group:
        _train_in(group, config)


def _train_in(group: Group, config: Phase1Config) -> None:
    import os

    if group.world > 1 and config.device == "auto":
        import torch

        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if torch.cuda.is_available() else "cpu"
        config = replace(config, device=device)
    stage = prepare_phase1(
        runs.open_run(config.run_name), config, group=group, tell=print if group.leads else lambda _: None
    )
    for name, result in train_stage(stage, config, group=group).items():
        if group.leads:
            last = result.metrics[-1]
            print(f"{name}: KL last {last['kl_last']:.4f}, CE {last['ce']:.4f}, {last['bpb']:.4f} bits per byte")
