"""How often the rules of the claims C10 to C16 decide, and decide wrongly, on simulated results of a known truth.

    python tests/bench/claim_rates.py [--out results/bench/claim_rates.json] [--docs docs/evaluation.md]

Each row is one rule, one truth and one size: the shares of "confirmed", "not confirmed" and "cannot tell" over repeated
samples of a fixed seed, and the share that is wrong. Right beside the border between the two answers one of them is
wrong, depending on the side, so there the larger share counts.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_parts import fill_page, table_of

from vocabx_utils import claims, files
from vocabx_utils.claims.losses import HALF
from vocabx_utils.evaluation.scoring import Count

DRAWS = 1000
MOST = 0.05
TRUE, FALSE, BORDER = ("not confirmed",), ("confirmed",), ("confirmed", "not confirmed")
"""Wrong answers where the claim is true, false, or at the border between both."""
Rule = Callable[[np.random.Generator], str]


@dataclass(frozen=True)
class Case:
    """A rule on samples of one truth and size."""

    claim: str
    truth: str
    n: int
    wrong: tuple[str, ...]
    rule: Rule

    def rates(self, draws: int = DRAWS, seed: int = 0) -> dict[str, Any]:
        """Shares of the three answers over repeated samples."""
        rng = np.random.default_rng(seed)
        found = Counter(self.rule(rng) for _ in range(draws))
        shares = {answer: found[answer] / draws for answer in ("confirmed", "not confirmed", "cannot tell")}
        wrong = max(shares[answer] for answer in self.wrong)
        return {"claim": self.claim, "truth": self.truth, "n": self.n, **shares, "wrong": wrong}


def cases() -> Iterator[Case]:
    """Every rule under both truths, and at the border between them."""
    for n in (6, 300):
        for effect, wrong in ((0.25, TRUE), (0.0, BORDER), (-0.25, FALSE)):
            yield Case("C10", f"interaction {100 * effect:+.0f} points", n, wrong, _interaction(effect, n))
    for n in (5, 9):
        for rho, wrong in ((0.0, TRUE), (-0.5, BORDER), (-0.8, FALSE)):
            yield Case("C11", f"rank correlation {rho:+.1f}", n, wrong, _proxy(rho, n))
    for n in (4, 6):
        for slope, wrong in ((-0.1, TRUE), (0.0, BORDER), (0.1, FALSE)):
            yield Case("C12", f"slope {slope:+.1f} of KL removed over log share", n, wrong, _sizes(slope, n))
    for n in (3, 6):
        for ratio, wrong in ((0.5, TRUE), (HALF, BORDER), (0.75, FALSE)):
            yield Case("C13", f"{ratio:.0%} of the time", n, wrong, _steps(ratio, n))
    for n in (6, 300):
        for (short, long), wrong in (((0.2, 0.2), TRUE), ((0.0, 0.2), BORDER), ((-0.2, 0.2), FALSE)):
            truth = f"DS-1000 {100 * short:+.0f}, BigCodeBench {100 * long:+.0f} points"
            yield Case("C14", truth, n, wrong, _halves(short, long, n))
    for n in (20, 150):
        for densities, wrong in (((8, 4, 4), TRUE), ((4, 4, 1), BORDER), ((4, 4, 4), BORDER), ((2, 4, 4), FALSE)):
            truth = "densities {} %, {} %, {} %".format(*densities)
            yield Case("C15", truth, n, wrong, _densities(densities, n))
    for n in (10, 200):
        shares = ((0.6, 0.2, 0.1, 0.1), TRUE), ((0.3, 0.3, 0.3, 0.1), BORDER), ((0.2, 0.6, 0.1, 0.1), FALSE)
        for share, wrong in shares:
            yield Case(
                "C16", f"{share[0]:.0%} prose, {share[1]:.0%} the commonest other", n, wrong, _failures(share, n)
            )


def _count(rng: np.random.Generator, benchmark: str, n: int, rate: float) -> Count:
    k = int(rng.binomial(n, rate))
    return Count(benchmark, k, n, n, k)


def _interaction(effect: float, n: int) -> Rule:
    rates = {"random_ce": 0.4, "random_kl": 0.4, "mean_ce": 0.4, "mean_kl": 0.4 + effect}

    def rule(rng: np.random.Generator) -> str:
        name = "bigcodebench"
        return claims.judge_c10({at: {name: _count(rng, name, n, rate)} for at, rate in rates.items()}).answer

    return rule


def _proxy(rho: float, n: int) -> Rule:
    linear = 2 * np.sin(np.pi * rho / 6)  # Pearson's correlation of normal data with this rank correlation

    def rule(rng: np.random.Generator) -> str:
        loss, own = rng.standard_normal((2, n))
        rate = linear * loss + np.sqrt(1 - linear**2) * own
        return claims.judge_c11({str(i): v for i, v in enumerate(loss)}, {str(i): v for i, v in enumerate(rate)}).answer

    return rule


def _sizes(slope: float, n: int) -> Rule:
    shares = 0.01 * 2.0 ** np.arange(n)

    def rule(rng: np.random.Generator) -> str:
        kept = 0.7 + slope * np.log(shares) + rng.normal(0, 0.05, n)
        return claims.judge_c12(
            {"M": {i: {"share": s, "kept": k} for i, (s, k) in enumerate(zip(shares, kept, strict=True))}}
        ).answer

    return rule


def _steps(ratio: float, n: int) -> Rule:
    def rule(rng: np.random.Generator) -> str:
        two, noise = np.exp(rng.normal(0, 0.1, n)), np.exp(rng.normal(0, 0.1, n))
        return claims.judge_c13(ratio * two * noise, two).answer  # type: ignore[arg-type]

    return rule


def _halves(short: float, long: float, n: int) -> Rule:
    def rule(rng: np.random.Generator) -> str:
        rates = {"mean_ce": (0.4 + short, 0.4), "mean_kl": (0.4, 0.4 + long)}
        names = ("ds1000", "bigcodebench")
        passes = {
            variant: {name: _count(rng, name, n, rate) for name, rate in zip(names, both, strict=True)}
            for variant, both in rates.items()
        }
        return claims.judge_c14(passes).answer

    return rule


def _densities(percent: Sequence[float], n: int) -> Rule:
    def rule(rng: np.random.Generator) -> str:
        counts = {}
        for name, density in zip(("ds1000", "bigcodebench", "humaneval"), percent, strict=True):
            sizes = rng.integers(50, 400, n)
            news = rng.binomial(sizes, density / 100 * rng.gamma(2, 0.5, n))  # problems differ in their density
            counts[name] = list(zip(news.tolist(), sizes.tolist(), strict=True))
        return claims.judge_c15(counts).answer

    return rule


def _failures(shares: Sequence[float], n: int) -> Rule:
    kinds = ["no code", "syntax", "exception", "timeout"]
    return lambda rng: claims.judge_c16({"m": rng.choice(kinds, n, p=shares).tolist()}).answer


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Spell rates as a Markdown table."""
    shares = ("confirmed", "not confirmed", "cannot tell", "wrong")
    lines = [[row["claim"], row["truth"], str(row["n"]), *(f"{row[share]:.1%}" for share in shares)] for row in rows]
    return table_of(["claim", "truth", "n", *shares], lines, right=range(2, 7))


def main() -> None:
    """Simulate, and write the file and the table of the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/bench/claim_rates.json"))
    parser.add_argument("--docs", type=Path, default=Path("docs/evaluation.md"))
    args = parser.parse_args()
    rows = [case.rates() for case in cases()]
    files.write_json(args.out, {"draws": DRAWS, "seed": 0, "rows": rows})
    fill_page(args.docs, {"claim rates": table(rows)})
    print(table(rows))


if __name__ == "__main__":
    main()
