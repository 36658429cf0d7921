"""Claims about where new rows point, and which of their coordinates matter: C4, C5, C6 (thesis appendix A)."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from vocabx_utils.claims.verdict import Verdict, of_parts, signed, spelled, told, unseen
from vocabx_utils.intervals import Answer, Interval, judge, judge_all, mean_interval, ratio_interval, shared_level
from vocabx_utils.names import variant_label

STILL = 0.1
"""Change of the mean cosine, as a share of its start, that counts as hardly any (C5)."""
FEW = 0.1
"""Share of the D coordinates of a row that counts as few (C6)."""
ENOUGH = 0.9
"""Share of the gain in KL that a few coordinates have to keep (C6)."""
_OBJECTIVES = "(ce|kl(_first|_last|_none)?)"  # the thesis's, with KL at any anchor
Places = Mapping[str, ArrayLike]
"""Cosine of the input rows to their `first` and `last` subtoken, one value a member of the sample; NaN where none."""
Ends = Mapping[str, tuple[Places, Places]]
"""Cosines before and after training, by variant."""


def training_ends(table: pd.DataFrame) -> dict[str, tuple[pd.DataFrame, pd.DataFrame]]:
    """Take the cosines of input rows in the first and last epoch out of `cosines_by_epoch`, one row a new token."""
    ends = {}
    for variant, part in table[table["matrix"] == "input"].groupby("variant"):
        wide = part.pivot(index="token", columns=["epoch", "position"], values="cosine")
        start, end = part["epoch"].min(), part["epoch"].max()
        if end > start:
            ends[str(variant)] = (wide[start], wide[end])
    return ends


def judge_c4(ends: Ends, sample: str) -> Verdict:
    """C4: from random starts KL turns rows to the first subtoken, CE to the last.

    The turn is the gain of the cosine to the first minus that of the cosine to the last. One variant that turns the
    other way is enough against the claim; for it, a variant of each objective is needed.
    """
    signs = {name: sign for name in ends if (sign := _expected_turn(name))}
    turns = {name: _finite(_gain(ends[name], "first") - _gain(ends[name], "last")) for name in signs}
    turns = {name: values for name, values in turns.items() if values.size}
    if not turns:
        return unseen("C4", "random_ce and random_kl")
    found = {name: mean_interval(values, shared_level(len(turns))) for name, values in turns.items()}
    parts = {name: judge(signed(interval, signs[name])) for name, interval in found.items()}
    texts = {name: f"{variant_label(name)} {told(found[name], n.size, sample)}" for name, n in turns.items()}
    answers = list(parts.values())
    reason = f"gain of the cosine to the first minus that to the last: {spelled(texts, parts)}"
    if missing := [kind for kind, sign in (("random_kl", 1), ("random_ce", -1)) if sign not in map(signs.get, turns)]:
        answers.append("cannot tell")
        reason += f"; not measured here: {missing[0]}"
    return Verdict("C4", judge_all(answers), reason, found, parts)


def judge_c5(
    ends: Ends, expected: float | None = None, orthogonal: float | None = None, sample: str = "tokens"
) -> Verdict:
    """C5: from mean starts the cosine to the end subtokens changes by less than `STILL` of its start.

    The objectives are the thesis's, CE and KL. A row may turn and keep its cosine to its subtokens.

    Args:
        expected: what the mean of this model's subtokens gives by itself.
        orthogonal: mean of 1 / sqrt(k), what k orthogonal subtokens would give.
    """
    cosines = {
        name: [np.mean([np.asarray(side[at], np.float64) for at in ("first", "last")], 0) for side in sides]
        for name, sides in ends.items()
        if re.fullmatch(f"mean_{_OBJECTIVES}", name)
    }
    changes = {name: _finite(end - start) for name, (start, end) in cosines.items()}
    changes = {name: change for name, change in changes.items() if change.size}
    if not changes:
        return unseen("C5", "a cosine before and after training from the mean")
    found, parts, texts = {}, {}, {}
    for name, change in changes.items():
        start = float(np.nanmean(cosines[name][0]))
        found[name] = moved = mean_interval(change, shared_level(len(changes)))
        parts[name] = judge_all([judge(side, -STILL * abs(start)) for side in (moved, signed(moved, -1))])
        texts[name] = f"{variant_label(name)} {start:.3f} at the start, change {told(moved, change.size, sample)}"
    alone = ""
    if expected is not None and orthogonal is not None:
        alone = f"; the averaging alone gives {expected:.3f} ({orthogonal:.3f} for orthogonal subtokens)"
    return of_parts("C5", "", texts, found, parts, alone)


def judge_c6(sums: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]], sample: str) -> Verdict:
    """C6: from random starts the `FEW` coordinates that changed most keep `ENOUGH` of the gain in KL.

    The thesis argues from random starts, under both objectives: each has an answer of its own, and other starts and
    objectives are told beside them and decide nothing. Neither does a variant without a certain gain in KL, which has
    nothing to keep. `sums` of KL by variant are those with untrained rows, with the few coordinates alone, and with
    trained rows, one value a member of the sample.
    """
    found: dict[str, Interval] = {}
    parts: dict[str, Answer] = {}
    texts = {}
    for name, columns in sums.items():
        start, few, end = (np.asarray(values, dtype=np.float64) for values in columns)
        seen = start > 0
        gain = (start - end)[seen]
        parts[name] = "cannot tell"
        if judge(mean_interval(gain)) != "confirmed":
            texts[name] = f"{variant_label(name)} no certain gain in KL, n = {gain.size} {sample}"
            continue
        found[name] = ratio_interval((start - few)[seen], gain, shared_level(len(sums)))
        parts[name] = judge(found[name], ENOUGH)
        texts[name] = f"{variant_label(name)} {told(found[name], gain.size, sample)}"
    if not texts:
        return unseen("C6", "KL with a few coordinates of the change")
    deciding = [parts[name] for name in sums if re.fullmatch(f"random_{_OBJECTIVES}", name)]
    reason = f"share of the gain kept: {spelled(texts, parts)}"
    reason += "" if deciding else "; not measured here: a random start, from which the thesis argues"
    return Verdict("C6", judge_all(deciding), reason, found, parts)


def _expected_turn(variant: str) -> int:
    """1 for KL from random starts, -1 for CE, 0 for mixtures, other objectives and other starts."""
    return 0 if not re.fullmatch(f"random_{_OBJECTIVES}", variant) else -1 if variant == "random_ce" else 1


def _gain(sides: tuple[Places, Places], place: str) -> np.ndarray:
    before, after = (np.asarray(side[place], dtype=np.float64) for side in sides)
    return after - before


def _finite(values: np.ndarray) -> np.ndarray:
    return values[np.isfinite(values)]
