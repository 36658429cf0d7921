"""How long the explorer takes to answer: `python tests/bench/bench_explorer.py` (1,000 tokens, D = 4096, V = 32,022).

It builds a synthetic run in a temporary folder (about 500 MB) and prints cold and warm times of one answer. The
promise is 200 ms for a warm answer on one core.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from vocabx_utils import runs
from vocabx_utils.analysis.explorer import Explorer
from vocabx_utils.analysis.explorer_view import view_html
from vocabx_utils.analysis.rows import RowHistory, TokenInfo


def build(folder: Path, n: int, width: int, vocab: int, epochs: int) -> Explorer:
    """Make a synthetic explorer of the given size."""
    generator = torch.Generator().manual_seed(0)
    original = {key: torch.randn(vocab, width, generator=generator) for key in ("input", "head")}
    tokens = [TokenInfo(vocab + at, f" token{at}", (at, at + 1, at + 2), 10) for at in range(n)]
    files = {}
    for epoch in range(epochs + 1):
        files[epoch] = folder / f"epoch_{epoch:02}.safetensors"
        rows = {f"{key}_rows": torch.randn(n, width, generator=generator) for key in ("input", "head")}
        runs.write_tensors(files[epoch], rows)
    return Explorer(tokens, {"mean_kl_last": RowHistory("mean_kl_last", files)}, original, str)


def milliseconds(work: Callable[[], object]) -> float:
    """Time one call."""
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def main() -> None:
    """Print cold and warm times."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("tokens", 1000), ("width", 4096), ("vocab", 32022), ("epochs", 12), ("repeats", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        explorer = build(Path(folder), args.tokens, args.width, args.vocab, args.epochs)
        cold = milliseconds(lambda: view_html(explorer.view("mean_kl_last", 0, args.epochs)))
        other_epoch = milliseconds(lambda: view_html(explorer.view("mean_kl_last", 0, 1)))
        tokens = [(7 * at) % args.tokens for at in range(args.repeats)]
        warm = [milliseconds(lambda at=at: view_html(explorer.view("mean_kl_last", at, args.epochs))) for at in tokens]
        print(f"N = {args.tokens}, D = {args.width}, V = {args.vocab}, {torch.get_num_threads()} threads")
        print(f"first answer {cold:.0f} ms; another epoch {other_epoch:.0f} ms")
        print(f"another token: median {statistics.median(warm):.0f} ms, largest {max(warm):.0f} ms")


if __name__ == "__main__":
    main()
