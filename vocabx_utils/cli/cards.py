"""Cards for jobs that run beside each other: each sees its own ones only, and nobody else takes them meanwhile.

On a cluster the scheduler hands out cards; then its choice stands.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from vocabx_utils.locks import BusyError, hold, release

VISIBLE = "CUDA_VISIBLE_DEVICES"
_WAIT_S = 15  # the job that had a card before may still be ending


class NoCardError(RuntimeError):
    """There are fewer free cards than a job asks for."""


@contextlib.contextmanager
def own_cards(count: int, jobs_per_card: int = 1) -> Iterator[str | None]:
    """Take free cards of this machine for the block, and yield what `CUDA_VISIBLE_DEVICES` has to be: "" for no card.

    None, for "as it is", inside a Slurm job, unless Slurm gave it no card and none is wanted. A card is taken by at
    most `jobs_per_card` jobs that ask for it in this way; it is free again when its process ends, killed or not.

    Raises:
        NoCardError: the machine has fewer cards, or too few are free within some seconds.
    """
    if "SLURM_JOB_ID" in os.environ:
        yield None if count or VISIBLE in os.environ else ""
        return
    known, taken = visible_cards() if count else [], dict[str, Path]()
    shown = ", ".join(known) or "none"
    if len(known) < count:
        raise NoCardError(f"{count} cards are asked for; this machine shows {len(known)} ({shown}).")
    end = time.monotonic() + _WAIT_S
    try:
        while len(taken) < count:
            for card in known:
                if len(taken) < count and card not in taken and (place := _take(card, jobs_per_card)):
                    taken[card] = place
            if len(taken) < count and time.monotonic() > end:
                raise NoCardError(
                    f"{count} cards are asked for; {len(taken)} of {len(known)} ({shown}) are free. Run fewer jobs "
                    "at a time, or let more of them share a card (jobs_per_gpu)."
                )
            time.sleep(0.2 if len(taken) < count else 0)
        yield ",".join(taken)
    finally:
        for place in taken.values():
            release(place)


def visible_cards() -> list[str]:
    """Cards that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    if VISIBLE in os.environ:
        return [name.strip() for name in os.environ[VISIBLE].split(",") if name.strip()]
    if shutil.which("nvidia-smi") is None:
        return []
    query = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True)
    return answer.stdout.split() if answer.returncode == 0 else []


def _take(card: str, jobs_per_card: int) -> Path | None:
    folder = Path(tempfile.gettempdir()) / "vocabx-cards"
    for job in range(jobs_per_card):
        place = folder / f"{card.replace('/', '-')}-{job}"
        with contextlib.suppress(BusyError):
            if hold(place):
                with contextlib.suppress(PermissionError):  # another user of the machine made the folder, for all
                    folder.chmod(0o1777)
                return place
    return None
