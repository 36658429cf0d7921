"""Folders that are whole or not there: filled under a hidden name by one writer, then moved to their place."""

from __future__ import annotations

import contextlib
import glob
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vocabx_utils import locks
from vocabx_utils.files import open_to_others
from vocabx_utils.paths import show_path

MARGIN = 256 << 20  # bytes that must stay free on a disk


class SpaceError(RuntimeError):
    """A result would not fit on the disk."""


def require_space(folder: Path, size: int, what: str, remedy: str) -> int:
    """Refuse work whose result of `size` bytes would not fit on the disk, before it begins; return what is free there.

    The folder need not exist yet; `what` the result is and the `remedy` go into the SpaceError, raised where less than
    the result and a margin is free.
    """
    free = free_bytes(folder)
    if size + MARGIN > free:
        raise SpaceError(
            f"{what} needs {size / 2**20:,.1f} MiB + {MARGIN / 2**20:.0f} MiB margin in {show_path(folder)}, where "
            f"{free / 2**20:,.1f} MiB are free; {remedy}"
        )
    return free


def free_bytes(folder: Path) -> int:
    """Return what is free on the disk of a folder, which need not exist yet."""
    existing = next(place for place in (folder.resolve(), *folder.resolve().parents) if place.exists())
    return shutil.disk_usage(existing).free


@contextlib.contextmanager
def atomic_folder(path: str | Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a new folder to fill; on success its content stands at `path`, on an error it goes.

    Entering it shows at once whether `path` can be written, before any work is done, and keeps other writers out
    (BusyError). What a killed writer left is removed. With `replace` a folder that stands there goes at the end;
    otherwise it must be empty (OSError, as for a file, or a place that cannot be written).
    """
    target, made = Path(path).resolve(), list[Path]()
    try:
        with contextlib.ExitStack() as stack:
            try:
                inside = _to_fill(path, target, replace)
                beside = target / target.name if inside else target
                made = [folder for folder in beside.parents if not folder.exists()]
                scratch = stack.enter_context(_scratch_folder(beside))
            except OSError as error:
                if error.errno is None:  # in our own words
                    raise
                raise OSError(f"{path} cannot be written ({error.strerror}). Give another folder.") from error
            yield scratch
            if inside:
                for child in sorted(scratch.iterdir()):
                    child.rename(target / child.name)
            else:
                if replace:
                    shutil.rmtree(target, ignore_errors=True)
                scratch.rename(target)
    except BaseException:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _to_fill(path: str | Path, target: Path, replace: bool) -> bool:
    """Whether `target` is an empty folder, which is filled and not replaced: a shell may stand in it, or a mount be."""
    if not target.exists():
        return False
    if not target.is_dir():
        raise FileExistsError(f"{path} exists and is not a folder. Give another one.")
    beside = target / target.name
    if not replace and set(target.iterdir()) - {locks.lock_path(beside), *_leftovers(beside)}:
        raise FileExistsError(f"{path} exists and is not empty. Give another folder.")
    return not replace


@contextlib.contextmanager
def _scratch_folder(beside: Path) -> Iterator[Path]:
    with locks.writing(beside):  # nobody else works in what lies there
        for left in _leftovers(beside):
            shutil.rmtree(left, ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(dir=beside.parent, prefix=f".{beside.name[:200]}-"))
        try:
            open_to_others(scratch, 0o777)
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _leftovers(beside: Path) -> list[Path]:
    return list(beside.parent.glob(f".{glob.escape(beside.name[:200])}-????????"))
