"""Environments in which a stranger loads our folders: other packages, and never our own.

Each is a virtual environment whose search path ends in the packages of the running one. What it pins lies in front
of them, so an environment costs a download of a few packages and no second PyTorch. Links to sources (`.pth` files)
of the running environment are not followed: an editable install of this package is not seen.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import sysconfig
from pathlib import Path

from vocabx_utils.files import hash_bytes
from vocabx_utils.folders import atomic_folder
from vocabx_utils.paths import cache_dir

# Release 4 as most servers and trainers run it, with the packages that it needs in other versions than the lock's.
PINS: dict[str, tuple[str, ...]] = {
    "transformers-4": ("transformers==4.57.6", "tokenizers==0.22.2", "huggingface-hub==0.36.2"),
    "locked": (),
}


class NoIndexError(RuntimeError):
    """The package index did not give what an environment needs."""


def environment(name: str) -> Path:
    """Build an environment in the cache, or take the one that is there.

    Args:
        name: of `PINS`.

    Returns:
        Its interpreter.

    Raises:
        NoIndexError: pip could not install the packages; the message ends in pip's last line.
    """
    facts = [*PINS[name], platform.python_version(), platform.machine(), sysconfig.get_path("purelib")]
    key = hash_bytes(["\n".join(facts).encode()])[:12]
    folder = cache_dir() / "matrix-env" / f"{name}-{key}"
    if not folder.exists():
        with atomic_folder(folder) as scratch:
            _build(scratch, PINS[name])
    return folder / "bin" / "python"


def _build(folder: Path, pins: tuple[str, ...]) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "locked.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    if not pins:
        return
    install = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*install, "--target", packages, *pins], capture_output=True, text=True)
    if done.returncode:
        raise NoIndexError(f"pip could not install {', '.join(pins)}: {done.stderr.strip().splitlines()[-1:]}")
