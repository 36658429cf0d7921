"""Run folders: how stages hand over files, and how finished work is recognised.

Every stage writes below `runs/<run>/<NN_stage>/[<variant>/]`. `claim` opens a folder with a key (settings and
input fingerprints), `finish` seals it with `provenance.json`. Finished work with the same key is skipped, with
another key refused. All files are written atomically: temporary name, fsync, rename.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import functools
import gzip
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vocabx_utils import locks
from vocabx_utils.paths import STAGES, notebooks_root, project_root, runs_root, show_path, stage_name

if TYPE_CHECKING:
    import pandas as pd
    import torch

__all__ = [
    "MARGIN",
    "STAGES",
    "DamagedFileError",
    "KeyMismatchError",
    "MissingStageError",
    "Run",
    "SpaceError",
    "append_jsonl",
    "atomic_folder",
    "atomic_path",
    "claim",
    "digest",
    "file_digest",
    "finish",
    "git_revision",
    "installed_versions",
    "iterate_jsonl",
    "notebooks_root",
    "open_run",
    "progress",
    "project_root",
    "read_json",
    "read_jsonl",
    "read_provenance",
    "read_tensors",
    "require_space",
    "runs_root",
    "show_path",
    "stage_name",
    "write_json",
    "write_jsonl",
    "write_table",
    "write_tensors",
    "write_text",
]

MARGIN = 256 << 20  # bytes that must stay free on a disk
_CHECKSUM = "sha256"  # name of the checksum among the metadata of a safetensors file
_RECORDED = ("torch", "transformers", "tokenizers", "peft", "accelerate", "numpy", "pandas", "scipy")


class MissingStageError(RuntimeError):
    """A file that an earlier notebook makes is not there."""


class KeyMismatchError(RuntimeError):
    """A folder holds work done with other settings or inputs."""


class SpaceError(RuntimeError):
    """A result would not fit on the disk."""


class DamagedFileError(ValueError):
    """A file cannot be read, or holds something else than what was written."""


@dataclass(frozen=True)
class Run:
    """One run of the series: a folder with a sub-folder for each stage."""

    name: str
    folder: Path

    def stage(self, stage: str, variant: str | None = None) -> Path:
        """Folder of a stage (`03` or its full name), or of one variant of it; made if it is missing."""
        folder = self.folder / stage_name(stage) / (variant or "")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def require(self, stage: str, relative: str = "provenance.json") -> Path:
        """Path of a file or folder that a stage made.

        Raises:
            MissingStageError: it is not there; the message says which notebook makes it and how to run that.
        """
        path = self.folder / stage_name(stage) / relative
        if not path.exists():
            raise MissingStageError(
                f"{show_path(path)} is missing. Notebook {stage_name(stage)} makes it: "
                f"run `vocabx run --only {stage_name(stage)[:2]} --run-name {self.name}` first."
            )
        return path

    def variants(self, stage: str) -> list[str]:
        """Names of the finished variants of a stage, sorted."""
        folder = self.folder / stage_name(stage)
        return sorted(p.parent.name for p in folder.glob("*/provenance.json"))


def open_run(name: str) -> Run:
    """Open a run by name below `runs_root()`; its folder is made if it is missing."""
    folder = runs_root() / name
    folder.mkdir(parents=True, exist_ok=True)
    return Run(name, folder)


# --- keys and provenance -----------------------------------------------------------------------------------


def digest(value: Any) -> str:
    """SHA-256 (first 16 hex digits) of a JSON-ready value in canonical form."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def claim(folder: Path, key: Mapping[str, Any], *, writes: bool = True) -> Literal["new", "resume", "finished"]:
    """Open a stage folder for work described by `key`, and keep other processes out of it until `finish`.

    Args:
        folder: where the work goes; made if it is missing.
        key: settings and input fingerprints, JSON-ready. Two runs with equal keys give equal results.
        writes: False in the processes of a group that leave writing, and the lock, to their first one.

    Returns:
        `new` (nothing there), `resume` (same key, unfinished) or `finished` (same key, sealed by `finish`).

    Raises:
        KeyMismatchError: the folder holds work with another key; the message lists what differs.
        BusyError: another process works in the folder; the message names its host and process id.
    """
    key = dict(json.loads(json.dumps(key, default=str)))
    if _state(folder, key) == "finished":  # whoever only reads does not have to wait
        return "finished"
    taken = writes and locks.hold(folder)
    state: Literal["new", "resume", "finished"] | None = None
    try:
        state = _state(folder, key)
        if state == "new":
            write_json(folder / "key.json", key)
    finally:
        if taken and state in (None, "finished"):
            locks.release(folder)
    return state


def _state(folder: Path, key: Mapping[str, Any]) -> Literal["new", "resume", "finished"]:
    path = folder / "key.json"
    if not path.exists():
        return "new"
    held = read_json(path)
    if held != key:
        names = sorted(n for n in held.keys() | key.keys() if held.get(n) != key.get(n))
        differing = "; ".join(f"{n}: {held.get(n)!r} there, {key.get(n)!r} now" for n in names)
        raise KeyMismatchError(
            f"{show_path(folder)} holds work with other settings ({differing}). "
            "Choose another run name, or remove that folder to do the work again."
        )
    return "finished" if (folder / "provenance.json").exists() else "resume"


def finish(folder: Path, **extra: Any) -> None:
    """Seal a stage folder: write `provenance.json` with its key, versions, git revision and `extra`; free its lock.

    Raises:
        BusyError: another process works in the folder.
    """
    key_path = folder / "key.json"
    with locks.writing(folder):
        write_json(
            folder / "provenance.json",
            {
                "key": read_json(key_path) if key_path.exists() else {},
                "finished": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                "python": platform.python_version(),
                "versions": installed_versions(_RECORDED),
                "git": git_revision(),
                **extra,
            },
        )
    locks.release(folder)


def read_provenance(folder: Path) -> dict[str, Any]:
    """Read what `finish` wrote.

    Raises:
        MissingStageError: the folder holds no finished work.
    """
    if not (folder / "provenance.json").exists():
        raise MissingStageError(f"{show_path(folder)} holds no finished work: provenance.json is missing.")
    return read_json(folder / "provenance.json")


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of the installed distributions among `names`."""
    versions = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


@functools.lru_cache(maxsize=1)
def git_revision() -> str | None:
    """Commit of the checkout, with `+` behind it when tracked files differ; None outside one.

    A checkout that belongs to another user, as in many containers, is read too: git's refusal guards against hooks
    and settings of strangers, and this reading runs none.
    """

    def git(*words: str) -> str:
        safe = ["-c", "safe.directory=*", "-c", "core.fsmonitor=false"]
        command = ["git", *safe, "-C", str(project_root()), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None


# --- files -------------------------------------------------------------------------------------------------


def require_space(folder: Path, size: int, what: str, remedy: str) -> int:
    """Refuse work whose result would not fit on the disk, before it begins.

    Args:
        folder: where the result goes; it need not exist yet.
        size: of the result, in bytes.
        what: the result, for the message.
        remedy: what to do about it, for the message.

    Returns:
        Bytes that are free there.

    Raises:
        SpaceError: fewer bytes are free than the result and a margin take.
    """
    existing = next(place for place in (folder.resolve(), *folder.resolve().parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if size + MARGIN > free:
        raise SpaceError(
            f"{what} needs {size / 2**20:,.1f} MiB + {MARGIN / 2**20:.0f} MiB margin in {show_path(folder)}, where "
            f"{free / 2**20:,.1f} MiB are free; {remedy}"
        )
    return free


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it is synced to disk and takes the name `path`.

    On an error (a full disk included) the temporary file goes and whatever stood at `path` stays.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)  # mkstemp makes files that only their owner may read
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise OSError(
            error.errno, f"Could not write {path} ({error.strerror}); what stood there is unchanged"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a new folder to fill; on success its content stands at `path`, on an error it goes.

    Entering it shows at once whether `path` can be written, before any work is done.

    Raises:
        OSError: `path` is a file, or a folder with something in it, or cannot be written.
    """
    target = Path(path).resolve()
    made: list[Path] = []
    try:
        inside = target.is_dir()  # an empty folder is filled, not replaced: it may be a mount, or where a shell stands
        if inside and any(target.iterdir()):
            raise FileExistsError(f"{path} exists and is not empty. Give another folder.")
        if target.exists() and not inside:
            raise FileExistsError(f"{path} exists and is not a folder. Give another one.")
        scratch = (target if inside else target.parent) / f".{target.name[:200]}-{os.getpid()}"
        made = [folder for folder in scratch.parents if not folder.exists()]
        scratch.mkdir(parents=True)
    except FileExistsError:
        raise
    except OSError as error:
        raise OSError(f"{path} cannot be written ({error.strerror}). Give another folder.") from error
    try:
        yield scratch
        if inside:
            for child in sorted(scratch.iterdir()):
                child.rename(target / child.name)
        else:
            scratch.rename(target)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        for folder in made:
            folder.rmdir()
        raise
    shutil.rmtree(scratch, ignore_errors=True)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON (indented, UTF-8) atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")


def read_json(path: str | Path) -> Any:
    """Read JSON.

    Raises:
        ValueError: the file is not JSON; the message names it.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error


def write_jsonl(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON Lines atomically."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows))


def append_jsonl(path: str | Path, row: Mapping[str, Any]) -> None:
    """Append one row to JSON Lines and sync it, so that a killed run keeps every finished row.

    A torn last line that a kill left behind is cut off first.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        _drop_torn_line(file)
        file.write((json.dumps(row, ensure_ascii=False, default=str) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


def _drop_torn_line(file: Any) -> None:
    end = file.seek(0, os.SEEK_END)
    if end == 0:
        return
    file.seek(end - 1)
    if file.read(1) == b"\n":
        return
    file.seek(0)
    content = file.read()
    start = content.rfind(b"\n") + 1
    try:
        json.loads(content[start:])
    except ValueError:
        file.truncate(start)
    else:
        file.write(b"\n")  # whole, only its line end is missing


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """Read JSON Lines, plain or `.gz`; see `iterate_jsonl`."""
    return [row for _, row in iterate_jsonl(path)]


def iterate_jsonl(path: str | Path, *, allow_torn: bool = True) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield line number (from 1, empty lines counted) and row of JSON Lines, plain or `.gz`.

    Args:
        path: the file; a byte-order mark at its beginning is passed over.
        allow_torn: leave out a last line that a killed write cut off; data that we did not write has no such excuse.

    Raises:
        ValueError: the file is not UTF-8, is a damaged archive, or holds a line that is not a JSON object; the
            message names file and line.
    """
    path, number = Path(path), 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, data in enumerate(file, 1):
                try:
                    line = data.decode("utf-8-sig" if number == 1 else "utf-8")
                    row = _parse_line(line, path, number) if line.strip() else None
                except ValueError:
                    if allow_torn and not data.endswith(b"\n"):
                        return
                    raise
                if row is not None:
                    yield number, row
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, line {number} is not UTF-8 (byte {error.object[error.start]:#04x} at place {error.start}). "
            "Convert the file to UTF-8, for example with iconv."
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is a damaged or cut archive: it cannot be read after line {number} ({error})."
        ) from error


def _parse_line(line: str, path: str | Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"{path}, line {number} holds a {type(row).__name__}; expected an object.")
    return row


def write_tensors(
    path: str | Path, tensors: Mapping[str, torch.Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write tensors as safetensors, atomically, from contiguous CPU copies, with a checksum for `read_tensors`.

    Raises:
        OSError: the disk is full, for example; the message names the path.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    path = Path(path)
    for left in path.parent.glob(f".{path.stem}-????????{path.suffix}"):  # of a writer that was killed
        left.unlink(missing_ok=True)
    kept = {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}
    with atomic_path(path) as temporary:
        try:
            save_file(kept, temporary, {**(metadata or {}), _CHECKSUM: _tensors_digest(kept)})
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error)) from error


def read_tensors(path: str | Path) -> dict[str, torch.Tensor]:
    """Read safetensors onto the CPU, and compare them with the checksum that `write_tensors` stored.

    Raises:
        DamagedFileError: the file is truncated, or its content is not what was written; the message names the path.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            written = (file.metadata() or {}).get(_CHECKSUM)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise _damaged(Path(path), str(error)) from error
    if written is not None and written != _tensors_digest(tensors):
        raise _damaged(Path(path), "its checksum is not the one that was written")
    return tensors


def _damaged(path: Path, reason: str) -> DamagedFileError:
    return DamagedFileError(
        f"{show_path(path)} is damaged ({reason}). Remove it, or the folder of its variant where that is finished, "
        "and run the notebook that made it again."
    )


def _tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    import torch

    state = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        raw: Any = tensor.reshape(-1).view(torch.uint8).numpy()
        state.update(raw)
    return state.hexdigest()


def file_digest(path: str | Path) -> str:
    """SHA-256 (hex digits) of a file's content."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_table(path: str | Path, table: pd.DataFrame) -> None:
    """Write a table as `.csv` or `.parquet`, atomically.

    Raises:
        ValueError: another file name.
    """
    writers = {
        ".csv": lambda p: table.to_csv(p, index=False),
        ".parquet": lambda p: table.to_parquet(p, index=False),
    }
    suffix = Path(path).suffix
    if suffix not in writers:
        raise ValueError(f"{path}: tables are written as .csv or .parquet.")
    with atomic_path(path) as temporary:
        writers[suffix](temporary)


# --- progress ----------------------------------------------------------------------------------------------


def progress(
    iterable: Iterable[Any] | None = None,
    *,
    total: int | None = None,
    desc: str = "",
    unit: str = "it",
    delay: float = 0,
) -> Any:
    """Show the progress of a long loop: a bar on a terminal, a plain line every ten seconds elsewhere.

    Args:
        iterable: what to iterate over; leave out to call `update(n)` by hand.
        total: number of units, if `iterable` has no length.
        desc: what is being done.
        unit: name of one unit.
        delay: seconds before anything is shown, for work that is mostly short.

    Returns:
        A `tqdm` object (iterable, context manager, `update`, `set_postfix`).
    """
    from tqdm import tqdm

    interactive = sys.stderr.isatty() and os.environ.get("VOCABX_PROGRESS") != "plain"
    if interactive:
        return tqdm(iterable, total=total, desc=desc, unit=unit, delay=delay, dynamic_ncols=True)

    class PlainLines(tqdm):
        """One line per display, because carriage returns make no sense in a log or a notebook file."""

        def display(self, msg: str | None = None, pos: int | None = None) -> bool:
            if self.n:
                print(msg or str(self), file=sys.stderr, flush=True)
            return True

    layout = {"ascii": True, "mininterval": 10, "maxinterval": 10, "ncols": 100}
    return PlainLines(iterable, total=total, desc=desc, unit=unit, delay=delay, **layout)
