"""Files that are whole or not there: text, JSON, JSON Lines, tables, tensors; and digests of values and files.

A file is written under a temporary name, synced and renamed.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from vocabx_utils.paths import show_path

if TYPE_CHECKING:
    import pandas as pd
    import torch

_CHECKSUM = "sha256"  # name of the checksum among the metadata of a safetensors file


class DamagedFileError(ValueError):
    """A file cannot be read, or holds something else than what was written."""


# --- digests -----------------------------------------------------------------------------------------------


def hash_bytes(parts: Iterable[bytes]) -> str:
    """Return the SHA-256 (64 hex digits) of byte strings one after the other.

    >>> hash_bytes([b"ab", b"c"]) == hash_bytes([b"abc"])
    True
    """
    state = hashlib.sha256()
    for part in parts:
        state.update(part)
    return state.hexdigest()


def digest(value: Any) -> str:
    """Return the SHA-256 (first 16 hex digits) of a JSON-ready value in canonical form.

    >>> digest({"a": 1, "b": [2]}) == digest({"b": [2], "a": 1})
    True
    """
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hash_bytes([text.encode()])[:16]


def file_digest(path: str | Path) -> str:
    """Return the SHA-256 (64 hex digits) of a file's content."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- atomic files ------------------------------------------------------------------------------------------


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
        open_to_others(temporary, 0o666)
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
def os_errors(folder: str | Path) -> Iterator[None]:
    """Turn what tokenizers and safetensors raise while they write (a full disk, for example) into an `OSError`.

    The one raises plain Exception, the other an error of its own.
    """
    try:
        yield
    except Exception as error:
        if type(error) is Exception or isinstance(error, SafetensorError):
            raise OSError(errno.EIO, f"Could not write {folder} ({error})") from error
        raise


def open_to_others(path: Path, mode: int) -> None:
    """Give a temporary file or folder, which only its owner may read, the mode of any other one."""
    umask = os.umask(0)
    os.umask(umask)
    path.chmod(mode & ~umask)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def write_table(path: str | Path, table: pd.DataFrame) -> None:
    """Write a table as `.csv` or `.parquet`, atomically; ValueError for another file name."""
    writers: dict[str, Any] = {".csv": table.to_csv, ".parquet": table.to_parquet}
    suffix = Path(path).suffix
    if suffix not in writers:
        raise ValueError(f"{path}: tables are written as .csv or .parquet.")
    with atomic_path(path) as temporary:
        writers[suffix](temporary, index=False)


# --- JSON and JSON Lines -----------------------------------------------------------------------------------


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON (indented, UTF-8) atomically."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, default=str) + "\n")


def read_json(path: str | Path) -> Any:
    """Read JSON; ValueError, with the file's name, where it is not."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error


def write_jsonl(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write JSON Lines atomically."""
    write_text(path, "".join(map(_line, rows)))


def append_jsonl(path: str | Path, row: Mapping[str, Any]) -> None:
    """Append one row to JSON Lines and sync it, so that a killed run keeps every finished row.

    A torn last line that a kill left behind is cut off first.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        _drop_torn_line(file)
        file.write(_line(row).encode())
        file.flush()
        os.fsync(file.fileno())


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False, default=str) + "\n"


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

    A byte-order mark at the beginning is passed over. So is, with `allow_torn`, a last line that a killed write cut
    off; data that we did not write has no such excuse. ValueError where the file is not UTF-8, is a damaged archive, or
    holds a line that is not a JSON object; the message names file and line.
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


def _parse_line(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {number} is not JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError(f"{path}, line {number} holds a {type(row).__name__}; expected an object.")
    return row


# --- tensors -----------------------------------------------------------------------------------------------


def write_tensors(
    path: str | Path, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors as safetensors, atomically, from contiguous CPU copies, with a checksum for `read_tensors`.

    OSError, with the path, where the disk is full, for example.
    """
    from safetensors.torch import save_file

    path = Path(path)
    for left in path.parent.glob(f".{path.stem}-????????{path.suffix}"):  # of a writer that was killed
        left.unlink(missing_ok=True)
    kept = {n: t.detach().cpu().contiguous().clone() for n, t in tensors.items()}
    with atomic_path(path) as temporary:
        try:
            save_file(kept, temporary, {**(metadata or {}), _CHECKSUM: _checksum(kept)})
        except SafetensorError as error:
            raise OSError(errno.EIO, str(error)) from error


def read_tensors(path: str | Path) -> dict[str, torch.Tensor]:
    """Read safetensors onto the CPU, and compare them with the checksum that `write_tensors` stored.

    DamagedFileError where the file is truncated, or its content is not what was written; the message names the path.
    """
    try:
        with safe_open(path, framework="pt") as file:
            written = (file.metadata() or {}).get(_CHECKSUM)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        reason = "" if written in (None, _checksum(tensors)) else "its checksum is not the one that was written"
    except SafetensorError as error:
        reason = str(error)
    if reason:
        raise DamagedFileError(
            f"{show_path(Path(path))} is damaged ({reason}). Remove it, or the folder of its variant where that is "
            "finished, and run the notebook that made it again."
        )
    return tensors


def _checksum(tensors: Mapping[str, torch.Tensor]) -> str:
    import torch

    def parts() -> Iterator[Any]:
        for name, tensor in sorted(tensors.items()):
            yield f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode()
            yield tensor.reshape(-1).view(torch.uint8).numpy()

    return hash_bytes(parts())
