"""Checkpoints of a stage in the middle: what moves and its optimiser state, whole, on any number of processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

FILE = "checkpoint.safetensors"

__all__ = ["FILE", "gather", "restore", "whole"]


def gather(module: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Collect trainable tensors and optimiser state on the CPU.

    Every process has to call it; the first one gets the whole, also where the tensors are sharded.

    Returns:
        ``weights/NAME`` and, for each slot of the optimiser, ``SLOT/NAME``.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=True)
    weights, state = get_state_dict(module, optimiser, options=options)
    slots: Any = state["state"] if state else {}
    tensors: dict[str, Any] = {f"weights/{name}": value for name, value in weights.items()}
    for name, values in slots.items():
        tensors |= {f"{slot}/{name}": torch.as_tensor(value) for slot, value in values.items()}
    return tensors


def whole(module: nn.Module) -> dict[str, Tensor]:
    """The trainable tensors of a sharded module, put together on the CPU. Every process has to call it."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            full: Any = parameter
            tensors[name] = full.full_tensor().detach().cpu()
    return tensors


def restore(module: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put what ``gather`` collected back, on every process."""
    weights: dict[str, Any] = {}
    state: dict[str, Any] = {}
    for place, tensor in tensors.items():
        slot, name = place.split("/", 1)
        if slot == "weights":
            weights[name] = tensor
        else:
            state.setdefault(name, {})[slot] = tensor
    groups: Any = [
        {**{k: v for k, v in group.items() if k != "params"}, "params": list(state)} for group in optimiser.param_groups
    ]
    options = StateDictOptions(full_state_dict=True, strict=False, ignore_frozen_params=True)
    set_state_dict(
        module,
        optimiser,
        model_state_dict=weights,
        optim_state_dict={"state": state, "param_groups": groups},
        options=options,
    )
