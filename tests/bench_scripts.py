"""The scripts of `tests/bench`, imported in tests as they import one another."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCH = Path(__file__).parent / "bench"


@pytest.fixture(autouse=True)
def scripts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let scripts find one another; for every test of a module that imports this."""
    monkeypatch.syspath_prepend(str(BENCH))


def bench(name: str) -> Any:
    """Return a script as a module."""
    return importlib.import_module(name)
