"""Fill the tables of README.md from results/, and draw docs/figures/before_after.svg.

    python tests/bench/readme_page.py [--without-figure] [--run runs/quick]

The figure shows a passage of this package's own source, under a tokenizer that was extended on the other files. The
minutes of the notebooks are those of a run, which `--run` takes over into results/bench/quick-run.json.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from bench_parts import fill_page
from phrase_report import table_of

from vocabx_utils.figures.strip_pictures import draw_strip
from vocabx_utils.figures.strips import token_strip
from vocabx_utils.figures.theme import save_figure, theme
from vocabx_utils.files import read_json, write_json
from vocabx_utils.measured import DOMAIN_TEXTS, read_domains, read_phrases
from vocabx_utils.models import load_tokenizer
from vocabx_utils.vocabulary.encoding import encode_all
from vocabx_utils.vocabulary.extend import extend_tokenizer
from vocabx_utils.vocabulary.options import TokenOptions
from vocabx_utils.vocabulary.tokens import Extension

ROOT = Path(__file__).resolve().parents[2]
TIMES = ROOT / "results" / "bench" / "quick-run.json"
N = 800
KINDS = {"merges": "words", "both": "words and phrases"}
SHOWN = "locks.py"  # held out for the figure


def gains_table(rows: list[dict[str, Any]], domains: list[dict[str, Any]]) -> str:
    """For each model and text, what N new tokens save and what the model makes of them after the longest training.

    Where the comparison in domains was measured, its rows are shown, and what LoRA on the same texts does with and
    without the new tokens.
    """
    best: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in rows:
        key = row["text"], row["model"], row["strategy"]
        if row["n"] == N and row["strategy"] in KINDS and row["objective"] != "untrained" and not row["dropout"]:
            best[key] = max(best.get(key, row), row, key=lambda r: r["train_tokens"] * r["epochs"])
    after = [row for row in domains if row["n"] == N and row["arm"] in ("words_lora", "both_lora")]
    tuned = {(row["text"], row["model"], row["strategy"]): row["above_lora"] for row in after}
    bases = {(r["text"], r["model"]): r["bpb"] for r in domains if r["arm"] == "base"}
    for row in domains:
        if row["n"] == N and row["arm"] in ("words", "both") and row["above_base"]:
            shown = {"base_bpb": bases[row["text"], row["model"]], "bpb_difference": row["above_base"]}
            best[row["text"], row["model"], row["strategy"]] = row | shown
    compared = any(tuned.values())

    def place(key: tuple[str, str, str]) -> tuple[int, str]:
        return list(DOMAIN_TEXTS).index(key[0]), key[1]

    lines = [
        [
            DOMAIN_TEXTS[text], model.removesuffix("-Instruct"), KINDS[strategy], f"{100 * row['saved']:.1f} %",
            f"{row['base_bpb']:.3f}", _interval(row["bpb_difference"]),
            *([_interval(tuned.get((text, model, strategy)))] if compared else []),
        ]
        for (text, model, strategy), row in sorted(best.items(), key=lambda item: (*place(item[0]), item[1]["saved"]))
    ]  # fmt: skip
    header = ["text", "model", "new tokens", "tokens saved", "bits per byte: base", "with learned rows, difference"]
    return table_of(header + ["with LoRA, against LoRA alone"] * compared, lines)


def _interval(gap: list[float] | None) -> str:
    return "" if gap is None else "{:+.3f} [{:+.3f}, {:+.3f}]".format(*gap)


def keep_times(run: Path) -> None:
    """Take over how long each notebook of a finished run took, and its peak of memory."""
    kept = ("seconds", "peak_mib", "finished")
    write_json(TIMES, {name: {key: t[key] for key in kept} for name, t in read_json(run / "timings.json").items()})


def with_minutes(page: str, times: dict[str, dict[str, Any]]) -> str:
    """Put minutes at the end of each notebook's line of a table; SystemExit where a notebook has no line."""
    for name, time in times.items():
        line = rf"(?m)^(\| \[.*?\]\(notebooks/{name}\.ipynb\) .*\| )[\d.]+ \|$"
        page, found = re.subn(line, lambda m, t=time: f"{m[1]}{t['seconds'] / 60:.1f} |", page)
        if found != 1:
            raise SystemExit(f"README.md has {found} lines for notebook {name}, expected one that ends in its minutes")
    return page


def all_minutes(times: dict[str, dict[str, Any]]) -> str:
    """Say what the whole run took, and where."""
    minutes, memory = (f(t[key] for t in times.values()) for f, key in ((sum, "seconds"), (max, "peak_mib")))
    return (
        f"Minutes: one `make run` in the quick profile, {minutes / 60:.1f} in all, on two CPU cores of a machine that "
        f"others use, too; the largest takes {memory * 2**20 / 1e9:.1f} GB of memory."
    )


def own_extension() -> tuple[Extension, str]:
    """SmolLM2's tokenizer with 400 tokens of this package's source, and the source of the file that was left out."""
    files = sorted((ROOT / "vocabx_utils").rglob("*.py"))
    texts = [path.read_text(encoding="utf-8") for path in files if path.name != SHOWN]
    [held] = [path.read_text(encoding="utf-8") for path in files if path.name == SHOWN]
    options = TokenOptions(min_count=6, min_files=4)
    return extend_tokenizer(load_tokenizer("smollm2-135m"), texts, 400, "phrases", options), held


def draw_before_after(docs: Path) -> str:
    """Draw the passage; returns the line of Markdown that shows it."""
    extension, held = own_extension()
    passage = held[held.index("def _try") : held.index("    except BlockingIOError")].strip("\n")
    before, after = (len(encode_all(t, [passage])[0]) for t in (extension.original, extension.extended))
    all_before, all_after = (len(encode_all(t, [held])[0]) for t in (extension.original, extension.extended))
    alt = (
        f"A passage of this package's source as tokens, twice. Original: {before} tokens. Extended: {after}, some of "
        f"which cross words, such as a line break with its indentation. In the whole file {all_before} tokens become "
        f"{all_after}."
    )
    theme()
    axes = draw_strip(token_strip(extension, passage), width=88)
    save_figure(axes.figure, "before_after", alt, docs / "figures")
    plt.close(axes.figure)
    return (
        f"![{alt}](docs/figures/before_after.svg)\n\n"
        f"*400 tokens learned from the other files of this package, on `{SHOWN}`: {all_before:,} tokens become "
        f"{all_after:,} ({100 * (1 - all_after / all_before):.0f} % fewer).*"
    )


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--without-figure", action="store_true")
    parser.add_argument("--run", type=Path, help="folder of a finished quick run, whose minutes are to be told")
    options = parser.parse_args()
    if options.run:
        keep_times(options.run)
    times = read_json(TIMES)
    readme = ROOT / "README.md"
    readme.write_text(with_minutes(readme.read_text(encoding="utf-8"), times), encoding="utf-8")
    parts = {
        "gains": gains_table(read_phrases(ROOT / "results" / "phrases"), read_domains(ROOT / "results" / "domains"))
    }
    alt = read_json(ROOT / "docs" / "figures" / "alt.json")["phrases"]
    parts["minutes"] = all_minutes(times)
    parts["saved"] = f"![{alt}](docs/figures/phrases.svg)"
    if not options.without_figure:
        parts["before-after"] = draw_before_after(ROOT / "docs")
    fill_page(readme, parts)


if __name__ == "__main__":
    main()
