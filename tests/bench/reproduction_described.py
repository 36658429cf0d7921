"""What one training of each arm shows: differences between arms with intervals over problems. A description.

The six contrasts need every seed that contrasts.json names. One seed cannot tell an arm from the luck of its training:
the intervals here hold for other problems, and not for another seed. So nothing here is called a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from bench_parts import NOTHING, told_interval
from reproduction_contrasts import DRAWS, Outcomes, limits_of
from reproduction_run import BENCHMARKS

from vocabx_utils.figures.results import forest_chart
from vocabx_utils.figures.theme import WIDEST, Drawing, note, theme
from vocabx_utils.resampling import paired_bootstrap
from vocabx_utils.statistics import mcnemar_test, paired_rate_difference

FURTHER = {
    "tuning": ("base_lora", "base"),
    "phase 1 beside tuned base": ("mean_kl_last_a_lora", "base_a_lora"),
    "recipe beside untaught": ("recipe_a_lora", "mean_untrained_a_lora"),
}
"""Differences that were not named before results were opened, beside the six."""
ALL, NEW, OTHERS = "all", "with a new token", "without"
SCOPES = (ALL, *BENCHMARKS, NEW, OTHERS)
"""Which problems a difference is of: all kept ones, one benchmark, or by whether they hold a new token."""
_LABELS = {"bpb": "bits per byte", "pass": "points of pass@1"}


def describe(
    content: Mapping[str, Any],
    outcomes: Outcomes,
    observed: Sequence[Mapping[str, Any]],
    subset: frozenset[str],
    seed: int = 0,
) -> dict[str, Any]:
    """Compare arms of one seed.

    Args:
        content: contrasts.json.
        observed: lines of observed.jsonl: bits of single texts elsewhere.
        subset: ids of problems that hold a new token.

    Returns:
        `seed`; `pairs`, by name `first`, `second`, `named` (before results), and for `bpb` and `pass` an entry for
        each scope that both arms have; `elsewhere`, by arm and kind of text the change to `base` in bits per byte.
    """  # fmt: skip
    named = {name: (row["first"], row["second"]) for name, row in content["contrasts"].items()}
    pairs = {}
    for name, arms in (named | FURTHER).items():
        found = {outcome: _scopes(outcomes, outcome, arms, (subset, content["kept"]), seed) for outcome in _LABELS}
        if any(found.values()):
            pairs[name] = {"first": arms[0], "second": arms[1], "named": name in named, **found}
    return {"seed": seed, "pairs": pairs, "elsewhere": _elsewhere([r for r in observed if r["seed"] == seed])}


def _scopes(
    outcomes: Outcomes,
    outcome: str,
    arms: tuple[str, str],
    problems: tuple[frozenset[str], Mapping[str, int]],
    seed: int,
) -> dict[str, dict[str, Any]]:
    """`problems`: ids of those with a new token, and how many each benchmark has; all of them stand in `all`."""
    (holding, kept), found = problems, {}
    for scope in SCOPES:
        names = (scope,) if scope in BENCHMARKS else tuple(kept)
        _, seeds, shared = outcomes.shared(outcome, arms, names)
        if seed not in seeds or len(shared) < len(names):
            continue
        _, sums, sizes = outcomes.arrays(outcome, arms, names=names)
        ids = outcomes.ids(outcome, arms, names)
        chosen = np.array([scope not in (NEW, OTHERS) or (task in holding) == (scope == NEW) for task in ids], bool)
        one, two = (side[seeds.index(seed)][chosen] for side in sums)
        if chosen.sum() >= 2:
            found[scope] = _difference(outcome, one, two, sizes[chosen])
    return found


def _difference(outcome: str, one: np.ndarray, two: np.ndarray, sizes: np.ndarray) -> dict[str, Any]:
    told: dict[str, Any] = {"problems": int(sizes.size)}
    if outcome == "pass":
        gap = paired_rate_difference(one.astype(bool), two.astype(bool))
        told["p_mcnemar"] = mcnemar_test(one.astype(bool), two.astype(bool)).p_value
        told["only first"], told["only second"] = int(np.sum(one > two)), int(np.sum(two > one))
    else:
        gap = paired_bootstrap(one, two, weights=sizes, resamples=DRAWS)
    return limits_of(gap) | told | {"first": float(one.sum() / sizes.sum()), "second": float(two.sum() / sizes.sum())}


def _elsewhere(observed: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Change of bits per byte to the base model, text by text; nothing where the base was not read."""
    ends = {row["arm"]: row["observed"]["end"] for row in observed}
    base = ends.get("base")
    if base is None:
        return {}
    return {
        arm: {
            kind: limits_of(
                paired_bootstrap(end["bits"][kind], base["bits"][kind], weights=base["bytes"][kind], resamples=DRAWS)
            ) | {"texts": len(base["bits"][kind])}
            for kind in base["bits"]
        }
        for arm, end in ends.items() if arm != "base"
    }  # fmt: skip


def bits_over_all(benchmarks: Mapping[str, Mapping[str, Any]]) -> float:
    """Bits per byte of all benchmarks of a line of bits.jsonl together."""
    bits, sizes = (sum(sum(found[key]) for found in benchmarks.values()) for key in ("bits", "bytes"))
    return float(bits / sizes)


# --- told -----------------------------------------------------------------------------------------------------------


def difference_rows(found: Mapping[str, Any], outcome: str) -> list[list[str]]:
    """One row a pair: the difference over all problems and by benchmark, each with its interval."""
    return [
        [name if row["named"] else f"({name})", f"`{row['first']}` - `{row['second']}`",
         *(told(row[outcome].get(scope), outcome) for scope in (ALL, *BENCHMARKS))]
        for name, row in found.get("pairs", {}).items()
    ]  # fmt: skip


def told(row: Mapping[str, Any] | None, outcome: str) -> str:
    """A difference with its limits: four digits of bits per byte, or points."""
    if row is None:
        return NOTHING
    return told_limits(row, 100, 1) if outcome == "pass" else told_limits(row, 1, 4)


def told_limits(row: Mapping[str, Any], scale: float, digits: int) -> str:
    """Tell what `limits_of` gave, times a scale."""
    found = (row[key] for key in ("estimate", "low", "high"))
    return told_interval((None if value is None else scale * value for value in found), f"+.{digits}f")


def draw_differences(found: Mapping[str, Any]) -> Drawing:
    """Draw each pair as a column: bits per byte above, points of pass@1 below, a row for each benchmark."""
    theme()
    pairs = {name: row for name, row in found["pairs"].items() if row["named"]}
    rows = [ALL, *BENCHMARKS]
    shape = {"nrows": 2, "ncols": len(pairs), "squeeze": False, "sharey": True, "sharex": "row"}
    fig, axes = plt.subplots(figsize=(WIDEST, 5.4), **shape)
    for column, (name, row) in enumerate(pairs.items()):
        for ax, (outcome, label) in zip(axes[:, column], _LABELS.items(), strict=True):
            known = [scope for scope in rows if scope in row[outcome]]
            table = pd.DataFrame([_plotted(scope, row[outcome][scope], outcome) for scope in known])
            if known:
                forest_chart(table, ax, label=label, places=[len(rows) - 1 - rows.index(scope) for scope in known])
        axes[0, column].set_title(f"{name}\n{row['first']}\n- {row['second']}", fontsize="small")
    for ax in axes[:, 0]:
        ax.set_yticks(range(len(rows)), rows[::-1])
        ax.set_ylim(-0.6, len(rows) - 0.4)
    note(
        axes[-1, 0],
        f"Seed {found['seed']} alone. Bars: 95 % over problems, not over trainings; filled where they leave 0 out. "
        "Left is better above, right below.",
    )
    numbers = "; ".join(
        f"{name} {told(row['bpb'].get(ALL), 'bpb')} bits, {told(row['pass'].get(ALL), 'pass')} points"
        for name, row in pairs.items()
    )
    words = "Differences between arms of one seed with intervals over problems, a column for each pair: bits per byte "
    return Drawing(fig, f"{words}above, points of pass@1 below, a row for each benchmark. Over all: {numbers}.")


def _plotted(scope: str, row: Mapping[str, Any], outcome: str) -> dict[str, Any]:
    scale = 100 if outcome == "pass" else 1
    limits = {key: scale * (row["estimate"] if row[key] is None else row[key]) for key in ("low", "high")}
    return {"model": scope, "difference": scale * row["estimate"], **limits}
