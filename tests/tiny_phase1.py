"""A tiny model, two tokenizers and aligned texts for the tests of phase 1."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tiny_parts import byte_level_bpe, tiny_decoder
from transformers import PreTrainedTokenizerFast

from vocabx_utils.config import Phase1Config
from vocabx_utils.models import BaseModel, untie, weights_fingerprint
from vocabx_utils.training.distillation import Phase1Data
from vocabx_utils.training.examples import ExampleSet, choose_windows, whole_texts
from vocabx_utils.training.teacher import teacher_cache
from vocabx_utils.vocabulary.alignment import align_texts

V, N, ROWS, WIDTH = 300, 12, 308, 32
WORDS = ("groupby", "dataframe", "numpy", "reshape", "ravel", "array", "axis", "mean", "return", "import")


@dataclass(frozen=True)
class Token:
    id: int
    subtokens: tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    original: PreTrainedTokenizerFast
    extended: PreTrainedTokenizerFast


def texts(count: int = 24) -> list[str]:
    """Deterministic texts in which the words come back in changing company."""
    lines = []
    for k in range(count):
        words = [WORDS[(k * 7 + j * (k % 3 + 1)) % len(WORDS)] for j in range(6 + k % 5)]
        lines.append(f"def f{k}(x): " + " ".join(words) + f".{WORDS[k % len(WORDS)]}(x, {k})\n")
    return lines


def _tokenizer(size: int) -> PreTrainedTokenizerFast:
    return byte_level_bpe(texts(), size, ["<eos>"], eos_token="<eos>", pad_token="<eos>")


@cache
def tokenizers() -> Pair:
    """Two tokenizers of one training run: the larger one goes on merging where the smaller one stops."""
    return Pair(_tokenizer(V), _tokenizer(V + N))


@cache
def new_tokens() -> tuple[Token, ...]:
    pair = tokenizers()
    names = pair.extended.convert_ids_to_tokens(list(range(V, V + N)))
    alphabet = {chr(c): c for c in (*range(33, 127), *range(161, 173), *range(174, 256))}
    assert all(set(name) <= set(alphabet) | {"Ġ"} for name in names)
    spelled = [name.replace("Ġ", " ") for name in names]
    return tuple(
        Token(V + i, tuple(pair.original.encode(text, add_special_tokens=False))) for i, text in enumerate(spelled)
    )


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> BaseModel:
    """A random Llama with rows behind V that no id uses."""
    shape = {"intermediate_size": 48, "max_position_embeddings": 256, "initializer_range": 0.2}
    return as_base(tiny_decoder(ROWS, seed=seed, **(shape | changes)), dtype)


def as_base(model: Any, dtype: torch.dtype = torch.float32) -> BaseModel:
    model = untie(model).eval().requires_grad_(False).to(dtype)
    return BaseModel("tiny", model, tokenizers().original, V, torch.device("cpu"), dtype, weights_fingerprint(model))


@cache
def aligned(count: int = 24) -> tuple[Any, ...]:
    return tuple(align_texts(tokenizers(), texts(count)))


def example_set(start: int = 0, stop: int = 24, window: int = 0) -> ExampleSet:
    chosen = aligned()[start:stop]
    if window:
        return choose_windows(chosen, V, N, window=window, limit=40)
    return whole_texts(chosen, V, N, max_length=128)


def phase1_data(base: BaseModel, folder: Path) -> Phase1Data:
    train, validation = example_set(0, 16), example_set(16, 24)
    quiet: Any = lambda message: None  # noqa: E731
    return Phase1Data(
        train,
        validation,
        teacher_cache(base, train, folder / "train", tell=quiet),
        teacher_cache(base, validation, folder / "validation", tell=quiet),
        aligned=aligned()[:16],
    )


def settings(**changes: Any) -> Phase1Config:
    values: dict[str, Any] = {
        "learning_rate": 2e-2,
        "epochs": 2,
        "batch_size": 4,
        "window": 0,
        "checkpoint_steps": 3,
        "token_budget": 120,
        "require_improvement": False,
    }
    return Phase1Config.from_params(**(values | changes))
