"""One of two processes that fine-tune the tiny model (see `forked`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from training.test_finetuning import tune


def tune_both_ways(folder: Path) -> None:
    """Train data parallel, and sharded twice: the second time finds finished work."""
    options: dict[str, Any] = {"stages": ("a", "b"), "a_epochs": 2, "checkpoint_every": 2, "rows_in_b": True}
    tune(folder / "parallel", **options)
    for _ in range(2):
        tune(folder / "sharded", sharded=True, **options)
    torch.distributed.destroy_process_group()
