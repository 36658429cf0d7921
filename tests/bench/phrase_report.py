"""Draw docs/figures/phrases.svg and fill the tables of docs/phrases.md from results/phrases/.

    python tests/bench/phrase_report.py [--results results/phrases/tokenizers.json] [--docs docs]

Only text between `<!-- name -->` and `<!-- end -->` is replaced, so no number of that page is typed by hand.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd
from bench_parts import fill_page, table_of, told_interval, told_speed
from phrase_tokenizers import FORMS

from vocabx_utils import files
from vocabx_utils.figures.gains import draw_phrases
from vocabx_utils.figures.theme import save_figure, theme
from vocabx_utils.measured import DOMAIN_TEXTS, RECIPE_COLUMNS, read_phrases


def saved_table(rows: pd.DataFrame, told: int) -> str:
    """What each strategy saves and costs at one size."""
    header = [
        "tokenizer, text", "strategy", "tokens saved", "tokens per 1,000 bytes", "positions new", "mean span",
        "old positions changed", "seconds to choose",
    ]  # fmt: skip
    lines = [
        [
            f"{r.tokenizer}, {r.corpus}",
            f"`{r.strategy}`",
            f"{r.saved_percent:.1f} %",
            f"{r.tokens_per_1000_bytes:.0f}",
            f"{100 * r.new_share:.1f} %",
            f"{r.mean_subtokens:.1f} tokens, {r.mean_bytes:.1f} bytes",
            f"{100 * r.changed_share:.2f} %",
            f"{r.seconds_to_choose:.0f}",
        ]
        for r in rows[rows["n"] == told].itertuples()
    ]
    return table_of(header, lines)


def ways_table(ways: list[dict[str, Any]]) -> str:
    """Both forms with the same phrases."""
    header = [
        "tokenizer, text", "form", "tokens saved", "old positions changed", "round trips broken",
        "old lines changed", "MB encoded a second (original)",
    ]  # fmt: skip
    lines = [
        [
            f"{w['tokenizer']}, {w['corpus']}",
            f"`{name}`",
            f"{w[name]['saved_percent']:.1f} %",
            f"{100 * w[name]['changed_share']:.2f} %",
            f"{w[name]['round_trip_failures']} of {w[name]['round_trips']}",
            f"{w[name]['of_them_changed']} of {w[name]['lines_without_new_tokens']}",
            f"{_rate(w, name):.2f} ({_rate(w, 'original'):.2f})",
        ]
        for w in ways
        for name in FORMS
    ]
    return table_of(header, lines)


def _rate(way: dict[str, Any], name: str) -> float:
    return float(way["speed_bytes"] / 1e6 / way["seconds"][name])


def learned_table(rows: list[dict[str, Any]]) -> str:
    """What models learned of phrases: one line a run, as `phrases.py` wrote it."""
    header = [
        "model, text", "strategy, N", "objective", "rates, rows and head", "tokens of training", "dropout",
        "tokens saved", "positions new",
        RECIPE_COLUMNS["kl_identical"], RECIPE_COLUMNS["kl_last"], "KL, prompt cut inside",
        "bits per byte above the base's", "characters a second, of base",
    ]  # fmt: skip
    lines = [
        [
            f"{r['model']}, {r['text']}",
            f"`{r['strategy']}`, {r['n']}",
            f"`{r['objective']}`",
            "" if r["objective"] == "untrained" else f"{r['rate']:g}, {r['head_rate'] or r['rate']:g}",
            f"{r['train_tokens'] * r['epochs'] / 1e6:.1f} M",
            f"{r['dropout']:.0%}",
            f"{r['saved']:.1%}",
            f"{r['new_share']:.1%}",
            f"{r['kl_identical']:.4f}",
            f"{r['kl_last']:.3f}",
            told_interval((r["cuts"]["inside"][k] for k in ("kl", "kl_low", "kl_high")), ".2f") if "cuts" in r else "",
            told_interval(r["bpb_difference"], ".3f"),
            told_speed(r),
        ]
        for r in rows
    ]
    return table_of(header, lines)


def speed_sentence(rows: list[dict[str, Any]]) -> str:
    """What was read several times of characters a second: the middle reading and the range, a clause a run."""
    told = [
        f"{r['model'].removesuffix('-Instruct')} on {DOMAIN_TEXTS[r['text']]} with {r['n']} tokens of "
        f"`{r['strategy']}`, which save {r['saved']:.1%} of the tokens of held-out text, {told_speed(r)}"
        for r in rows
        if "speed_range" in r
    ]
    return f"Characters a second, of the base's: {'; '.join(told)}." if told else "Speed in turns: not measured."


def answers_table(rows: list[dict[str, Any]]) -> str:
    """What passed of the answers that `phrases.py answers` wrote."""
    header = [
        "model", "LoRA: rate, epochs", "benchmark", "prompts healed", "passed", "pass@1", "cut off", "tokens an answer",
        "does not compile", "begins with a docstring",
    ]  # fmt: skip
    lines = [
        [
            f"`{r['model'].removesuffix('_lora')}`",
            f"{r['lora_rate']:g}, {r['lora_epochs']}" if "lora_rate" in r else "",
            r["benchmark"],
            "yes" if r["healed"] else "no",
            f"{r['passed']} of {r['answers']}",
            told_interval((100 * r[key] for key in ("pass_at_1", "low", "high")), ".1f") + " %",
            str(r["cut_off"]),
            f"{r['tokens_per_answer']:.0f}",
            str(r["failures"].get("syntax", 0)),
            str(r["docstring_again"]),
        ]
        for r in rows
    ]
    return table_of(header, lines)


def write(results: Path, docs: Path, told: int = 800) -> None:
    """Fill the page, and draw its figure, from what is there."""
    theme()
    learned = read_phrases(results.parent)
    parts = {"learned": learned_table(learned), "speed": speed_sentence(learned)}
    if (answered := results.parent / "answers.json").exists():
        parts["answers"] = answers_table(files.read_json(answered))
    if results.exists():
        content = files.read_json(results)
        rows = pd.DataFrame(content["rows"])
        drawing = draw_phrases(rows, told)
        save_figure(drawing.figure, "phrases", drawing.alt, docs / "figures")
        plt.close(drawing.figure)
        parts |= {
            "saved": saved_table(rows, told),
            "ways": ways_table(content["ways"]),
            "figure": f"![{drawing.alt}](figures/phrases.svg)",
        }
    fill_page(docs / "phrases.md", parts)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("results/phrases/tokenizers.json"))
    parser.add_argument("--docs", type=Path, default=Path("docs"))
    options = parser.parse_args()
    write(options.results, options.docs)


if __name__ == "__main__":
    main()
