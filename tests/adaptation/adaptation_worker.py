"""An adaptation in a process of its own (see `forked`), which is killed in the middle of training."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch

from vocabx_utils.adaptation.run import adapt
from vocabx_utils.adaptation.steps import WORK
from vocabx_utils.training.phase1 import Phase1Training


def adapt_and_die(model: Path, source: Path, out: Path, options: dict[str, Any]) -> None:
    """Adapt, and be killed in the first step after a checkpoint."""
    step = Phase1Training.step

    def step_and_die(self: Phase1Training, indices: list[int]) -> torch.Tensor:
        losses = step(self, indices)
        if list(out.glob(f"{WORK}/rows-*/variant/checkpoint.safetensors")):
            os.kill(os.getpid(), signal.SIGKILL)
        return losses

    Phase1Training.step = step_and_die  # type: ignore[method-assign]
    adapt(model, source, out, **options)
