"""A tiny run with all stages, built once, and figures closed after each test."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib
import pytest
from fixtures.tiny_run import TinyRun, add_later_stages, build_run

matplotlib.use("Agg")
import matplotlib.pyplot as plt


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    run = build_run(tmp_path_factory.mktemp("figures"))
    add_later_stages(run)
    return run
