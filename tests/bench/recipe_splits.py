"""What the two splits of C headers hold, and what the first ones, which were disjoint by file alone, had said.

RESULTS/by_file keeps the sweeps of headers on the split by file, the finalists that they named together with those of
Python, `final` on the report split by file, and `again`: students of the first seed that were trained once more for the
report split by package, and read the one by file as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench_parts import known_lines, table_of, told_interval
from recipe_data import OF_PACKAGES
from recipe_verdict import BASE, COUNTS, MARGINS, family_of, judge_settings, text_sums

from vocabx_utils.measured import RECIPE_COLUMNS, RECIPES

NOT_YET = "not measured yet"
Row = Mapping[str, Any]


# --- what the first splits had said ---------------------------------------------------------------------------------


def judge_by_file(folder: Path) -> dict[str, Any]:
    """Judge what was measured on splits by file, by the same rule; empty where nothing is.

    Returns:
        `finalists`, the families that were named then; by setting what `judge_setting` says, with `again`, see
        `read_again`.
    """
    finalists, settings = judge_settings(folder)
    for setting, found in settings.items():
        found["again"] = read_again(*(known_lines(folder / part / f"{setting}.jsonl") for part in ("again", "final")))
    return {"finalists": finalists, "settings": settings} if settings else {}


def read_again(lines: Sequence[Row], old: Sequence[Row]) -> dict[str, Any]:
    """Compare what students that were trained twice give on the same texts: the largest change of a mean over all rows.

    Returns:
        `rows`, how many were trained again, and `beyond`, how many of them moved by more than the rule's margin in any
        column; by column the largest change: shares of both KL, and bits per byte.
    """
    before = {(row["run"], row["seed"]): row for row in old if row["run"] != BASE}
    pairs = [(_means(row), _means(was)) for row in lines if (was := before.get((row["run"], row["seed"])))]
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
    """The splits to choose by and to report, of headers by file as well: sizes, and shares of passages elsewhere."""
    header = [
        "setting", "split", "texts", "new tokens in them", "different ones", "passages also in training",
        "in all training text", "in the sweep split by file",
    ]  # fmt: skip
    lines = []
    for part, told in (("report", texts), ("sweep", texts.get(OF_PACKAGES["sweep"], {"splits": {}}))):
        names = {part: f"{part}, by file", OF_PACKAGES[part]: f"{part}, by package"}
        for setting, splits in told["splits"].items():
            for split, found in splits.items():
                cells = [str(found["texts"]), f"{found['new_tokens']:,}", str(found["new_tokens_there"])]
                shares = [found["shared"].get(key) for key in ("training", "training_text", "sweep")]
                percent = ["" if share is None else f"{share:.2f} %" for share in shares]
                name = names[split] if setting.endswith("headers") else f"{part}, by package"
                lines.append([setting, name, *cells, *percent])
    return table_of(header, sorted(lines, key=lambda line: line[0])) if lines else NOT_YET


def sources(texts: Mapping[str, Any]) -> str:
    """The Debian packages that the splits of headers by package come from."""
    lines = []
    for part, told in (("report", texts), ("sweep", texts.get(OF_PACKAGES["sweep"], {"settings": {}}))):
        names = {p["name"].removesuffix("-dev") for setting in told["settings"].values() for p in setting["packages"]}
        if names:
            lines.append(f"* {part}, {len(names)} packages: {', '.join(sorted(names))}.")
    return "\n".join(lines) or NOT_YET


def by_file_table(by_file: Mapping[str, Any], by_package: Mapping[str, Any]) -> str:
    """Every row that was read on both report splits of headers: means with 95 % intervals over seeds and texts."""
    titles = (*list(RECIPE_COLUMNS.values())[:2], "bits per byte above the base's")
    header = ["setting", "row", *(f"{title}: {split}" for title in titles for split in ("by file", "by package"))]
    lines = []
    for setting, found in by_file["settings"].items():
        others = by_package.get(setting, {"rows": {}})["rows"]
        for name, row in found["rows"].items():
            mark = "**finalist then** " if name in found["finalists"] else ""
            cells = []
            for column in ("kl_identical", "kl_last", "above_base"):
                both = row.get(column), others.get(name, {}).get(column)
                cells += ["" if values is None else told_interval(values, ".4f") for values in both]
            lines.append([setting, f"{mark}`{name}`", *cells])
    return table_of(header, lines)


def told_by_file(by_file: Mapping[str, Any]) -> str:
    """What the rule said of the finalists of then, and how far the same training gave the same twice."""
    lines = []
    for name in by_file["finalists"]:
        own = [
            judged["leads"]
            for found in by_file["settings"].values()
            for run, judged in found["finalists"].items()
            if family_of(run) == name
        ]
        lines.append(f"{RECIPES[name]} led in {sum(own)} of {len(own)} settings of headers.")
    lines += [f"{setting}: {_told_again(found['again'])}" for setting, found in by_file["settings"].items()]
    return "\n".join(f"* {line}" for line in lines)


def _told_again(again: Mapping[str, Any]) -> str:
    if not again["rows"]:
        return "nothing was trained twice."
    changes = ", ".join(
        f"{title} {again[column]:.4f}" if column == "bpb" else f"{title} {100 * again[column]:.1f} %"
        for column, title in RECIPE_COLUMNS.items()
    )
    return (
        f"{again['rows']} rows were trained twice and read on the same texts. Means change by at most {changes}; in "
        f"{again['beyond']} rows one of them moves by more than the rule's margin."
    )
