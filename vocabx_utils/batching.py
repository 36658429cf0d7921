"""Texts of ids to tensors: padding, batches of like length, so that padding stays rare, and the way to a device.

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
    lengths = np.array([len(sequence) for sequence in sequences])[:, None]  # (B, 1)
    width = int(lengths.max())
    ids = np.full((len(sequences), width), value, np.int64)  # numpy: a training step pads anew, and torch is slow at it
    for row, sequence in zip(ids, sequences, strict=True):
        row[slice(width - len(sequence), None) if left else slice(len(sequence))] = sequence
    places = np.arange(width)
    mask = places >= width - lengths if left else places < lengths
    return torch.from_numpy(ids), torch.from_numpy(mask.astype(np.int64))


def move(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Copy tensors from the host to a device; to a GPU all at once, and without waiting for it.

    A copy from ordinary memory waits until the GPU has done everything before it, and each copy of its own costs the
    host time. So one stretch of page-locked memory takes them all.
    """
    if device.type != "cuda":
        return [tensor.to(device) for tensor in tensors]
    return unpack(pack(tensors, pinned=True).to(device, non_blocking=True), tensors)


def pack(tensors: Sequence[Tensor], *, pinned: bool = False) -> Tensor:
    """Put the bytes of tensors on the host into one, (n,) uint8; each begins at a multiple of 8."""
    sizes = [_padded(tensor) for tensor in tensors]
    packed = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pinned)
    memory, start = packed.numpy(), 0
    for tensor, size in zip(tensors, sizes, strict=True):
        memory[start : start + tensor.nbytes] = tensor.numpy().reshape(-1).view(np.uint8)
        start += size
    return packed


def unpack(packed: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """Return what `pack` has put into one, as views of it; dtypes and shapes are those of `like`."""
    parts = packed.split([_padded(tensor) for tensor in like])
    pairs = zip(parts, like, strict=True)
    return [part[: tensor.nbytes].view(tensor.dtype).view(tensor.shape) for part, tensor in pairs]


def _padded(tensor: Tensor) -> int:
    return -(-tensor.nbytes // 8) * 8


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
