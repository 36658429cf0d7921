"""Spread over seeds and differences paired by run, against the formulas written out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t, ttest_ind, ttest_rel

from vocabx_utils.analysis.seeds import (
    last_values,
    paired_differences,
    read_collected,
    spread_over_seeds,
    unpaired_difference,
)
from vocabx_utils.files import write_table

STAGE = "03_phase1_training"


def line(run: str, seed: int, variant: str, epoch: int, value: float, metric: str = "kl") -> dict[str, object]:
    return {"run": run, "profile": "p", "model": "m", "seed": seed, "stage": STAGE, "variant": variant} | {
        "part": "", "epoch": epoch, "metric": metric, "value": value
    }  # fmt: skip


@pytest.fixture
def table() -> pd.DataFrame:
    """Eight runs, the last one first, of three variants; `none` is not trained and lacks in one run."""
    generator = np.random.default_rng(0)
    rows = []
    for seed in reversed(range(8)):
        shared = generator.normal(0, 1)
        for at, variant in enumerate(("none", "ce", "kl")):
            if (variant, seed) != ("none", 3):
                epochs = (0,) if variant == "none" else (0, 1, 2)
                rows += [line(f"r{seed}", seed, variant, e, shared + at - e + generator.normal(0, 0.1)) for e in epochs]
    return pd.DataFrame(rows).astype({"epoch": "Int64", "seed": "Int64"})


def test_the_last_epoch_of_each_variant_counts_in_order_of_the_seeds(table: pd.DataFrame) -> None:
    values = last_values(table, "kl")
    assert list(values.columns) == ["none", "ce", "kl"]
    assert values.index.get_level_values("seed").tolist() == list(range(8))
    assert math.isnan(values["none"].iloc[3])
    wanted = table.query("run == 'r5' and variant == 'kl' and epoch == 2")["value"].item()
    assert values.xs("r5", level="run")["kl"].item() == wanted


def test_an_unknown_metric_names_those_that_are_there(table: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match=r"'bpb'.*there are: kl\."):
        last_values(table, "bpb")


def test_spread_is_that_of_the_formulas(table: pd.DataFrame) -> None:
    values = last_values(table, "kl")
    spread = spread_over_seeds(values, 0.9)
    for variant in values:
        known = [value for value in values[variant] if not math.isnan(value)]
        n, mean = len(known), sum(known) / len(known)
        sd = math.sqrt(sum((value - mean) ** 2 for value in known) / (n - 1))
        half = float(t.ppf(0.95, n - 1)) * sd / math.sqrt(n)
        wanted = [n, mean, sd, min(known), max(known), mean - half, mean + half]
        assert spread.loc[variant].tolist() == pytest.approx(wanted)


def test_paired_differences_are_those_of_the_paired_t_test(table: pd.DataFrame) -> None:
    values = last_values(table, "kl")
    found = paired_differences(values, "ce")
    assert list(found.index) == ["none", "kl"]
    both = values[["kl", "ce"]].dropna()
    limits = ttest_rel(both["kl"], both["ce"]).confidence_interval(1 - 0.05 / 2)  # two comparisons
    assert found.loc["kl", ["low", "high"]].tolist() == pytest.approx([limits.low, limits.high])
    assert found.loc["kl", "difference"] == pytest.approx((both["kl"] - both["ce"]).mean())
    assert found.loc["kl", "above"] == "confirmed"
    assert found.loc["none", "n"] == 7
    alone = paired_differences(values, "ce", confidence=0.95).loc["kl"]
    assert alone["high"] - alone["low"] < found.loc["kl", "high"] - found.loc["kl", "low"]


def test_pairing_takes_away_what_the_seed_does_to_both(table: pd.DataFrame) -> None:
    values = last_values(table, "kl")
    apart = unpaired_difference(values["kl"], values["ce"], 0.9)
    limits = ttest_ind(values["kl"], values["ce"], equal_var=False).confidence_interval(0.9)
    assert (apart.low, apart.high) == pytest.approx((limits.low, limits.high))
    paired = paired_differences(values, "ce", confidence=0.9).loc["kl"]
    assert apart.estimate == pytest.approx(paired["difference"])
    assert paired["high"] - paired["low"] < 0.3 * (apart.high - apart.low)


def test_one_run_bounds_nothing(table: pd.DataFrame) -> None:
    values = last_values(table, "kl").iloc[:1]
    assert spread_over_seeds(values).loc["ce", ["low", "high"]].tolist() == [-math.inf, math.inf]
    assert paired_differences(values, "ce").loc["kl", "above"] == "cannot tell"


def test_an_unknown_reference_is_named(table: pd.DataFrame) -> None:
    with pytest.raises(ValueError, match=r"'mse'.*none, ce, kl"):
        paired_differences(last_values(table, "kl"), "mse")


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_written_table_reads_the_same(table: pd.DataFrame, tmp_path: Path, ending: str) -> None:
    table.loc[0, "epoch"] = pd.NA
    write_table(tmp_path / f"t.{ending}", table)
    again = read_collected(str(tmp_path / f"t.{ending}"))
    pd.testing.assert_frame_equal(again[table.columns], table, check_dtype=False)
    assert set(again["part"]) == {""}
