"""Run teacher and student on the same texts and compare them: KL by position, hidden states by layer, logit lens.

The teacher reads the original tokens, the student the extended ones. Both are the same frozen model: the new rows
enter as input vectors, so no copy of the model is made and nothing is changed. Logits of new tokens are not part of
the comparison (thesis, `fig:complete_loss_pipeline`), so head rows play no role here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vocabx_utils.analysis.similarity import cosine
from vocabx_utils.models import BaseModel
from vocabx_utils.student import Student

_CHUNK = 256
"""Positions whose logits are in memory at a time: 256 × V float32, twice."""
_KEPT_BYTES = 1 << 28
"""Largest teacher distribution that is kept; above it, the teacher's head runs again for every measurement."""


@dataclass(frozen=True, eq=False)
class PairedText:
    """One text under both tokenizers, with the positions at which both have read the same bytes."""

    original_ids: tuple[int, ...]  # To ids for the teacher
    extended_ids: tuple[int, ...]  # Te ids for the student
    pairs: np.ndarray  # (P, 2) int64 positions (original, extended), ascending: the `boundaries` of `align_text`

    @property
    def merged(self) -> np.ndarray:
        """(P,) bool, True where the student's token is another one than the teacher's: the end of a merged span."""
        original, extended = np.asarray(self.original_ids), np.asarray(self.extended_ids)
        return original[self.pairs[:, 0]] != extended[self.pairs[:, 1]]

    def __post_init__(self) -> None:
        if self.pairs.ndim != 2 or self.pairs.shape[1] != 2:
            raise ValueError(f"pairs are {self.pairs.shape}; expected (P, 2).")
        sizes = len(self.original_ids), len(self.extended_ids)
        if len(self.pairs) and (self.pairs.max(0) >= sizes).any():
            raise ValueError(f"A pair lies outside the text ({sizes[0]} and {sizes[1]} tokens).")

    def since_new(self, first_new_id: int) -> np.ndarray:
        """Student tokens since the last new one at each pair, (P,) int64: 0 at a new token, −1 before the first."""
        since, distances = -1, np.full(len(self.extended_ids), -1)
        for at, token in enumerate(self.extended_ids):
            since = 0 if token >= first_new_id else since + (since >= 0)
            distances[at] = since
        return distances[self.pairs[:, 1]]


def windows(
    text: PairedText, first_new_id: int, *, before: int = 24, after: int = 24, limit: int | None = None
) -> Iterator[PairedText]:
    """Cut a text to windows around its new tokens, in their order; windows do not overlap.

    Both ends lie where both tokenizations have read the same text, so that a window is a text of its own: `before`
    paired positions before a new token, and `after` from it on. New tokens in that range get no window of their own,
    and those without a paired position none at all.
    """
    new = np.flatnonzero(np.asarray(text.extended_ids)[text.pairs[:, 1]] >= first_new_id)
    covered, made = 0, 0
    for at in new.tolist():
        if limit is not None and made >= limit:
            return
        if at >= covered:
            low, covered, made = max(covered, at - before), min(len(text.pairs), at + after), made + 1
            yield _cut(text, low, covered)


def _cut(text: PairedText, low: int, high: int) -> PairedText:
    start = text.pairs[low - 1] + 1 if low else np.zeros(2, dtype=np.int64)
    stop = text.pairs[high - 1] + 1
    original, extended = text.original_ids[start[0] : stop[0]], text.extended_ids[start[1] : stop[1]]
    return PairedText(original, extended, text.pairs[low:high] - start)


class KLMeter:
    """Measures the KL divergence of the student for any input rows on fixed texts; the teacher runs once.

    Only positions from the first new token of a text on count: before it both read the same ids and KL is 0.

    Raises:
        ValueError: no text has a paired position at or after a new token.
    """

    def __init__(self, base: BaseModel, texts: Sequence[PairedText], first_new_id: int, batch_size: int = 8) -> None:
        self._base, self._first, self._batch = base, first_new_id, batch_size
        self.texts = tuple(text for text in texts if (text.since_new(first_new_id) >= 0).any())
        if not self.texts:
            raise ValueError(f"None of the {len(texts)} texts has a position to compare from a new token on.")
        self._used = [text.since_new(first_new_id) >= 0 for text in self.texts]
        self._reader = Student(base.model, first_new_id)
        states = self._reader.encode([text.original_ids for text in self.texts], batch_size=batch_size)
        self._teacher = self._compared(states, side=0).split(_CHUNK)
        small = self.positions * base.vocab_size * 4 <= _KEPT_BYTES
        self._kept = [self._reader.log_probabilities(part) for part in self._teacher] if small else []

    def _compared(self, states: Sequence[Tensor], side: int) -> Tensor:
        """(positions, D) states where the reader of this side is compared."""
        parts = zip(states, self.texts, self._used, strict=True)
        return torch.cat([s[text.pairs[use, side]] for s, text, use in parts])

    @property
    def positions(self) -> int:
        """Number of positions compared."""
        return sum(map(len, self._teacher))

    def per_position(self, input_rows: Tensor) -> np.ndarray:
        """KL(teacher ‖ student) with input rows (N, D) at each position, text by text: (positions,) float64, nats."""
        student = Student(self._base.model, self._first, input_rows)
        states = student.encode([t.extended_ids for t in self.texts], batch_size=self._batch)
        parts = []
        for at, part in enumerate(self._compared(states, side=1).split(_CHUNK)):
            log_p = self._kept[at] if self._kept else self._reader.log_probabilities(self._teacher[at])  # (c, V)
            parts.append((log_p.exp() * (log_p - student.log_probabilities(part))).sum(-1))  # (c,)
        return torch.cat(parts).double().cpu().numpy()

    def by_text(self, input_rows: Tensor) -> np.ndarray:
        """Return the sum of KL over the positions of each text, (texts,) float64 in nats."""
        ends = np.cumsum([int(use.sum()) for use in self._used])
        return np.array([part.sum() for part in np.split(self.per_position(input_rows), ends[:-1])])

    def table(self, input_rows: Tensor) -> pd.DataFrame:
        """Return KL (nats) by position with what stands there.

        Columns: text (index), original and extended (positions), token (the student's id), merged (bool), since_new
        (student tokens since the last new one), kl.
        """
        parts = []
        for at, (text, use) in enumerate(zip(self.texts, self._used, strict=True)):
            token = np.asarray(text.extended_ids)[text.pairs[use, 1]]
            columns = {"token": token, "merged": text.merged[use], "since_new": text.since_new(self._first)[use]}
            part = pd.DataFrame(text.pairs[use], columns=["original", "extended"]).assign(**columns)
            part.insert(0, "text", at)
            parts.append(part)
        return pd.concat(parts, ignore_index=True).assign(kl=self.per_position(input_rows))


def hidden_similarity(
    base: BaseModel, texts: Sequence[PairedText], input_rows: Tensor, first_new_id: int
) -> pd.DataFrame:
    """Compare hidden states of student and teacher by layer, at boundaries of merged spans and after them.

    Returns:
        One row for each layer (0: embedding) and place (`boundary`, `1 after`, `2-4 after`, `5+ after`): mean cosine,
        mean relative distance ‖h_student − h_teacher‖ / ‖h_teacher‖, and n positions. Layer 0 at a boundary
        compares the new row with the last subtoken's row.
    """
    reader = Student(base.model, first_new_id, input_rows)
    teacher = reader.encode([t.original_ids for t in texts], layers=True)
    student = reader.encode([t.extended_ids for t in texts], layers=True)
    since = np.concatenate([text.since_new(first_new_id) for text in texts])  # (P,)
    left = torch.cat([h[:, text.pairs[:, 0]] for h, text in zip(teacher, texts, strict=True)], dim=1).float()
    right = torch.cat([h[:, text.pairs[:, 1]] for h, text in zip(student, texts, strict=True)], dim=1).float()
    cosines = cosine(left, right)  # (L + 1, P)
    distances = ((right - left).norm(dim=-1) / left.norm(dim=-1)).double().cpu().numpy()
    rows = []
    places = {"boundary": (0, 0), "1 after": (1, 1), "2-4 after": (2, 4), "5+ after": (5, np.inf)}
    for place, (low, high) in places.items():
        chosen = (since >= low) & (since <= high)
        for layer in range(len(cosines) if chosen.any() else 0):
            means = cosines[layer, chosen].mean(), distances[layer, chosen].mean()
            rows.append((layer, place, *means, int(chosen.sum())))
    return pd.DataFrame(rows, columns=["layer", "place", "cosine", "distance", "n"])


def logit_lens(
    base: BaseModel, text: PairedText, pair: int, input_rows: Tensor, first_new_id: int, k: int = 3
) -> pd.DataFrame:
    """Read the next-token prediction out of every layer, for the teacher along a merged span and for the student.

    Every layer's state goes through the model's final norm and its original head (nostalgebraist's logit lens, 2020).

    Returns:
        One row for each layer and reader (`teacher 1` … for the subtokens, `student`): `top` (k token strings),
        `probability` of the first of them, `kl` from the teacher's final prediction after the span (nats), and `read`,
        the token at the reader's position; a new token is spelled by the tokens that it replaces.

    Raises:
        ValueError: there is no new token at that index of `text.pairs`.
    """
    i, j = (int(at) for at in text.pairs[pair])
    if text.extended_ids[j] < first_new_id:
        raise ValueError(f"Pair {pair} is token {text.extended_ids[j]}, not a new one (those start at {first_new_id}).")
    begin = int(text.pairs[pair - 1, 0]) + 1 if pair else 0
    reader = Student(base.model, first_new_id, input_rows)
    [teacher] = reader.encode([text.original_ids[: i + 1]], layers=True)  # (L + 1, To, D)
    [student] = reader.encode([text.extended_ids[: j + 1]], layers=True)  # (L + 1, Te, D)
    span = text.original_ids[begin : i + 1]
    readers = [(f"teacher {at + 1}", teacher[:, begin + at], [read]) for at, read in enumerate(span)]
    target = reader.log_probabilities(teacher[-1, i])  # (V,)
    rows = []
    for name, states, read in [*readers, ("student", student[:, j], list(span))]:
        for layer, log_q in enumerate(_lens(reader, states)):
            best = log_q.topk(k)
            tokens = tuple(base.tokenizer.decode([token]) for token in best.indices.tolist())
            kl = float((target.exp() * (target - log_q)).sum())
            rows.append((layer, name, tokens, float(best.values[0].exp()), kl, base.tokenizer.decode(read)))
    return pd.DataFrame(rows, columns=["layer", "reader", "top", "probability", "kl", "read"])


@torch.no_grad()
def _lens(reader: Student, states: Tensor) -> Tensor:
    """(L + 1, V) log-probabilities of the states (L + 1, D) of one position."""
    normed = torch.cat([reader.final_norm(states[:-1]), states[-1:]])  # the last one comes normed from transformers
    return reader.log_probabilities(normed)
