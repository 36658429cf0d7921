"""Claims of the thesis about phase 1, each judged from measured results (design: C1 to C7, C12, C13, C17).

A claim is confirmed or not confirmed only where an interval excludes the other answer. What is taken as a sample:

* settings, that is pairs of a model and a corpus, where a result is one number a run (C1, C2, C3, C4, C7, C17). Runs
  of one pair are averaged, since they are not independent;
* new tokens, where a run keeps a value for each (C4, C5, C6);
* numbers of new tokens within settings (C12), and measured steps (C13).

Intervals are Student's, see `vocabx_utils.intervals`. One run without such a sample gives "cannot tell".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from vocabx_utils.intervals import (
    Answer,
    Interval,
    judge,
    judge_all,
    mean_interval,
    ratio_interval,
    shared_level,
    slope_interval,
)
from vocabx_utils.training.claims import Verdict

__all__ = [
    "ENOUGH",
    "HALF",
    "STILL",
    "Results",
    "judge_c1",
    "judge_c2",
    "judge_c3",
    "judge_c4",
    "judge_c5",
    "judge_c6",
    "judge_c7",
    "judge_c12",
    "judge_c13",
    "judge_c17",
    "unseen",
]

STILL = 0.1
"""Change of the mean cosine, as a share of its start, that counts as hardly any (C5)."""
ENOUGH = 0.9
"""Share of the gain in KL that a few coordinates have to keep (C6)."""
HALF = 0.6
"""Ratio of times below which the time counts as halved (C13): half, and a tenth for the losses that both ways share."""
Results = Mapping[str, Sequence[Mapping[str, Any]]]
"""Metrics by variant, one mapping an epoch, epoch 0 first."""
Settings = Mapping[str, Results]
"""Results by setting: ``model, corpus`` with what else differs after another comma, or a name of one run."""


def unseen(claim: str, what: str) -> Verdict:
    """The verdict where nothing was measured."""
    return Verdict(claim, "cannot tell", f"not measured here: {what}")


def judge_c1(settings: Settings) -> Verdict:
    """C1: KL rises when the input rows are trained by CE: log of end over start, pooled as the thesis plots it."""

    def rise(name: str) -> Callable[[Results], float | None]:
        return lambda results: (
            math.log(results[name][-1]["kl_pooled"] / results[name][0]["kl_pooled"]) if name in results else None
        )

    parts = {f"{name} pooled KL, end over start": _effects(settings, rise(name)) for name in ("mean_ce", "random_ce")}
    return _over_settings("C1 KL rises under CE", parts, 1, "mean_ce, random_ce")


def judge_c2(settings: Settings) -> Verdict:
    """C2: the final CE depends on the first values (of the head), not on the objective.

    The difference between two inits over that between two objectives has to lie above 1.
    """

    def ratio(results: Results) -> float | None:
        init = _last_log_ratio(results, "random_kl_last", "mean_kl_last", "ce")
        init = _last_log_ratio(results, "random_kl_first", "mean_kl_first", "ce") if init is None else init
        objective = _last_log_ratio(results, "mean_ce", "mean_kl_first", "ce")
        objective = _last_log_ratio(results, "mean_ce", "mean_kl_last", "ce") if objective is None else objective
        if init is None or objective is None:
            return None
        return math.log(max(abs(init), 1e-9) / max(abs(objective), 1e-9))

    parts = {"change of CE between inits over that between objectives": _effects(settings, ratio)}
    missing = "two inits of one objective and two objectives of one init"
    return _over_settings("C2 final CE depends on head init, not on the objective", parts, 1, missing)


def judge_c3(settings: Settings) -> Verdict:
    """C3: random init with KL has the lower validation KL at the end; pooled with the places of the same anchor."""

    def gap(results: Results) -> float | None:
        first = _last_log_ratio(results, "random_kl_first", "mean_kl_first", "kl_pooled")
        return _last_log_ratio(results, "random_kl_last", "mean_kl_last", "kl_pooled_last") if first is None else first

    parts = {"validation KL, random over mean": _effects(settings, gap)}
    missing = "random and mean init under one KL objective"
    return _over_settings("C3 random + KL generalises better in KL than mean + KL", parts, -1, missing)


def judge_c4(gaps: Mapping[str, ArrayLike], sample: str) -> Verdict:
    """C4: from random init, KL ends nearer the first subtoken than the last, and CE nearer the last.

    Args:
        gaps: by variant, cosine of the input rows to the first subtoken minus that to the last, one value a member
            of the sample.
        sample: what the values are, "tokens" or "settings".
    """
    claim = "C4 KL favours the first subtoken, CE the last"
    signs = {"random_kl_first": 1, "random_kl_last": 1, "random_ce": -1}
    seen = {name: _finite(gaps[name]) for name in signs if name in gaps and _finite(gaps[name]).size}
    if "random_ce" not in seen or len(seen) < 2:
        return unseen(claim, "random_ce beside random_kl")
    level = shared_level(len(seen))
    found = {name: mean_interval(values, level) for name, values in seen.items()}
    answers = [judge(_signed(interval, signs[name])) for name, interval in found.items()]
    listed = "; ".join(f"{name} {_told(found[name], values.size, sample)}" for name, values in seen.items())
    return Verdict(claim, judge_all(answers), f"cosine to the first minus to the last: {listed}")


def judge_c5(start: ArrayLike, end: ArrayLike, expected: float, orthogonal: float) -> Verdict:
    """C5: the cosine of mean-initialised rows to their subtokens changes by less than `STILL` of its start.

    Args:
        start, end: (N,) cosine of each new token to a subtoken before and after training; NaN where there is none.
        expected: what the mean of this model's subtokens gives by itself.
        orthogonal: mean of 1 / sqrt(k), what k orthogonal subtokens would give.
    """
    claim = "C5 mean-init cosine (about 0.6) hardly moves"
    first, last = np.asarray(start, dtype=np.float64), np.asarray(end, dtype=np.float64)
    change = _finite(last - first)
    if not change.size:
        return unseen(claim, "a cosine before and after training")
    found, mean = mean_interval(change), float(np.nanmean(first))
    reason = (
        f"{mean:.3f} at the start, change {_told(found, change.size, 'tokens')}; the start follows from the averaging "
        f"alone ({expected:.3f}; {orthogonal:.3f} for orthogonal subtokens)"
    )
    band = STILL * abs(mean)
    return Verdict(claim, judge_all([judge(found, -band), judge(_signed(found, -1), -band)]), reason)


def judge_c6(start: ArrayLike, few: ArrayLike, end: ArrayLike) -> Verdict:
    """C6: a few coordinates of the change keep `ENOUGH` of the gain in KL; new tokens are the sample.

    Args:
        start, few, end: (N,) sums of KL of each new token with untrained rows, with the few coordinates alone, and
            with trained rows.
    """
    claim = "C6 few coordinates carry the meaning"
    before, partly, after = (np.asarray(values, dtype=np.float64) for values in (start, few, end))
    seen = before > 0
    gain = (before - after)[seen]
    if judge(mean_interval(gain)) != "confirmed":
        return Verdict(claim, "cannot tell", f"no certain gain in KL, n = {gain.size} tokens")
    kept = ratio_interval((before - partly)[seen], gain)
    return Verdict(claim, judge(kept, ENOUGH), f"share of the gain kept {_told(kept, gain.size, 'tokens')}")


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
    return _over_settings(
        "C7 phase 1 helps (bits per byte of held-out texts)", parts, -1, "a trained and an untrained variant"
    )


def judge_c12(settings: Mapping[str, Mapping[int, Mapping[str, float]]]) -> Verdict:
    """C12: KL's signal weakens as the share of new tokens grows: the slope of ``kept`` over log share lies below 0.

    The lines of several settings have one slope and a level each. Two N of one setting leave no interval.

    Args:
        settings: by setting and N, ``share`` of new tokens and ``kept``, the share of the untrained KL at the last
            subtoken that KL training removes.
    """
    claim = "C12 KL's signal weakens as the share of new tokens grows"
    swept = {title: sorted(gains.items()) for title, gains in settings.items() if len(gains) > 1}
    if not swept:
        return unseen(claim, "two or more N")
    lines = [(np.log([row["share"] for _, row in rows]), [row["kept"] for _, row in rows]) for rows in swept.values()]
    slope, n = slope_interval(lines), sum(map(len, swept.values()))
    listed = "; ".join(
        f"{title}, N = {size}: {row['share']:.2%} new, KL removed {row['kept']:.1%}"
        for title, rows in swept.items()
        for size, row in rows
    )
    reason = f"slope over log share {_told(slope, n, 'sizes')}; {listed}"
    return Verdict(claim, judge(_signed(slope, -1)), reason)


def judge_c13(one_forward: Sequence[float], two_forwards: Sequence[float]) -> Verdict:
    """C13: one forward pass for both optimisers takes about half the time of two, or less.

    The mean log ratio of pairs of steps, taken in turns, is compared with that of `HALF`.

    Args:
        one_forward: seconds of steps with one student forward.
        two_forwards: seconds of the same steps with a forward for each side.
    """
    claim = "C13 the one-forward scheme halves the time"
    log = mean_interval(np.log(one_forward) - np.log(two_forwards))
    reason = (
        f"time of one forward over that of two {_told(_exp(log), len(one_forward), 'steps')}; halved is below {HALF}"
    )
    return Verdict(claim, judge(_signed(log, -1), -math.log(HALF)), reason)


def judge_c17(settings: Settings) -> Verdict:
    """C17: a temperature and a share of CE help together: better than either and neither, in both measures."""
    base, both = "mean_kl_last", "mean_kl_last_ce0.3_t2"
    others = (base, "mean_kl_last_t2", "mean_kl_last_ce0.3")

    def gap(other: str, key: str) -> Callable[[Results], float | None]:
        return lambda results: _last_log_ratio(results, both, other, key)

    parts = {
        f"{key} of both over {other[5:]}": _effects(settings, gap(other, key))
        for key in ("bpb", "kl_last")
        for other in others
    }
    claim = "C17 temperature and a CE share help together"
    if not all(parts.values()):
        return unseen(claim, ", ".join((*others, both)))
    return _over_settings(claim, parts, -1, both)


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
    level = shared_level(len(seen))
    answers: list[Answer] = []
    told = []
    for name, values in seen.items():
        log = mean_interval(values, level)
        answers.append(judge(_signed(log, sign)))
        told.append(f"{name} {_told(_exp(log), len(values), 'settings')}")
    return Verdict(claim, judge_all(answers), "; ".join(told))


def _last_log_ratio(results: Results, one: str, other: str, key: str) -> float | None:
    if one not in results or other not in results:
        return None
    return math.log(results[one][-1][key] / results[other][-1][key])


def _signed(interval: Interval, sign: int) -> Interval:
    """The interval of the value times 1 or -1."""
    if sign > 0:
        return interval
    return Interval(-interval.estimate, -interval.high, -interval.low)


def _exp(log: Interval) -> Interval:
    """The interval of a ratio from that of its logarithm."""
    with np.errstate(over="ignore"):  # one run has no upper limit
        return Interval(*(float(np.exp(value)) for value in (log.estimate, log.low, log.high)))


def _finite(values: ArrayLike) -> np.ndarray:
    array = np.asarray(values, dtype=np.float64)
    return array[np.isfinite(array)]


def _told(interval: Interval, n: int, sample: str) -> str:
    """Spell an interval; without one say so."""
    if n == 1:
        return f"{interval.estimate:.3f} (one run, no interval)"
    if not math.isfinite(interval.high - interval.low):
        return f"{interval.estimate:.3f} (n = {n} {sample}, too few for an interval)"
    return f"{interval.estimate:.3f} [{interval.low:.3f}, {interval.high:.3f}], n = {n} {sample}"
