"""Claims C8 and C9 of fine-tuning, each with a verdict computed from results.

Variants answer the same texts, so their bits are compared text by text. With a handful of texts the interval is
Student's with the jackknife's standard error: a percentile bootstrap would be too narrow. Where several intervals
could refute a claim each is widened, so that together they err in 5 % at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vocabx_utils.intervals import Answer, ratio_interval, shared_level

Observed = Mapping[str, Mapping[str, Any]]

__all__ = ["Difference", "Verdict", "judge_c8", "judge_c9", "paired_difference"]


@dataclass(frozen=True)
class Difference:
    """Bits per byte of one variant minus another's on the same texts, with its interval."""

    mean: float
    low: float
    high: float
    texts: int

    @property
    def sign(self) -> int:
        """-1 or 1 where the interval excludes 0, else 0."""
        return -1 if self.high < 0 else 1 if self.low > 0 else 0

    def __str__(self) -> str:
        return f"{self.mean:+.4f} ({self.low:+.4f} to {self.high:+.4f}, n = {self.texts})"


@dataclass(frozen=True)
class Verdict:
    """A claim, what the results say, and the numbers behind it."""

    claim: str
    answer: Answer
    reason: str


def paired_difference(
    first: Sequence[float], second: Sequence[float], sizes: Sequence[int], *, confidence: float = 0.95
) -> Difference:
    """Compare bits per byte of two variants on the same texts.

    Args:
        first: bits of each text under one variant.
        second: bits under the other.
        sizes: UTF-8 bytes of each text.
        confidence: coverage of the interval.

    Returns:
        First minus second; negative when the first is better. One text bounds nothing: its limits are infinite.

    Raises:
        ValueError: the lists have different lengths, or are empty.
    """
    if not len(first) == len(second) == len(sizes) or not len(sizes):
        raise ValueError(f"{len(first)} and {len(second)} scores for {len(sizes)} texts; expected one of each a text")
    interval = ratio_interval(np.subtract(first, second), sizes, confidence)
    return Difference(interval.estimate, interval.low, interval.high, len(sizes))


def compare(first: Mapping[str, Any], second: Mapping[str, Any], name: str, confidence: float = 0.95) -> Difference:
    """Compare two snapshots on one text set."""
    return paired_difference(first["bits"][name], second["bits"][name], first["bytes"][name], confidence=confidence)


def judge_c8(with_a: Observed, without_a: Observed) -> Verdict:
    """C8: stage a is necessary. Compared at the end, with and without it, on held-out domain texts.

    Args:
        with_a: snapshots by stage of the variant that went through a and b.
        without_a: snapshots of the same start that went through b alone.
    """
    gap = compare(_last(with_a), _last(without_a), "domain")
    answer: Answer = "confirmed" if gap.sign < 0 else "not confirmed" if gap.sign > 0 else "cannot tell"
    return Verdict("C8 Stage a is necessary", answer, f"with minus without stage a, bits per byte {gap}")


def judge_c9(lora: Observed, full: Observed) -> Verdict:
    """C9: LoRA beats sequential full fine-tuning and forgets less; both halves have to hold.

    Args:
        lora: snapshots of a variant that ended with stage b.
        full: snapshots of the same start that ended with stage c.
    """
    names = list(_last(lora)["bits"])
    level = shared_level(len(names))  # each of them can refute the claim
    gaps = {name: compare(_last(lora), _last(full), name, level) for name in names}
    signs = {name: gap.sign for name, gap in gaps.items()}
    answer: Answer = "cannot tell"
    if all(sign < 0 for sign in signs.values()):
        answer = "confirmed"
    elif any(sign > 0 for sign in signs.values()):
        answer = "not confirmed"
    reason = "; ".join(f"{name} {gap}" for name, gap in gaps.items())
    return Verdict("C9 LoRA beats sequential full fine-tuning and forgets less", answer, f"LoRA minus full: {reason}")


def _last(observed: Observed) -> Mapping[str, Any]:
    return list(observed.values())[-1]
