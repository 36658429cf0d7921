"""The teacher, run once: its hidden states at the positions that some variant compares.

The teacher is the base model under its original tokenizer and never changes, so every epoch, every variant and every
later run on the same texts shares its states. `ask_teacher` keeps them in memory, `teacher_cache` in a memory-mapped
file: a plain (R, D) matrix in a folder that is named after what it was made from; `key.json` beside it says that in
full, and holds the checksum. It is used only for exactly that, and made again where its content is another.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor

from vocabx_utils import files, folders, locks, paths
from vocabx_utils.batching import move, pad
from vocabx_utils.models import BaseModel, gathered
from vocabx_utils.progress import progress
from vocabx_utils.student import Student
from vocabx_utils.training.blocks import quick_blocks
from vocabx_utils.training.checks import bits_checksum
from vocabx_utils.training.examples import AlignedSet, Ints
from vocabx_utils.training.goals import Goals, old_sums, sum_up
from vocabx_utils.training.processes import leads, sum_over, wait
from vocabx_utils.training.sharding import even_parts, idle_pass
from vocabx_utils.training.shared_beginnings import SharedBeginnings

SHARED = ".teacher"  # beside the runs; hidden, since it is none
_LOOKED_AT = 512  # positions on which a smaller storage is compared with the states themselves
_PATIENCE = 6 * 3600.0  # seconds that another run may take to fill the same cache
_LARGER = 4  # times the tokens of a training pass on a GPU: no gradients are kept, and fewer passes leave fewer gaps


@dataclass(frozen=True)
class TeacherStates:
    """Hidden states of the teacher and where each example's are."""

    rows: tuple[Ints, ...]  # per example, (k,) rows of `states` for the positions in `AlignedExample.teacher_at`
    states: Tensor  # (R, D), memory-mapped on the host, in its memory or on the device; in the dtype of the storage
    base_nats: float | None  # summed cross-entropy over all targets of all examples; None unless it was asked for
    beginnings: SharedBeginnings  # of each example, the same for teacher and students

    @cached_property
    def goals(self) -> Goals:
        """What the teacher's distributions at all rows come to in the loss, computed at the first use."""
        base = self.beginnings.base
        return sum_up(self.states, base.head_rows[: base.vocab_size])

    def to(self, device: torch.device, share: float = 0.3) -> TeacherStates:
        """Copy to a GPU if that takes at most `share` of its free memory; otherwise stay on the host."""
        if device.type != "cuda" or self.states.nbytes > share * torch.cuda.mem_get_info(device)[0]:
            return self
        return replace(self, states=self.states.to(device))

    def take(self, rows: Tensor, device: torch.device) -> Tensor:
        """Return (K, D) states of some rows on a device, in the model's dtype."""
        return self.states[rows.to(self.states.device)].to(device).to(self.beginnings.base.dtype)


def ask_teacher(
    base: BaseModel,
    examples: AlignedSet,
    *,
    layer: int = -1,
    token_budget: int = 8192,
    likelihood: bool = False,
) -> TeacherStates:
    """Run the teacher over some examples and keep its states in memory.

    Args:
        layer: hidden state to keep, -1 the last (after the final norm).
        token_budget: tokens of one pass in training, padding included; see `tokens_of_a_pass`.
        likelihood: sum the nats of all targets up as well, which takes half as long again with a large vocabulary;
            validation reports them, training needs none.

    Raises:
        ValueError: no example has a position to compare, or an example holds an id outside the vocabulary.
    """
    rows, total = _layout(base, examples)
    states = torch.empty(total, base.width, dtype=base.dtype)  # (R, D)
    nats = torch.zeros((), dtype=torch.float64, device=base.device)
    tokens = tokens_of_a_pass(base.device, token_budget)
    for part, kept, part_nats in _passes(base, examples, layer, tokens, likelihood):
        nats += part_nats
        states[torch.from_numpy(np.concatenate([rows[index] for index in part]))] = kept.cpu()
    beginnings = SharedBeginnings(base, examples, token_budget=token_budget)
    return TeacherStates(tuple(rows), states, float(nats) if likelihood else None, beginnings)


def teacher_cache(
    base: BaseModel,
    examples: AlignedSet,
    folder: Path | None = None,
    *,
    layer: int = -1,
    token_budget: int = 8192,
    likelihood: bool = False,
    storage: torch.dtype | None = None,
    tell: Callable[[str], None] = print,
    processes: PartialState | None = None,
) -> TeacherStates:
    """Memory-map the file of these examples' states, running the teacher if there is none for exactly this input.

    Args:
        layer, token_budget, likelihood: see `ask_teacher`.
        folder: of the cache; made anew if it holds something else. Unless given, it lies beside the runs, which share
            it, under a name derived from model, texts and settings.
        storage: dtype of the file, the model's unless given; `torch.float8_e4m3fn` takes half of bfloat16.
        tell: receives the announcement of the size, before anything is written, and what a smaller storage changes.
        processes: each runs the teacher on its share and writes its rows of the one file.

    Raises:
        SpaceError: the file would not fit on the disk; nothing was written.
        BusyError: another process fills this cache, and does not come to its end within hours.
        ValueError: no example has a position to compare, an example holds an id outside the vocabulary, or a state is
            too large for the storage.
    """
    rows, total = _layout(base, examples)
    dtype, tokens = storage or base.dtype, tokens_of_a_pass(base.device, token_budget)
    key, writes = _key(base, examples, layer, tokens, likelihood, dtype), leads(processes)
    folder = folder or paths.runs_root() / SHARED / files.digest(key)
    path = folder / "states.bin"
    # a run that needs the same states waits here until they are there
    with locks.writing(folder, wait=_PATIENCE) if writes else contextlib.nullcontext():
        if writes:
            _drop_damaged(folder, key, tell)
        wait(processes)
        missing = not _valid(folder, key)
        wait(processes)  # all have looked before one writes
        if missing:
            if writes:
                _reserve(folder, total, base.width, dtype, tell)
            wait(processes)
            nats, apart = torch.zeros((), dtype=torch.float64, device=base.device), None
            with path.open("r+b", buffering=0) as file:
                for part, kept, part_nats in _passes(base, examples, layer, tokens, likelihood, processes):
                    nats += part_nats
                    if apart is None and dtype != base.dtype and layer == -1:
                        apart = storage_kl(base, kept[:_LOOKED_AT], dtype)
                    of_each = _small(kept, dtype).cpu().split([len(rows[index]) for index in part])
                    for index, states in zip(part, of_each, strict=True):
                        _write(file.fileno(), states, int(rows[index][0]) if len(rows[index]) else 0)
                os.fsync(file.fileno())
            sum_over([nats], processes)
            wait(processes)
            if writes:
                if apart is not None:
                    tell(f"teacher cache: stored as {dtype}, its distributions move by {apart:.1e} nats a position")
                made = {"rows": total, "base_nats": float(nats) if likelihood else None, "storage_kl": apart}
                files.write_json(folder / "key.json", key | made | {"sha256": files.file_digest(path)})
        wait(processes)
    stored: Any = np.memmap(path, dtype=np.uint8, mode="c", shape=(total, base.width * dtype.itemsize))
    states = torch.from_numpy(stored).view(dtype)  # (R, D)
    base_nats = files.read_json(folder / "key.json")["base_nats"]
    beginnings = SharedBeginnings(base, examples, token_budget=token_budget)
    return TeacherStates(tuple(rows), states, base_nats, beginnings)


def tokens_of_a_pass(device: torch.device, token_budget: int) -> int:
    """How many tokens the teacher reads at once where a training pass reads `token_budget`."""
    return _LARGER * token_budget if device.type == "cuda" else token_budget


def _layout(base: BaseModel, examples: AlignedSet) -> tuple[list[Ints], int]:
    """Rows of each example in the matrix of states, and how many there are; refuses what cannot be compared.

    So are ids that the teacher has no trained row for: padding rows would give finite and wrong states.
    """
    ends = np.cumsum([0, *(len(example.teacher_at()) for example in examples.examples)])
    if not ends[-1]:
        raise ValueError("no example has an aligned position at or after a divergence: is the text free of new tokens?")
    for example in examples.examples:
        for ids, limit, whose in (
            (example.original_ids, base.vocab_size, "original"),
            (example.ids, examples.vocab_size + examples.n_new, "extended"),
        ):
            if len(odd := ids[(ids < 0) | (ids >= limit)]):
                raise ValueError(
                    f"text {example.source} holds id {odd[0]} under the {whose} tokenizer, expected ids from 0 to "
                    f"{limit - 1} ({base.name} has V = {base.vocab_size}): its tokenizer is not this model's"
                )
    return [np.arange(start, stop) for start, stop in pairwise(ends)], int(ends[-1])


@torch.no_grad()
def _passes(
    base: BaseModel,
    examples: AlignedSet,
    layer: int,
    token_budget: int,
    likelihood: bool,
    processes: PartialState | None = None,
) -> Iterator[tuple[list[int], Tensor, Tensor]]:
    """Run the teacher over this process's examples: a few numbers, (K, D) states and the nats of their targets.

    States come in the order of the numbers: all that are kept of the first example, then those of the second. Nats are
    () float64, 0 without `likelihood`. Nothing here waits for a GPU, and what the next pass reads is prepared while
    this one runs.
    """
    lengths = [len(e.original_ids) for e in examples.examples]
    teacher = Student(base.model, base.vocab_size)
    teacher.blocks = quick_blocks(base.model)
    parts = even_parts(base.model, lengths, range(len(lengths)), token_budget, processes)
    inputs = (_inputs(examples, part, base.device) for part in parts if part)
    coming = next(inputs, None)
    for part in progress(parts, desc="teacher", unit="batch"):
        if coming is None:  # parts without an example come last
            idle_pass(teacher)
            continue
        ids, at, before = coming
        final, kept = teacher.hidden(ids, layer=layer)  # (B, To, D) each
        nats = _nats(teacher, final, ids, before) if likelihood else final.new_zeros((), dtype=torch.float64)
        found = kept.flatten(0, 1).index_select(0, at), nats
        coming = next(inputs, None)
        yield part, *found


def _inputs(examples: AlignedSet, part: Sequence[int], device: torch.device) -> list[Tensor]:
    """Return what a pass reads: (B, To) padded ids, and flat positions, (K,) of kept states and (P,) before targets."""
    chosen = [examples.examples[index] for index in part]
    ids, _ = pad([example.original_ids for example in chosen])
    starts = [line * ids.shape[1] for line in range(len(chosen))]
    kept = [start + example.teacher_at() for start, example in zip(starts, chosen, strict=True)]
    before = [start + np.arange(len(example.original_ids) - 1) for start, example in zip(starts, chosen, strict=True)]
    return move([ids, *(torch.from_numpy(np.concatenate(at)) for at in (kept, before))], device)


def _nats(teacher: Student, final: Tensor, ids: Tensor, before: Tensor) -> Tensor:
    """Summed cross-entropy over V of the ids that follow (P,) flat positions: () float64, still on the device."""
    states, targets = (tensor.flatten(0, 1).index_select(0, at) for tensor, at in ((final, before), (ids, before + 1)))
    found = old_sums(states, targets, teacher.head, teacher.transform)
    return (found.sums - found.logits).double().sum()


# --- the file -----------------------------------------------------------------------------------------------


def _key(
    base: BaseModel, examples: AlignedSet, layer: int, token_budget: int, likelihood: bool, dtype: torch.dtype
) -> dict[str, Any]:
    """What the states follow from, down to their last bits."""
    state = base.model.state_dict()
    sums = [bits_checksum(gathered(state[name])) for name in sorted(state)]
    return {
        "model": base.fingerprint,
        "weights": files.hash_bytes([repr(sums).encode()])[:16],  # the fingerprint only samples them
        "examples": examples.fingerprint(),  # ids and pairs, so the tokenizers and the text
        "dtype": str(base.dtype),
        "stored": str(dtype),
        "layer": layer,
        "token_budget": token_budget,
        "likelihood": likelihood,
        "device": base.device.type,
        "torch": torch.__version__,
    }


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
    size = total * width * dtype.itemsize
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "key.json").unlink(missing_ok=True)  # first: a half-written file must not look finished
    (folder / "states.bin").unlink(missing_ok=True)
    remedy = "use fewer or shorter examples, or a run folder on another disk (VOCABX_RUNS)"
    free = folders.require_space(folder, size, "the teacher cache", remedy)
    tell(f"teacher cache: {total:,} positions x {width} = {size / 2**20:.1f} MiB ({free / 2**30:.1f} GiB free)")
    with (folder / "states.bin").open("wb") as file:
        file.truncate(size)


@torch.no_grad()
def storage_kl(base: BaseModel, states: Tensor, dtype: torch.dtype) -> float:
    """Return how far storing final states (K, D) in a dtype moves the distributions: mean KL in nats a position."""
    teacher = Student(base.model, base.vocab_size)
    log_p, log_q = (teacher.log_probabilities(s) for s in (states, _small(states, dtype).to(states.dtype)))
    return float((log_p.exp() * (log_p - log_q)).sum(-1).double().mean())


def _small(states: Tensor, dtype: torch.dtype) -> Tensor:
    """States in the dtype of the storage; ValueError where they do not fit."""
    largest = torch.finfo(dtype).max
    if states.dtype != dtype and (found := float(states.abs().max()) if len(states) else 0.0) > largest:
        raise ValueError(
            f"a hidden state holds {found:.0f}, {dtype} at most {largest:.0f}: store the model's own dtype"
        )
    return states.to(dtype)


def _write(descriptor: int, states: Tensor, row: int) -> None:
    view = memoryview(states.contiguous().view(torch.uint8).numpy().tobytes())
    offset = row * states.shape[1] * states.element_size()
    while len(view):  # a write may take less than it was given, on a nearly full disk for one
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written
