"""Would products in bfloat16 make training on a CPU faster? A pass of the frozen blocks, forward and back.

    python tests/bench/cpu_products.py [--model smollm2-135m] [--threads 2]

Three ways beside float32 are timed in turns on the same batch, and compared in hidden states and in the gradient with
respect to the input embeddings, which is all that reaches the new rows: `autocast` (PyTorch's, which rounds the stream
between the products too), `switch` (PyTorch's `fp32_precision`, which every product of float32 follows, also those
inside attention), and `linear` (the blocks' linear layers alone, their weights kept twice). Writes
results/bench/cpu-products.json.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from bench_parts import facts
from torch import Tensor, nn

from vocabx_utils.files import write_json
from vocabx_utils.models import load_base_model

OUT = Path(__file__).resolve().parents[2] / "results" / "bench" / "cpu-products.json"


class _Product(torch.autograd.Function):
    """A linear layer with frozen weights, both of whose products are taken in bfloat16."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        ctx.weight = weight
        return nn.functional.linear(x.bfloat16(), weight).float()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return (gradient.bfloat16() @ ctx.weight).float(), None


@contextlib.contextmanager
def linear(model: nn.Module) -> Iterator[None]:
    """Let the linear layers of all blocks multiply in bfloat16."""
    layers = [m for name, m in model.named_modules() if isinstance(m, nn.Linear) and "lm_head" not in name]
    for layer in layers:
        weight = layer.weight.detach().bfloat16()
        layer.forward = lambda x, weight=weight: _Product.apply(x, weight)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


@contextlib.contextmanager
def switch(_: nn.Module) -> Iterator[None]:
    """Let every float32 product be taken in bfloat16."""
    products = torch.backends.mkldnn.matmul
    before, products.fp32_precision = products.fp32_precision, "bf16"
    try:
        yield
    finally:
        products.fp32_precision = before


def autocast(_: nn.Module) -> Any:
    """PyTorch's own mixed precision."""
    return torch.autocast("cpu", dtype=torch.bfloat16)


WAYS: dict[str, Callable[[nn.Module], Any]] = {
    "float32": lambda _: contextlib.nullcontext(), "autocast": autocast, "switch": switch, "linear": linear,
}  # fmt: skip


def measure(model: Any, rows: int, length: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Time the ways in turns, behind one round that does not count, and compare each with float32."""
    torch.manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (rows, length))
    inputs = model.get_input_embeddings()(ids).detach().requires_grad_(True)
    goal = torch.randn(rows, length, inputs.shape[-1])
    found: dict[str, dict[str, Any]] = {name: {"seconds": []} for name in WAYS}
    for _ in range(rounds + 1):
        for name, way in WAYS.items():
            with way(model):
                began = time.perf_counter()
                hidden = model.base_model(inputs_embeds=inputs, use_cache=False).last_hidden_state.float()
                (gradient,) = torch.autograd.grad((hidden * goal).mean(), inputs)
                found[name]["seconds"].append(time.perf_counter() - began)
            found[name] |= {"hidden": hidden.detach(), "gradient": gradient}
    exact = found["float32"]
    return {name: told(one, exact) for name, one in found.items()}


def told(one: dict[str, Any], exact: dict[str, Any]) -> dict[str, Any]:
    """Seconds of the rounds that count, and how far a way is from float32."""
    seconds = [round(value, 3) for value in one["seconds"][1:]]
    off = {f"{key}_off": float((one[key] - exact[key]).norm() / exact[key].norm()) for key in ("hidden", "gradient")}
    median = statistics.median(seconds)
    return {
        "median_s": median,
        "seconds": seconds,
        "of_float32": median / statistics.median(exact["seconds"][1:]),
    } | off


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--rows", type=int, default=16, help="windows of a step of the quick profile")
    parser.add_argument("--length", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = load_base_model(options.model).model.float()
    ways = measure(model, options.rows, options.length, options.rounds)
    shape = {"rows": options.rows, "length": options.length, "threads": options.threads, "model": options.model}
    write_json(options.out, {"ways": ways, **shape, **facts()})
    for name, row in ways.items():
        told_of = f"{row['of_float32']:.2f} of float32, gradient off {row['gradient_off']:.3f}"
        print(f"{name:9} {row['median_s']:.2f} s, {told_of}")


if __name__ == "__main__":
    main()
