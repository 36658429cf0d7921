"""What bounds the teacher's one pass on a GPU: its time by tokens of a pass, kernel of attention and merged products.

    python tests/bench/teacher_pass.py [--workload qwen-t1024] [--tokens 8192 32768] [--times 1 8] [--out results/bench]

Writes OUT/teacher-<device>.json, a row a way, number of tokens at once and number of texts. A row holds `milliseconds`
for the texts of the workload (median of rounds that read them so many `times`, fused blocks, no likelihood, no file),
`flops_per_s` by the formula of `phase1.py`, `ceiling_flops` (a large product for as long after each round, so in the
same state of the card), the `share` of one in the other, and `kernels` (milliseconds by kind, PyTorch's profiler).

Ways: `as it is`; `gate and up` and `query, key and value` each as one product of concatenated weights; those with
`cuDNN` let attention take cuDNN's kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from bench_parts import facts, known_json, short_device
from phase1 import WORKLOADS, ask_once, problem_of, teacher_flops_per_token, teacher_pass
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from vocabx_utils import files
from vocabx_utils.training.fusing import fuse

KINDS = {  # the first word that a kernel's name holds says what it does; compiled ones are named after all they do
    "silu": "gate of the MLP", "triton_": "other", "flash": "attention", "cudnn_generated": "attention",
    "nvjet": "products", "gemm": "products", "cutlass": "products",
}  # fmt: skip


def merge_gate_and_up(model: Any) -> None:
    """Let each MLP read its input once: (B, T, D) times the (2 F, D) weights of both."""
    for layer in model.model.layers:
        weight = torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]).detach()

        def forward(self: Any, x: Tensor, weight: Tensor = weight) -> Tensor:
            gate, up = nn.functional.linear(x, weight).chunk(2, -1)
            return self.down_proj(nn.functional.silu(gate) * up)

        layer.mlp.forward = types.MethodType(forward, layer.mlp)


def merge_query_key_value(model: Any) -> None:
    """Let each attention multiply its input once; the query's module does it and the other two take their parts."""
    for layer in model.model.layers:
        parts = [getattr(layer.self_attn, name) for name in ("q_proj", "k_proj", "v_proj")]
        weight = torch.cat([part.weight for part in parts]).detach()
        bias = torch.cat([part.bias for part in parts]).detach() if parts[0].bias is not None else None
        sizes, made = [len(part.weight) for part in parts], list[Tensor]()

        def all_three(
            _: Any, x: Tensor, weight: Tensor = weight, bias: Any = bias, sizes: Any = sizes, made: Any = made
        ) -> Tensor:
            made[:] = nn.functional.linear(x, weight, bias).split(sizes, -1)
            return made[0]

        parts[0].forward = types.MethodType(all_three, parts[0])
        for place in (1, 2):
            parts[place].forward = types.MethodType(lambda _, x, p=place, made=made: made[p], parts[place])


WAYS: dict[str, list[Callable[[Any], None]]] = {
    "as it is": [],
    "gate and up in one": [merge_gate_and_up],
    "these, and query, key and value in one": [merge_gate_and_up, merge_query_key_value],
    "cuDNN": [],
    "cuDNN, gate and up in one": [merge_gate_and_up],
}


def measure(way: str, workload: str, tokens: list[int], times: list[int], rounds: int) -> list[dict[str, Any]]:
    """Rows of one way."""
    torch.compiler.reset()
    torch.compiler.config.force_disable_caches = True  # a block that was compiled for another kernel would be found
    torch.manual_seed(0)
    w = WORKLOADS[workload]
    problem = problem_of(w, argparse.Namespace(workload=workload, compiled=True, micro=0, model=None, data=None))
    for change in WAYS[way]:
        change(problem.base.model)
    fuse(problem.base.model)
    flops = teacher_flops_per_token(problem, w) * sum(len(e.original_ids) for e in problem.train.examples)

    kernel = sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], set_priority=True)
    found = []
    with kernel if way.startswith("cuDNN") else contextlib.nullcontext():
        for budget in tokens:
            for _ in range(3):  # compile, record, run
                ask_once(problem, budget)
            for repeated in times:
                read = teacher_pass(problem, w.size, budget, rounds, repeated)
                seconds, ceiling = read["teacher_pass_seconds"], read["teacher_ceiling_flops"]
                row = {"way": way, "workload": workload, "tokens_of_a_pass": budget, "flops_per_s": flops / seconds}
                row["texts"] = repeated * len(problem.train)
                row |= {"milliseconds": 1e3 * seconds, "ceiling_flops": ceiling, "share": flops / seconds / ceiling}
                found.append(row)
            if torch.cuda.is_available():
                found[-1]["kernels"] = kernels(partial(ask_once, problem, budget))
    return found


def kernels(run: Callable[[], None]) -> dict[str, float]:
    """Milliseconds of a call's kernels by kind, and `all`."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        run()
    found: dict[str, float] = {"all": 0.0}
    for event in profiler.key_averages():
        took = event.self_device_time_total / 1e3
        kind = next((kind for word, kind in KINDS.items() if word in event.key), "other")
        for name in ("all", kind):
            found[name] = found.get(name, 0.0) + took
    return {name: round(took, 2) for name, took in found.items()}


def main(arguments: list[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="qwen-t1024", choices=[n for n, w in WORKLOADS.items() if w.shape])
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192, 32768], help="of a pass")
    parser.add_argument("--times", type=int, nargs="+", default=[1, 8], help="that a round reads the texts")
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    options = parser.parse_args(arguments)
    path = options.out / f"teacher-{short_device()}.json"
    known = known_json(path).get("rows", [])
    for way in options.ways:
        if any((row["way"], row["workload"]) == (way, options.workload) for row in known):
            continue
        known += measure(way, options.workload, options.tokens, options.times, options.rounds)
        files.write_json(path, {"rows": known, **facts()})
        print(*known[-len(options.tokens) * len(options.times) :], sep="\n", flush=True)


if __name__ == "__main__":
    main()
