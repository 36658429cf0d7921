"""Cross-entropy of a whole output head, which fine-tuning minimises, without ever keeping the logits.

The logits of one step would take tokens x (V + N) floats several times over; here the head, the log-softmax and the
gradient run chunk by chunk in the forward pass, so that memory is bounded by the chunk; the arithmetic on the logits is
that of phase 1 (`softmax`). Padding rows of the matrix are left out: they are never targets and never counted.

Shapes: P positions, c of a chunk; D model width; R head rows that count (V + N).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vocabx_utils.products import aligned_rows
from vocabx_utils.training.softmax import Scratch, blank_, default_chunk, logit_products, softmax_chunk

IGNORE = -1
"""Target of a position that has none: behind the last token of a text, in front of an answer, in the padding."""


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, learn_from: int = 0, chunk: int | None = None
) -> Tensor:
    """Sum the cross-entropy of `hidden @ weight.T` against targets.

    Args:
        hidden: (P, D) final hidden states, any float dtype; products run in this dtype.
        weight: (R, D) head rows that count; a float32 master copy is cast once to the dtype of `hidden`.
        targets: (P,) int64 ids; positions with `IGNORE` cost nothing and give no gradient.
        learn_from: first row whose gradient is computed; earlier rows get zeros (frozen rows cost no product).
        chunk: positions at a time; chosen from R unless given. It does not change the result.

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
    if chunk is None:
        chunk = default_chunk(len(weight), hidden.device)
        if hidden.is_cuda:
            chunk *= 2  # the gradient of the head, as large as the head, is read and written once a chunk
    loss: Tensor = _LinearCrossEntropy.apply(hidden, weight, targets, learn_from, chunk)
    return loss


class _LinearCrossEntropy(torch.autograd.Function):
    """Gradients are formed in the forward pass, while each chunk's softmax is at hand."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, learn_from, chunk):  # type: ignore[no-untyped-def]
        cast, states = weight.detach().to(hidden.dtype), hidden.detach()
        grad_hidden = torch.empty_like(states) if ctx.needs_input_grad[0] else None  # (P, D)
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if ctx.needs_input_grad[1] else None  # (R, D)
        total = torch.zeros((), dtype=torch.float32, device=states.device)
        count, cast, scratch = len(cast), aligned_rows(cast), Scratch()
        ones = torch.ones(len(targets), device=states.device)  # (P,) each position weighs the same
        no_more = torch.full_like(ones, -torch.inf)  # (P,) log-sum-exp of logits beside these: there are none
        for start in range(0, len(targets), chunk):
            rows = slice(start, start + chunk)
            out = None if states.is_cuda else scratch.take("logits", states, len(states[rows]), len(cast))
            logits = blank_(logit_products(states[rows], cast, out), count)  # (c, R)
            chosen = logits.gather(1, targets[rows, None]).squeeze(1)  # (c,), before the gradient takes their memory
            lse, _, error = softmax_chunk(
                logits, None, no_more[rows], targets[rows], ones[rows], None, None, cast.dtype, scratch
            )  # (c,), None, (c, R) softmax minus one-hot
            total += (lse - chosen).sum()
            assert error is not None
            error = error.to(cast.dtype)
            if grad_hidden is not None:
                grad_hidden[rows] = error @ cast
            if grad_weight is not None:
                _add_product_(grad_weight[learn_from:], error[:, learn_from:count].T, states[rows])
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


def _add_product_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a product to a float32 matrix, in place where the product is float32 too."""
    if left.dtype == total.dtype:
        total.addmm_(left, right)
    else:
        total += logit_products(left, right.T)


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
