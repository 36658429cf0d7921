"""What can be chosen for an adaptation, and the sizes that follow from it and from the device."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from vocabx_utils.settings import Settings
from vocabx_utils.training.objectives import RECOMMENDED, parse_objective, parse_variant

# How a run computes, not what: it may go on with others.
_NOT_IN_KEY = {"device", "all_files", "glob"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdaptSettings(Settings):
    """The options of `vocabx adapt`; 0 stands for a value that is chosen for the texts or the device."""

    n: int = 800  # new tokens
    # `merges` keeps words as they are cut, `phrases` crosses words; `auto` takes what saves more on validation files
    strategy: Literal["merges", "phrases", "auto"] = "merges"
    objective: str = RECOMMENDED  # what the input rows minimise, see `training.objectives.parse_objective`
    init: str = "mean"  # first values of the input rows, see `vocabulary.initialization`
    learning_rate: float = 0.0  # peak; 0 for a sweep
    epochs: int = 0  # passes over the windows; 0 for a sweep, or for 2 where a learning rate is given
    fine_tune: Literal["none", "lora"] = "none"  # what follows on the new rows
    lora_rank: int = 32
    lora_epochs: int = 1
    glob: str = "*"  # which files of a folder, as in a `.gitignore` file
    all_files: bool = False  # read what `.gitignore` names, and usual clutter, too
    device: str = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    seed: int = 0
    # shares of the bytes, by whole files: to measure on at the end, and to choose by on the way
    held_out: float = 0.15
    validation: float = 0.1
    windows_per_token: int = 0  # training windows for each new token; 0 for 8 on a CPU, 32 on a GPU
    held_out_bytes: int = 0  # scored for bits per byte, at most; 0 for 32,000 on a CPU, a million on a GPU
    continuations: int = 6  # prompts from held-out text that both models continue
    new_tokens: int = 48  # of each continuation

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_objective(self.objective)  # `untrained` is none
        parse_variant(self.variant)
        self.require_at_least(1, "n", "lora_rank", "lora_epochs", "continuations", "new_tokens")
        self.require_at_least(0, "learning_rate", "epochs", "windows_per_token", "held_out_bytes", "seed")
        for name in ("held_out", "validation"):
            self.require(name, 0 < getattr(self, name) < 0.5, "a share above 0 and below 0.5")

    @property
    def variant(self) -> str:
        """Name of the phase-1 variant, such as `mean_kl_last`."""
        return f"{self.init}_{self.objective}"

    def key(self) -> dict[str, Any]:
        """Return what the result depends on; the texts, which `glob` chooses, are known by their own digest."""
        return {name: value for name, value in self.to_dict().items() if name not in _NOT_IN_KEY}


@dataclass(frozen=True)
class Sizes:
    """How much is read and measured."""

    # most windows of 48 tokens around new tokens
    train_windows: int
    sweep_windows: int
    validation_windows: int
    held_out_windows: int
    held_out_bytes: int  # scored for bits per byte, at most
    token_budget: int  # tokens of one forward pass, padding included; see `teacher.tokens_of_a_pass` for the teacher's
    checkpoint_steps: int  # optimiser steps between checkpoints
    max_epochs: int  # most that the sweep tries


def sizes_of(settings: AdaptSettings, on_gpu: bool) -> Sizes:
    """Return the sizes for a device.

    On a CPU they are chosen for minutes with a model of a hundred million parameters, on a GPU for minutes with one of
    half a billion; see docs/adapt.md.
    """
    per_token = settings.windows_per_token or (32 if on_gpu else 8)
    train = max(64, settings.n * per_token)
    return Sizes(
        train_windows=train,
        sweep_windows=min(train, max(64, train // 8), 2048 if on_gpu else 256),
        validation_windows=256 if on_gpu else 32,
        held_out_windows=512 if on_gpu else 48,
        held_out_bytes=settings.held_out_bytes or (1_000_000 if on_gpu else 32_000),
        token_budget=8192 if on_gpu else 2048,
        checkpoint_steps=50 if on_gpu else 10,
        max_epochs=4 if on_gpu else 2,
    )
