"""Processes for tests that need several, or kill one: forked from a server that has paid the imports once.

A new process takes some seconds to import PyTorch and transformers, and a launcher takes as long again.
The server imports nothing of this repository and trains nothing, so each process begins as clean as a new one.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import runpy
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

SECONDS = 300
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["torch", "accelerate", "transformers.modeling_utils", "pandas"])


def run_forked(
    target: Callable[..., None],
    *arguments: Any,
    log: Path,
    count: int = 1,
    environment: Mapping[str, str] | None = None,
    unset: Sequence[str] = (),
) -> list[int]:
    """Call a function of a module in `count` processes that find each other as those of torchrun do.

    Args:
        target: found by its module's name in the new process.
        arguments: of the function.
        log: what the processes write, errors included, goes here.
        count: processes; where one fails, the others are ended.
        environment: variables that are set in each; the server does not know those of the test.
        unset: variables that are removed in each.

    Returns:
        Exit status of each: 0, minus the signal that ended it, or above 0 after an error.
    """
    given = dict(environment or {})
    group = [given]
    if count > 1:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        shared |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
        group = [given | shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(count)]
    log.parent.mkdir(parents=True, exist_ok=True)
    processes = [_SERVER.Process(target=_begin, args=(target, arguments, one, unset, log)) for one in group]
    for process in processes:
        process.start()
    _wait(processes)
    return [process.exitcode or 0 for process in processes]


def be_script(path: str, *words: str) -> None:
    """Run a script as `python PATH WORDS` does: a target for `run_forked`."""
    sys.argv[:] = [path, *words]
    sys.path.insert(0, str(Path(path).parent))
    runpy.run_path(path, run_name="__main__")


def _wait(processes: list[Any]) -> None:
    """Until all have ended, one has failed or the time is over; then none is left."""
    end = time.monotonic() + SECONDS
    while any(process.is_alive() for process in processes):
        if any(process.exitcode for process in processes) or time.monotonic() > end:
            for process in processes:
                process.kill()
        time.sleep(0.02)
    for process in processes:
        process.join()


def _begin(
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    environment: dict[str, str],
    unset: Sequence[str],
    log: Path,
) -> None:
    gc.freeze()  # what the server imported is no garbage
    for name in unset:
        os.environ.pop(name, None)
    os.environ.update(environment | {"OMP_NUM_THREADS": "1", "VOCABX_PROGRESS": "plain"})
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    target(*arguments)
