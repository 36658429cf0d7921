"""Claims about fine-tuning: C8 and C9.

Variants answer the same texts, so their bits are compared text by text. With a handful of texts the interval is
Student's with the jackknife's standard error: a percentile bootstrap would be too narrow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vocabx_utils.claims.verdict import Verdict, signed
from vocabx_utils.intervals import CONFIDENCE, Interval, judge, judge_all, ratio_interval, shared_level

Observed = Mapping[str, Mapping[str, Any]]
"""Snapshots by stage, the last one last: `bits` and `bytes`, a list of one value a text by set of texts."""


def judge_c8(with_a: Observed, without_a: Observed) -> Verdict:
    """C8: stage a is necessary. One start with and without it, compared at the end on held-out domain texts."""
    gap = _gap(with_a, without_a, "domain", CONFIDENCE)
    reason = f"with minus without stage a, bits per byte {_told(gap, with_a, 'domain')}"
    return Verdict("C8", judge(signed(gap, -1)), reason, {"domain": gap})


def judge_c9(lora: Observed, full: Observed) -> Verdict:
    """C9: LoRA (ends with stage b) beats sequential full fine-tuning (c) and forgets less; both halves have to hold."""
    names = list(_last(lora)["bits"])
    gaps = {name: _gap(lora, full, name, shared_level(len(names))) for name in names}  # each can refute the claim
    reason = "LoRA minus full: " + "; ".join(f"{name} {_told(gap, lora, name)}" for name, gap in gaps.items())
    return Verdict("C9", judge_all([judge(signed(gap, -1)) for gap in gaps.values()]), reason, gaps)


def _last(observed: Observed) -> Mapping[str, Any]:
    return list(observed.values())[-1]


def _gap(first: Observed, second: Observed, name: str, confidence: float) -> Interval:
    """Bits per byte of one variant minus another's at the end, on one set of texts."""
    one, two, sizes = _last(first)["bits"][name], _last(second)["bits"][name], _last(first)["bytes"][name]
    if not len(one) == len(two) == len(sizes) or not len(sizes):
        raise ValueError(f"{len(one)} and {len(two)} scores for {len(sizes)} texts; expected one of each a text")
    return ratio_interval(np.subtract(one, two), sizes, confidence)


def _told(gap: Interval, observed: Observed, name: str) -> str:
    texts = len(_last(observed)["bytes"][name])
    return f"{gap.estimate:+.4f} ({gap.low:+.4f} to {gap.high:+.4f}, n = {texts})"
