"""Refuse files over 1.5 MB: weights, data and full-run outputs do not belong in the repository."""

from __future__ import annotations

import sys
from pathlib import Path

MAX_BYTES = 1_500_000  # what a notebook with its pictures may take


def too_large(paths: list[str]) -> list[str]:
    """Files among `paths` that are over the limit, with their size."""
    sizes = {path: Path(path).stat().st_size for path in paths if Path(path).is_file()}
    return [f"{path}: {size:,} bytes; at most {MAX_BYTES:,}" for path, size in sizes.items() if size > MAX_BYTES]


if __name__ == "__main__":
    found = too_large(sys.argv[1:])
    print("\n".join(found))
    sys.exit(bool(found))
