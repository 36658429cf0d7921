"""Texts of ids to tensors: padding, and batches of like length, so that padding stays rare.

What is padding is known from lengths, never from ids, so a text may hold the padding token's id (case: pad equals
end-of-text).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor


def pad(
    sequences: Sequence[Sequence[int] | np.ndarray], *, left: bool = False, value: int = 0
) -> tuple[Tensor, Tensor]:
    """Put sequences into one tensor.

    Under a causal mask a token never looks to its right, so a batch that is padded on the right (the default) may do
    without the mask: a row equals the same row alone.

    Returns:
        `ids` (B, T) int64, filled with `value`, and `mask` (B, T) int64, 1 at what was given.

    >>> [part.tolist() for part in pad([[5, 6, 7], [8]])]
    [[[5, 6, 7], [8, 0, 0]], [[1, 1, 1], [1, 0, 0]]]
    """
    width = max(map(len, sequences))
    ids = torch.full((len(sequences), width), value, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, sequence in enumerate(sequences):
        place = slice(width - len(sequence), None) if left else slice(len(sequence))
        ids[row, place] = torch.as_tensor(sequence, dtype=torch.int64)
        mask[row, place] = 1
    return ids, mask


def like_length(
    lengths: Sequence[int] | np.ndarray,
    indices: Iterable[int] | None = None,
    *,
    tokens: int | None = None,
    count: int | None = None,
    world: int = 1,
    max_padding: float = 1.0,
    longest_first: bool = False,
) -> list[list[int]]:
    """Cut texts, sorted by length, into batches that keep every limit given.

    Args:
        lengths: tokens of every text.
        indices: which texts, all by default; those of equal length stay in this order.
        tokens: most tokens of one process, padding included; one longer text is still a batch of its own.
        count: most texts.
        world: processes that share the rows of a batch.
        max_padding: largest share of padding.
        longest_first: begin with the longest text, so that a lack of memory shows at once.

    >>> like_length([4, 9, 4, 5], tokens=10)
    [[0, 2], [3], [1]]
    """
    chosen = range(len(lengths)) if indices is None else indices
    batches: list[list[int]] = []
    widest = real = 0
    for index in map(int, sorted(chosen, key=lambda i: -lengths[i] if longest_first else lengths[i])):
        length = int(lengths[index])
        held, width = len(batches[-1]) + 1 if batches else 1, max(widest, length)
        full = count is not None and held > count
        too_big = tokens is not None and -(-held // world) * width > tokens
        if not batches or full or too_big or real + length < (1.0 - max_padding) * (width * held):
            batches.append([])
            width, real = length, 0
        batches[-1].append(index)
        widest, real = width, real + length
    return batches
