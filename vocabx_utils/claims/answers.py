"""Claims about benchmarks: C10, C11, C14, C15, C16, and sentences on likelihood by the same principle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from vocabx_utils import statistics
from vocabx_utils.claims.verdict import Verdict, of_parts, spelled, unseen
from vocabx_utils.evaluation.failures import FAILURE_CLASSES
from vocabx_utils.evaluation.scoring import Count
from vocabx_utils.intervals import Interval, judge, judge_all, ratio_difference, shared_level
from vocabx_utils.resampling import rank_correlation

Passes = Mapping[str, Mapping[str, Count]]
"""Counts by variant and benchmark."""
_ANCHORS = ("kl_first", "kl_last", "kl")  # the thesis's objective first
_THESIS_BENCHMARKS = ("ds1000", "bigcodebench")
_FEWEST_VARIANTS = 3  # a rank correlation of two is 1 or -1
_FEWEST_PROBLEMS = 20  # for the normal approximation behind a density


def judge_c10(passes: Passes, benchmark: str = "bigcodebench") -> Verdict:
    """C10: initialisation and objective interact (the thesis: CE prefers random, KL prefers mean, BigCodeBench).

    The interaction is (mean KL - random KL) - (mean CE - random CE) in pass rate. All four variants are tuned ones, or
    none is, and both KL variants have the same anchor.
    """
    names = ["random_ce", "random_kl", "mean_ce", "mean_kl"]
    cells = _cells(passes, names, [benchmark])
    if not cells:
        return unseen("C10", f"{benchmark} results of all of {', '.join(names)}")
    counts = [(cells[name, benchmark].passed, cells[name, benchmark].kept) for name in names]
    effect = statistics.rate_contrast(counts, (1, -1, -1, 1))
    return Verdict("C10", judge(effect), f"interaction {_points(effect)}", {"interaction": effect})


def judge_c11(losses: Mapping[str, float], rates: Mapping[str, float], *, poor: float = -0.5) -> Verdict:
    """C11: the loss, such as bits per byte, is a poor proxy of pass rates (Spearman correlation over variants).

    A correlation above `poor` is poor: a good proxy falls as the pass rate rises.
    """
    names = [name for name in losses if name in rates]
    if len(names) < _FEWEST_VARIANTS or len({rates[name] for name in names}) < 2:
        needed = f"{_FEWEST_VARIANTS} or more with different rates needed"
        return Verdict("C11", "cannot tell", f"{len(names)} variants with both; {needed}")
    rho = rank_correlation([losses[name] for name in names], [rates[name] for name in names])
    reason = f"Spearman {rho.estimate:+.2f} [{rho.low:+.2f}, {rho.high:+.2f}] over {len(names)} variants"
    return Verdict("C11", judge(rho, poor), reason, {"Spearman": rho})


def judge_c14(passes: Passes) -> Verdict:
    """C14: CE suits short completion (DS-1000), KL open-ended tasks (BigCodeBench), both from mean rows."""
    cells = _cells(passes, ["mean_ce", "mean_kl"], _THESIS_BENCHMARKS)
    if not cells:
        return unseen("C14", "DS-1000 and BigCodeBench results of mean_ce and mean_kl")
    ce, kl = ({name: cells[variant, name] for name in _THESIS_BENCHMARKS} for variant in ("mean_ce", "mean_kl"))
    halves = {
        "DS-1000 CE - KL": (ce["ds1000"], kl["ds1000"]),
        "BigCodeBench KL - CE": (kl["bigcodebench"], ce["bigcodebench"]),
    }
    gaps = {  # each half can refute the claim
        title: statistics.difference_interval(one.passed, one.kept, two.passed, two.kept, shared_level(2))
        for title, (one, two) in halves.items()
    }
    texts = {title: f"{title} {_points(gap)}" for title, gap in gaps.items()}
    return of_parts("C14", "", texts, gaps, {title: judge(gap) for title, gap in gaps.items()})


def judge_c15(counts: Mapping[str, Sequence[tuple[int, int]]]) -> Verdict:
    """C15: DS-1000 has the highest density of new tokens. Its problems are a sample of such tasks.

    Args:
        counts: new tokens and all tokens of each problem, by benchmark. Without BigCodeBench, the other benchmark of
            the thesis, the claim can be refuted but not confirmed.
    """
    usable = {name: rows for name, rows in counts.items() if len(rows) >= _FEWEST_PROBLEMS}
    others = [name for name in usable if name != "ds1000"]
    if "ds1000" not in usable or not others:
        measured = ", ".join(usable) or "nothing"
        wanted = f"DS-1000 and another benchmark ({_FEWEST_PROBLEMS} problems or more)"
        return unseen("C15", f"{wanted}, but {measured} only")
    level = shared_level(len(others))  # any of them can refute the claim
    gaps = {name: ratio_difference(usable["ds1000"], usable[name], confidence=level) for name in others}
    parts = {name: judge(gap) for name, gap in gaps.items()}
    answer = judge_all(list(parts.values()))
    if answer == "confirmed" and not set(_THESIS_BENCHMARKS) <= usable.keys():
        answer = "cannot tell"
    listed = spelled({name: f"{name} {_points(gap, 3)}" for name, gap in gaps.items()}, parts)
    return Verdict("C15", answer, f"density of DS-1000 minus that of {listed}", gaps, parts)


def judge_c16(classes: Mapping[str, Sequence[str]]) -> Verdict:
    """C16: natural language instead of code is the commonest failure of every model.

    Of the answers that failed in one of two ways, the share without code is compared with a half (exact binomial
    interval). Models answer the same problems, so their failures are not added up. Passes have the class `""`.
    """
    counts = {name: Counter(kind for kind in kinds if kind) for name, kinds in classes.items()}
    counts = {name: found for name, found in counts.items() if found}
    if not counts:
        return Verdict("C16", "cannot tell", "no failures")
    others = [kind for kind in FAILURE_CLASSES if kind != "no code"]
    level = shared_level(len(others) * len(counts))  # each class of each model can refute the claim
    shares, parts = {}, []
    for name, found in counts.items():
        for kind in others:
            both = found["no code"] + found[kind]
            shares[f"{name}, {kind}"] = statistics.exact_interval(found["no code"], both, level)
        kind, rival = max(((kind, found[kind]) for kind in others), key=lambda item: item[1])
        parts.append(f"{name}: {found['no code']} of {found.total()} failures without code, {rival} {kind}")
    return Verdict("C16", judge_all([judge(share, 0.5) for share in shares.values()]), "; ".join(parts), shares)


def likelihood_sentences(table: pd.DataFrame, names: Mapping[str, str], reference: str, texts: str) -> list[str]:
    """Say of each variant whether its bits per byte differ from the reference's, which was chosen before the results.

    Intervals in the table (`likelihood.likelihood_table`) cover 95 %, and negative differences are gains.
    """
    said = {"confirmed": "is worse than", "not confirmed": "is better than", "cannot tell": "shows no difference to"}
    other = f"the {names[reference]}" if reference == "base" else names[reference]
    sentences = []
    rows: Any = table[table["model"] != reference].itertuples()
    for row in rows:
        gap = Interval(row.difference, row.low, row.high)
        numbers = f"{gap.estimate:+.4f} bits per byte [{gap.low:+.4f}, {gap.high:+.4f}], n = {row.n}"
        sentences.append(f"On {texts}, {names[row.model]} {said[judge(gap)]} {other}: {numbers}.")
    return sentences


def _points(interval: Interval, digits: int = 1) -> str:
    value, low, high = (f"{100 * part:+.{digits}f}" for part in (interval.estimate, interval.low, interval.high))
    return f"{value} points [{low}, {high}]"


def _cells(passes: Passes, names: Sequence[str], benchmarks: Sequence[str]) -> dict[tuple[str, str], Count]:
    """Counts by variant (`mean_kl` for any anchor) and benchmark, all of one stage and anchor; else empty."""
    for stage in ("tuned_", ""):
        for anchor in _ANCHORS:
            full = {name: stage + name.replace("kl", anchor) for name in names}
            if all(benchmark in passes.get(found, {}) for found in full.values() for benchmark in benchmarks):
                return {(n, b): passes[full[n]][b] for n in names for b in benchmarks}
    return {}
