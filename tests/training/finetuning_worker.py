"""Processes that fine-tune the tiny model: one of two, and one that is killed (see `forked`)."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from training.test_finetuning import BROKEN, tune

from vocabx_utils import files


def tune_both_ways(folder: Path) -> None:
    """Train data parallel, and sharded twice: the second time finds finished work."""
    options: dict[str, Any] = {"stages": ("a", "b"), "a_epochs": 2, "checkpoint_every": 2, "rows_in_b": True}
    tune(folder / "parallel", **options)
    for _ in range(2):
        tune(folder / "sharded", sharded=True, **options)
    torch.distributed.destroy_process_group()


def tune_and_die(folder: Path, *rows: int) -> None:
    """Fine-tune through all stages, and be killed once so many rows of losses are written; again for each number."""
    for last in rows:
        child = os.fork()  # a process of its own for each attempt, without paying for the imports again
        if not child:
            _tune_until(folder, last)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def _tune_until(folder: Path, last: int) -> None:
    write, count = files.append_jsonl, [0]

    def append(path: Path, row: dict[str, Any]) -> None:
        write(path, row)
        count[0] += 1
        if count[0] == last:
            os.kill(os.getpid(), signal.SIGKILL)

    files.append_jsonl = append  # type: ignore[assignment]
    tune(folder, **BROKEN)
