"""The teacher, run once: its hidden states at the positions that some variant compares, memory-mapped.

The teacher is the base model under its original tokenizer and never changes, so every epoch and every variant of a
run shares one cache. The file is a plain (R, D) matrix; `key.json` beside it says what it was made from, and holds its
checksum. It is used only for exactly that, and made again where its content is another.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vocabx_utils import files, folders, locks, paths
from vocabx_utils.models import BaseModel
from vocabx_utils.progress import progress
from vocabx_utils.student import logit_transform
from vocabx_utils.training.examples import Example, ExampleSet, Ints, micro_batches
from vocabx_utils.training.extended import rows_checksum
from vocabx_utils.training.objectives import phase1_loss
from vocabx_utils.training.prefixes import Prefixes

__all__ = ["TeacherCache", "teacher_cache"]

_STORED = {torch.float32: np.float32, torch.bfloat16: np.uint16, torch.float16: np.float16}


@dataclass(frozen=True)
class TeacherCache:
    """Hidden states of the teacher and where each example's are.

    Attributes:
        rows: per example, (k,) rows of `states` for the positions in `Example.teacher_at`.
        states: (R, D), memory-mapped on the host or a copy on the device.
        base_nats: summed cross-entropy of the teacher over all targets of all examples, in nats, for bits per byte.
        base_targets: how many targets that were.
        prefixes: what the blocks make of the tokens before each first divergence, the same for teacher and students.
    """

    rows: tuple[Ints, ...]
    states: Tensor
    base_nats: float
    base_targets: int
    prefixes: Prefixes

    @property
    def nbytes(self) -> int:
        return self.states.numel() * self.states.element_size()

    def to(self, device: torch.device, share: float = 0.3) -> TeacherCache:
        """Copy to a GPU if that takes at most ``share`` of its free memory; otherwise stay on the host."""
        if device.type != "cuda" or self.nbytes > share * torch.cuda.mem_get_info(device)[0]:
            return self
        return replace(self, states=self.states.to(device))

    def take(self, rows: Tensor, device: torch.device) -> Tensor:
        """Return (K, D) states of some rows on a device."""
        return self.states[rows.to(self.states.device)].to(device)


def teacher_cache(
    base: BaseModel,
    examples: ExampleSet,
    folder: Path,
    *,
    layer: int = -1,
    token_budget: int = 8192,
    tell: Callable[[str], None] = print,
    rank: int = 0,
    world: int = 1,
    barrier: Callable[[], None] = lambda: None,
    prefix_bytes: int | None = None,
) -> TeacherCache:
    """Open the cache of these examples, running the teacher if there is none for exactly this input.

    Args:
        base: the base model.
        examples: what will be compared.
        folder: of the cache; overwritten if it belongs to another model, tokenizer, data, dtype or layer.
        layer: hidden state to keep, -1 the last (after the final norm).
        token_budget: tokens of one teacher pass, padding included.
        tell: receives the announcement of the size, before anything is written.
        rank: this process among ``world``; each runs the teacher on its share and writes its rows of the one file.
        world: number of processes.
        barrier: waits for all processes.
        prefix_bytes: what the beginnings before each first divergence may take in memory; see `Prefixes`.

    Returns:
        The cache, memory-mapped.

    Raises:
        SpaceError: the file would not fit on the disk; nothing was written.
        BusyError: another process fills this cache.
        ValueError: no example has a position to compare, or an example holds an id outside the vocabulary.
    """
    rows, total = _layout(examples)
    if total == 0:
        raise ValueError("no example has an aligned position at or after a divergence: is the text free of new tokens?")
    _check_ids(base, examples)
    key = _key(base, examples, layer)
    width = base.input_rows.shape[1]
    if rank == 0:
        _drop_damaged(folder, key, tell)
    barrier()
    if not _valid(folder, key):
        barrier()
        with locks.writing(folder) if rank == 0 else contextlib.nullcontext():
            if rank == 0:
                _reserve(folder, total, width, base.dtype, tell)
            barrier()
            nats = _fill(base, examples, rows, folder / "states.bin", layer, token_budget, rank, world)
            files.write_json(folder / f"score_{rank:04d}.json", {"nats": nats})
            barrier()
            if rank == 0:
                scores = [files.read_json(folder / f"score_{r:04d}.json")["nats"] for r in range(world)]
                digest = files.file_digest(folder / "states.bin")
                made = {"rows": total, "base_nats": float(sum(scores)), "sha256": digest}
                files.write_json(folder / "key.json", key | made)
        barrier()
    stored: Any = np.memmap(folder / "states.bin", dtype=_STORED[base.dtype], mode="c", shape=(total, width))
    states = torch.from_numpy(stored)
    if base.dtype == torch.bfloat16:
        states = states.view(torch.bfloat16)
    targets = sum(len(e.original_ids) - 1 for e in examples.examples)
    nats = files.read_json(folder / "key.json")["base_nats"]
    prefixes = Prefixes(base, examples, token_budget=token_budget, limit=prefix_bytes)
    return TeacherCache(tuple(rows), states, nats, targets, prefixes)


def _layout(examples: ExampleSet) -> tuple[list[Ints], int]:
    rows: list[Ints] = []
    total = 0
    for example in examples.examples:
        count = len(example.teacher_at())
        rows.append(np.arange(total, total + count))
        total += count
    return rows, total


def _key(base: BaseModel, examples: ExampleSet, layer: int) -> dict[str, Any]:
    return {
        "model": base.fingerprint,
        "weights": _weights_checksum(base),  # the fingerprint samples the weights, and a cache must not be wrong
        "examples": examples.fingerprint(),  # ids and pairs, so the tokenizers and the text
        "dtype": str(base.dtype),
        "layer": layer,
    }


def _weights_checksum(base: BaseModel) -> str:
    state = base.model.state_dict()
    sums = [
        rows_checksum(state[name].reshape(-1, state[name].shape[-1] if state[name].ndim else 1))
        for name in sorted(state)
    ]
    return files.hash_bytes([repr(sums).encode()])[:16]


def _check_ids(base: BaseModel, examples: ExampleSet) -> None:
    """Refuse ids that the teacher has no trained row for: padding rows would give finite and wrong states."""
    for example in examples.examples:
        for ids, limit, whose in (
            (example.original_ids, base.vocab_size, "original"),
            (example.extended_ids, examples.vocab_size + examples.n_new, "extended"),
        ):
            if len(odd := ids[(ids < 0) | (ids >= limit)]):
                raise ValueError(
                    f"text {example.source} holds id {odd[0]} under the {whose} tokenizer, expected ids from 0 to "
                    f"{limit - 1} ({base.name} has V = {base.vocab_size}): its tokenizer is not this model's"
                )


def _drop_damaged(folder: Path, key: dict[str, Any], tell: Callable[[str], None]) -> None:
    """Take the key of a cache away whose states are not those that were written, so that it is made again."""
    if not _valid(folder, key):
        return
    states = folder / "states.bin"
    if states.exists() and files.file_digest(states) == files.read_json(folder / "key.json").get("sha256"):
        return
    tell(f"teacher cache: {paths.show_path(states)} is not what was written (checksum); it is made again")
    (folder / "key.json").unlink()


def _valid(folder: Path, key: dict[str, Any]) -> bool:
    path = folder / "key.json"
    if not path.exists():
        return False
    try:
        found = files.read_json(path)
    except ValueError:
        return False
    return all(found.get(name) == value for name, value in key.items())


def _reserve(folder: Path, total: int, width: int, dtype: torch.dtype, tell: Callable[[str], None]) -> None:
    """Announce the size, check the disk, drop what was there and lay out an empty file."""
    size = total * width * np.dtype(_STORED[dtype]).itemsize
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "key.json").unlink(missing_ok=True)  # first: a half-written file must not look finished
    (folder / "states.bin").unlink(missing_ok=True)
    remedy = "use fewer or shorter examples, or a run folder on another disk (VOCABX_RUNS)"
    free = folders.require_space(folder, size, "the teacher cache", remedy)
    tell(f"teacher cache: {total:,} positions x {width} = {size / 2**20:.1f} MiB ({free / 2**30:.1f} GiB free)")
    with (folder / "states.bin").open("wb") as file:
        file.truncate(size)


@torch.no_grad()
def _fill(
    base: BaseModel,
    examples: ExampleSet,
    rows: list[Ints],
    path: Path,
    layer: int,
    token_budget: int,
    rank: int,
    world: int,
) -> float:
    """Run the teacher on this process's share; return its summed cross-entropy in nats."""
    transform = logit_transform(base.model.config)
    lengths = [len(e.original_ids) for e in examples.examples]
    share = range(rank, len(examples), world)
    nats = 0.0
    with path.open("r+b", buffering=0) as file:
        parts = list(micro_batches(lengths, share, token_budget))
        for part in progress(parts, desc="teacher", unit="batch"):
            batch = [examples.examples[i] for i in part]
            ids = _padded(batch).to(base.device)
            output = base.model.base_model(
                input_ids=ids, output_hidden_states=layer != -1, use_cache=False
            )  # fmt: skip
            final = output.last_hidden_state
            kept = final if layer == -1 else output.hidden_states[layer]
            nats += _nats(final, batch, base, transform)
            for line, (index, example) in enumerate(zip(part, batch, strict=True)):
                at = torch.from_numpy(example.teacher_at()).to(base.device)
                _write(file.fileno(), kept[line].index_select(0, at), int(rows[index][0]) if len(at) else 0)
        os.fsync(file.fileno())
    return nats


def _padded(batch: list[Example]) -> Tensor:
    ids = np.zeros((len(batch), max(len(e.original_ids) for e in batch)), np.int64)
    for line, example in enumerate(batch):
        ids[line, : len(example.original_ids)] = example.original_ids
    return torch.from_numpy(ids)


def _write(descriptor: int, states: Tensor, row: int) -> None:
    states = states.contiguous().cpu()
    if states.dtype == torch.bfloat16:
        states = states.view(torch.uint16)
    view = memoryview(states.numpy().tobytes())
    offset = row * states.shape[1] * states.element_size()
    while len(view):  # a write may take less than it was given, on a nearly full disk for one
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _nats(final: Tensor, batch: list[Example], base: BaseModel, transform: Any) -> float:
    """Summed next-token cross-entropy over V of real targets."""
    targets = np.full((len(batch), final.shape[1]), -1, np.int64)
    for line, example in enumerate(batch):
        targets[line, : len(example.original_ids) - 1] = example.original_ids[1:]
    flat = torch.from_numpy(targets.reshape(-1)).to(final.device)
    at = torch.nonzero(flat >= 0).squeeze(1)
    states = final.reshape(-1, final.shape[-1])[at]
    terms = phase1_loss(
        states,
        base.head_rows[: base.vocab_size],
        states.new_zeros(0, states.shape[1], dtype=torch.float32),
        flat[at],
        ce_coefficient=torch.ones(len(at), device=final.device),
        transform=transform,
    )
    return float(terms.ce.double().sum())
