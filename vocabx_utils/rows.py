"""What phase 1 leaves in a run: the new tokens, and a file `epoch_NN.safetensors` for each epoch, 0 before training.

Every epoch file is written and read here: the rows of a variant (`input_rows`, `head_rows`, both (N, D)) in its
folder `rows`, and sums per new token in its folder `tokens`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import safe_open

from vocabx_utils.files import DamagedFileError, read_json, read_tensors, write_tensors
from vocabx_utils.paths import show_path
from vocabx_utils.runs import MissingStageError, Run

Matrix = Literal["input", "head"]
MATRICES: tuple[Matrix, Matrix] = ("input", "head")
_EPOCH_FILE = re.compile(r"epoch_(\d+)\.safetensors")


def epoch_files(folder: str | Path) -> dict[int, Path]:
    """List the files `epoch_NN.safetensors` of a folder by epoch, in the order of their numbers; there may be none."""
    found = {int(m[1]): path for path in Path(folder).glob("epoch_*") if (m := _EPOCH_FILE.fullmatch(path.name))}
    return dict(sorted(found.items()))


def write_epoch(folder: str | Path, epoch: int, tensors: Mapping[str, torch.Tensor]) -> Path:
    """Write the file of one epoch, atomically and with a checksum, and return its path."""
    path = Path(folder) / f"epoch_{epoch:02d}.safetensors"
    write_tensors(path, dict(tensors))
    return path


def read_epoch(folder: str | Path, epoch: int | None = None) -> dict[str, torch.Tensor]:
    """Read the file of one epoch, of the last one by default, and compare it with its checksum.

    MissingStageError where there is none, or the last one of a finished variant is gone, DamagedFileError where it is
    not what was written.
    """
    files = epoch_files(folder)
    if not files or (epoch is not None and epoch not in files):
        raise MissingStageError(
            f"{show_path(Path(folder))} holds {'no epoch' if epoch is None else f'no epoch {epoch}'}; it has "
            f"{list(files)}. Notebook 03_phase1_training makes them: `vocabx run --only 03` (with --run-name)."
        )
    return read_tensors(files[_final(files) if epoch is None else epoch])


def _final(found: Mapping[int, Path]) -> int:
    """The last epoch of the files of a variant; MissingStageError where it is finished and its last file is gone."""
    last = max(found)
    folder = found[last].parents[1]
    sealed = folder / "provenance.json"
    key = read_json(sealed)["key"] if sealed.exists() else {}
    settings = {} if str(key.get("variant")).endswith("_untrained") else key.get("settings", {})
    trained = settings.get("epochs", 0) + settings.get("restart_epochs", 0)
    if last < trained:
        raise MissingStageError(
            f"{show_path(folder)} was trained for {trained} epochs, and the last file there is of epoch {last}. Put "
            f"epoch_{trained:02d}.safetensors back into {found[last].parent.name}/, or remove the folder and run "
            "notebook 03_phase1_training again: `vocabx run --only 03` (with --run-name)."
        )
    return last


@dataclass(frozen=True)
class RowHistory:
    """The rows of one phase-1 variant by epoch; a file is read when its rows are asked for."""

    variant: str  # its name, such as `mean_kl_last`
    files: Mapping[int, Path]  # path by epoch, ascending

    @property
    def epochs(self) -> tuple[int, ...]:
        """Epochs that have a file."""
        return tuple(self.files)

    @property
    def first(self) -> int:
        """The earliest epoch, 0 unless files are missing."""
        return self.epochs[0]

    @property
    def last(self) -> int:
        """The latest epoch."""
        return self.epochs[-1]

    @property
    def missing(self) -> tuple[int, ...]:
        """Epochs without a file between 0 and the last one."""
        return tuple(sorted(set(range(self.last + 1)) - set(self.epochs)))

    def file(self, epoch: int | None = None) -> Path:
        """Return the path of one epoch, of the last one by default.

        ValueError where there is none, MissingStageError where the variant is finished and its last file is gone.
        """
        wanted = _final(self.files) if epoch is None else epoch
        if wanted not in self.files:
            raise ValueError(f"{self.variant} has no checkpoint of epoch {wanted}; it has {list(self.epochs)}.")
        return self.files[wanted]

    def rows(self, epoch: int, matrix: Matrix = "input") -> torch.Tensor:
        """Read the rows of one epoch, (N, D) float32 on the CPU; ValueError where there is no such matrix or file."""
        return self._read(epoch, matrix, slice(None))

    def row(self, epoch: int, matrix: Matrix, token: int) -> torch.Tensor:
        """Read the row of one token, (D,) float32, without the others; see `rows`."""
        return self._read(epoch, matrix, slice(token, token + 1))[0]

    def _read(self, epoch: int, matrix: Matrix, which: slice) -> torch.Tensor:
        if matrix not in MATRICES:
            raise ValueError(f"Unknown matrix {matrix!r}; choose one of {MATRICES}.")
        path = self.file(epoch)
        try:
            _check_once(path, path.stat().st_mtime_ns)
        except DamagedFileError as error:
            raise DamagedFileError(f"{error} Here: the folder of {self.variant}, and notebook 03.") from error
        with safe_open(path, framework="pt") as file:
            return file.get_slice(f"{matrix}_rows")[which].to(torch.float32)


@lru_cache(maxsize=1024)
def _check_once(path: Path, changed: int) -> None:
    """Compare a file with its checksum; after that, single rows are read without the others."""
    read_tensors(path)


def read_history(run: Run, variant: str) -> RowHistory:
    """Find the epochs of one phase-1 variant; MissingStageError where the variant does not exist or has no epoch."""
    found = epoch_files(run.folder / "03_phase1_training" / variant / "rows")
    if not found:
        known = ", ".join(run.variants("03")) or "none"
        raise MissingStageError(
            f"Run {run.name!r} has no phase-1 rows of variant {variant!r} (finished: {known}). "
            f"Notebook 03_phase1_training makes them: `vocabx run --only 03 --run-name {run.name}`."
        )
    return RowHistory(variant, found)


def read_histories(run: Run) -> dict[str, RowHistory]:
    """Find the epochs of all finished variants; MissingStageError where there is none."""
    names = run.variants("03")
    if not names:
        run.require("03", "*/provenance.json")  # never exists under that name: raises with the remedy
    return {name: read_history(run, name) for name in names}


@dataclass(frozen=True)
class NewToken:
    """One new token."""

    id: int  # V or more
    text: str  # its text (the replacement character where its bytes are no whole characters)
    raw: bytes  # its UTF-8 bytes
    subtokens: tuple[int, ...]  # original ids that it replaces
    count: int = 0  # occurrences in the corpus that it was chosen on; 0 for tokens that were given as text
    # False for a token that only serves as a step of merges towards longer ones: it was not asked for, or the corpus
    # never shows it
    wanted: bool = True

    @property
    def tokens_saved(self) -> int:
        """Original tokens saved on that corpus."""
        return self.count * (len(self.subtokens) - 1)


def read_tokens(run: Run) -> tuple[NewToken, ...]:
    """Read the new tokens of a run in the order of their ids, which is the order of the rows.

    MissingStageError before notebook 01, ValueError where its file is no table of new tokens, or the ids have gaps.
    """
    path = run.require("01", "extension/tokens.json")
    content = read_json(path)
    entries = content.get("tokens", []) if isinstance(content, Mapping) else content
    try:
        tokens = sorted(map(parse_token, entries), key=lambda token: token.id)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{show_path(path)}: expected a list of tokens with id, text, raw, subtokens and count ({error!r})."
        ) from error
    if any(later.id != earlier.id + 1 for earlier, later in pairwise(tokens)):
        raise ValueError(f"{show_path(path)}: the ids of the new tokens are not consecutive.")
    return tuple(tokens)


def parse_token(entry: Mapping[str, Any]) -> NewToken:
    """Make a token of its entry in `tokens.json`."""
    subtokens = tuple(int(i) for i in entry["subtokens"])
    raw, wanted = bytes.fromhex(entry["raw"]), bool(entry.get("wanted", True))
    return NewToken(int(entry["id"]), str(entry["text"]), raw, subtokens, int(entry["count"]), wanted)
