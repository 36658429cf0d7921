"""The six contrasts of the reproduction, what difference they could show, and what they showed.

They are written to RESULTS/contrasts.json, and committed, before any result is opened. A contrast compares two arms
over the seeds that both have, by the bits per byte of the references of all kept problems of the four benchmarks
together. Seeds and problems are drawn at once (`crossed.crossed_bootstrap`); p is the smallest level at which the
interval leaves 0 out, not below 1 / draws; Holm adjusts the six. The same for pass@1 is secondary, and so are the
problems that hold a new token. z and McNemar tests stand beside them as in the thesis, one for each seed, and decide
nothing. A contrast with fewer seeds or problems than were written down is not
decided: it has no p, and Holm counts it as 1.
"""

from __future__ import annotations

import argparse
import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from crossed import crossed_bootstrap

from vocabx_utils import files
from vocabx_utils.intervals import Interval
from vocabx_utils.statistics import holm, mcnemar_test, two_proportion_z_test

CONTRASTS = {
    "freed matrices": ("base_a_lora", "base_lora", "does freeing embedding and head help without new tokens?"),
    "new tokens alone": ("mean_untrained_a_lora", "base_a_lora", "what do 800 untaught tokens cost or gain?"),
    "thesis's rows": ("mean_kl_first_a_lora", "base_a_lora", "does the thesis's method beat the tuned base?"),
    "KL or CE": ("mean_kl_first_a_lora", "mean_ce_a_lora", "does the thesis's objective beat the usual one?"),
    "phase 1": ("mean_kl_last_a_lora", "mean_untrained_a_lora", "do learned rows help once all is tuned?"),
    "leading recipe": ("recipe_a_lora", "base_a_lora", "do the best rows we know beat the tuned base?"),
}
DRAWS = 4000
_HALVINGS = 9  # of the ratio between limits of p: it is then known to 2 %
_POWER = 0.8


# --- before ---------------------------------------------------------------------------------------------------------


def write_contrasts(options: argparse.Namespace) -> None:
    """Write the contrasts with what they can detect; refuses to change them once results are there."""
    path, about = options.results / "contrasts.json", files.read_json(options.results / "data.json")
    if path.exists() and (options.results / "metrics.jsonl").exists():
        raise SystemExit(f"{path} stands and results are there: contrasts are not written again")
    extension = about["extensions"][options.extension]
    kept, held = extension["kept"], extension["problems with a new token"]
    n = sum(kept.values())
    rng = np.random.default_rng(0)
    detectable = [
        {"outcome": "pass@1", "discordant": share, "rate": 0.2, "seeds": options.seeds, "problems": n,
         "smallest": smallest_gain(rng, 0.2, share, options.seeds, n, options.trials)}
        for share in (0.05, 0.1, 0.2)
    ] + [
        {"outcome": "bpb", "sd_problems": of_problems, "sd_seeds": of_seeds, "seeds": options.seeds, "problems": n,
         "smallest": smallest_change(rng, of_problems, of_seeds, options.seeds, n, options.trials)}
        for of_problems in (0.03, 0.1) for of_seeds in (0.0005, 0.002)
    ]  # fmt: skip
    content = {
        "written": datetime.date.today().isoformat(), "outcome": "bits per byte of references, all kept problems",
        "extension": options.extension,
        "seeds": options.seeds, "kept": kept, "problems with a new token": held, "problems": n, "alpha": 0.05,
        "adjusted": "Holm over six", "power": _POWER, "detectable": detectable,
        "detectable_note": "gain in pass rate that a contrast finds at 0.05 / 6, the strictest step of Holm, in 80 % "
        "of simulated experiments; discordant is the share of problems that two seeds of one arm answer differently",
        "contrasts": {k: {"first": a, "second": b, "question": q} for k, (a, b, q) in CONTRASTS.items()},
    }  # fmt: skip
    files.write_json(path, content)
    for row in detectable:
        print(row)


def smallest_gain(
    rng: np.random.Generator, rate: float, discordant: float, seeds: int, problems: int, trials: int
) -> float | None:
    """The smallest gain in pass rate on a grid that enough simulated experiments find; None where none does."""
    for gain in (0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.06):
        found = sum(_is_found(rng, rate, gain, discordant, seeds, problems) for _ in range(trials))
        if found >= _POWER * trials:
            return gain
    return None


def _is_found(rng: np.random.Generator, rate: float, gain: float, discordant: float, seeds: int, problems: int) -> bool:
    """Simulate both arms, each problem with a chance of its own such that two seeds disagree as often as said."""
    share = min(0.999, discordant / (2 * rate * (1 - rate)))  # s / (s + 1) of Beta(rate s, (1 - rate) s)
    strength = share / (1 - share)
    chance = rng.beta(rate * strength, (1 - rate) * strength, problems)
    better = np.clip(chance + gain * chance * (1 - chance) / max(1e-12, float((chance * (1 - chance)).mean())), 0, 1)
    one, two = (rng.random((seeds, problems)) < side for side in (better, chance))
    return _excludes_zero(rng, one, two)


def smallest_change(
    rng: np.random.Generator, of_problems: float, of_seeds: float, seeds: int, problems: int, trials: int
) -> float | None:
    """The same for bits per byte: normal differences with these standard deviations over problems and over seeds."""

    def is_found(gain: float) -> bool:
        texts = rng.normal(0, of_problems, problems)
        gaps = gain + texts + rng.normal(0, of_seeds, (seeds, 1)) + rng.normal(0, of_problems / 3, (seeds, problems))
        return _excludes_zero(rng, gaps, np.zeros_like(gaps))

    for gain in (0.001, 0.0015, 0.002, 0.003, 0.004, 0.006, 0.008, 0.012, 0.02, 0.03):
        if sum(is_found(gain) for _ in range(trials)) >= _POWER * trials:
            return gain
    return None


def _excludes_zero(rng: np.random.Generator, one: np.ndarray, two: np.ndarray) -> bool:
    level, seed = 0.05 / len(CONTRASTS), int(rng.integers(2**31))
    return crossed_bootstrap(one, two, np.ones(one.shape[1]), resamples=600, confidence=1 - level, seed=seed).low > 0


# --- after ----------------------------------------------------------------------------------------------------------


def p_value(first: np.ndarray, second: np.ndarray, sizes: np.ndarray, resamples: int = DRAWS) -> float:
    """The smallest level at which the interval leaves 0 out; 1 for a single seed, whose interval is infinite."""
    low, high = 1.0 / resamples, 1.0
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        found = crossed_bootstrap(first, second, sizes, confidence=1 - middle, resamples=resamples)
        low, high = (low, middle) if found.low > 0 or found.high < 0 else (middle, high)
    return high if high < 0.98 else 1.0


class Outcomes:
    """What was measured of arms and seeds: bits of problems, and which problems were passed.

    Args:
        bits: lines of bits.jsonl.
        verdicts: lines of verdicts.jsonl.
    """

    def __init__(self, bits: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]]) -> None:
        self.bits = {(row["arm"], row["seed"]): row["benchmarks"] for row in bits}
        self.passed: dict[tuple[str, int], dict[str, dict[str, bool]]] = {}
        for row in verdicts:
            passed = set(row["passed_ids"])
            found = {task: task in passed for task in row["ids"]}
            self.passed.setdefault((row["arm"], row["seed"]), {})[row["benchmark"]] = found

    def arrays(
        self,
        outcome: str,
        arms: tuple[str, str],
        only: frozenset[str] | None = None,
        names: Sequence[str] | None = None,
    ) -> tuple[list[int], list[np.ndarray], np.ndarray]:
        """Seeds that both arms have, (S, T) sums of both, (T,) sizes; over benchmarks that all of them have.

        Args:
            only: ids of the problems to take; None for all.
            names: benchmarks to take; None for all.
        """
        table, seeds, shared = self.shared(outcome, arms, names)
        if not seeds or not shared:
            return [], [np.zeros((0, 0))] * 2, np.zeros(0)
        sums, sizes = [], np.zeros(0)
        for arm in arms:
            per_seed = [[self._values(table[arm, seed][name], outcome, only) for name in shared] for seed in seeds]
            sums.append(np.array([np.concatenate([values for values, _ in parts]) for parts in per_seed]))
            sizes = np.concatenate([counts for _, counts in per_seed[0]])
        return seeds, sums, sizes

    def ids(self, outcome: str, arms: tuple[str, str], names: Sequence[str] | None = None) -> list[str]:
        """Ids of the problems of `arrays`, (T,)."""
        table, seeds, shared = self.shared(outcome, arms, names)
        own = [table[arms[0], seeds[0]][name] for name in shared] if seeds else []
        return [task for found in own for task in (found["ids"] if outcome == "bpb" else sorted(found))]

    def shared(
        self, outcome: str, arms: tuple[str, str], names: Sequence[str] | None
    ) -> tuple[Any, list[int], list[str]]:
        """The table of an outcome, seeds that both arms have, and benchmarks that all of these have."""
        table: Any = self.bits if outcome == "bpb" else self.passed
        seeds = sorted(
            {seed for arm, seed in table if arm == arms[0]} & {seed for arm, seed in table if arm == arms[1]}
        )
        if not seeds:
            return table, [], []
        shared = set.intersection(*(set(table[arm, seed]) for arm in arms for seed in seeds))
        return table, seeds, sorted(shared if names is None else shared & set(names))

    @staticmethod
    def _values(found: Any, outcome: str, only: frozenset[str] | None) -> tuple[np.ndarray, np.ndarray]:
        if outcome == "bpb":
            ids, values, sizes = found["ids"], np.array(found["bits"]), np.array(found["bytes"], float)
        else:
            ids = sorted(found)
            values, sizes = np.array([float(found[task]) for task in ids]), np.ones(len(ids))
        chosen = np.array([only is None or task in only for task in ids], bool)
        return values[chosen], sizes[chosen]


def judge_contrasts(content: Mapping[str, Any], outcomes: Outcomes, subset: frozenset[str]) -> dict[str, Any]:
    """Measure each contrast of contrasts.json; `subset` are the ids of problems that hold a new token."""
    found: dict[str, Any] = {}
    planned, some = (content["seeds"], content["problems"]), (content["seeds"], 0)
    for name, row in content["contrasts"].items():
        arms = (row["first"], row["second"])
        found[name] = {
            **row,
            "bpb": _compared(outcomes, "bpb", arms, planned), "pass": _compared(outcomes, "pass", arms, planned),
            "bpb, new tokens": _compared(outcomes, "bpb", arms, some, subset),
            "pass, new tokens": _compared(outcomes, "pass", arms, some, subset),
            "by seed": _by_seed(outcomes, arms),
        }  # fmt: skip
    for outcome in ("bpb", "pass"):
        rows = [row[outcome] or {"decided": False} for row in found.values()]
        # what was not measured with all seeds counts as 1: six contrasts were named
        adjusted = holm([row["p"] if row["decided"] else 1.0 for row in rows])
        for row, value in zip(rows, adjusted, strict=True):
            row["p_holm"] = float(value) if row["decided"] else None
    return found


def _compared(
    outcomes: Outcomes,
    outcome: str,
    arms: tuple[str, str],
    planned: tuple[int, int],
    only: frozenset[str] | None = None,
) -> dict[str, Any] | None:
    """Measure one contrast; `planned` are the seeds and problems without which it is not decided."""
    seeds, sums, sizes = outcomes.arrays(outcome, arms, only)
    if not seeds or sizes.size < 2:
        return None
    gap = crossed_bootstrap(sums[0], sums[1], sizes, resamples=DRAWS)
    decided = len(seeds) >= planned[0] and sizes.size >= planned[1]
    return {
        **limits_of(gap), "decided": decided, "p": p_value(sums[0], sums[1], sizes) if decided else None,
        "seeds": seeds,
        "problems": int(sizes.size), "first": float(sums[0].sum() / sizes.sum() / len(seeds)),
        "second": float(sums[1].sum() / sizes.sum() / len(seeds)),
        "sd_seeds": float(((sums[0] - sums[1]).sum(1) / sizes.sum()).std(ddof=1)) if len(seeds) > 1 else None,
    }  # fmt: skip


def _by_seed(outcomes: Outcomes, arms: tuple[str, str]) -> list[dict[str, float]]:
    """z and McNemar tests of pass counts, seed by seed."""
    seeds, sums, sizes = outcomes.arrays("pass", arms)
    rows = []
    for seed, one, two in zip(seeds, *sums, strict=True):
        z = two_proportion_z_test(int(one.sum()), sizes.size, int(two.sum()), sizes.size)
        rows.append({"seed": seed, "first": int(one.sum()), "second": int(two.sum()), "n": int(sizes.size),
                     "p_z": z.p_value, "p_mcnemar": mcnemar_test(one, two).p_value})  # fmt: skip
    return rows


def limits_of(interval: Interval) -> dict[str, float | None]:
    """Estimate and limits for JSON, None where a limit is infinite."""
    return {key: value if np.isfinite(value) else None for key, value in asdict(interval).items()}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `contrasts`."""
    command.add_argument("--seeds", type=int, default=3)
    command.add_argument("--extension", default="merges-800", help="the new tokens that problems may hold")
    command.add_argument("--trials", type=int, default=100, help="simulated experiments for each gain")


def subset_of(results: Path) -> frozenset[str]:
    """Ids of the kept problems whose prompt or reference holds a new token."""
    extension = files.read_json(results / "contrasts.json")["extension"]
    problems = files.read_json(results / "data.json")["extensions"][extension]["problems"]
    return frozenset(task for some in problems.values() for task in some)
