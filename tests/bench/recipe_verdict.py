"""Who goes to the report split, and what its texts say: which recipe leads, by the rule that was set before.

A row **leads** in a setting if it is not worse than the best reference on KL at identical places and KL at merged spans
by more than 3 %, nor on bits per byte by more than 0.001, and better on two of the three. It leads if it does so in
three settings at least. The best reference of each column is the one with the lowest mean there, on these very texts:
a finalist has to keep up with whichever is best at what it is best at. "Not by more" and "better" are read off the
upper limit of a 95 % interval over seeds and texts, drawn together and paired (`crossed.crossed_bootstrap`).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from bench_parts import known_json
from crossed import crossed_bootstrap
from recipe_runs import NEW, PUBLISHED

from vocabx_utils import files
from vocabx_utils.intervals import Interval
from vocabx_utils.measured import RECIPES, REFERENCE_RECIPES, read_recipes

MARGINS = {"kl_identical": 0.03, "kl_last": 0.03, "bpb": 0.001}  # shares of the reference's KL; bits per byte
COUNTS = {"kl_identical": "n_identical", "kl_last": "n_last", "bpb": "n_bytes"}  # what a text counts in a column
BASE = "base"  # the row of the model under its original tokenizer
ADVISED = ("r1", "kl_ce")
"""Families of KL last with a little CE, which is what a user is told to take where no recipe leads."""
LEAST_SETTINGS = 3  # in which a row has to lead
_FINALISTS = 2
Row = Mapping[str, Any]


# --- who goes on ----------------------------------------------------------------------------------------------------


def gaps(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """How far each run of a sweep is from the best of each column, in units of its margin; failures are left out."""
    whole = [row for row in rows if all(row.get(column) is not None for column in MARGINS)]
    best = {column: min((row[column] for row in whole), default=0.0) for column in MARGINS}

    def apart(row: Row, column: str) -> float:
        gap = row[column] - best[column]
        return float(gap / MARGINS[column] if column == "bpb" else gap / best[column] / MARGINS[column])

    return {row["run"]: {column: apart(row, column) for column in MARGINS} for row in whole}


def distances(rows: Sequence[Row]) -> dict[str, float]:
    """How far each run of a sweep is from the best of each column: the mean of `gaps`."""
    return {name: float(np.mean(list(parts.values()))) for name, parts in gaps(rows).items()}


def choose_finalists(sweeps: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Name two finalists, which are families of new recipes, and the runs of each setting.

    Rates have to fit a model, so each family stands in a setting with the run that was nearest there, finalists like
    references: neither side is tuned more finely than the other. Finalists are the two new families whose nearest runs
    have the lowest mean distance over all sweeps, each of which has to have tried them. References are Token
    Distillation as published, the nearest run of each family, and the best one of each column.
    """
    apart = {setting: found for setting, rows in sweeps.items() if (found := distances(rows))}
    mean = {
        family: float(np.mean([min(of_family) for of_family in tried]))
        for family in NEW
        if (tried := [[d for n, d in found.items() if family_of(n) == family] for found in apart.values()])
        and all(tried)
    }
    finalists = sorted(mean, key=lambda family: (mean[family], family))[:_FINALISTS]
    runs = {}
    for setting, found in apart.items():
        nearest = [
            min((n for n in found if family_of(n) == family), key=lambda n: (found[n], n), default="")
            for family in (*finalists, *REFERENCE_RECIPES)
        ]
        rows = [row for row in sweeps[setting] if row["family"] in REFERENCE_RECIPES and row["run"] in found]
        best = [min(rows, key=lambda row: row[column])["run"] for column in MARGINS if rows]
        runs[setting] = [name for name in dict.fromkeys([*nearest, PUBLISHED, *best]) if name]
    return {"finalists": finalists, "mean_distance": {n: round(mean[n], 3) for n in finalists}, "runs": runs}


def family_of(run: str) -> str:
    """The family that a run's name begins with."""
    return run.split(":")[0]


def choose(options: argparse.Namespace) -> None:
    """Write chosen.json by the lines of all sweeps."""
    chosen = choose_finalists(read_recipes(options.results)[0])
    files.write_json(options.results / "chosen.json", chosen)
    for setting, names in chosen["runs"].items():
        print(setting, *names, sep="\n    ")


# --- what their texts say -------------------------------------------------------------------------------------------


def gather(rows: Sequence[Row]) -> tuple[list[int], dict[str, dict[str, np.ndarray]], dict[str, np.ndarray]]:
    """Put the lines of a setting together.

    Returns:
        The seeds that every run has; by run and column, (S, T) sums over these seeds and all texts, in bits for `bpb`;
        by column, (T,) what each text counts.

    Raises:
        SystemExit: lines were measured on different texts, or no seed is there for all runs.
    """
    trained = [row for row in rows if row["run"] != BASE]
    names = list(dict.fromkeys(row["run"] for row in trained))
    seeds = sorted(set.intersection(*({r["seed"] for r in trained if r["run"] == name} for name in names)))
    if not seeds:
        raise SystemExit(f"no seed was trained for all of {', '.join(names)}: let `final` go on")
    by_place = {(row["run"], row["seed"]): row for row in trained}
    first = trained[0]
    for row in trained:
        if any(row[count] != first[count] for count in COUNTS.values()):
            raise SystemExit(f"{row['run']}, seed {row['seed']}: other texts than {first['run']}; measure both again")
    sums: dict[str, dict[str, np.ndarray]] = {}
    for name in names:
        of_run = [by_place[name, seed] for seed in seeds]
        sums[name] = {column: np.array([text_sums(row)[column] for row in of_run]) for column in COUNTS}
    return seeds, sums, {column: np.array(first[count], float) for column, count in COUNTS.items()}


def text_sums(row: Row) -> dict[str, np.ndarray]:
    """(T,) sums of each text by column: nats of both KL, and bits."""
    bits = np.array(row["nats"]) / np.log(2)
    return {"kl_identical": np.array(row["kl_identical"]), "kl_last": np.array(row["kl_last"]), "bpb": bits}


def compare(one: np.ndarray, other: np.ndarray, counts: np.ndarray, column: str) -> dict[str, Any]:
    """Compare (S, T) sums of two rows in a column: an interval, and what it says."""
    found = crossed_bootstrap(one, other, counts, relative=column != "bpb")
    return asdict(found) | {"not_worse": found.high <= MARGINS[column], "better": found.high < 0}


def judge_setting(rows: Sequence[Row], named: Sequence[str]) -> dict[str, Any]:
    """Compare the finalists, which are `named` by their runs, with the best reference of each column.

    Other rows, such as finalists of an earlier choice, are told of and compared with nothing.
    """
    seeds, sums, counts = gather(rows)
    means = {
        name: {column: float((of_run[column].sum(1) / counts[column].sum()).mean()) for column in MARGINS}
        for name, of_run in sums.items()
    }
    base = next((row for row in rows if row["run"] == BASE), None)
    told: dict[str, Any] = {}
    for name, of_run in sums.items():
        intervals = {c: crossed_bootstrap(of_run[c], np.zeros_like(of_run[c]), counts[c]) for c in MARGINS}
        if base is not None:  # on as many bytes: a first token that is longer leaves fewer of them
            bits = np.array(base["nats"]) / np.log(2) * counts["bpb"] / np.array(base["n_bytes"], float)
            intervals["above_base"] = crossed_bootstrap(of_run["bpb"], np.tile(bits, (len(seeds), 1)), counts["bpb"])
        spread = {
            column: float((of_run[column].sum(1) / counts[column].sum()).std(ddof=1)) if len(seeds) > 1 else None
            for column in MARGINS
        }
        seconds = [row["seconds"] for row in rows if row["run"] == name]
        told[name] = {c: _finite(i) for c, i in intervals.items()} | {
            "sd_over_seeds": spread, "seconds": float(np.median(seconds)),
        }  # fmt: skip
    references = [name for name in sums if family_of(name) in REFERENCE_RECIPES]
    judged = {}
    for finalist in [name for name in sums if name in named and references]:
        parts = {}
        for column in MARGINS:
            best = min(references, key=lambda name: means[name][column])
            parts[column] = {"reference": best} | compare(
                sums[finalist][column], sums[best][column], counts[column], column
            )
        leads = all(p["not_worse"] for p in parts.values()) and sum(p["better"] for p in parts.values()) >= 2
        judged[finalist] = {"columns": parts, "leads": leads}
    return {"seeds": len(seeds), "texts": len(counts["bpb"]), "rows": told, "finalists": judged}


def advice(rows: Sequence[Row], sweep: Sequence[Row]) -> dict[str, Any]:
    """Compare the advised run of a setting with the published recipe and the nearest run of each reference.

    Which run is advised and which are nearest is what the sweep says; differences are those of the report split.
    """
    apart = distances(sweep)
    _, sums, counts = gather(rows)

    def nearest(families: Sequence[str]) -> str:
        own = [name for name in sums if family_of(name) in families and name in apart]
        return min(own, key=lambda name: (apart[name], name), default="")

    advised = nearest(ADVISED)
    references = {"Token Distillation as published": PUBLISHED}
    references |= {RECIPES[family]: nearest([family]) for family in REFERENCE_RECIPES if family not in ADVISED}
    against = {
        label: {"run": name}
        | {column: compare(sums[advised][column], sums[name][column], counts[column], column) for column in MARGINS}
        for label, name in references.items()
        if advised and name in sums
    }
    return {"run": advised, "against": against}


def _finite(interval: Interval) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in (interval.estimate, interval.low, interval.high)]


def verdict(settings: Mapping[str, Mapping[str, Any]], finalists: Sequence[str]) -> dict[str, Any]:
    """Say which finalist leads: in at least three settings, and in how many it was measured."""
    answers = {}
    for name in finalists:
        own = {
            setting: [part["leads"] for run, part in found["finalists"].items() if family_of(run) == name]
            for setting, found in settings.items()
        }
        measured = [setting for setting, found in own.items() if found]
        leads = [setting for setting in measured if any(own[setting])]
        open_ones = len(measured) < LEAST_SETTINGS
        answer = "leads" if len(leads) >= LEAST_SETTINGS else "not measured" if open_ones else "does not lead"
        answers[name] = {"answer": answer, "leads_in": leads, "measured_in": measured}
    return answers


def judge(options: argparse.Namespace) -> None:
    """Write RESULTS/verdict.json, print what it says, and fill the page."""
    from recipe_report import comparison_table, final_table, write
    from recipe_splits import judge_by_file

    finalists, settings = judge_settings(options.results)
    if settings:
        content = {"rule": " ".join((__doc__ or "").split()), "settings": settings}
        content |= {"finalists": verdict(settings, finalists), "by_file": judge_by_file(options.results / "by_file")}
        files.write_json(options.results / "verdict.json", content)
        print(final_table(content), comparison_table(content), sep="\n\n")
        for name, answer in content["finalists"].items():
            print(f"{name}: {answer['answer']}; leads in {answer['leads_in']} of {answer['measured_in']}")
    else:
        print("nothing was measured on the report split yet")
    write(options.results, options.docs)


def judge_settings(results: Path) -> tuple[list[str], dict[str, Any]]:
    """Return the finalists, and what is said of every setting that RESULTS/final holds lines of, `advice` included."""
    sweeps, _ = read_recipes(results)
    chosen = known_json(results / "chosen.json") or {"finalists": [], "runs": {}}
    judged = {}
    for path in sorted((results / "final").glob("*.jsonl")):
        rows, runs = files.read_jsonl(path), chosen["runs"].get(path.stem, [])
        named = [run for run in runs if family_of(run) in chosen["finalists"]]
        judged[path.stem] = judge_setting(rows, named) | {"advice": advice(rows, sweeps.get(path.stem, []))}
    return chosen["finalists"], judged
