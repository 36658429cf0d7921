"""Environments in the cache that lay other packages in front of those of the running one, and never see our own.

Each is a virtual environment whose search path ends in the packages of the running one. What it pins lies in front
of them, so an environment costs a download of a few packages and no second PyTorch. Links to sources (`.pth` files)
of the running environment are not followed: an editable install of this package is not seen.
"""

from __future__ import annotations

import platform
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from vocabx_utils.files import hash_bytes
from vocabx_utils.folders import atomic_folder
from vocabx_utils.paths import cache_dir


class NoIndexError(RuntimeError):
    """The package index did not give what an environment needs."""


def layered_environment(name: str, pins: Sequence[str] = (), say: Callable[[str], None] | None = None) -> Path:
    """Build an environment in the cache, or take the one that is there, and return its interpreter.

    Pins are requirements such as `packaging==25.0`, installed as they are, without what they need; `say` is told first.
    NoIndexError, which ends in pip's last line, where pip could not install them.
    """
    facts = [*pins, platform.python_version(), platform.machine(), sysconfig.get_path("purelib")]
    key = hash_bytes(["\n".join(facts).encode()])[:12]
    folder = cache_dir() / "environments" / f"{name}-{key}"
    if not folder.exists():
        if say is not None:
            say(f"Installing {', '.join(pins[:2])} and {max(len(pins) - 2, 0)} more packages into {folder} (once)")
        with atomic_folder(folder) as scratch:
            _build(scratch, pins)
    return folder / "bin" / "python"


def _build(folder: Path, pins: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    packages = next(folder.glob("lib/python*/site-packages"))
    (packages / "locked.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    if not pins:
        return
    install = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*install, "--target", packages, *pins], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise NoIndexError(f"pip could not install {', '.join(pins)}: {last}")
