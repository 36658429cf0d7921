"""nbval compares text only: progress, tables as HTML, widgets and interactive figures differ between machines."""

from __future__ import annotations

from typing import Any

SKIPPED = (
    "stderr",
    "text/html",
    "application/vnd.jupyter.widget-view+json",
    "application/vnd.jupyter.widget-state+json",
    "application/vnd.plotly.v1+json",
    "image/svg+xml",
)


def pytest_collectstart(collector: Any) -> None:
    """Add to the kinds of output that nbval leaves out of the comparison."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += SKIPPED
