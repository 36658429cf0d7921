"""Several processes that share each step, through accelerate's process state; a launcher sets what it starts from.

Functions take None where they run alone. Phase 1 trains 2 x N x D numbers, so its data parallelism is one sum of two
gradients a step; fine-tuning wraps its model (see `finetuning`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import torch
from accelerate import PartialState
from torch import Tensor


@contextlib.contextmanager
def joined(*, cpu: bool) -> Iterator[PartialState]:
    """Join the processes that the launcher's environment describes (gloo on CPU, NCCL on GPUs), and leave them.

    A process that ends without leaving may be ended by the library's own threads with an error.
    """
    require_processes()
    processes = PartialState(cpu=cpu)
    try:
        yield processes
    finally:
        processes.destroy_process_group()


def require_processes() -> None:
    """Refuse to run alone where several processes were asked for.

    `accelerate launch --cpu --num_processes 2` starts one: it names an address to meet at and nobody to meet there.
    """
    launched = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ
    if launched and "WORLD_SIZE" not in os.environ:
        raise RuntimeError(
            "accelerate was asked for several processes and started one, as it does with --cpu. Start them with "
            "`accelerate launch --multi_gpu --num_processes 2 -m ...` (without a GPU too: they talk through gloo) or "
            "with `torchrun --nproc_per_node 2 -m ...`; for one process, leave --num_processes out."
        )


def leads(processes: PartialState | None) -> bool:
    """True in the one process that writes files."""
    return processes is None or processes.is_main_process


def wait(processes: PartialState | None) -> None:
    """Wait for every process."""
    if processes is not None:
        processes.wait_for_everyone()


def sum_over(tensors: Sequence[Tensor], processes: PartialState | None) -> None:
    """Sum tensors over the processes, in place."""
    if processes is not None and processes.num_processes > 1:
        for tensor in tensors:
            torch.distributed.all_reduce(tensor)
