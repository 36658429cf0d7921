"""How long the explorer takes to answer: `python tests/bench/bench_explorer.py` (1,000 tokens, D = 4096, V = 32,022).

It builds a synthetic run in a temporary folder (about 500 MB), times the first answer, which reads the matrices, and
later ones, and writes `results/bench/explorer.json`. The promise is 200 ms for an answer after the first on one core.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import tempfile
from pathlib import Path

import torch
from bench_parts import seconds_of

from vocabx_utils import files
from vocabx_utils.analysis.explorer import Explorer
from vocabx_utils.analysis.explorer_view import view_html
from vocabx_utils.rows import NewToken, RowHistory


def build(folder: Path, n: int, width: int, vocab: int, epochs: int) -> Explorer:
    """Make a synthetic explorer of the given size."""
    generator = torch.Generator().manual_seed(0)
    original = {key: torch.randn(vocab, width, generator=generator) for key in ("input", "head")}
    tokens = [NewToken(vocab + at, f" token{at}", b"", (at, at + 1, at + 2), 10) for at in range(n)]
    written = {}
    for epoch in range(epochs + 1):
        written[epoch] = folder / f"epoch_{epoch:02}.safetensors"
        rows = {f"{key}_rows": torch.randn(n, width, generator=generator) for key in ("input", "head")}
        files.write_tensors(written[epoch], rows)
    return Explorer(tokens, {"mean_kl_last": RowHistory("mean_kl_last", written)}, original, str)


def milliseconds(explorer: Explorer, token: int, epoch: int) -> float:
    """Time one answer."""
    return 1000 * seconds_of(lambda: view_html(explorer.view("mean_kl_last", token, epoch)))


def main() -> None:
    """Write and print cold and warm times."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("tokens", 1000), ("width", 4096), ("vocab", 32022), ("epochs", 12), ("repeats", 20)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--out", type=Path, default=Path("results/bench/explorer.json"))
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        explorer = build(Path(folder), args.tokens, args.width, args.vocab, args.epochs)
        cold = milliseconds(explorer, 0, args.epochs)
        other_epoch = milliseconds(explorer, 0, 1)
        tokens = [(7 * at) % args.tokens for at in range(args.repeats)]
        warm = [milliseconds(explorer, at, args.epochs) for at in tokens]
    content = {
        "question": "milliseconds for one answer of the explorer (view and its HTML)",
        "tokens": args.tokens,
        "width": args.width,
        "vocabulary": args.vocab,
        "epochs": args.epochs,
        "first_answer_ms": round(cold),
        "another_epoch_ms": round(other_epoch),
        "another_token_ms": {"n": len(warm), "median": round(statistics.median(warm)), "largest": round(max(warm))},
        "machine": {"processor": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__},
    }
    files.write_json(args.out, content)
    print(*(f"{name}: {value}" for name, value in content.items()), sep="\n")


if __name__ == "__main__":
    main()
