"""Calls of the installed package in a process of its own (see `forked`), where no checkout is in sight."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def _settle(site: Path, here: Path) -> None:
    """Stand in an empty folder and find this package in `site` alone."""
    assert not [name for name in sys.modules if name.startswith("vocabx_utils")]
    os.chdir(here)
    environment = Path(sys.prefix)  # which may lie in the checkout
    elsewhere = [
        path
        for path in sys.path
        if path and (Path(path).is_relative_to(environment) or not Path(path).resolve().is_relative_to(ROOT))
    ]
    sys.path[:] = [str(site), *elsewhere]


def call_command(site: Path, here: Path, words: list[str]) -> None:
    """Be the command `vocabx`; what it says goes to the log."""
    _settle(site, here)
    sys.argv[1:] = words
    runpy.run_module("vocabx_utils", run_name="__main__", alter_sys=True)


def open_front_door(site: Path, here: Path) -> None:
    """Say where the package is and which of its verbs cannot be called."""
    _settle(site, here)
    import vocabx_utils as v

    print("opened:", v.__file__, [n for n in v.__all__ if not callable(getattr(v, n))], flush=True)
