"""The page of the reproduction, docs/reproduction.md, filled from files; "not measured" where nothing is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_parts import fill_page, table_of
from reproduction_run import BENCHMARKS
from reproduction_run import known_lines as lines
from reproduction_score import pilot_rates, pilot_table

from vocabx_utils import files

NOTHING = "not measured"
_ORDER = ("base", "base_lora", "base_a_lora")


def write_page(results: Path, docs: Path) -> None:
    """Fill every part from what is there."""
    verdict = _read(results / "verdict.json")
    parts = {
        "data": data_table(_read(results / "data.json")), "pilot": pilot_part(results), "arms": arms_table(results),
        "contrasts": contrasts_table(verdict.get("contrasts", {})),
        "subset": subset_table(verdict.get("contrasts", {})),
        "detectable": detectable(_read(results / "contrasts.json")), "forgetting": forgetting(results),
        "causal": causal_table(lines(results / "causal.jsonl")),
        "shape": shape_table(_read(results / "thesis-shape.json")),
        "claims": claims_table(verdict.get("claims", [])), "minutes": minutes(results),
    }  # fmt: skip
    fill_page(docs / "reproduction.md", {name: part or NOTHING for name, part in parts.items()})


def _read(path: Path) -> dict[str, Any]:
    return files.read_json(path) if path.exists() else {}


def data_table(about: Mapping[str, Any]) -> str:
    """Counts of splits and extensions."""
    if not about:
        return ""
    splits = [
        [name, str(row["pairs"]), str(row["dropped"]), ", ".join(f"{p} {n}" for p, n in row["packages"].items())]
        for name, row in about["splits"].items()
    ]
    made = []
    for name, row in about["extensions"].items():
        held = row["problems with a new token"]
        shown = ", ".join(f"{b} {held[b]} of {row['kept'][b]}" for b in held)
        made.append([name, str(row["tokens"]), str(row["trained 4 times"]), str(row["untrained"]), shown])
    first = table_of(["split", "pairs", "left out: they touch a problem", "packages"], splits)
    return (
        first + "\n\n" + table_of(["extension", "tokens", "trained 4 times", "never", "kept problems with one"], made)
    )


def pilot_part(results: Path) -> str:
    """Settings of LoRA that were tried."""
    table = pilot_table(lines(results / "pilot.jsonl"), pilot_rates(lines(results / "verdicts.jsonl")))
    names = [b for b in BENCHMARKS if any(b in row for row in table)]
    rows = [
        [
            f"`{row['setting']}`",
            f"{row['held_out_bpb']:.4f}",
            *(_share(row.get(b)) for b in names),
            "yes" if row["fits"] else "no",
        ]
        for row in table
    ]
    return table_of(["setting", "bits per byte held out", *names, "loses at most 3 points"], rows) if rows else ""


def arms_table(results: Path) -> str:
    """Mean over seeds of every arm: bits per byte and pass@1 by benchmark."""
    metrics, answers = lines(results / "metrics.jsonl"), lines(results / "answers.jsonl")
    passed: dict[tuple[str, str], list[float]] = {}
    for row in lines(results / "verdicts.jsonl"):
        if row["arm"]:
            passed.setdefault((row["arm"], row["benchmark"]), []).append(
                len(row["passed_ids"]) / max(1, len(row["ids"]))
            )
    names = sorted({row["arm"] for row in metrics}, key=lambda n: (_ORDER.index(n) if n in _ORDER else 9, n))
    rows = []
    for name in names:
        own = [row for row in metrics if row["arm"] == name]
        speed = [row["characters_per_s"] for row in answers if row["arm"] == name]
        length = [row["tokens_per_answer"] for row in answers if row["arm"] == name]
        rates = [passed.get((name, b), []) for b in BENCHMARKS]
        rows.append([
            f"`{name}`", str(len(own)),
            *(_mean([row["bpb"][b] for row in own if b in row["bpb"]], "{:.4f}") for b in BENCHMARKS),
            *(_mean([100 * rate for rate in some], "{:.1f}") for some in rates),
            _mean([row["held_out_bpb"] for row in own], "{:.4f}"), _mean(speed, "{:.0f}"), _mean(length, "{:.0f}"),
        ])  # fmt: skip
    header = ["arm", "seeds", *(f"bpb {b}" for b in BENCHMARKS), *(f"% {b}" for b in BENCHMARKS)]
    return table_of([*header, "bpb held out", "characters/s", "tokens an answer"], rows) if rows else ""


def contrasts_table(found: Mapping[str, Any]) -> str:
    """The six contrasts on both outcomes."""
    rows = [
        [name, f"`{row['first']}` - `{row['second']}`", *_told(row["bpb"], 1, 4), *_told(row["pass"], 100, 2)]
        for name, row in found.items()
    ]
    header = ["contrast", "arms", "bits per byte", "p (Holm)", "points of pass@1", "p (Holm)"]
    return table_of(header, rows) if rows else ""


def subset_table(found: Mapping[str, Any]) -> str:
    """The same on problems that hold a new token, and the tests of the thesis seed by seed."""
    rows = []
    for name, row in found.items():
        seeds = [
            f"{r['first']} - {r['second']} of {r['n']}: {r['p_z']:.2f}, {r['p_mcnemar']:.2f}" for r in row["by seed"]
        ]
        bits, rate = row["bpb, new tokens"], row["pass, new tokens"]
        held = str(bits["problems"]) if bits else NOTHING
        rows.append([name, held, _told(bits, 1, 4)[0], _told(rate, 100, 2)[0], "; ".join(seeds) or NOTHING])
    header = [
        "contrast",
        "problems with a new token",
        "bits per byte there",
        "points there",
        "passed by seed: p of z, McNemar",
    ]
    return table_of(header, rows) if rows else ""


def detectable(content: Mapping[str, Any]) -> str:
    """What the contrasts can find."""
    rows = []
    for row in content.get("detectable", []):
        case = f"{row['discordant']:.0%} of answers differ between seeds" if row["outcome"] == "pass@1" else (
            f"deviation {row['sd_problems']:g} over problems, {row['sd_seeds']:g} over seeds"
        )  # fmt: skip
        found = "none of the grid" if row["smallest"] is None else f"{row['smallest']:g}"
        rows.append([row["outcome"], case, str(row["seeds"]), str(row["problems"]), found])
    return table_of(["outcome", "if", "seeds", "problems", "smallest difference found with 80 %"], rows) if rows else ""


def forgetting(results: Path) -> str:
    """Bits per byte elsewhere, mean over seeds."""
    by_arm: dict[str, list[Mapping[str, float]]] = {}
    for row in lines(results / "metrics.jsonl"):
        by_arm.setdefault(row["arm"], []).append(row["bits_per_byte"])
    names = list(next(iter(by_arm.values()))[0]) if by_arm else []
    rows = [
        [f"`{arm}`", *(_mean([s[name] for s in some], "{:.4f}") for name in names)]
        for arm, some in sorted(by_arm.items())
    ]
    return table_of(["arm", *names], rows) if rows else ""


def causal_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Share of the gain in KL that k coordinates keep, mean over seeds."""
    ks = sorted({row["k"] for line in found for row in line["table"]})
    rows = []
    for name in sorted({line["variant"] for line in found}):
        own = [line for line in found if line["variant"] == name]
        for keep in ("top", "random"):
            shares = [
                [r["recovered"] for line in own for r in line["table"] if r["k"] == k and r["keep"] == keep] for k in ks
            ]
            rows.append(
                [f"`{name}`", keep, str(len(own)), *(_mean([100 * s for s in some], "{:.0f} %") for some in shares)]
            )
    width = found[0]["width"] if found else 0
    return table_of(["rows", "kept", "seeds", *(f"{k} of {width}" for k in ks)], rows) if rows else ""


def shape_table(content: Mapping[str, Any]) -> str:
    """Memory and hours at the thesis's shape."""
    rows = []
    for part, row in content.get("parts", {}).items():
        if "error" in row:
            rows.append([part, row["error"], "", "", "", "", ""])
            continue
        hours = [f"{row[key]:.2f}" for key in ("hours_one_card", "hours_eight_cards")]
        fits = ["yes" if row[key] else "no" for key in ("fits_46_gb", "fits_80_gb")]
        rows.append([part, f"{row['tokens_per_s']:,.0f}", f"{row['peak_gb']:.1f}", *fits, *hours])
    header = ["part", "tokens a second", "peak GB", "46 GB", "80 GB", "hours, one card", "hours, eight"]
    return table_of(header, rows) if rows else ""


def claims_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Verdicts."""
    return (
        table_of(["claim", "verdict", "what we see"], [[r["claim"], r["answer"], r["reason"]] for r in found])
        if found
        else ""
    )


def minutes(results: Path) -> str:
    """Minutes of the card by part."""
    seconds = {
        "pilot": [row["seconds"] for row in lines(results / "pilot.jsonl")],
        "rows": [row["seconds"] for row in lines(results / "rows.jsonl")],
        "tuning and likelihood": [row["seconds"] for row in lines(results / "metrics.jsonl")],
        "answers": [row["seconds"] for row in lines(results / "answers.jsonl")],
    }  # fmt: skip
    rows = [[name, str(len(some)), f"{sum(some) / 60:.1f}"] for name, some in seconds.items() if some]
    return table_of(["part", "readings", "minutes"], rows) if rows else ""


def _told(row: Mapping[str, Any] | None, scale: float, digits: int) -> list[str]:
    if row is None:
        return [NOTHING, NOTHING]
    limits = ", ".join("∞" if row[k] is None else f"{scale * row[k]:+.{digits}f}" for k in ("low", "high"))
    p = f"{row['p_holm']:.3f}" if "p_holm" in row else ""
    return [f"{scale * row['estimate']:+.{digits}f} [{limits}], {len(row['seeds'])} seeds", p]


def _mean(values: Sequence[float], form: str) -> str:
    return form.format(float(np.mean(values))) if values else NOTHING


def _share(values: Sequence[float] | None) -> str:
    return f"{values[0]:.1%} [{values[1]:.1%}, {values[2]:.1%}]" if values else NOTHING
