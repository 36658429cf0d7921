"""Train the tiny model in a process of its own: arguments are a folder, a variant and the step to die at (0: never)."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from tiny import new_tokens, tiny_model
from training.phase1_parts import phase1_data, settings

from vocabx_utils.training.distillation import train_variant
from vocabx_utils.training.group import join_group


def main() -> None:
    folder, variant, last = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    base = tiny_model()

    def on_step(step: int) -> None:
        if step == last:
            os.kill(os.getpid(), signal.SIGKILL)

    with join_group() as group:
        data = phase1_data(base, folder / f"teacher_{group.rank}")
        train_variant(
            variant, base, new_tokens(), data, settings(epochs=2, restart_epochs=1), folder / variant,
            group=group, on_step=on_step,
        )  # fmt: skip


if __name__ == "__main__":
    main()
