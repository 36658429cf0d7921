"""Row-wise arithmetic on logits, twice: for a compiler to fuse, and in place for where there is none.

`softmax_chunk` serves phase 1 (thesis eq. `kl_def`, cross-entropy over V + N) and fine-tuning (cross-entropy alone): it
gives losses and the gradient of the logits in one go.

Between the products with the head, a chunk of float32 logits is read and written many times if every operation is a
pass of its own: over 100,000 columns those passes cost more than the products. Fused, the logits of student
and teacher are read twice and the gradient is written once. Without a compiler the same steps run in place on blocks
of rows that stay in the processor's cache, in memory that is allocated once.

Shapes: r rows, V original ids. Everything is float32 except the returned gradient.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch._dynamo as dynamo
from torch import Tensor

CACHE_BYTES = 2 << 20  # of one block of rows: four of them share the cache


def default_chunk(columns: int, device: torch.device) -> int:
    """Return how many positions of logits fit a modest buffer: 64 MB on a CPU; 512 MB in whole tiles on a GPU."""
    if device.type != "cuda":
        return max(16, (64 << 20) // (4 * columns))
    rows = (512 << 20) // (4 * columns)
    return max(16, rows // 128 * 128 or rows)


def logit_products(hidden: Tensor, weights: Tensor, out: Tensor | None = None) -> Tensor:
    """Return float32 `hidden @ weights.T`; on a GPU half-precision inputs keep a float32 result.

    Args:
        hidden: (n, D) states.
        weights: (R, D) rows of a head, in the dtype of `hidden`.
        out: (n, R) float32 memory for the result, used where `hidden` is float32.
    """
    if hidden.is_cuda and hidden.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(hidden, weights.T, out_dtype=torch.float32)
    if hidden.dtype == torch.float32 and out is not None:
        return torch.mm(hidden, weights.T, out=out)
    return (hidden @ weights.T).float()


def blank_(logits: Tensor, columns: int) -> Tensor:
    """Give the columns from `columns` on no probability, in place; the value is finite, since 0 * inf is not 0."""
    if columns < logits.shape[1]:
        logits[:, columns:] = -1e30
    return logits


class Compiled:
    """A function that runs through the compiler on CUDA as long as that works, and else another with its results.

    Args:
        fused: traced and compiled at the first call.
        plain: takes over when the compiler is missing or fails.
    """

    def __init__(self, fused: Callable[..., Any], plain: Callable[..., Any]) -> None:
        self.plain = plain
        # one graph for each kind of objective; past the limit the compiler would silently give up
        dynamo.config.recompile_limit = max(64, dynamo.config.recompile_limit)
        self.compiled: Callable[..., Any] | None = torch.compile(fused)

    def __call__(self, *arguments: Any) -> Any:
        """Call one of the two, whose first argument is a tensor; its rows may differ in number from call to call.

        A single row takes the plain way: the compiler would make code for a length of 1 only, which takes seconds.
        """
        if self.compiled is not None and len(arguments[0]) != 1:
            for tensor in arguments:
                if isinstance(tensor, Tensor) and tensor.ndim:
                    dynamo.maybe_mark_dynamic(tensor, 0)
            try:
                return self.compiled(*arguments)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # no compiler on this machine: the slower way gives the same numbers
                warnings.warn(f"no compiler, slower steps are used: {str(error)[:200]}", stacklevel=2)
                self.compiled = None
        return self.plain(*arguments)


@lru_cache
def compiled(fused: Callable[..., Any], plain: Callable[..., Any] | None = None) -> Compiled:
    """Return the one `Compiled` of a function, made on first use; it is its own plain way unless another is given."""
    return Compiled(fused, plain or fused)


class Scratch:
    """Memory for the blocks of one pass, allocated once: on a CPU fresh pages cost more than the arithmetic."""

    def __init__(self) -> None:
        self.held: dict[str, Tensor] = {}

    def take(self, name: str, like: Tensor, rows: int, columns: int) -> Tensor:
        """Return `rows` x `columns` float32, whose content is undefined."""
        held = self.held.get(name)
        if held is None or held.shape[0] < rows or held.shape[1] != columns:
            held = torch.empty(rows, columns, dtype=torch.float32, device=like.device)
            self.held[name] = held
        return held[:rows]


def softmax_step(
    old: Tensor,
    teacher: Tensor | None,
    lse_new: Tensor,
    targets: Tensor,
    ce_factor: Tensor | None,
    kl_factor: Tensor | None,
    tau: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Turn logits into losses and the gradient of the old logits; nothing is changed in place.

    A compiler fuses what one function sees, hence a tensor or None for each part of the objective.

    Args:
        old: (r, V) the student's logits of the original ids.
        teacher: (r, V) the teacher's, or None.
        lse_new: (r,) log-sum-exp of the student's logits of the new ids.
        targets: (r,) next ids; those outside 0 … V-1 have no column here.
        ce_factor: (r,) weight of each row's cross-entropy in the gradient, or None.
        kl_factor: () or (r, 1) weight of each row's KL in the gradient, or None.
        tau: () temperature, or None for 1.
        dtype: of the gradient.

    Returns:
        (r,) log-sum-exp of `old`; (r,) KL(teacher || student) at the temperature, unscaled, or None; (r, V) gradient
        with respect to `old`, or None where no factor asks for one.
    """
    lse, shifted, log_sum = _normaliser(old)  # (r,), (r, V), (r, 1)
    kl: Tensor | None = None
    gradient: Tensor | None = None
    if teacher is not None:
        if tau is not None:
            _, shifted, log_sum = _normaliser(old / tau)
        _, goal, goal_log_sum = _normaliser(teacher if tau is None else teacher / tau)
        log_p, log_q = goal - goal_log_sum, shifted - log_sum  # (r, V): log P and log Q of eq. `kl_def`
        p = log_p.exp()
        kl = (p * (log_p - log_q)).sum(-1)  # (r,)
        if kl_factor is not None:
            gradient = (log_q.exp() - p) * kl_factor  # (r, V)
    if ce_factor is not None:
        to_all = torch.logaddexp(lse, lse_new)  # (r,) over V + N
        hit = (torch.arange(old.shape[1], device=old.device) == targets[:, None]).float()  # (r, V)
        ce_gradient = ((old - to_all[:, None]).exp() - hit) * ce_factor[:, None]
        gradient = ce_gradient if gradient is None else gradient + ce_gradient
    return lse, kl, None if gradient is None else gradient.to(dtype)


def _normaliser(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Log-sum-exp (r,), logits minus their maximum (r, V), and the log of the sum of their exponentials (r, 1)."""
    top = logits.amax(-1, keepdim=True)
    shifted = logits - top
    log_sum = shifted.exp().sum(-1, keepdim=True).log()
    return (top + log_sum).squeeze(-1), shifted, log_sum


def softmax_step_in_place(
    old: Tensor,
    teacher: Tensor | None,
    lse_new: Tensor,
    targets: Tensor,
    ce_factor: Tensor | None,
    kl_factor: Tensor | None,
    tau: Tensor | None,
    dtype: torch.dtype,
    scratch: Scratch | None = None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Do what `softmax_step` does, with as few passes and as little memory as single operations allow.

    `old` and `teacher` are overwritten; a float32 gradient is returned in the memory of `old`.
    """
    scratch = scratch or Scratch()
    shape = old.shape
    q = torch.softmax(old, -1, out=scratch.take("q", old, *shape))  # (r, V)
    top = old.amax(-1)
    lse = top - q.amax(-1).log()  # (r,)
    kl: Tensor | None = None
    probabilities = q
    if teacher is not None:
        if tau is not None:
            probabilities = scratch.take("ce", old, *shape).copy_(q) if ce_factor is not None else q
            old, teacher = old.div_(tau), teacher.div_(tau)
            q = torch.softmax(old, -1, out=scratch.take("q", old, *shape))
            top = old.amax(-1)
        p = torch.softmax(teacher, -1, out=scratch.take("p", old, *shape))
        # log p - log q, with the maxima subtracted first: equal logits give exactly 0
        apart = (teacher.amax(-1) - top) - (p.amax(-1).log() - q.amax(-1).log())
        kl = teacher.sub_(old).sub_(apart[:, None]).mul_(p).sum(-1)  # (r,)
        if kl_factor is not None:
            old = torch.sub(q, p, out=old).mul_(kl_factor)
    if ce_factor is not None:
        to_all = torch.logaddexp(lse, lse_new)
        row_factor = (ce_factor * (lse - to_all).exp())[:, None]
        if teacher is not None and kl_factor is not None:
            old.addcmul_(probabilities, row_factor)
        else:
            old = torch.mul(probabilities, row_factor, out=old)
        inside = (targets >= 0) & (targets < shape[1])
        at_target = torch.where(inside, -ce_factor, 0.0)[:, None]
        old.scatter_add_(1, targets.clamp(0, shape[1] - 1)[:, None], at_target)
    wanted = ce_factor is not None or (teacher is not None and kl_factor is not None)
    return lse, kl, old.to(dtype) if wanted else None


def softmax_chunk(
    old: Tensor,
    teacher: Tensor | None,
    lse_new: Tensor,
    targets: Tensor,
    ce_factor: Tensor | None,
    kl_factor: Tensor | None,
    tau: Tensor | None,
    dtype: torch.dtype,
    scratch: Scratch,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Run `softmax_step`, whose arguments these are: fused on CUDA, elsewhere on blocks of rows that fit the cache."""
    if old.is_cuda:
        found: tuple[Tensor, Tensor | None, Tensor | None]
        found = compiled(softmax_step, softmax_step_in_place)(
            old, teacher, lse_new, targets, ce_factor, kl_factor, tau, dtype
        )
        return found
    size = max(1, CACHE_BYTES // (4 * old.shape[1]))
    parts = []
    for start in range(0, len(old), size):
        rows = slice(start, start + size)
        parts.append(
            softmax_step_in_place(
                old[rows], None if teacher is None else teacher[rows], lse_new[rows], targets[rows],
                None if ce_factor is None else ce_factor[rows],
                kl_factor if kl_factor is None or not kl_factor.ndim else kl_factor[rows], tau, torch.float32, scratch,
            )
        )  # fmt: skip
    kl = None if teacher is None else torch.cat([part for _, part, _ in parts if part is not None])  # (r,)
    gradient = None if parts[0][2] is None else old  # (r, V): each block left it in the memory of its logits
    return torch.cat([part for part, *_ in parts]), kl, gradient


def softmax_rows(logits: Tensor, near: Tensor, dtype: torch.dtype, scratch: Scratch) -> tuple[Tensor, Tensor, Tensor]:
    """Return the log-sum-exp of float32 logits (r, V), and their softmax as weights (r, V) times a factor (r,).

    On CUDA the weights are exponentials of the distance to a number that is known to be near the largest logit, so that
    the logits are read once and the sum is found on the way; a logit more than 80 above that number would give an
    infinite loss. Elsewhere the weights are the softmax itself, in the memory of the logits.

    Args:
        near: (r,) for each row a number that its largest logit exceeds by less than 80.
        dtype: of the weights.
    """
    if logits.is_cuda:
        found: tuple[Tensor, Tensor] = compiled(_exponentials)(logits, near, dtype)
        total, weights = found
        return near + total.log(), weights, 1.0 / total
    size, lse = max(1, CACHE_BYTES // (4 * logits.shape[1])), []
    for start in range(0, len(logits), size):
        block = logits[start : start + size]
        q = torch.softmax(block, -1, out=scratch.take("q", block, *block.shape))
        lse.append(block.amax(-1) - q.amax(-1).log())
        block.copy_(q)
    return torch.cat(lse), logits.to(dtype), torch.ones_like(near)


def log_sum_exp_(logits: Tensor) -> Tensor:
    """Return the log-sum-exp (r,) of float32 logits (r, V), which are overwritten except on CUDA."""
    if logits.is_cuda:
        fused: Tensor = compiled(_log_sum_exp)(logits)
        return fused
    size, found = max(1, CACHE_BYTES // (4 * logits.shape[1])), []
    for block in logits.split(size):
        top = block.amax(-1, keepdim=True)
        found.append((top + block.sub_(top).exp_().sum(-1, keepdim=True).log())[:, 0])
    return torch.cat(found)


def _exponentials(logits: Tensor, near: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sums (r,) and values (r, V) of exp(logits - near)."""
    weights = (logits - near[:, None]).exp()
    return weights.sum(-1), weights.to(dtype)


def _log_sum_exp(logits: Tensor) -> Tensor:
    """Log-sum-exp (r,); PyTorch's own reads the logits several times."""
    return _normaliser(logits)[0]
