"""The stages of phase 2: which tensors each one frees, proven and not trusted.

a   the whole input embedding and the whole head; all blocks frozen
b   LoRA on every linear layer of every block; everything else frozen
c1  the first half of the blocks, whole; c2 the second half (the first is frozen again unless told otherwise)

Legend: V original vocabulary, N new tokens, R matrix rows, D model width.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from vocabx_utils.config import FineTuneConfig
from vocabx_utils.training.checks import bits_checksum


@dataclass(frozen=True)
class Stage:
    """One stage: what moves, for how long, how fast."""

    key: str  # `a`, `b`, `c1` or `c2`
    title: str  # for tables and progress
    epochs: int
    learning_rate: float  # peak rate of AdamW
    warmup: float  # share of the steps that the rate takes to climb linearly from 0
    schedule: Literal["linear", "constant"]  # what follows: linear to 0, or constant


def plan_stages(config: FineTuneConfig) -> tuple[Stage, ...]:
    """Spell out the stages that a configuration names, "c" as its two halves."""
    half = "half of the blocks"
    c = config.c_epochs, config.c_rate, config.c_warmup
    known = {
        "a": [Stage("a", "whole embedding and head", config.a_epochs, config.a_rate, config.a_warmup, "linear")],
        "b": [Stage("b", f"LoRA rank {config.lora_rank}", config.b_epochs, config.b_rate, config.b_warmup, "constant")],
        "c": [Stage("c1", f"first {half}", *c, "constant"), Stage("c2", f"second {half}", *c, "constant")],
    }
    return tuple(stage for key in config.stages for stage in known[key])


def open_stage(model: PreTrainedModel, stage: Stage, config: FineTuneConfig, *, new_ids: range = range(0)) -> Any:
    """Free exactly the tensors of a stage, in float32, freeze the rest, and return the model to train.

    The model is plain and untied; for stage b peft wraps it in place. ValueError where the matrices do not reach the
    new ids or are tied, or the LoRA pattern matches nothing.
    """
    check_extended(model, new_ids)
    model.requires_grad_(False)
    trained: Any = model
    if stage.key == "b":
        trained = _add_lora(model, config)
    else:
        for parameter in freed_by(model, stage, refreeze=config.c_refreeze).values():
            parameter.data = parameter.data.float()
            parameter.requires_grad_(True)
    _assert_trainable(trained, model, stage, config)
    return trained


def check_extended(model: PreTrainedModel, new_ids: range) -> None:
    """Refuse, with a ValueError, a model whose matrices cannot hold the new ids, or whose head is tied."""
    embedding, head = matrices_of(model)
    needed = new_ids.stop if len(new_ids) else 0
    if min(len(embedding), len(head)) < needed:
        raise ValueError(
            f"the base model has {len(embedding)} input rows and {len(head)} head rows, but the new tokens need ids "
            f"up to {needed - 1}; extend it first with models.with_extra_rows(base, input_rows, head_rows, first_id)"
        )
    if embedding is head or (embedding.data_ptr() == head.data_ptr() and not head.is_meta):
        raise ValueError("input embedding and head are tied; untie them first with models.untie(model)")


def matrices_of(model: Any) -> tuple[nn.Parameter, nn.Parameter]:
    """Return input embedding and head, both (R, D), of a plain model or of the one inside a peft wrapper."""
    return model.get_input_embeddings().weight, model.get_output_embeddings().weight


def blocks_of(model: PreTrainedModel) -> nn.ModuleList:
    """Return the blocks of a decoder, in order: its one list of as many modules as the configuration has layers.

    Families name that list differently (`layers`, `h`, `blocks`). ValueError where there is none, or more than one.
    """
    return _block_list(model)[1]


def block_prefix(model: PreTrainedModel) -> str:
    """Name the list of blocks within the model, `model.layers` for example."""
    return _block_list(model)[0]


def freed_by(model: PreTrainedModel, stage: Stage, *, refreeze: bool) -> dict[str, nn.Parameter]:
    """Return the tensors of a plain model that stage a, c1 or c2 frees, by the names under which they are stored.

    With `refreeze`, c2 leaves the first half frozen.
    """
    if stage.key == "a":
        return dict(zip(("input", "head"), matrices_of(model), strict=True))
    prefix, blocks = _block_list(model)
    half = len(blocks) // 2
    chosen = range(half) if stage.key == "c1" else range(half if refreeze else 0, len(blocks))
    return {f"{prefix}.{k}.{name}": parameter for k in chosen for name, parameter in blocks[k].named_parameters()}


def check_stage(model: PreTrainedModel, stage: Stage, config: FineTuneConfig, new_ids: range) -> None:
    """Refuse, with a ValueError, what would stop a stage at its start or end.

    That is no blocks, or too few to halve, no linear layer that the LoRA pattern matches, tied or too small matrices.
    """
    check_extended(model, new_ids)
    if len(blocks_of(model)) < 2 and stage.key.startswith("c"):
        raise ValueError(f"{type(model).__name__} has one block, which cannot be trained by halves: leave stage c out")
    if stage.key == "b":
        _lora_pattern(model, config)


def _block_list(model: PreTrainedModel) -> tuple[str, nn.ModuleList]:
    """The blocks, and the name of their list within the model."""
    count = model.config.get_text_config().num_hidden_layers
    decoder: Any = model
    within = {id(module) for module in decoder.get_decoder().modules()}
    found = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and id(module) in within
    ]
    # lists inside a block, of experts for example, may happen to be as long
    outer = [(name, module) for name, module in found if not any(name.startswith(f"{other}.") for other, _ in found)]
    if len(outer) != 1:
        raise ValueError(
            f"{type(model).__name__} has {len(outer)} lists of {count} modules {[name for name, _ in outer]}; expected "
            "one, its blocks: this architecture cannot be fine-tuned block by block"
        )
    return outer[0]


def trainable_table(model: nn.Module) -> pd.DataFrame:
    """List trainable tensors by group: group, tensors, parameters, dtype. Layer numbers are folded into `*`."""
    rows: dict[tuple[str, str], list[int]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            group = re.sub(r"^(base_model\.model\.|tuned\.)+", "", re.sub(r"\.\d+\.", ".*.", name))
            rows.setdefault((group, str(parameter.dtype).removeprefix("torch.")), []).append(parameter.numel())
    return pd.DataFrame(
        [(group, len(sizes), sum(sizes), dtype) for (group, dtype), sizes in rows.items()],
        columns=["group", "tensors", "parameters", "dtype"],
    )


@torch.no_grad()
def checksums(model: nn.Module) -> dict[str, int]:
    """Fingerprint each frozen tensor, buffers included, where it lies; each process vouches for its part of a shard."""
    frozen: list[tuple[str, Any]] = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
    tensors = [*frozen, *model.named_buffers()]
    return {name: bits_checksum(t.to_local() if hasattr(t, "to_local") else t) for name, t in tensors}


def moved(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Name the tensors whose bits differ, or that exist on one side only."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _add_lora(model: PreTrainedModel, config: FineTuneConfig) -> Any:
    """Adapters on every linear layer inside a block, by pattern: a head or an embedding can never be caught."""
    from peft import LoraConfig, get_peft_model

    pattern, hits = _lora_pattern(model, config)
    modules = dict(model.named_modules())
    lora = LoraConfig(
        fan_in_fan_out=any(isinstance(modules[name], Conv1D) for name in hits),
        r=config.lora_rank,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=pattern,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an older name
        torch.manual_seed(config.seed)
        empty = matrices_of(model)[0].is_meta  # weights are still to come, and those of the adapters with them
        return get_peft_model(model, lora, low_cpu_mem_usage=empty)  # type: ignore[arg-type]


def _lora_pattern(model: PreTrainedModel, config: FineTuneConfig) -> tuple[str, list[str]]:
    """The pattern of names that get an adapter, and the names that it matches."""
    prefix = block_prefix(model)
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear | Conv1D)]  # of GPT-2 too
    inside = [name for name in linear if name.startswith(f"{prefix}.")]
    leaves = "|".join(sorted({name.rsplit(".", 1)[-1] for name in inside}))
    pattern = config.lora_target or rf".*\.{prefix.rsplit('.', 1)[-1]}\.\d+\.(.*\.)?({leaves})"
    hits = [name for name in linear if re.fullmatch(pattern, name)]
    if not hits:
        raise ValueError(
            f"LoRA target pattern {pattern!r} matches none of the {len(linear)} linear layers; "
            f"names look like {linear[:3]}. The pattern must match a whole name; leave lora_target empty for all blocks"
        )
    outside = sorted(set(hits) - set(inside))
    if outside:
        raise ValueError(f"LoRA target pattern {pattern!r} also matches {outside}, which are not inside a block")
    return pattern, hits


def _assert_trainable(trained: nn.Module, model: PreTrainedModel, stage: Stage, config: FineTuneConfig) -> None:
    """The trainable set is derived a second time, from names, and has to agree."""
    free = {name for name, parameter in trained.named_parameters() if parameter.requires_grad}
    if stage.key == "b":
        expected = {name for name, _ in trained.named_parameters() if ".lora_A." in name or ".lora_B." in name}
    else:
        wanted = {id(parameter) for parameter in freed_by(model, stage, refreeze=config.c_refreeze).values()}
        expected = {name for name, parameter in trained.named_parameters() if id(parameter) in wanted}
    wrong_dtype = [n for n, p in trained.named_parameters() if p.requires_grad and p.dtype != torch.float32]
    if free != expected or not free or wrong_dtype:
        raise RuntimeError(
            f"stage {stage.key} would train {sorted(free ^ expected)[:5]} against its description"
            f"{f', or in low precision {wrong_dtype[:3]}' if wrong_dtype else ''}"
        )
