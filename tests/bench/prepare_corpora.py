"""Write the two corpora of `anchors.py` as pairs: functions of installed packages, and C headers of this system.

Run:  python tests/bench/prepare_corpora.py --out FOLDER [--tokenizer MODEL --n 100 400 800 1600]

Data are never committed. With `--tokenizer` the extended tokenizers are made here too, so that the measuring
machine need not choose tokens. One JSON Lines file for each corpus: {"split", "query", "answer", "lang", "source"}.
"""

from __future__ import annotations

import argparse
import gzip
import json
from dataclasses import asdict
from pathlib import Path

from bench_parts import label_of

from vocabx_utils import corpus
from vocabx_utils.models import load_tokenizer
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.proposals import select_tokens

HEADERS = ("linux", "asm-generic", "x86_64-linux-gnu", "sound", "rdma", "drm", "mtd", "scsi", "video", "misc")


def header_pairs() -> list[corpus.Pair]:
    """Parts of the C headers of the folders that most systems have."""
    root = Path("/usr/include")
    pairs: list[corpus.Pair] = []
    for name in HEADERS:
        if (root / name).is_dir():
            pairs += corpus.pairs_from_tree(root / name, "*.h", max_chars=700)
    return pairs


def write(path: Path, splits: dict[str, list[corpus.Pair]]) -> None:
    with gzip.GzipFile(path, "wb", mtime=0) as file:
        for split, pairs in splits.items():
            for pair in pairs:
                file.write((json.dumps({"split": split, **asdict(pair)}) + "\n").encode())
    print(path.name, {name: len(pairs) for name, pairs in splits.items()}, f"{path.stat().st_size / 2**20:.1f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--train", type=int, default=3000)
    parser.add_argument("--validation", type=int, default=1000)
    parser.add_argument("--tokenizer", help="base model whose tokenizer is extended here; needs no weights")
    parser.add_argument("--label", help="name of the model in file names; the same as in anchors.py")
    parser.add_argument("--n", type=int, nargs="+", default=[100, 400, 800, 1600])
    parser.add_argument("--strategy", choices=["added", "merges"], default="added")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    sizes = {"tokenizer": 1000, "train": args.train, "validation": args.validation}
    corpora = {"python": corpus.pairs_from_packages(max_chars=1200), "headers": header_pairs()}
    for name, pairs in corpora.items():
        splits = corpus.split_pairs(pairs, sizes)
        write(args.out / f"{name}.jsonl.gz", splits)
        if args.tokenizer:
            tokenizer = load_tokenizer(args.tokenizer)
            # rendered without a tokenizer: begin and end marks spelled out must not become parts of new tokens
            texts = [corpus.render(pair, "thesis").text for pair in splits["tokenizer"]]
            proposals = select_tokens(texts, tokenizer, max(args.n), strategy=args.strategy)
            for n in args.n:
                extension = add_tokens(tokenizer, proposals[:n], args.strategy)
                label = label_of(args.label, args.tokenizer)
                extension.save(args.out / "extensions" / f"{label}-{name}-{args.strategy}-{n}")
                print("extension", name, args.strategy, n, "->", extension.N)


if __name__ == "__main__":
    main()
