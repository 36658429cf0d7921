"""The shell around both phases: a training yields what it did, the loop writes it, shows it and keeps checkpoints.

A training (`phase1.Phase1Training`, `finetuning.StageTraining`) knows nothing of files. It yields a `StepDone` after
each step and an `EpochDone` after each validation; `carry_out` starts it where a killed run stood, appends the records
to a journal, writes an epoch's tensors, and saves a checkpoint where the training allows one. In memory, iterating over
`run` is all that is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from accelerate import PartialState
from torch import Tensor
from torch.optim import Optimizer

from vocabx_utils import files, paths, runs
from vocabx_utils.progress import progress
from vocabx_utils.rows import write_epoch
from vocabx_utils.training.checkpoints import FILE, gather_checkpoint, load_checkpoint
from vocabx_utils.training.processes import leads, wait

Record = dict[str, Any]


class NonFiniteLossError(RuntimeError):
    """A loss became infinite or NaN; the message names the batch, the last good checkpoint stands."""


@dataclass(frozen=True)
class StepDone:
    """One optimiser step."""

    steps: int  # how many are done, over all epochs
    note: str  # for the progress line
    record: Record | None = None  # a line of the journal
    checkpoint: bool = True  # whether a run may go on from here; not at an epoch's end, which is to be validated first


@dataclass(frozen=True)
class EpochDone:
    """The end of an epoch, or the start (epoch 0)."""

    epoch: int
    record: Record  # a line of the journal: what validation found
    tensors: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)  # files of the epoch, by folder
    checkpoint: bool = True


class Training(Protocol):
    """What `carry_out` needs of a training: state to save, and events to write."""

    parameters: dict[str, Tensor]
    optimisers: list[Optimizer]
    done: int  # steps

    @property
    def total(self) -> int:
        """Steps in all."""

    def counters(self) -> dict[str, Tensor]:
        """How far it has come, beyond weights and optimisers."""

    def resume(self, counters: dict[str, Tensor], records: Sequence[Record]) -> list[Record]:
        """Go on from there; return those records that lie before that place."""

    def run(self) -> Iterator[StepDone | EpochDone]:
        """Take the steps that are left."""


def show(training: Training, title: str, delay: float = 0) -> Iterator[StepDone | EpochDone]:
    """Run a training behind a progress line, which appears after `delay` seconds; without steps there is none."""
    if not training.total:
        yield from training.run()
        return
    with progress(total=training.total, desc=title, unit="step", delay=delay) as bar:
        bar.update(training.done)
        for event in training.run():
            if isinstance(event, StepDone):
                bar.set_postfix_str(event.note, refresh=False)
                bar.update(1)
            yield event


def carry_out(
    training: Training, folder: Path, journal: str, *, title: str, every: int, processes: PartialState | None = None
) -> list[Record]:
    """Run what is left of a training and write it below a folder.

    Args:
        training: new; restored from the folder's checkpoint if there is one.
        journal: name of the JSON Lines file of its records.
        every: steps between checkpoints within an epoch, 0 for none.
        processes: those that share each step; the first one writes.

    Returns:
        All records, those of before a kill too.

    Raises:
        NonFiniteLossError: what the training says, and where its last good checkpoint lies.
    """
    writes, path = leads(processes), folder / journal
    counters = load_checkpoint(folder, training.parameters, training.optimisers)
    records: list[Record] = []
    if counters is not None:
        records = training.resume(counters, files.read_jsonl(path) if path.exists() else [])
    wait(processes)  # all have read before one writes
    if writes:
        files.write_jsonl(path, records)
    try:
        for event in show(training, title) if writes else training.run():
            if writes and isinstance(event, EpochDone):
                for place, tensors in event.tensors.items():  # first: a record says that they are there
                    write_epoch(folder / place, event.epoch, tensors)
            if event.record is not None:
                records.append(event.record)
                if writes:
                    files.append_jsonl(path, event.record)
            due = isinstance(event, EpochDone) or (every > 0 and event.steps % every == 0)
            if due and event.checkpoint:
                tensors = gather_checkpoint(training.parameters, training.optimisers) | training.counters()
                if writes:
                    files.write_tensors(folder / FILE, tensors)
    except NonFiniteLossError as error:
        raise NonFiniteLossError(f"{error}. The last good checkpoint in {paths.show_path(folder)} stands.") from error
    return records


def claim(folder: Path, key: Mapping[str, Any], processes: PartialState | None) -> str:
    """Open a folder for work described by a key, for all processes (see `runs.claim`); the first one holds its lock."""
    state = runs.claim(folder, key) if leads(processes) else ""
    wait(processes)
    return state or runs.claim(folder, key, writes=False)


def learning_rate(
    step: int,
    cycles: Sequence[int],
    warmup: float = 0.1,
    *,
    peak: float = 1.0,
    after: Literal["linear", "constant"] = "linear",
) -> float:
    """Return the learning rate of a step: linear warm-up, then linear decay or constant; a new cycle starts again.

    Args:
        step: from 0 up to the sum of `cycles`, exclusive.
        cycles: steps of each cycle; phase 1 of the thesis has 8 and then 4 epochs (a warm restart).
        warmup: share of each cycle that warms up (the thesis: 0.1).
        peak: the highest rate; 1 gives a factor.
        after: what follows the warm-up.

    Returns:
        A positive number: the first step of a cycle is already above 0, the last one still is. ValueError outside.

    Example:
        >>> [round(learning_rate(s, [10], 0.2), 2) for s in (0, 1, 2, 9)]
        [0.5, 1.0, 1.0, 0.12]
    """
    place = step
    for length in cycles:
        if 0 <= place < length:
            rising = round(warmup * length)
            if place < rising:
                return peak * (place + 1) / rising
            return peak if after == "constant" else peak * (length - place) / (length - rising)
        place -= length
    raise ValueError(f"step {step} lies outside the schedule of {sum(cycles)} steps")
