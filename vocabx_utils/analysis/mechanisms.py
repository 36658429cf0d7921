"""How training changes the new rows: norms, spread, and whether a few coordinates carry the change.

"Change" is Δe = row after training − initial row, for each of N new tokens of width D. The causal test keeps only a
part of Δe and measures the KL divergence again: the thesis's claim that a few indices hold the meaning (appendix A) is
about what the model does with a row, which no statistic of the row alone can show.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd
import torch
from scipy.stats import norm
from torch import Tensor

from vocabx_utils.analysis.divergence import KLMeter
from vocabx_utils.analysis.similarity import cosine
from vocabx_utils.rows import RowHistory

Keep = Literal["top", "random"]
OLD_ROWS = "old rows"
"""Name of the yardstick in a table by variant."""


def participation_ratio(delta: Tensor) -> np.ndarray:
    """Count how many coordinates take part in each change (N, D): (Σ x²)² / Σ x⁴.

    It is 1 for one coordinate, D for equal ones, and about D/3 for independent normal ones; NaN for a zero change or
    one with NaN.

    >>> participation_ratio(torch.tensor([[0.0, 3.0, 0.0], [1.0, 1.0, 1.0]])).tolist()
    [1.0, 3.0]
    """
    return (1.0 / (_unit_energy(delta) ** 2).sum(-1)).cpu().numpy()  # (N,)


def top_k_share(delta: Tensor, ks: Sequence[int]) -> np.ndarray:
    """Return the share of the energy (squares) of each change (N, D) that its k largest coordinates hold.

    Returns:
        (N, len(ks)), each 0 to 1; NaN for a zero change.

    Raises:
        ValueError: a k is outside 0 to D.
    """
    _check_ks(ks, delta.shape[-1])
    parts = _unit_energy(delta).sort(dim=-1, descending=True).values.cumsum(-1)  # (N, D)
    padded = torch.cat([torch.where(parts[:, :1].isnan(), torch.nan, 0.0), parts], dim=-1)  # (N, D + 1)
    return padded[:, list(ks)].cpu().numpy()


def gaussian_top_k_share(width: int, ks: Sequence[int]) -> np.ndarray:
    """Return top-k shares, (len(ks),), if coordinates were independent and normal: a yardstick for `top_k_share`.

    It uses the large-D closed form (error of order 1/√D): k/D + 2·t·φ(t), t the upper k/(2D) quantile of the normal.
    """
    _check_ks(ks, width)
    share = np.asarray(ks, dtype=float) / width
    with np.errstate(divide="ignore", invalid="ignore"):
        t = norm.isf(share / 2)
        values = share + 2 * t * norm.pdf(t)
    return np.where(share == 0, 0.0, values)


def _unit_energy(delta: Tensor) -> Tensor:
    if delta.ndim != 2:
        raise ValueError(f"Changes have shape {tuple(delta.shape)}; expected (N, D).")
    values = delta.detach().double().abs() ** 2
    return values / values.sum(-1, keepdim=True)  # 0/0 is NaN: a zero change has no shares


def _check_ks(ks: Sequence[int], width: int) -> None:
    if any(not 0 <= k <= width for k in ks):
        raise ValueError(f"k is one of {list(ks)}; expected 0 to D = {width}.")


def spread(rows: Tensor) -> dict[str, float]:
    """Say how far a set of rows (N, D) has collapsed.

    Returns:
        `mean_cosine`: mean cosine over pairs of rows (1: all in one direction). `effective_rank`: participation ratio
        of the variance along the principal directions, 1 to N−1. `distance`: mean distance to the centre over the mean
        norm. `left_out`: rows that are zero or hold NaN. NaN where fewer than two others are left.
    """
    values = rows.detach().double()
    norms = values.norm(dim=-1)
    usable = torch.isfinite(norms) & (norms > 0)
    left_out = float((~usable).sum())
    values, norms = values[usable], norms[usable]
    n = len(values)
    if n < 2:
        return {"mean_cosine": np.nan, "effective_rank": np.nan, "distance": np.nan, "left_out": left_out}
    unit = values / norms[:, None]
    centred = values - values.mean(0)
    variance = torch.linalg.svdvals(centred) ** 2  # (min(N, D),)
    total = float(variance.sum())
    return {
        "mean_cosine": float((unit.sum(0).square().sum() - n) / (n * (n - 1))),
        "effective_rank": total**2 / float((variance**2).sum()) if total > 0 else np.nan,
        "distance": float(centred.norm(dim=-1).mean() / norms.mean()),
        "left_out": left_out,
    }


def spread_by_epoch(histories: Iterable[RowHistory], old_rows: Tensor) -> pd.DataFrame:
    """Return the `spread` of the input rows of each variant in its first and last epoch, and last that of old rows.

    Returns:
        variant (`old rows` for the yardstick), epoch (missing there), mean_cosine, effective_rank, distance, left_out.
    """
    found = [
        {"variant": history.variant, "epoch": epoch, **spread(history.rows(epoch))}
        for history in histories
        for epoch in (history.first, history.last)
    ]
    table = pd.DataFrame([*found, {"variant": OLD_ROWS, "epoch": None, **spread(old_rows)}])
    return table.astype({"epoch": "Int64"})


def row_statistics(start: Tensor, end: Tensor, ks: Sequence[int] = (1, 8, 64)) -> pd.DataFrame:
    """Describe what training did to each row, from start (N, D) to end.

    Returns:
        One row for each token: norm_start, norm_end, norm_change (unit of the rows), cosine (between start and
        end), participation (1 to D), top_k for each k up to D (share of energy, 0 to 1).

    Raises:
        ValueError: the shapes differ.
    """
    if start.shape != end.shape:
        raise ValueError(f"Initial rows are {tuple(start.shape)}, trained rows {tuple(end.shape)}; expected equal.")
    delta = end.double() - start.double()
    ks = [k for k in ks if k <= delta.shape[1]]
    shares = top_k_share(delta, ks)
    return pd.DataFrame(
        {
            "norm_start": start.double().norm(dim=-1).numpy(),
            "norm_end": end.double().norm(dim=-1).numpy(),
            "norm_change": delta.norm(dim=-1).numpy(),
            "cosine": cosine(start, end),
            "participation": participation_ratio(delta),
            **{f"top_{k}": shares[:, at] for at, k in enumerate(ks)},
        }
    )


def keep_part(start: Tensor, end: Tensor, k: int, keep: Keep = "top", seed: int = 0) -> Tensor:
    """Undo the learned change except for k of its coordinates: 0 gives the start (N, D), D the end.

    Args:
        keep: `top`, the k largest coordinates of each row's own change; `random`, k coordinates drawn for each row.

    Raises:
        ValueError: the shapes differ, k is outside 0 to D, or `keep` is unknown.
    """
    if start.shape != end.shape or start.ndim != 2:
        raise ValueError(f"Initial rows are {tuple(start.shape)}, trained rows {tuple(end.shape)}; expected (N, D).")
    _check_ks([k], start.shape[1])
    delta = end.double() - start.double()
    if keep == "top":
        order = delta.abs().argsort(dim=-1, descending=True, stable=True)  # (N, D)
    elif keep == "random":
        order = torch.rand(delta.shape, generator=torch.Generator().manual_seed(seed)).argsort(dim=-1)
    else:
        raise ValueError(f"Unknown choice {keep!r}; choose top or random.")
    kept = torch.zeros_like(delta).scatter_(1, order[:, :k], delta.gather(1, order[:, :k]))
    return (start.double() + kept).to(start.dtype)


@dataclass(frozen=True)
class CausalTest:
    """Result of the causal test."""

    # keep, k, draw, kl (nats per position), energy (share of |Δe|² kept, mean over tokens), recovered (share of the KL
    # improvement that is back; NaN where training changed nothing)
    table: pd.DataFrame
    kl_start: float  # KL with the initial rows
    kl_end: float  # KL with the trained rows
    width: int  # D
    # sums of KL of each text, (texts,), mean over draws, by way of choosing and k: 0 is the start, D the end
    by_text: Mapping[tuple[Keep, int], np.ndarray] = field(default_factory=dict)
    positions: int = 0  # that KL was measured at

    def coordinates_needed(self, share: float = 0.9, keep: Keep = "top") -> int | None:
        """Return the smallest k of the sweep that recovers `share` of the improvement, None if no k does."""
        part = self.table[self.table["keep"] == keep].groupby("k")["recovered"].mean()
        enough = part.index[part >= share]
        return int(enough.min()) if len(enough) else None

    def recovered(self, k: int, keep: Keep = "top") -> float:
        """Return the share of the improvement in KL that k coordinates bring back, mean over draws."""
        part = self.table[(self.table["keep"] == keep) & (self.table["k"] == k)]
        return float(part["recovered"].mean())

    def facts(self) -> dict[str, float]:
        """Return what a figure of the table needs besides it."""
        return {name: getattr(self, name) for name in ("kl_start", "kl_end", "width", "positions")}

    def ends(self, k: int, keep: Keep = "top") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the sums of KL of each text with the initial rows, k coordinates of the change, and all of it."""
        return self.by_text[keep, 0], self.by_text[keep, k], self.by_text[keep, self.width]


def causal_sweep(
    meter: KLMeter,
    start: Tensor,
    end: Tensor,
    ks: Sequence[int],
    *,
    keeps: Sequence[Keep] = ("top", "random"),
    draws: int = 1,
    seed: int = 0,
) -> CausalTest:
    """Keep k coordinates of the learned change, k swept, and measure each time (thesis, end of appendix A, claim C6).

    Args:
        start, end: input rows before training and after it, (N, D) each.
        ks: coordinates kept. 0 and D are measured once and need not be in it.
        keeps: ways to choose them, see `keep_part`; `random` is drawn `draws` times.
        seed: of the first draw; each further one has the next seed.
    """
    width = start.shape[1]
    sums_start, sums_end = meter.by_text(start), meter.by_text(end)  # (texts,)
    kl_start, kl_end = (float(sums.sum() / meter.positions) for sums in (sums_start, sums_end))
    gain = kl_start - kl_end
    energy = (end.double() - start.double()).square().sum(-1)  # (N,)
    rows: list[tuple[Keep, int, int, float, float, float]] = []
    by_text: dict[tuple[Keep, int], np.ndarray] = {}
    for keep, k in ((keep, k) for keep in keeps for k in sorted(set(ks))):
        found = []
        for draw in range(draws if keep == "random" else 1):
            kept = keep_part(start, end, k, keep, seed + draw)
            found.append(meter.by_text(kept))
            kl = float(found[-1].sum() / meter.positions)
            share = ((kept.double() - start.double()).square().sum(-1) / energy).nanmean()
            rows.append((keep, k, draw, kl, float(share), (kl_start - kl) / gain if gain else np.nan))
        by_text[keep, k] = np.mean(found, axis=0)
    for keep in keeps:
        by_text |= {(keep, 0): sums_start, (keep, width): sums_end}
    table = pd.DataFrame(rows, columns=["keep", "k", "draw", "kl", "energy", "recovered"])
    return CausalTest(table, kl_start, kl_end, width, by_text, meter.positions)
