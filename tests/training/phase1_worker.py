"""Train the tiny model in a process of its own (see `forked`)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from tiny import new_tokens, tiny_model
from training.phase1_parts import phase1_data, settings

from vocabx_utils.training.phase1 import Phase1Training
from vocabx_utils.training.phase1_stage import train_variant
from vocabx_utils.training.processes import joined


def train_and_die(folder: Path, variant: str, last: int) -> None:
    """Train a variant into a folder, and die at a step (0: never)."""
    torch.set_num_threads(1)
    base = tiny_model()

    step = Phase1Training.step

    def step_and_die(self: Phase1Training, indices: list[int]) -> torch.Tensor:
        losses = step(self, indices)
        if self.done + 1 == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return losses

    Phase1Training.step = step_and_die  # type: ignore[method-assign]
    with joined(cpu=True) as processes:
        data = phase1_data(base, folder / f"teacher_{processes.process_index}")
        train_variant(
            variant, base, new_tokens(), data, settings(epochs=2, restart_epochs=1), folder / variant,
            processes=processes,
        )  # fmt: skip
