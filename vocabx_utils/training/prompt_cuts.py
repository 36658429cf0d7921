"""Prompts that end inside a new token: how far the student is from the teacher there, against other places.

A prompt may end anywhere. Cut inside a new token it stands as original tokens (or shorter new ones), in a context that
texts with every new token in its place never show. Every such place is listed, and KL(teacher || student) of the next
token is measured right behind the cut, beside that at ends of new tokens and at all other places.

Shapes: V original ids, N new tokens, D width, C cuts of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vocabx_utils.batching import pad
from vocabx_utils.intervals import Interval, ratio_interval
from vocabx_utils.models import BaseModel
from vocabx_utils.student import Student, logits
from vocabx_utils.training.batches import micro_batches
from vocabx_utils.training.softmax import default_chunk
from vocabx_utils.vocabulary.alignment import align_texts
from vocabx_utils.vocabulary.encoding import encode_all
from vocabx_utils.vocabulary.spelling import spelling_of
from vocabx_utils.vocabulary.tokens import Extension

Place = Literal["inside", "end", "outside"]
PLACES: tuple[Place, ...] = ("inside", "end", "outside")


@dataclass(frozen=True)
class Cut:
    """A prompt made by cutting a text."""

    text: int  # its number
    prompt: str  # what is left of it, from a border that both tokenizers share on
    place: Place  # `inside` a new token, at its `end`, or `outside` of any
    token: int = -1  # id of that new token
    depth: int = 0  # bytes of it that the prompt holds


def list_cuts(extension: Extension, texts: Iterable[str], *, context: int = 1024) -> list[Cut]:
    """List every place between two characters of some texts, in order: inside new tokens, at their ends, outside.

    Args:
        texts: read as the tokenizer's normaliser leaves them.
        context: most bytes of a prompt; longer ones begin later, at a border that both tokenizers share (and end
            inside a token all the same; where there is no such border, at the text's beginning).
    """
    spelling = spelling_of(extension.original)
    normal = [spelling.normalise(text) for text in texts]
    found: list[Cut] = []
    for number, (text, both) in enumerate(zip(normal, align_texts(extension, normal), strict=True)):
        size = len(text.encode())
        own = int(both.original_ends[-1]) - size if len(both.original_ends) else 0  # a space of the tokenizer's own
        ends = np.maximum(both.extended_ends - own, 0)
        holders = _holders(both.extended_ids, ends, extension.V, size)
        borders = np.unique(np.maximum(both.original_ends[both.boundaries[:, 0]] - own, 0))
        places = np.cumsum([0, *(len(c.encode()) for c in text)])  # bytes before each character
        for characters, place in enumerate(places.tolist()):
            if not 0 < place < size:
                continue
            at = int(np.searchsorted(borders, place - context))
            start = int(borders[at]) if place > context and at < len(borders) and borders[at] < place else 0
            prompt = text[int(np.searchsorted(places, start)) : characters]
            token, depth, width = (int(value) for value in holders[place])
            if token < 0:
                found.append(Cut(number, prompt, "outside"))
            else:
                found.append(Cut(number, prompt, "end" if depth == width else "inside", token, depth))
    return found


def _holders(ids: np.ndarray, ends: np.ndarray, first: int, size: int) -> np.ndarray:
    """For each byte place 0 … size: the new token that it lies in or at the end of, its bytes before it, its width."""
    holders = np.full((size + 1, 3), -1, dtype=np.int64)
    starts = np.concatenate([[0], ends[:-1]])
    for at in np.flatnonzero(ids >= first):
        inside = np.arange(starts[at] + 1, ends[at] + 1)
        holders[inside] = np.stack([np.full_like(inside, ids[at]), inside - starts[at], inside * 0 + len(inside)], 1)
    return holders


def choose_cuts(cuts: Sequence[Cut], limit: int, seed: int = 0) -> list[Cut]:
    """Keep at most `limit` cuts of each kind of place, drawn evenly, in their order."""
    generator, kept = np.random.default_rng(seed), []
    for place in PLACES:
        numbers = [number for number, cut in enumerate(cuts) if cut.place == place]
        kept += generator.permutation(numbers)[:limit].astype(int).tolist()
    return [cuts[number] for number in sorted(kept)]


@torch.no_grad()
def measure_cuts(
    base: BaseModel, student: Student, extension: Extension, cuts: Sequence[Cut], *, token_budget: int = 4096
) -> pd.DataFrame:
    """Predict one token behind each cut: the teacher from the original tokens of the prompt, the student from its own.

    The teacher is the base, the student has the rows of this extension; a pass has `token_budget` tokens with padding.

    Returns:
        A line a cut: `text`, `place`, `token`, `depth`, `kl` (nats, over V), `new_mass` (the student's probability of
        all new tokens together, over V + N).
    """
    prompts = [cut.prompt for cut in cuts]
    teacher = Student(base.model, base.vocab_size)
    theirs, mine = (encode_all(tokenizer, prompts) for tokenizer in (extension.original, extension.extended))
    longest = [max(len(a), len(b)) for a, b in zip(theirs, mine, strict=True)]
    kl, mass = np.zeros(len(cuts)), np.zeros(len(cuts))
    for part in micro_batches(longest, range(len(cuts)), token_budget):
        goal = _last_states(teacher, [theirs[i] for i in part])  # (C, D)
        state = _last_states(student, [mine[i] for i in part])  # (C, D)
        size = default_chunk(student.vocab_size + student.n_new, student.device)
        pairs = zip(goal.split(size), state.split(size), strict=True)
        found = zip(*(_compare(teacher, student, *few) for few in pairs), strict=True)
        kl[part], mass[part] = (torch.cat(values).cpu().numpy() for values in found)
    columns = {name: [getattr(cut, name) for cut in cuts] for name in ("text", "place", "token", "depth")}
    return pd.DataFrame({**columns, "kl": kl, "new_mass": mass})


def summarize_cuts(measured: pd.DataFrame) -> pd.DataFrame:
    """Return number, mean and 95 % interval of both measures by place; texts are the sample.

    Columns: cuts, texts, and for `kl` and `new_mass` each the mean, `_low` and `_high`.
    """
    rows = {}
    for place in PLACES:
        chosen = measured[measured["place"] == place]
        groups = chosen.groupby("text")
        row: dict[str, float] = {"cuts": len(chosen), "texts": len(groups)}
        for name in ("kl", "new_mass"):
            nothing = Interval(np.nan, np.nan, np.nan)
            interval = ratio_interval(groups[name].sum(), groups.size()) if len(chosen) else nothing
            row |= {name: interval.estimate, f"{name}_low": interval.low, f"{name}_high": interval.high}
        rows[place] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("place").astype({"cuts": int, "texts": int})


def _last_states(model: Student, texts: Sequence[Sequence[int]]) -> Tensor:
    """Final states behind texts, (C, D)."""
    hidden, _ = model.hidden(pad(texts)[0].to(model.device))
    return hidden[torch.arange(len(texts)), torch.tensor([len(text) - 1 for text in texts])]


def _compare(teacher: Student, student: Student, goal: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """(C,) KL over V and (C,) probability of all new tokens, float64."""
    scores = logits(state, student.full_head(), student.transform)  # (C, V + N)
    log_p = teacher.log_probabilities(goal)  # (C, V)
    log_q = torch.log_softmax(scores[:, : student.vocab_size], -1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1)
    new = torch.logsumexp(scores[:, student.vocab_size :], -1) if student.n_new else log_q.new_full(kl.shape, -np.inf)
    return kl.double(), (new - torch.logsumexp(scores, -1)).exp().double()
