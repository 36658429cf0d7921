"""The report of an adaptation: one HTML file that can be read anywhere, from `report.html.j2`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment

from vocabx_utils.adaptation.proposal import total
from vocabx_utils.files import write_text
from vocabx_utils.glyphs import visible

Summary = Mapping[str, Any]
COLUMNS = ("base", "extended, before training", "adapted")


def write_report(path: Path, summary: Summary) -> None:
    """Write the report of a summary (see `run.adapt`)."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["visible"] = visible
    template = (files("vocabx_utils.adaptation") / "report.html.j2").read_text(encoding="utf-8")
    page = environment.from_string(template).render(
        s=summary, lead=lead(summary), table=headline(summary), columns=COLUMNS, facts=facts(summary)
    )
    write_text(path, page)


def lead(summary: Summary) -> str:
    """Say in two sentences what was gained and what it cost."""
    saved = total(summary["tokens"]["gains"])["saved_per_1000"] / 10
    speed, packing = summary["generation"]["speed"], summary["packing"]
    low, *_, high = speed["ratios"]
    rate = f"come at {speed['ratio']:.2f} times the characters a second (single rounds: {low:.2f} to {high:.2f})"
    if low <= 1 <= high:  # the rounds do not agree which is quicker
        rate = f"show no clear change of speed (single rounds: {low:.2f} to {high:.2f} times the characters a second)"
    said = f"Held-out text takes {saved:.1f} % fewer tokens and, if a model wrote it, would {rate}"
    said += "." if packing.get("context") is None else (
        f"; a context of {packing['context']:,} tokens holds {packing['after']['context_characters']:,} "
        f"characters instead of {packing['base']['context_characters']:,}."
    )  # fmt: skip
    row = _row(summary, "after")
    if row is None:
        return said
    return f"{said} Bits per byte are {difference(row)}."


def difference(row: Mapping[str, Any]) -> str:
    """Spell a difference of bits per byte to the base with its interval.

    >>> difference({"difference": -0.01, "low": -0.04, "high": 0.02})
    "0.010 below the base's [-0.040, 0.020], which may be chance"
    """
    gap, low, high = row["difference"], row["low"], row["high"]
    said = f"{abs(gap):.3f} {'above' if gap > 0 else 'below'} the base's"
    if not math.isfinite(low) or not math.isfinite(high):
        return f"{said}, on too few texts for an interval"
    return f"{said} [{low:.3f}, {high:.3f}]" + ("" if low > 0 or high < 0 else ", which may be chance")


def headline(summary: Summary) -> list[list[str]]:
    """Return the rows of the first table: what is measured, and a cell for each of `COLUMNS`."""
    row, packing, speed = total(summary["tokens"]["gains"]), summary["packing"], summary["generation"]["speed"]
    saved = f"{row['tokens_after']:,} ({row['saved_per_1000'] / 10:.1f} % fewer)"
    rows = [
        ["tokens", f"{row['tokens_before']:,}", saved, saved],
        ["characters in a token", *_sides(packing, "characters_per_token", "{:.2f}")],
    ]
    if packing.get("context"):
        context = f"characters in a context of {packing['context']:,} tokens"
        rows.append([context, *_sides(packing, "context_characters", "{:,}")])
    found = [_row(summary, name) for name in ("base", "before", "after")]
    if all(found):
        rows.append(["bits per byte", *(f"{r['bits_per_byte']:.4f}" for r in found if r)])
        gaps = [f"{r['difference']:+.4f} [{r['low']:+.4f}, {r['high']:+.4f}]" for r in found[1:] if r]
        rows.append(["difference to the base, paired", "", *gaps])
    if "before" in summary["divergence"]:
        names = {"kl_last": "KL at the end of new tokens, nats", "kl_identical": "KL at other tokens, nats"}
        for kind, title in names.items():
            values = [summary["divergence"][side][kind] for side in ("before", "after")]
            rows.append([title, "0", *("–" if v is None else f"{v:.4f}" for v in values)])
    rows.append(["tokens a second, generated", *_sides(speed, "tokens_per_second", "{:.1f}")])
    rows.append(["characters a second, if it wrote held-out text", *_sides(speed, "characters_per_second", "{:.1f}")])
    rows.append(["characters a second, of its continuations", *_sides(speed, "own", "{:.1f}")])
    return rows


def facts(summary: Summary) -> dict[str, str]:
    """Return what the result was made from and with, by name."""
    found = {"model": f"{summary['model']}, weights {summary['fingerprint']}", "texts": summary["source"]}
    for part, sizes in summary["texts"].items():
        found[part.replace("_", "-")] = f"{sizes['files']} files, {sizes['bytes']:,} bytes"
    found |= {name: str(value) for name, value in summary["settings"].items()}
    found["device"] = f"{summary['device']}, {summary['dtype']}"
    found["seconds"] = ", ".join(f"{name} {value:.0f}" for name, value in summary["seconds"].items())
    found["memory at the peak"] = (
        f"{summary['peak_bytes'] / 1e9:.1f} GB (announced: {summary['announced_bytes'] / 1e9:.1f} GB)"
    )
    found["versions"] = ", ".join(f"{name} {version}" for name, version in summary["versions"].items())
    found["git"] = str(summary["git"])
    found["finished"] = summary["finished"]
    return found


def _row(summary: Summary, name: str) -> Mapping[str, Any] | None:
    return next((row for row in summary["likelihood"]["rows"] if row["model"] == name), None)


def _sides(values: Mapping[str, Any], name: str, form: str) -> list[str]:
    base, after = (form.format(values[side][name]) for side in ("base", "after"))
    return [base, "", after]
