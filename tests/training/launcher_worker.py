"""Be a launcher, in a process that has paid its imports (see `forked`); what it starts are new processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def accelerate_launch(folder: Path, words: Sequence[str]) -> None:
    """Be `accelerate launch`, called in a folder."""
    from accelerate.commands import launch

    os.chdir(folder)
    sys.argv[1:] = words
    launch.main()
