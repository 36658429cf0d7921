"""One writer a folder: the second is refused with the first's process and host, a dead process leaves nothing."""

from __future__ import annotations

import platform
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from vocabx_utils import locks, runs

WRITER = """
import sys, time, pathlib
from vocabx_utils import runs
runs.claim(pathlib.Path(sys.argv[1]), {"seed": 0})
print("claimed", flush=True)
sys.stdin.readline()
runs.finish(pathlib.Path(sys.argv[1]))
"""


@contextmanager
def writer(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has claimed a folder, and finishes it when it is told to."""
    words = [sys.executable, "-c", WRITER, str(folder)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "claimed\n"
        try:
            yield process
        finally:
            process.kill()


def test_the_second_process_is_refused_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "stage"
    with writer(folder) as first:
        busy = rf"process {first.pid} on {platform.node()}\. Wait until that ends, or give another folder\.$"
        with pytest.raises(locks.BusyError, match=busy):
            runs.claim(folder, {"seed": 0})
        with pytest.raises(locks.BusyError):
            runs.finish(folder)
        assert runs.claim(folder, {"seed": 0}, writes=False) == "resume"  # a follower of the first
        first.communicate("\n", timeout=60)
        assert runs.claim(folder, {"seed": 0}) == "finished"
    assert sorted(p.name for p in folder.iterdir()) == ["key.json", "provenance.json"]
    assert not locks.lock_path(folder).exists()


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    folder = tmp_path / "stage"
    with writer(folder) as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert locks.lock_path(folder).exists()
        assert runs.claim(folder, {"seed": 0}) == "resume"
    runs.finish(folder)


def test_the_second_can_wait(tmp_path: Path) -> None:
    folder = tmp_path / "stage"
    with writer(folder) as first:
        assert first.stdin is not None
        first.stdin.write("\n")
        first.stdin.flush()
        assert locks.hold(folder, wait=60)
    locks.release(folder)


def test_the_same_process_may_come_again(tmp_path: Path) -> None:
    assert runs.claim(tmp_path / "a", {"seed": 0}) == "new"
    assert runs.claim(tmp_path / "a", {"seed": 0}) == "resume"
    with pytest.raises(runs.KeyMismatchError):
        runs.claim(tmp_path / "a", {"seed": 1})
    runs.finish(tmp_path / "a")
    assert not locks.lock_path(tmp_path / "a").exists()
    with locks.writing(tmp_path / "b"), locks.writing(tmp_path / "b"):
        assert locks.lock_path(tmp_path / "b").exists()
    assert not locks.lock_path(tmp_path / "b").exists()


def test_refused_settings_leave_no_lock(tmp_path: Path) -> None:
    runs.claim(tmp_path / "a", {"seed": 0})
    locks.release(tmp_path / "a")
    with pytest.raises(runs.KeyMismatchError):
        runs.claim(tmp_path / "a", {"seed": 1})
    assert not locks.lock_path(tmp_path / "a").exists()


def test_only_in_a_run_another_run_name_is_advised() -> None:
    folder = runs.open_run("busy").stage("03")
    with writer(folder), pytest.raises(locks.BusyError, match=r"kernel.*or choose another run name"):
        runs.claim(folder, {"seed": 0})
