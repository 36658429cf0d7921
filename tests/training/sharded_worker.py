"""One of two processes that train the tiny model with sharded blocks (see `forked`).

The folder holds `model`, in two files of safetensors. What the loader read is written to `read_RANK.json`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from tiny import new_tokens
from torch.distributed.checkpoint import HuggingFaceStorageReader
from training.phase1_parts import example_set, settings

from vocabx_utils import files
from vocabx_utils.training.phase1 import Phase1Data, Phase1Training
from vocabx_utils.training.phase1_stage import train_variant
from vocabx_utils.training.processes import joined
from vocabx_utils.training.sharding import load_sharded_base, recompute_blocks
from vocabx_utils.training.teacher import teacher_cache

READ: list[tuple[str, int]] = []  # names and sizes of the slices that were read


def train_and_die(folder: Path, last: int) -> None:
    """Train into the folder, and die at a step (0: never)."""
    torch.set_num_threads(1)
    process, step = HuggingFaceStorageReader._process_read_request, Phase1Training.step

    def process_and_count(self: Any, file: Any, request: Any, planner: Any) -> None:
        READ.append((request.storage_index.fqn, request.lengths.numel()))
        process(self, file, request, planner)

    def step_and_die(self: Phase1Training, indices: list[int]) -> torch.Tensor:
        losses = step(self, indices)
        if self.done + 1 == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return losses

    HuggingFaceStorageReader._process_read_request = process_and_count  # type: ignore[method-assign]
    Phase1Training.step = step_and_die  # type: ignore[method-assign]
    with joined(cpu=True) as processes:
        base = load_sharded_base(folder / "model", processes, tell=lambda _: None)
        held = {
            n: p.to_local().numel() if hasattr(p, "to_local") else p.numel() for n, p in base.model.named_parameters()
        }
        found = {"fingerprint": base.fingerprint, "read": READ, "held": held}
        files.write_json(folder / f"read_{processes.process_index}.json", found)
        recompute_blocks(base.model)
        train, validation = example_set(0, 16), example_set(16, 23)  # 7: one process has a text less
        caches = [
            teacher_cache(
                base, part, folder / name, likelihood=name == "validation", tell=lambda _: None, processes=processes
            )
            for name, part in (("train", train), ("validation", validation))
        ]
        data = Phase1Data(train, validation, *caches)
        # batches of 3: one process has two texts and the other one, in as many passes
        config = settings(epochs=2, batch_size=3, token_budget=60, sharded=True, gradient_checkpointing="always")
        train_variant("mean_kl_last", base, new_tokens(), data, config, folder / "variant", processes=processes)
