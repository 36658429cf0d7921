"""What each epoch of phase 1 is judged by: CE of old and new targets, bits per byte, and KL at four kinds of place.

KL is taken after the first divergence of a stretch, because before it student and teacher are the same
computation; `kl_identical_all` spreads the same sum over those positions too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor

from vocabx_utils.student import Student
from vocabx_utils.training.batches import Batch, Floats, align_batch, micro_batches
from vocabx_utils.training.cross_entropy import IGNORE
from vocabx_utils.training.examples import AlignedSet
from vocabx_utils.training.goals import is_plain
from vocabx_utils.training.losses import phase1_loss
from vocabx_utils.training.objectives import Anchor
from vocabx_utils.training.processes import sum_over
from vocabx_utils.training.sharding import even_parts, idle_pass
from vocabx_utils.training.teacher import TeacherStates

_PLACES = ("old", "new", "identical", "last", "first")
_SUMS = ("kl", "kl_count", "ce", "ce_count")
_ANCHORS: tuple[Anchor, Anchor] = ("last", "first")


@torch.no_grad()
def evaluate(
    model: Student,
    examples: AlignedSet,
    teacher: TeacherStates,
    *,
    token_budget: int = 8192,
    processes: PartialState | None = None,
) -> tuple[dict[str, float], dict[str, Tensor]]:
    """Measure a model on a split; the teacher's states are those of its last layer.

    Args:
        token_budget: tokens of a forward pass, padding included.

    Returns:
        Means (CE and KL in nats per position, `bpb` in bits per UTF-8 byte), NaN over no position, and sums per new
        token, (N,) float64 each: `kl` at its last subtoken and `ce` where it is the target, in nats, and how many such
        places there are, `kl_count` and `ce_count`.
    """
    device = model.device
    per_token = {name: torch.zeros(model.n_new, dtype=torch.float64, device=device) for name in _SUMS}
    sums = {name: torch.zeros(2, dtype=torch.float64, device=device) for name in _PLACES}  # nats, places
    lengths = [len(e.ids) for e in examples.examples]
    for part in even_parts(model.model, lengths, range(len(lengths)), token_budget, processes):
        if not part:
            idle_pass(model)
            continue
        last, (ce, kl, kl_first) = _read(model, examples, teacher, part)
        old, new = (last.targets >= 0) & (last.targets < model.vocab_size), last.targets >= model.vocab_size
        found = (ce[old], ce[new], kl[~last.merged], kl[last.merged], kl_first)
        for name, values in zip(_PLACES, found, strict=True):
            sums[name][0] += values.sum()
            sums[name][1] += len(values)
        token = last.ids.reshape(-1)[last.positions[: len(kl)]]  # (K,) what the student has read there
        own = last.merged & (token >= model.vocab_size)
        for name, tokens, values in (("kl", token[own], kl[own]), ("ce", last.targets[new], ce[new])):
            per_token[name].index_add_(0, tokens - model.vocab_size, values)
            per_token[f"{name}_count"].index_add_(0, tokens - model.vocab_size, torch.ones_like(values))
    sum_over([*sums.values(), *per_token.values()], processes)
    prefix = sum(e.prefix_pairs for e in examples.examples)
    n_bytes = sum(e.n_bytes for e in examples.examples)
    return _means({name: tuple(values.tolist()) for name, values in sums.items()}, prefix, n_bytes), per_token


@dataclass(frozen=True)
class TextScores:
    """Sums of each example of a split, each (E,) float64, for intervals over texts."""

    nats: Floats  # summed CE of all targets
    kl_identical: Floats  # nats, at identical places after the first divergence
    kl_last: Floats  # nats, at merged spans
    n_identical: Floats  # how many such places there are
    n_last: Floats
    n_bytes: Floats  # UTF-8 bytes of the targets


@torch.no_grad()
def evaluate_texts(
    model: Student, examples: AlignedSet, teacher: TeacherStates, *, token_budget: int = 8192
) -> TextScores:
    """Measure a model on each example of a split: sums whose totals are behind the means of `evaluate`."""
    sums = torch.zeros(5, len(examples), dtype=torch.float64, device=model.device)
    lengths = [len(e.ids) for e in examples.examples]
    for part in micro_batches(lengths, range(len(lengths)), token_budget):
        last, (ce, kl, _) = _read(model, examples, teacher, part)
        text = torch.tensor(part, device=model.device)[last.positions // last.ids.shape[1]]  # (P,)
        sums[0].index_add_(0, text, ce)
        for merged, at in ((False, 1), (True, 2)):
            chosen = last.merged == merged
            of_pairs = text[: len(kl)][chosen]
            sums[at].index_add_(0, of_pairs, kl[chosen])
            sums[at + 2].index_add_(0, of_pairs, torch.ones_like(kl[chosen]))
    n_bytes = np.array([e.n_bytes for e in examples.examples], np.float64)
    nats, kl_identical, kl_last, n_identical, n_last = sums.cpu().numpy()
    return TextScores(nats, kl_identical, kl_last, n_identical, n_last, n_bytes)


def _read(
    model: Student, examples: AlignedSet, teacher: TeacherStates, part: list[int]
) -> tuple[Batch, tuple[Tensor, Tensor, Tensor]]:
    """Run a model over some examples: their batch with the anchor `last`, and float64 losses.

    These are (P,) CE and (K,) KL at the positions of that batch, and KL at the merged pairs of the anchor `first`.
    """
    last, first = (align_batch(examples, part, anchor, teacher.rows).to(model.device) for anchor in _ANCHORS)
    hidden, _ = teacher.beginnings.hidden(model, last.ids, part, new_at=last.new_at)  # (B, T, D)
    flat, ones = hidden.flatten(0, 1), torch.ones(len(last.targets), device=model.device)
    # in fewer bits the goals' rounding would show in a small KL; in float32 it does not
    known = teacher.goals if model.head.dtype == torch.float32 and is_plain(model.transform) else teacher
    terms = phase1_loss(
        flat[last.positions], model.head, model.head_rows, last.targets,
        ce_coefficient=ones, teacher=known.take(last.teacher_rows, flat.device),
        known=teacher.beginnings.sums(model, last, part), transform=model.transform,
    )  # fmt: skip
    at_first = first.positions[: len(first.merged)][first.merged]
    none = torch.full_like(at_first, IGNORE)
    at_merged = phase1_loss(
        flat[at_first], model.head, model.head_rows, none,
        ce_coefficient=ones[:1].expand(len(none)),
        teacher=known.take(first.teacher_rows[first.merged], flat.device), transform=model.transform,
    )  # fmt: skip
    return last, (terms.ce.double(), terms.kl.double(), at_merged.kl.double())


def _means(sums: dict[str, tuple[float, float]], prefix: int, n_bytes: int) -> dict[str, float]:
    """Means by the name they have in `metrics.jsonl`; NaN over no place."""

    def mean(*places: str, more: int = 0) -> float:
        count = sum(sums[place][1] for place in places) + more
        return sum(sums[place][0] for place in places) / count if count else math.nan

    nats = sums["old"][0] + sums["new"][0]
    return {
        "ce": mean("old", "new"),
        "ce_old": mean("old"),
        "ce_new": mean("new"),
        "bpb": nats / math.log(2) / n_bytes if n_bytes else math.nan,
        "kl_identical": mean("identical"),
        "kl_identical_all": mean("identical", more=prefix),
        "kl_last": mean("last"),
        "kl_first": mean("first"),
        "kl_pooled": mean("identical", "first"),
        "kl_pooled_last": mean("identical", "last"),
        "n_old_targets": sums["old"][1],
        "n_new_targets": sums["new"][1],
        "n_identical": sums["identical"][1],
        "n_last": sums["last"][1],
        "n_first": sums["first"][1],
    }


def base_bits_per_byte(teacher: TeacherStates, examples: AlignedSet) -> float:
    """Return the base model's bits per byte on the same stretches, under the original tokenizer.

    ValueError where the teacher's likelihood was not asked for.
    """
    if teacher.base_nats is None:
        raise ValueError("the teacher of validation texts holds no likelihood: ask it with `likelihood=True`")
    n_bytes = sum(e.n_original_bytes for e in examples.examples)
    return teacher.base_nats / math.log(2) / n_bytes if n_bytes else math.nan
