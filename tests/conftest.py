"""What every test gets: a tiny model, runs of its own, no open figures, and the marker of slow tests.

The process that hands tests out to others reads this file, too, so PyTorch is imported only where a test needs it.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from vocabx_utils.models import BaseModel

SLOW = Path(__file__).parent / "slow_tests.txt"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what the imports brought out of Python's search for garbage: half a million objects that stay anyway.

    To go through them again and again takes time in every test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the listed tests as slow; the list is measured, see tools/mark_slow.py."""
    slow = set(SLOW.read_text(encoding="utf-8").splitlines())
    for item in items:
        if listed_name(item) in slow:
            item.add_marker(pytest.mark.slow)


def listed_name(item: pytest.Item) -> str:
    """Name of a test function as in a JUnit report, without the values of its parameters."""
    module = item.nodeid.split("::")[0].removesuffix(".py").replace("/", ".")
    return f"{module}::{getattr(item, 'originalname', None) or item.name}"


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hugging Face folder of the tiny model."""
    from tiny import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def tiny_base(tiny_folder: Path) -> BaseModel:
    """The tiny model, loaded as a base model on the CPU in float32."""
    from vocabx_utils.models import load_base_model

    return load_base_model(tiny_folder, device="cpu")


@pytest.fixture(autouse=True)
def no_open_figures() -> Iterator[None]:
    """Each test begins without figures, whatever ran before it."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(autouse=True)
def own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the checkout's runs."""
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path / "runs"))
