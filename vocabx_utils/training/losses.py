"""The losses of both phases over large vocabularies, a chunk of positions at a time.

`phase1_loss` learns rows: one pass over the student's hidden states serves both sides. The loss of the *input rows* is
`match + lambda * CE`, where match is the KL against the teacher (thesis eq. `kl_def`, averaged as in `kd_loss`) or a
`hidden_distance`; the loss of the *head rows* is always CE over V + N, whose gradient never reaches the hidden states.
`linear_cross_entropy` learns whole matrices in fine-tuning. Logits are built in chunks, turned into gradients at once
and dropped, so memory does not grow with T x V. Padding rows of a head are left out: never targets, never counted.

Shapes: V original ids, N new tokens, D width, R = V + N; P positions of a batch, K of them compared, c in a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from vocabx_utils.student import LogitTransform
from vocabx_utils.training.softmax import (
    Scratch,
    aligned_rows,
    blank_,
    cross_entropy_chunk,
    default_chunk,
    logit_products,
    softmax_chunk,
)

__all__ = ["IGNORE", "LossTerms", "hidden_distance", "linear_cross_entropy", "phase1_loss", "token_losses"]

IGNORE = -1
"""Target of a position that has none: behind the last token of a text, in front of an answer, in the padding."""

CHUNK_BYTES = 1 << 30


@dataclass(frozen=True)
class LossTerms:
    """What one pass over the head returns.

    Attributes:
        input_loss: scalar whose gradient reaches the hidden states only.
        head_loss: scalar whose gradient reaches the new head rows only.
        kl: (K,) float32 KL of each compared position, in nats, times tau squared; no gradient.
        ce: (P,) float32 cross-entropy of each position, 0 where there is no target; no gradient.
    """

    input_loss: Tensor
    head_loss: Tensor
    kl: Tensor
    ce: Tensor


def phase1_loss(
    hidden: Tensor,
    head: Tensor,
    new_head: Tensor,
    targets: Tensor,
    *,
    ce_coefficient: Tensor,
    ce_weight: float = 0.0,
    teacher_hidden: Tensor | None = None,
    kl_coefficient: float = 0.0,
    temperature: float = 1.0,
    transform: LogitTransform | None = None,
    chunk: int | None = None,
) -> LossTerms:
    """Compute both losses of phase 1 and their gradients (thesis eq. `kl_def`, section on the head's cross-entropy).

    Softmax, logarithms and sums are float32 whatever the dtype of the inputs; the N new logits are sliced off
    before the KL, never masked with minus infinity (0 * inf would be NaN). Many arguments, since it is one formula.

    Args:
        hidden: (P, D) student hidden states; the first K rows are those compared with the teacher.
        head: (V, D) original head rows, no padding rows, frozen.
        new_head: (N, D) float32 head rows of the new tokens.
        targets: (P,) next-token ids below V + N, or `IGNORE` where there is none.
        ce_coefficient: (P,) float32 factor of each position's CE in `head_loss` (usually 1 / number of targets).
        ce_weight: lambda: `input_loss` contains lambda times the same weighted CE sum.
        teacher_hidden: (K, D) the teacher's final hidden states at the paired positions, or None.
        kl_coefficient: factor of each compared position's KL in `input_loss`.
        temperature: tau.
        transform: the family's logit scaling and capping.
        chunk: positions at a time; chosen from V unless given. It does not change the result.

    Raises:
        ValueError: more teacher rows than positions, or shapes that do not fit.
    """
    compared = 0 if teacher_hidden is None else teacher_hidden.shape[0]
    if compared > hidden.shape[0] or targets.shape != hidden.shape[:1] or ce_coefficient.shape != targets.shape:
        raise ValueError(
            f"hidden {tuple(hidden.shape)}, targets {tuple(targets.shape)}, coefficients "
            f"{tuple(ce_coefficient.shape)}, {compared} teacher rows: expected P positions each and K <= P"
        )
    if chunk is None:
        chunk = default_chunk(head.shape[0] + new_head.shape[0], hidden.device)
    settings = _Settings(
        head, targets, ce_coefficient, ce_weight, teacher_hidden, kl_coefficient, temperature,
        transform or LogitTransform(), chunk,
    )  # fmt: skip
    return LossTerms(*_Phase1Loss.apply(hidden, new_head, settings))


def hidden_distance(
    student: Tensor, teacher: Tensor, kind: Literal["hidden", "cosine"], coefficient: float
) -> tuple[Tensor, Tensor]:
    """Compare hidden states of paired positions (AweDist, now Token Distillation; the thesis suggests the cosine).

    Args:
        student: (K, D) with gradient.
        teacher: (K, D).
        kind: `hidden` for the squared error averaged over D, `cosine` for one minus the cosine.
        coefficient: factor of each position in the loss.

    Returns:
        The loss (scalar, float32) and the (K,) distances without gradient.
    """
    mine, theirs = student.float(), teacher.float()
    if kind == "hidden":
        distance = (mine - theirs).square().mean(-1)  # (K,)
    else:
        distance = 1.0 - functional.cosine_similarity(mine, theirs, dim=-1)  # (K,)
    return coefficient * distance.sum(), distance.detach()


@dataclass(frozen=True)
class _Settings:
    head: Tensor
    targets: Tensor
    ce_coefficient: Tensor
    ce_weight: float
    teacher_hidden: Tensor | None
    kl_coefficient: float
    temperature: float
    transform: LogitTransform
    chunk: int


class _Phase1Loss(torch.autograd.Function):
    """Both losses at once; gradients are formed in the forward pass, while the logits exist."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, new_head: Tensor, s: _Settings) -> tuple[Tensor, ...]:
        wants_hidden = ctx.needs_input_grad[0] and (s.ce_weight > 0 or s.kl_coefficient != 0)
        grad_hidden = torch.zeros_like(hidden) if wants_hidden else None  # (P, D)
        grad_head = torch.zeros_like(new_head) if ctx.needs_input_grad[1] else None  # (N, D)
        compared = 0 if s.teacher_hidden is None else s.teacher_hidden.shape[0]
        kl = hidden.new_zeros(compared, dtype=torch.float32)  # (K,)
        ce = hidden.new_zeros(hidden.shape[0], dtype=torch.float32)  # (P,)
        new_weights = new_head.to(hidden.dtype)
        logits = _OldLogits(s, hidden.device, wanted=wants_hidden)
        # a chunk either has a teacher at all of its positions or at none
        edges = sorted({*range(0, compared, s.chunk), *range(compared, hidden.shape[0], s.chunk), hidden.shape[0]})
        for start, stop in pairwise(edges):
            part = slice(start, stop)
            _chunk(hidden, new_weights, s, part, stop <= compared, logits, kl, ce, grad_hidden, grad_head)
        ctx.save_for_backward(grad_hidden, grad_head)
        ce_sum = (ce * s.ce_coefficient).sum()
        input_loss = s.kl_coefficient * kl.sum() + s.ce_weight * ce_sum
        ctx.mark_non_differentiable(kl, ce)
        return input_loss, ce_sum, kl, ce

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_input: Tensor, to_head: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_head = ctx.saved_tensors
        hidden = None if grad_hidden is None else grad_hidden * to_input.to(grad_hidden.dtype)
        return hidden, None if grad_head is None else grad_head * to_head, None


def _chunk(
    hidden: Tensor,
    new_weights: Tensor,
    s: _Settings,
    part: slice,
    with_teacher: bool,
    logits: _OldLogits,
    kl: Tensor,
    ce: Tensor,
    grad_hidden: Tensor | None,
    grad_head: Tensor | None,
) -> None:
    """Fill the results of the positions `part`: the last four arguments are the memory that it writes to."""
    states, vocab = hidden[part], s.head.shape[0]  # (c, D)
    targets, has_target = s.targets[part], s.targets[part] >= 0  # (c,)
    weight = torch.where(has_target, s.ce_coefficient[part], 0.0)  # (c,) d head_loss / d ce
    old = logits.products(states, "old")  # (c, V)
    new = s.transform.apply_(logit_products(states, new_weights))  # (c, N)
    chosen = old.gather(1, targets.clamp(0, vocab - 1)[:, None]).squeeze(1)  # (c,) logit of the target
    lse_new = torch.logsumexp(new, -1) if new.shape[1] else torch.full_like(chosen, -torch.inf)  # (c,)
    teacher = None
    if with_teacher:
        assert s.teacher_hidden is not None
        teacher = logits.products(s.teacher_hidden[part], "teacher")  # (c, V)
    lse, divergence, old_gradient = logits.softmax(old, teacher, lse_new, targets, weight)  # (c,), (c,), (c, V)
    if divergence is not None:
        kl[part] = s.temperature**2 * divergence
    to_all = torch.logaddexp(lse, lse_new)  # (c,) over V + N
    if new.shape[1]:
        at = (targets - vocab).clamp(min=0)[:, None]  # (c, 1)
        chosen = torch.where(targets >= vocab, new.gather(1, at).squeeze(1), chosen)
        new_gradient = (new - to_all[:, None]).exp_().mul_(weight[:, None])  # (c, N) softmax minus one-hot
        new_gradient.scatter_add_(1, at, torch.where(targets >= vocab, -weight, 0.0)[:, None])
        s.transform.chain_(new_gradient, new)
        if grad_head is not None:
            grad_head.addmm_(new_gradient.T, states.float())  # (N, D)
    ce[part] = torch.where(has_target, to_all - chosen, 0.0)
    if grad_hidden is not None and old_gradient is not None:
        grad_hidden[part] = old_gradient @ logits.head  # (c, D)
        if s.ce_weight > 0 and new.shape[1]:
            grad_hidden[part] += (s.ce_weight * new_gradient).to(hidden.dtype) @ new_weights


class _OldLogits:
    """Logits of the V original ids and the arithmetic on them for the chunks of one pass, with their shared memory."""

    def __init__(self, s: _Settings, device: torch.device, *, wanted: bool) -> None:
        self.s, self.scratch, self.head = s, Scratch(), aligned_rows(s.head)
        with_kl = wanted and s.kl_coefficient != 0
        # d/dz of tau^2 KL(p || softmax(z / tau)) = tau (q - p); a tensor, so that a new value compiles nothing anew
        self.kl_factor = torch.full((), s.temperature * s.kl_coefficient, device=device) if with_kl else None
        self.tau = torch.full((), s.temperature, device=device) if s.temperature != 1 else None
        self.with_ce = wanted and s.ce_weight > 0

    def products(self, states: Tensor, name: str) -> Tensor:
        """(c, V) float32 logits, then blank columns; the next chunk takes the memory over."""
        out = None if states.is_cuda else self.scratch.take(name, states, len(states), self.head.shape[0])
        return blank_(self.s.transform.apply_(logit_products(states, self.head, out)), self.s.head.shape[0])

    def softmax(
        self, old: Tensor, teacher: Tensor | None, lse_new: Tensor, targets: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Run `softmax_chunk` and carry its gradient on to the products."""
        factor = weight * self.s.ce_weight if self.with_ce else None
        transform, dtype = self.s.transform, self.s.head.dtype
        capped = transform.softcap is not None
        real = old[:, : self.s.head.shape[0]]
        slope = transform.chain_(torch.ones_like(real), real.clone()) if capped else None  # old is overwritten
        wanted = torch.float32 if capped else dtype
        lse, kl, gradient = softmax_chunk(
            old, teacher, lse_new, targets, factor, self.kl_factor, self.tau, wanted, self.scratch
        )
        if gradient is not None and slope is not None:
            gradient = gradient.float()
            gradient[:, : slope.shape[1]].mul_(slope)
        elif gradient is not None and transform.scale != 1.0:
            gradient = gradient.mul_(transform.scale)
        return lse, kl, None if gradient is None else gradient.to(dtype)


# --- whole heads --------------------------------------------------------------------------------------------


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
