"""Participation, shares, spread and the causal test against closed forms, loops and a planted change."""

import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.tiny_run import build_run
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabx_utils.analysis import mechanisms as m
from vocabx_utils.rows import read_histories


def test_participation_closed_forms() -> None:
    one_hot, flat = torch.zeros(1, 10), torch.ones(1, 10) * -2.5
    one_hot[0, 3] = 7.0
    assert m.participation_ratio(one_hot) == pytest.approx([1.0])
    assert m.participation_ratio(flat) == pytest.approx([10.0])
    geometric = torch.tensor([[2.0**-i for i in range(40)]], dtype=torch.float64)
    assert m.participation_ratio(geometric) == pytest.approx([(4 / 3) ** 2 / (16 / 15)], rel=1e-9)


@given(st.integers(1, 6), st.integers(1, 20), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_participation_and_shares_against_loops(n: int, width: int, seed: int) -> None:
    delta = torch.randn(n, width, generator=torch.Generator().manual_seed(seed))
    shares = m.top_k_share(delta, range(width + 1))
    for row, ratio, found in zip(delta.tolist(), m.participation_ratio(delta), shares, strict=True):
        squares = sorted((x * x for x in row), reverse=True)
        assert ratio == pytest.approx(sum(squares) ** 2 / sum(s * s for s in squares), rel=1e-6)
        assert found == pytest.approx([sum(squares[:k]) / sum(squares) for k in range(width + 1)], rel=1e-6)
        assert 1 - 1e-9 <= ratio <= width + 1e-9


def test_gaussian_yardstick() -> None:
    width, ks = 4096, [1, 16, 256, 2048, 4096]
    delta = torch.randn(200, width, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    measured = m.top_k_share(delta, ks).mean(0)
    assert m.gaussian_top_k_share(width, ks)[1:] == pytest.approx(measured[1:], rel=0.03)
    assert m.participation_ratio(delta).mean() == pytest.approx(width / 3, rel=0.02)


def test_zero_and_nan_changes_give_nan_not_a_crash() -> None:
    delta = torch.tensor([[0.0, 0.0], [float("nan"), 1.0], [1.0, 0.0]])
    assert np.isnan(m.participation_ratio(delta)).tolist() == [True, True, False]
    assert np.isnan(m.top_k_share(delta, [0, 1])).all(axis=1).tolist() == [True, True, False]
    with pytest.raises(ValueError, match="D = 2"):
        m.top_k_share(delta, [3])
    with pytest.raises(ValueError, match="expected \\(N, D\\)"):
        m.participation_ratio(torch.ones(3))


def test_spread_against_pairs_and_known_sets() -> None:
    rows = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pairs = [float(rows[i] @ rows[j] / rows[i].norm() / rows[j].norm()) for i in range(7) for j in range(7) if i != j]
    assert m.spread(rows)["mean_cosine"] == pytest.approx(np.mean(pairs))
    collapsed = m.spread(torch.tensor([[1.0, 2.0]] * 4))
    assert collapsed["mean_cosine"] == pytest.approx(1.0)
    assert collapsed["distance"] == pytest.approx(0.0, abs=1e-12)
    assert math.isnan(collapsed["effective_rank"])
    axes = torch.cat([torch.eye(4), -torch.eye(4)])
    assert m.spread(axes)["effective_rank"] == pytest.approx(4.0)
    broken = m.spread(torch.tensor([[0.0, 0.0], [float("nan"), 1.0], [1.0, 0.0]]))
    assert broken["left_out"] == 2
    assert math.isnan(broken["mean_cosine"])


def test_spread_by_epoch_ends_with_the_yardstick(tmp_path: Path) -> None:
    tiny = build_run(tmp_path, variants=("mean_ce", "mean_kl_last"))
    history = read_histories(tiny.run)
    table = m.spread_by_epoch(history.values(), tiny.original["input"])
    assert table["variant"].tolist() == ["mean_ce", "mean_ce", "mean_kl_last", "mean_kl_last", "old rows"]
    assert table["epoch"].tolist()[:4] == [0, 2, 0, 2]
    assert table["epoch"].isna().tolist() == [False] * 4 + [True]
    assert table["mean_cosine"][1] == pytest.approx(m.spread(history["mean_ce"].rows(2))["mean_cosine"])
    assert table["effective_rank"][4] == pytest.approx(m.spread(tiny.original["input"])["effective_rank"])


def test_keep_part_ends_and_choices() -> None:
    generator = torch.Generator().manual_seed(3)
    start, end = torch.randn(4, 9, generator=generator), torch.randn(4, 9, generator=generator)
    for keep in ("top", "random"):
        torch.testing.assert_close(m.keep_part(start, end, 0, keep), start)
        torch.testing.assert_close(m.keep_part(start, end, 9, keep), end)
    top = m.keep_part(start, end, 2)
    changed = (top != start).sum(1)
    assert changed.tolist() == [2, 2, 2, 2]
    largest = (end - start).abs().topk(2).indices
    torch.testing.assert_close(top.gather(1, largest), end.gather(1, largest))
    assert torch.equal(m.keep_part(start, end, 3, "random", 5), m.keep_part(start, end, 3, "random", 5))
    assert not torch.equal(m.keep_part(start, end, 3, "random", 5), m.keep_part(start, end, 3, "random", 6))
    with pytest.raises(ValueError, match="bottom"):
        m.keep_part(start, end, 2, "bottom")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="D = 9"):
        m.keep_part(start, end, 10)
    with pytest.raises(ValueError, match="expected"):
        m.keep_part(start, end[:2], 1)


def meter(measure: Callable[[torch.Tensor], float]) -> Any:
    """A meter of two texts, the first with a quarter of the KL, at ten positions in all."""
    return SimpleNamespace(positions=10, by_text=lambda rows: np.array([2.5, 7.5]) * measure(rows))


def test_causal_sweep_recovers_a_planted_sparse_change() -> None:
    """Three coordinates of each row matter to the measure; noise everywhere else does not."""
    generator = torch.Generator().manual_seed(0)
    n, width, planted = 6, 64, 3
    start = torch.randn(n, width, generator=generator)
    delta = 0.01 * torch.randn(n, width, generator=generator)
    where = torch.stack([torch.randperm(width, generator=generator)[:planted] for _ in range(n)])
    delta.scatter_(1, where, torch.full((n, planted), 2.0))
    end = start + delta
    target = end.gather(1, where)

    def measure(rows: torch.Tensor) -> float:
        return float((rows.gather(1, where) - target).square().mean())

    result = m.causal_sweep(meter(measure), start, end, [1, 2, 3, 8, 32], draws=8)
    assert result.coordinates_needed(0.99) == planted
    assert result.coordinates_needed(0.99, "random") is None
    recovered = result.table.groupby(["keep", "k"])["recovered"].mean()
    assert recovered["top", 1] == pytest.approx(1 / 3, abs=0.01)
    assert recovered["top", 3] == pytest.approx(1.0, abs=1e-3)
    assert recovered["random", 32] == pytest.approx(0.5, abs=0.15)
    assert result.table["energy"].between(0, 1 + 1e-9).all()


def test_causal_sweep_finds_no_sparsity_in_a_dense_change() -> None:
    generator = torch.Generator().manual_seed(0)
    start, delta = torch.randn(5, 100, generator=generator), torch.ones(5, 100)

    def measure(rows: torch.Tensor) -> float:
        return float(100 - (rows - start).sum(1).mean())

    result = m.causal_sweep(meter(measure), start, start + delta, [10, 50], draws=2)
    top = result.table[result.table["keep"] == "top"].set_index("k")["recovered"]
    assert top.tolist() == pytest.approx([0.1, 0.5], abs=1e-5)
    assert result.coordinates_needed(0.9) is None


def test_causal_sweep_keeps_the_sums_of_each_text() -> None:
    start, end = torch.zeros(2, 4), torch.ones(2, 4)
    result = m.causal_sweep(meter(lambda rows: float(8 - rows.sum())), start, end, [1, 3], draws=3)
    for keep in ("top", "random"):
        ends = result.ends(3, keep)  # type: ignore[arg-type]
        assert ends[0].tolist() == [20, 60]
        assert ends[2].tolist() == [0, 0]
    assert result.ends(1)[1].tolist() == [15, 45]
    assert result.ends(1, "random")[1] == pytest.approx([15, 45])
    assert result.facts() == {"kl_start": 8, "kl_end": 0, "width": 4, "positions": 10}
    assert result.recovered(1) == pytest.approx(0.25)
    assert result.recovered(3, "random") == pytest.approx(0.75)
    part = result.table[result.table["keep"] == "random"].groupby("k")["kl"].mean()
    assert part.tolist() == pytest.approx([6, 2])


def test_causal_sweep_without_a_change() -> None:
    start = torch.ones(2, 4)
    result = m.causal_sweep(meter(lambda rows: 1.0), start, start.clone(), [1])
    assert result.table["recovered"].isna().all()


def test_row_statistics() -> None:
    start, end = torch.tensor([[3.0, 4.0], [1.0, 0.0]]), torch.tensor([[3.0, 4.0], [1.0, 2.0]])
    table = m.row_statistics(start, end, ks=(1, 8))
    assert table["norm_start"].tolist() == [5.0, 1.0]
    assert table["norm_change"].tolist() == [0.0, 2.0]
    assert table["cosine"].tolist() == pytest.approx([1.0, 1 / math.sqrt(5)])
    assert math.isnan(table["participation"][0])
    assert table["participation"][1] == pytest.approx(1.0)
    assert "top_8" not in table
    with pytest.raises(ValueError, match="expected equal"):
        m.row_statistics(start, end[:1])
