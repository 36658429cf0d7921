"""Verdicts on the thesis's claims about benchmarks, computed from results.

A claim that the results at hand cannot decide gets ``cannot tell`` and the reason, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from vocabx_utils.evaluation.scoring import Count

Outcome = Literal["confirmed", "not confirmed", "cannot tell"]
_INITS = ("random", "mean")
_FEWEST = 5  # variants for a correlation


@dataclass(frozen=True)
class Verdict:
    """Outcome on one claim, with the numbers that it rests on."""

    claim: str
    outcome: Outcome
    reason: str


def interaction(passes: Mapping[str, Mapping[str, Count]], benchmark: str = "bigcodebench") -> Verdict:
    """C10: initialisation and objective interact (the thesis: CE prefers random, KL prefers mean, BigCodeBench).

    The interaction is (mean KL - random KL) - (mean CE - random CE) in pass rate, against its standard error
    for independent counts.

    Args:
        passes: Counts by variant and benchmark; the KL variant is the first whose name begins so.
        benchmark: The benchmark.
    """
    cells = {(init, loss): _find(passes, f"{init}_{loss}", benchmark) for init in _INITS for loss in ("ce", "kl")}
    missing = [f"{init}_{loss}" for (init, loss), count in cells.items() if count is None]
    if missing:
        return Verdict("C10", "cannot tell", f"no {benchmark} results of {', '.join(missing)}")
    rates = {key: count.rate for key, count in cells.items() if count}
    effect = (rates["mean", "kl"] - rates["random", "kl"]) - (rates["mean", "ce"] - rates["random", "ce"])
    variance = sum(rates[key] * (1 - rates[key]) / count.kept for key, count in cells.items() if count)
    z = effect / math.sqrt(variance) if variance else 0.0
    found: Outcome = "confirmed" if z > 1.96 else "not confirmed" if z < -1.96 else "cannot tell"
    return Verdict("C10", found, f"interaction {100 * effect:+.1f} points, z = {z:.2f}")


def loss_as_proxy(losses: Mapping[str, float], rates: Mapping[str, float]) -> Verdict:
    """C11: the loss is a poor proxy of pass rates (Spearman correlation over variants below 0.5 in size).

    Args:
        losses: A loss, such as bits per byte, by variant.
        rates: Pass rate by variant.
    """
    names = [name for name in losses if name in rates]
    if len(names) < _FEWEST or len({rates[name] for name in names}) < 2:
        return Verdict("C11", "cannot tell", f"{len(names)} variants with both; {_FEWEST} with different rates needed")
    from scipy.stats import spearmanr

    result = spearmanr([losses[name] for name in names], [rates[name] for name in names])
    rho, p_value = float(result.statistic), float(result.pvalue)
    found: Outcome = "not confirmed" if rho < -0.5 and p_value < 0.05 else "confirmed" if rho > -0.5 else "cannot tell"
    return Verdict("C11", found, f"Spearman {rho:+.2f} over {len(names)} variants, p = {p_value:.2f}")


def short_and_long(passes: Mapping[str, Mapping[str, Count]]) -> Verdict:
    """C14: CE suits short completion (DS-1000), KL open-ended tasks (BigCodeBench), both from mean rows."""
    pairs = {
        name: (_find(passes, "mean_ce", name), _find(passes, "mean_kl", name)) for name in ("ds1000", "bigcodebench")
    }
    (short_ce, short_kl), (long_ce, long_kl) = pairs["ds1000"], pairs["bigcodebench"]
    if not (short_ce and short_kl and long_ce and long_kl):
        return Verdict("C14", "cannot tell", "DS-1000 and BigCodeBench results of mean_ce and mean_kl are needed")
    from vocabx_utils.evaluation.statistics import two_proportion_z_test

    short = two_proportion_z_test(short_ce.passed, short_ce.kept, short_kl.passed, short_kl.kept)
    long = two_proportion_z_test(long_kl.passed, long_kl.kept, long_ce.passed, long_ce.kept)
    reason = f"DS-1000 CE - KL z = {short.statistic:.2f}, BigCodeBench KL - CE z = {long.statistic:.2f}"
    if short.statistic > 1.96 and long.statistic > 1.96:
        return Verdict("C14", "confirmed", reason)
    opposed = short.statistic < -1.96 or long.statistic < -1.96
    return Verdict("C14", "not confirmed" if opposed else "cannot tell", reason)


def densest_benchmark(density: Mapping[str, float]) -> Verdict:
    """C15: DS-1000 has the highest density of new tokens.

    Args:
        density: New tokens over all tokens, by benchmark.
    """
    if "ds1000" not in density or len(density) < 2:
        return Verdict("C15", "cannot tell", f"measured on {', '.join(density) or 'nothing'} only")
    highest = max(density, key=lambda name: density[name])
    listed = ", ".join(f"{name} {100 * value:.2f} %" for name, value in density.items())
    return Verdict("C15", "confirmed" if highest == "ds1000" else "not confirmed", listed)


def prose_failures(classes: Sequence[str], *, fewest: int = 50) -> Verdict:
    """C16: natural language instead of code is the commonest failure.

    Args:
        classes: Class of each failure, see ``scoring.failure_class``.
        fewest: Failures below which nothing is said.
    """
    failures = [name for name in classes if name]
    if len(failures) < fewest:
        return Verdict("C16", "cannot tell", f"{len(failures)} failures; {fewest} needed")
    share = failures.count("no code") / len(failures)
    common = max(set(failures), key=failures.count)
    found: Outcome = "confirmed" if common == "no code" else "not confirmed"
    return Verdict("C16", found, f"{100 * share:.0f} % without code; commonest: {common}")


def _find(passes: Mapping[str, Mapping[str, Count]], prefix: str, benchmark: str) -> Count | None:
    for name, counts in passes.items():
        if name.removeprefix("tuned_").startswith(prefix) and benchmark in counts:
            return counts[benchmark]
    return None
