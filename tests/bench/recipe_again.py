"""What the second report split of C headers says, beside the first: the same rows and the same rule, on other packages.

`name_row` writes RESULTS/packages/named.json: one more row, the family KL last + hidden MSE at a weight of 0.1 or less,
with the run of each setting that is nearest on the sweep split. It is written once, before the split is read.

`judge_again` applies the rule of `recipe_verdict` to the lines of `final --report packages`; the named row is judged
like a finalist and is never a reference. On Python the first split is disjoint by package, so that the rule's four
settings are those of Python on the first split and those of headers on the second.
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_parts import table_of
from recipe_further import without
from recipe_runs import parse_run
from recipe_verdict import (
    BASE,
    COUNTS,
    LEAST_SETTINGS,
    MARGINS,
    PACKAGES,
    advice,
    compare,
    distances,
    gather,
    judge_setting,
    read_sweeps,
    text_sums,
    verdict,
)

from vocabx_utils import files
from vocabx_utils.measured import RECIPE_COLUMNS, RECIPES

NOT_YET = "not measured yet"
_FAMILY, _LABEL = "kl_hidden", "KL last + hidden MSE, weight 0.1 or less"
Row = Mapping[str, Any]


# --- the row that is named beforehand -------------------------------------------------------------------------------


def nearest_named(sweeps: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """By setting of headers, the run of the named row: nearest to the best of each column on the sweep split."""
    found = {}
    for setting, rows in sweeps.items():
        apart = distances(rows)
        own = [r["run"] for r in rows if r["family"] == _FAMILY and r["run"] in apart]
        own = [name for name in own if without(parse_run(name))[0] == _LABEL]
        if own and setting.endswith("-headers"):
            found[setting] = min(own, key=lambda name: (apart[name], name))
    return found


def name_row(options: argparse.Namespace) -> None:
    """Write RESULTS/packages/named.json; SystemExit where it is there, since a name that is changed proves nothing."""
    path = options.results / PACKAGES / "named.json"
    if path.exists():
        raise SystemExit(f"{path} is there: the row was named on {files.read_json(path)['date']}, and stands")
    sweeps = read_sweeps(options.results)
    content = {
        "date": datetime.date.today().isoformat(), "family": _FAMILY, "row": _LABEL,
        "rule": "of each setting the run that is nearest to the best of each column, in margins, on the sweep split",
        "runs": nearest_named(sweeps),
        "swept": {s: sum(row["family"] == _FAMILY for row in rows) for s, rows in sweeps.items()},
    }  # fmt: skip
    files.write_json(path, content)
    print(*content["runs"].values(), sep="\n")


def named_run(results: Path, setting: str) -> list[str]:
    """The named run of a setting; SystemExit where none was named before the split is read."""
    path = results / PACKAGES / "named.json"
    if not path.exists():
        raise SystemExit(f"{path} is not there: name the further row with `recipes.py name` before the split is read")
    return [files.read_json(path)["runs"][setting]] if setting in files.read_json(path)["runs"] else []


# --- judging --------------------------------------------------------------------------------------------------------


def judge_again(results: Path, finalists: Sequence[str], first: Mapping[str, Any]) -> dict[str, Any]:
    """Judge the second split.

    Args:
        results: the folder of results.
        finalists: families.
        first: what `judge_setting` says of each setting on the first split.

    Returns:
        By setting what `judge_setting` says, with `advice`, `again` (see `read_again`) and `beside` (see `beside`); the
        rule's answer for each finalist over Python on the first split and headers on the second; `named`, the same for
        the further row.
        A setting counts once a seed of all its rows is there, for the best reference might be one that is missing;
        empty where none is.
    """
    named = results / PACKAGES / "named.json"
    further = [_FAMILY] if named.exists() else []
    chosen = files.read_json(results / "chosen.json")["runs"] if (results / "chosen.json").exists() else {}
    settings = {}
    for path in sorted((results / PACKAGES).glob("*.jsonl")):
        lines = files.read_jsonl(path)
        rows = [row for row in lines if row["split"] == PACKAGES]
        wanted = {*chosen.get(path.stem, ()), *(named_run(results, path.stem) if further else ())}
        if not wanted or not _common_seeds(rows, wanted):
            continue
        sweep, old = (files.read_jsonl(p) if p.exists() else [] for p in (results / path.name, _first(results, path)))
        settings[path.stem] = judge_setting(rows, [*finalists, *further])
        settings[path.stem] |= {"advice": advice(rows, sweep), "again": read_again(lines, old)}
        settings[path.stem] |= {"beside": beside(rows, finalists)}
    if not settings:
        return {}
    apart = {setting: found for setting, found in first.items() if not setting.endswith("-headers")}
    content: dict[str, Any] = {"settings": settings, "finalists": verdict(apart | settings, finalists)}
    if further:
        content["named"] = files.read_json(named) | {"verdict": verdict(settings, further)[_FAMILY]}
    return content


def beside(rows: Sequence[Row], finalists: Sequence[str]) -> dict[str, Any]:
    """Compare the named row with each finalist, by run and column; empty where it is not there."""
    _, sums, counts = gather(rows)
    others = [name for name in sums if name.split(":")[0] in finalists]
    return {
        other: {column: compare(sums[own][column], sums[other][column], counts[column], column) for column in MARGINS}
        for own in filter(_is_named, sums)
        for other in others
    }


def _first(results: Path, path: Path) -> Path:
    return results / "final" / path.name


def _common_seeds(rows: Sequence[Row], runs: set[str]) -> set[int]:
    return set.intersection(*({row["seed"] for row in rows if row["run"] == run} for run in runs))


def read_again(lines: Sequence[Row], old: Sequence[Row]) -> dict[str, Any]:
    """Compare what the first split gives now with what it gave: the largest change of a mean over all rows.

    Returns:
        `rows`, how many were read again, and `beyond`, how many of them moved by more than the rule's margin in any
        column; by column the largest change: shares of both KL, and bits per byte.
    """
    before = {(row["run"], row["seed"]): row for row in old if row["run"] != BASE}
    pairs = [
        (_means(row), _means(was))
        for row in lines
        if row["split"] == "report" and (was := before.get((row["run"], row["seed"]))) is not None
        if row["n_last"] == was["n_last"]  # a short trial reads fewer texts
    ]
    changes = {
        column: [abs(now[column] - was[column]) / (1 if column == "bpb" else was[column]) for now, was in pairs]
        for column in MARGINS
    }
    over = [[change > MARGINS[column] for change in values] for column, values in changes.items()]
    counted = {"rows": len(pairs), "beyond": sum(map(any, zip(*over, strict=True)))}
    return counted | {column: max(values, default=None) for column, values in changes.items()}


def _means(row: Row) -> dict[str, float]:
    return {column: float(sums.sum() / sum(row[COUNTS[column]])) for column, sums in text_sums(row).items()}


# --- tables ---------------------------------------------------------------------------------------------------------


def texts_table(texts: Mapping[str, Any]) -> str:
    """Both report splits of each setting: sizes, and percent of their passages that other texts hold."""
    header = [
        "setting", "report split", "texts", "new tokens in them", "different ones", "passages also in training",
        "in all training text", "in sweep",
    ]  # fmt: skip
    names = {"report": "first", PACKAGES: "packages"}
    lines = []
    for setting, splits in texts["splits"].items():
        for split, found in splits.items():
            cells = [str(found["texts"]), f"{found['new_tokens']:,}", str(found["new_tokens_there"])]
            percent = [found["shared"].get(key) for key in ("training", "training_text", "sweep")]
            told = ["" if value is None else f"{value:.2f} %" for value in percent]
            lines.append([setting, names[split], *cells, *told])
    return table_of(header, lines) if lines else NOT_YET


def sources(texts: Mapping[str, Any]) -> str:
    """The packages of the second split."""
    found = {p["name"]: p["version"] for setting in texts["settings"].values() for p in setting["packages"]}
    told = ", ".join(sorted(name.removesuffix("-dev") for name in found))
    return f"Debian's packages (`-dev`) that hold them, {len(found)} in all: {told}."


def both_table(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Every row on both splits: means with 95 % intervals over seeds and texts."""
    titles = (*list(RECIPE_COLUMNS.values())[:2], "bits per byte above the base's")
    header = ["setting", "row", *(f"{title}: {split}" for title in titles for split in ("first", "packages"))]
    lines = []
    for setting, found in second["settings"].items():
        old = first.get(setting, {"rows": {}})["rows"]
        for name, row in found["rows"].items():
            mark = "" if name not in found["finalists"] else "**named** " if _is_named(name) else "**finalist** "
            cells = []
            for column in ("kl_identical", "kl_last", "above_base"):
                cells += [_interval(old[name].get(column)) if name in old else "", _interval(row.get(column))]
            lines.append([setting, f"{mark}`{name}`", *cells])
    return table_of(header, lines)


def beside_table(second: Mapping[str, Any]) -> str:
    """The named row against each finalist on the second split."""
    lines = []
    for setting, found in second["settings"].items():
        for other, parts in found["beside"].items():
            cells = []
            for column in MARGINS:
                values = [parts[column][key] for key in ("estimate", "low", "high")]
                percent = [100 * value for value in values]
                cells.append(
                    "{:+.4f} [{:+.4f}, {:+.4f}]".format(*values)
                    if column == "bpb"
                    else "{:+.1f} [{:+.1f}, {:+.1f}] %".format(*percent)
                )
            lines.append([setting, f"`{other}`", *cells])
    return table_of(["setting", "the named row against", *RECIPE_COLUMNS.values()], lines) if lines else NOT_YET


def _is_named(run: str) -> bool:
    return run.split(":")[0] == _FAMILY


def _interval(values: Sequence[float | None] | None) -> str:
    if values is None:
        return ""
    middle, *limits = values
    return f"{middle:.4f} [{', '.join('∞' if v is None else f'{v:.4f}' for v in limits)}]"


def told_answer(second: Mapping[str, Any]) -> str:
    """What the rule says, a line for each finalist, the named row, the seeds and what was read again."""
    lines = []
    for name, found in second["finalists"].items():
        where = f" ({', '.join(found['leads_in'])})" if found["leads_in"] else ""
        count = f"{len(found['leads_in'])} of {len(found['measured_in'])} settings{where}"
        lines.append(f"{RECIPES[name]}, Python on the first split and headers on packages: {found['answer']}, {count}.")
    if "named" in second:
        named = second["named"]
        leads, measured = named["verdict"]["leads_in"], named["verdict"]["measured_in"]
        python = {s for found in second["finalists"].values() for s in found["measured_in"]} - set(measured)
        out = len(leads) + len(python) < LEAST_SETTINGS
        lines.append(
            f"{named['row']}, named on {named['date']}: leads in {len(leads)} of {len(measured)} settings of headers. "
            f"It would need {LEAST_SETTINGS}; on Python it was not measured"
            + (f", and these {len(python)} could not make up for the rest: it does not lead." if out else ".")
        )
    for setting, found in second["settings"].items():
        lines.append(f"{setting}: {found['seeds']} seeds, {found['texts']} texts. {_told_again(found['again'])}")
    return "\n".join(f"* {line}" for line in lines)


def _told_again(again: Mapping[str, Any]) -> str:
    if not again["rows"]:
        return "The first split was not read again."
    changes = ", ".join(
        f"{title} {again[column]:.4f}" if column == "bpb" else f"{title} {100 * again[column]:.1f} %"
        for column, title in RECIPE_COLUMNS.items()
    )
    return (
        f"The first split read again after {again['rows']} of these trainings: means change by at most {changes}; in "
        f"{again['beyond']} rows one of them moves by more than the rule's margin."
    )
