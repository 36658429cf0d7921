"""Both strategies side by side: tokens saved against the number of new tokens, on several corpora."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from transformers import PreTrainedTokenizerFast

from vocabx_utils import corpus
from vocabx_utils.corpus import Pair
from vocabx_utils.vocabulary.audit import gains
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.options import WORD_STRATEGIES, Strategy, TokenOptions
from vocabx_utils.vocabulary.proposals import FewerTokensWarning, Proposal, select_tokens

C_HEADERS = Path("/usr/include/linux")  # Debian and Ubuntu: package linux-libc-dev


class Halves(NamedTuple):
    """One corpus: texts that tokens are chosen on, and other texts that the gain is measured on."""

    chosen_on: list[str]
    measured_on: list[str]


def comparison_corpora(
    max_bytes: int | None = None,
    *,
    headers: str | Path = C_HEADERS,
    python_pairs: Sequence[Pair] | None = None,
    seed: int = 0,
) -> tuple[dict[str, Halves], dict[str, str]]:
    """Gather Python packages, CodeAlpaca and C headers in halves, and for each that is not to be had here the reason.

    Args:
        max_bytes: text of each half, at most, in bytes; None takes all there is.
        headers: folder of C headers, or any folder of `.h` files.
        python_pairs: pairs of the Python corpus, if they are at hand; read from the installed packages otherwise.
    """
    python = list(python_pairs) if python_pairs is not None else corpus.pairs_from_packages()
    corpora, missing = {"Python packages": python}, {}
    alpaca = corpus.data_path("code_alpaca_20k.jsonl.gz")
    if alpaca is None:
        missing["Code Alpaca"] = "set VOCABX_DATA to a folder that holds code_alpaca_20k.jsonl.gz"
    else:
        corpora["Code Alpaca"] = corpus.pairs_from_jsonl(alpaca)
    if Path(headers).is_dir():
        corpora["C headers"] = corpus.pairs_from_tree(headers, "*.h", max_chars=10_000_000)
    else:
        missing["C headers"] = f"no folder {headers} (Debian: package linux-libc-dev)"
    return {name: _halves(pairs, max_bytes, seed) for name, pairs in corpora.items()}, missing


def _halves(pairs: Sequence[Pair], max_bytes: int | None, seed: int) -> Halves:
    half = len(pairs) // 2
    while True:
        try:
            splits = corpus.split_pairs(pairs, {"chosen_on": half, "measured_on": half}, seed)
            break
        except corpus.CorpusError:  # some pairs have the same answer and count once
            half = half * 49 // 50
    return Halves(*(_up_to([_text(p) for p in split], max_bytes) for split in splits.values()))


def _text(pair: Pair) -> str:
    return pair.answer if pair.query.startswith("Write part ") else f"{pair.query}\n{pair.answer}"


def _up_to(texts: list[str], max_bytes: int | None) -> list[str]:
    if max_bytes is None:
        return texts
    taken, size = [], 0
    for text in texts:
        if size >= max_bytes:
            break
        taken.append(text[: max_bytes - size])
        size += len(taken[-1].encode())
    return taken


def compare_strategies(
    corpora: Mapping[str, Halves],
    tokenizer: PreTrainedTokenizerFast,
    sizes: Sequence[int] = (100, 400, 800, 1600),
    min_count: int = 4,
) -> pd.DataFrame:
    """Extend a tokenizer by both strategies and measure each on text that it was not chosen on.

    Returns:
        One row for each corpus, strategy and size: found (tokens, steps included), tokens_before, tokens_after,
        saved_per_1000 original tokens, new_share of extended positions, unseen (new tokens that the measured half
        does not show), steps (tokens that the chosen half does not show either), seconds to choose.
    """
    options = TokenOptions(min_count=min_count, keep_whitespace=False)
    rows = []
    for name, halves in corpora.items():
        for strategy in WORD_STRATEGIES:
            start = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FewerTokensWarning)  # shows in the column `found`
                # Both are greedy, so the choice for a smaller number is the beginning of that for a larger one.
                proposals = select_tokens(halves.chosen_on, tokenizer, max(sizes), strategy, options)
            seconds = round(time.perf_counter() - start, 2)
            for n in sizes:
                row = {"corpus": name, "strategy": strategy, "n": n}
                rows.append(row | _measure(proposals[:n], tokenizer, strategy, halves) | {"seconds": seconds})
    return pd.DataFrame(rows)


def _measure(
    proposals: list[Proposal], tokenizer: PreTrainedTokenizerFast, strategy: Strategy, halves: Halves
) -> dict[str, Any]:
    extension = add_tokens(tokenizer, proposals, strategy)
    gain = gains(extension, {"all": halves.measured_on}).iloc[0]
    counts, chosen = (extension.count(texts) for texts in (halves.measured_on, halves.chosen_on))
    return {
        "found": extension.N,
        "tokens_before": int(gain.tokens_before),
        "tokens_after": int(gain.tokens_after),
        "saved_per_1000": round(float(gain.saved_per_1000), 2),
        "new_share": round(float(gain.new_share), 4),
        "unseen": sum(not c for c in counts.values()),
        "steps": sum(not c for c in chosen.values()),
    }
