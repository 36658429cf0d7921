"""Verdicts on the thesis's claims about the rows, made from measured numbers (claims C4, C5, C6).

Each rule and its threshold is fixed here, before any number is seen. Where an interval does not settle a question,
the verdict is that we cannot tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from vocabx_utils.analysis.mechanisms import CausalTest
from vocabx_utils.intervals import judge, judge_all, mean_interval, ratio_interval, shared_level
from vocabx_utils.names import variant_label
from vocabx_utils.resampling import bootstrap_mean
from vocabx_utils.thesis import CLAIMS

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "Finding",
    "agreement",
    "direction_finding",
    "findings_box",
    "sparsity_finding",
    "stability_finding",
    "turn_towards",
]

Verdict = Literal["confirmed", "not confirmed", "cannot tell"]
FEW = 0.1
"""Share of the D coordinates that counts as few, if it brings back `ENOUGH` of the improvement."""
ENOUGH = 0.9
STILL = 0.05
"""Change of the mean cosine that counts as hardly any."""


@dataclass(frozen=True)
class Finding:
    """One claim of the thesis and what our numbers say about it."""

    claim: str
    verdict: Verdict
    evidence: str

    @property
    def text(self) -> str:
        """The claim in words."""
        return CLAIMS[self.claim]


def turn_towards(
    table: pd.DataFrame, variant: str, *, level: float = 0.95, draws: int = 1000, seed: int = 0
) -> tuple[float, ...]:
    """How much more a variant turns its input rows towards the first than towards the last subtoken.

    Args:
        table: result of `similarity.cosines_by_epoch`.
        variant: of phase 1.
        level: coverage of the interval.
        draws: bootstrap samples over tokens.
        seed: of the resampling.

    Returns:
        Mean over tokens of (gain of the first cosine) − (gain of the last one) between first and last epoch, with the
        ends of its interval, and n.
    """
    part = table[(table["variant"] == variant) & (table["matrix"] == "input")]
    wide = part.pivot(index="token", columns=["position", "epoch"], values="cosine")
    start, end = part["epoch"].min(), part["epoch"].max()
    gain = {position: wide[position][end] - wide[position][start] for position in ("first", "last")}
    change = (gain["first"] - gain["last"]).to_numpy()
    found = bootstrap_mean(change, confidence=level, draws=draws, seed=seed)
    return found.estimate, found.low, found.high, int(np.isfinite(change).sum())


def direction_finding(table: pd.DataFrame, *, draws: int = 1000, seed: int = 0) -> Finding:
    """Claim C4: KL turns rows to the first subtoken, cross-entropy to the last.

    Confirmed if every KL variant's interval of `turn_towards` lies above 0 and every CE variant's below; not
    confirmed if one lies on the wrong side; else we cannot tell.
    """
    wrong = right = unsettled = 0
    parts = []
    signs = {variant: {"kl": 1, "ce": -1}.get(variant.split("_")[1], 0) for variant in table["variant"].unique()}
    epochs = table.groupby("variant")["epoch"].nunique()
    judged = sorted(variant for variant, sign in signs.items() if sign and epochs[variant] > 1)
    for variant in judged:
        expected, level = signs[variant], _level(len(judged))
        mean, low, high, n = turn_towards(table, variant, level=level, draws=draws, seed=seed)
        right += low > 0 if expected > 0 else high < 0
        wrong += high < 0 if expected > 0 else low > 0
        unsettled += bool(low <= 0 <= high)
        parts.append(f"{variant_label(variant)} {mean:+.4f} [{low:+.4f}, {high:+.4f}], n = {n:.0f}")
    if not parts:
        return Finding("C4", "cannot tell", "no variant with KL or CE has more than one epoch")
    verdict: Verdict = "not confirmed" if wrong else "confirmed" if right and not unsettled else "cannot tell"
    return Finding("C4", verdict, "turn to the first minus turn to the last subtoken: " + "; ".join(parts))


def stability_finding(table: pd.DataFrame, expected: np.ndarray, *, draws: int = 1000, seed: int = 0) -> Finding:
    """Claim C5: mean initial rows hardly turn.

    Confirmed if the mean cosine to the end subtokens changes by at most `STILL` in every trained variant that starts
    at the mean (interval included); not confirmed if one changes by more (interval included).

    Args:
        table: result of `similarity.cosines_by_epoch`.
        expected: (N,) cosines of the mean of the subtokens to each of them, `similarity.mean_init_cosines`.
        draws: bootstrap samples over tokens.
        seed: of the resampling.
    """
    parts, small, large = [], 0, 0
    epochs = table.groupby("variant")["epoch"].nunique()
    judged = sorted(variant for variant in epochs.index if variant.startswith("mean") and epochs[variant] > 1)
    for variant in judged:
        part = table[
            (table["variant"] == variant) & (table["matrix"] == "input") & (table["position"] != "intermediate")
        ]
        by_token = part.groupby(["token", "epoch"])["cosine"].mean().unstack()
        change = by_token[by_token.columns.max()] - by_token[by_token.columns.min()]
        found = bootstrap_mean(change.to_numpy(), confidence=_level(len(judged)), draws=draws, seed=seed)
        mean, low, high = found.estimate, found.low, found.high
        small += low >= -STILL and high <= STILL
        large += high < -STILL or low > STILL
        start = by_token[by_token.columns.min()].mean()
        parts.append(f"{variant_label(variant)} {start:.2f} {mean:+.3f} [{low:+.3f}, {high:+.3f}]")
    if not parts:
        return Finding("C5", "cannot tell", "no trained variant starts at the mean")
    verdict: Verdict = "not confirmed" if large else "confirmed" if small == len(parts) else "cannot tell"
    alone = f"the subtokens alone give {np.nanmean(expected):.2f} before any training"
    return Finding("C5", verdict, f"cosine at the start and its change: {'; '.join(parts)}; {alone}")


def sparsity_finding(tests: Mapping[str, CausalTest]) -> Finding:
    """Claim C6: a few coordinates carry the meaning.

    The share of the KL improvement that comes back with the most coordinates tested up to `FEW` · D is compared with
    `ENOUGH`, by an interval over texts. Confirmed if it lies above in every variant tested, not confirmed if it lies
    below in one; else we cannot tell, as where KL did not surely improve or texts were not measured apart.
    """
    parts: list[str] = []
    answers: list[Verdict] = []
    for variant, test in tests.items():
        few = [k for k in test.text_kl if 0 < k <= FEW * test.width]
        if not few:
            parts.append(f"{variant_label(variant)}: no values by text for {FEW:.0%} of {test.width} coordinates")
            answers.append("cannot tell")
            continue
        start, kept, end = (test.text_kl[k] for k in (0, max(few), test.width))
        if judge(mean_interval(start - end)) != "confirmed":
            parts.append(
                f"{variant_label(variant)}: KL did not surely improve ({test.kl_start:.3f} to {test.kl_end:.3f})"
            )
            answers.append("cannot tell")
            continue
        share = ratio_interval(start - kept, start - end, _level(len(tests)))
        answers.append(judge(share, ENOUGH))
        k = test.coordinates_needed(ENOUGH)
        told = "more than tested" if k is None else f"k ≤ {k}"
        spelled = f"{share.estimate:.0%} [{share.low:.0%}, {share.high:.0%}] at k = {max(few)}, n = {len(start)} texts"
        parts.append(f"{variant_label(variant)}: {told} of {test.width} for {ENOUGH:.0%}; with few, {spelled}")
    return Finding("C6", judge_all(answers), "; ".join(parts) or "no variant was tested")


def _level(variants: int) -> float:
    """Coverage of each interval where any of several variants can refute a claim: together they err in 5 % at most."""
    return shared_level(variants)


def findings_box(findings: Sequence[Finding]) -> str:
    """Spell findings as a Markdown table: what the thesis says, what we see."""
    head = "| claim | what the thesis says | verdict | what we see |\n| --- | --- | --- | --- |\n"
    return head + "\n".join(f"| {f.claim} | {f.text} | **{f.verdict}** | {f.evidence} |" for f in findings)


_TOLD: dict[Verdict, str] = {
    "confirmed": "Agrees with the thesis",
    "not confirmed": "Does not agree with the thesis",
    "cannot tell": "This run cannot tell",
}


def agreement(findings: Sequence[Finding]) -> str:
    """Say plainly what agrees with the thesis, what does not, and what is open: one Markdown line for each."""
    lines = []
    for verdict, words in _TOLD.items():
        claims = " ".join(f"{f.text} ({f.claim})" for f in findings if f.verdict == verdict)
        lines.append(f"- **{words}:** {claims or 'nothing.'}")
    return "\n".join(lines)
