"""Where a killed phase 1 goes on: rows, both optimisers and the running sums, in one atomic file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer

from vocabx_utils import files

__all__ = ["Position", "load_checkpoint", "save_checkpoint"]

FILE = "checkpoint.safetensors"


@dataclass
class Position:
    """How far a run has come.

    Attributes:
        epoch: the epoch to go on with, from 1.
        step: steps of that epoch that are done.
        steps: steps done over all epochs.
        skipped: steps that were skipped because they held nothing to learn from.
        totals: (3,) float64 running sums of this epoch: input loss, head loss, KL of every compared position.
        losses: (S, 2) float64 losses of every step so far: input side, head side.
    """

    epoch: int
    step: int
    steps: int
    skipped: int
    totals: Tensor
    losses: Tensor


def save_checkpoint(
    folder: Path, rows: dict[str, Tensor], optimizers: dict[str, Optimizer], position: Position
) -> None:
    """Write the state atomically; the one before stays valid until the new one is complete.

    Args:
        folder: of the variant.
        rows: the trained tensors by name.
        optimizers: one for each of them, under the same name.
        position: how far the run has come.
    """
    tensors: dict[str, Tensor] = {}
    for name, parameter in rows.items():
        tensors[name] = parameter
        for key, value in optimizers[name].state.get(parameter, {}).items():
            tensors[f"{name}.{key}"] = torch.as_tensor(value)
    place = [position.epoch, position.step, position.steps, position.skipped]
    tensors["place"] = torch.tensor(place, dtype=torch.int64)
    tensors["totals"], tensors["losses"] = position.totals, position.losses
    files.write_tensors(folder / FILE, tensors)


def load_checkpoint(folder: Path, rows: dict[str, Tensor], optimizers: dict[str, Optimizer]) -> Position | None:
    """Restore the state in place.

    Args:
        folder: of the variant.
        rows: the trained tensors by name, overwritten.
        optimizers: one for each of them, overwritten.

    Returns:
        Where to go on, or None if there is no checkpoint.

    Raises:
        ValueError: the file does not hold these rows.
    """
    path = folder / FILE
    if not path.exists():
        return None
    tensors = files.read_tensors(path)
    for name, parameter in rows.items():
        if name not in tensors or tensors[name].shape != parameter.shape:
            raise ValueError(f"{path} does not hold {name} of shape {tuple(parameter.shape)}: remove it to start anew")
        with torch.no_grad():
            parameter.copy_(tensors[name])
        prefix = f"{name}."
        state = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        if state:
            # "step" stays on the CPU unless the optimiser is fused, as PyTorch itself keeps it
            fused = bool(optimizers[name].defaults.get("fused"))
            optimizers[name].state[parameter] = {
                k: v.to(parameter.device) if fused or k != "step" else v for k, v in state.items()
            }
    epoch, step, steps, skipped = tensors["place"].tolist()
    return Position(epoch, step, steps, skipped, tensors["totals"].to(_device(rows)), tensors["losses"])


def _device(rows: dict[str, Tensor]) -> torch.device:
    devices: Sequence[torch.device] = [tensor.device for tensor in rows.values()]
    return devices[0]
