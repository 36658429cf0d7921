"""Where new rows point: their cosine to the subtokens they replace, by epoch, length and count (thesis appendix A).

Cosines are computed in float64. A zero vector has no direction and a row with NaN no value: both give NaN, which every
mean leaves out and counts. Shapes: V old rows, N new ones, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vocabx_utils.names import variant_label
from vocabx_utils.resampling import bootstrap_mean
from vocabx_utils.rows import MATRICES, Matrix, NewToken, RowHistory
from vocabx_utils.thesis import cosine_table

POSITIONS = ("first", "intermediate", "last")
Intermediate = Literal["mean_of_cosines", "cosine_of_mean"]


def cosine(a: Tensor, b: Tensor) -> np.ndarray:
    """Compute cosines between vectors (…, D) that are broadcast against each other, NaN where one is zero or holds NaN.

    >>> cosine(torch.tensor([3.0, 4.0]), torch.tensor([4.0, 3.0])).item()
    0.96

    Raises:
        ValueError: the widths differ.
    """
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(f"Widths differ: {tuple(a.shape)} and {tuple(b.shape)}; cosines need the same D.")
    x, y = a.detach().double(), b.detach().to(a.device).double()
    norms = x.norm(dim=-1) * y.norm(dim=-1)
    values = ((x * y).sum(-1) / norms).cpu().numpy()  # (…,)
    return np.clip(np.where(norms.cpu().numpy() > 0, values, np.nan), -1.0, 1.0)


def subtoken_cosines(
    rows: Tensor, matrix: Tensor, subtokens: Sequence[Sequence[int]], intermediate: Intermediate = "mean_of_cosines"
) -> dict[str, np.ndarray]:
    """Return the cosine of each new row to the first, the intermediate and the last of its subtokens' rows.

    The thesis averages over intermediates of tokens with three or more subtokens, without saying whether it averages
    cosines (default here) or vectors; for m near-orthogonal vectors the second gives √m times the first.

    Args:
        rows: (N, D) new rows.
        matrix: (V or more, D) original rows of the same matrix.
        subtokens: N sequences of original ids.

    Returns:
        `first`, `intermediate`, `last`: (N,) float64 each; intermediate is NaN below three subtokens.

    Raises:
        ValueError: lengths or widths differ, a token has no subtokens, or an id is not a row of `matrix`.

    Source:
        Thesis, appendix A, enumeration before `fig:embedding_similarity`.

    Example:
        >>> matrix = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> {place: cosines.tolist() for place, cosines in subtoken_cosines(matrix[:1], matrix, [[0, 1]]).items()}
        {'first': [1.0], 'intermediate': [nan], 'last': [0.0]}
    """
    _check_rows(rows, matrix, subtokens)
    return {
        "first": cosine(rows, matrix[[ids[0] for ids in subtokens]]),
        "intermediate": _inner_cosines(rows, matrix, subtokens, intermediate),
        "last": cosine(rows, matrix[[ids[-1] for ids in subtokens]]),
    }


def _inner_cosines(rows: Tensor, matrix: Tensor, subtokens: Sequence[Sequence[int]], how: Intermediate) -> np.ndarray:
    owners = [at for at, ids in enumerate(subtokens) for _ in ids[1:-1]]  # (M,) new tokens of M intermediates
    inner = [i for ids in subtokens for i in ids[1:-1]]  # (M,)
    counts = np.bincount(owners, minlength=len(subtokens)).astype(float) if owners else np.zeros(len(subtokens))
    counts[counts == 0] = np.nan
    if how == "mean_of_cosines":
        values = cosine(rows[owners], matrix[inner])
        return np.bincount(owners, values, len(subtokens)) / counts if owners else counts
    if how == "cosine_of_mean":
        sums = torch.zeros(rows.shape, dtype=torch.float64)
        sums.index_add_(0, torch.tensor(owners, dtype=torch.long), matrix[inner].double().cpu())
        return cosine(rows, sums)  # the cosine to a sum equals that to the mean
    raise ValueError(f"Unknown choice {how!r}; choose mean_of_cosines or cosine_of_mean.")


def _check_rows(rows: Tensor, matrix: Tensor, subtokens: Sequence[Sequence[int]]) -> None:
    if rows.ndim != 2 or matrix.ndim != 2 or rows.shape[1] != matrix.shape[1]:
        raise ValueError(f"rows are {tuple(rows.shape)}, matrix is {tuple(matrix.shape)}; expected (N, D), (V, D).")
    if len(subtokens) != len(rows):
        raise ValueError(f"{len(rows)} rows but {len(subtokens)} tokens; this run's tokens and rows do not fit.")
    for at, ids in enumerate(subtokens):
        if not ids:
            raise ValueError(f"Token {at} has no subtokens; its row has nothing to be compared with.")
        if not all(0 <= i < len(matrix) for i in ids):
            raise ValueError(f"Token {at} has subtokens {tuple(ids)}, but the matrix has {len(matrix)} rows.")


def cosines_by_epoch(
    histories: Iterable[RowHistory], tokens: Sequence[NewToken], original: Mapping[Matrix, Tensor]
) -> pd.DataFrame:
    """Return cosines of every token to its subtokens' rows, (V or more, D), for all variants, epochs and both matrices.

    Returns:
        Long table: variant, matrix, epoch, token (0 to N−1), text, position, cosine, subtokens (how many), count.
    """
    subtokens = [token.subtokens for token in tokens]
    facts = [(at, token.text, len(token.subtokens), token.count) for at, token in enumerate(tokens)]
    described = pd.DataFrame(facts, columns=["token", "text", "subtokens", "count"])
    columns = ["variant", "matrix", "epoch", "token", "text", "position", "cosine", "subtokens", "count"]
    parts = []
    for history, matrix, epoch in ((h, m, epoch) for h in histories for m in MATRICES for epoch in h.epochs):
        found = subtoken_cosines(history.rows(epoch, matrix), original[matrix], subtokens)
        wide = pd.DataFrame(found).assign(token=range(len(tokens)))
        part = wide.melt("token", var_name="position", value_name="cosine")
        parts.append(part.assign(variant=history.variant, matrix=matrix, epoch=epoch))
    if not parts:
        return pd.DataFrame(columns=columns)
    return pd.concat(parts, ignore_index=True).merge(described, on="token")[columns]


def summarize(
    table: pd.DataFrame,
    by: Sequence[str] = ("variant", "matrix", "position", "epoch"),
    *,
    draws: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Return the mean cosine of each group with a bootstrap band over its tokens.

    Every group resamples with the same seed, so that the bands of neighbouring epochs do not jump.

    Returns:
        One row for each group of the columns `by` with mean, low, high, n (tokens with a value) and missing (without).
    """
    rows = []
    for key, group in table.groupby(list(by), sort=True, observed=True):
        values = group["cosine"].to_numpy()
        found, n = bootstrap_mean(values, draws=draws, seed=seed), int(np.isfinite(values).sum())
        rows.append((*key, found.estimate, found.low, found.high, n, len(group) - n))
    return pd.DataFrame(rows, columns=[*by, "mean", "low", "high", "n", "missing"])


def frequency_groups(counts: pd.Series, groups: int = 3) -> pd.Series:
    """Sort tokens into groups of about equal size by how often they occur; equal counts stay together.

    Returns an ordered categorical with the index of `counts` and names such as `3-7`, smallest first; fewer groups
    where many tokens occur equally often. Fewer than one group raise a ValueError.

    >>> frequency_groups(pd.Series([1, 1, 2, 9, 30, 31])).tolist()
    ['1', '1', '2-9', '2-9', '30-31', '30-31']
    """
    if groups < 1:
        raise ValueError(f"groups is {groups}; expected 1 or more.")
    values = counts.to_numpy()
    inner = np.quantile(values, np.arange(1, groups) / groups, method="higher") if len(values) else []
    place = np.searchsorted(np.unique(inner), values, side="right")
    names = {}
    for at in np.unique(place):
        low, high = values[place == at].min(), values[place == at].max()
        names[at] = f"{low}" if low == high else f"{low}-{high}"
    named = [names[at] for at in place]
    return pd.Series(pd.Categorical(named, list(names.values()), ordered=True), counts.index)


def remarks(table: pd.DataFrame, histories: Iterable[RowHistory]) -> list[str]:
    """Say in words what the means leave out: rows without a direction, missing epochs, tokens of one subtoken."""
    said = []
    for history in histories:
        if history.missing:
            epochs = ", ".join(map(str, history.missing))
            said.append(f"{history.variant}: no checkpoint of epoch {epochs}; its curves skip it.")
    ends = table[table["position"] == "first"]
    for (variant, matrix, epoch), part in ends.groupby(["variant", "matrix", "epoch"], sort=False):
        if lost := int(part["cosine"].isna().sum()):
            what = f"{lost} of {len(part)} {matrix} rows (or the rows of their subtokens) are zero or not numbers"
            said.append(f"{variant}, epoch {epoch}: {what}; they have no direction and are left out.")
    tokens = table.drop_duplicates("token")
    if single := int((tokens["subtokens"] == 1).sum()):
        said.append(f"{single} of {len(tokens)} tokens have one subtoken, which is their first and their last.")
    return said or ["Every row has a direction, no epoch is missing, every token has two subtokens or more."]


def mean_init_cosines(matrix: Tensor, subtokens: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the mean cosine between the average of a token's k subtokens and each of them, before any training, (N,).

    For near-orthogonal subtokens of equal norm it is 1/√k: 0.71 for two, 0.58 for three. A cosine of about 0.6 for
    mean initial rows thus says nothing about what was learned (claim C5).
    """
    rows = (matrix[list(ids)].double() for ids in subtokens)  # (k, D) each
    return np.asarray([float(cosine(part.mean(0), part).mean()) for part in rows], dtype=float)


def nearest_rows(
    row: Tensor, matrix: Tensor, k: int = 10, norms: Tensor | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Find the k rows of a matrix (V, D) with the largest cosine to one row (D,): indices and cosines, best first.

    Zero rows are never neighbours, and a zero row or one with NaN has none. `norms` (V,): of `matrix`, if known.
    """
    length = row.norm()
    if not torch.isfinite(length) or length == 0:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32)
    norms = matrix.float().norm(dim=1) if norms is None else norms
    scores = (matrix @ row.to(matrix.dtype)).float() / (norms * length)  # (V,)
    scores = torch.nan_to_num(scores, nan=-2.0, posinf=-2.0, neginf=-2.0)
    best = torch.topk(scores, min(k, int((norms > 0).sum())))
    return best.indices.numpy(), best.values.numpy()


def neighbour_text(row: Tensor, matrix: Tensor, decode: Callable[[int], str], k: int = 5) -> str:
    """Name the k nearest rows of a matrix, best first, with spaces between them; see `nearest_rows`."""
    ids, _ = nearest_rows(row, matrix, k)
    return " ".join(decode(int(at)) for at in ids) or "none: the row has no direction"


def own_neighbours(rows: Tensor, matrix: Tensor, subtokens: Sequence[Sequence[int]]) -> float:
    """Return how many of a token's different subtokens are among as many nearest old rows: the mean share, 0 to 1."""
    shares = []
    for row, ids in zip(rows, subtokens, strict=True):
        own = set(ids)
        shares.append(len(own & set(nearest_rows(row, matrix, len(own))[0].tolist())) / len(own))
    return float(np.mean(shares))


def beside_thesis(summary: pd.DataFrame, variants: Sequence[str]) -> pd.DataFrame:
    """Put the mean cosines of variants after their last epoch (`summarize`) above those that the thesis publishes.

    One line for each variant and each objective of the thesis, a column for each matrix and position that has values.
    """
    last = summary[summary["epoch"] == summary.groupby("variant")["epoch"].transform("max")]
    ours = last[last["variant"].isin(variants)].rename(columns={"mean": "cosine"})
    theirs = cosine_table().query("epoch == epoch.max()")
    rows = [ours["variant"].map(variant_label), "thesis: random init, " + theirs["objective"].str.upper()]
    table = pd.concat([ours, theirs]).assign(rows=pd.concat(rows).to_numpy())
    wide = table.pivot(index="rows", columns=["matrix", "position"], values="cosine")
    return wide.dropna(axis=1, how="all").sort_index(axis=1)
