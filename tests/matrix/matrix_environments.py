"""Environments in which a stranger loads our folders: other packages, and never our own.

Each is a virtual environment whose search path ends in the packages of the running one. What it pins lies in front
of them, so an environment costs a download of a few packages and no second PyTorch. Links to sources (`.pth` files)
of the running environment are not followed: an editable install of this package is not seen.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

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
    key = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
    folder = cache_dir() / "matrix-env" / f"{name}-{key}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{name}-"))
        try:
            _build(scratch, PINS[name])
            scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
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
