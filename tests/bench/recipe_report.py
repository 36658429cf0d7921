"""Fill docs/recipes.md, and draw docs/figures/recipes.svg, from what is in results/recipes/.

    python tests/bench/recipe_report.py [--results results/recipes] [--docs docs]

Only text between `<!-- name -->` and `<!-- end -->` is replaced, so no number of that page is typed by hand.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
from bench_parts import NOTHING, fill_page, table_of, told_interval
from recipe_pairs import notes, pair_table
from recipe_runs import GRID
from recipe_splits import NOT_YET, by_file_table, sources, texts_table, told_by_file
from recipe_verdict import MARGINS, distances

from vocabx_utils import files
from vocabx_utils.figures.gains import draw_frontier
from vocabx_utils.figures.theme import save_figure, theme
from vocabx_utils.measured import RECIPE_COLUMNS, RECIPES, read_recipes

_KL = (RECIPE_COLUMNS["kl_identical"], RECIPE_COLUMNS["kl_last"])


def sweep_table(sweeps: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """The best run of each family in each setting, by its mean distance from the best of each column."""
    header = [
        "setting", "family", "runs", "best run", *_KL, "bits per byte above the base's",
        "CE of new tokens", "seconds", "distance in margins",
    ]  # fmt: skip
    lines = []
    for setting, rows in sweeps.items():
        apart, by_name = distances(rows), {row["run"]: row for row in rows}
        for family in (name for name in GRID if any(row["family"] == name for row in rows)):
            own = [row for row in rows if row["family"] == family]
            failed = sum("error" in row for row in own)
            best = min((row["run"] for row in own if row["run"] in apart), key=lambda n: (apart[n], n), default=None)
            if best is None:
                lines.append([setting, RECIPES[family], f"{len(own)}, {failed} failed", *[""] * 7])
                continue
            row = by_name[best]
            lines.append(
                [
                    setting,
                    RECIPES[family],
                    str(len(own)) + (f", {failed} failed" if failed else ""),
                    f"`{row['settings']}`",
                    f"{row['kl_identical']:.4f}",
                    f"{row['kl_last']:.4f}",
                    f"{row['bpb'] - row['base_bpb']:+.4f}",
                    f"{row['ce_new']:.2f}",
                    f"{row['seconds']:.1f}",
                    f"{apart[best]:.1f}",
                ]
            )
    return table_of(header, lines) if lines else NOTHING


def final_table(content: Mapping[str, Any]) -> str:
    """Finalists and references on the report split, with 95 % intervals over seeds and texts."""
    header = [
        "setting", "row", *_KL, "bits per byte above the base's", "sd over seeds", "seconds",
    ]  # fmt: skip
    lines = []
    for setting, found in content["settings"].items():
        for name, row in found["rows"].items():
            mark = "**finalist** " if name in found["finalists"] else ""
            above = row.get("above_base") or row["bpb"]
            spread = row["sd_over_seeds"]
            told = " / ".join("" if spread[c] is None else f"{spread[c]:.4f}" for c in MARGINS)
            cells = [told_interval(values, ".4f") for values in (row["kl_identical"], row["kl_last"], above)]
            lines.append([setting, f"{mark}`{name}`", *cells, told, f"{row['seconds']:.1f}"])
    return table_of(header, lines) if lines else NOTHING


def comparison_table(content: Mapping[str, Any]) -> str:
    """Each finalist against the best reference of each column."""
    header = ["setting", "finalist", "column", "best reference", "difference", "not worse", "better", "leads"]
    lines = []
    for setting, found in content["settings"].items():
        for name, judged in found["finalists"].items():
            for column, part in judged["columns"].items():
                values = [part["estimate"], part["low"], part["high"]]
                percent = told_interval((100 * value for value in values), ".1f") + " %"
                told = told_interval(values, ".4f") if column == "bpb" else percent
                words = ["yes" if part[key] else "no" for key in ("not_worse", "better")]
                leads = "yes" if judged["leads"] else "no"
                lines.append(
                    [setting, f"`{name}`", RECIPE_COLUMNS[column], f"`{part['reference']}`", told, *words, leads]
                )
    return table_of(header, lines) if lines else NOTHING


def advice_against(verdict: Mapping[str, Any]) -> pd.DataFrame:
    """Tabulate the advised runs against each reference on the report split, over all settings.

    A cell gives the range of the differences (below 0 the advised run is better), and in how many settings the 95 %
    interval lies below 0 and above.

    Args:
        verdict: see `read_recipes`.

    Returns:
        A line a reference; columns KL identical, KL at merged spans (shares of the reference's) and bits per byte.
    """
    found = [setting["advice"]["against"] for setting in verdict.get("settings", {}).values() if "advice" in setting]
    lines: dict[str, dict[str, str]] = {}
    for label in dict.fromkeys(label for one in found for label in one):
        parts = [one[label] for one in found if label in one]
        lines[label] = {title: _counted([part[key] for part in parts], key) for key, title in RECIPE_COLUMNS.items()}
    return pd.DataFrame.from_dict(lines, orient="index", columns=list(RECIPE_COLUMNS.values())).rename_axis("against")


def _counted(parts: Sequence[Mapping[str, float]], column: str) -> str:
    better, worse = sum(part["high"] < 0 for part in parts), sum(part["low"] > 0 for part in parts)
    ends = (choose(part["estimate"] for part in parts) for choose in (min, max))
    low, high = (f"{end:+.4f}" if column == "bpb" else f"{end:+.0%}" for end in ends)
    return f"{low} to {high}; better in {better}, worse in {worse} of {len(parts)}"


def advice_table(content: Mapping[str, Any]) -> str:
    """Name the advised runs, and tabulate them against the references over all settings."""
    table = advice_against(content)
    if table.empty:
        return NOTHING
    runs = ", ".join(f"`{found['advice']['run']}` ({name})" for name, found in content["settings"].items())
    lines = [[label, *cells] for label, *cells in table.reset_index().to_numpy().tolist()]
    return f"Advised, by the sweep: {runs}.\n\n{table_of(['against', *table.columns], lines)}"


def answer(content: Mapping[str, Any]) -> str:
    """What the rule says, a line for each finalist."""
    lines = [
        f"* **{RECIPES[name]}:** {found['answer']}, ahead in {len(found['leads_in'])} of "
        f"{len(found['measured_in'])} settings" + (f" ({', '.join(found['leads_in'])})." if found["leads_in"] else ".")
        for name, found in content["finalists"].items()
    ]
    return "\n".join(lines) or NOTHING


def write(results: Path, docs: Path) -> None:
    """Fill the page, and draw its figure, from what is there."""
    theme()
    sweeps, content = read_recipes(results)
    parts = dict.fromkeys(("final", "comparison", "answer", "advice"), NOTHING) | {"sweep": sweep_table(sweeps)}
    if content:
        parts |= {"final": final_table(content), "comparison": comparison_table(content), "answer": answer(content)}
        parts["advice"] = advice_table(content)
    parts |= dict.fromkeys(("figure", "notes", "pairs"), NOTHING) | splits_parts(results, content)
    if sweeps:
        parts |= {"notes": notes(sweeps), "pairs": pair_table(sweeps)}
        drawing = draw_frontier(sweeps, content)
        save_figure(drawing.figure, "recipes", drawing.alt, docs / "figures", ("svg",))
        plt.close(drawing.figure)
        parts["figure"] = f"![{drawing.alt}](figures/recipes.svg)"
    fill_page(docs / "recipes.md", parts)


def splits_parts(results: Path, content: Mapping[str, Any]) -> dict[str, str]:
    """What the page says of the splits, and of those of headers by file."""
    parts = dict.fromkeys(("texts", "sources", "by-file"), NOT_YET)
    path = results / "texts.json"
    if path.exists():
        texts = files.read_json(path)
        parts |= {"texts": texts_table(texts), "sources": sources(texts)}
    if by_file := content.get("by_file"):
        parts["by-file"] = f"{told_by_file(by_file)}\n\n{by_file_table(by_file, content['settings'])}"
    return parts


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/recipes"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    options = parser.parse_args()
    write(options.results, options.docs)


if __name__ == "__main__":
    main()
