"""What phase 1 minimises: chunked losses over large vocabularies, and the names of the objectives.

One pass over the student's hidden states serves both sides. The loss of the *input rows* is
``match + lambda * CE``, where match is KL against the teacher (thesis eq. ``kl_def``), a distance of hidden
states, or nothing; the loss of the *head rows* is always CE over V + N, and its gradient never reaches the hidden
states. Logits are built in chunks, turned into gradients at once and dropped, so memory does not grow with T x V.

Shapes: V original ids, N new tokens, D width, P positions of a batch, K of them compared with the teacher.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from vocabx_utils.student import LogitTransform
from vocabx_utils.training.softmax_steps import (
    CACHE_BYTES,
    Compiled,
    Scratch,
    aligned_rows,
    blank_,
    softmax_step,
    softmax_step_in_place,
)

__all__ = [
    "ANCHORS",
    "LossTerms",
    "Objective",
    "hidden_distance",
    "logit_products",
    "parse_objective",
    "phase1_loss",
]

Anchor = Literal["first", "last", "none"]
ANCHORS: tuple[Anchor, ...] = ("first", "last", "none")
_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?"
_NAME = re.compile(
    rf"(?:ce|(?P<match>kl|hidden|cosine)_(?P<anchor>first|last|none)(?:_ce(?P<ce>{_NUMBER}))?)"
    rf"(?:_t(?P<temperature>{_NUMBER}))?(?:_l(?P<layer>[0-9]+))?(?:_w(?P<new>{_NUMBER}))?"
)


@dataclass(frozen=True)
class Objective:
    """An objective for the new input rows.

    Args:
        match: ``kl`` (this project's and the thesis's), ``hidden`` (mean squared error of hidden states: AweDist,
            now Token Distillation, Dobler et al. 2025), ``cosine`` (one minus their cosine, which the thesis
            suggests instead) or None (cross-entropy alone, the usual baseline).
        anchor: which pair stands for a divergent group: ``last`` (ours), ``first`` (the thesis read literally)
            or ``none``.
        ce_weight: lambda, the weight of CE beside ``match``.
        temperature: tau of Hinton et al. 2015; the KL is scaled by tau squared.
        layer: hidden state to match, -1 for the last.
        new_target_weight: weight of a position whose target is a new token, in the CE of both sides.
    """

    match: Literal["kl", "hidden", "cosine"] | None = "kl"
    anchor: Anchor = "last"
    ce_weight: float = 0.0
    temperature: float = 1.0
    layer: int = -1
    new_target_weight: float = 1.0

    def __post_init__(self) -> None:
        if self.anchor not in ANCHORS:
            raise ValueError(f"anchor {self.anchor!r}: expected one of {ANCHORS}")
        if self.match is None and self.ce_weight <= 0:
            raise ValueError("an objective without a match needs a positive ce_weight")
        if self.ce_weight < 0 or self.new_target_weight <= 0 or self.temperature <= 0:
            raise ValueError(f"weights must not be negative and the temperature be positive: {self}")
        if self.temperature != 1 and self.match != "kl":
            raise ValueError(f"a temperature belongs to KL, not to {self.match!r}")
        if self.layer != -1 and self.match not in ("hidden", "cosine"):
            raise ValueError(
                f"a layer belongs to a distance of hidden states (hidden or cosine), not to {self.match or 'ce'}; KL "
                "and CE read the last layer"
            )


def parse_objective(name: str) -> Objective:
    """Read an objective from its name, the one used in folder names.

    The grammar is ``[kl|hidden|cosine_<anchor>][_ce<lambda>][_t<tau>][_l<layer>][_w<new target weight>]``.

    Args:
        name: for example ``ce``, ``kl_last``, ``kl_last_ce0.3``, ``kl_first_t2``, ``hidden_last_l12``.

    Returns:
        The objective.

    Raises:
        ValueError: the name does not follow the grammar.

    Example:
        >>> parse_objective("kl_last_ce0.3").ce_weight
        0.3
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f"objective {name!r}: expected ce, kl_<anchor>, hidden_<anchor> or cosine_<anchor> with anchor first, last "
            "or none, and then, in this order, _ce<lambda>, _t<tau>, _l<layer>, _w<weight of new targets>"
        )
    match: Any = found["match"]
    anchor: Any = found["anchor"] or "last"
    return Objective(
        match=match,
        anchor=anchor,
        ce_weight=float(found["ce"] or 0.0) if match else 1.0,
        temperature=float(found["temperature"] or 1.0),
        layer=int(found["layer"]) if found["layer"] else -1,
        new_target_weight=float(found["new"] or 1.0),
    )


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
    """Compute both losses of phase 1 and their gradients, a chunk of positions at a time.

    Softmax, logarithms and sums are float32 whatever the dtype of the inputs; the N new logits are sliced off
    before the KL, never masked with minus infinity (0 * inf would be NaN).

    Args:
        hidden: (P, D) student hidden states; the first K rows are those compared with the teacher.
        head: (V, D) original head rows, no padding rows, frozen.
        new_head: (N, D) float32 head rows of the new tokens.
        targets: (P,) next-token ids below V + N, or -1 where there is none.
        ce_coefficient: (P,) float32 factor of each position's CE in ``head_loss`` (usually 1 / number of targets).
        ce_weight: lambda: ``input_loss`` contains lambda times the same weighted CE sum.
        teacher_hidden: (K, D) the teacher's final hidden states at the paired positions, or None.
        kl_coefficient: factor of each compared position's KL in ``input_loss``.
        temperature: tau.
        transform: the family's logit scaling and capping.
        chunk: positions at a time; chosen from V unless given. It does not change the result.

    Returns:
        The two losses and their terms.

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


def default_chunk(columns: int, device: torch.device) -> int:
    """Return how many positions of logits fit a modest buffer: 64 MB on a CPU; 512 MB in whole tiles on a GPU."""
    if device.type != "cuda":
        return max(16, (64 << 20) // (4 * columns))
    rows = (512 << 20) // (4 * columns)
    return max(16, rows // 128 * 128 or rows)


def hidden_distance(
    student: Tensor, teacher: Tensor, kind: Literal["hidden", "cosine"], coefficient: float
) -> tuple[Tensor, Tensor]:
    """Compare hidden states of paired positions.

    Args:
        student: (K, D) with gradient.
        teacher: (K, D).
        kind: ``hidden`` for the squared error averaged over D, ``cosine`` for one minus the cosine.
        coefficient: factor of each position in the loss.

    Returns:
        The loss (scalar, float32) and the (K,) distances without gradient.
    """
    mine, theirs = student.float(), teacher.float()
    if kind == "hidden":
        distance = (mine - theirs).square().mean(-1)
    else:
        distance = 1.0 - torch.nn.functional.cosine_similarity(mine, theirs, dim=-1)
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


def logit_products(hidden: Tensor, weights: Tensor, out: Tensor | None = None) -> Tensor:
    """Return float32 ``hidden @ weights.T``; on a GPU half-precision inputs keep a float32 result.

    Args:
        hidden: (n, D) states.
        weights: (R, D) rows of a head, in the dtype of ``hidden``.
        out: (n, R) float32 memory for the result, used where ``hidden`` is float32.
    """
    if hidden.is_cuda and hidden.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(hidden, weights.T, out_dtype=torch.float32)
    if hidden.dtype == torch.float32 and out is not None:
        return torch.mm(hidden, weights.T, out=out)
    return (hidden @ weights.T).float()


class _Phase1Loss(torch.autograd.Function):
    """Both losses at once; gradients are formed in the forward pass, while the logits exist."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, new_head: Tensor, s: _Settings) -> tuple[Tensor, ...]:
        wants_hidden = ctx.needs_input_grad[0] and (s.ce_weight > 0 or s.kl_coefficient != 0)
        wants_head = ctx.needs_input_grad[1]
        grad_hidden = torch.zeros_like(hidden) if wants_hidden else None
        grad_head = torch.zeros_like(new_head) if wants_head else None
        compared = 0 if s.teacher_hidden is None else s.teacher_hidden.shape[0]
        kl = hidden.new_zeros(compared, dtype=torch.float32)
        ce = hidden.new_zeros(hidden.shape[0], dtype=torch.float32)
        new_weights = new_head.to(hidden.dtype)
        steps = _Steps(s, hidden.device, wanted=wants_hidden)
        edges = sorted({*range(0, compared, s.chunk), *range(compared, hidden.shape[0], s.chunk), hidden.shape[0]})
        for start, stop in pairwise(edges):
            part = slice(start, stop)
            _chunk(hidden, new_weights, s, part, stop <= compared, steps, kl, ce, grad_hidden, grad_head)
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
    steps: _Steps,
    kl: Tensor,
    ce: Tensor,
    grad_hidden: Tensor | None,
    grad_head: Tensor | None,
) -> None:
    """Fill the results of the positions ``part``; they either all have a teacher or all have none."""
    states, vocab = hidden[part], s.head.shape[0]
    targets, has_target = s.targets[part], s.targets[part] >= 0
    weight = torch.where(has_target, s.ce_coefficient[part], 0.0)  # d head_loss / d ce
    old = steps.logits(states, "old")  # (c, V)
    new = s.transform.apply_(logit_products(states, new_weights))  # (c, N)
    chosen = old.gather(1, targets.clamp(0, vocab - 1)[:, None]).squeeze(1)
    lse_new = torch.logsumexp(new, -1) if new.shape[1] else torch.full_like(chosen, -torch.inf)
    teacher = None
    if with_teacher:
        assert s.teacher_hidden is not None
        teacher = steps.logits(s.teacher_hidden[part], "teacher")
    lse, divergence, old_gradient = steps.softmax(old, teacher, lse_new, targets, weight)
    if divergence is not None:
        kl[part] = s.temperature**2 * divergence
    to_all = torch.logaddexp(lse, lse_new)
    if new.shape[1]:
        at = (targets - vocab).clamp(min=0)[:, None]
        chosen = torch.where(targets >= vocab, new.gather(1, at).squeeze(1), chosen)
        new_gradient = (new - to_all[:, None]).exp_().mul_(weight[:, None])
        new_gradient.scatter_add_(1, at, torch.where(targets >= vocab, -weight, 0.0)[:, None])
        s.transform.chain_(new_gradient, new)
        if grad_head is not None:
            grad_head.addmm_(new_gradient.T, states.float())
    ce[part] = torch.where(has_target, to_all - chosen, 0.0)
    if grad_hidden is not None and old_gradient is not None:
        grad_hidden[part] = old_gradient @ steps.head
        if s.ce_weight > 0 and new.shape[1]:
            grad_hidden[part] += (s.ce_weight * new_gradient).to(hidden.dtype) @ new_weights


class _Steps:
    """Logits and the arithmetic on them for the chunks of one pass, with the memory they share."""

    def __init__(self, s: _Settings, device: torch.device, *, wanted: bool) -> None:
        self.s, self.scratch, self.head = s, Scratch(), aligned_rows(s.head)
        self.compiled = device.type == "cuda"
        with_kl = wanted and s.kl_coefficient != 0
        # d/dz of tau^2 KL(p || softmax(z / tau)) = tau (q - p); a tensor, so that a new value compiles nothing anew
        self.kl_factor = torch.full((), s.temperature * s.kl_coefficient, device=device) if with_kl else None
        self.tau = torch.full((), s.temperature, device=device) if s.temperature != 1 else None
        self.with_ce = wanted and s.ce_weight > 0

    def logits(self, states: Tensor, name: str) -> Tensor:
        """(c, V) float32 logits of the original ids, then blank columns; the next chunk takes the memory over."""
        out = None if states.is_cuda else self.scratch.take(name, states, len(states), self.head.shape[0])
        return blank_(self.s.transform.apply_(logit_products(states, self.head, out)), self.s.head.shape[0])

    def softmax(
        self, old: Tensor, teacher: Tensor | None, lse_new: Tensor, targets: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Run a step over a chunk and carry its gradient on to the products."""
        factor = weight * self.s.ce_weight if self.with_ce else None
        transform, dtype = self.s.transform, self.s.head.dtype
        capped = transform.softcap is not None
        real = old[:, : self.s.head.shape[0]]
        slope = transform.chain_(torch.ones_like(real), real.clone()) if capped else None  # old is overwritten
        if self.compiled:
            found = compiled_step()(
                old, teacher, lse_new, targets, factor, self.kl_factor, self.tau, torch.float32 if capped else dtype
            )
        else:
            found = self._by_blocks(old, teacher, lse_new, targets, factor)
        lse, kl, gradient = found
        if gradient is not None and slope is not None:
            gradient = gradient.float()
            gradient[:, : slope.shape[1]].mul_(slope)
        elif gradient is not None and transform.scale != 1.0:
            gradient = gradient.mul_(transform.scale)
        return lse, kl, None if gradient is None else gradient.to(dtype)

    def _by_blocks(
        self, old: Tensor, teacher: Tensor | None, lse_new: Tensor, targets: Tensor, factor: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The step in place, on blocks of rows that fit the cache; the gradient takes the place of ``old``."""
        size = max(1, CACHE_BYTES // (4 * old.shape[1]))
        found = []
        for start in range(0, len(old), size):
            rows = slice(start, start + size)
            found.append(
                softmax_step_in_place(
                    old[rows], None if teacher is None else teacher[rows], lse_new[rows], targets[rows],
                    None if factor is None else factor[rows], self.kl_factor, self.tau, torch.float32, self.scratch,
                )
            )  # fmt: skip
        kl = None if teacher is None else torch.cat([part for _, part, _ in found if part is not None])
        return torch.cat([part for part, *_ in found]), kl, None if found[0][2] is None else old


@lru_cache(maxsize=1)
def compiled_step() -> Compiled:
    """The steps that a compiler has fused, made on first use."""
    return Compiled(softmax_step, softmax_step_in_place)
