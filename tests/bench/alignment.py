"""Time the exact alignment beside the thesis's look-ahead algorithm, on the same token sequences, in one process.

Run from the repository: `python tests/bench/alignment.py [--out results/bench/alignment.json]`. Uses one core.
Each figure is the best of several repeats; the text is code of the installed packages, laid end to end.
"""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
from bench_parts import seconds_of
from tokenizers import AddedToken

from vocabx_utils import corpus, fetch, files, models
from vocabx_utils.vocabulary.alignment import align_texts
from vocabx_utils.vocabulary.boundaries import align_boundaries
from vocabx_utils.vocabulary.lookahead import map_token_sequences, wrong_pairs

SIZES = (10_000, 100_000, 1_000_000)


class ByAddedTokens:
    """An extension by added tokens: frequent identifiers of the corpus that the tokenizer cuts into pieces."""

    def __init__(self, model: str, texts: list[str], count: int) -> None:
        self.original = models.load_tokenizer(model)
        self.extended = models.load_tokenizer(model)
        words: dict[str, int] = {}
        for text in texts:
            for word in text.replace("(", " ").replace(".", " ").split():
                if word.isidentifier() and len(word) > 4:
                    words[word] = words.get(word, 0) + 1
        ranked = sorted(words, key=lambda word: (-words[word], word))
        cut = [word for word in ranked if len(self.original.encode(word, add_special_tokens=False)) > 1]
        self.extended.add_tokens([AddedToken(word, special=False, normalized=False) for word in cut[:count]])


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """Return the shortest wall time of several runs, in seconds."""
    return min(seconds_of(work) for _ in range(repeats))


def measure(model: str, new_tokens: int) -> dict[str, object]:
    """Time both algorithms for each size of `SIZES`, and the whole way from texts to pairs."""
    pairs = corpus.pairs_from_packages()
    texts = [corpus.render(pair).text for pair in pairs]
    extension = ByAddedTokens(model, texts, new_tokens)
    aligned = align_texts(extension, texts)
    original, extended = ([getattr(text, side) for text in aligned] for side in ("original_ids", "extended_ids"))
    ends = [[getattr(text, side) for text in aligned] for side in ("original_ends", "extended_ends")]
    base = np.cumsum([0, *(int(text.original_ends[-1]) for text in aligned)])
    joined_ids = [np.concatenate(side) for side in (original, extended)]
    joined_ends = [np.concatenate([e + b for e, b in zip(side, base, strict=False)]) for side in ends]
    available = len(joined_ids[0])
    rows = []
    for size in sorted({min(size, available) for size in SIZES}):
        stop = int(np.searchsorted(joined_ends[1], joined_ends[0][size - 1], side="right"))
        left, right = joined_ids[0][:size].tolist(), joined_ids[1][:stop].tolist()
        left_ends, right_ends = joined_ends[0][:size], joined_ends[1][:stop]
        exact = best_seconds(lambda a=left_ends, b=right_ends: align_boundaries(a, b), 9)
        lookahead = best_seconds(lambda a=left, b=right: map_token_sequences(a, b), 3)
        wrong = wrong_pairs(map_token_sequences(left, right), left_ends, right_ends)
        rows.append(
            {
                "original_tokens": size,
                "extended_tokens": stop,
                "align_boundaries_s": round(exact, 6),
                "align_boundaries_million_tokens_per_s": round(size / exact / 1e6, 2),
                "map_token_sequences_s": round(lookahead, 4),
                "map_token_sequences_million_tokens_per_s": round(size / lookahead / 1e6, 3),
                "times_faster": round(lookahead / exact, 1),
                "wrong_pairs_of_map_token_sequences": len(wrong),
            }
        )
    whole = best_seconds(lambda: align_texts(extension, texts), 2)
    ids_only = best_seconds(
        lambda: [t.backend_tokenizer.encode_batch_fast(texts) for t in (extension.original, extension.extended)], 2
    )
    tokens = sum(len(side) for side in original)
    return {
        "question": "original tokens aligned a second on one core, best of 9 (look-ahead: best of 3)",
        "model": model,
        "new_tokens": new_tokens,
        "texts": len(texts),
        "rows": rows,
        "from_texts": {
            "original_tokens": tokens,
            "tokenize_both_s": round(ids_only, 3),
            "tokenize_and_align_s": round(whole, 3),
            "million_tokens_per_s": round(tokens / whole / 1e6, 3),
        },
        "machine": {"processor": platform.machine(), "python": platform.python_version(), "numpy": np.__version__},
    }


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=fetch.DEFAULT_MODEL)
    parser.add_argument("--new-tokens", type=int, default=800)
    parser.add_argument("--out", type=Path, default=Path("results/bench/alignment.json"))
    options = parser.parse_args()
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "RAYON_NUM_THREADS": "1"}  # read at the first batch
    result = measure(options.model, options.new_tokens)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(options.out, result)
    for row in result["rows"]:  # type: ignore[attr-defined]
        print(row)
    print(result["from_texts"])


if __name__ == "__main__":
    main()
