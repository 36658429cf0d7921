"""Cross-entropy of a whole output head, which fine-tuning minimises, without ever keeping the logits.

The logits of one step would take tokens x (V + N) floats several times over; here the head, the log-softmax and the
gradient run chunk by chunk in the forward pass, so that memory is bounded by the chunk. Padding rows of the matrix are
left out: they are never targets and never counted.

Shapes: P positions, c of a chunk; D model width; R head rows that count (V + N).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from vocabx_utils.training.softmax import aligned_rows, blank_, cross_entropy_chunk

IGNORE = -1
"""Target of a position that has none: behind the last token of a text, in front of an answer, in the padding."""

CHUNK_BYTES = 1 << 30


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, learn_from: int = 0, chunk_bytes: int = CHUNK_BYTES
) -> Tensor:
    """Sum the cross-entropy of `hidden @ weight.T` against targets: what fine-tuning minimises.

    Args:
        hidden: (P, D) final hidden states, any float dtype; products run in this dtype.
        weight: (R, D) head rows that count; a float32 master copy is cast once to the dtype of `hidden`.
        targets: (P,) int64 ids; positions with `IGNORE` cost nothing and give no gradient.
        learn_from: first row whose gradient is computed; earlier rows get zeros (frozen rows cost no product).
        chunk_bytes: size of the float32 logits held at once.

    Returns:
        Scalar float32: the sum over the positions that count, in nats. Exactly 0 when none counts.

    Raises:
        ValueError: the shapes do not fit, or a target is outside `0 … R-1`.
    """
    _check(hidden, weight, targets)
    keep = targets != IGNORE
    hidden, targets = hidden[keep], targets[keep]
    if not len(targets):
        # every process has to reach the head, or a distributed backward would wait for it
        return 0.0 * (hidden.sum().float() + weight[:1].sum().float())
    loss: Tensor = _LinearCrossEntropy.apply(hidden, weight, targets, learn_from, chunk_bytes)
    return loss


@torch.no_grad()
def token_losses(hidden: Tensor, weight: Tensor, targets: Tensor, chunk_bytes: int = CHUNK_BYTES) -> Tensor:
    """Return (P,) float32 cross-entropy of every position, in nats; arguments as `linear_cross_entropy`, no `IGNORE`.

    Raises:
        ValueError: the shapes do not fit, or a target is outside the rows.
    """
    _check(hidden, weight, targets)
    weight = weight.to(hidden.dtype)
    parts = [
        functional.cross_entropy((hidden[rows] @ weight.T).float(), targets[rows], reduction="none")  # (c,)
        for rows in _chunks(len(targets), len(weight), chunk_bytes)
    ]
    return torch.cat(parts) if parts else hidden.new_zeros(0, dtype=torch.float32)


class _LinearCrossEntropy(torch.autograd.Function):
    """Gradients are formed in the forward pass, while each chunk's softmax is at hand."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, learn_from, chunk_bytes):  # type: ignore[no-untyped-def]
        cast, states = weight.detach().to(hidden.dtype), hidden.detach()
        grad_hidden = torch.empty_like(states) if ctx.needs_input_grad[0] else None  # (P, D)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None  # (R, D)
        total = torch.zeros((), dtype=torch.float32, device=states.device)
        count, cast = len(cast), aligned_rows(cast)
        for rows in _chunks(len(targets), count, chunk_bytes):
            logits = blank_(states[rows] @ cast.T, count)  # (c, R)
            loss, error = cross_entropy_chunk(logits, targets[rows])  # (), (c, R)
            total += loss
            if grad_hidden is not None:
                grad_hidden[rows] = error @ cast
            if grad_weight is not None:
                grad_weight[learn_from:] += error[:, learn_from:count].T @ states[rows]
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx, grad_output):  # type: ignore[no-untyped-def]
        grad_hidden, grad_weight = ctx.saved_tensors
        if grad_hidden is not None:
            grad_hidden = grad_hidden * grad_output.to(grad_hidden.dtype)
        if grad_weight is not None:
            grad_weight = (grad_weight * grad_output).to(ctx.weight_dtype)
        return grad_hidden, grad_weight, None, None, None


def _chunks(count: int, rows: int, chunk_bytes: int) -> list[slice]:
    """Slices of `count` positions whose float32 logits take at most `chunk_bytes`."""
    size = max(1, chunk_bytes // (4 * rows))
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _check(hidden: Tensor, weight: Tensor, targets: Tensor) -> None:
    if hidden.ndim != 2 or weight.ndim != 2 or hidden.shape[1] != weight.shape[1]:
        raise ValueError(
            f"hidden states {tuple(hidden.shape)} and head {tuple(weight.shape)} do not fit: expected (n, D) and (R, D)"
        )
    if targets.shape != hidden.shape[:1]:
        raise ValueError(f"targets have shape {tuple(targets.shape)}, expected ({len(hidden)},)")
    # On a GPU the range check would wait for the device at each step; there the kernel itself traps bad indices.
    if targets.device.type == "cpu" and len(targets) and int(targets.max()) >= len(weight):
        raise ValueError(
            f"target {int(targets.max())} is outside the {len(weight)} head rows: were the matrices extended?"
        )
