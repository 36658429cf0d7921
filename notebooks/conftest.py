"""nbval compares text only, gives kernels time, and reads folders as the runner."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from vocabx_utils.cli.notebooks import KERNEL_START_S
from vocabx_utils.paths import pin_folders

SKIPPED = (
    "stderr",
    "text/html",
    "application/vnd.jupyter.widget-view+json",
    "application/vnd.jupyter.widget-state+json",
    "application/vnd.plotly.v1+json",
    "image/svg+xml",
)


def pytest_collectstart(collector: Any) -> None:
    """Skip more kinds of output in the comparison, and prepare what kernels inherit."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += SKIPPED
        options = collector.config.option
        options.nbval_kernel_startup_timeout = max(
            options.nbval_kernel_startup_timeout, KERNEL_START_S
        )
        logging.getLogger("nbval").setLevel(
            logging.CRITICAL
        )  # it would log the traceback that we put into a line
        pin_folders()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[Any]:
    """Say in one line that a kernel did not start."""
    try:
        return (yield)
    except RuntimeError as error:
        if "ernel" not in str(error):
            raise
        pytest.fail(
            f"{item.path.name}: its kernel did not start ({error}).", pytrace=False
        )
