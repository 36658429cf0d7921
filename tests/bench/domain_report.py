"""Draw docs/figures/domains.svg and fill docs/domains.md from results/domains/; `domains.py page` is the command.

Only text between `<!-- name -->` and `<!-- end -->` is replaced. The sentences about plain LoRA are chosen by the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from bench_parts import fill_page, table_of, told_speed

from vocabx_utils.figures.gains import draw_domains
from vocabx_utils.figures.theme import save_figure, theme
from vocabx_utils.files import read_jsonl
from vocabx_utils.measured import DOMAIN_ARMS, DOMAIN_TEXTS, read_domains

Rows = Sequence[dict[str, Any]]
_NOTHING = "not measured"
_SIDES = {
    "loses": "**Expansion with LoRA loses against plain LoRA** in {} of {} comparisons (its bits per byte are above, "
    "and the interval excludes 0):",
    "wins": "It ends below plain LoRA in {} of {}:",
    "cannot tell": "The interval holds 0 in {} of {}:",
}


def write(results: Path, docs: Path) -> None:
    """Fill the page, and draw its figure, from what is there."""
    rows = read_domains(results)
    parts = {
        "settings": settings_table(rows), "quality": quality_table(rows), "cost": cost_table(rows),
        "lora": lora_sentences(rows), "moving": moving_table(rows), "missing": missing_sentence(rows),
        "pilot": pilot_table(results / "pilot"), "figure": _NOTHING,
    }  # fmt: skip
    if any(row["above_base"] for row in rows):
        theme()
        drawing = draw_domains(rows)
        save_figure(drawing.figure, "domains", drawing.alt, docs / "figures")
        plt.close(drawing.figure)
        parts["figure"] = f"![{drawing.alt}](figures/domains.svg)"
    fill_page(docs / "domains.md", parts)


def place(row: dict[str, Any]) -> str:
    """Name model and text of a row."""
    return f"{row['model'].removesuffix('-Instruct')}, {DOMAIN_TEXTS.get(row['text'], row['text'])}"


def arm(row: dict[str, Any]) -> str:
    """Name an arm, with N where it has new tokens."""
    name = DOMAIN_ARMS[row["arm"]]
    return name if row["n"] == 0 else f"{name}, {row['n']:,}"


def quality_table(rows: Rows) -> str:
    """What each arm saves and how it predicts."""
    header = [
        "model, text", "arm, N", "tokens per 1,000 bytes", "saved", "bits per byte", "above the base",
        "above base + LoRA", "KL identical", "KL last", "characters a second, of base",
    ]  # fmt: skip
    lines = [
        [
            place(r), arm(r), f"{r['tokens_per_1000_bytes']:.0f}", f"{r['saved']:.1%}", f"{r['bpb']:.3f}",
            _interval(r["above_base"]), _interval(r["above_lora"]), f"{r['kl_identical']:.4f}", f"{r['kl_last']:.3f}",
            told_speed(r),
        ]
        for r in rows
    ]  # fmt: skip
    return table_of(header, lines) if lines else _NOTHING


def cost_table(rows: Rows) -> str:
    """What each arm was trained on."""
    header = ["model, text", "arm, N", "phase 1: updates", "tokens", "seconds", "tokens without an example",
              "LoRA: updates", "tokens", "seconds"]  # fmt: skip
    lines = [
        [place(r), arm(r), *_took(r["phase1"]), _missing(r), *_took(r["lora"])]
        for r in rows
        if r["phase1"] or r["lora"]
    ]
    return table_of(header, lines) if lines else _NOTHING


def _took(training: dict[str, Any] | None) -> list[str]:
    if training is None:
        return [""] * 3
    return [f"{training['steps']:,}", f"{training['tokens'] / 1e6:.2f} M", f"{training['seconds']:.0f}"]


def _missing(row: dict[str, Any]) -> str:
    return "" if row["phase1"] is None else f"{row['phase1']['without_examples']} of {row['n']:,}"


def settings_table(rows: Rows) -> str:
    """What the arms of a model and text share."""
    header = ["model, text", "documents: training", "measured", "recipe of ours", "passes: phase 1", "LoRA",
              "LoRA's rank", "rate", "device"]  # fmt: skip
    found = {}
    for r in rows:
        s = r["settings"]
        found[place(r)] = [
            place(r), f"{r['train_documents']:,}", f"{r['documents']}", f"`{s['recipe']}`", f"{s['epochs']}",
            f"{s['b_epochs']}", f"{s['lora_rank']}", f"{s['lora_rate']:g}", r["device"],
        ]  # fmt: skip
    return table_of(header, list(found.values())) if found else _NOTHING


def pilot_table(folder: Path) -> str:
    """Bits per byte on training documents that were left out: the base after LoRA, words and phrases at the least N."""
    lines = [
        [path.stem, _tried(row), f"{row['bpb']:.4f}", str((row.get("lora") or row["phase1"])["steps"])]
        for path in sorted(folder.glob("*.jsonl"))
        for row in sorted(read_jsonl(path), key=lambda row: (row.get("recipe", ""), row.get("lora_rate", 0.0)))
    ]
    return table_of(["model, text", "tried", "bits per byte", "updates"], lines) if lines else _NOTHING


def _tried(row: dict[str, Any]) -> str:
    return f"`{row['recipe']}`" if "recipe" in row else f"base + LoRA at {row['lora_rate']:g}"


def lora_sentences(rows: Rows) -> str:
    """Say where expansion with LoRA loses against plain LoRA, where it wins and where the interval cannot tell.

    A comparison is an arm with new tokens and LoRA against the base with LoRA, in bits per byte of the same documents.
    """
    compared = [row for row in rows if row["n"] and row["lora"] and row["above_lora"]]
    if not compared:
        return _NOTHING
    said = []
    for side, words in _SIDES.items():
        own = [row for row in compared if side_of(row["above_lora"]) == side]
        if own:
            told = "\n".join(f"- {name}: {arms}" for name, arms in _by_place(own).items())
            said.append(f"{words.format(len(own), len(compared))}\n\n{told}")
    if all(side_of(row["above_lora"]) != "loses" for row in compared):
        said.insert(0, f"In none of {len(compared)} comparisons does expansion with LoRA end surely above plain LoRA.")
    return "\n\n".join([*said, *_phase1_alone(rows)])


def _by_place(rows: Rows) -> dict[str, str]:
    """What is to be told of the arms of each model and text."""
    found: dict[str, list[str]] = {}
    for row in rows:
        told = f"{arm(row)} ({_interval(row['above_lora'])}, {row['saved']:.1%} of the tokens saved)"
        found.setdefault(place(row), []).append(told)
    return {name: "; ".join(told) for name, told in found.items()}


def _phase1_alone(rows: Rows) -> list[str]:
    """The same of learned rows without LoRA: what frozen blocks can do."""
    alone = [r for r in rows if r["arm"] in ("words", "both") and r["above_lora"]]
    if not alone:
        return []
    above = [r for r in alone if side_of(r["above_lora"]) == "loses"]
    gaps = [r["above_lora"][0] for r in alone]
    return [
        f"Learned rows alone, with frozen blocks, stay above plain LoRA in {len(above)} of {len(alone)} comparisons "
        f"(differences from {min(gaps):+.3f} to {max(gaps):+.3f})."
    ]


def moving_table(rows: Rows) -> str:
    """Set arms whose new rows move with LoRA beside those whose rows rest, on the same documents and steps."""
    resting = {(place(row), f"{row['arm']}_rows", row["n"]): row for row in rows}
    lines = [
        [
            place(row), arm(rest), f"{row['settings']['lora_rate']:g}", _interval(rest["above_lora"]),
            _interval(row["above_lora"]), _interval(row["above_resting"]),
        ]
        for row in rows
        if row["above_resting"] and (rest := resting[(place(row), row["arm"], row["n"])])
    ]  # fmt: skip
    header = [
        "model, text",
        "arm, N",
        "LoRA's rate",
        "above base + LoRA: rows resting",
        "rows moving",
        "moving above resting",
    ]
    return table_of(header, lines) if lines else _NOTHING


def missing_sentence(rows: Rows) -> str:
    """Name what a reader would look for in vain: arms at the least N, and readings of speed, by model and text."""
    if not rows:
        return _NOTHING
    gaps = []
    for name in dict.fromkeys(place(row) for row in rows):
        own = [row for row in rows if place(row) == name]
        least = min((row["n"] for row in own if row["n"]), default=0)
        there = {row["arm"] for row in own if row["n"] in (0, least)}
        lacking = [title for key, title in DOMAIN_ARMS.items() if key not in there]
        if not any("speed_gain" in row for row in own):
            lacking.append("characters a second")
        if lacking:
            gaps.append(f"- {name}: {'; '.join(lacking)}")
    return "Everything named above is measured." if not gaps else "\n".join(["Not measured:", "", *gaps])


def side_of(gap: Sequence[float]) -> str:
    """Judge a difference in bits per byte by its interval: `loses`, `wins` or `cannot tell`."""
    _, low, high = gap
    return "loses" if low > 0 else "wins" if high < 0 else "cannot tell"


def _interval(gap: Sequence[float] | None) -> str:
    return "" if gap is None else "{:+.3f} [{:+.3f}, {:+.3f}]".format(*gap)
