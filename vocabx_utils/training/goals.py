"""What the teacher's distributions come to in the loss: a vector, a few likely tokens and a number for each position.

With logits `s_v = h · w_v` the KL of eq. `kl_def` and its gradient read

    KL(P || Q) = sum_v p_v log p_v - h · sum_v p_v w_v + logsumexp(s)
    d KL / d h = sum_v q_v w_v - sum_v p_v w_v

so the teacher enters through `sum_v p_v w_v`, D numbers, and its negative entropy. It never changes: both are computed
once for each position, and no step needs the teacher's logits or its softmax any more.

Where the student is close to the teacher the two sums nearly cancel, and most of each belongs to a few likely tokens.
In bfloat16 their rounding would drown the difference. So the likeliest tokens are kept apart, in float32.

Shapes: V original ids, D width, K positions, M likeliest tokens of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from vocabx_utils.products import aligned_rows
from vocabx_utils.student import LogitTransform
from vocabx_utils.training.objectives import Objective
from vocabx_utils.training.softmax import blank_, default_chunk, logit_products

LIKELIEST = 8
"""M, how many tokens are kept apart; what is left of a distribution is flat enough for bfloat16."""


@dataclass(frozen=True)
class Goals:
    """The teacher's side of the loss at K positions, at temperature 1.

    Attributes:
        rest: (K, D) sum of p_v w_v over all ids but the likeliest, in the model's dtype.
        ids: (K, M) the likeliest ids.
        top: (K, M) float32 their probabilities.
        negative_entropy: (K,) float32 sum of p_v log p_v over all ids, in nats.
    """

    rest: Tensor
    ids: Tensor
    top: Tensor
    negative_entropy: Tensor

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
