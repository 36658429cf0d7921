"""Run teacher and student on the same texts and compare them: KL by position, hidden states by layer, logit
lens.

The teacher reads the original tokens, the student the extended ones. Both are the same frozen model: the
student's
new rows enter as input vectors, so no copy of the model is made and nothing is changed. Logits of new
tokens are
not part of the comparison (thesis, `fig:complete_loss_pipeline`), so head rows play no role here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from vocabx_utils.analysis.similarity import cosine
from vocabx_utils.models import BaseModel
from vocabx_utils.student import embed, final_norm, logit_transform, logits

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["KLMeter", "PairedText", "encode", "hidden_similarity", "logit_lens", "windows"]

_CHUNK = 256
"""Positions whose logits are in memory at a time: 256 × V float32, twice."""
_KEPT_BYTES = 1 << 28
"""Largest teacher distribution that is kept; above it, the teacher's head runs again for every measurement."""


@dataclass(frozen=True, eq=False)
class PairedText:
    """One text under both tokenizers, with the positions at which both have read the same bytes.

    Attributes:
        original_ids: To ids for the teacher.
        extended_ids: Te ids for the student.
        pairs: (P, 2) int64 positions (original, extended), ascending in both columns; the `boundaries` of
            `vocabulary.alignment.align_text`.
    """

    original_ids: tuple[int, ...]
    extended_ids: tuple[int, ...]
    pairs: np.ndarray

    @property
    def merged(self) -> np.ndarray:
        """(P,) bool, True where the student's token is another one than the teacher's: the end of a merged span."""
        original, extended = np.asarray(self.original_ids), np.asarray(self.extended_ids)
        return original[self.pairs[:, 0]] != extended[self.pairs[:, 1]]

    def __post_init__(self) -> None:
        if self.pairs.ndim != 2 or self.pairs.shape[1] != 2:
            raise ValueError(f"pairs are {self.pairs.shape}; expected (P, 2).")
        if len(self.pairs) and (self.pairs.max(0) >= (len(self.original_ids), len(self.extended_ids))).any():
            raise ValueError(
                f"A pair lies outside the text ({len(self.original_ids)} and {len(self.extended_ids)} tokens)."
            )

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
    """Cut a text to windows around its new tokens; windows do not overlap.

    Both ends lie where both tokenizations have read the same text, so that a window is a text of its own.

    Args:
        text: the whole text.
        first_new_id: V.
        before: paired positions kept before a new token.
        after: paired positions kept from it on; new tokens in that range get no window of their own.
        limit: at most so many windows.

    Yields:
        Windows in the order of the text. A new token without a paired position gives none.
    """
    new = np.flatnonzero(np.asarray(text.extended_ids)[text.pairs[:, 1]] >= first_new_id)
    covered, made = 0, 0
    for at in new.tolist():
        if limit is not None and made >= limit:
            return
        if at < covered:
            continue
        low, high = max(covered, at - before), min(len(text.pairs), at + after)
        covered, made = high, made + 1
        yield _cut(text, low, high)


def _cut(text: PairedText, low: int, high: int) -> PairedText:
    start = text.pairs[low - 1] + 1 if low else np.zeros(2, dtype=np.int64)
    stop = text.pairs[high - 1] + 1
    return PairedText(
        text.original_ids[start[0] : stop[0]],
        text.extended_ids[start[1] : stop[1]],
        text.pairs[low:high] - start,
    )


def encode(
    base: BaseModel,
    sequences: Sequence[Sequence[int]],
    new_rows: Tensor | None = None,
    first_new_id: int | None = None,
    *,
    layers: bool = False,
    batch_size: int = 8,
) -> list[Tensor]:
    """Run the frozen model and return its hidden states.

    Args:
        base: the model.
        sequences: ids, original or extended.
        new_rows: (N, D) input rows of the new tokens; needed if a sequence holds one.
        first_new_id: id of the first of them; V if left out.
        layers: return all layers, the embedding first, instead of the last one.
        batch_size: sequences in one forward pass, sorted by length.

    Returns:
        One tensor for each sequence: (T, D), after the final norm, or (layers + 1, T, D), in the model's
        dtype.

    Raises:
        ValueError: a sequence is empty or holds an id without a row.
    """
    first = base.vocab_size if first_new_id is None else first_new_id
    rows = base.input_rows.new_zeros(0, base.width) if new_rows is None else new_rows.to(base.input_rows)
    known = first + len(rows)
    for at, ids in enumerate(sequences):
        if not len(ids) or max(ids) >= known:
            raise ValueError(f"Sequence {at} is empty or has an id without a row (there are {known} rows).")
    found: list[Any] = [None] * len(sequences)
    order = sorted(range(len(sequences)), key=lambda at: len(sequences[at]))
    for begin in range(0, len(order), batch_size):
        chosen = order[begin : begin + batch_size]
        states = _forward(base, [sequences[at] for at in chosen], rows, first, layers)
        for row, at in enumerate(chosen):
            found[at] = states[..., row, : len(sequences[at]), :].clone()
    return found


@torch.no_grad()
def _forward(base: BaseModel, sequences: Sequence[Sequence[int]], new_rows: Tensor, first: int, layers: bool) -> Tensor:
    length = max(map(len, sequences))
    ids = torch.zeros(len(sequences), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
        mask[row, : len(sequence)] = 1
    table: Any = base.model.get_input_embeddings()
    output = base.model.base_model(
        inputs_embeds=embed(table, ids.to(base.device), first, new_rows),
        attention_mask=mask.to(base.device),
        output_hidden_states=layers,
        use_cache=False,
    )
    return torch.stack(output.hidden_states) if layers else output.last_hidden_state


def _log_probabilities(base: BaseModel, hidden: Tensor) -> Tensor:
    """Log-softmax over the V original tokens in float32, of the family's own logits; padding rows are left out."""
    head = base.head_rows[: base.vocab_size]
    return torch.log_softmax(logits(hidden, head, logit_transform(base.model.config)), dim=-1)


class KLMeter:
    """Measures the KL divergence of the student for any input rows on fixed texts; the teacher runs once.

    Only positions from the first new token of a text on count: before it both read the same ids and KL is 0.
    """

    def __init__(self, base: BaseModel, texts: Sequence[PairedText], first_new_id: int, batch_size: int = 8) -> None:
        """Run the teacher.

        Args:
            base: the frozen model.
            texts: what both read; those without a new token contribute nothing.
            first_new_id: V.
            batch_size: texts in one forward pass.

        Raises:
            ValueError: no text has a paired position at or after a new token.
        """
        self._base, self._first, self._batch = base, first_new_id, batch_size
        self.texts = tuple(text for text in texts if (text.since_new(first_new_id) >= 0).any())
        if not self.texts:
            raise ValueError(f"None of the {len(texts)} texts has a position to compare from a new token on.")
        self._used = [text.since_new(first_new_id) >= 0 for text in self.texts]
        states = encode(base, [text.original_ids for text in self.texts], batch_size=batch_size)
        self._teacher = torch.cat(
            [s[text.pairs[use, 0]] for s, text, use in zip(states, self.texts, self._used, strict=True)]
        )

        chunks = range(-(-len(self._teacher) // _CHUNK))
        small = len(self._teacher) * base.vocab_size * 4 <= _KEPT_BYTES
        self._kept = [self._teacher_part(at) for at in chunks] if small else []

    def _teacher_part(self, chunk: int) -> Tensor:
        return _log_probabilities(self._base, self._teacher[chunk * _CHUNK : (chunk + 1) * _CHUNK])

    @property
    def positions(self) -> int:
        """Number of positions compared."""
        return len(self._teacher)

    def per_position(self, input_rows: Tensor) -> np.ndarray:
        """KL(teacher ‖ student) at each position, text by text.

        Args:
            input_rows: (N, D) input rows of the new tokens.

        Returns:
            (positions,) float64 in nats.
        """
        states = encode(
            self._base, [t.extended_ids for t in self.texts], input_rows, self._first, batch_size=self._batch
        )
        student = torch.cat([s[t.pairs[use, 1]] for s, t, use in zip(states, self.texts, self._used, strict=True)])
        parts = []
        for at, part in enumerate(student.split(_CHUNK)):
            log_p = self._kept[at] if self._kept else self._teacher_part(at)
            parts.append((log_p.exp() * (log_p - _log_probabilities(self._base, part))).sum(-1))
        return torch.cat(parts).double().cpu().numpy()

    def mean(self, input_rows: Tensor) -> float:
        """Mean KL over all positions, in nats: the `measure` of a causal sweep."""
        return float(self.per_position(input_rows).mean())

    def by_text(self, input_rows: Tensor) -> np.ndarray:
        """Sum of KL over the positions of each text, (texts,) float64 in nats."""
        ends = np.cumsum([int(use.sum()) for use in self._used])
        return np.array([part.sum() for part in np.split(self.per_position(input_rows), ends[:-1])])

    def table(self, input_rows: Tensor) -> pd.DataFrame:
        """KL by position with what stands there.

        Returns:
            text (index), original and extended (positions), token (the student's id), merged (bool),
            since_new (student tokens since the last new one), kl (nats).
        """
        import pandas as pd

        parts = []
        for at, (text, use) in enumerate(zip(self.texts, self._used, strict=True)):
            part = pd.DataFrame(text.pairs[use], columns=["original", "extended"])
            part.insert(0, "text", at)
            part["token"] = np.asarray(text.extended_ids)[text.pairs[use, 1]]
            part["merged"] = text.merged[use]
            part["since_new"] = text.since_new(self._first)[use]
            parts.append(part)
        return pd.concat(parts, ignore_index=True).assign(kl=self.per_position(input_rows))


def hidden_similarity(
    base: BaseModel, texts: Sequence[PairedText], input_rows: Tensor, first_new_id: int, batch_size: int = 8
) -> pd.DataFrame:
    """Compare hidden states of student and teacher by layer, at boundaries of merged spans and after them.

    Args:
        base: the frozen model.
        texts: what both read.
        input_rows: (N, D) input rows of the new tokens.
        first_new_id: V.
        batch_size: texts in one forward pass.

    Returns:
        One row for each layer (0: embedding) and place (`boundary`, `1 after`, `2-4 after`, `5+ after`): mean cosine,
        mean relative distance ‖h_student − h_teacher‖ / ‖h_teacher‖, and n positions. Layer 0 at a boundary
        compares the new row with the last subtoken's row.
    """
    import pandas as pd

    teacher = encode(base, [t.original_ids for t in texts], layers=True, batch_size=batch_size)
    extended = [t.extended_ids for t in texts]
    student = encode(base, extended, input_rows, first_new_id, layers=True, batch_size=batch_size)
    since = np.concatenate([text.since_new(first_new_id) for text in texts])
    left = torch.cat([h[:, text.pairs[:, 0]] for h, text in zip(teacher, texts, strict=True)], dim=1).float()
    right = torch.cat([h[:, text.pairs[:, 1]] for h, text in zip(student, texts, strict=True)], dim=1).float()
    cosines = cosine(left, right)
    distances = ((right - left).norm(dim=-1) / left.norm(dim=-1)).double().cpu().numpy()
    rows = []
    for place, chosen in _places(since).items():
        for layer in range(len(cosines)):
            if chosen.any():
                picked = (cosines[layer, chosen].mean(), distances[layer, chosen].mean(), int(chosen.sum()))
                rows.append((layer, place, *picked))
    return pd.DataFrame(rows, columns=["layer", "place", "cosine", "distance", "n"])


def _places(since: np.ndarray) -> dict[str, np.ndarray]:
    return {
        "boundary": since == 0,
        "1 after": since == 1,
        "2-4 after": (since >= 2) & (since <= 4),
        "5+ after": since >= 5,
    }


def logit_lens(
    base: BaseModel, text: PairedText, pair: int, input_rows: Tensor, first_new_id: int, k: int = 3
) -> pd.DataFrame:
    """Read the next-token prediction out of every layer, for the teacher along a merged span and for the
    student.

    Every layer's state goes through the model's final norm and its original head (nostalgebraist's logit
    lens, 2020).

    Args:
        base: the frozen model.
        text: a text with a merged span.
        pair: index into `text.pairs` of a new token.
        input_rows: (N, D) input rows of the new tokens.
        first_new_id: V.
        k: tokens listed at each layer.

    Returns:
        One row for each layer and reader (`teacher 1` … for the subtokens, `student`): `top` (k token strings),
        `probability` of the first of them, `kl` from the teacher's final prediction after the span (nats).

    Raises:
        ValueError: there is no new token at that pair.
    """
    import pandas as pd

    i, j = (int(at) for at in text.pairs[pair])
    if text.extended_ids[j] < first_new_id:
        raise ValueError(f"Pair {pair} is token {text.extended_ids[j]}, not a new one (those start at {first_new_id}).")
    begin = int(text.pairs[pair - 1, 0]) + 1 if pair else 0
    [teacher] = encode(base, [text.original_ids[: i + 1]], layers=True)
    [student] = encode(base, [text.extended_ids[: j + 1]], input_rows, first_new_id, layers=True)
    readers = {f"teacher {at - begin + 1}": teacher[:, at] for at in range(begin, i + 1)}
    readers["student"] = student[:, j]
    target = _log_probabilities(base, teacher[-1, i])
    rows = []
    for reader, states in readers.items():
        for layer, log_q in enumerate(_lens(base, states)):
            best = log_q.topk(k)
            tokens = tuple(base.tokenizer.decode([token]) for token in best.indices.tolist())
            kl = float((target.exp() * (target - log_q)).sum())
            rows.append((layer, reader, tokens, float(best.values[0].exp()), kl))
    return pd.DataFrame(rows, columns=["layer", "reader", "top", "probability", "kl"])


@torch.no_grad()
def _lens(base: BaseModel, states: Tensor) -> Tensor:
    norm = final_norm(base.model)
    normed = torch.cat([norm(states[:-1]), states[-1:]])  # the last state comes normed from transformers
    return _log_probabilities(base, normed)
