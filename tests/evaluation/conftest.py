"""Tokenizers shared by the tests of evaluation."""

from __future__ import annotations

import pytest
from evaluation.evaluation_parts import byte_level, sentence_piece
from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="session")
def gpt2_like() -> PreTrainedTokenizerFast:
    return byte_level("gpt2")


@pytest.fixture(scope="session")
def tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    return {"gpt2": byte_level("gpt2"), "qwen": byte_level("qwen"), "sentencepiece": sentence_piece()}
