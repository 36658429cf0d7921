"""The arms of the comparison in domains, and the settings that all of a file share.

An arm is a base model or rows of new tokens, each as it is or after LoRA on the same documents, beside which the new
rows rest or, in arms that end in `_rows`, move. `words` are appended merges (strategy `merges`), `both` words and
phrases. Rows are the mean of the subtokens (`untrained`), what the thesis's objective learns at its rate (`thesis`),
or what the recipe that is measured learns (`ours`).
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any, Literal

from recipe_runs import Run
from recipe_runs import parse_run as parse_recipe
from reproduction_arms import Settings, parse_arm, row_settings, tuning_config

from vocabx_utils.config import FineTuneConfig, Phase1Config
from vocabx_utils.measured import DOMAIN_ARMS

RECIPES = (
    "r4:kl_last_ce0.1:0.002:0.0001:mean:fit0.1:texts", "r4:kl_last_ce0.1:0.001:0.0001:mean:fit0.1:texts",
    "kl_ce:kl_last_ce0.1:0.002:0.001:mean:texts",
)  # fmt: skip
"""Of phase 1, for the pilot to choose from: what was nearest in the sweeps of recipes.md; read by `recipe_runs`."""
THESIS = "thesis:kl_first:0.00042:0.00042:first:texts"
"""KL after the first subtoken, both sides at the thesis's rate, the head from the first subtokens."""


@dataclasses.dataclass(frozen=True)
class Arm:
    """One arm with N new tokens; N is 0 where there are none.

    Attributes:
        strategy: of the extension's name; none for the base's own tokenizer.
        rows: where the new rows come from.
        moving: whether they move with LoRA, at its rate.
    """

    name: str
    n: int
    strategy: Literal["", "merges", "both"]
    rows: Literal["", "untrained", "thesis", "ours"]
    lora: bool
    moving: bool = False

    @property
    def extension(self) -> str:
        """Name of the extension's folder."""
        return f"{self.strategy}-{self.n}"


def arms_of(names: list[str], sizes: list[int]) -> list[Arm]:
    """Return the arms that are wanted, those without new tokens once and first, then size by size.

    Raises:
        SystemExit: a name is unknown.
    """
    if unknown := [name for name in names if name not in DOMAIN_ARMS]:
        raise SystemExit(f"--arms {' '.join(unknown)}: expected some of {', '.join(DOMAIN_ARMS)}")
    plain = [_arm(name, 0) for name in names if name.startswith("base")]
    return plain + [_arm(name, n) for n in sizes for name in names if not name.startswith("base")]


def _arm(name: str, n: int) -> Arm:
    start, _, what = name.partition("_")
    if start == "base":
        return Arm(name, 0, "", "", what == "lora")
    rows: Any = what if what in ("untrained", "thesis") else "ours"
    return Arm(name, n, "merges" if start == "words" else "both", rows, what.startswith("lora"), what == "lora_rows")


def settings_of(options: argparse.Namespace, lora_rate: float) -> Settings:
    """What all arms of a file share."""
    return Settings(
        kind="documents", loss_on="all", a_epochs=0, b_epochs=options.lora_epochs, lora_rate=lora_rate,
        lora_rank=options.lora_rank, tokens_per_step=options.tokens_per_step, tokens_per_batch=options.token_budget,
        max_length=options.max_length, epochs=options.epochs, token_budget=options.token_budget, recipe=options.recipe,
    )  # fmt: skip


def told_settings(settings: Settings, options: argparse.Namespace) -> dict[str, Any]:
    """What two lines of a file have to share to be compared."""
    names = ("recipe", "epochs", "lora_rate", "lora_rank", "b_epochs", "tokens_per_step", "max_length")
    return {name: getattr(settings, name) for name in names} | {"thesis": options.thesis}


def lora_config(settings: Settings, seed: int, moving: bool = False) -> FineTuneConfig:
    """How LoRA trains, alike in every arm but for new rows that are `moving`."""
    return dataclasses.replace(tuning_config(parse_arm("base_lora"), settings, seed), rows_in_b=moving)


def rows_config(arm: Arm, settings: Settings, thesis: str, seed: int, tokens: int) -> tuple[str, Phase1Config]:
    """Return the variant of an arm's rows and how phase 1 trains; `tokens` is what the base reads in an epoch."""
    name = thesis if arm.rows == "thesis" else settings.recipe
    variant, config = row_settings("recipe", dataclasses.replace(settings, recipe=name), seed, tokens)
    config = dataclasses.replace(config, compile_blocks="off")  # the bench has fused them already
    return ("mean_untrained" if arm.rows == "untrained" else variant), config


def recipe_of(name: str) -> Run:
    """Read a recipe; SystemExit where it is none, or wants texts that are not made here."""
    recipe = parse_recipe(name)
    if recipe.data == "sampled":
        raise SystemExit(f"recipe {name!r} learns from sampled texts, which are not made here; leave `sampled` out")
    return recipe
