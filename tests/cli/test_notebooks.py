"""SIGTERM and the end of the time become an interrupt with a reason; nothing stays installed behind the block."""

from __future__ import annotations

import os
import signal
import time

import pytest

from vocabx_utils.cli.notebooks import Stopped, stoppable


def test_sigterm_stops_with_a_reason_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)
    with pytest.raises(Stopped, match="SIGTERM"), stoppable():
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM)) == before


def test_the_time_ends_and_is_named() -> None:
    with pytest.raises(Stopped, match=r"longer than 0\.002 min"), stoppable(0.002):
        time.sleep(5)


def test_what_ends_in_time_is_left_alone() -> None:
    with stoppable(60):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert issubclass(Stopped, KeyboardInterrupt)  # as which asyncio and papermill let it through
