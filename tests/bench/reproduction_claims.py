"""Verdicts of the reproduction: the six contrasts, the claims by their own rules, and the page.

Nothing is opened before contrasts.json is there. Claims use the rules of `vocabx_utils.claims`: those of phase 1 over
the settings of results/phase1 and this one (its seeds are averaged there), those of rows over new tokens, those of
fine-tuning and benchmarks over texts and problems. What is missing stays "not measured".
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from bench_parts import known_lines
from reproduction_contrasts import Outcomes, judge_contrasts, subset_of
from reproduction_described import describe
from reproduction_report import write_page
from reproduction_score import total_of, write_tables

from vocabx_utils import claims, files, measured
from vocabx_utils.claims.verdict import Verdict, unseen
from vocabx_utils.evaluation.scoring import Count

Rows = Sequence[Mapping[str, Any]]


def judge(options: argparse.Namespace) -> None:
    """Write RESULTS/verdict.json and RESULTS/described.json (see `reproduction_described`), and fill the page."""
    results = options.results
    if not (results / "contrasts.json").exists():
        raise SystemExit(
            "contrasts.json is missing: reproduction.py contrasts, and commit it, before results are opened"
        )
    write_tables(results)
    verdicts = [row for row in known_lines(results / "verdicts.jsonl") if row["arm"]]
    outcomes = Outcomes(known_lines(results / "bits.jsonl"), verdicts)
    content = files.read_json(results / "contrasts.json")
    found = judge_contrasts(content, outcomes, subset_of(results))
    told = [verdict.to_dict() for verdict in judge_claims(results, verdicts, options.stored)]
    files.write_json(results / "verdict.json", {"contrasts": found, "claims": told})
    described = describe(content, outcomes, known_lines(results / "observed.jsonl"), subset_of(results))
    files.write_json(results / "described.json", described)
    for name, row in found.items():
        print(name, row["bpb"], row["pass"])
    for row in told:
        print(f"{row['claim']}: {row['answer']}")
    write_page(results, options.docs)


def judge_claims(results: Path, verdicts: Rows, stored: Path) -> list[Verdict]:
    """Apply each claim's rule to what was measured here, beside what `stored` holds of phase 1."""
    metrics = known_lines(results / "metrics.jsonl")
    return sorted(
        [
            *_of_phase1(results, stored),
            *_of_rows(results),
            *_of_tuning(results),
            *_of_answers(results, metrics, verdicts),
        ],
        key=lambda verdict: int(verdict.claim[1:]),
    )


def _of_phase1(results: Path, stored: Path) -> list[Verdict]:
    settings = _seeded(results)
    older = measured.read_bench(stored / "phase1") if settings else []
    settings |= {title: rows for title, rows in measured.by_setting(older).items() if "N =" not in title}
    curves = {title: {name: row["curve"] for name, row in found.items()} for title, found in settings.items()}
    last = {title: {name: [row] for name, row in found.items()} for title, found in settings.items()}
    own = measured.read_bench(results / "phase1" / "s0")
    sweeps = measured.sweep(own) | measured.sweep(older) if own else {}
    judged = (claims.judge_c1, claims.judge_c2, claims.judge_c3)
    return [*(rule(curves) for rule in judged), claims.judge_c7(last), claims.judge_c12(sweeps), claims.judge_c17(last)]


def _seeded(results: Path) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Settings of this run, one a seed: the rules average what shares model and corpus."""
    found = {}
    for folder in sorted((results / "phase1").glob("s*")):
        for title, variants in measured.by_setting(measured.read_bench(folder)).items():
            if "N =" not in title:
                found[f"{title}, seed {folder.name[1:]}"] = dict(variants)
    return found


def _of_rows(results: Path) -> list[Verdict]:
    rows = [row for row in known_lines(results / "causal.jsonl") if row["seed"] == 0]
    ends = {row["variant"]: (row["cosines"]["start"], row["cosines"]["end"]) for row in rows}
    sums = {row["variant"]: tuple(np.array(row["sums"][at]) for at in ("start", "few", "end")) for row in rows}
    verdicts = [claims.judge_c4(ends, "tokens"), claims.judge_c5(ends)]
    return [*verdicts, claims.judge_c6(sums, "texts")]  # type: ignore[arg-type]


def _of_tuning(results: Path) -> list[Verdict]:
    found = {row["arm"]: row for row in known_lines(results / "observed.jsonl") if row["seed"] == 0}
    names = dict(tuned="mean_kl_last_a_lora", without_a="mean_kl_last_lora", full="mean_kl_last_a_full")
    return list(claims.judge_tuned(found, **names))


def _of_answers(results: Path, metrics: Rows, verdicts: Rows) -> list[Verdict]:
    first = [row for row in verdicts if row["seed"] == 0]
    passes: dict[str, dict[str, Count]] = {}
    for row in first:
        n, passed = len(row["ids"]), len(row["passed_ids"])
        name = _tuned_name(row["arm"])
        count = Count(row["benchmark"], passed, n, total_of(row["benchmark"]), passed)
        passes.setdefault(name, {})[row["benchmark"]] = count
    rates, losses = _over_all(first), _all_bpb(metrics)
    kinds: dict[str, list[str]] = {}
    for row in first:
        counted = [kind for kind, n in row["failures"].items() for _ in range(n)]
        kinds.setdefault(row["arm"], []).extend([*counted, *[""] * len(row["passed_ids"])])
    about = files.read_json(results / "data.json")["extensions"]
    density = about[files.read_json(results / "contrasts.json")["extension"]]["density"]
    counts = {name: [(int(a), int(b)) for a, b in rows] for name, rows in density.items()}
    return [
        claims.judge_c10(passes), claims.judge_c11(losses, rates), claims.judge_c14(passes), claims.judge_c15(counts),
        claims.judge_c16(kinds) if kinds else unseen("C16", "answers"), unseen("C13", "steps with two forward passes"),
    ]  # fmt: skip


def _tuned_name(arm: str) -> str:
    """The name by which the rules know an arm: `tuned_mean_ce` after a and LoRA."""
    return f"tuned_{arm.removesuffix('_a_lora')}" if arm.endswith("_a_lora") else arm


def _over_all(verdicts: Rows) -> dict[str, float]:
    """Pass rate over all benchmarks, of arms that answered as many as any."""
    found: dict[str, list[tuple[int, int]]] = {}
    for row in verdicts:
        found.setdefault(row["arm"], []).append((len(row["passed_ids"]), len(row["ids"])))
    most = max(map(len, found.values()), default=0)
    return {arm: sum(k for k, _ in c) / sum(n for _, n in c) for arm, c in found.items() if len(c) == most}


def _all_bpb(metrics: Rows) -> dict[str, float]:
    return {row["arm"]: float(np.mean(list(row["bpb"].values()))) for row in metrics if row["seed"] == 0}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Options of `judge`."""
    command.add_argument("--docs", type=Path, default=Path("docs"))
    command.add_argument("--stored", type=Path, default=Path("results"), help="folder with phase1/, of other settings")
