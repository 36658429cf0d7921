"""Claims about phase 1 as a whole: C1, C2, C3, C7, C12, C13, C17.

Where a result is one number a run, the sample is the settings, that is pairs of a model and a corpus; runs of one pair
are averaged, since they are not independent. C12 takes numbers of new tokens within settings, C13 measured steps.
One run without such a sample gives "cannot tell".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vocabx_utils.claims.verdict import Verdict, signed, told, unseen
from vocabx_utils.intervals import Interval, judge, judge_all, mean_interval, shared_level, slope_interval

HALF = 0.6
"""Ratio of times below which the time counts as halved (C13): half, and a tenth for the losses that both ways share."""
Results = Mapping[str, Sequence[Mapping[str, Any]]]
"""Metrics by variant, one mapping an epoch, epoch 0 first."""
Settings = Mapping[str, Results]
"""Results by setting: `model, corpus` with what else differs after another comma, or a name of one run."""


def judge_c1(settings: Settings) -> Verdict:
    """C1: KL rises when the input rows are trained by CE: end over start, pooled as the thesis plots it."""

    def rise(name: str) -> Callable[[Results], float | None]:
        return lambda results: (
            math.log(results[name][-1]["kl_pooled"] / results[name][0]["kl_pooled"]) if name in results else None
        )

    parts = {f"{name} pooled KL, end over start": _effects(settings, rise(name)) for name in ("mean_ce", "random_ce")}
    return _over_settings("C1", parts, 1, "mean_ce, random_ce")


def judge_c2(settings: Settings) -> Verdict:
    """C2: the final CE depends on the first values (of the head), not on the objective.

    The difference between two inits over that between two objectives has to lie above 1.
    """

    def ratio(results: Results) -> float | None:
        init = _first_seen(results, "ce", ("random_kl_last", "mean_kl_last"), ("random_kl_first", "mean_kl_first"))
        objective = _first_seen(results, "ce", ("mean_ce", "mean_kl_first"), ("mean_ce", "mean_kl_last"))
        if init is None or objective is None:
            return None
        return math.log(max(abs(init), 1e-9) / max(abs(objective), 1e-9))

    parts = {"change of CE between inits over that between objectives": _effects(settings, ratio)}
    return _over_settings("C2", parts, 1, "two inits of one objective and two objectives of one init")


def judge_c3(settings: Settings) -> Verdict:
    """C3: random init with KL has the lower validation KL at the end; pooled with the places of the same anchor."""

    def gap(results: Results) -> float | None:
        first = _log_ratio(results, "random_kl_first", "mean_kl_first", "kl_pooled")
        return _log_ratio(results, "random_kl_last", "mean_kl_last", "kl_pooled_last") if first is None else first

    parts = {"validation KL, random over mean": _effects(settings, gap)}
    return _over_settings("C3", parts, -1, "random and mean init under one KL objective")


def judge_c7(settings: Settings) -> Verdict:
    """C7: phase 1 helps later. Judged by held-out likelihood alone, against the better untrained start.

    Whether it helps a model answer is asked by notebook 05; bits per byte say whether it starts from a better place.
    """

    def gain(name: str) -> Callable[[Results], float | None]:
        def change(results: Results) -> float | None:
            if name not in results or "mean_untrained" not in results:
                return None
            starts = [results[at][-1]["bpb"] for at in ("mean_untrained", "random_untrained") if at in results]
            return math.log(results[name][-1]["bpb"] / min(starts))

        return change

    names = ("mean_ce", "mean_kl_first", "mean_kl_last")
    parts = {f"{name} bits per byte over untrained": _effects(settings, gain(name)) for name in names}
    return _over_settings("C7", parts, -1, "a trained and an untrained variant")


def judge_c12(settings: Mapping[str, Mapping[int, Mapping[str, float]]]) -> Verdict:
    """C12: KL's signal weakens as the share of new tokens grows: the slope of `kept` over log share lies below 0.

    The lines of several settings have one slope and a level each. Two N of one setting leave no interval. By setting
    and N, `kept` is the share of the untrained KL at the last subtoken that KL training removes.
    """
    swept = {title: sorted(gains.items()) for title, gains in settings.items() if len(gains) > 1}
    if not swept:
        return unseen("C12", "two or more N")
    lines = [(np.log([row["share"] for _, row in rows]), [row["kept"] for _, row in rows]) for rows in swept.values()]
    slope, n = slope_interval(lines), sum(map(len, swept.values()))
    listed = "; ".join(
        f"{title}, N = {size}: {row['share']:.2%} new, KL removed {row['kept']:.1%}"
        for title, rows in swept.items()
        for size, row in rows
    )
    reason = f"slope over log share {told(slope, n, 'sizes')}; {listed}"
    return Verdict("C12", judge(signed(slope, -1)), reason, {"slope over log share": slope})


def judge_c13(one_forward: Sequence[float], two_forwards: Sequence[float]) -> Verdict:
    """C13: one forward pass for both optimisers takes about half the time of two, or less.

    The mean log ratio of pairs of steps (seconds), taken in turns, is compared with that of `HALF`.
    """
    log = mean_interval(np.log(one_forward) - np.log(two_forwards))
    what, ratio = "time of one forward over that of two", _exp(log)
    reason = f"{what} {told(ratio, len(one_forward), 'steps')}; halved is below {HALF}"
    return Verdict("C13", judge(signed(log, -1), -math.log(HALF)), reason, {what: ratio})


def judge_c17(settings: Settings) -> Verdict:
    """C17: a temperature and a share of CE help together: better than either and neither, in both measures."""
    base, both = "mean_kl_last", "mean_kl_last_ce0.3_t2"
    others = (base, "mean_kl_last_t2", "mean_kl_last_ce0.3")

    def gap(other: str, key: str) -> Callable[[Results], float | None]:
        return lambda results: _log_ratio(results, both, other, key)

    parts = {
        f"{key} of both over {other[5:]}": _effects(settings, gap(other, key))
        for key in ("bpb", "kl_last")
        for other in others
    }
    if not all(parts.values()):
        return unseen("C17", ", ".join((*others, both)))
    return _over_settings("C17", parts, -1, both)


def _effects(settings: Settings, effect: Callable[[Results], float | None]) -> list[float]:
    """One effect a pair of model and corpus; runs of one pair are averaged."""
    pairs: dict[str, list[float]] = {}
    for title, results in settings.items():
        value = effect(results)
        if value is not None and math.isfinite(value):
            pairs.setdefault(", ".join(title.split(", ")[:2]), []).append(value)
    return [float(np.mean(values)) for values in pairs.values()]


def _over_settings(claim: str, parts: Mapping[str, Sequence[float]], sign: int, missing: str) -> Verdict:
    """Judge log ratios over settings: every part has to have this sign."""
    seen = {name: values for name, values in parts.items() if values}
    if not seen:
        return unseen(claim, missing)
    logs = {name: mean_interval(values, shared_level(len(seen))) for name, values in seen.items()}
    ratios = {name: _exp(log) for name, log in logs.items()}
    reason = "; ".join(f"{name} {told(ratios[name], len(values), 'settings')}" for name, values in seen.items())
    return Verdict(claim, judge_all([judge(signed(log, sign)) for log in logs.values()]), reason, ratios)


def _log_ratio(results: Results, one: str, other: str, key: str) -> float | None:
    """Log of the last value of one variant over that of another; None where one is missing."""
    if one not in results or other not in results:
        return None
    return math.log(results[one][-1][key] / results[other][-1][key])


def _first_seen(results: Results, key: str, *pairs: tuple[str, str]) -> float | None:
    return next((found for pair in pairs if (found := _log_ratio(results, *pair, key)) is not None), None)


def _exp(log: Interval) -> Interval:
    """The interval of a ratio from that of its logarithm."""
    with np.errstate(over="ignore"):  # one run has no upper limit
        return Interval(*(float(np.exp(value)) for value in (log.estimate, log.low, log.high)))
