"""What phase 1 left in a run: the new tokens and their rows by epoch, read from files when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vocabx_utils.files import DamagedFileError, read_json, read_jsonl, read_tensors
from vocabx_utils.paths import show_path
from vocabx_utils.runs import MissingStageError, Run, epoch_files

if TYPE_CHECKING:
    import torch

__all__ = ["MATRICES", "Matrix", "RowHistory", "TokenInfo", "read_histories", "read_history", "read_tokens"]

Matrix = Literal["input", "head"]
MATRICES: tuple[Matrix, Matrix] = ("input", "head")


@dataclass(frozen=True)
class TokenInfo:
    """A new token as the analysis needs it.

    Attributes:
        id: id under the extended tokenizer (V or more).
        text: what it decodes to.
        subtokens: its ids under the original tokenizer, in order.
        count: occurrences in the corpus it was chosen on.
    """

    id: int
    text: str
    subtokens: tuple[int, ...]
    count: int


def read_tokens(run: Run) -> tuple[TokenInfo, ...]:
    """Read the new tokens of a run in the order of their ids, which is the order of the trained rows.

    Args:
        run: a run whose notebook 01 is done.

    Returns:
        One entry for each new token.

    Raises:
        MissingStageError: notebook 01 was not run.
        ValueError: the file is not a table of new tokens, or its ids have gaps.
    """
    path = run.require("01", "extension/tokens.json")
    content = read_json(path)
    entries = content.get("tokens", []) if isinstance(content, Mapping) else content
    try:
        tokens = sorted((_parse_token(entry) for entry in entries), key=lambda token: token.id)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{show_path(path)}: expected a list of tokens with id, text, subtokens and count ({error!r})."
        ) from error
    if any(later.id != earlier.id + 1 for earlier, later in pairwise(tokens)):
        raise ValueError(f"{show_path(path)}: the ids of the new tokens are not consecutive.")
    return tuple(tokens)


def _parse_token(entry: Mapping[str, Any]) -> TokenInfo:
    subtokens = tuple(int(i) for i in entry["subtokens"])
    return TokenInfo(int(entry["id"]), str(entry["text"]), subtokens, int(entry["count"]))


@dataclass(frozen=True)
class RowHistory:
    """Checkpoints of one phase-1 variant, one for each epoch; epoch 0 is the initial state.

    Attributes:
        variant: its name, such as `mean_kl_last`.
        files: path by epoch, ascending.
        metrics: one mapping for each finished epoch (`metrics.jsonl`), empty if there are none.
    """

    variant: str
    files: Mapping[int, Path]
    metrics: tuple[Mapping[str, Any], ...] = ()

    @property
    def epochs(self) -> tuple[int, ...]:
        """Epochs that have a checkpoint."""
        return tuple(self.files)

    @property
    def first(self) -> int:
        """The earliest checkpoint, 0 unless files are missing."""
        return self.epochs[0]

    @property
    def last(self) -> int:
        """The latest checkpoint."""
        return self.epochs[-1]

    @property
    def missing(self) -> tuple[int, ...]:
        """Epochs without a checkpoint between 0 and the last one."""
        return tuple(sorted(set(range(self.last + 1)) - set(self.epochs)))

    def rows(self, epoch: int, matrix: Matrix = "input") -> torch.Tensor:
        """Read the rows of one epoch.

        Args:
            epoch: one of `epochs`.
            matrix: `input` (embedding) or `head`.

        Returns:
            (N, D) float32 on the CPU.

        Raises:
            ValueError: there is no such matrix, no checkpoint of that epoch, or the file is damaged.
        """
        return self._read(epoch, matrix, slice(None))

    def row(self, epoch: int, matrix: Matrix, token: int) -> torch.Tensor:
        """Read the row of one token, (D,) float32, without the others; see `rows`."""
        return self._read(epoch, matrix, slice(token, token + 1))[0]

    def _read(self, epoch: int, matrix: Matrix, which: slice) -> torch.Tensor:
        import torch
        from safetensors import safe_open

        if matrix not in MATRICES:
            raise ValueError(f"Unknown matrix {matrix!r}; choose one of {MATRICES}.")
        if epoch not in self.files:
            raise ValueError(f"{self.variant} has no checkpoint of epoch {epoch}; it has {list(self.epochs)}.")
        path = self.files[epoch]
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
    """Find the checkpoints of one variant of phase 1.

    Args:
        run: a run whose notebook 03 is done.
        variant: its name.

    Returns:
        The history; rows are read only when asked for.

    Raises:
        MissingStageError: the variant does not exist or has no checkpoint.
    """
    folder = run.folder / "03_phase1_training" / variant
    found = epoch_files(folder / "rows")
    if not found:
        known = ", ".join(run.variants("03")) or "none"
        raise MissingStageError(
            f"Run {run.name!r} has no phase-1 rows of variant {variant!r} (finished: {known}). "
            f"Notebook 03_phase1_training makes them: `vocabx run --only 03 --run-name {run.name}`."
        )
    metrics = read_jsonl(folder / "metrics.jsonl") if (folder / "metrics.jsonl").exists() else []
    return RowHistory(variant, found, tuple(metrics))


def read_histories(run: Run, variants: Iterable[str] | None = None) -> dict[str, RowHistory]:
    """Find the checkpoints of several variants, of all finished ones if none are named.

    Raises:
        MissingStageError: there is nothing.
    """
    names: Sequence[str] = tuple(variants) if variants is not None else run.variants("03")
    if not names:
        run.require("03", "*/provenance.json")  # never exists under that name: raises with the remedy
    return {name: read_history(run, name) for name in names}
