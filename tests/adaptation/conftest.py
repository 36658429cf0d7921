"""A finished adaptation of the tiny model, made once for all tests that look at one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from adaptation.adaptation_parts import write_sources

from vocabx_utils.adaptation.run import Adapted, adapt


class Finished(NamedTuple):
    """What was made, of what, and what was said on the way."""

    made: Adapted
    model: Path
    source: Path
    told: list[str]


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, tiny_folder: Path) -> Iterator[Finished]:
    """An adaptation with the sweep and without LoRA."""
    folder = tmp_path_factory.mktemp("adapted")
    source = write_sources(folder / "src")
    told: list[str] = []
    made = adapt(tiny_folder, source, folder / "out", n=6, device="cpu", new_tokens=8, tell=told.append)
    yield Finished(made, tiny_folder, source, told)
