"""Small tokenizers of each kind, real ones, and texts of a domain."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fixtures.small_tokenizers import FAMILIES, npm_tokenizer, small_tokenizers, source
from transformers import PreTrainedTokenizerFast


@pytest.fixture(scope="session")
def base_tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    """One small tokenizer of each kind."""
    return small_tokenizers()


@pytest.fixture(params=FAMILIES)
def tokenizer(request: pytest.FixtureRequest, base_tokenizers: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Each small tokenizer in turn."""
    return base_tokenizers[request.param]


@pytest.fixture(scope="session")
def smollm_like(base_tokenizers: dict[str, Any]) -> PreTrainedTokenizerFast:
    return base_tokenizers["smollm"]


@pytest.fixture(scope="session")
def domain() -> list[str]:
    """Texts of a domain that the small tokenizers were not trained on."""
    return source(ast, inspect)[::2]


@pytest.fixture(scope="session")
def real_tokenizer() -> Callable[[str], Path]:
    """Gives the folder of a real tokenizer by name, or skips the test."""
    return npm_tokenizer
