"""Aligned texts, example sets and settings of phase 1 over the tiny model."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from tiny import N, V, texts, tokenizers

from vocabx_utils.config import Phase1Config
from vocabx_utils.models import BaseModel
from vocabx_utils.training.examples import AlignedSet, choose_windows, whole_texts
from vocabx_utils.training.phase1 import Phase1Data
from vocabx_utils.training.teacher import teacher_cache
from vocabx_utils.vocabulary.alignment import align_texts


@cache
def aligned(count: int = 24) -> tuple[Any, ...]:
    return tuple(align_texts(tokenizers(), texts(count)))


def example_set(start: int = 0, stop: int = 24, window: int = 0) -> AlignedSet:
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
