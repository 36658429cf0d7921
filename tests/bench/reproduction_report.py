"""The page of the reproduction, docs/reproduction.md, filled from files; "not measured" where nothing is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from bench_parts import NOTHING, fill_page, known_json, known_lines, table_of, told_interval
from reproduction_arms import CORE
from reproduction_described import NEW, OTHERS, bits_over_all, difference_rows, draw_differences, told, told_limits
from reproduction_run import BENCHMARKS
from reproduction_score import pilot_rates, pilot_table
from reproduction_seen import empty_answers, seen

from vocabx_utils.evaluation.failures import FAILURE_CLASSES
from vocabx_utils.figures.theme import save_figure
from vocabx_utils.intervals import word_of
from vocabx_utils.statistics import wilson_interval

_ORDER = ("base", "base_lora", "base_a_lora")


def write_page(results: Path, docs: Path) -> None:
    """Fill every part from what is there, and draw the differences of one seed."""
    verdict, described = known_json(results / "verdict.json"), known_json(results / "described.json")
    contrasts = verdict.get("contrasts", {})
    parts = {
        "status": status(results), "data": data_table(known_json(results / "data.json")), "pilot": pilot_part(results),
        "arms": arms_table(results), "passed": passed_table(results), "lengths": lengths_table(results),
        "failures": failures_part(results), "empty": empty_answers(results, results.parent / "bench" / "answers.json"),
        "contrasts": contrasts_table(contrasts),
        "bits": differences_part(described, "bpb"), "points": differences_part(described, "pass"),
        "subset": subset_table(contrasts, described), "seen": seen(results, described),
        "figure": _figure(described, docs),
        "detectable": detectable(known_json(results / "contrasts.json")), "forgetting": forgetting(results, described),
        "causal": causal_table(known_lines(results / "causal.jsonl")),
        "shape": shape_table(known_json(results / "thesis-shape.json")),
        "claims": claims_table(verdict.get("claims", [])), "minutes": minutes(results),
    }  # fmt: skip
    fill_page(docs / "reproduction.md", {name: part or NOTHING for name, part in parts.items()})


def _figure(described: Mapping[str, Any], docs: Path) -> str:
    if not any(row["named"] for row in described.get("pairs", {}).values()):
        return ""
    drawing = draw_differences(described)
    save_figure(drawing.figure, "reproduction", drawing.alt, docs / "figures")
    plt.close(drawing.figure)
    return f"![{drawing.alt}](figures/reproduction.svg)"


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
    table = pilot_table(known_lines(results / "pilot.jsonl"), pilot_rates(known_lines(results / "verdicts.jsonl")))
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


def status(results: Path) -> str:
    """Say which arms and seeds of the core are there, which are missing, and whether a contrast is decided."""
    content, seen = known_json(results / "contrasts.json"), known_lines(results / "metrics.jsonl")
    if not content or not seen:
        return ""
    wanted = range(content["seeds"])
    have = {arm: sorted({row["seed"] for row in seen if row["arm"] == arm} & set(wanted)) for arm in ("base", *CORE)}
    lacking: dict[str, list[str]] = {}
    for arm, seeds in have.items():
        left = [] if arm == "base" and seeds else [str(seed) for seed in wanted if seed not in seeds]
        if left:
            lacking.setdefault(", ".join(left), []).append(f"`{arm}`")
    there = sorted({seed for seeds in have.values() for seed in seeds})
    arms = f"{sum(map(bool, have.values()))} of {len(have)} arms"
    read = f"Measured: {_seeds(map(str, there))} of {len(wanted)} seeds, {arms}."
    missing = "; ".join(f"{_seeds(left.split(', '))} of {', '.join(names)}" for left, names in lacking.items())
    found = known_json(results / "verdict.json").get("contrasts", {})
    decided = [name for name, row in found.items() if row["bpb"] and row["bpb"]["decided"]]
    verdict = f"Decided: {', '.join(decided)}." if decided else "**None of the contrasts is decided.**"
    return f"{read} {f'Missing: {missing}. ' if missing else ''}{verdict}"


def _seeds(names: Iterable[str]) -> str:
    """`seed 0`, `seeds 1 and 2`."""
    *first, last = names
    return f"seeds {', '.join(first)} and {last}" if first else f"seed {last}"


def arms_table(results: Path) -> str:
    """Mean over seeds of every arm: bits per byte by benchmark, of all their bytes together, and held out."""
    metrics = known_lines(results / "metrics.jsonl")
    lines = known_lines(results / "bits.jsonl")
    over_all = {(row["arm"], row["seed"]): bits_over_all(row["benchmarks"]) for row in lines}
    rows = []
    for name in _names(metrics):
        own = [row for row in metrics if row["arm"] == name]
        bits = [_mean([row["bpb"][b] for row in own if b in row["bpb"]], "{:.4f}") for b in BENCHMARKS]
        bits.append(_mean([value for (arm, _), value in over_all.items() if arm == name], "{:.4f}"))
        rows.append([f"`{name}`", str(len(own)), *bits, _mean([row["held_out_bpb"] for row in own], "{:.4f}")])
    return table_of(["arm", "seeds", *BENCHMARKS, "all", "pairs held out"], rows) if rows else ""


def _names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Arms, those without new tokens first."""
    return sorted({row["arm"] for row in rows}, key=lambda n: (_ORDER.index(n) if n in _ORDER else 9, n))


def passed_table(results: Path) -> str:
    """Pass@1 of every arm: the mean over its seeds, with Wilson's interval where it has one."""
    verdicts = [row for row in known_lines(results / "verdicts.jsonl") if row["arm"]]
    rows = []
    for name in _names(verdicts):
        cells = []
        for wanted in (*((b,) for b in BENCHMARKS), BENCHMARKS):
            own = [row for row in verdicts if row["arm"] == name and row["benchmark"] in wanted]
            seeds = {row["seed"] for row in own}
            complete = len(own) == len(seeds) * len(wanted)
            counts = sum(len(row["passed_ids"]) for row in own), sum(len(row["ids"]) for row in own)
            cells.append(_rate(*counts, len(seeds)) if own and complete else NOTHING)
        rows.append([f"`{name}`", *cells])
    return table_of(["arm", *BENCHMARKS, "all"], rows) if rows else ""


def _rate(passed: int, answered: int, seeds: int) -> str:
    if seeds > 1:
        return f"{passed / answered:.1%}"
    found = wilson_interval(passed, answered)
    return f"{_share([found.estimate, found.low, found.high])}, {passed}"


def lengths_table(results: Path) -> str:
    """How long answers are: tokens by benchmark, those cut off, and characters that a token holds.

    How fast they came is told where the card was an arm's alone.
    """
    answers = known_lines(results / "answers.jsonl")
    rows = []
    for name in _names(answers):
        own = [row for row in answers if row["arm"] == name]
        by = {b: [row["tokens_per_answer"] for row in own if row["benchmark"] == b] for b in BENCHMARKS}
        total = {key: sum(row[key] for row in own) for key in ("answers", "tokens", "characters", "cut_off")}
        rows.append([
            f"`{name}`", *(_mean(by[b], "{:.0f}") for b in BENCHMARKS), f"{total['cut_off'] / total['answers']:.1%}",
            f"{total['characters'] / total['tokens']:.3f}", _speed(own),
        ])  # fmt: skip
    header = ["arm", *(f"tokens, {b}" for b in BENCHMARKS), "cut off", "characters a token", "characters a second"]
    return table_of(header, rows) if rows else ""


def _speed(answers: Sequence[Mapping[str, Any]]) -> str:
    alone = [row for row in answers if row.get("processes", 1) == 1]
    if not alone:
        return "shared card"
    return f"{sum(row['characters'] for row in alone) / sum(row['seconds'] for row in alone):,.0f}"


def failures_part(results: Path) -> str:
    """Share of all answers in each class of failures, with Wilson's interval where an arm has one seed."""
    verdicts = [row for row in known_lines(results / "verdicts.jsonl") if row["arm"]]
    kinds = [kind for kind in FAILURE_CLASSES if any(kind in row["failures"] for row in verdicts)]
    rows = []
    for name in _names(verdicts):
        own = [row for row in verdicts if row["arm"] == name]
        answered, seeds = sum(len(row["ids"]) for row in own), len({row["seed"] for row in own})
        counts = [sum(row["failures"].get(kind, 0) for row in own) for kind in kinds]
        rows.append([f"`{name}`", str(answered), *(_rate(count, answered, seeds) for count in counts)])
    return table_of(["arm", "answers", *kinds], rows) if rows else ""


def differences_part(found: Mapping[str, Any], outcome: str) -> str:
    """Differences between arms of one seed."""
    rows = difference_rows(found, outcome)
    return table_of(["difference", "arms", "all", *BENCHMARKS], rows) if rows else ""


def contrasts_table(found: Mapping[str, Any]) -> str:
    """The six contrasts on both outcomes."""
    rows = [
        [name, f"`{row['first']}` - `{row['second']}`", *_told(row["bpb"], 1, 4), *_told(row["pass"], 100, 2)]
        for name, row in found.items()
    ]
    header = ["contrast", "arms", "bits per byte", "p (Holm)", "points of pass@1", "p (Holm)"]
    return table_of(header, rows) if rows else ""


def subset_table(found: Mapping[str, Any], described: Mapping[str, Any]) -> str:
    """The same on problems that hold a new token and on the others, and the tests of the thesis seed by seed."""
    rows = []
    for name, row in found.items():
        seeds = [
            f"{r['first']} - {r['second']} of {r['n']}: {r['p_z']:.3f}, {r['p_mcnemar']:.3f}" for r in row["by seed"]
        ]
        pair = described.get("pairs", {}).get(name, {})
        cells = [told(pair.get(key, {}).get(scope), key) for key in ("bpb", "pass") for scope in (NEW, OTHERS)]
        bits = row["bpb, new tokens"]
        rows.append([name, str(bits["problems"]) if bits else NOTHING, *cells, "; ".join(seeds) or NOTHING])
    header = ["contrast", "problems with a new token", "bits per byte there", "elsewhere", "points there", "elsewhere"]
    return table_of([*header, "passed by seed: p of z, McNemar"], rows) if rows else ""


def detectable(content: Mapping[str, Any]) -> str:
    """What the contrasts can find, in points of pass@1 and in bits per byte."""
    rows = []
    for row in content.get("detectable", []):
        case = f"{row['discordant']:.0%} of answers differ between seeds" if row["outcome"] == "pass@1" else (
            f"deviation {row['sd_problems']:g} over problems, {row['sd_seeds']:g} over seeds"
        )  # fmt: skip
        scale, unit = (100, "points") if row["outcome"] == "pass@1" else (1, "bits")
        found = "none of the grid" if row["smallest"] is None else f"{scale * row['smallest']:g} {unit}"
        rows.append([row["outcome"], case, str(row["seeds"]), str(row["problems"]), found])
    header = ["outcome", "if", "seeds", "problems", "smallest difference found in 80 % of cases"]
    return table_of(header, rows) if rows else ""


def forgetting(results: Path, described: Mapping[str, Any]) -> str:
    """Bits per byte elsewhere, mean over seeds, and of the seed that is described the change to the base model."""
    by_arm: dict[str, list[Mapping[str, float]]] = {}
    metrics = known_lines(results / "metrics.jsonl")
    for row in metrics:
        by_arm.setdefault(row["arm"], []).append(row["bits_per_byte"])
    names = list(next(iter(by_arm.values()))[0]) if by_arm else []
    rows = []
    for arm in _names(metrics):
        changes = described.get("elsewhere", {}).get(arm, {})
        cells = [
            _mean([seed[name] for seed in by_arm[arm]], "{:.4f}")
            + (f", {told(changes[name], 'bpb')}" if name in changes else "")
            for name in names
        ]
        rows.append([f"`{arm}`", *cells])
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
    """Verdicts, in the words of every other table: a rule that found nothing to judge says `not measured`."""
    rows = [[row["claim"], word_of(row["answer"], row["reason"]), row["reason"]] for row in found]
    return table_of(["claim", "verdict", "what we see"], rows) if rows else ""


def minutes(results: Path) -> str:
    """Minutes of the card by part; of a card that is shared, each process has its part."""
    parts = {"pilot": "pilot", "rows": "rows", "tuning and likelihood": "metrics", "answers": "answers"}
    rows = []
    for name, file in parts.items():
        if found := known_lines(results / f"{file}.jsonl"):
            seconds = sum(row["seconds"] / row.get("processes", 1) for row in found)
            rows.append([name, str(len(found)), f"{seconds / 60:.1f}"])
    return table_of(["part", "readings", "minutes"], rows) if rows else ""


def _told(row: Mapping[str, Any] | None, scale: float, digits: int) -> list[str]:
    """An outcome of a contrast and its p; limits and p only where all its seeds and problems are there."""
    if row is None:
        return [NOTHING, NOTHING]
    seeds = f"{len(row['seeds'])} seed{'s' if len(row['seeds']) > 1 else ''}"
    if not row["decided"]:
        return [f"{scale * row['estimate']:+.{digits}f}, {seeds}", "not decided"]
    return [f"{told_limits(row, scale, digits)}, {seeds}", f"{row['p_holm']:.3f}"]


def _mean(values: Sequence[float], form: str) -> str:
    return form.format(float(np.mean(values))) if values else NOTHING


def _share(values: Sequence[float] | None) -> str:
    return told_interval(values, ".1%") if values else NOTHING
