"""Prefixes that end inside a new token, continued with and without healing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tiny import WIDTH
from training.test_prompt_cuts import extension, models

from vocabx_utils.healing import Healer
from vocabx_utils.student import Student
from vocabx_utils.training.continuations import sample_after
from vocabx_utils.vocabulary.spelling import spelling_of

PROMPTS = ["def f(x):\n", "x naïve ca", "x import nump", "df.groupby y", "x = 1", "def f(x)"]


def healer() -> Healer:
    return Healer(spelling_of(extension().extended).raws)


def read(text: str) -> np.ndarray[Any, Any]:
    return np.array(extension().extended.encode(text, add_special_tokens=False))


def spelled(ids: Any) -> bytes:
    return b"".join(spelling_of(extension().extended).raws[int(token)] for token in ids)


@pytest.mark.parametrize("greedy", [True, False])
def test_the_text_of_a_healed_prompt_is_kept(greedy: bool) -> None:
    _, student = models()
    prefixes = [read(text) for text in PROMPTS]
    for seed in range(1 if greedy else 12):
        added = sample_after(student, prefixes, 12, greedy=greedy, seed=seed, heal=healer())
        for text, prefix, ids in zip(PROMPTS, prefixes, added, strict=True):
            kept, _ = healer().cut(prefix.tolist())
            assert spelled([*prefix[:kept], *ids]).startswith(text.encode())
    together = sample_after(student, prefixes, 6, heal=healer())
    assert together == [sample_after(student, [prefix], 6, heal=healer())[0] for prefix in prefixes]


@pytest.mark.parametrize("text", ["def f(x):\n", "def f(x)", "x import nump", "x naïve ca"])
def test_a_prompt_that_ends_inside_a_phrase_goes_on_as_the_phrase(text: str) -> None:
    base, student = models()
    new = next(t for t in extension().tokens for k in range(1, len(t.text)) if text.endswith(t.text[:k]))
    prefix = read(text)
    kept, taken = healer().cut(prefix.tolist())
    assert spelled(prefix[:kept]) + taken == text.encode() and new.id not in prefix
    with torch.no_grad():
        state = student.hidden(torch.from_numpy(prefix[:kept])[None])[0][0, -1]
    rows = torch.zeros(extension().N, WIDTH)
    rows[new.id - base.vocab_size] = 100 * state / state.norm()
    eager = Student(base.model, base.vocab_size, student.input_rows.detach(), rows)
    (added,) = sample_after(eager, [prefix], 3, heal=healer())
    assert new.raw.startswith(taken)
    assert added[0] == new.id
    assert spelled([*prefix[:kept], *added]).startswith(text.encode())


def test_prefixes_without_an_open_end_are_continued_as_before() -> None:
    _, student = models()
    raws = spelling_of(extension().extended).raws
    closed = [raw if len(raw) == 1 else b"" for raw in raws]  # tokens of one byte cannot run past an end
    prefixes = [read(text) for text in PROMPTS]
    wanted = sample_after(student, prefixes, 5)
    assert sample_after(student, prefixes, 5, heal=Healer(closed)) == wanted
