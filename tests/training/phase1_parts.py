"""Aligned texts, example sets and settings of phase 1 over the tiny model."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from tiny import N, V, texts, tokenizers
from torch.utils._python_dispatch import TorchDispatchMode

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
        teacher_cache(base, validation, folder / "validation", likelihood=True, tell=quiet),
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


class AsksNothing(TorchDispatchMode):
    """Refuses what makes a GPU's host wait for its answer: values, and shapes that follow from values."""

    ASKED = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "repeat_interleave", "is_nonzero")

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        name = function.overloadpacket.__name__
        found: Any = next((part for part in given if isinstance(part, (list, tuple))), ())
        by_mask = name in ("index", "index_put", "index_put_") and any(
            part is not None and part.dtype in (torch.bool, torch.uint8) for part in found
        )
        if name in self.ASKED or by_mask:
            raise AssertionError(f"{function} would make the host wait for a GPU")
        return function(*given, **(named or {}))
