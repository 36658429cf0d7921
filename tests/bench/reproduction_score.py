"""Execute the answers of the reproduction on a CPU, and put everything that was measured into tables and verdicts.

`score` executes each compressed file of answers in the sandbox (forked in warm jails, strict where a benchmark allows
it), goes on after a kill, and appends one line a file to RESULTS/verdicts.jsonl: ids, those that passed, classes of
failures. Results of single programs lie in --work and are no results of the project. Then it writes

    table.csv       variant, seed, benchmark, passed, kept, total, p_value, bpb
    failures.csv    variant, seed, benchmark, and a column for each class of failures
    settings.json   (by `choose`) how LoRA trains, from the pilot

`p_value` is the thesis's two-sided z-test of the passed problems against `base_a_lora` of the same seed, the control.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from bench_parts import known_json, known_lines
from reproduction_arms import Settings
from reproduction_pilot import folder_of, pilot_settings
from reproduction_run import BENCHMARKS

from vocabx_utils import files
from vocabx_utils.evaluation.execution import execute
from vocabx_utils.evaluation.failures import FAILURE_CLASSES, failure_class, failure_table
from vocabx_utils.evaluation.kept import KeptList, kept_problems
from vocabx_utils.evaluation.results import read_results
from vocabx_utils.statistics import two_proportion_z_test, wilson_interval

REFERENCE = "base_a_lora"
_MOST_LOST = 0.03  # pass rate that LoRA may cost on each benchmark of the pilot


# --- execute --------------------------------------------------------------------------------------------------------


def score(options: argparse.Namespace) -> None:
    """Execute what was not executed yet, benchmark by benchmark, and write the tables."""
    path = options.results / "verdicts.jsonl"
    done = {(row["place"], row["benchmark"]) for row in known_lines(path)}
    order = [*(name for name in BENCHMARKS if name in options.benchmarks)]
    folders = sorted(p for p in (options.results / "answers").glob("**/*.jsonl.gz"))
    for file in sorted(folders, key=lambda p: (order.index(_of(p)) if _of(p) in order else 9, str(p))):
        place, benchmark = str(file.parent.relative_to(options.results / "answers")), _of(file)
        if benchmark not in order or (place, benchmark) in done:
            continue
        row = _executed(file, place, benchmark, options)
        files.append_jsonl(path, row)
        print(f"{place} {benchmark}: {len(row['passed_ids'])} of {len(row['ids'])}, {row['failures']}", flush=True)
    write_tables(options.results)


def _of(path: Path) -> str:
    return path.name.removesuffix(".jsonl.gz")


def _executed(file: Path, place: str, benchmark: str, options: argparse.Namespace) -> dict[str, Any]:
    rows = files.read_jsonl(file)
    answered = {row["task_id"] for row in rows}
    problems = [problem for problem in kept_problems(benchmark) if problem.task_id in answered]
    target = options.work / place / f"{benchmark}.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    # many arms answer a problem alike: such a program ran already
    others = [one for path in options.work.rglob(f"{benchmark}.jsonl") if path != target for one in read_results(path)]
    found = execute(rows, problems, target, workers=options.workers, fast=True, known=others)
    by_task = {row["task_id"]: row for row in rows}
    classes = [failure_class(result, by_task[result.task_id]) for result in found]
    exceptions = failure_table({place: found}, {place: rows}).iloc[0]["exceptions"]
    arm, _, seed = place.rpartition("-s")
    return {
        "place": place, "arm": arm, "seed": int(seed) if arm else None, "benchmark": benchmark,
        "ids": [result.task_id for result in found], "passed_ids": [r.task_id for r in found if r.passed],
        "failures": {kind: classes.count(kind) for kind in FAILURE_CLASSES if kind in classes},
        "exceptions": exceptions, "strict": sum(result.strict for result in found),
        "flagged": sum(bool(result.flags) and result.passed for result in found),
        "environment": found[0].env_hash, "backend": found[0].backend,
    }  # fmt: skip


# --- tables ---------------------------------------------------------------------------------------------------------


def total_of(benchmark: str) -> int:
    """Problems of a benchmark, dropped ones included."""
    found = KeptList.read(benchmark)
    return len(found.kept) + len(found.dropped) if found else 0


def write_tables(results: Path) -> None:
    """Write table.csv and failures.csv from the lines that are there."""
    verdicts = [row for row in known_lines(results / "verdicts.jsonl") if row["arm"]]
    metrics = {(row["arm"], row["seed"]): row for row in known_lines(results / "metrics.jsonl")}
    passed = {(r["arm"], r["seed"], r["benchmark"]): (len(r["passed_ids"]), len(r["ids"])) for r in verdicts}
    rows = []
    for arm, seed in sorted({*metrics, *((a, s) for a, s, _ in passed)}, key=str):
        for benchmark in BENCHMARKS:
            bits = metrics.get((arm, seed), {}).get("bpb", {}).get(benchmark)
            counted = passed.get((arm, seed, benchmark))
            if bits is None and counted is None:
                continue
            control = passed.get((REFERENCE, seed, benchmark)) if arm != REFERENCE else None
            p = two_proportion_z_test(*counted, *control).p_value if counted and control else None
            count, kept = counted or (None, None)
            rows.append((arm, seed, benchmark, count, kept, total_of(benchmark), p, bits))
    columns = ["variant", "seed", "benchmark", "passed", "kept", "total", "p_value", "bpb"]
    table = pd.DataFrame(rows, columns=columns).astype({"passed": "Int64", "kept": "Int64"})
    files.write_table(results / "table.csv", table.round({"p_value": 5, "bpb": 6}))
    classes = [{"variant": r["arm"], "seed": r["seed"], "benchmark": r["benchmark"], **r["failures"]} for r in verdicts]
    names = ["variant", "seed", "benchmark", *FAILURE_CLASSES]
    counts = pd.DataFrame(classes, columns=names).fillna(0).astype(dict.fromkeys(FAILURE_CLASSES, int))
    files.write_table(results / "failures.csv", counts)


# --- choose ---------------------------------------------------------------------------------------------------------


def choose(options: argparse.Namespace) -> None:
    """Write settings.json: of the pilot's settings that cost little, the one with the fewest bits per byte held out.

    The rate of stage a is chosen likewise, among the settings that are this one behind stage a.
    """
    pilot = known_lines(options.results / "pilot.jsonl")
    rates = pilot_rates(known_lines(options.results / "verdicts.jsonl"))
    table = pilot_table(pilot, rates)
    for row in table:
        print(row)
    fit = {row["setting"]: row for row in table if row["fits"] and row["setting"] != "base"}
    alone = [row for name, row in fit.items() if "a" not in pilot_settings(name, Settings())[0].stages]
    if not alone:
        raise SystemExit(
            "no setting of the pilot loses at most 3 points on each benchmark: try others, then settings.json"
        )
    best = _likeliest(alone)
    settings = {row["setting"]: row["settings"] for row in pilot}
    kept = {key: settings[best["setting"]][key] for key in ("kind", "loss_on", "lora_rate", "b_epochs")}
    path = options.results / "settings.json"
    known = known_json(path).get("settings", {})
    kept |= {key: known[key] for key in ("recipe",) if key in known}  # the pilot says nothing of phase 1
    content = {"from": best, "settings": kept}
    behind = [row for row in table if row["setting"].startswith(best["setting"] + ":a")]  # the same, behind stage a
    if fitting := [row for row in behind if row["fits"]]:
        content["stage_a_from"] = _likeliest(fitting)
        kept |= {key: settings[content["stage_a_from"]["setting"]][key] for key in ("a_rate", "a_epochs")}
    elif behind:
        print(f"stage a keeps its usual rate: each of the {len(behind)} tried loses more than 3 points on a benchmark")
    files.write_json(path, content)
    print(f"chosen: {best['setting']}")


def _likeliest(table: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return min(table, key=lambda row: row["held_out_bpb"])


def pilot_rates(verdicts: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, tuple[int, int]]]:
    """Passed and answered problems of the pilot's settings, by setting (as its folder is named) and benchmark."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for row in verdicts:
        if row["place"].startswith("pilot/"):
            counts = (len(row["passed_ids"]), len(row["ids"]))
            found.setdefault(row["place"].removeprefix("pilot/"), {})[row["benchmark"]] = counts
    return found


def pilot_table(
    pilot: Sequence[Mapping[str, Any]], rates: Mapping[str, Mapping[str, tuple[int, int]]]
) -> list[dict[str, Any]]:
    """One row a setting: pass rates with limits, bits per byte held out, and whether it loses at most 3 points."""
    base = rates.get("base", {})
    table = []
    for row in pilot:
        found = rates.get(folder_of(row["setting"]), {})
        told: dict[str, Any] = {"setting": row["setting"], "held_out_bpb": row["held_out_bpb"]}
        for benchmark, counts in found.items():
            interval = wilson_interval(*counts)
            told[benchmark] = [interval.estimate, interval.low, interval.high]
        lost = [base[b][0] / base[b][1] - n / of for b, (n, of) in found.items() if b in base]
        told["fits"] = bool(lost) and max(lost) <= _MOST_LOST and len(found) == len(base)
        table.append(told)
    return table


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `score`."""
    command.add_argument("--work", type=Path, default=Path("/tmp/vocabx-score"), help="results of single programs")
    command.add_argument("--benchmarks", nargs="+", default=list(BENCHMARKS), choices=BENCHMARKS)
    command.add_argument("--workers", type=int, default=2)
