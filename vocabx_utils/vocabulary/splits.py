"""The corpus of a run: read as its settings say, split, written for later stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from vocabx_utils import corpus
from vocabx_utils.config import TokenizerConfig
from vocabx_utils.corpus import Pair
from vocabx_utils.files import write_json, write_jsonl

SPLITS = ("tokenizer", "train", "validation")
_LEAST = {"tokenizer": 20, "train": 20, "validation": 10}  # fewer say nothing about a token


def load_pairs(config: TokenizerConfig) -> list[Pair]:
    """Read the corpus that the settings name; CorpusError where it is missing, empty or malformed."""
    if config.corpus_source == "jsonl":
        return corpus.pairs_from_jsonl(config.corpus_path)
    if config.corpus_source == "hub":
        return corpus.pairs_from_hub(config.corpus_path, config.corpus_revision or None)
    if config.corpus_source == "tree":
        return corpus.pairs_from_tree(config.corpus_path, config.corpus_glob)
    return corpus.pairs_from_packages(config.packages)


def split_sizes(config: TokenizerConfig, pairs: Sequence[Pair]) -> dict[str, int]:
    """Return the number of pairs by split.

    The settings are numbers for the packages and data sets that they were made for. A corpus of one's own (`jsonl` or
    `tree`) may be smaller: then they are shares of it. CorpusError where it has too few texts for three splits.
    """
    asked = {name: getattr(config, f"{name}_pairs") for name in SPLITS}
    return corpus.shared_sizes(pairs, asked, _LEAST) if config.corpus_source in ("jsonl", "tree") else asked


def plain_texts(pairs: Sequence[Pair]) -> list[str]:
    """Return query and answer without the template, whose own words must not become tokens."""
    return [f"{pair.query}\n{pair.answer}" for pair in pairs]


def rendered_texts(pairs: Sequence[Pair], config: TokenizerConfig, tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Return pairs as the model reads them."""
    return [corpus.render(pair, config.template, tokenizer).text for pair in pairs]


def save_splits(
    folder: Path, splits: Mapping[str, Sequence[Pair]], config: TokenizerConfig, tokenizer: PreTrainedTokenizerFast
) -> dict[str, Any]:
    """Write `splits/<name>.jsonl` and `corpus.json` (source, template, sizes, fingerprints); return the latter."""
    prints = {}
    for name, pairs in splits.items():
        write_jsonl(folder / "splits" / f"{name}.jsonl", [asdict(pair) for pair in pairs])
        prints[name] = corpus.fingerprint(rendered_texts(pairs, config, tokenizer))
    summary: dict[str, Any] = {"corpus": config.corpus_source, "template": config.template}
    summary |= {"sizes": {name: len(pairs) for name, pairs in splits.items()}, "fingerprints": prints}
    write_json(folder / "corpus.json", summary)
    return summary
