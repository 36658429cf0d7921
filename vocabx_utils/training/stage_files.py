"""What each stage leaves on disk, and how it is put back.

a    embeddings.safetensors: `input` and `head`, both (R, D)
b    adapter/: a plain peft adapter (LoRA only), and beside it new_rows.safetensors with the N new rows of both
     matrices. peft alone would save either no row or both whole matrices, depending on how the base was named
c    blocks.safetensors: the tensors of the half that moved, under their own names

Legend: R matrix rows, N new tokens, D model width.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from vocabx_utils import files
from vocabx_utils.training.stages import Stage, check_extended, freed_by, matrices_of


def merged(model: Any) -> Any:
    """Return the plain model: one that peft has wrapped with its adapters added into the weights."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model


def new_rows_of(model: PreTrainedModel, new_ids: range) -> tuple[Tensor, Tensor]:
    """Copy the new rows of input embedding and head, both (N, D); N is 0 for the base model."""
    rows = slice(new_ids.start, new_ids.stop)
    input_rows, head_rows = (matrix.detach()[rows].clone() for matrix in matrices_of(model))
    return input_rows, head_rows


def save_stage(
    model: Any, stage: Stage, folder: Path, state: dict[str, Tensor], *, new_ids: range, rows: tuple[Tensor, Tensor]
) -> None:
    """Write the tensors that a stage moved, from whole copies; the model's own may be sharded.

    Args:
        model: for stage b the peft model.
        state: trainable tensors by name within the module that trained.
        rows: new input and head rows, both (N, D), at the end of the stage.
    """
    named = {name.removeprefix("tuned."): tensor.to(rows[0].dtype) for name, tensor in state.items()}
    if stage.key == "b":
        lora = {f"base_model.model.{name}": state[f"tuned.{name}"] for name in named if "lora_" in name}
        save_adapter(model, folder / "adapter", new_ids=new_ids, state=lora, rows=rows)
    elif stage.key == "a":
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        tensors = {key: named[names[id(p)]] for key, p in freed_by(model, stage, refreeze=True).items()}
        files.write_tensors(folder / "embeddings.safetensors", tensors)
    else:
        files.write_tensors(folder / "blocks.safetensors", named)


def load_stage(model: PreTrainedModel, folder: Path, *, new_ids: range) -> Any:
    """Put a finished stage's tensors into the model that it started from, in place; after "b" peft wraps it.

    ValueError where the stored tensors have other shapes than the model's, FileNotFoundError where there is no stage.
    """
    if (folder / "adapter").is_dir():
        return load_adapter(model, folder / "adapter", new_ids=new_ids)
    if (folder / "embeddings.safetensors").exists():
        stored = files.read_tensors(folder / "embeddings.safetensors")
        targets = dict(zip(("input", "head"), matrices_of(model), strict=True))
    elif (folder / "blocks.safetensors").exists():
        stored = files.read_tensors(folder / "blocks.safetensors")
        targets = dict(model.named_parameters())
    else:
        raise FileNotFoundError(f"{folder} holds no finished stage: no adapter, embeddings or blocks")
    for name, tensor in stored.items():
        if name not in targets or targets[name].shape != tensor.shape:
            given = tuple(targets[name].shape) if name in targets else "missing"
            raise ValueError(
                f"{folder} stores {name} as {tuple(tensor.shape)}, the model has {given}: it belongs to another base"
            )
        targets[name].data.copy_(tensor)
    return model


def save_adapter(
    model: Any,
    folder: Path,
    *,
    new_ids: range,
    base: str | None = None,
    state: dict[str, Tensor] | None = None,
    rows: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Write the LoRA adapter `default` of a peft model, with the new rows beside it.

    Args:
        base: name or folder of the base to write into the adapter's configuration.
        state: gathered adapter weights, where the model's own are sharded.
        rows: new rows of both matrices, likewise.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if base is not None:
        model.peft_config["default"].base_model_name_or_path = base
    with files.os_errors(folder):
        model.save_pretrained(str(folder), save_embedding_layers=False, state_dict=state)
    (folder / "README.md").unlink(missing_ok=True)
    adapter = folder / "adapter_model.safetensors"  # once more, as peft does, but synced and with a checksum
    files.write_tensors(adapter, files.read_tensors(adapter), {"format": "pt"})
    inner = model.get_base_model()
    input_rows, head_rows = rows or new_rows_of(inner, new_ids)
    tensors = {
        "input_rows": input_rows,
        "head_rows": head_rows,
        "first_id": torch.tensor([new_ids.start]),
        "base_shape": torch.tensor(matrices_of(inner)[0].shape),
    }
    files.write_tensors(folder / "new_rows.safetensors", tensors)


def load_adapter(model: PreTrainedModel, folder: Path, *, new_ids: range) -> Any:
    """Put an adapter and its new rows on an extended base, in place: active and frozen.

    The model is plain and untied, and its matrices already have the new rows; the folder is of `save_adapter`.

    Raises:
        ValueError: the base was not extended, or is another model than the adapter was trained on.
        FileNotFoundError: no adapter there.
    """
    from peft import PeftConfig, PeftModel

    if not (folder / "adapter_config.json").exists():
        raise FileNotFoundError(f"{folder} holds no adapter_config.json; export or train stage b first")
    rows = files.read_tensors(folder / "new_rows.safetensors")
    count, first = len(rows["input_rows"]), int(rows["first_id"])
    have, head = matrices_of(model)
    if count and len(have) < first + count:
        raise ValueError(
            f"the adapter in {folder} needs {count} new rows from id {first}, the base has {len(have)} rows: extend "
            "it first with models.with_extra_rows(base, input_rows, head_rows, first_id) and the rows of "
            f"{folder / 'new_rows.safetensors'}"
        )
    check_extended(model, new_ids)
    if (count and range(first, first + count) != new_ids) or rows["input_rows"].shape[1] != have.shape[1]:
        raise ValueError(
            f"the adapter in {folder} was trained with new ids {first} to {first + count - 1} and width "
            f"{rows['input_rows'].shape[1]}; this base has {new_ids.start} to {new_ids.stop - 1} and width "
            f"{have.shape[1]}: it is an adapter for another base"
        )
    _check_adapter_names(model, folder)
    span = slice(first, first + count)
    have.data[span] = rows["input_rows"].to(have)
    head.data[span] = rows["head_rows"].to(head)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft asks transformers by an older name
        tuned = PeftModel.from_pretrained(model, str(folder), config=PeftConfig.from_pretrained(str(folder)))
    tuned.eval().requires_grad_(False)
    return tuned


def _check_adapter_names(model: PreTrainedModel, folder: Path) -> None:
    """Compare shapes before peft does, to say in words that the base is another one."""
    stored = files.read_tensors(folder / "adapter_model.safetensors")
    modules = dict(model.named_modules())
    for name, tensor in stored.items():
        if ".lora_A." not in name:
            continue
        place = name.removeprefix("base_model.model.").split(".lora_A.")[0]
        weight = getattr(modules.get(place), "weight", None)
        inputs = None if weight is None else weight.shape[0 if isinstance(modules[place], Conv1D) else 1]
        if inputs != tensor.shape[1]:
            found = "no such layer" if inputs is None else f"a layer of {inputs} inputs"
            raise ValueError(
                f"the adapter in {folder} expects {place} with {tensor.shape[1]} inputs, this base has {found}: "
                "it is an adapter for another base"
            )
