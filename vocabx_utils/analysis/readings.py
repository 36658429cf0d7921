"""What the tables of notebook 06 show, in sentences whose numbers and directions are computed from the table itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from vocabx_utils.analysis.mechanisms import OLD_ROWS, CausalTest, gaussian_top_k_share
from vocabx_utils.names import variant_label


def read_turns(turns: pd.Series) -> str:
    """Say which variants turn to the first subtoken, from their gain to the first minus that to the last."""
    first, last = (
        "; ".join(variant_label(str(name)) for name in turns.index[side]) or "none" for side in (turns > 0, turns <= 0)
    )
    return (
        f"To the first subtoken turn: {first}. To the last: {last}. The sizes go from {turns.abs().min():.4f} to "
        f"{turns.abs().max():.4f}."
    )


def read_change(medians: pd.DataFrame, width: int) -> str:
    """Say how many coordinates change and by what angle rows do, from medians of `row_statistics`."""
    part, cosine = medians["participation"] / width, medians["cosine"]
    near, far = (np.degrees(np.arccos(np.clip(end, -1, 1))) for end in (cosine.max(), cosine.min()))
    return (
        f"Between {part.min():.0%} and {part.max():.0%} of the {width} coordinates take part in the change, where "
        f"independent normal numbers would give 33%. The cosine between a row before and after training is "
        f"{cosine.min():.3f} to {cosine.max():.3f}, so the angle between them is {near:.0f} to {far:.0f} degrees."
    )


def read_shares(shares: Mapping[str, np.ndarray], ks: Sequence[int], width: int) -> str:
    """Say where the shares of the largest coordinates (`top_k_share` at ks, by variant) are furthest from normal."""
    normal = gaussian_top_k_share(width, ks)
    gaps = {name: np.nanmedian(values, axis=0) - normal for name, values in shares.items()}
    widest = max(gaps, key=lambda name: float(np.abs(gaps[name]).max()))
    at = int(np.abs(gaps[widest]).argmax())
    return (
        f"The widest gap to normal numbers is that of {variant_label(widest)} at k = {ks[at]}: a share of "
        f"{normal[at] + gaps[widest][at]:.3f} beside {normal[at]:.3f}."
    )


def read_spread(table: pd.DataFrame) -> str:
    """Say whether training pulled rows apart, from `spread_by_epoch`."""
    old = table["variant"] == OLD_ROWS
    ends = table[~old].groupby("variant", sort=False)["mean_cosine"].agg(["first", "last"])
    falls = ends["first"] - ends["last"]
    return (
        f"The cosine between rows falls in {int((falls > 0).sum())} of {len(falls)} variants, by {falls.max():.3f} "
        f"at most; between the old rows of their subtokens it is {float(table.loc[old, 'mean_cosine'].iloc[0]):.3f}."
    )


def read_causal(tests: Mapping[str, CausalTest]) -> list[str]:
    """Say for each variant where random coordinates do as well as the largest, and where a part beats all of it."""
    said = []
    for name, test in tests.items():
        kl = test.table.groupby(["k", "keep"])["kl"].mean().unstack()
        as_well = ", ".join(map(str, kl.index[kl["random"] <= kl["top"]]))
        better = kl["top"][kl["top"] < test.kl_end]
        ends = f"({kl['top'].min():.3f} nats against {test.kl_end:.3f})"
        part = f"the {better.idxmin()} largest alone beat" if len(better) else "no part that was tried beats"
        said.append(
            f"**{variant_label(name)}**: random coordinates do at least as well as the largest at "
            f"{f'k = {as_well}' if as_well else 'no k that was tried'}; "
            f"{part} the fully trained rows {ends}."
        )
    return said


def read_layers(table: pd.DataFrame) -> list[str]:
    """Say for each variant where student and teacher are apart, from `hidden_similarity`."""
    said = []
    for name, part in table.groupby("variant", sort=False):
        place = part.pivot(index="layer", columns="place", values="cosine")
        boundary, behind = place["boundary"], place["1 after"]
        said.append(
            f"**{variant_label(str(name))}**: at the boundary the cosine is {boundary.iloc[0]:.2f} at layer 0, lowest "
            f"({boundary.min():.2f}) at layer {boundary.idxmin()} and {boundary.iloc[-1]:.2f} at the last; one token "
            f"behind it is lowest ({behind.min():.2f}) at layer {behind.idxmin()}."
        )
    return said


def read_lens(table: pd.DataFrame) -> str:
    """Say from which layer on the student names the next token of the teacher at the last subtoken (`logit_lens`)."""
    best = table.assign(best=table["top"].str[0]).pivot(index="layer", columns="reader", values="best")
    teacher = max((name for name in best.columns if name != "student"), key=lambda name: int(name.split()[1]))
    same, last = (best["student"] == best[teacher]).to_numpy(), best.index[-1]
    words = f"After the last layer the teacher expects `{best[teacher][last]}`, the student `{best['student'][last]}`"
    if not same[-1]:
        return f"{words}: they differ."
    since = best.index[np.flatnonzero(~same)[-1] + 1] if not same.all() else best.index[0]
    return f"{words}; they name the same token from layer {since} on."
