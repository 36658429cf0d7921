"""Bits per byte of the reference solutions, and how many of their tokens are new.

Bits per byte compares models with different tokenizers, where loss per token does not, and works for models
too small to solve problems. All tokenizers are scored on the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import pandas as pd
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vocabx_utils.evaluation.benchmarks import Problem
from vocabx_utils.evaluation.prompts import begin_text, reference_text
from vocabx_utils.resampling import paired_bootstrap
from vocabx_utils.student import Student
from vocabx_utils.texts import text_list
from vocabx_utils.tokenizer_files import original_vocab_size


def bits_per_byte(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Iterable[str],
    *,
    compared_with: Sequence[PreTrainedTokenizerBase] = (),
    max_tokens: int = 4096,
) -> float:
    """Measure how well a model predicts texts: bits for each of their UTF-8 bytes, all texts together.

    A text is scored whole where the tokenizer itself puts a begin token before it, otherwise behind its first token.
    A text of one token then has nothing to score and is left out. One that is too long is cut in two, at a line end
    where there is one, and so on until each part fits.

    Args:
        compared_with: tokenizers of the models that the number will be compared with: each text is then scored from
            the first place where all tokenizers have a boundary, so that all models are scored on the same bytes.
        max_tokens: of the longest part, 16 or more; a model may take fewer.

    Raises:
        ValueError: texts are one string or hold what no tokenizer takes, no text has anything to score, or
            `max_tokens` is too small.

    Example:
        >>> 0 < bits_per_byte(model, tokenizer, texts) < 16
        True
    """
    listed = text_list(texts)
    if max_tokens < 16:
        raise ValueError(f"max_tokens is {max_tokens}; expected 16 or more")
    most = min(max_tokens, getattr(model.config.get_text_config(), "max_position_embeddings", max_tokens))
    spans = whole_spans((("part", text) for text in listed), (tokenizer, *compared_with), most)
    if not spans:
        raise ValueError("no text has a token to score: expected at least one text of two tokens or more")
    return corpus_bits_per_byte(score_spans(model, tokenizer, spans, max_tokens=max_tokens))


@dataclass(frozen=True)
class Span:
    """A text whose part from character `start` on is scored, given what stands before."""

    task_id: str
    text: str
    start: int

    @property
    def size(self) -> int:
        """UTF-8 bytes of the scored part."""
        return len(self.text[self.start :].encode("utf-8"))


@dataclass(frozen=True)
class SpanScore:
    """Negative log2-likelihood of a span in bits, its UTF-8 bytes, and the tokens that were scored."""

    task_id: str
    bits: float
    bytes: int
    tokens: int


def whole_spans(
    texts: Iterable[tuple[str, str]], tokenizers: Sequence[PreTrainedTokenizerBase], most: int
) -> list[Span]:
    """Lay out whole texts, each with its name, to be scored with several tokenizers as `bits_per_byte` does.

    A text of more than `most` tokens becomes several spans of one name; one with nothing to score, none.
    """
    begin = begin_text(tokenizers[0])
    spans = []
    for name, part in ((name, part) for name, text in texts if text for part in _parts(text, tokenizers, most)):
        given = begin + part
        first = min(set.intersection(*(_boundaries(t, given) for t in tokenizers)))
        if first < len(given):
            spans.append(Span(name, given, first))
    return spans


def reference_spans(
    problems: Iterable[Problem], tokenizers: Sequence[PreTrainedTokenizerBase], *, style: str = "thesis"
) -> list[Span]:
    """Lay out prompt, code start and reference solution of each problem, see `shared_spans`."""
    texts = ((problem.task_id, *reference_text(problem, tokenizers[0], style)) for problem in problems)
    return shared_spans(texts if tokenizers else (), tokenizers)


def shared_spans(texts: Iterable[tuple[str, str, int]], tokenizers: Sequence[PreTrainedTokenizerBase]) -> list[Span]:
    """Lay out texts, each with its name and the character from which on it is scored, for several tokenizers.

    A token may straddle that place (after a prompt, the line break and the indentation behind it). Scoring therefore
    starts at the last place, at or before it, where all tokenizers have a boundary: every model is scored on the same
    bytes. A `ValueError` says where there is no tokenizer, nothing to score in a text, or nothing before it.
    """
    if not tokenizers:
        raise ValueError("expected at least one tokenizer")
    spans = []
    for name, text, end in texts:
        shared = set.intersection(*(_boundaries(tokenizer, text) for tokenizer in tokenizers))
        places = [place for place in shared if place <= end]
        if not text[end:].strip() or not places:
            raise ValueError(f"{name}: expected text before and behind character {end} of {len(text)}")
        spans.append(Span(name, text, max(places)))
    return spans


def score_spans(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    spans: Sequence[Span],
    *,
    batch_tokens: int = 2048,
    max_tokens: int = 4096,
) -> list[SpanScore]:
    """Score spans, in their order, from probabilities over the ids that the tokenizer has, in float32.

    A `ValueError` where a span starts inside a token (see `shared_spans`), has no token before it, or does not fit.

    Args:
        batch_tokens: tokens of one batch, padding included.
        max_tokens: longest context; the beginning of longer texts is left out.
    """
    items = [_scored(tokenizer, span, max_tokens) for span in spans]
    texts, starts = [ids for ids, _ in items], [first for _, first in items]
    rows = cast(Any, model.get_input_embeddings()).weight.shape[0]
    reader = Student(model, min(rows, original_vocab_size(tokenizer)))
    nats = reader.negative_log_likelihood(texts, starts, batch_tokens=batch_tokens)
    return [
        SpanScore(span.task_id, value / math.log(2), span.size, len(ids) - first)
        for span, (ids, first), value in zip(spans, items, nats, strict=True)
    ]


def corpus_bits_per_byte(scores: Iterable[SpanScore]) -> float:
    """Divide the bits of all spans by their bytes; a `ValueError` where there is no span."""
    rows = list(scores)
    if not rows:
        raise ValueError("expected at least one score")
    return sum(row.bits for row in rows) / sum(row.bytes for row in rows)


def likelihood_table(scores: Mapping[str, Sequence[SpanScore]], *, reference: str, seed: int = 0) -> pd.DataFrame:
    """Compare the bits per byte of several models, each scored on the same problems, with those of the `reference`.

    Returns:
        One row per variant: bits per byte of all problems together, scored tokens, the difference to the reference
        with paired bootstrap limits (bits per byte, negative is better), and the share of problems on which the variant
        is better. A `ValueError` for an unknown reference, or scores of different problems or bytes.
    """
    if reference not in scores:
        raise ValueError(f"the reference {reference!r} is not among {', '.join(scores)}")
    base = scores[reference]
    sizes = [row.bytes for row in base]
    rows = []
    for variant, found in scores.items():
        if [(row.task_id, row.bytes) for row in found] != [(row.task_id, row.bytes) for row in base]:
            raise ValueError(f"{variant} and {reference} were scored on different problems or bytes")
        mine, theirs = [row.bits for row in found], [row.bits for row in base]
        gap = paired_bootstrap(mine, theirs, weights=sizes, seed=seed)
        rows.append(
            {
                "model": variant,
                "n": len(found),
                "bits_per_byte": corpus_bits_per_byte(found),
                "tokens": sum(row.tokens for row in found),
                "difference": gap.estimate,
                "low": gap.low,
                "high": gap.high,
                "better": sum(a < b for a, b in zip(mine, theirs, strict=True)) / len(found),
            }
        )
    return pd.DataFrame(rows)


def new_token_counts(
    problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, first_new_id: int
) -> list[tuple[int, int]]:
    """Count new tokens (from `first_new_id` on) and all tokens of prompt and reference solution of each problem."""
    return _counts([row.complete_prompt + row.reference for row in problems], tokenizer, first_new_id)


def part_counts(
    problems: Sequence[Problem], tokenizer: PreTrainedTokenizerBase, first_new_id: int
) -> dict[str, list[tuple[int, int]]]:
    """Count them as `new_token_counts`, apart in what is asked (`prompts`) and in `solutions`."""
    texts = {"prompts": [row.prompt for row in problems], "solutions": [row.reference for row in problems]}
    return {part: _counts(some, tokenizer, first_new_id) for part, some in texts.items()}


def _counts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, first_new_id: int) -> list[tuple[int, int]]:
    encoded = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
    return [(sum(i >= first_new_id for i in ids), len(ids)) for ids in encoded]


def _scored(tokenizer: PreTrainedTokenizerBase, span: Span, max_tokens: int) -> tuple[list[int], int]:
    """The last `max_tokens` ids of a text, and the index of the first scored one."""
    encoded = tokenizer(span.text, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    first = next((i for i, (low, high) in enumerate(offsets) if high > span.start and high > low), len(ids))
    if first == len(ids) or offsets[first][0] < span.start:
        raise ValueError(f"{span.task_id}: character {span.start} is no token boundary; use reference_spans")
    drop = max(0, len(ids) - max_tokens)
    if first - drop < 1:
        raise ValueError(f"{span.task_id}: {len(ids) - first} tokens and one before them do not fit into {max_tokens}")
    return ids[drop:], first - drop


def _parts(text: str, tokenizers: Sequence[PreTrainedTokenizerBase], most: int) -> list[str]:
    """Cut a text in halves until each part has fewer tokens than `most`, under every tokenizer."""
    if max(len(t(text, add_special_tokens=False, verbose=False)["input_ids"]) for t in tokenizers) < most:
        return [text]
    middle = text.rfind("\n", 0, len(text) // 2) + 1 or len(text) // 2
    return _parts(text[:middle], tokenizers, most) + _parts(text[middle:], tokenizers, most)


def _boundaries(tokenizer: PreTrainedTokenizerBase, text: str) -> set[int]:
    """Characters before which a token ends and behind which the next one starts."""
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    places = [(low, high) for low, high in offsets if high > low]
    following = [*places[1:], (len(text), len(text))]
    return {high for (_, high), (low, _) in zip(places, following, strict=True) if low >= high}
