"""Phrase dropout: some new tokens of the training texts are left apart, as their original tokens.

A prompt may end inside a new token. What follows then stands as original tokens, a context that texts with every new
token in its place never show. So a share of the occurrences is left unmerged, as BPE dropout (Provilkov et al. 2020)
leaves merges out. What stands there is what the original tokenizer gives in this very text: a divergent group is
exchanged as a whole, since an added token can change the tokens beside it (` = None` inside ` = NoneType`).

The extended tokenizer itself always merges, so the head must not learn that a new token may stand apart: the first
original token of such a span is no target (see `AlignedExample.unmerged`). With it a share p would cost -log2(1 - p)
bits at every new token, 0.15 at a tenth.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from vocabx_utils.files import hash_bytes
from vocabx_utils.vocabulary.alignment import AlignedText
from vocabx_utils.vocabulary.spelling import IntArray


def drop_phrases(texts: Iterable[AlignedText], vocab_size: int, share: float, seed: int = 0) -> list[AlignedText]:
    """Leave a share of the new tokens of each text apart.

    What is drawn follows from the seed and the text alone, so neither the order of the texts nor the number of
    processes matters; a text that comes twice is drawn alike. New tokens that share a divergent group, that is have no
    border in common with the original, are drawn together. The draw is the same in every epoch: examples, their
    windows and the teacher's states are made once and serve all epochs and variants. Each token is seen both ways
    all the same, in different texts. A larger share leaves apart what a smaller one does, and more.

    `vocab_size` is V, the first new id; texts in which nothing is left apart are returned as they are.
    """
    return [_drop(text, vocab_size, share, seed) for text in texts]


def _drop(text: AlignedText, vocab_size: int, share: float, seed: int) -> AlignedText:
    if share <= 0 or not len(text.groups):
        return text
    spans = spans_of(text, vocab_size)
    of_text = int(hash_bytes([np.ascontiguousarray(text.original_ids, np.int64).tobytes()])[:16], 16)
    drawn = spans[np.random.default_rng([seed, of_text]).random(len(spans)) < share]
    return unmerge(text, drawn) if len(drawn) else text


def spans_of(text: AlignedText, vocab_size: int) -> IntArray:
    """Return the divergent groups that hold a new token, (S, 4) as `AlignedText.groups`, with all that they changed.

    A group without a new token is there because of the new token beside it, and so is a space that a tokenizer puts
    behind an added token and that has no partner.
    """
    before = np.concatenate([[0], np.cumsum(text.extended_ids >= vocab_size)])  # new tokens before each position
    spans: list[list[int]] = []
    waiting: list[list[int]] = []  # groups without a new token, so far without one beside them either
    for a, b, c, d in text.groups.tolist():
        if before[d] > before[c]:
            while waiting and waiting[-1][3] == c:
                a, _, c, _ = waiting.pop()
            spans.append([a, b, c, d])
            waiting = []
        elif spans and not waiting and spans[-1][3] == c:
            spans[-1][1::2] = b, d
        else:
            waiting.append([a, b, c, d])
    paired = np.zeros(len(text.extended_ids) + 1, dtype=bool)
    paired[text.boundaries[:, 1]] = paired[-1] = True
    for span in spans:
        after = span[3]
        while not paired[after] and text.extended_ends[after] == text.extended_ends[after - 1]:
            after += 1
        span[3] = after
    return np.array(spans, dtype=np.int64).reshape(-1, 4)


def unmerge(text: AlignedText, spans: IntArray) -> AlignedText:
    """Put the original tokens O[a:b] in the place of E[c:d] for some spans (a, b, c, d) of a text, (S, 4), rising."""
    a, b, c, d = spans.T
    shifts = np.concatenate([[0], np.cumsum((b - a) - (d - c))])  # of what stands behind so many groups
    starts = c + shifts[:-1]
    old = text.boundaries
    passed = np.searchsorted(d, old[:, 1], side="right")
    replaced = old[:, 1] >= np.append(c, len(text.extended_ids))[passed]
    kept = (old + np.stack([np.zeros_like(passed), shifts[passed]], axis=1))[~replaced]
    added = [np.arange(n)[:, None] + [i, j] for n, i, j in zip(b - a, a, starts, strict=True)]
    boundaries = np.concatenate([kept, *added])

    def spliced(own: Any, theirs: Any) -> Any:
        at, parts = 0, []
        for first, last, start, stop in spans.tolist():
            parts += [own[at:start], theirs[first:last]]
            at = stop
        return np.concatenate([*parts, own[at:]])

    return AlignedText(
        text.original_ids,
        spliced(text.extended_ids, text.original_ids),
        text.original_ends,
        spliced(text.extended_ends, text.original_ends),
        boundaries[np.argsort(boundaries[:, 0], kind="stable")],
        text.original_special,
        spliced(text.extended_special, text.original_special),
        starts,
    )
