"""Run notebooks of the series through papermill: one kernel each, output in the run folder, progress lines.

The notebook's folder is the working directory (as under nbval), the kernel is always `python3`, sources are
never written. Thread settings of the environment reach the kernel untouched.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from vocabx_utils.paths import STAGES, notebooks_root, show_path, stage_name
from vocabx_utils.settings import ConfigError

Say = Callable[[str], None]
KERNEL_START_S = 600  # a busy machine or a cold network disk takes minutes to import the kernel


class NotebookFailed(RuntimeError):
    """A notebook stopped before its end; the message names the cell, the error and the partial output."""


class Stopped(KeyboardInterrupt):
    """A notebook has to stop, for the reason in the message; whoever starts kernels ends them as on Ctrl-C."""


@dataclass(frozen=True)
class Timing:
    """What one notebook took."""

    notebook: str  # full name
    seconds: float  # wall time
    peak_mib: float  # largest memory of runner, kernel and their children together, in MiB (sampled twice a second)


def find_notebooks() -> dict[str, Path]:
    """Return the source notebooks of the series that are here, by full name, in order."""
    folder = notebooks_root()
    return {stage: folder / f"{stage}.ipynb" for stage in STAGES if (folder / f"{stage}.ipynb").is_file()}


def select_notebooks(available: dict[str, Path], only: tuple[str, ...] = ()) -> list[str]:
    """Return the full names of the notebooks with these numbers or names (none: all), in order of the series."""
    if not available:
        raise ConfigError(f"No notebooks in {notebooks_root()}: run from a checkout, or set VOCABX_ROOT to one.")
    try:
        wanted = {stage_name(name.removesuffix(".ipynb")) for name in only} or set(available)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    missing = sorted(wanted - set(available))
    if missing:
        raise ConfigError(f"{', '.join(missing)} is not in {notebooks_root()}. There: {', '.join(available)}.")
    return [stage for stage in available if stage in wanted]


def run_notebook(source: Path, output: Path, parameters: dict[str, Any], say: Say = print) -> Timing:
    """Execute a notebook into `output`, which is written after each cell, so a failure leaves the part that was done.

    NotebookFailed where a cell raised, the kernel died, or the notebook was stopped (Ctrl-C, `stoppable`).
    """
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    output.parent.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    # `python3` is the kernel of this environment, whatever a user has registered under that name
    native = mock.patch.dict(os.environ, JUPYTER_PREFER_ENV_PATH="1")
    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # what it complains of is in our error
    try:
        with native, _peak_memory() as peak:
            papermill.execute_notebook(
                str(source),
                str(output),
                parameters=parameters,
                cwd=str(source.parent),
                kernel_name="python3",
                language="python",
                extra_arguments=["--IPKernelApp.log_level=CRITICAL"],
                progress_bar=False,
                stderr_file=_Lines(say),  # progress lines and warnings, not tables and prose
                autosave_cell_every=0,
                start_timeout=KERNEL_START_S,
            )
    except PapermillExecutionError as error:
        raise NotebookFailed(_describe(output, f"{error.ename}: {error.evalue}")) from error
    except DeadKernelError as error:
        raise NotebookFailed(_describe(output, "the kernel died (often: out of memory)")) from error
    except OSError as error:
        raise NotebookFailed(_describe(output, f"{type(error).__name__}: {error}")) from error
    except KeyboardInterrupt as error:
        raise NotebookFailed(
            _describe(output, str(error) or "it was stopped by hand") + "\nThe same command continues where it stood."
        ) from error
    except RuntimeError as error:
        if "Kernel didn't respond" not in str(error):  # jupyter_client has no class of its own for this
            raise
        raise NotebookFailed(
            f"{source.stem}: its kernel did not start within {KERNEL_START_S} s. Nothing of it ran; close other "
            "programs if the machine is busy, and run the same command again."
        ) from error
    return Timing(source.stem, time.monotonic() - begin, peak())


@contextlib.contextmanager
def stoppable(minutes: float = 0) -> Iterator[None]:
    """Raise `Stopped` inside the block on SIGTERM, and after a number of minutes (0 for no limit).

    Schedulers end jobs by SIGTERM, which would leave a kernel behind. Call it from the main thread.
    """
    reasons = {"SIGTERM": "it was told to end (SIGTERM)", "SIGALRM": f"it took longer than {minutes:g} min"}
    held: dict[int, Any] = {}

    def stop(number: int, _frame: Any) -> None:
        raise Stopped(reasons[signal.Signals(number).name])

    for name in reasons:
        if hasattr(signal, name):  # Windows has no alarms
            held[getattr(signal, name)] = signal.signal(getattr(signal, name), stop)
    try:
        if minutes and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
        yield
    finally:
        if minutes and hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in held.items():
            signal.signal(number, handler)


def _describe(output: Path, problem: str) -> str:
    """Say where a notebook stopped, from its partial output."""
    place = _failing_cell(output)
    part = f"The part that ran is in {show_path(output)}" if output.exists() else "Nothing of it ran."
    return f"{output.stem} stopped{place}: {problem}\n{part}"


def _failing_cell(output: Path) -> str:
    import nbformat

    try:
        cells = nbformat.read(output, as_version=4).cells
    except (OSError, ValueError):
        return ""
    code = [cell for cell in cells if cell.cell_type == "code"]
    started = [n for n, cell in enumerate(code) if cell.metadata.get("papermill", {}).get("start_time")]
    if not started:
        return ""
    first = next((line for line in code[started[-1]].source.splitlines() if line.strip()), "")
    return f" at code cell {started[-1] + 1} of {len(code)} (`{first.strip()}`)"


class _Lines(io.TextIOBase):
    """Say what is written, line by line."""

    def __init__(self, say: Say) -> None:
        self.say = say

    def write(self, text: str) -> int:
        for line in re.split(r"[\r\n]+", text):
            if line.strip():
                self.say(f"    {line.rstrip()}")
        return len(text)


def _resident(process: Any) -> int:
    """Bytes that a process holds; what several share, such as forked jails, counts once where the system tells."""
    import psutil

    with contextlib.suppress(psutil.AccessDenied, AttributeError):
        return int(process.memory_full_info().pss)
    return int(process.memory_info().rss)


@contextlib.contextmanager
def _peak_memory(interval: float = 0.5) -> Iterator[Callable[[], float]]:
    """Sample the resident memory of this process and its children; yield a function that gives the peak in MiB.

    To count shared pages once takes the kernel tens of milliseconds a process, in which that process cannot get memory.
    So it is done only where the plain sum, which is never less, is above the peak and not what it was the last time.
    """
    import psutil

    process, stop, peak = psutil.Process(), threading.Event(), [0]

    def total(size: Callable[[Any], int], members: Sequence[Any]) -> int:
        found = 0
        for member in members:
            with contextlib.suppress(psutil.Error):
                found += size(member)
        return found

    def sample() -> None:
        looked_at = 0
        while not stop.is_set():
            members = (process, *process.children(recursive=True))
            plain = total(lambda member: int(member.memory_info().rss), members)
            if plain > peak[0] and abs(plain - looked_at) > 0.01 * looked_at:
                looked_at = plain
                peak[0] = max(peak[0], total(_resident, members))
            stop.wait(interval)

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield lambda: peak[0] / 2**20
    finally:
        stop.set()
        thread.join()
