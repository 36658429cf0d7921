"""Measure both strategies on three corpora and write results/tokens/comparison.json.

Run: `python tests/bench/bench_comparison.py [folder of C headers]` with VOCABX_DATA set for CodeAlpaca.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vocabx_utils.files import write_json
from vocabx_utils.models import load_tokenizer
from vocabx_utils.paths import project_root
from vocabx_utils.runs import installed_versions
from vocabx_utils.vocabulary.comparison import C_HEADERS, compare_strategies, comparison_corpora


def main() -> None:
    headers = Path(sys.argv[1]) if len(sys.argv) > 1 else C_HEADERS
    corpora, missing = comparison_corpora(4_000_000, headers=headers)
    table = compare_strategies(corpora, load_tokenizer())
    print(table.to_string())
    sizes = {
        name: {part: sum(len(t.encode()) for t in texts) for part, texts in vars(halves).items()}
        for name, halves in corpora.items()
    }
    content = {
        "tokenizer": "smollm2-135m",
        "bytes": sizes,
        "missing": missing,
        "versions": installed_versions(("tokenizers", "transformers", "numpy", "pandas", "scipy", "scikit-learn")),
        "rows": table.to_dict("records"),
    }
    write_json(project_root() / "results/tokens/comparison.json", content)


if __name__ == "__main__":
    main()
