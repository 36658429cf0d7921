"""Bits per byte against a naive float64 computation, and on the same bytes for every tokenizer."""

from __future__ import annotations

import math

import pytest
import torch
from evaluation.evaluation_parts import (
    bigcodebench_problem,
    ds1000_problem,
    humaneval_problem,
    mbpp_problem,
    tiny_model,
)
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from vocabx_utils.evaluation.likelihood import (
    Span,
    SpanScore,
    corpus_bits_per_byte,
    new_token_counts,
    part_counts,
    reference_spans,
    score_spans,
)

PROBLEMS = [humaneval_problem(), mbpp_problem(), bigcodebench_problem(), ds1000_problem(), ds1000_problem(True)]


def naive_bits(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, span: Span) -> tuple[float, int]:
    encoded = tokenizer(span.text, add_special_tokens=False, return_offsets_mapping=True)
    ids, bits, count = encoded["input_ids"], 0.0, 0
    for position, (low, _) in enumerate(encoded["offset_mapping"]):
        if low >= span.start:
            with torch.inference_mode():
                logits = model(input_ids=torch.tensor([ids[:position]])).logits[0, -1, : len(tokenizer)]
            bits -= float(torch.log_softmax(logits.double(), -1)[ids[position]]) / math.log(2)
            count += 1
    return bits, count


@pytest.mark.parametrize("kind", ["gpt2", "qwen"])
@pytest.mark.parametrize("budget", [64, 100_000])
def test_bits_equal_a_naive_computation(tokenizers: dict[str, PreTrainedTokenizerFast], kind: str, budget: int) -> None:
    tokenizer = tokenizers[kind]
    model = tiny_model("llama", len(tokenizer) + 9)
    spans = reference_spans(PROBLEMS, [tokenizer])
    for span, score in zip(spans, score_spans(model, tokenizer, spans, batch_tokens=budget), strict=True):
        bits, count = naive_bits(model, tokenizer, span)
        assert score.bits == pytest.approx(bits, rel=1e-5)
        assert score.tokens == count
        assert score.bytes == len(span.text[span.start :].encode())


def test_all_tokenizers_are_scored_on_the_same_bytes(tokenizers: dict[str, PreTrainedTokenizerFast]) -> None:
    some = list(tokenizers.values())
    for problem, span in zip(PROBLEMS, reference_spans(PROBLEMS, some), strict=True):
        assert span.text[span.start :].endswith(problem.reference)
        assert len(span.text[span.start : -len(problem.reference)]) < 40
        for tokenizer in some:
            model = tiny_model("llama", len(tokenizer))
            assert score_spans(model, tokenizer, [span])[0].bytes == span.size


def test_a_start_inside_a_token_is_refused(gpt2_like: PreTrainedTokenizerFast) -> None:
    model = tiny_model("llama", len(gpt2_like))
    with pytest.raises(ValueError, match="no token boundary"):
        score_spans(model, gpt2_like, [Span("HumanEval/0", "    return a", 6)])
    with pytest.raises(ValueError, match="do not fit"):
        score_spans(model, gpt2_like, [Span("HumanEval/0", "return a", 0)])


def test_long_contexts_lose_their_beginning(gpt2_like: PreTrainedTokenizerFast) -> None:
    model = tiny_model("llama", len(gpt2_like))
    span = reference_spans(PROBLEMS[:1], [gpt2_like])[0]
    short = score_spans(model, gpt2_like, [span], max_tokens=30)[0]
    assert short.tokens == score_spans(model, gpt2_like, [span])[0].tokens
    assert math.isfinite(short.bits)


def test_corpus_bits_are_weighted_by_bytes() -> None:
    rows = [SpanScore("a", 10.0, 10, 3), SpanScore("b", 30.0, 10, 3)]
    assert corpus_bits_per_byte(rows) == 2.0
    with pytest.raises(ValueError, match="at least one"):
        corpus_bits_per_byte([])


def test_new_tokens_are_counted_by_problem_and_part(gpt2_like: PreTrainedTokenizerFast, tmp_path: object) -> None:
    gpt2_like.save_pretrained(str(tmp_path))
    extended = type(gpt2_like).from_pretrained(str(tmp_path))
    extended.add_tokens([AddedToken("return a + b", special=False, normalized=False)])
    problem = humaneval_problem()
    [(new, total)] = new_token_counts([problem], extended, len(gpt2_like))
    ids = extended(problem.complete_prompt + problem.reference, add_special_tokens=False)["input_ids"]
    assert (new, total) == (1, len(ids))
    parts = part_counts([problem] * 2, extended, len(gpt2_like))
    assert [new for new, _ in parts["prompts"]] == [0, 0]
    assert [new for new, _ in parts["solutions"]] == [1, 1]
    assert parts["prompts"][0][1] == len(gpt2_like(problem.prompt, add_special_tokens=False)["input_ids"])
