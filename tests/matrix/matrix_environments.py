"""Environments in which a stranger loads our folders: other packages, and never our own."""

from __future__ import annotations

from pathlib import Path

from vocabx_utils.layers import layered_environment

# Release 4 as most servers and trainers run it, with the packages that it needs in other versions than the lock's.
PINS: dict[str, tuple[str, ...]] = {
    "transformers-4": ("transformers==4.57.6", "tokenizers==0.22.2", "huggingface-hub==0.36.2"),
    "locked": (),
}


def environment(name: str) -> Path:
    """Build an environment of `PINS` in the cache, or take the one that is there; returns its interpreter."""
    return layered_environment(name, PINS[name])
