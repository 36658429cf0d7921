"""Measure on a GPU what an odd vocabulary costs: the products with the head, and the fused passes between them.

    python tests/bench/head_products.py [--out results/bench]

Writes OUT/head-products-<device>.json: microseconds a position at V = 151,665 columns (a Qwen tokenizer) and at the
next multiple of 64, for the three products of phase 1 (student, teacher, gradient; bfloat16, float32 results), for the
fused arithmetic between them, and for the whole loss with its gradients; and microseconds of one greedy choice for 64
replies, with 800 new rows and with rows up to the next multiple of 64.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
from bench_parts import facts, seconds_of, short_device
from torch import Tensor
from torch.nn import functional

from vocabx_utils import files
from vocabx_utils.products import aligned_rows
from vocabx_utils.training.losses import phase1_loss
from vocabx_utils.training.softmax import blank_, compiled, logit_products, softmax_step, softmax_step_in_place

V, N, WIDTH, ROWS = 151_665, 800, 896, 768
REPLIES = 64


def products(states: Tensor, head: Tensor, gradient: Tensor) -> None:
    """Student's and teacher's logits in float32, and the gradient of the states."""
    for _ in range(2):
        logit_products(states, head)
    torch.mm(gradient, head)


def seconds(run: Callable[[], object]) -> float:
    """Median of 20 calls, three before them left out."""
    return statistics.median([seconds_of(run) for _ in range(23)][3:])


def measure(head: Tensor) -> dict[str, float]:
    """Microseconds a position with this many columns."""
    place = {"device": head.device}
    states = torch.randn(ROWS, WIDTH, dtype=head.dtype, **place)
    old, teacher = (blank_(torch.randn(ROWS, len(head), **place), V) for _ in range(2))
    gradient = old.to(head.dtype)
    zeros, factor = torch.zeros(ROWS, **place), torch.tensor(0.1, **place)
    step = compiled(softmax_step, softmax_step_in_place)
    parts = {
        "products": lambda: products(states, head, gradient),
        "fused_passes": lambda: step(old, teacher, zeros, zeros.long(), None, factor, None, head.dtype),
    }
    return {name: 1e6 * seconds(run) / ROWS for name, run in parts.items()}


def choice(head: Tensor) -> float:
    """Microseconds of choosing the next token of `REPLIES` replies, as generation does."""
    states = torch.randn(REPLIES, WIDTH, device=head.device, dtype=head.dtype)
    return 1e6 * seconds(lambda: functional.linear(states, head)[:, : V + N].argmax(-1))


def whole_loss(head: Tensor) -> float:
    """Microseconds a position of `phase1_loss` with both gradients."""
    states = torch.randn(ROWS, WIDTH, device=head.device, dtype=head.dtype)
    rows = torch.randn(N, WIDTH, device=head.device)
    targets = torch.randint(0, V + N, (ROWS,), device=head.device)
    weights = torch.full((ROWS,), 1 / ROWS, device=head.device)

    def run() -> None:
        terms = phase1_loss(
            states.requires_grad_(), head, rows.requires_grad_(), targets, ce_coefficient=weights,
            teacher=states.detach(), kl_coefficient=1 / ROWS,
        )  # fmt: skip
        (terms.input_loss + terms.head_loss).backward()

    return 1e6 * seconds(run) / ROWS


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("head_products.py measures a GPU's products: no GPU was found")
    head = torch.randn(V, WIDTH, device="cuda", dtype=torch.bfloat16)
    by_columns = {str(len(matrix)): measure(matrix) for matrix in (head, aligned_rows(head))}
    found = {"us_per_position": by_columns, "whole_loss_us": whole_loss(head)}
    longer = torch.cat([head, torch.randn(N, WIDTH, device="cuda", dtype=head.dtype)])
    found["choice_us"] = {str(len(matrix)): choice(matrix) for matrix in (longer, aligned_rows(longer))}
    files.write_json(options.out / f"head-products-{short_device()}.json", {**found, **facts()})
    print(found)


if __name__ == "__main__":
    main()
