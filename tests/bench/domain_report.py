"""Draw docs/figures/domains.svg and fill docs/domains.md from results/domains/; `domains.py page` is the command.

Only text between `<!-- name -->` and `<!-- end -->` is replaced. Sentences are in `domain_told` and `domain_speed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from bench_parts import NOTHING, fill_page, table_of, told_speed
from domain_speed import has_more, least, lora_speed_table, speed_by_arm, speed_table
from domain_told import arm, change_table, interval, lora_sentences, moving_table, place

from vocabx_utils.figures.gains import draw_domains
from vocabx_utils.figures.theme import save_figure, theme
from vocabx_utils.files import read_jsonl
from vocabx_utils.measured import DOMAIN_ARMS, RECIPE_COLUMNS, read_domains

Rows = Sequence[dict[str, Any]]


def write(results: Path, docs: Path) -> None:
    """Fill the page, and draw its figure, from what is there."""
    rows = read_domains(results)
    parts = {
        "settings": settings_table(rows), "quality": quality_table(rows), "cost": cost_table(rows),
        "speed": speed_table(rows), "pace": speed_by_arm(rows), "pace-lora": lora_speed_table(rows),
        "lora": lora_sentences(rows), "changes": change_table(rows),
        "moving": moving_table(rows),
        "missing": missing_sentence(rows), "pilot": pilot_table(results / "pilot"), "figure": NOTHING,
    }  # fmt: skip
    if any(row["above_base"] for row in rows):
        theme()
        drawing = draw_domains(rows)
        save_figure(drawing.figure, "domains", drawing.alt, docs / "figures")
        plt.close(drawing.figure)
        parts["figure"] = f"![{drawing.alt}](figures/domains.svg)"
    fill_page(docs / "domains.md", parts)


def quality_table(rows: Rows) -> str:
    """What each arm saves and how it predicts."""
    header = [
        "model, text", "arm, N", "tokens per 1,000 bytes", "saved", "bits per byte", "above the base",
        "above base + LoRA", RECIPE_COLUMNS["kl_identical"], RECIPE_COLUMNS["kl_last"], "characters a second, of base",
    ]  # fmt: skip
    lines = [
        [
            place(r), arm(r), f"{r['tokens_per_1000_bytes']:.0f}", f"{r['saved']:.1%}", f"{r['bpb']:.3f}",
            interval(r["above_base"]), interval(r["above_lora"]), f"{r['kl_identical']:.4f}", f"{r['kl_last']:.3f}",
            told_speed(r),
        ]
        for r in rows
    ]  # fmt: skip
    return table_of(header, lines) if lines else NOTHING


def cost_table(rows: Rows) -> str:
    """What each arm was trained on."""
    header = ["model, text", "arm, N", "phase 1: updates", "tokens", "seconds", "tokens without an example",
              "LoRA: updates", "tokens", "seconds"]  # fmt: skip
    lines = [
        [place(r), arm(r), *_took(r["phase1"]), _missing(r), *_took(r["lora"])]
        for r in rows
        if r["phase1"] or r["lora"]
    ]
    return table_of(header, lines) if lines else NOTHING


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
    return table_of(header, list(found.values())) if found else NOTHING


def pilot_table(folder: Path) -> str:
    """Bits per byte on training documents that were left out: the base after LoRA, words and phrases at the least N."""
    tried = {
        path.stem: sorted(read_jsonl(path), key=lambda row: (row.get("recipe", ""), row.get("lora_rate", 0.0)))
        for path in sorted(folder.glob("*.jsonl"))
    }
    lines = [
        [name, _tried(row), f"{row['bpb']:.4f}", str((row.get("lora") or row["phase1"])["steps"])]
        for name, rows in tried.items()
        for row in rows
    ]
    if not lines:
        return NOTHING
    return f"{table_of(['model, text', 'tried', 'bits per byte', 'updates'], lines)}\n\n{_edges(tried)}"


def _edges(tried: dict[str, list[dict[str, Any]]]) -> str:
    """Name pilots whose best rate of LoRA is the lowest or the highest that was tried."""
    told = []
    for name, rows in tried.items():
        rates = [row for row in rows if "lora_rate" in row]  # by rate, as they come
        order = sorted(rates, key=lambda row: row["bpb"])
        if len(rates) > 1 and order[0] in (rates[0], rates[-1]):
            rate, ahead = order[0]["lora_rate"], order[1]["bpb"] - order[0]["bpb"]
            told.append(f"{name} ({rate:g}, by {ahead:.4f} bits per byte)")
    if not told:
        return "No best rate of LoRA lies at the edge of what was tried."
    where = "; ".join(told)
    return f"The best rate of LoRA lies at the edge of what was tried with {where}: plain LoRA may do better there."


def _tried(row: dict[str, Any]) -> str:
    return f"`{row['recipe']}`" if "recipe" in row else f"base + LoRA at {row['lora_rate']:g}"


def _unread(row: dict[str, Any]) -> bool:
    """Whether an arm's speed should be read and was not; moving rows change a model's weights, not its tokens."""
    return row["arm"] != "base" and not row["arm"].endswith("_rows") and "speed_gain" not in row


def missing_sentence(rows: Rows) -> str:
    """Name what a reader would look for in vain, and where: arms at the least N, and readings of speed."""
    if not rows:
        return NOTHING
    few = least(rows)
    places = list(few)
    gaps: dict[str, list[str]] = {}
    for name in places:
        own = [row for row in rows if place(row) == name and row["n"] in (0, few[name])]
        there = {row["arm"] for row in own}
        lacking = [title for key, title in DOMAIN_ARMS.items() if key not in there]
        if unread := [DOMAIN_ARMS[row["arm"]] for row in own if _unread(row)]:
            lacking.append(f"characters a second of {' / '.join(unread)}")
        larger = {row["n"] for row in rows if place(row) == name and has_more(row, few) and _unread(row)}
        lacking += [f"characters a second with {n:,} new tokens" for n in sorted(larger)]
        for what in lacking:
            gaps.setdefault(what, []).append(name)
    told = [f"- {_everywhere(where, places)}: {what}" for what, where in gaps.items()]
    return "Everything named above is measured." if not told else "\n".join(["Not measured:", "", *told])


def _everywhere(where: Sequence[str], places: Sequence[str]) -> str:
    """Name these places, in a few words if they are all that there are."""
    return "with every model and text" if len(where) == len(places) > 1 else "; ".join(where)
