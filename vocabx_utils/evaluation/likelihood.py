"""Bits per byte of the reference solutions, and how many of their tokens are new.

Bits per byte compares models with different tokenizers, where loss per token does not, and works for models
too small to solve problems. All tokenizers are scored on the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from vocabx_utils.evaluation.benchmarks import Problem
from vocabx_utils.evaluation.prompts import reference_text
from vocabx_utils.evaluation.slots import placement
from vocabx_utils.resampling import paired_bootstrap
from vocabx_utils.student import logit_transform

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel

_HEAD_ROWS = 256  # positions whose logits are held at once


@dataclass(frozen=True)
class Span:
    """A text whose part from character ``start`` on is scored, given what stands before."""

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

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte."""
        return self.bits / self.bytes


def reference_spans(
    problems: Iterable[Problem], tokenizers: Sequence[PreTrainedTokenizerBase], *, style: str = "thesis"
) -> list[Span]:
    """Lay out prompt and reference solution of each problem for scoring by several tokenizers.

    A token may straddle the end of the prompt (the line break and the indentation after it). Scoring
    therefore starts at the last place, at or before the end of the prompt, where all tokenizers have a
    boundary: every model is scored on the same bytes.

    Args:
        problems: The problems.
        tokenizers: Tokenizers of all models that are compared.
        style: Prompt style, see ``prompts.build_prompt``; the code start always stands before the reference.

    Returns:
        One span per problem.

    Raises:
        ValueError: No tokenizer, or a reference solution that is empty.
    """
    texts = ((problem.task_id, *reference_text(problem, tokenizers[0], style)) for problem in problems)
    return shared_spans(texts if tokenizers else (), tokenizers)


def shared_spans(texts: Iterable[tuple[str, str, int]], tokenizers: Sequence[PreTrainedTokenizerBase]) -> list[Span]:
    """Lay out any texts for scoring by several tokenizers, see ``reference_spans``.

    Args:
        texts: Name, text, and the character from which on it is to be scored.
        tokenizers: Tokenizers of all models that are compared.

    Returns:
        One span per text.

    Raises:
        ValueError: No tokenizer, nothing to score in a text, or nothing before it.
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


@torch.inference_mode()
def score_spans(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    spans: Sequence[Span],
    *,
    batch_tokens: int = 2048,
    max_tokens: int = 4096,
) -> list[SpanScore]:
    """Score spans by one model.

    Args:
        model: Causal language model.
        tokenizer: Its tokenizer, with a boundary at the start of each span (see ``reference_spans``).
        spans: What to score.
        batch_tokens: Tokens of one batch, padding included.
        max_tokens: Longest context; the beginning of longer texts is left out.

    Returns:
        Scores in the order of the spans. Probabilities are over the ids that the tokenizer has, in float32.

    Raises:
        ValueError: A span starts inside a token, has no token before it, or does not fit.
    """
    items = [_Item.of(tokenizer, span, max_tokens) for span in spans]
    usable = max(tokenizer.get_vocab().values()) + 1
    bits = [0.0] * len(items)
    for batch in _batches(items, batch_tokens):
        for index, value in zip(batch, _nll(model, [items[i] for i in batch], usable), strict=True):
            bits[index] = value / math.log(2)
    return [
        SpanScore(span.task_id, value, span.size, len(item.ids) - item.first)
        for span, item, value in zip(spans, items, bits, strict=True)
    ]


def corpus_bits_per_byte(scores: Iterable[SpanScore]) -> float:
    """Return the bits of all spans over their bytes.

    Raises:
        ValueError: No span.
    """
    rows = list(scores)
    if not rows:
        raise ValueError("expected at least one score")
    return sum(row.bits for row in rows) / sum(row.bytes for row in rows)


def likelihood_table(
    scores: Mapping[str, Sequence[SpanScore]], *, reference: str, resamples: int = 10_000, seed: int = 0
) -> pd.DataFrame:
    """Compare the bits per byte of several models with those of a reference, paired by problem.

    Args:
        scores: Scores by variant, of the same problems in the same order.
        reference: Variant to compare with.
        resamples: Bootstrap samples.
        seed: Seed of the bootstrap.

    Returns:
        One row per variant: bits per byte of all problems together, scored tokens, the difference to the
        reference with paired bootstrap limits (bits per byte, negative is better), and the share of problems
        on which the variant is better.

    Raises:
        ValueError: Unknown reference, or scores of different problems or bytes.
    """
    import pandas as pd

    if reference not in scores:
        raise ValueError(f"the reference {reference!r} is not among {', '.join(scores)}")
    base = scores[reference]
    sizes = [row.bytes for row in base]
    rows = []
    for variant, found in scores.items():
        if [(row.task_id, row.bytes) for row in found] != [(row.task_id, row.bytes) for row in base]:
            raise ValueError(f"{variant} and {reference} were scored on different problems or bytes")
        mine, theirs = [row.bits for row in found], [row.bits for row in base]
        gap = paired_bootstrap(mine, theirs, weights=sizes, resamples=resamples, seed=seed)
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
    """Count new tokens and all tokens of prompt and reference solution of each problem.

    Args:
        problems: Problems of one benchmark.
        tokenizer: Extended tokenizer.
        first_new_id: First id that only the extended tokenizer has.
    """
    texts = (problem.complete_prompt + problem.reference for problem in problems)
    encoded = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
    return [(sum(i >= first_new_id for i in ids), len(ids)) for ids in encoded]


def new_token_density(
    problems: Sequence[Problem],
    tokenizer: PreTrainedTokenizerBase,
    original: PreTrainedTokenizerBase,
    first_new_id: int,
) -> dict[str, float]:
    """Count the new tokens in prompts and reference solutions (claim C15).

    Args:
        problems: Problems of one benchmark.
        tokenizer: Extended tokenizer.
        original: Original tokenizer.
        first_new_id: First id that only the extended tokenizer has.

    Returns:
        ``tokens``, ``new_tokens``, ``density`` (new tokens of all tokens), ``reference_density`` (the same in
        reference solutions alone), ``saved`` (share of the original tokens that the extension saves) and
        ``problems_with_new`` (share of problems with at least one).

    Raises:
        ValueError: No problem.
    """
    if not problems:
        raise ValueError("expected at least one problem")
    counts = new_token_counts(problems, tokenizer, first_new_id)
    new, total, touched = sum(k for k, _ in counts), sum(n for _, n in counts), sum(k > 0 for k, _ in counts)
    before = sum(n for _, n in new_token_counts(problems, original, first_new_id))
    reference_total = reference_new = 0
    for problem in problems:
        reference = tokenizer(problem.reference, add_special_tokens=False)["input_ids"]
        reference_total += len(reference)
        reference_new += sum(i >= first_new_id for i in reference)
    return {
        "tokens": total,
        "new_tokens": new,
        "density": new / total,
        "reference_density": reference_new / max(1, reference_total),
        "saved": 1 - total / before,
        "problems_with_new": touched / len(problems),
    }


@dataclass(frozen=True)
class _Item:
    ids: tuple[int, ...]
    first: int  # index of the first scored id

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, span: Span, max_tokens: int) -> _Item:
        encoded = tokenizer(span.text, add_special_tokens=False, return_offsets_mapping=True)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        first = next((i for i, (low, high) in enumerate(offsets) if high > span.start and high > low), len(ids))
        if first == len(ids) or offsets[first][0] < span.start:
            raise ValueError(f"{span.task_id}: character {span.start} is no token boundary; use reference_spans")
        drop = max(0, len(ids) - max_tokens)
        if first - drop < 1:
            raise ValueError(
                f"{span.task_id}: {len(ids) - first} tokens and one before them do not fit into {max_tokens}"
            )
        return cls(tuple(ids[drop:]), first - drop)


def _batches(items: Sequence[_Item], batch_tokens: int) -> Iterator[list[int]]:
    batch: list[int] = []
    for index in sorted(range(len(items)), key=lambda i: -len(items[i].ids)):
        if batch and len(items[batch[0]].ids) * (len(batch) + 1) > batch_tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def _nll(model: PreTrainedModel, items: Sequence[_Item], usable: int) -> list[float]:
    """Return the negative log-likelihood of the scored ids of each item, in nats, padded on the right."""
    device, _ = placement(model)
    ids = torch.zeros(len(items), max(len(item.ids) for item in items), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, item in enumerate(items):
        ids[row, : len(item.ids)] = torch.tensor(item.ids)
        mask[row, : len(item.ids)] = 1
    body: Any = model.get_decoder()
    hidden = body(input_ids=ids.to(device), attention_mask=mask.to(device), use_cache=False).last_hidden_state
    return [
        _item_nll(model, hidden[row, item.first - 1 : len(item.ids) - 1], ids[row, item.first : len(item.ids)], usable)
        for row, item in enumerate(items)
    ]


def _item_nll(model: PreTrainedModel, hidden: Tensor, targets: Tensor, usable: int) -> float:
    head: Any = model.get_output_embeddings()
    transform = logit_transform(model.config)
    total = 0.0
    for start in range(0, len(targets), _HEAD_ROWS):
        logits = transform.apply_(head(hidden[start : start + _HEAD_ROWS])[:, :usable].float())
        wanted = targets[start : start + _HEAD_ROWS].to(logits.device)
        total += float(torch.nn.functional.cross_entropy(logits, wanted, reduction="sum"))
    return total


def _boundaries(tokenizer: PreTrainedTokenizerBase, text: str) -> set[int]:
    """Return the characters before which a token ends and behind which the next one starts."""
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    places = [(low, high) for low, high in offsets if high > low]
    following = [*places[1:], (len(text), len(text))]
    return {high for (_, high), (low, _) in zip(places, following, strict=True) if low >= high}
