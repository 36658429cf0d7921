"""Conversions of a GGUF file in a process of its own (see `forked`): one is killed in the middle, one waits there."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from vocabx_utils import fetch


def convert_and_die(path: Path, out: Path) -> None:
    """Be killed with half of the weights written."""

    def convert_into(path: Path, metadata: Any, folder: Path) -> None:
        (folder / "model.safetensors").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    fetch.gguf.convert_into = convert_into  # type: ignore[assignment]
    fetch.convert_gguf(path, out)


def convert_slowly(path: Path, out: Path, begun: Path, go: Path) -> None:
    """Say by one file that the conversion has begun, and wait for another one before it goes on."""
    convert = fetch.gguf.convert_into

    def slow(*given: Any) -> None:
        begun.touch()
        while not go.exists():
            time.sleep(0.02)
        convert(*given)

    fetch.gguf.convert_into = slow  # type: ignore[assignment]
    print(fetch.convert_gguf(path, out), flush=True)
