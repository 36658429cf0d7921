"""Texts of the test bed of recipes: made once without a GPU, small enough to travel, read without a tokenizer.

A setting's folder holds `setting.json` (sizes and new tokens) and examples under both tokenizers, as arrays:
`snippets.npz` (about 50 tokens around new tokens) and `texts.npz` (whole documents), both of the training texts,
`sweep.npz` to choose by, and `report.npz`, which only the last measurement opens. Groups (packages, files, pages) that
training or the choice of tokens has seen stand in neither of the latter two. Headers are grouped by file alone, so that
their runs are read on two splits of other packages in place of these (`OF_PACKAGES`, see `recipe_packages`).

An example is kept as the original ids and the spans that new tokens replace; everything else follows from these.

Shapes: E examples, To original ids of all of them, G replaced spans.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from domain_texts import documents, read_texts, split_texts

from vocabx_utils import files, models
from vocabx_utils.rows import NewToken, parse_token
from vocabx_utils.training.examples import AlignedExample, AlignedSet, Ints, choose_windows, whole_texts
from vocabx_utils.training.objectives import Anchor
from vocabx_utils.vocabulary.alignment import AlignedText, align_texts
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.options import TokenOptions
from vocabx_utils.vocabulary.proposals import select_tokens
from vocabx_utils.vocabulary.spelling import spelling_of
from vocabx_utils.vocabulary.tokens import Extension, Proposal
from vocabx_utils.vocabulary.wordtable import count_words

SETTINGS = {
    "qwen-python": "python", "qwen-headers": "headers", "qwen-german": "german",
    "smollm2-python": "python", "smollm2-headers": "headers", "smollm2-german": "german",
}  # fmt: skip
OF_PACKAGES = {"sweep": "packages_sweep", "report": "packages"}
"""The files that headers are read on: texts of packages of which no other split holds a file."""
Pairs = dict[Anchor, tuple[Ints, np.ndarray]]
_PER_TOKEN = 256  # most occurrences asked for one token
_SPARE = 1.6  # training examples kept for each that a run reads: seeds draw others


# --- examples as arrays ---------------------------------------------------------------------------------------------


def pack(examples: AlignedSet) -> dict[str, Ints]:
    """Turn examples into arrays; those that would not come back as they were are left out."""
    return _packed([e for e in examples.examples if _comes_back(e, examples)], examples)


def _packed(kept: Sequence[AlignedExample], examples: AlignedSet) -> dict[str, Ints]:
    spans, none = [_spans(e) for e in kept], np.zeros(0, np.int64)
    new_ids = [e.ids[c:d] for e, found in zip(kept, spans, strict=True) for _, _, c, d in found]
    return {
        "size": np.array([examples.vocab_size, examples.n_new]),
        "original_ids": np.concatenate([e.original_ids for e in kept]).astype(np.int32),
        "lengths": np.array([len(e.original_ids) for e in kept]).astype(np.int32),
        "spans": np.concatenate(spans).astype(np.int32),
        "n_spans": np.array([len(found) for found in spans]).astype(np.int32),
        "new_ids": np.concatenate([none, *new_ids]).astype(np.int32),
        "facts": np.array([(e.n_bytes, e.n_original_bytes, e.source) for e in kept]).astype(np.int32),
    }


def _spans(example: AlignedExample) -> Ints:
    """(G, 4) the groups O[a:b], E[c:d] that differ, from the pairs of both anchors."""
    merged = example.merged["last"]
    ends, starts = example.pairs["last"][merged] + 1, example.pairs["first"][example.merged["first"]]
    return np.stack([starts[:, 0], ends[:, 0], starts[:, 1], ends[:, 1]], 1).reshape(-1, 4)


def _comes_back(example: AlignedExample, examples: AlignedSet) -> bool:
    try:
        found = unpack(_packed([example], examples)).examples[0]
    except (ValueError, IndexError):  # spans that are not of this simple kind
        return False
    same = [np.array_equal(example.ids, found.ids), example.prefix_pairs == found.prefix_pairs]
    for anchor in example.pairs:
        same += [np.array_equal(example.pairs[anchor], found.pairs[anchor])]
        same += [np.array_equal(example.merged[anchor], found.merged[anchor])]
    return all(same)


def unpack(arrays: Any) -> AlignedSet:
    """Make examples of arrays, all at once: as if they were one long text, which is then cut."""
    original, starts = np.asarray(arrays["original_ids"], np.int64), _ends(arrays["lengths"])
    a, b, c, d = np.asarray(arrays["spans"], np.int64).reshape(-1, 4).T
    shift = np.repeat(starts[:-1], arrays["n_spans"])
    a, b, width = a + shift, b + shift, d - c
    shrink = np.concatenate([[0], np.cumsum(b - a - width)])  # (G + 1,) ids saved before each span, and in all
    c = a - shrink[:-1]
    spanned = np.zeros(len(original) + 1, np.int64)
    np.add.at(spanned, a, 1)
    np.add.at(spanned, b, -1)
    same = np.flatnonzero(np.cumsum(spanned)[:-1] == 0)  # original positions that both sides share
    place = same - shrink[np.searchsorted(b, same, side="right")]  # the same on the student's side
    ids = np.empty(len(original) - shrink[-1], np.int64)
    ids[place] = original[same]
    within = np.arange(len(arrays["new_ids"])) - np.repeat(_ends(width)[:-1], width)
    ids[np.repeat(c, width) + within] = arrays["new_ids"]
    identical = np.stack([same, place], 1)
    last, first = (np.concatenate([identical, np.stack(ends, 1)]) for ends in ((b - 1, c + width - 1), (a, c)))
    order = np.argsort(last[:, 0], kind="stable")
    merged = (np.arange(len(last)) >= len(same))[order]
    pairs: Pairs = {
        "last": (last[order], merged), "first": (first[order], merged), "none": (identical, np.zeros(len(same), bool))
    }  # fmt: skip
    cuts = starts - shrink[_ends(arrays["n_spans"])]  # (E + 1,) in the student's ids
    vocab_size, n_new = map(int, arrays["size"])
    examples = _cut(original, ids, np.stack([starts, cuts], 1), pairs, np.asarray(arrays["facts"]).tolist())
    return AlignedSet(tuple(examples), vocab_size=vocab_size, n_new=n_new)


def _ends(counts: Any) -> Ints:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


def _cut(original: Ints, ids: Ints, cuts: Ints, pairs: Pairs, facts: list[list[int]]) -> Iterator[AlignedExample]:
    """Cut the long text at (E + 1, 2) positions of both sides; pairs before the first divergence are counted only."""
    bounds = {anchor: np.searchsorted(found[:, 0], cuts[:, 0]) for anchor, (found, _) in pairs.items()}
    for k, (n_bytes, n_original_bytes, source) in enumerate(facts):
        theirs, mine = original[cuts[k, 0] : cuts[k + 1, 0]], ids[cuts[k, 1] : cuts[k + 1, 1]]
        shared = min(len(mine), len(theirs))
        apart = np.flatnonzero(mine[:shared] != theirs[:shared])
        prefix = int(apart[0]) if len(apart) else shared
        chosen, kinds = {}, {}
        for anchor, (found, merged) in pairs.items():
            part = slice(bounds[anchor][k], bounds[anchor][k + 1])
            own = found[part] - cuts[k]
            low = max(np.searchsorted(own[:, side], prefix) for side in (0, 1))
            chosen[anchor], kinds[anchor] = own[low:], merged[part][low:]
        yield AlignedExample(
            mine, original_ids=theirs, pairs=chosen, merged=kinds, prefix_pairs=prefix, n_bytes=n_bytes,
            n_original_bytes=n_original_bytes, source=source,
        )  # fmt: skip


# --- which of them a run reads --------------------------------------------------------------------------------------


def draw(pool: AlignedSet, tokens: int, seed: int, *, by_token: bool = True) -> AlignedSet:
    """Draw examples of about so many tokens: tokens take turns, rarest first, or, for whole texts, as they come."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(pool))
    lengths = [len(e.ids) for e in pool.examples]
    if not by_token:
        until = int(np.searchsorted(np.cumsum([lengths[i] for i in order]), tokens)) + 1
        return replace(pool, examples=tuple(pool.examples[i] for i in sorted(order[:until])))
    holders: list[list[int]] = [[] for _ in range(pool.n_new)]
    held = [np.unique(e.ids[e.ids >= pool.vocab_size]) - pool.vocab_size for e in pool.examples]
    for index in order:
        for token in held[index]:
            holders[token].append(int(index))
    seen, taken, total = np.zeros(pool.n_new, np.int64), set[int](), 0
    rarest = sorted(range(pool.n_new), key=lambda token: (len(holders[token]), token))
    for turn in range(1, len(pool) + 1):
        if total >= tokens or not any(holders):
            break
        for token in rarest:
            while holders[token] and seen[token] < turn and total < tokens:
                if (index := holders[token].pop()) not in taken:
                    taken.add(index)
                    seen[held[index]] += 1
                    total += lengths[index]
    return replace(pool, examples=tuple(pool.examples[i] for i in sorted(taken)))


def examples_of_each(examples: AlignedSet) -> Ints:
    """(N,) how many examples hold each new token."""
    held = [np.unique(e.ids[e.ids >= examples.vocab_size]) for e in examples.examples]
    return np.bincount(np.concatenate(held) - examples.vocab_size, minlength=examples.n_new)


# --- making and reading a setting -----------------------------------------------------------------------------------


def prepare(options: argparse.Namespace) -> None:
    """Write the folder of a setting."""
    began = time.perf_counter()
    kind = SETTINGS[options.setting]
    half = options.training_bytes // 2
    sizes = {"tokenizer": half, "train": half, "validation": options.judged_bytes, "report": options.judged_bytes}
    splits = split_texts(read_texts(kind, options.root), sizes)
    training = splits["tokenizer"] + splits["train"]  # tokens are chosen on the first half, and both are learned from
    tokenizer = models.load_tokenizer(options.model)
    told = f"{sum(map(len, training)) / 1e6:.1f} MB to learn from"
    print(f"{told}, {time.perf_counter() - began:.0f} s", flush=True)
    extension, aligned, snippets = _extended(options, tokenizer, splits["tokenizer"], training)
    sets = {"snippets": snippets}
    texts = whole_texts(aligned, extension.V, extension.N, max_length=1024)
    sets["texts"] = draw(texts, round(1.2 * options.tokens), 0, by_token=False)
    for name, split in (("sweep", "validation"), ("report", "report")):
        some = documents(splits[split], options.characters, options.judged)
        sets[name] = whole_texts(align_texts(extension, some), extension.V, extension.N, max_length=1024)
    _write(options, extension, sets)
    print(f"{options.out}: written, {time.perf_counter() - began:.0f} s", flush=True)


def _extended(
    options: argparse.Namespace, tokenizer: Any, texts: Sequence[str], training: Sequence[str]
) -> tuple[Extension, list[AlignedText], AlignedSet]:
    """Choose new tokens until each has enough snippets; return them, the training documents and the snippets."""
    chosen = TokenOptions(min_count=options.min_count, min_files=options.min_files)
    table, barred = count_words(texts, spelling_of(tokenizer), chosen), set[bytes]()
    parts = documents(training, options.characters)
    while True:
        allowed = replace(chosen, exclude=frozenset(barred))
        proposals = select_tokens(texts, tokenizer, options.n, "merges", allowed, table=table)
        if len(proposals) < options.n:
            raise SystemExit(f"the texts offer {len(proposals)} of {options.n} tokens: ask for fewer or give more text")
        extension = add_tokens(tokenizer, proposals, "merges")
        aligned = align_texts(extension, parts)
        limit = max(2 * options.n * options.least, round(_SPARE * options.tokens / options.window))
        snippets = choose_windows(
            aligned, extension.V, extension.N, window=options.window, limit=limit, per_token=_PER_TOKEN
        )
        counts = examples_of_each(snippets)
        rare = {t.raw for t, count in zip(extension.tokens, counts, strict=True) if count < options.least}
        print(f"{extension.N} tokens, {len(rare)} of them in fewer than {options.least} snippets", flush=True)
        if not rare:
            return extension, aligned, snippets
        barred |= rare


def _write(options: argparse.Namespace, extension: Extension, sets: dict[str, AlignedSet]) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    for name, examples in sets.items():
        np.savez_compressed(options.out / f"{name}.npz", **pack(examples))
        read = read_examples(options.out, name)
        size = (options.out / f"{name}.npz").stat().st_size
        facts = f"{len(read)} of {len(examples)} examples, {read.tokens:,} tokens, {read.counts().sum():,} of them new"
        print(f"{name}: {facts}, {size / 1e6:.1f} MB", flush=True)
    tokens = [{**asdict(t), "raw": t.raw.hex()} for t in extension.tokens]
    content = {
        "setting": options.setting, "kind": SETTINGS[options.setting], "model": Path(options.model).name,
        "training_bytes": options.training_bytes,
        "V": extension.V, "N": extension.N, "tokens_of_a_run": options.tokens, "window": options.window,
        "fewest_examples": int(examples_of_each(sets["snippets"]).min()), "tokens": tokens,
        "merges": _merges(extension),
    }  # fmt: skip
    extend_again(content, extension.original)
    files.write_json(options.out / "setting.json", content)


def _merges(extension: Extension) -> list[list[str]]:
    """The pair of pieces that makes each new token, in order of id."""
    merges = json.loads(extension.extended.backend_tokenizer.to_str())["model"]["merges"]
    pairs = [pair.split(" ") if isinstance(pair, str) else pair for pair in merges]
    made = {"".join(pair): list(pair) for pair in pairs[-int(extension.report["merges"]) :]}
    return [made[extension.spell(token.id)] for token in extension.tokens]


def extend_again(content: dict[str, Any], tokenizer: Any) -> Extension:
    """Make the extension of `setting.json` from the original tokenizer; SystemExit where other tokens come out."""
    tokens = read_tokens(content)
    proposals = [
        Proposal(t.text, t.raw, t.count, t.subtokens, rank, (pair[0], pair[1]))
        for rank, (t, pair) in enumerate(zip(tokens, content["merges"], strict=True))
    ]
    extension = add_tokens(tokenizer, proposals, "merges")
    if [(t.id, t.raw, t.subtokens) for t in extension.tokens] != [(t.id, t.raw, t.subtokens) for t in tokens]:
        raise SystemExit(f"{content['setting']}: other new tokens come out: is the model another one? Prepare it again")
    return extension


def split_of(setting: str, part: str) -> str:
    """Name the file that a setting's runs are read on, to choose by (part `sweep`) or to report (`report`)."""
    return OF_PACKAGES[part] if SETTINGS[setting] == "headers" else part


def read_examples(folder: Path, name: str) -> AlignedSet:
    """Read one of the sets of a setting."""
    with np.load(folder / f"{name}.npz") as arrays:
        return unpack({key: arrays[key] for key in arrays.files})


def read_tokens(content: dict[str, Any]) -> Sequence[NewToken]:
    """Return the new tokens of `setting.json`."""
    return [parse_token(entry) for entry in content["tokens"]]
