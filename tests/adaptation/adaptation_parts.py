"""Small source trees for the tests of adaptations."""

from __future__ import annotations

import random
from pathlib import Path

WORDS = (
    "column", "joined", "window", "season", "filter", "before", "table", "index", "merge", "plot", "axis", "pipeline",
    "gradient", "optimizer", "validation", "embedding",
)  # fmt: skip


def write_sources(folder: Path, count: int = 24, lines: int = 12) -> Path:
    """Write files of lines with words that stand in all of them, and none that the tiny tokenizer knows."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        chosen = random.Random(number)
        text = "".join(
            f"def {chosen.choice(WORDS)}_{chosen.choice(WORDS)}({', '.join(chosen.sample(WORDS, 3))}):\n"
            f"    return {chosen.choice(WORDS)}.{chosen.choice(WORDS)}\n"
            for _ in range(lines)
        )
        (folder / f"{number:02}.py").write_text(text, encoding="utf-8")
    return folder
