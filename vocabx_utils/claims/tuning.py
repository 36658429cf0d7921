"""Claims about fine-tuning: C8 and C9.

Variants answer the same texts, so their bits are compared text by text. With a handful of texts the interval is
Student's with the jackknife's standard error: a percentile bootstrap would be too narrow. Whoever takes more optimiser
steps learns more, whatever the stage: where the two sides took different numbers of them we cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vocabx_utils.claims.verdict import Verdict, of_parts, signed, unseen
from vocabx_utils.intervals import CONFIDENCE, Interval, judge, shared_level
from vocabx_utils.measured import bits_gap

Observed = Mapping[str, Mapping[str, Any]]
"""Snapshots by stage, the last one last: `bits` and `bytes`, a list of one value a text by set of texts."""


def judge_tuned(
    variants: Mapping[str, Mapping[str, Any]], tuned: str, *, without_a: str, full: str
) -> tuple[Verdict, Verdict]:
    """Judge C8 and C9 from finished variants, each at the steps that it took.

    Args:
        variants: stages and observations by name, as `measured.read_finetuning` and `FineTuned.to_dict` return them.
        tuned: name of the variant that went through stages a and b.
        without_a: that which had LoRA only.
        full: that which went through c after the same stage a.
    """
    steps = {name: {stage["stage"]: int(stage["steps"]) for stage in v["stages"]} for name, v in variants.items()}
    c8, c9 = unseen("C8", f"no variant {without_a}"), unseen("C9", f"no variant {full}")
    if {tuned, without_a} <= variants.keys():
        both = sum(steps[tuned].values()), sum(steps[without_a].values())
        c8 = judge_c8(variants[tuned]["observed"], variants[without_a]["observed"], both)
    if {tuned, full} <= variants.keys():
        both = steps[tuned]["b"], sum(count for stage, count in steps[full].items() if stage.startswith("c"))
        c9 = judge_c9(variants[tuned]["observed"], variants[full]["observed"], both)
    return c8, c9


def judge_c8(with_a: Observed, without_a: Observed, steps: tuple[int, int]) -> Verdict:
    """C8: stage a is necessary. One start with and without it, compared at the end on held-out domain texts.

    Both took optimiser `steps` in all.
    """
    gap = bits_gap(with_a, without_a, "domain", CONFIDENCE)
    reason = f"with minus without stage a, bits per byte {_told(gap, with_a, 'domain')}"
    return _at_steps(Verdict("C8", judge(signed(gap, -1)), reason, {"domain": gap}), steps)


def judge_c9(lora: Observed, full: Observed, steps: tuple[int, int]) -> Verdict:
    """C9: LoRA (ends with stage b) beats sequential full fine-tuning (c) and forgets less; both halves have to hold.

    Stages b and c took optimiser `steps`.
    """
    names = list(_last(lora)["bits"])
    gaps = {name: bits_gap(lora, full, name, shared_level(len(names))) for name in names}  # each can refute the claim
    fair = steps[0] == steps[1]
    parts = {name: judge(signed(gap, -1)) if fair else "cannot tell" for name, gap in gaps.items()}
    texts = {name: f"{name} {_told(gap, lora, name)}" for name, gap in gaps.items()}
    return _at_steps(of_parts("C9", "LoRA minus full: ", texts, gaps, parts), steps)


def _at_steps(verdict: Verdict, steps: tuple[int, int]) -> Verdict:
    """The verdict, unless one side took more steps than the other."""
    if steps[0] == steps[1]:
        return replace(verdict, reason=f"{verdict.reason}; {steps[0]} steps each")
    reason = f"{verdict.reason}; but after {steps[0]} and {steps[1]} steps, so the steps alone may have done it"
    return replace(verdict, answer="cannot tell", reason=reason)


def _last(observed: Observed) -> Mapping[str, Any]:
    return list(observed.values())[-1]


def _told(gap: Interval, observed: Observed, name: str) -> str:
    texts = len(_last(observed)["bytes"][name])
    return f"{gap.estimate:+.4f} ({gap.low:+.4f} to {gap.high:+.4f}, n = {texts})"
