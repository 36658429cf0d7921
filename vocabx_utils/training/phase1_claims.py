"""Claims of the thesis about phase 1, each judged from measured results (design: C1 to C7, C12, C13, C17).

A single run of each variant has no interval, so a difference counts only if it is larger than `MARGIN` of the value it
is compared with; smaller ones, and results that are missing, give "cannot tell".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vocabx_utils.training.claims import Answer, Verdict

__all__ = [
    "MARGIN",
    "Results",
    "judge_c1",
    "judge_c2",
    "judge_c3",
    "judge_c4",
    "judge_c5",
    "judge_c7",
    "judge_c12",
    "judge_c13",
    "judge_c17",
    "judge_each",
    "unseen",
]

MARGIN = 0.02
_UNSEEN = "not measured here: "
Results = Mapping[str, Sequence[Mapping[str, Any]]]
"""Metrics by variant, one mapping an epoch, epoch 0 first."""


def judge_each(judge: Callable[[Any], Verdict], settings: Mapping[str, Any]) -> list[Verdict]:
    """Let one judge look at several settings.

    Args:
        judge: one of the functions below that takes results.
        settings: results by setting, this run first.

    Returns:
        Verdicts whose claim names the setting; where a setting lacks what the judge needs there is none, except where
        all of them lack it.
    """
    said = {title: judge(results) for title, results in settings.items()}
    seen = {title: verdict for title, verdict in said.items() if not verdict.reason.startswith(_UNSEEN)}
    return [
        Verdict(f"{verdict.claim} ({title})", verdict.answer, verdict.reason)
        for title, verdict in (seen or dict(list(said.items())[:1])).items()
    ]


def unseen(claim: str, what: str) -> Verdict:
    """The verdict where nothing was measured."""
    return Verdict(claim, "cannot tell", f"{_UNSEEN}{what}")


def _sign(end: float, start: float) -> int:
    change = (end - start) / abs(start) if start else 0.0
    return 0 if abs(change) <= MARGIN else (1 if change > 0 else -1)


def _answer(holds: Sequence[bool | None]) -> Answer:
    known = [held for held in holds if held is not None]
    if not known or len(set(known)) > 1:
        return "cannot tell"
    return "confirmed" if known[0] else "not confirmed"


def judge_c1(results: Results) -> Verdict:
    """C1: KL rises when the input rows are trained by CE. Judged pooled, as the thesis plots it."""
    claim = "C1 KL rises under CE"
    found, holds = [], []
    for name in ("mean_ce", "random_ce"):
        if name not in results:
            continue
        start, end = results[name][0], results[name][-1]
        held = {key: _sign(end[key], start[key]) for key in ("kl_pooled", "kl_identical", "kl_last")}
        parts = ", ".join(f"{key[3:]} {start[key]:.3f} to {end[key]:.3f}" for key in held)
        found.append(f"{name}: {parts}")
        holds.append(None if held["kl_pooled"] == 0 else held["kl_pooled"] > 0)
    return Verdict(claim, _answer(holds), "; ".join(found)) if found else unseen(claim, "mean_ce, random_ce")


def judge_c2(results: Results) -> Verdict:
    """C2: the final CE depends on the first values (of the head), not on the objective."""
    claim = "C2 final CE depends on head init, not on the objective"
    by_init = _pair(results, "mean_kl_last", "random_kl_last") or _pair(results, "mean_kl_first", "random_kl_first")
    by_objective = _pair(results, "mean_ce", "mean_kl_first") or _pair(results, "mean_ce", "mean_kl_last")
    if by_init is None or by_objective is None:
        return unseen(claim, "two inits of one objective and two objectives of one init")
    init, objective = (abs(a["ce"] - b["ce"]) for a, b in (by_init, by_objective))
    reason = f"CE differs by {init:.3f} between inits and by {objective:.3f} between objectives"
    ratio = init / max(objective, 1e-9)
    return Verdict(claim, "confirmed" if ratio > 2 else "not confirmed" if ratio < 1 else "cannot tell", reason)


def _pair(results: Results, one: str, other: str) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    if one in results and other in results:
        return results[one][-1], results[other][-1]
    return None


def judge_c3(results: Results) -> Verdict:
    """C3: random init with KL has the lower validation KL at the end."""
    claim = "C3 random + KL generalises better in KL than mean + KL"
    for anchor, key in (("first", "kl_pooled"), ("last", "kl_pooled_last")):
        pair = _pair(results, f"random_kl_{anchor}", f"mean_kl_{anchor}")
        if pair is not None:
            random, mean = pair[0][key], pair[1][key]
            sign = _sign(random, mean)
            reason = f"validation KL, identical and {anchor} pooled: random {random:.3f}, mean {mean:.3f}"
            return Verdict(claim, _answer([None if sign == 0 else sign < 0]), reason)
    return unseen(claim, "random and mean init under one KL objective")


def judge_c4(cosines: Mapping[str, Mapping[str, float]]) -> Verdict:
    """C4: from random init, KL ends nearest the first subtoken and CE nearest the last; intermediates are least.

    Args:
        cosines: by variant, mean cosine of the input rows to ``first``, ``intermediate``, ``last``.
    """
    claim = "C4 KL favours the first subtoken, CE the last"
    holds: list[bool | None] = []
    found = []
    for name, (high, low) in (
        ("random_kl_first", ("first", "last")),
        ("random_kl_last", ("first", "last")),
        ("random_ce", ("last", "first")),
    ):
        if name in cosines:
            row = cosines[name]
            found.append(f"{name} first {row['first']:.3f}, last {row['last']:.3f}")
            holds.append(row[high] > row[low])
    if "random_ce" not in cosines or len(holds) < 2:
        return unseen(claim, "; ".join(["random_ce beside random_kl", *found]))
    answer: Answer = "confirmed" if all(holds) else "not confirmed"
    return Verdict(claim, answer, "; ".join(found))


def judge_c5(start: float, end: float, expected: float, orthogonal: float) -> Verdict:
    """C5: the cosine of mean-initialised rows to their subtokens hardly moves.

    Args:
        start, end: mean cosine to a subtoken before and after training.
        expected: what the mean of this model's subtokens gives by itself.
        orthogonal: mean of 1 / sqrt(k), what k orthogonal subtokens would give.
    """
    claim = "C5 mean-init cosine (about 0.6) hardly moves"
    reason = (
        f"{start:.3f} to {end:.3f}; the start follows from the averaging alone ({expected:.3f}; "
        f"{orthogonal:.3f} for orthogonal subtokens)"
    )
    return Verdict(claim, "confirmed" if abs(end - start) < 0.1 * abs(start) else "not confirmed", reason)


def judge_c7(results: Results) -> Verdict:
    """C7: phase 1 helps later. Judged by held-out likelihood alone, against both untrained starts.

    Whether it helps a model answer is asked by notebook 05; bits per byte say whether it starts from a better place.
    """
    claim = "C7 phase 1 helps (bits per byte of held-out texts)"
    starts = {name: results[name][-1]["bpb"] for name in ("mean_untrained", "random_untrained") if name in results}
    ends = {name: results[name][-1]["bpb"] for name in ("mean_ce", "mean_kl_first", "mean_kl_last") if name in results}
    if "mean_untrained" not in starts or not ends:
        return unseen(claim, "a trained and an untrained variant")
    signs = [_sign(end, min(starts.values())) for end in ends.values()]
    reason = "; ".join(f"{name} {value:.3f}" for name, value in (starts | ends).items())
    return Verdict(claim, _answer([None if sign == 0 else sign < 0 for sign in signs]), reason)


def judge_c12(gains: Mapping[int, Mapping[str, float]]) -> Verdict:
    """C12: KL's signal weakens as the share of new tokens grows.

    Args:
        gains: by N, ``share`` of new tokens and ``kept``, the share of the untrained KL at the last subtoken that KL
            training removes.
    """
    claim = "C12 KL's signal weakens as the share of new tokens grows"
    if len(gains) < 2:
        return unseen(claim, "two or more N")
    rows = sorted(gains.items())
    reason = "; ".join(f"N = {n}: {row['share']:.2%} new, KL removed {row['kept']:.1%}" for n, row in rows)
    sign = _sign(rows[-1][1]["kept"], rows[0][1]["kept"])
    return Verdict(claim, _answer([None if sign == 0 else sign < 0]), reason)


def judge_c13(one_forward: float, two_forwards: float) -> Verdict:
    """C13: one forward pass for both optimisers takes about half the time of two.

    Args:
        one_forward: seconds of a step with one student forward.
        two_forwards: seconds of the same step with a forward and a backward for each side.
    """
    claim = "C13 the one-forward scheme halves the time"
    ratio = one_forward / two_forwards
    reason = f"one forward takes {ratio:.0%} of the time of two"
    return Verdict(claim, "confirmed" if ratio < 0.6 else "not confirmed" if ratio > 0.75 else "cannot tell", reason)


def judge_c17(rows: Mapping[str, Mapping[str, float]]) -> Verdict:
    """C17: a temperature and a share of CE help together.

    Args:
        rows: final metrics of ``mean_kl_last``, ``mean_kl_last_t2``, ``mean_kl_last_ce0.3`` and
            ``mean_kl_last_ce0.3_t2``.
    """
    claim = "C17 temperature and a CE share help together"
    names = ("mean_kl_last", "mean_kl_last_t2", "mean_kl_last_ce0.3", "mean_kl_last_ce0.3_t2")
    if any(name not in rows for name in names):
        return unseen(claim, ", ".join(name for name in names if name not in rows))
    both, others = rows[names[3]], [rows[name] for name in names[:3]]
    better = {key: all(both[key] < other[key] * (1 - MARGIN / 10) for other in others) for key in ("bpb", "kl_last")}
    parts = [f"{name[5:]}: bpb {rows[name]['bpb']:.4f}, KL last {rows[name]['kl_last']:.3f}" for name in names]
    reason = "; ".join(parts)
    answer: Answer = "confirmed" if all(better.values()) else "not confirmed"
    return Verdict(claim, answer, reason)
