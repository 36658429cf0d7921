"""What ends a notebook before its own end: Ctrl-C, a termination signal, or the limit on its time."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


class Stopped(KeyboardInterrupt):
    """A notebook has to stop, for the reason in the message; whoever starts kernels ends them as on Ctrl-C."""


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
