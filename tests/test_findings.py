"""Verdicts follow from planted numbers, in all three directions."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixtures.tiny_run import build_run

from vocabx_utils.analysis import findings, similarity
from vocabx_utils.analysis.mechanisms import CausalTest
from vocabx_utils.rows import read_histories, read_tokens


def cosines(gains: dict[str, tuple[float, float]], n: int = 40, noise: float = 0.0) -> pd.DataFrame:
    """Gains of the first and the last cosine from epoch 0 to 2, by variant."""
    rng = np.random.default_rng(1)
    rows = []
    for variant, (first, last) in gains.items():
        for token in range(n):
            for position, gain in (("first", first), ("intermediate", 0.0), ("last", last)):
                for epoch in (0, 2):
                    value = 0.5 + gain * epoch / 2 + noise * rng.normal()
                    rows.append((variant, "input", epoch, token, position, value))
    return pd.DataFrame(rows, columns=["variant", "matrix", "epoch", "token", "position", "cosine"])


@pytest.mark.parametrize(
    ("gains", "noise", "verdict"),
    [
        ({"mean_kl_last": (0.1, 0.02), "mean_ce": (0.01, 0.05)}, 0.01, "confirmed"),
        ({"mean_kl_last": (0.1, 0.02), "mean_ce": (0.05, 0.01)}, 0.01, "not confirmed"),
        ({"mean_kl_last": (0.1, 0.02), "mean_ce": (0.0, 0.0)}, 0.05, "cannot tell"),
        ({"mean_hidden_last": (0.1, 0.0)}, 0.0, "cannot tell"),
    ],
)
def test_direction(gains: dict[str, tuple[float, float]], noise: float, verdict: str) -> None:
    found = findings.direction_finding(cosines(gains, noise=noise))
    assert (found.claim, found.verdict) == ("C4", verdict)


def test_turn_towards_is_the_difference_of_gains() -> None:
    mean, low, high, n = findings.turn_towards(cosines({"mean_ce": (0.01, 0.05)}), "mean_ce")
    assert (mean, low, high, n) == pytest.approx((-0.04, -0.04, -0.04, 40))


@pytest.mark.parametrize(
    ("gain", "noise", "verdict"),
    [(0.01, 0.01, "confirmed"), (-0.2, 0.01, "not confirmed"), (0.0, 1.0, "cannot tell")],
)
def test_stability(gain: float, noise: float, verdict: str) -> None:
    table = cosines({"mean_ce": (gain, gain), "random_kl_last": (0.9, 0.9)}, noise=noise)
    found = findings.stability_finding(table, np.array([0.7, 0.7]))
    assert found.verdict == verdict
    assert "0.70 before any training" in found.evidence
    assert "random" not in found.evidence


def causal(recovered: dict[int, float], end: float = 0.1, texts: int = 12) -> CausalTest:
    rows = [("top", k, 0, 0.0, 0.0, share) for k, share in recovered.items()]
    table = pd.DataFrame(rows, columns=["keep", "k", "draw", "kl", "energy", "recovered"])
    start = np.linspace(0.8, 1.2, texts)
    wave = 1 + 0.01 * np.cos(np.arange(texts))
    text_kl = {k: start - share * wave * (1 - end) * start for k, share in recovered.items()}
    return CausalTest(table, 1.0, end, 100, text_kl | {0: start, 100: end * start})


def test_sparsity() -> None:
    few, many, worse = causal({1: 0.2, 8: 0.95}), causal({1: 0.1, 8: 0.4, 64: 0.95}), causal({1: 0.5}, end=1.2)
    assert findings.sparsity_finding({"mean_ce": few}).verdict == "confirmed"
    mixed = findings.sparsity_finding({"mean_ce": few, "mean_kl_last": many})
    assert mixed.verdict == "not confirmed"
    assert "40% [" in mixed.evidence and "at k = 8, n = 12 texts" in mixed.evidence
    for unsure in (worse, causal({8: 0.9}), causal({8: 0.95}, texts=1), CausalTest(few.table, 1.0, 0.1, 100)):
        assert findings.sparsity_finding({"mean_ce": unsure}).verdict == "cannot tell"
    assert findings.sparsity_finding({}).verdict == "cannot tell"
    assert "more than tested" in findings.sparsity_finding({"mean_ce": causal({1: 0.1})}).evidence


def test_a_planted_run_and_the_box(tmp_path: Path) -> None:
    tiny = build_run(tmp_path, width=512, vocab_size=200, n=24)
    histories = read_histories(tiny.run)
    table = similarity.cosines_by_epoch(histories.values(), read_tokens(tiny.run), tiny.original)  # type: ignore[arg-type]
    found = findings.direction_finding(table)
    assert found.verdict == "confirmed"  # KL was planted to pull to the first subtoken, CE to the last
    box = findings.findings_box([found])
    assert box.count("\n") == 2
    assert "| C4 |" in box
    assert "**confirmed**" in box


def test_agreement_names_every_claim_once_under_its_verdict() -> None:
    verdicts = [
        findings.Finding("C4", "cannot tell", ""),
        findings.Finding("C5", "confirmed", ""),
        findings.Finding("C6", "not confirmed", ""),
    ]
    agrees, differs, open_ = findings.agreement(verdicts).splitlines()
    assert agrees.startswith("- **Agrees with the thesis:**")
    assert "(C5)" in agrees
    assert differs.startswith("- **Does not agree with the thesis:**")
    assert "(C6)" in differs
    assert "(C4)" in open_
    assert findings.agreement(verdicts[:1]).splitlines()[0].endswith("nothing.")
