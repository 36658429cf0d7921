"""Claims about phase 1 as a whole: C1, C2, C3, C7, C12, C13, C17.

Where a result is one number a run, the sample is the settings, that is pairs of a model and a corpus; runs of one pair
are averaged, since they are not independent. C12 takes numbers of new tokens within settings, C13 measured steps.
One run without such a sample gives "cannot tell". What is said of the end of training (C2, C3) counts only where the
loss has levelled off, as the thesis's had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from vocabx_utils.claims.verdict import Verdict, of_parts, signed, told, unseen
from vocabx_utils.intervals import Interval, judge, mean_interval, shared_level, slope_interval

HALF = 0.6
"""Ratio of times below which the time counts as halved (C13): half, and a tenth for the losses that both ways share."""
COUNTED = 2 / 3
"""That ratio by a count of passes: a forward and a backward pass, against the same and one more forward pass."""
LEVEL = 0.03
"""Change in the last epoch, as a share, below which a loss counts as levelled off (C2, C3)."""
UNTAUGHT = 0.05
"""Share of new tokens without a training example above which a size says nothing about KL's signal (C12)."""
Results = Mapping[str, Sequence[Mapping[str, Any]]]
"""Metrics by variant, one mapping an epoch, epoch 0 first."""
Settings = Mapping[str, Results]
"""Results by setting: `model, corpus` with what else differs after another comma, or a name of one run."""
_Comparison = tuple[str, str, str]  # two variants, and what is compared at their ends


def judge_c1(settings: Settings) -> Verdict:
    """C1: KL rises when the input rows are trained by CE: end over start, pooled as the thesis plots it.

    It rises from both starts in the thesis, "even" from mean rows; each start has an answer of its own.
    """

    def rise(results: Results, name: str) -> float | None:
        return math.log(results[name][-1]["kl_pooled"] / results[name][0]["kl_pooled"]) if name in results else None

    parts = {f"from {start} rows": _effects(settings, rise, f"{start}_ce") for start in ("mean", "random")}
    return _over_settings("C1", "pooled KL, end over start", parts, 1, "mean_ce, random_ce")


def judge_c2(settings: Settings) -> Verdict:
    """C2: the final CE depends on the first values, not on the objective of the input rows.

    The difference between two inits over that between two objectives has to lie above 1.
    """
    inits = [("random_kl_last", "mean_kl_last", "ce"), ("random_kl_first", "mean_kl_first", "ce")]
    objectives = [("mean_ce", "mean_kl_first", "ce"), ("mean_ce", "mean_kl_last", "ce")]

    def ratio(results: Results) -> float | None:
        init, objective = _first_seen(results, inits), _first_seen(results, objectives)
        if init is None or objective is None:
            return None
        return math.log(max(abs(init), 1e-9) / max(abs(objective), 1e-9))

    level, note = _levelled(settings, inits + objectives)
    parts = {"change of CE between first values over that between objectives": _effects(level, ratio)}
    return _over_settings("C2", "", parts, 1, "two inits of one objective and two objectives of one init", note)


def judge_c3(settings: Settings) -> Verdict:
    """C3: random init with KL has the lower validation KL at the end; pooled with the places of the same anchor.

    This is what the thesis observes. That mean rows generalise better, as it concludes, does not follow.
    """
    anchors = [("random_kl_first", "mean_kl_first", "kl_pooled"), ("random_kl_last", "mean_kl_last", "kl_pooled_last")]
    level, note = _levelled(settings, anchors)
    parts = {"validation KL, random over mean": _effects(level, _first_seen, anchors)}
    return _over_settings("C3", "", parts, -1, "random and mean init under one KL objective", note)


def judge_c7(settings: Settings) -> Verdict:
    """C7: phase 1 helps later. Judged by held-out likelihood alone, against the better untrained start.

    Bits per byte right after phase 1 say whether what follows starts from a better place. Whether a model then answers
    better is another question, of pass rates.
    """

    def gain(results: Results, name: str) -> float | None:
        if name not in results or "mean_untrained" not in results:
            return None
        starts = [results[at][-1]["bpb"] for at in ("mean_untrained", "random_untrained") if at in results]
        return math.log(results[name][-1]["bpb"] / min(starts))

    parts = {name: _effects(settings, gain, name) for name in ("mean_ce", "mean_kl_first", "mean_kl_last")}
    return _over_settings("C7", "bits per byte, over untrained", parts, -1, "a trained and an untrained variant")


def judge_c12(settings: Mapping[str, Mapping[int, Mapping[str, float]]]) -> Verdict:
    """C12: KL's signal weakens as the share of new tokens grows: the slope of `kept` over log share lies below 0.

    The lines of several settings have one slope and a level each. Two N of one setting leave no interval. By setting
    and N, `kept` is the share of the untrained KL at the last subtoken that KL training removes, and `untaught` that
    of the new tokens without a training example. More than `UNTAUGHT` of them would weaken any signal, so such a size
    is named and not used.
    """
    swept = {title: sorted(gains.items()) for title, gains in settings.items() if len(gains) > 1}
    if not swept:
        return unseen("C12", "two or more N")
    listed = "; ".join(
        f"{title}, N = {size}: {row['share']:.2%} new, KL removed {row['kept']:.1%}"
        + (f", but {row['untaught']:.0%} of the new tokens without a training example" if _is_untaught(row) else "")
        for title, rows in swept.items()
        for size, row in rows
    )
    used = [[row for _, row in rows if not _is_untaught(row)] for rows in swept.values()]
    lines = [(np.log([row["share"] for row in rows]), [row["kept"] for row in rows]) for rows in used if len(rows) > 1]
    if not lines:
        return Verdict("C12", "cannot tell", f"no two sizes whose tokens were trained; {listed}")
    slope, n = slope_interval(lines), sum(len(shares) for shares, _ in lines)
    reason = f"slope over log share {told(slope, n, 'sizes')}; {listed}"
    return Verdict("C12", judge(signed(slope, -1)), reason, {"slope over log share": slope})


def judge_c13(one_forward: Sequence[float], two_forwards: Sequence[float]) -> Verdict:
    """C13: one forward pass for both optimisers takes about half the time of two, or less.

    The mean log ratio of pairs of steps (seconds), taken in turns, is compared with that of `HALF`. A count of passes
    gives `COUNTED` by itself, so a clock can only show how far the rest of a step moves it from there.
    """
    log = mean_interval(np.log(one_forward) - np.log(two_forwards))
    what, ratio = "time of one forward over that of two", _exp(log)
    reason = f"{what} {told(ratio, len(one_forward), 'steps')}; halved is below {HALF}"
    reason += f", and counting passes alone gives {COUNTED:.2f}"
    return Verdict("C13", judge(signed(log, -1), -math.log(HALF)), reason, {what: ratio})


def judge_c17(settings: Settings) -> Verdict:
    """C17: a temperature and a share of CE help together: better than either and neither, in both measures."""
    both, others = "mean_kl_last_ce0.3_t2", ("mean_kl_last", "mean_kl_last_t2", "mean_kl_last_ce0.3")
    parts = {
        f"{key} of both over {other[5:]}": _effects(settings, _log_ratio, both, other, key)
        for key in ("bpb", "kl_last")
        for other in others
    }
    if not all(parts.values()):
        return unseen("C17", ", ".join((*others, both)))
    return _over_settings("C17", "", parts, -1, both)


def _effects(settings: Settings, effect: Callable[..., float | None], *what: Any) -> list[float]:
    """One effect, of the results of a setting and `what`, a pair of model and corpus; runs of one pair are averaged."""
    pairs: dict[str, list[float]] = {}
    for title, results in settings.items():
        value = effect(results, *what)
        if value is not None and math.isfinite(value):
            pairs.setdefault(", ".join(title.split(", ")[:2]), []).append(value)
    return [float(np.mean(values)) for values in pairs.values()]


def _over_settings(
    claim: str, what: str, parts: Mapping[str, Sequence[float]], sign: int, missing: str, note: str = ""
) -> Verdict:
    """Judge log ratios over settings: every part has to have this sign."""
    seen = {name: values for name, values in parts.items() if values}
    if not seen:
        return Verdict(claim, "cannot tell", note.removeprefix("; ")) if note else unseen(claim, missing)
    logs = {name: mean_interval(values, shared_level(len(seen))) for name, values in seen.items()}
    ratios = {name: _exp(log) for name, log in logs.items()}
    answers = {name: judge(signed(log, sign)) for name, log in logs.items()}
    texts = {name: f"{name} {told(ratios[name], len(values), 'settings')}" for name, values in seen.items()}
    return of_parts(claim, f"{what}: " if what else "", texts, ratios, answers, note)


def _levelled(settings: Settings, compared: Sequence[_Comparison]) -> tuple[Settings, str]:
    """Keep the variants compared whose loss has levelled off; the others are named in a note.

    A start and an end alone do not show it.
    """
    keys = {name: key for *pair, key in compared for name in pair}
    level: dict[str, Results] = {}
    moving = []
    for title, results in settings.items():
        known = {name: results[name] for name in keys if name in results}
        level[title] = {name: lines for name, lines in known.items() if _is_level(lines, keys[name])}
        moving += [f"{name} of {title}" for name in known if name not in level[title]]
    note = f"; left out, since the loss has not levelled off: {', '.join(moving)}" if moving else ""
    return level, note


def _is_level(lines: Sequence[Mapping[str, Any]], key: str) -> bool:
    return len(lines) > 2 and abs(math.log(lines[-1][key] / lines[-2][key])) < LEVEL


def _is_untaught(row: Mapping[str, float]) -> bool:
    return row.get("untaught", 0.0) > UNTAUGHT


def _log_ratio(results: Results, one: str, other: str, key: str) -> float | None:
    """Log of the last value of one variant over that of another; None where one is missing."""
    if one not in results or other not in results:
        return None
    return math.log(results[one][-1][key] / results[other][-1][key])


def _first_seen(results: Results, compared: Sequence[_Comparison]) -> float | None:
    return next((found for one in compared if (found := _log_ratio(results, *one)) is not None), None)


def _exp(log: Interval) -> Interval:
    """The interval of a ratio from that of its logarithm."""
    with np.errstate(over="ignore"):  # one run has no upper limit
        return Interval(*(float(np.exp(value)) for value in (log.estimate, log.low, log.high)))
