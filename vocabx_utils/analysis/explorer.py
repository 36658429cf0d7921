"""Answers about one new token, quick enough for a slider: subtokens, cosines, neighbours, places, KL, a map.

This module computes and returns tables; `explorer_view` shows them. What needs the model (KL by position) is given
as a table that was measured before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vocabx_utils.analysis.divergence import PairedText
from vocabx_utils.analysis.similarity import POSITIONS, cosine, nearest_rows, subtoken_cosines
from vocabx_utils.rows import MATRICES, Matrix, NewToken, RowHistory

Decode = Callable[[Sequence[int]], str]
_OCCURRENCES, _AROUND, _KL_AROUND = 5, 10, 6  # places shown, tokens on either side of one, positions of KL


class Occurrence(NamedTuple):
    """A place where a new token stands: the text before, the token, the text behind."""

    text: int
    position: int
    before: str
    token: str
    behind: str


@dataclass(frozen=True)
class TokenView:
    """Everything the explorer shows about one token at one epoch."""

    token: NewToken
    variant: str
    epoch: int
    matrix: Matrix
    subtokens: pd.DataFrame  # id, text, cosine, norm of each subtoken's row
    cosines: pd.DataFrame  # position, epoch, cosine: the token's course over all epochs
    neighbours: pd.DataFrame  # rank, id, text, cosine among the original rows
    new_neighbours: pd.DataFrame  # the same among the other new rows
    occurrences: tuple[Occurrence, ...]  # places in the given texts
    kl: pd.DataFrame  # KL by position around the token (columns of `KLMeter.table`), empty if none was given
    points: pd.DataFrame  # for a map: x, y, kind, label, token
    norm: float
    remarks: tuple[str, ...]  # what could not be shown, in words


class Explorer:
    """Holds a run's rows and answers for one token at a time.

    Args:
        original: `input` and `head` rows of the base model, (V, D) each: ids that can occur, no padding. They must be
            those that the new rows were trained beside; `explorer_runs.open_explorer` makes sure of that.
        decode: extended ids to text.
        kl_tables: results of `KLMeter.table` on `texts`, by variant and epoch.
        run: name of the run that the rows are of.

    Raises:
        ValueError: there are no tokens or no variants.
    """

    def __init__(
        self,
        tokens: Sequence[NewToken],
        histories: Mapping[str, RowHistory],
        original: Mapping[Matrix, Tensor],
        decode: Decode,
        *,
        texts: Sequence[PairedText] = (),
        kl_tables: Mapping[tuple[str, int], pd.DataFrame] | None = None,
        run: str = "",
    ) -> None:
        if not tokens or not histories:
            given = f"{len(tokens)} tokens and {len(histories)} variants"
            raise ValueError(f"{given}; an explorer needs at least one of each.")
        self.run = run
        self.tokens, self.histories, self.texts = tuple(tokens), dict(histories), tuple(texts)
        self._original = {matrix: original[matrix].detach().float().cpu() for matrix in MATRICES}
        self._norms = {matrix: rows.norm(dim=1) for matrix, rows in self._original.items()}
        self._decode = decode
        self._kl_tables = dict(kl_tables or {})
        self._places = self._find_places()
        self.rows = lru_cache(maxsize=16)(self._read_rows)
        self._basis = lru_cache(maxsize=8)(self._principal_basis)

    @property
    def preferred(self) -> str:
        """The variant to open on: a trained one whose KL was measured, where there is one; of those, one of KL."""
        trained = [name for name, history in self.histories.items() if history.last > 0]
        measured = [name for name in trained if (name, self.histories[name].last) in self._kl_tables]
        candidates = measured or trained or list(self.histories)
        return next((name for name in candidates if "_kl" in name), candidates[-1])

    def search(self, words: str) -> list[int]:
        """Find indices of tokens by a part of their text (case ignored), first those that begin so; "" finds all."""
        wanted = words.casefold()
        found = [at for at, token in enumerate(self.tokens) if wanted in token.text.casefold()]
        return sorted(found, key=lambda at: not self.tokens[at].text.casefold().strip().startswith(wanted.strip()))

    def view(self, variant: str, token: int, epoch: int, matrix: Matrix = "input", k: int = 8) -> TokenView:
        """Answer for the token at one index of `tokens`; without this epoch the nearest earlier one is shown, and said.

        Raises:
            ValueError: there is no such variant or token.
        """
        history = self._history(variant)
        if not 0 <= token < len(self.tokens):
            raise ValueError(f"Token {token} is not one of the {len(self.tokens)} new tokens.")
        shown = max((e for e in history.epochs if e <= epoch), default=history.first)
        rows = self.rows(variant, shown, matrix)  # (N, D)
        row, info = rows[token], self.tokens[token]
        remarks = {
            f"no checkpoint of epoch {epoch}; epoch {shown} is shown": shown != epoch,
            f"checkpoints are missing for epochs {list(history.missing)}": bool(history.missing),
            "one subtoken only: first and last are the same, there is no intermediate": len(info.subtokens) == 1,
            "the row is zero or holds NaN: it has no direction and no neighbours": not (
                torch.isfinite(row).all() and row.any()
            ),
        }
        return TokenView(
            info,
            variant,
            shown,
            matrix,
            subtokens=self._subtoken_table(row, info, matrix),
            cosines=self._course(variant, token, matrix),
            neighbours=self._neighbours(row, matrix, k),
            new_neighbours=self._new_neighbours(rows, token, k),
            occurrences=tuple(self._occurrences(token)),
            kl=self._kl(variant, shown, info),
            points=self._points(variant, shown, token, matrix),
            norm=float(row.norm()),
            remarks=tuple(remark for remark, holds in remarks.items() if holds),
        )

    def _history(self, variant: str) -> RowHistory:
        if variant not in self.histories:
            raise ValueError(f"No variant {variant!r}; this run has {sorted(self.histories)}.")
        return self.histories[variant]

    def _read_rows(self, variant: str, epoch: int, matrix: Matrix) -> Tensor:
        rows = self._history(variant).rows(epoch, matrix)
        if len(rows) != len(self.tokens):
            raise ValueError(f"{variant}, epoch {epoch} has {len(rows)} rows for {len(self.tokens)} tokens.")
        return rows

    def _subtoken_table(self, row: Tensor, info: NewToken, matrix: Matrix) -> pd.DataFrame:
        ids = list(info.subtokens)
        texts, cosines = [self._decode([i]) for i in ids], cosine(row, self._original[matrix][ids])
        return pd.DataFrame({"id": ids, "text": texts, "cosine": cosines, "norm": self._norms[matrix][ids].numpy()})

    def _course(self, variant: str, token: int, matrix: Matrix) -> pd.DataFrame:
        history, subtokens = self._history(variant), [self.tokens[token].subtokens]
        rows = []
        for epoch in history.epochs:
            found = subtoken_cosines(history.row(epoch, matrix, token)[None], self._original[matrix], subtokens)
            rows += [(position, epoch, found[position][0]) for position in POSITIONS]
        return pd.DataFrame(rows, columns=["position", "epoch", "cosine"])

    def _neighbours(self, row: Tensor, matrix: Matrix, k: int) -> pd.DataFrame:
        ids, values = nearest_rows(row, self._original[matrix], k, self._norms[matrix])
        return _ranked([(i, self._decode([i]), value) for i, value in zip(ids.tolist(), values, strict=True)])

    def _new_neighbours(self, rows: Tensor, token: int, k: int) -> pd.DataFrame:
        at, values = nearest_rows(rows[token], rows, k + 1)
        others = [(self.tokens[i], value) for i, value in zip(at, values, strict=True) if i != token][:k]
        return _ranked([(other.id, other.text, value) for other, value in others])

    def _find_places(self) -> dict[int, list[tuple[int, int]]]:
        first, places = self.tokens[0].id, defaultdict(list)
        for at, text in enumerate(self.texts):
            for position, token in enumerate(text.extended_ids):
                if token >= first:
                    places[token - first].append((at, position))
        return places

    def _occurrences(self, token: int) -> Iterator[Occurrence]:
        for at, position in self._places.get(token, [])[:_OCCURRENCES]:
            ids = self.texts[at].extended_ids
            before, behind = ids[max(0, position - _AROUND) : position], ids[position + 1 : position + 1 + _AROUND]
            yield Occurrence(at, position, *map(self._decode, (before, [ids[position]], behind)))

    def _kl(self, variant: str, epoch: int, info: NewToken) -> pd.DataFrame:
        table = self._kl_tables.get((variant, epoch))
        if table is None:
            return pd.DataFrame(columns=["text", "extended", "token", "kl", "shown"])
        at = np.flatnonzero(table["token"].to_numpy() == info.id)
        if not len(at):
            return table.iloc[:0].assign(shown=[])
        part = table.iloc[at[0] : at[0] + _KL_AROUND]
        part = part[part["text"] == part["text"].iloc[0]]
        return part.assign(shown=[self._decode([int(i)]) for i in part["token"]])

    def _principal_basis(self, variant: str, matrix: Matrix) -> tuple[Tensor, Tensor]:
        """Centre and two principal directions of the last rows: one basis for all epochs, so that points move."""
        rows = self.rows(variant, self._history(variant).last, matrix)
        rows = rows[torch.isfinite(rows).all(dim=1)]
        centre = rows.mean(0) if len(rows) else torch.zeros(self._original[matrix].shape[1])
        rank, directions = min(2, *rows.shape), rows.new_zeros(len(centre), 0)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            if rank:
                directions = torch.pca_lowrank(rows - centre, q=rank, center=False)[2]
        directions = directions * directions.sum(0).sign()
        return centre, torch.nn.functional.pad(directions, (0, 2 - rank))

    def _points(self, variant: str, epoch: int, token: int, matrix: Matrix) -> pd.DataFrame:
        centre, directions = self._basis(variant, matrix)
        ids = list(self.tokens[token].subtokens)
        rows = torch.cat([self.rows(variant, epoch, matrix), self._original[matrix][ids]])
        places = torch.nan_to_num((rows - centre) @ directions).numpy()
        n = len(self.tokens)
        return pd.DataFrame(places, columns=["x", "y"]).assign(
            kind=["new"] * n + ["subtoken"] * len(ids),
            label=[t.text for t in self.tokens] + [self._decode([i]) for i in ids],
            token=[*range(n), *[token] * len(ids)],
        )


def _ranked(rows: Sequence[tuple[int, str, float]]) -> pd.DataFrame:
    table = pd.DataFrame(rows, columns=["id", "text", "cosine"])
    table.insert(0, "rank", range(1, len(table) + 1))
    return table
