"""Where a killed training goes on: what moves, its optimisers' state and the counters, in one atomic file.

One layout serves both phases, on any number of processes, sharded or not: `weights/NAME`, `SLOT/NAME` for each slot of
an optimiser, and the counters under their own names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from vocabx_utils import files
from vocabx_utils.models import gathered

FILE = "checkpoint.safetensors"


def gather_checkpoint(parameters: Mapping[str, Tensor], optimisers: Sequence[Optimizer]) -> dict[str, Tensor]:
    """Collect trained tensors and optimiser state on the CPU; every process has to call it and gets the whole."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        tensors[f"weights/{name}"] = whole(parameter)
        for slot, value in _owner(parameter, optimisers).state.get(parameter, {}).items():
            tensors[f"{slot}/{name}"] = whole(torch.as_tensor(value))
    return tensors


def load_checkpoint(
    folder: Path, parameters: Mapping[str, Tensor], optimisers: Sequence[Optimizer]
) -> dict[str, Tensor] | None:
    """Restore the state in place; return the counters, or None if there is no checkpoint.

    ValueError where the file does not hold these tensors, DamagedFileError where it is not what was written.
    """
    path = folder / FILE
    if not path.exists():
        return None
    tensors = {_place(key, parameters): tensor for key, tensor in files.read_tensors(path).items()}
    for name, parameter in parameters.items():
        stored = tensors.get(f"weights/{name}")
        if stored is None or stored.shape != parameter.shape:
            raise ValueError(f"{path} does not hold {name} of shape {tuple(parameter.shape)}: remove it to start anew")
        with torch.no_grad():
            parameter.copy_(_spread(stored, parameter))
        suffix = f"/{name}"
        slots = {k.removesuffix(suffix): v for k, v in tensors.items() if k.endswith(suffix) and k.count("/") == 1}
        slots.pop("weights")
        if slots:
            optimiser = _owner(parameter, optimisers)
            # "step" stays on the CPU unless the optimiser is fused, as PyTorch itself keeps it
            fused = bool(optimiser.defaults.get("fused"))
            optimiser.state[parameter] = {
                slot: value.to(parameter.device if fused else "cpu") if slot == "step" else _spread(value, parameter)
                for slot, value in slots.items()
            }
    return {name: tensor for name, tensor in tensors.items() if "/" not in name}


def _place(key: str, parameters: Mapping[str, Tensor]) -> str:
    """Where a tensor stands in this layout; phase 1 of version 0.1 wrote `NAME` and `NAME.SLOT`."""
    name, _, slot = key.partition(".")
    return key if name not in parameters else f"{slot or 'weights'}/{name}"


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor on the CPU, put together where it is sharded; then every process has to call it."""
    return gathered(tensor.detach()).cpu()


def _spread(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A tensor as its parameter lies: on its device, or sharded over the processes."""
    placed: Any = parameter
    if not hasattr(placed, "device_mesh"):
        return tensor.to(parameter.device)
    from torch.distributed.tensor import distribute_tensor

    spread: Tensor = distribute_tensor(tensor.to(placed.device), placed.device_mesh, placed.placements)
    return spread


def _owner(parameter: Tensor, optimisers: Sequence[Optimizer]) -> Optimizer:
    return next(o for o in optimisers if any(p is parameter for group in o.param_groups for p in group["params"]))
