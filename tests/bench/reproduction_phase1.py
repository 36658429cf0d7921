"""Claims about phase 1 on the data of the reproduction: the grid of `anchors.py`, and a causal test of rows.

`phase1` measures variants seed by seed into RESULTS/phase1/s<seed>/, one line each, in the form of results/phase1:
metrics and cosines by epoch, objectives x starts with three seeds, then with one seed temperature x lambda, N at 100,
400 and 1,600 (each token trained four times or more) beside 800, and the thesis's schedule.

`causal` takes the rows of `run` (or trains them), puts back what training changed except for k coordinates, and
measures KL again: k of 1, 3, 10, 30 and of 10, 25 and 50 % of D. With it go the cosines of every row to its subtokens
before and after, for C4 and C5. One line a variant and seed in RESULTS/causal.jsonl.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import anchors
import numpy as np
import torch
from bench_parts import facts, free, known_lines, seconds_left, while_time_lasts
from reproduction_arms import parse_arm, row_settings
from reproduction_data import unpack
from reproduction_run import Bench

from vocabx_utils import files
from vocabx_utils.analysis.divergence import KLMeter, PairedText, windows
from vocabx_utils.analysis.mechanisms import causal_sweep, row_statistics
from vocabx_utils.analysis.similarity import cosine
from vocabx_utils.claims.rows import FEW
from vocabx_utils.measured import read_bench
from vocabx_utils.training.objectives import parse_variant
from vocabx_utils.training.phase1 import new_student
from vocabx_utils.vocabulary.alignment import align_texts

SEEDED = (
    "mean_untrained", "mean_ce", "mean_kl_last", "mean_kl_first", "random_untrained", "random_ce", "random_kl_last",
    "random_kl_first",
)  # fmt: skip
ONCE = (
    "mean_kl_last_ce0.3_t2", "mean_kl_last_t2", "mean_kl_last_ce0.3",
    *(f"mean_{objective}@n{n}" for n in (1600, 400, 100) for objective in ("untrained", "kl_last")),
    "mean_kl_first@thesis", "mean_ce@thesis", "random_kl_first@thesis", "random_ce@thesis",
)  # fmt: skip
CAUSAL = ("mean_kl_last", "random_kl_first", "random_ce", "mean_ce", "mean_kl_first", "random_kl_last")
_STATISTICS = ("norm_start", "norm_end", "norm_change", "cosine", "participation")
COUNTS, SHARES = (1, 3, 10, 30), (0.1, 0.25, 0.5)


def phase1(options: argparse.Namespace) -> None:
    """Measure what is not there yet: seed 0 of the grid, what is measured once, then the other seeds."""
    unpack(options.data)
    first, *others = options.seeds
    plan = [(first, [*options.variants, *options.once])] + [(seed, list(options.variants)) for seed in others]
    for seed, variants in plan:
        left = seconds_left(options.started, options.minutes) / 60
        if left < 1:
            print(f"seed {seed} and what follows is left out: no time", flush=True)
            return
        out = options.results / "phase1" / f"s{seed}"
        known = {row["name"] for row in read_bench(out)}
        if not set(variants) - known:
            continue
        given: dict[str, Any] = {
            "--model": options.model, "--label": options.label, "--data": options.data / "packages.jsonl.gz",
            "--out": out,
            "--strategy": "merges", "--n": options.n, "--seed": seed, "--minutes": left, "--train": options.pairs or 0,
            "--validation": min(1000, options.pairs or 1000), "--curve": min(200, options.pairs or 200),
            "--epochs": options.epochs, "--token-budget": options.batch_tokens,
            "--thesis-epochs": options.thesis_epochs[0], "--thesis-restart": options.thesis_epochs[1],
        }  # fmt: skip
        words = [str(part) for pair in given.items() for part in pair]
        anchors.main([*words, "--variants", *variants, "--save-rows"])
        free()


def causal(options: argparse.Namespace) -> None:
    """Test the rows of each variant and seed that is not there yet."""
    path = options.results / "causal.jsonl"
    done = {(row["variant"], row["seed"]) for row in known_lines(path)}
    left = [(name, seed) for seed in options.seeds for name in options.variants if (name, seed) not in done]
    if not left:
        return
    options.results.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    extension = bench.extension(bench.settings.extension)
    rendered = bench.data.render("validation", "pairs", bench.base.tokenizer, options.pairs)
    texts = align_texts(extension, [text.text for text in rendered])
    paired = (PairedText(tuple(a.original_ids), tuple(a.extended_ids), a.boundaries) for a in texts)
    cut = [w for text in paired for w in windows(text, extension.V, before=64, after=64, limit=1)][: options.windows]
    meter = KLMeter(bench.base, cut, extension.V, batch_size=32)
    told = "{}, seed {}, and what follows is left out"
    for name, seed in while_time_lasts(left, options, 1.2, lambda _, item: told.format(*item)):
        began = time.perf_counter()
        files.append_jsonl(path, _tested(bench, meter, name, seed) | facts())
        print(f"{name}, seed {seed}: {time.perf_counter() - began:.0f} s", flush=True)


def _tested(bench: Bench, meter: KLMeter, name: str, seed: int) -> dict[str, Any]:
    extension = bench.extension(bench.settings.extension)
    rows, variant = bench.rows(parse_arm(name), seed)
    _, config = row_settings(name, bench.settings, seed, 0)
    start = new_student(parse_variant(variant), bench.base, extension.tokens, config).input_rows.detach().cpu().float()
    end, width = rows["input"].float(), rows["input"].shape[1]
    few = round(FEW * width)
    ks = sorted({*(k for k in COUNTS if k < width), *(round(share * width) for share in SHARES)})
    device = bench.base.device
    found = causal_sweep(meter, start.to(device), end.to(device), ks, keeps=("top", "random"))
    sums = {
        key: [round(float(v), 4) for v in part]
        for key, part in zip(("start", "few", "end"), found.ends(few), strict=True)
    }
    statistics = row_statistics(start, end)
    return {
        "variant": name, "seed": seed, "width": width, "texts": len(meter.texts), **found.facts(),
        "table": found.table.round(5).to_dict("records"), "sums": sums,
        "cosines": {"start": cosines(bench, start), "end": cosines(bench, end)},
        "rows": {key: float(statistics[key].mean()) for key in _STATISTICS},
    }  # fmt: skip


def cosines(bench: Bench, rows: torch.Tensor) -> dict[str, list[float]]:
    """Cosine of each input row to the first and the last subtoken of its token."""
    tokens, table = bench.extension(bench.settings.extension).tokens, bench.base.input_rows
    found = {}
    for place, at in (("first", 0), ("last", -1)):
        old = table[[token.subtokens[at] for token in tokens]].float().cpu()
        found[place] = [round(float(value), 5) for value in np.asarray(cosine(rows.cpu(), old))]
    return found


def add_arguments(command: argparse.ArgumentParser, name: str) -> None:
    """Options of `phase1` and of `causal`, beside those of `run`."""
    command.add_argument("--variants", nargs="*", default=list(SEEDED if name == "phase1" else CAUSAL))
    command.set_defaults(seeds=[0, 1, 2] if name == "phase1" else [0])
    if name == "causal":
        command.add_argument("--windows", type=int, default=200, help="texts that KL is measured on")
        return
    command.add_argument("--once", nargs="*", default=list(ONCE), help="variants that only the first seed gets")
    command.add_argument("--n", type=int, default=800, help="new tokens where a variant names no other number")
    command.add_argument("--epochs", type=int, default=4)
    command.add_argument("--thesis-epochs", type=int, nargs=2, default=[8, 4], help="of both cycles")
