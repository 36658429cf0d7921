"""From results to tables: pass@k, the thesis's table and the comparisons around it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vocabx_utils import statistics
from vocabx_utils.evaluation.benchmarks import INFO, benchmark_of
from vocabx_utils.evaluation.kept import kept_ids
from vocabx_utils.evaluation.results import Result, read_measured


class ResultsError(ValueError):
    """Results that cannot be compared: other problems, other environments, several answers to a problem."""


@dataclass(frozen=True)
class Count:
    """Passed problems of one benchmark."""

    benchmark: str
    passed: int  # among the kept problems
    kept: int  # problems whose reference solution passes here, which the pass rate is taken over
    total: int  # all problems answered
    passed_total: int  # among all; a dropped problem that passes all the same counts here

    @property
    def rate(self) -> float:
        """Pass rate over the kept problems."""
        return self.passed / self.kept if self.kept else math.nan


def mean_pass_at_k(results: Iterable[Result], k: int = 1) -> float:
    """Return pass@k averaged over the problems, each of which needs `k` answers or more."""
    answers: dict[str, list[bool]] = defaultdict(list)
    for row in results:
        answers[row.task_id].append(row.passed)
    if not answers:
        raise ValueError("expected at least one result")
    return float(np.mean([statistics.pass_at_k(len(some), sum(some), k) for some in answers.values()]))


def passes(results: Iterable[Result]) -> dict[str, bool]:
    """Return whether each problem was passed; a `ResultsError` where one has several answers."""
    found: dict[str, bool] = {}
    for row in results:
        if row.task_id in found:
            raise ResultsError(f"{row.task_id} has several answers: use mean_pass_at_k, tests count problems once")
        found[row.task_id] = row.passed
    return found


def count_passes(results: Iterable[Result], kept: Mapping[str, Iterable[str]] | None = None) -> dict[str, Count]:
    """Count passed, kept and all problems by benchmark, with one answer each, in the order of the thesis's table.

    A benchmark without ids in `kept` keeps all its problems.
    """
    found = passes(results)
    valid = _kept_passes(found, kept)
    counts: dict[str, Count] = {}
    for name in sorted({benchmark_of(task) for task in found}):  # the alphabet's order is the table's
        every = [passed for task, passed in found.items() if benchmark_of(task) == name]
        some = [passed for task, passed in valid.items() if benchmark_of(task) == name]
        counts[name] = Count(name, sum(some), len(some), len(every), sum(every))
    return counts


def results_table(
    results: Mapping[str, Sequence[Result]],
    *,
    reference: str | None = None,
    kept: Mapping[str, Iterable[str]] | None = None,
    groups: Mapping[str, str] | None = None,
) -> pd.DataFrame:
    """Lay out pass counts as the thesis does (its table `combined_results`).

    Args:
        results: by variant, see `results.read_results`; a `ResultsError` where they cannot be compared.
        reference: variant that the p-values compare with; by default the one with the most passes, which the
            thesis chose, and which makes the p-values too small.
        kept: kept ids by benchmark.
        groups: heading of each variant, such as `"LoRA Finetuning"`.

    Returns:
        One row per variant: its group, pass rate in per cent and passed/kept for each benchmark, combined
        passed/kept, the p-value of the two-proportion z-test, `kept` and `total` problems.
    """
    _check_comparable(results, reference)
    counts = {variant: count_passes(rows, kept) for variant, rows in results.items()}
    sums = {
        variant: tuple(sum(getattr(count, name) for count in found.values()) for name in ("passed", "kept", "total"))
        for variant, found in counts.items()
    }
    best = reference or max(sums, key=lambda variant: sums[variant][0])
    rows = []
    for variant, found in counts.items():
        passed, n, total = sums[variant]
        row: dict[str, Any] = {"group": (groups or {}).get(variant, ""), "model": variant}
        for count in found.values():
            title = INFO[count.benchmark].title
            row[f"{title} pass (%)"] = round(100 * count.rate, 2)
            row[f"{title} passed"] = f"{count.passed}/{count.kept}"
        row["combined passed"] = f"{passed}/{n}"
        row["p-value"] = "reference"
        if variant != best:
            p_value = f"{statistics.two_proportion_z_test(passed, n, *sums[best][:2]).p_value:.3f}"
            row["p-value"] = "< 0.001" if p_value == "0.000" else p_value
        rows.append(row | {"kept": n, "total": total})
    return pd.DataFrame(rows)


def measured_table(folder: Path) -> pd.DataFrame:
    """Lay out the evaluations at full size that a folder holds (`results.read_measured`), model by model.

    Nothing is there where the folder does not exist. For errors see `results_table`.
    """
    tables = {}
    for model, by_variant in read_measured(folder).items():
        names = sorted({benchmark_of(row.task_id) for rows in by_variant.values() for row in rows})
        tables[model] = results_table(by_variant, kept=kept_ids(names))
    return pd.concat(tables) if tables else pd.DataFrame()


def comparison_table(
    results: Mapping[str, Sequence[Result]], *, reference: str, kept: Mapping[str, Iterable[str]] | None = None
) -> pd.DataFrame:
    """Compare every variant with a reference, chosen before looking at the results, on the same problems.

    Returns:
        One row per other variant: pass rate with Wilson limits, difference to the reference with exact limits (see
        `statistics.paired_rate_difference`), problems that only one of the two passes, p-values of the z-test and of
        the exact McNemar test, the latter also adjusted by Holm over the variants.
    """
    _check_comparable(results, reference)
    found = {variant: _kept_passes(passes(rows), kept) for variant, rows in results.items()}
    tasks = sorted(found[reference])
    base = np.array([found[reference][task] for task in tasks])
    rows = []
    for variant in (name for name in results if name != reference):
        other = np.array([found[variant][task] for task in tasks])
        rate = statistics.wilson_interval(int(other.sum()), len(tasks))
        gain = statistics.paired_rate_difference(other, base)
        z_test = statistics.two_proportion_z_test(int(other.sum()), len(tasks), int(base.sum()), len(tasks))
        rows.append(
            {
                "model": variant,
                "n": len(tasks),
                "rate": rate.estimate,
                "rate_low": rate.low,
                "rate_high": rate.high,
                "difference": gain.estimate,
                "low": gain.low,
                "high": gain.high,
                "only_model": int(np.sum(other & ~base)),
                "only_reference": int(np.sum(base & ~other)),
                "p_z": z_test.p_value,
                "p_mcnemar": statistics.mcnemar_test(other, base).p_value,
            }
        )
    table = pd.DataFrame(rows)
    if rows:
        table["p_holm"] = statistics.holm(table["p_mcnemar"].tolist())
    return table


def _check_comparable(results: Mapping[str, Sequence[Result]], reference: str | None) -> None:
    """Check that all variants answered the same problems, and each benchmark in one environment."""
    if not results:
        raise ResultsError("expected results of at least one variant")
    if reference and reference not in results:
        raise ResultsError(f"the reference {reference!r} is not among {', '.join(results)}")
    first, *others = results
    tasks = {row.task_id for row in results[first]}
    for variant in others:
        different = tasks ^ {row.task_id for row in results[variant]}
        if different:
            raise ResultsError(
                f"{first} and {variant} answered different problems: {len(different)} are in one of them only, "
                f"such as {sorted(different)[0]}; finish the missing answers first"
            )
    hashes: dict[str, dict[str, str]] = defaultdict(dict)
    for variant, rows in results.items():
        for row in rows:
            hashes[benchmark_of(row.task_id)].setdefault(row.env_hash, variant)
    for name, seen in hashes.items():
        if len(seen) > 1:
            listed = "; ".join(f"{variant} ran in {key}" for key, variant in seen.items())
            raise ResultsError(f"{name} was executed in different environments ({listed}): execute it again in one")


def _kept_passes(found: Mapping[str, bool], kept: Mapping[str, Iterable[str]] | None) -> dict[str, bool]:
    sets = {name: set(ids) for name, ids in (kept or {}).items()}
    return {task: passed for task, passed in found.items() if task in sets.get(benchmark_of(task), found)}
