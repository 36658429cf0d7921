"""Fill the tables of README.md from results/, and draw docs/figures/before_after.svg.

    python tests/bench/readme_page.py [--without-figure] [--run runs/quick]

The figure shows a passage of this package's own source, under a tokenizer that was extended on the other files. The
minutes of the notebooks are those of a run, which `--run` takes over into results/bench/quick-run.json.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from bench_parts import fill_page, table_of
from domain_speed import speed_sentence
from domain_told import interval, shares, side_of, span

from vocabx_utils.figures.strip_pictures import draw_strip
from vocabx_utils.figures.strips import token_strip
from vocabx_utils.figures.theme import save_figure, theme
from vocabx_utils.files import read_json, write_json
from vocabx_utils.measured import DOMAIN_TEXTS, RECIPES, read_domains, read_phrases, read_recipes
from vocabx_utils.models import load_tokenizer
from vocabx_utils.vocabulary.encoding import encode_all
from vocabx_utils.vocabulary.extend import extend_tokenizer
from vocabx_utils.vocabulary.options import TokenOptions
from vocabx_utils.vocabulary.tokens import Extension

ROOT = Path(__file__).resolve().parents[2]
TIMES = ROOT / "results" / "bench" / "quick-run.json"
N = 800
KINDS = {"merges": "words", "both": "words and phrases"}
LANGUAGES = ("german", "swedish")
PUBLISHED = "Token Distillation as published"
COLUMNS = {"kl_identical": "KL at identical places", "kl_last": "KL at merged spans", "bpb": "bits per byte"}
SHOWN = "locks.py"  # held out for the figure


class Gained(NamedTuple):
    """A line of the table: what N new tokens save on a text, and what a model makes of them."""

    text: str
    model: str
    kind: str
    saved: float
    base_bpb: float
    learned: list[float]
    tuned: list[float] | None  # with LoRA, against LoRA alone


def gained(rows: list[dict[str, Any]], domains: list[dict[str, Any]]) -> list[Gained]:
    """For each model and text, what N new tokens save and what the model makes of them.

    Both kinds of tokens stand with the same objective, rates and epochs, the longest training that both had; a kind
    that is alone with its longest. Where the comparison in domains was measured, its rows are taken, and what LoRA on
    the same texts does with and without the new tokens.
    """
    trained: dict[tuple[str, str], dict[tuple[Any, ...], dict[str, dict[str, Any]]]] = {}
    for row in rows:
        if row["n"] == N and row["strategy"] in KINDS and row["objective"] != "untrained" and not row["dropout"]:
            how = tuple(row[key] for key in ("objective", "rate", "head_rate", "epochs"))
            trained.setdefault((row["text"], row["model"]), {}).setdefault(how, {})[row["strategy"]] = row
    best = {
        (*key, strategy): row
        for key, ways in trained.items()
        for own in [max(ways.values(), key=lambda found: (len(found), max(map(_read, found.values()))))]
        for strategy, row in own.items()
    }
    after = [row for row in domains if row["n"] == N and row["arm"] in ("words_lora", "both_lora")]
    tuned = {(row["text"], row["model"], row["strategy"]): row["above_lora"] for row in after}
    bases = {(r["text"], r["model"]): r["bpb"] for r in domains if r["arm"] == "base"}
    for row in domains:
        if row["n"] == N and row["arm"] in ("words", "both") and row["above_base"]:
            shown = {"base_bpb": bases[row["text"], row["model"]], "bpb_difference": row["above_base"]}
            best[row["text"], row["model"], row["strategy"]] = row | shown
    found = [
        Gained(text, model.removesuffix("-Instruct"), KINDS[strategy], row["saved"], row["base_bpb"],
               row["bpb_difference"], tuned.get((text, model, strategy)))
        for (text, model, strategy), row in best.items()
    ]  # fmt: skip
    return sorted(found, key=lambda line: (list(DOMAIN_TEXTS).index(line.text), line.model, line.saved))


def _read(row: dict[str, Any]) -> int:
    """Tokens that a training read."""
    return int(row["train_tokens"] * row["epochs"])


def gains_table(lines: list[Gained]) -> str:
    """Tabulate them; the last column stands where LoRA was measured anywhere."""
    compared = any(line.tuned for line in lines)
    cells = [
        [
            DOMAIN_TEXTS[line.text], line.model, line.kind, f"{100 * line.saved:.1f} %", f"{line.base_bpb:.3f}",
            interval(line.learned), *([interval(line.tuned)] if compared else []),
        ]
        for line in lines
    ]  # fmt: skip
    header = ["text", "model", "new tokens", "tokens saved", "bits per byte: base", "with learned rows, difference"]
    return table_of(header + ["with LoRA, against LoRA alone"] * compared, cells)


def told_gains(lines: list[Gained], domains: list[dict[str, Any]], answers: list[dict[str, Any]]) -> str:
    """What the table says of languages and of code, and beside it of answers, of speed and of plain LoRA."""
    languages, code = ([line for line in lines if (line.text in LANGUAGES) == side] for side in (True, False))
    words, phrases = ([line for line in code if line.kind == kind] for kind in KINDS.values())
    rise = [line.learned[0] / line.base_bpb for line in phrases]
    said = [
        f"**Languages that the tokenizer was not made for:** {_saved(languages)} of the tokens go, and the model "
        f"predicts the text better than before in {_count(languages, 'learned', 'wins')} (the rows have been trained "
        "on such text, which is part of the reason).",
        f"**Code:** words save {_saved(words)}. Tokens that cross words (`return self`, a line break with its "
        f"indentation) save {_saved(phrases)} and are not free: bits per byte rise in "
        f"{_count(phrases, 'learned', 'loses')}, by {percents(rise)}. {told_answers(answers)}",
    ]
    if speed := speed_sentence(domains):
        said.append(
            f"**Length and speed:** fewer tokens mean that more of a given text fits into a context. {speed} (A place "
            "is a text with a model. With Qwen2.5 these readings are low: they were taken with an odd number of head "
            "rows, which slowed each token down and is [filled up "
            "since](docs/domains.md#do-shorter-texts-mean-faster-answers).)"
        )
    if tuned := [line for line in lines if line.tuned]:
        plain = percents([-share for share in shares(domains, ["base_lora"])])
        said.append(
            f"**Plain LoRA** on the same texts takes {plain} of the base's bits away, more than new rows can. With "
            f"LoRA behind them, new tokens cost bits in {_count(tuned, 'tuned', 'loses')} (last column): they are for "
            "length, LoRA for prediction ([docs/domains.md](docs/domains.md))."
        )
    return "\n".join(f"- {words.strip()}" for words in said)


def told_answers(answers: list[dict[str, Any]]) -> str:
    """How many problems of HumanEval are solved with phrases, none of them tuned, where the prompts were healed."""
    solved = {
        row["model"].split("_")[0]: row
        for row in answers
        if row["benchmark"] == "humaneval" and row["healed"] and "lora_rate" not in row
    }
    if not {"base", "both"} <= solved.keys():
        return ""
    count, base = solved["both"]["passed"], solved["base"]
    better = f", {solved['unbroken']['passed']} if no phrase holds a line break" if "unbroken" in solved else ""
    return (
        f"With them Qwen2.5-Coder-0.5B solves {count} instead of {base['passed']} of {base['answers']} problems of "
        f"HumanEval{better} ([docs/phrases.md](docs/phrases.md))."
    )


def _saved(lines: list[Gained]) -> str:
    return percents([line.saved for line in lines])


def percents(values: list[float]) -> str:
    """`11 to 36 %`, with a decimal below 10 %."""
    return f"{span(values, lambda v: f'{100 * v:.{int(abs(v) < 0.1)}f}')} %"


def _count(lines: list[Gained], column: str, side: str) -> str:
    """How many lines have an interval that lies on one side of 0, see `side_of`."""
    return f"{sum(side_of(getattr(line, column)) == side for line in lines)} of {len(lines)} lines"


def told_recipes(verdict: dict[str, Any]) -> str:
    """How the advised recipe stands against Token Distillation as published, and whether a recipe leads."""
    better, fewer = _advised(verdict["settings"])
    leaders = [RECIPES[name] for name, found in verdict["finalists"].items() if found["answer"] == "leads"]
    leads = f"By the rule set before, {' and '.join(leaders)} leads." if leaders else "No recipe leads on everything."
    told = (
        "How the rows learn matters as well. At equal training tokens the advised recipe (KL divergence from the "
        "original model behind each new token, with a little cross-entropy) is better than Token Distillation as "
        f"published {better}. {leads} Cross-entropy alone has fewer bits per byte than the advised recipe {fewer}."
    )
    if by_file := verdict.get("by_file"):
        better, fewer = _advised(verdict["settings"] | by_file["settings"])
        told += (
            " Headers are read on packages that no training text comes from. Read on packages that the training texts "
            f"share, the recipe is better {better}, and cross-entropy has fewer bits {fewer}."
        )
    return f"{told} All of it is in [docs/recipes.md](docs/recipes.md)."


def _advised(settings: dict[str, Any]) -> tuple[str, str]:
    """In how many settings the advised recipe is better than Token Distillation, and cross-entropy has fewer bits."""
    against = [found["advice"]["against"] for found in settings.values() if PUBLISHED in found["advice"]["against"]]
    counted: dict[str, list[str]] = {}
    for key, name in COLUMNS.items():
        gaps = [found[PUBLISHED][key] for found in against]
        better, worse = sum(gap["high"] < 0 for gap in gaps), sum(gap["low"] > 0 for gap in gaps)
        told = f"in {better} of {len(gaps)} settings" + (f" (worse in {worse})" if worse else "")
        counted.setdefault(told, []).append(name)
    if len(counted) == 1:
        counted = {told: ["all three measures"] for told in counted}
    ce = [found["CE"] for found in against]
    fewer = sum(gap["bpb"]["low"] > 0 for gap in ce)
    kl = span([1 / (1 + gap[key]["estimate"]) for gap in ce for key in ("kl_identical", "kl_last")], "{:.1f}".format)
    return (
        ", ".join(f"on {' and '.join(names)} {told}" for told, names in counted.items()),
        f"in {fewer} of {len(ce)} settings, at {kl} times its KL",
    )


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
        f"which cross words, such as a line break with its indentation. In the whole file {all_before:,} tokens become "
        f"{all_after:,}."
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
    domains = read_domains(ROOT / "results" / "domains")
    lines = gained(read_phrases(ROOT / "results" / "phrases"), domains)
    answers = read_json(ROOT / "results" / "phrases" / "answers.json")
    parts = {"gains": gains_table(lines), "told-gains": told_gains(lines, domains, answers)}
    parts["told-recipes"] = told_recipes(read_recipes(ROOT / "results" / "recipes")[1])
    alt = read_json(ROOT / "docs" / "figures" / "alt.json")["phrases"]
    parts["minutes"] = all_minutes(times)
    parts["saved"] = f"![{alt}](docs/figures/phrases.svg)"
    if not options.without_figure:
        parts["before-after"] = draw_before_after(ROOT / "docs")
    fill_page(readme, parts)


if __name__ == "__main__":
    main()
