"""Measure tokens that cross words on held-out files and write results/phrases/tokenizers.json.

    python tests/bench/phrase_tokenizers.py [--tokenizer NAME=PATH]... [--corpus NAME=FOLDER:GLOB]...

Tokens are chosen on one half of the files and measured on the other. A tokenizer is a packaged name or a path (a
folder or a GGUF file); corpora are Python of installed packages and C headers, and every further one that is named.
Rows that are in the file already are not measured again, so a run can go on where it ended.

At one size the same phrases are built in both forms, `patterns` (let through by the pre-tokenizer) and `literal` (added
tokens), and compared by damage, checks and speed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from vocabx_utils.files import read_json, write_json
from vocabx_utils.models import load_tokenizer
from vocabx_utils.paths import project_root
from vocabx_utils.runs import installed_versions
from vocabx_utils.vocabulary.audit import CHECK_TEXT, UNICODE_STRESS, changed_positions, gains
from vocabx_utils.vocabulary.checks import round_trip_failures
from vocabx_utils.vocabulary.comparison import C_HEADERS
from vocabx_utils.vocabulary.encoding import encode_all, encode_each
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.options import PhraseForm, TokenOptions
from vocabx_utils.vocabulary.phrase_forms import crosses_words
from vocabx_utils.vocabulary.phrases import PhraseLearner
from vocabx_utils.vocabulary.proposals import select_tokens
from vocabx_utils.vocabulary.spelling import spelling_of
from vocabx_utils.vocabulary.tokens import Extension, Proposal
from vocabx_utils.vocabulary.wordtable import count_words

PACKAGES = ("scipy", "pandas", "sklearn", "matplotlib", "numpy", "seaborn")
MAX_BYTES = 3_000_000  # of each half
LONGEST = 30_000  # characters kept of a file, so that no few large ones fill a half
FORMS: tuple[PhraseForm, ...] = ("patterns", "literal")
STRATEGIES: dict[str, dict[str, Any]] = {
    "merges": {},
    "phrases": {"mix_words": False},
    "phrases and words": {"mix_words": True},
    "with digits": {"mix_words": True, "across_digits": True},
}


# --- texts ------------------------------------------------------------------------------------------------------


def python_files() -> list[Path]:
    """Source files of the installed packages."""
    import importlib.util

    found: list[Path] = []
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations:
            found += Path(next(iter(spec.submodule_search_locations))).rglob("*.py")
    return found


def halves(paths: Iterable[Path]) -> tuple[list[str], list[str]]:
    """Texts to choose on and texts to measure on, by file, in an order that only depends on the contents."""
    texts = {p.read_text(encoding="utf-8", errors="replace")[:LONGEST] for p in paths}
    ordered = sorted((t for t in texts if t.strip()), key=lambda t: sha256(t.encode()).digest())
    both: tuple[list[str], list[str]] = ([], [])
    sizes = [0, 0]
    for k, text in enumerate(ordered):
        if sizes[k % 2] < MAX_BYTES:
            both[k % 2].append(text)
            sizes[k % 2] += len(text.encode())
    return both


# --- measurements -----------------------------------------------------------------------------------------------


def measure(extension: Extension, texts: Sequence[str]) -> dict[str, Any]:
    """Gain, spans and damage on texts."""
    row = gains(extension, {"all": texts}).iloc[0]
    counts = extension.count(texts)
    shown = sum(counts.values())
    changed, old = changed_positions(extension, texts)
    return {
        "new_tokens": extension.N,
        "inside_words": sum(not crosses_words(spelling_of(extension.original), t.text) for t in extension.tokens),
        "bytes": int(row.bytes),
        "tokens_before": int(row.tokens_before),
        "tokens_after": int(row.tokens_after),
        "saved_percent": round(float(row.saved_per_1000) / 10, 2),
        "tokens_per_1000_bytes": round(1000 * row.tokens_after / row.bytes, 2),
        "new_share": round(float(row.new_share), 4),
        "mean_subtokens": round(sum(counts[t.id] * len(t.subtokens) for t in extension.tokens) / max(shown, 1), 2),
        "mean_bytes": round(sum(counts[t.id] * len(t.raw) for t in extension.tokens) / max(shown, 1), 2),
        "unseen": sum(not c for c in counts.values()),
        "changed_positions": len(changed),
        "old_positions": old,
        "changed_share": round(len(changed) / max(old, 1), 5),
        "changed_examples": [f"{r.before} -> {r.after}" for r in changed.head(400).iloc[::80].itertuples()],
    }


def further_checks(extension: Extension, texts: Sequence[str]) -> dict[str, Any]:
    """Round trips, lines without a new token, and the check text of a converter."""
    lines = [line for text in texts for line in text.splitlines(keepends=True)][:50_000]
    both = encode_all(extension.original, lines), encode_all(extension.extended, lines)
    untouched = [(a, b) for a, b in zip(*both, strict=True) if not any(i >= extension.V for i in b)]
    check = [encode_all(t, [CHECK_TEXT])[0] for t in (extension.original, extension.extended)]
    probes = [*UNICODE_STRESS, *texts[:200]]
    return {
        "round_trip_failures": len(round_trip_failures(extension, probes)),
        "round_trips": len(probes),
        "lines_without_new_tokens": len(untouched),
        "of_them_changed": sum(a != b for a, b in untouched),
        "check_text_changes": check[0] != check[1],
    }


def encoding_seconds(named: dict[str, Any], texts: Sequence[str], n_bytes: int) -> dict[str, float]:
    """Median seconds of three times to encode so many bytes, the tokenizers taking turns."""
    size = sum(len(t.encode()) for t in texts)
    corpus = (list(texts) * (n_bytes // max(size, 1) + 1))[: max(1, round(len(texts) * n_bytes / max(size, 1)))]
    seconds: dict[str, list[float]] = {name: [] for name in named}
    for _ in range(3):
        for name, tokenizer in named.items():
            begun = time.perf_counter()
            for _ in encode_each(tokenizer, corpus):
                pass
            seconds[name].append(time.perf_counter() - begun)
    return {name: round(statistics.median(taken), 3) for name, taken in seconds.items()}


def rows_of(
    tokenizer: PreTrainedTokenizerFast, both: tuple[list[str], list[str]], sizes: Sequence[int], done: set[Any]
) -> Iterable[tuple[str, int, dict[str, Any], Extension]]:
    """Extend by each strategy and size, what is done left out."""
    chosen_on, measured_on = both
    spelling = spelling_of(tokenizer)
    tables: dict[str, Any] = {}
    for strategy, named in STRATEGIES.items():
        options = TokenOptions(min_count=4, min_files=2, keep_whitespace=False, **named)
        how = "merges" if strategy == "merges" else "phrases"
        for n in sizes:
            if (strategy, n) in done:
                continue
            learned = (how, options.across_digits)
            if learned not in tables:
                table = count_words(chosen_on, spelling, options) if how == "merges" else None
                tables[learned] = table or PhraseLearner(chosen_on, spelling, options)
            begun = time.perf_counter()
            proposals = select_tokens(chosen_on, tokenizer, n, how, options, table=tables[learned])
            seconds = time.perf_counter() - begun
            extension = add_tokens(tokenizer, proposals, how)
            row = measure(extension, measured_on) | further_checks(extension, measured_on)
            yield strategy, n, row | {"seconds_to_choose": round(seconds, 1)}, extension


def compare_ways(
    extension: Extension, measured_on: Sequence[str], speed_bytes: int, tokenizer: PreTrainedTokenizerFast
) -> dict[str, Any]:
    """The same phrases by both ways: damage, checks and speed."""
    learned = [
        Proposal(t.text, t.raw, t.count, t.subtokens, k)
        for k, t in enumerate(extension.tokens)
        if crosses_words(spelling_of(tokenizer), t.text)
    ]
    ways = {form: add_tokens(tokenizer, learned, "phrases", phrase_form=form) for form in FORMS}
    named = {"original": tokenizer} | {name: way.extended for name, way in ways.items()}
    found: dict[str, Any] = {
        name: measure(way, measured_on) | further_checks(way, measured_on) for name, way in ways.items()
    }
    return found | {
        "phrases": len(learned),
        "speed_bytes": speed_bytes,
        "seconds": encoding_seconds(named, measured_on, speed_bytes),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tokenizer", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--corpus", action="append", default=[], metavar="NAME=FOLDER:GLOB")
    parser.add_argument("--no-python", action="store_true", help="leave the installed packages out")
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 800, 3200])
    parser.add_argument("--ways-at", type=int, default=800, help="size at which both ways are compared")
    parser.add_argument("--speed-bytes", type=int, default=10_000_000)
    parser.add_argument("--out", type=Path, default=project_root() / "results/phrases/tokenizers.json")
    chosen = parser.parse_args(arguments)

    corpora = {} if chosen.no_python else {"Python packages": python_files()}
    if C_HEADERS.is_dir() and not chosen.no_python:
        corpora["C headers"] = sorted(C_HEADERS.rglob("*.h"))
    for named in chosen.corpus:
        name, _, place = named.partition("=")
        folder, _, glob = place.rpartition(":")
        corpora[name] = sorted(Path(folder).rglob(glob))
    tokenizers = dict(t.partition("=")[::2] for t in chosen.tokenizer or ["SmolLM2=smollm2-135m"])
    content = read_json(chosen.out) if chosen.out.exists() else {"rows": [], "ways": []}
    content |= {
        "date": date.today().isoformat(),
        "min_count": 4,
        "min_files": 2,
        "max_bytes_of_a_half": MAX_BYTES,
    }
    content["versions"] = installed_versions(("tokenizers", "transformers", "numpy", *PACKAGES[:4]))
    for tokenizer_name, place in tokenizers.items():
        tokenizer = load_tokenizer(place)
        for corpus_name, paths in corpora.items():
            both = halves(paths)
            place_of = {"tokenizer": tokenizer_name, "corpus": corpus_name}
            here = [r for r in content["rows"] if place_of.items() <= r.items()]
            done = {(r["strategy"], r["n"]) for r in here}
            for strategy, n, row, extension in rows_of(tokenizer, both, chosen.sizes, done):
                content["rows"].append({**place_of, "strategy": strategy, "n": n, **row})
                print(
                    place_of,
                    strategy,
                    n,
                    row["saved_percent"],
                    row["changed_share"],
                    row["seconds_to_choose"],
                    flush=True,
                )
                if strategy == "phrases" and n == chosen.ways_at:
                    ways = compare_ways(extension, both[1], chosen.speed_bytes, tokenizer)
                    content["ways"].append({**place_of, "n": n, **ways})
                    print(
                        "  ways",
                        ways["seconds"],
                        {form: ways[form]["changed_share"] for form in FORMS},
                        flush=True,
                    )
                write_json(chosen.out, content)
    return 0


if __name__ == "__main__":
    sys.exit(main())
