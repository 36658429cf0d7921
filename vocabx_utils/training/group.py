"""Several processes that train the same rows: what phase 1 needs of them, and no more.

Only 2 x N x D numbers are trained, so data parallelism is one sum of two gradients a step. `accelerate launch` sets
the variables from which the process group starts; without them a group of one is used.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["Group", "join_group", "require_processes"]


@dataclass(frozen=True)
class Group:
    """This process among its peers.

    Attributes:
        rank: number of this process, from 0.
        world: number of processes.
    """

    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        """True in the one process that writes files."""
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for every process."""
        if self.world > 1:
            dist.barrier()

    def sum_(self, tensors: Sequence[Tensor]) -> None:
        """Sum tensors over the processes, in place."""
        if self.world == 1:
            return
        for tensor in tensors:
            dist.all_reduce(tensor)


def require_processes() -> None:
    """Refuse to run alone where a launcher was asked for several processes and started one.

    ``accelerate launch --cpu --num_processes 2`` does so: it names an address to meet at and nobody to meet there.

    Raises:
        RuntimeError: says how to start several.
    """
    launched = "ACCELERATE_MIXED_PRECISION" in os.environ and "MASTER_ADDR" in os.environ
    if launched and "WORLD_SIZE" not in os.environ:
        raise RuntimeError(
            "accelerate was asked for several processes and started one, as it does with --cpu. Start them with "
            "`accelerate launch --multi_gpu --num_processes 2 -m ...` (without a GPU too: they talk through gloo) or "
            "with `torchrun --nproc_per_node 2 -m ...`; for one process, leave --num_processes out."
        )


@contextlib.contextmanager
def join_group() -> Iterator[Group]:
    """Join the process group that the launcher's environment describes (gloo on CPU, NCCL on GPUs), and leave it.

    A process that ends without leaving may be ended by the library's own threads with an error.
    """
    require_processes()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Group()
        return
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        yield Group(dist.get_rank(), dist.get_world_size())
    finally:
        dist.destroy_process_group()
