"""What is predicted right after a new token: the next word, or the rest of the word once more?

The thesis reports `fibonacci` continued by `onacci`: a student that takes the new token for its first subtoken says
the others again. Here that is counted over every occurrence of every new token, not picked.

Shapes: V original ids, N new tokens, D width, K occurrences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from vocabx_utils.batching import pad
from vocabx_utils.healing import Healer
from vocabx_utils.rows import NewToken
from vocabx_utils.student import Student, logits
from vocabx_utils.training.batches import align_batch, micro_batches
from vocabx_utils.training.examples import AlignedSet
from vocabx_utils.training.softmax import default_chunk
from vocabx_utils.training.teacher import TeacherStates


@dataclass(frozen=True)
class Continuations:
    """The most probable next token after each occurrence of a new token, (K,) each."""

    token: Tensor  # ids of the new tokens
    student: Tensor  # most probable next ids, over V + N
    teacher: Tensor  # and after the token's last subtoken, over V
    target: Tensor  # the next id in the text, -1 at an end
    second: Tensor  # the new token's second subtoken
    second_mass: Tensor  # the student's probability of that subtoken
    teacher_second_mass: Tensor  # the teacher's

    def summary(self) -> dict[str, float]:
        """Return counts and shares over all occurrences.

        `repeats` counts students that say the second subtoken again, `teacher_repeats` teachers that do.
        """
        count = len(self.token)
        has = self.target >= 0
        return {
            "places": count,
            "repeats": int((self.student == self.second).sum()),
            "teacher_repeats": int((self.teacher == self.second).sum()),
            "agree": int((self.student == self.teacher).sum()),
            "right": int((self.student == self.target)[has].sum()),
            "targets": int(has.sum()),
            "second_mass": float(self.second_mass.double().mean()) if count else float("nan"),
            "teacher_second_mass": float(self.teacher_second_mass.double().mean()) if count else float("nan"),
        }


@torch.no_grad()
def continuations(
    model: Student,
    examples: AlignedSet,
    teacher: TeacherStates,
    tokens: Sequence[NewToken],
    *,
    token_budget: int = 8192,
) -> Continuations:
    """Predict one token after every new token of a split, in passes of `token_budget` tokens, padding included.

    `tokens` are the N new ones in order of id; the teacher's states are those of its last layer.
    """
    second = torch.tensor([t.subtokens[min(1, len(t.subtokens) - 1)] for t in tokens], device=model.device)
    weights = model.full_head()
    found: list[tuple[Tensor, ...]] = []
    for part in micro_batches([len(e.ids) for e in examples.examples], range(len(examples)), token_budget):
        batch = align_batch(examples, part, "last", teacher.rows).to(model.device)
        hidden = teacher.beginnings.hidden(model, batch.ids, part, new_at=batch.new_at)[0].flatten(0, 1)
        at = batch.positions[: len(batch.merged)]
        ids = batch.ids.reshape(-1)[at]
        chosen = torch.nonzero(batch.merged & (ids >= model.vocab_size)).squeeze(1)
        for few in chosen.split(default_chunk(len(weights), model.device)):
            after = second[ids[few] - model.vocab_size]
            mine = logits(hidden[at[few]], weights, model.transform)
            theirs = logits(teacher.take(batch.teacher_rows[few], model.device), model.head, model.transform)
            best = ids[few], mine.argmax(-1), theirs.argmax(-1), batch.targets[few]
            found.append((*best, after, _mass(mine, after), _mass(theirs, after)))
    if not found:
        empty = torch.zeros(0, dtype=torch.long)
        return Continuations(empty, empty, empty, empty, empty, empty.float(), empty.float())
    return Continuations(*(torch.cat(column).cpu() for column in zip(*found, strict=True)))


def _mass(scores: Tensor, ids: Tensor) -> Tensor:
    return torch.softmax(scores, -1).gather(1, ids[:, None]).squeeze(1)


@torch.no_grad()
def sample_after(
    model: Student,
    prefixes: Sequence[np.ndarray[Any, Any]],
    length: int,
    *,
    greedy: bool = True,
    seed: int = 0,
    heal: Healer | None = None,
) -> list[list[int]]:
    """Continue some prefixes, such as those that end with a new token; return the added ids.

    Args:
        greedy: take the most probable token, else sample at temperature 1.
        heal: for prefixes that end anywhere: continue each from where `Healer.cut` takes it back to, and say again
            what was taken back; the added ids then begin there.
    """
    rests = [b""] * len(prefixes)
    if heal is not None:
        cuts = [heal.cut(prefix.tolist()) for prefix in prefixes]
        prefixes, rests = [p[:kept] for p, (kept, _) in zip(prefixes, cuts, strict=True)], [rest for _, rest in cuts]
    generator = torch.Generator().manual_seed(seed)
    ids, mask = pad(prefixes, left=True)
    width = ids.shape[1]
    weights = model.full_head()
    recurrent = getattr(model.model, "_is_stateful", False)  # keeps states of another kind: all is read again
    cache, unread = None if recurrent else DynamicCache(), ids
    for _ in range(length):
        hidden, _layer = model.hidden(unread.to(model.device), mask.to(model.device), cache=cache)
        scores = logits(hidden[:, -1], weights, model.transform).cpu()
        if heal is not None:
            scores = heal.hold(scores, rests)
        chosen = scores.argmax(-1, keepdim=True)
        if not greedy:
            chosen = torch.multinomial(torch.softmax(scores, -1), 1, generator=generator)
        if heal is not None:
            rests = [heal.after(rest, token) for rest, token in zip(rests, chosen[:, 0].tolist(), strict=True)]
        ids = torch.cat([ids, chosen], 1)
        unread = ids if recurrent else chosen
        mask = torch.cat([mask, torch.ones_like(chosen)], 1)
    return [row[width:].tolist() for row in ids]
