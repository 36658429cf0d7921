"""Progress of long loops, on a terminal and in a log."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


class _PlainLines(tqdm):
    """One line per display, because carriage returns make no sense in a log or a notebook file."""

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        if self.n:
            print(msg or str(self), file=sys.stderr, flush=True)
        return True


def progress(
    iterable: Iterable[Any] | None = None,
    *,
    total: int | None = None,
    desc: str = "",
    unit: str = "it",
    delay: float = 0,
) -> Any:
    """Show the progress of a long loop: a bar on a terminal, a plain line every ten seconds elsewhere.

    Without an iterable the `tqdm` object that is returned is told by hand, `update(n)`. Nothing is shown for the first
    `delay` seconds, for work that is mostly short.
    """
    named: dict[str, Any] = {"total": total, "desc": desc, "unit": unit, "delay": delay}
    if sys.stderr.isatty() and os.environ.get("VOCABX_PROGRESS") != "plain":
        return tqdm(iterable, dynamic_ncols=True, **named)
    return _PlainLines(iterable, ascii=True, mininterval=10, maxinterval=10, ncols=100, **named)
