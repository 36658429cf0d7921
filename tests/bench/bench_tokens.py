"""Time continued BPE on 1 to 10 MB of source text and write results/bench/tokens.json.

Run: `python tests/bench/bench_tokens.py`. Each size runs in a process of its own, so that the peak memory is its own.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

SIZES = (1, 2, 5, 10)  # million bytes
N = 800
LIMITS = {"seconds": 60, "peak_mb": 2000}


def corpus(n_bytes: int) -> list[str]:
    """Source files of installed packages, in a fixed order, up to a size."""
    import importlib.util

    texts, size = [], 0
    for name in ("scipy", "pandas", "sklearn", "matplotlib", "numpy"):
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.submodule_search_locations
        for path in sorted(Path(next(iter(spec.submodule_search_locations))).rglob("*.py")):
            text = path.read_text(encoding="utf-8", errors="replace")[: n_bytes - size]
            texts.append(text)
            size += len(text.encode())
            if size >= n_bytes:
                return texts
    return texts


def measure(megabytes: int) -> dict[str, float]:
    """Choose N tokens on so much text."""
    from vocabx_utils.models import load_tokenizer
    from vocabx_utils.vocabulary.continued_bpe import learn_merges
    from vocabx_utils.vocabulary.options import TokenOptions
    from vocabx_utils.vocabulary.spelling import spelling_of
    from vocabx_utils.vocabulary.wordtable import count_words

    texts = corpus(megabytes * 1_000_000)
    tokenizer = load_tokenizer()
    begun = time.perf_counter()
    family = spelling_of(tokenizer)
    table = count_words(texts, family)
    counted = time.perf_counter()
    learned = learn_merges(table, family, N, TokenOptions(min_count=4))
    done = time.perf_counter()
    return {
        "megabytes": megabytes,
        "distinct_words": len(table.words),
        "original_tokens": table.tokens,
        "new_tokens": len(learned.pieces),
        "never_shown": len(learned.unseen),
        "saved_per_1000": round(1000 * (1 - learned.tokens_after / table.tokens), 2),
        "seconds_tokenize_and_count": round(counted - begun, 2),
        "seconds_merges": round(done - counted, 2),
        "seconds": round(done - begun, 2),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def main() -> None:
    from vocabx_utils.files import write_json
    from vocabx_utils.paths import project_root

    rows = []
    for size in SIZES:
        answer = subprocess.run([sys.executable, __file__, str(size)], capture_output=True, text=True, check=True)
        rows.append(json.loads(answer.stdout))
        print(rows[-1])
    held = {name: max(row[name] for row in rows) < limit for name, limit in LIMITS.items()}
    content = {"tokens": N, "cores": os.cpu_count(), "limits": LIMITS, "limits_held": held, "rows": rows}
    write_json(project_root() / "results/bench/tokens.json", content)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(measure(int(sys.argv[1]))))
    else:
        main()
