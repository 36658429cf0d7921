"""What never changes in the loss, computed once: the teacher's side, and what the original head makes of fixed states.

With logits `s_v = h · w_v` the KL of eq. `kl_def` and its gradient read

    KL(P || Q) = sum_v p_v log p_v - h · sum_v p_v w_v + logsumexp(s)
    d KL / d h = sum_v q_v w_v - sum_v p_v w_v

so the teacher enters through `sum_v p_v w_v`, D numbers for each position, and its negative entropy (`Goals`): no step
needs its logits or its softmax any more. Where the student is close to the teacher the two sums nearly cancel, and most
of each belongs to a few likely tokens. In bfloat16 their rounding would drown the difference, so the likeliest tokens
are kept apart, in float32.

Where a student's state never changes, the cross-entropy needs one log-sum-exp and one logit of the original ids
(`OldSums`), whatever the new head rows become: they stand for the product with the original head.

Shapes: V original ids, D width, K compared positions, M likeliest tokens of each, P positions with a target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vocabx_utils.products import aligned_rows
from vocabx_utils.student import LogitTransform
from vocabx_utils.training.objectives import Objective
from vocabx_utils.training.softmax import blank_, default_chunk, log_sum_exp_, logit_products

LIKELIEST = 8
"""M, how many tokens are kept apart; what is left of a distribution is flat enough for bfloat16."""


@dataclass(frozen=True)
class Goals:
    """The teacher's side of the loss at K positions, at temperature 1."""

    rest: Tensor  # (K, D) sum of p_v w_v over all ids but the likeliest, in the model's dtype
    ids: Tensor  # (K, M) the likeliest ids
    top: Tensor  # (K, M) float32 their probabilities
    negative_entropy: Tensor  # (K,) float32 sum of p_v log p_v over all ids, in nats

    def __len__(self) -> int:
        return len(self.rest)

    def __getitem__(self, part: slice) -> Goals:
        """Return those of some positions."""
        return Goals(*(tensor[part] for tensor in vars(self).values()))

    def take(self, rows: Tensor, device: torch.device) -> Goals:
        """Return those of some rows, on a device."""
        at = rows.to(self.rest.device)
        return Goals(*(tensor[at].to(device) for tensor in vars(self).values()))

    def expected(self, states: Tensor, likely: Tensor) -> Tensor:
        """Return (K,) the mean logit under the teacher, sum_v p_v s_v, of students with final states (K, D).

        `likely` are the student's (K, M) float32 logits of the likeliest ids.
        """
        return (states.float() * self.rest.float()).sum(-1) + (self.top * likely).sum(-1)


@torch.no_grad()
def sum_up(states: Tensor, head: Tensor, chunk: int | None = None) -> Goals:
    """Sum the teacher's distributions up, from its final states (K, D) and the head (V, D), a chunk at a time.

    Arithmetic is on the head's device, the result where the states are.
    """
    weights, vocab = aligned_rows(head), len(head)
    many = min(LIKELIEST, vocab)
    found: list[tuple[Tensor, ...]] = []
    for part in states.split(chunk or default_chunk(vocab, head.device)):
        logits = blank_(logit_products(part.to(head.device).to(head.dtype), weights), vocab)  # (c, V)
        # log_softmax adds in an order that leaves the sum of p off by 1e-5, and the KL by that share of a mean logit
        log_p = logits.sub_(torch.logsumexp(logits, -1, keepdim=True))
        p = log_p.exp()  # eq. `kl_def`
        negative_entropy = log_p.mul_(p).sum(-1)
        top, ids = p.topk(many, -1)  # (c, M)
        rest = p.scatter_(1, ids, 0.0).to(head.dtype) @ weights  # (c, D)
        found.append(tuple(tensor.to(states.device) for tensor in (rest, ids, top, negative_entropy)))
    if not found:
        empty = states.new_zeros(0, many, dtype=torch.float32)
        return Goals(states.new_zeros(0, head.shape[1]), empty.long(), empty, empty[:, 0])
    return Goals(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def serve(objective: Objective, transform: LogitTransform) -> bool:
    """Tell whether goals are enough: a KL at temperature 1 alone, of logits that are plain products with the head."""
    alone = objective.match == "kl" and objective.temperature == 1 and not objective.hidden_weight
    return alone and is_plain(transform)


def is_plain(transform: LogitTransform) -> bool:
    """Tell whether logits are products with the head and nothing else."""
    return transform.scale == 1.0 and transform.softcap is None


@dataclass(frozen=True)
class OldSums:
    """The two numbers at P positions whose states never change."""

    sums: Tensor  # (P,) float32 log-sum-exp of the logits of the V original ids
    logits: Tensor  # (P,) float32 logit of the target where that is an original id, else 0

    def __len__(self) -> int:
        return len(self.sums)

    def __getitem__(self, part: slice | Tensor) -> OldSums:
        """Return those of some positions."""
        return OldSums(self.sums[part], self.logits[part])


@torch.no_grad()
def old_sums(states: Tensor, targets: Tensor, head: Tensor, transform: LogitTransform) -> OldSums:
    """Read final states (P, D) with the original head (V, D), a chunk of positions at a time.

    States have the head's dtype and lie on its device; of the (P,) targets those outside 0 … V-1 have no logit here.
    """
    weights, vocab = aligned_rows(head), len(head)
    chunk = default_chunk(vocab, states.device) * (2 if states.is_cuda else 1)  # no second matrix beside the logits
    at = targets.clamp(0, vocab - 1)[:, None]  # (P, 1)
    sums = torch.empty(len(states), dtype=torch.float32, device=states.device)
    logits = torch.empty_like(sums)
    for start in range(0, len(states), chunk):
        part = slice(start, start + chunk)
        old = blank_(transform.apply_(logit_products(states[part], weights)), vocab)  # (c, V), then blank columns
        logits[part] = old.gather(1, at[part])[:, 0]
        sums[part] = log_sum_exp_(old)
    return OldSums(sums, torch.where(at[:, 0] == targets, logits, 0.0))
