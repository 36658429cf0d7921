"""The losses of phase 1 over large vocabularies, a chunk of positions at a time.

One pass over the student's hidden states serves both sides. The loss of the *input rows* is `match + lambda * CE`,
where match is the KL against the teacher (thesis eq. `kl_def`, averaged as in `kd_loss`) or a distance of hidden
states, which `step_losses` adds; the loss of the *head rows* is always CE over V + N, whose gradient never reaches the
hidden states. Logits are built in chunks, turned into gradients at once and dropped, so memory does not grow with
T x V.

Shapes: V original ids, N new tokens, D width, P positions of a batch, K of them compared, c in a chunk.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vocabx_utils.products import aligned_rows
from vocabx_utils.student import LogitTransform
from vocabx_utils.training.goals import Goals, OldSums
from vocabx_utils.training.softmax import (
    Scratch,
    blank_,
    default_chunk,
    log_sum_exp_,
    logit_products,
    softmax_chunk,
    softmax_rows,
)


@dataclass(frozen=True)
class LossTerms:
    """What one pass over the head returns."""

    input_loss: Tensor  # scalar whose gradient reaches the hidden states only
    head_loss: Tensor  # scalar whose gradient reaches the new head rows only
    kl: Tensor  # (K,) float32 KL of each compared position, in nats, times tau squared; no gradient
    ce: Tensor  # (P,) float32 cross-entropy of each position, 0 where there is no target; no gradient


def phase1_loss(
    hidden: Tensor,
    head: Tensor,
    new_head: Tensor,
    targets: Tensor,
    *,
    ce_coefficient: Tensor,
    ce_weight: float = 0.0,
    teacher: Tensor | Goals | None = None,
    kl_coefficient: float = 0.0,
    kl_weights: Tensor | None = None,
    known: OldSums | None = None,
    temperature: float = 1.0,
    transform: LogitTransform | None = None,
    chunk: int | None = None,
) -> LossTerms:
    """Compute both losses of phase 1 and their gradients (thesis eq. `kl_def`, section on the head's cross-entropy).

    Softmax, logarithms and sums are float32 whatever the dtype of the inputs; the N new logits are sliced off
    before the KL, never masked with minus infinity (0 * inf would be NaN).

    Args:
        hidden: (P, D) student hidden states; the first K rows are those compared with the teacher.
        head: (V, D) original head rows, no padding rows, frozen.
        new_head: (N, D) float32 head rows of the new tokens.
        targets: (P,) next-token ids below V + N, or `IGNORE` where there is none.
        ce_coefficient: (P,) float32 factor of each position's CE in `head_loss` (usually 1 / number of targets).
        ce_weight: lambda: `input_loss` contains lambda times the same weighted CE sum.
        teacher: (K, D) the teacher's final hidden states at the paired positions, or what its distributions come to
            there, for plain logits at temperature 1; None for no comparison.
        kl_coefficient: factor of each compared position's KL in `input_loss`.
        kl_weights: (K,) float32 further factors of each of them, all 1 unless given.
        known: what the original head makes of the last U positions, none of them compared, whose states no new row
            reaches: they need no product with it, and their gradient of the hidden states is left at 0.
        temperature: tau.
        transform: the family's logit scaling and capping.
        chunk: positions at a time; chosen from V unless given. It does not change the result.

    Raises:
        ValueError: more teacher rows than positions, or shapes that do not fit.
    """
    compared = 0 if teacher is None else len(teacher)
    unknown = hidden.shape[0] - (0 if known is None else len(known))
    if compared > unknown or targets.shape != hidden.shape[:1] or ce_coefficient.shape != targets.shape:
        raise ValueError(
            f"hidden {tuple(hidden.shape)}, targets {tuple(targets.shape)}, coefficients "
            f"{tuple(ce_coefficient.shape)}, {compared} teacher rows, {hidden.shape[0] - unknown} known sums: "
            "expected P positions each and K + U <= P"
        )
    if chunk is None:
        chunk = default_chunk(head.shape[0] + new_head.shape[0], hidden.device)
        if not isinstance(teacher, Tensor) and hidden.is_cuda:
            chunk *= 2  # no second matrix of logits beside the student's
    settings = _Settings(
        head, targets, ce_coefficient, ce_weight, teacher, compared, kl_coefficient, kl_weights, known, unknown,
        temperature, transform or LogitTransform(), chunk,
    )  # fmt: skip
    return LossTerms(*_Phase1Loss.apply(hidden, new_head, settings))


@dataclass(frozen=True)
class _Settings:
    head: Tensor
    targets: Tensor
    ce_coefficient: Tensor
    ce_weight: float
    teacher: Tensor | Goals | None
    compared: int
    kl_coefficient: float
    kl_weights: Tensor | None
    known: OldSums | None
    unknown: int
    temperature: float
    transform: LogitTransform
    chunk: int

    def edges(self, part: slice) -> list[int]:
        """Cut positions where a teacher or known sums begin or end: a piece has each everywhere or nowhere."""
        inside = (at for at in (self.compared, self.unknown) if part.start < at < part.stop)
        return sorted({part.start, *inside, part.stop})


class _Phase1Loss(torch.autograd.Function):
    """Both losses at once; gradients are formed in the forward pass, while the logits exist."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, new_head: Tensor, s: _Settings) -> tuple[Tensor, ...]:
        wants_hidden = ctx.needs_input_grad[0] and (s.ce_weight > 0 or s.kl_coefficient != 0)
        grad_hidden = torch.zeros_like(hidden) if wants_hidden else None  # (P, D)
        grad_head = torch.zeros_like(new_head) if ctx.needs_input_grad[1] else None  # (N, D)
        compared = s.compared
        kl = hidden.new_zeros(compared, dtype=torch.float32)  # (K,)
        ce = hidden.new_zeros(hidden.shape[0], dtype=torch.float32)  # (P,)
        new_weights = new_head.to(hidden.dtype)
        logits = _OldLogits(s, hidden.device, wanted=wants_hidden)
        for start in range(0, hidden.shape[0], s.chunk):
            part = slice(start, min(start + s.chunk, hidden.shape[0]))
            _chunk(hidden, new_weights, s, part, logits, kl, ce, grad_hidden, grad_head)
        ctx.save_for_backward(grad_hidden, grad_head)
        ce_sum = (ce * s.ce_coefficient).sum()
        kl_sum = kl.sum() if s.kl_weights is None else (kl * s.kl_weights).sum()
        input_loss = s.kl_coefficient * kl_sum + s.ce_weight * ce_sum
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
    logits: _OldLogits,
    kl: Tensor,
    ce: Tensor,
    grad_hidden: Tensor | None,
    grad_head: Tensor | None,
) -> None:
    """Fill the results of the positions `part`: the last four arguments are the memory that it writes to."""
    states, targets = hidden[part], s.targets[part]  # (c, D), (c,)
    has_target, is_new = targets >= 0, targets >= s.head.shape[0]  # (c,) each
    weight = torch.where(has_target, s.ce_coefficient[part], 0.0)  # (c,) d head_loss / d ce
    new = s.transform.apply_(logit_products(states, new_weights))  # (c, N)
    lse_new = torch.logsumexp(new, -1) if new.shape[1] else torch.full_like(weight, -torch.inf)  # (c,)
    edges = s.edges(part)
    sizes = [stop - start for start, stop in pairwise(edges)]
    pieces = zip(pairwise(edges), states.split(sizes), lse_new.split(sizes), weight.split(sizes), strict=True)
    found = [_old_side(s, slice(*ends), h, n, w, logits, kl, grad_hidden) for ends, h, n, w in pieces]
    lse, chosen = (torch.cat(parts) for parts in zip(*found, strict=True))  # (c,) each
    to_all = torch.logaddexp(lse, lse_new)  # (c,) over V + N
    if new.shape[1]:
        at = (targets - s.head.shape[0]).clamp(min=0)[:, None]  # (c, 1)
        chosen = torch.where(is_new, new.gather(1, at).squeeze(1), chosen)
        new_gradient = (new - to_all[:, None]).exp_().mul_(weight[:, None])  # (c, N) softmax minus one-hot
        new_gradient.scatter_add_(1, at, torch.where(is_new, -weight, 0.0)[:, None])
        s.transform.chain_(new_gradient, new)
        if grad_head is not None:
            grad_head.addmm_(new_gradient.T, states.float())  # (N, D)
        if grad_hidden is not None and s.ce_weight > 0:
            reached = slice(max(0, min(part.stop, s.unknown) - part.start))  # of the rest the sums are known
            grad_hidden[part][reached] += (s.ce_weight * new_gradient[reached]).to(hidden.dtype) @ new_weights
    ce[part] = torch.where(has_target, to_all - chosen, 0.0)


def _old_side(
    s: _Settings,
    part: slice,
    states: Tensor,
    lse_new: Tensor,
    weight: Tensor,
    logits: _OldLogits,
    kl: Tensor,
    grad_hidden: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp of the old logits and the target's logit there, (c,) each; fill `kl` and `grad_hidden`."""
    if s.known is not None and part.start >= s.unknown:
        known = s.known[part.start - s.unknown : part.stop - s.unknown]
        return known.sums, known.logits
    targets, with_teacher = s.targets[part], part.stop <= s.compared  # (c,)
    old = logits.products(states, "old")  # (c, V)
    chosen = old.gather(1, targets.clamp(0, s.head.shape[0] - 1)[:, None]).squeeze(1)  # (c,) logit of the target
    if not with_teacher and not logits.with_ce:
        return log_sum_exp_(old), chosen
    logits.weigh(part if with_teacher else None)
    if with_teacher and isinstance(s.teacher, Goals):
        lse, kl[part], gradient = logits.approach(old, s.teacher[part], states, lse_new, targets, weight)  # …, (c, D)
        if grad_hidden is not None and gradient is not None:
            grad_hidden[part] = gradient.to(grad_hidden.dtype)
        return lse, chosen
    teacher = None
    if with_teacher:
        assert isinstance(s.teacher, Tensor)
        teacher = logits.products(s.teacher[part], "teacher")  # (c, V)
    lse, divergence, old_gradient = logits.softmax(old, teacher, lse_new, targets, weight)  # (c,), (c,), (c, V)
    if divergence is not None:
        kl[part] = s.temperature**2 * divergence
    if grad_hidden is not None and old_gradient is not None:
        grad_hidden[part] = old_gradient @ logits.head  # (c, D)
    return lse, chosen


class _OldLogits:
    """Logits of the V original ids and the arithmetic on them for the chunks of one pass, with their shared memory."""

    def __init__(self, s: _Settings, device: torch.device, *, wanted: bool) -> None:
        self.s, self.scratch, self.head = s, Scratch(), aligned_rows(s.head)
        with_kl = wanted and s.kl_coefficient != 0
        # d/dz of tau^2 KL(p || softmax(z / tau)) = tau (q - p); a tensor, so that a new value compiles nothing anew
        self.kl_factor = torch.full((), s.temperature * s.kl_coefficient, device=device) if with_kl else None
        self.same_factor = self.kl_factor
        self.tau = torch.full((), s.temperature, device=device) if s.temperature != 1 else None
        self.with_ce = wanted and s.ce_weight > 0

    def weigh(self, part: slice | None) -> None:
        """Take the factors of the KL at some positions, (c, 1) where they differ and () where all are the same."""
        self.kl_factor = self.same_factor
        if part is not None and self.s.kl_weights is not None and self.same_factor is not None:
            self.kl_factor = (self.same_factor * self.s.kl_weights[part])[:, None]

    def products(self, states: Tensor, name: str) -> Tensor:
        """(c, V) float32 logits, then blank columns; the next chunk takes the memory over."""
        out = None if states.is_cuda else self.scratch.take(name, states, len(states), self.head.shape[0])
        return blank_(self.s.transform.apply_(logit_products(states, self.head, out)), self.s.head.shape[0])

    def approach(
        self, old: Tensor, goals: Goals, states: Tensor, lse_new: Tensor, targets: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compare with the teacher's goals instead of its logits.

        Returns:
            (c,) log-sum-exp of `old`, which is overwritten; (c,) KL; (c, D) float32 gradient with respect to the states
            through the old logits, or None where none is wanted.
        """
        head, vocab = self.s.head, self.s.head.shape[0]
        likely = old.gather(1, goals.ids)  # (c, M) logits of the teacher's likeliest ids
        known = goals.negative_entropy - goals.expected(states, likely)  # (c,) the KL without the log-sum-exp
        if self.kl_factor is None:
            lse = log_sum_exp_(old)
            return lse, known + lse, None
        # the student's likeliest token is hardly far above the teacher's
        lse, weights, share = softmax_rows(old, likely.amax(-1), head.dtype, self.scratch)  # (c,), (c, V), (c,)
        weights.scatter_(1, goals.ids, 0.0)
        factor = self.kl_factor.reshape(-1).expand_as(lse)  # (c,) of q in the gradient of the logits
        top = (likely - lse[:, None]).exp()  # (c, M)
        if self.with_ce:
            ce_factor = weight * self.s.ce_weight
            factor = factor + ce_factor * (lse - torch.logaddexp(lse, lse_new)).exp()
        apart = factor[:, None] * top - self.kl_factor * goals.top  # (c, M)
        others = logit_products(weights, self.head.T)  # (c, D)
        gradient = (factor * share)[:, None] * others - self.kl_factor * goals.rest.float()  # (c, D)
        # a difference already, so its rounding is that of the gradient: (c, 1, M) times (c, M, D)
        gradient += torch.bmm(apart[:, None].to(head.dtype), head[goals.ids])[:, 0]
        if self.with_ce:
            inside = (targets >= 0) & (targets < vocab)
            gradient -= torch.where(inside, ce_factor, 0.0)[:, None] * head[targets.clamp(0, vocab - 1)].float()
        return lse, known + lse, gradient

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
