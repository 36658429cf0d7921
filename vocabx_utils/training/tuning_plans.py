"""Which variants notebook 04 tunes.

Every expanded variant goes through stage a and then LoRA. Controls: the base model through LoRA and through
sequential full fine-tuning, an expanded variant that spends the epochs of stage a on LoRA too, and one that takes
stage c instead of LoRA. The command line checks names by these plans, so nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vocabx_utils.config import FineTuneConfig


@dataclass(frozen=True)
class TuningPlan:
    """One variant of fine-tuning."""

    name: str  # of its folder
    start: str  # see `starts.open_start`
    stages: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)  # fields of `FineTuneConfig` that it has otherwise


def plan_variants(config: FineTuneConfig) -> tuple[TuningPlan, ...]:
    """Spell out the variants of a configuration; one that starts from another comes after it.

    Without stage a, LoRA runs for the epochs of both stages: as many steps on as many tokens, after as long a warm-up.
    """
    epochs = config.a_epochs + config.b_epochs
    as_long = {"b_epochs": epochs, "b_warmup": config.b_warmup * config.b_epochs / epochs}
    plans = [
        TuningPlan(name, "base", ("b",)) if name == "base" else TuningPlan(name, f"phase1:{name}", ("a", "b"))
        for name in config.variants
    ]
    plans += [TuningPlan(f"{name}_no_a", f"phase1:{name}", ("b",), as_long) for name in config.without_a]
    plans += [TuningPlan(f"{name}_full", "base" if name == "base" else f"{name}:a", ("c",)) for name in config.full]
    return tuple(plans)
