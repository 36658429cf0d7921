"""Which arms the reproduction has, with which settings, and how one is tuned.

An arm is `[phrases_|rare_]<start>[_a][_lora|_full]`. The start is `base`, a variant of phase 1 such as
`mean_kl_last`, or `recipe`, the leading recipe of `settings.json`. `_a` is stage a (whole embedding and head),
`_lora` LoRA, `_full` the blocks by halves; an arm without `_a` has the updates of stage a in what follows instead.
Every arm sees the same texts in the same order in as many updates: steps are planned on the base model's tokens and
hold the same texts everywhere.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_parts import known_json
from recipe_runs import Run
from recipe_runs import parse_run as parse_recipe

from vocabx_utils.config import FineTuneConfig, Phase1Config
from vocabx_utils.training.batches import Step, plan_epoch
from vocabx_utils.training.examples import ExampleSet
from vocabx_utils.training.finetuning import StageTraining
from vocabx_utils.training.objectives import parse_variant
from vocabx_utils.training.stages import plan_stages
from vocabx_utils.training.starts import Start

CORE = (
    "base_lora", "base_a_lora", "mean_untrained_a_lora", "mean_kl_last_a_lora", "recipe_a_lora", "mean_kl_first_a_lora",
    "mean_ce_a_lora",
)  # fmt: skip
"""Three seeds each, the most valuable first; `base` needs one reading."""
DESCRIPTIVE = (
    "mean_kl_last_lora", "random_untrained_a_lora", "random_ce_a_lora", "random_kl_first_a_lora",
    "phrases_recipe_a_lora", "rare_mean_kl_first_a_lora", "base_full", "mean_kl_last_a_full",
)  # fmt: skip
"""One seed each."""
_GROUPS = {"core": CORE, "descriptive": DESCRIPTIVE}
_PREFIXES = ("phrases", "rare")


@dataclass(frozen=True)
class Settings:
    """What all arms share. The pilot chooses how LoRA trains; the thesis's methods have one setting for all."""

    kind: str = "completion"  # of training texts, see `reproduction_data.render_kind`
    loss_on: str = "answer"
    a_rate: float = 1.0e-4
    a_epochs: int = 2
    lora_rate: float = 5.0e-5
    b_epochs: int = 2
    lora_rank: int = 128
    full_rate: float = 4.2e-5  # the thesis's
    tokens_per_step: int = 16_384
    tokens_per_batch: int = 16_384
    max_length: int = 1024
    rate: float = 2.0e-3  # phase 1, every variant but the recipe
    epochs: int = 4
    batch: int = 32
    token_budget: int = 16_384
    recipe: str = "r1:kl_last_ce0.03:0.001:0.0001:mean:texts"  # see recipe_runs.py
    extension: str = "merges-800"
    phrases: str = "phrases-800"
    rare: str = "rare-800"

    @classmethod
    def read(cls, folder: Path, changes: Sequence[str] = ()) -> Settings:
        """Read FOLDER/settings.json where it is there, and apply changes such as `lora_rate=1e-4`."""
        known = known_json(folder / "settings.json").get("settings", {})
        types: dict[str, Any] = {field.name: type(field.default) for field in dataclasses.fields(cls)}
        for change in changes:
            name, _, value = change.partition("=")
            if name not in types or not value:
                raise SystemExit(f"--set {change}: expected NAME=VALUE with a name among {', '.join(types)}")
            known[name] = types[name](value)
        return cls(**known)

    def tuning(self) -> dict[str, Any]:
        """What two tuned arms have to share to be compared."""
        told = dataclasses.asdict(self)
        return {name: told[name] for name in told if name not in ("token_budget", "tokens_per_batch", "recipe")}


@dataclass(frozen=True)
class Arm:
    """What an arm's name says."""

    name: str
    start: str  # `base`, `recipe`, or a variant of phase 1
    prefix: str  # `phrases`, `rare` or none
    stages: tuple[str, ...]  # out of a, b, c

    def extension(self, settings: Settings) -> str | None:
        """Name of the extension, None for the base model."""
        return None if self.start == "base" else str(getattr(settings, self.prefix or "extension"))


def arms_of(names: Sequence[str]) -> list[Arm]:
    """Read arms' names, each once; `core` and `descriptive` stand for all of theirs."""
    return [parse_arm(name) for name in dict.fromkeys(one for name in names for one in _GROUPS.get(name, (name,)))]


def parse_arm(name: str) -> Arm:
    """Read an arm's name; SystemExit where it is none."""
    prefix, _, rest = name.partition("_")
    start = rest if prefix in _PREFIXES else name
    stages: tuple[str, ...] = ()
    for ending, key in (("_lora", "b"), ("_full", "c")):
        if start.endswith(ending):
            start, stages = start.removesuffix(ending), (key,)
    if start.endswith("_a"):
        start, stages = start.removesuffix("_a"), ("a", *stages)
    if start not in ("base", "recipe"):
        try:
            parse_variant(start)
        except ValueError as error:
            raise SystemExit(f"arm {name!r}: {error}") from error
    return Arm(name, start, prefix if prefix in _PREFIXES else "", stages)


def tuning_config(arm: Arm, settings: Settings, seed: int) -> FineTuneConfig:
    """Settings of an arm's stages; without stage a its updates go to what follows."""
    s = settings
    last = s.b_epochs + (0 if "a" in arm.stages else s.a_epochs)
    as_long = s.b_epochs / last * (1 / s.b_epochs if s.b_epochs > 1 else 0.25)  # the thesis: over the first epoch
    return FineTuneConfig.from_params(
        stages=list(arm.stages), a_epochs=max(1, s.a_epochs), a_rate=s.a_rate, b_epochs=last, b_rate=s.lora_rate,
        b_warmup=as_long, c_epochs=max(1, last // 2), c_rate=s.full_rate, lora_rank=s.lora_rank, lora_alpha=s.lora_rank,
        loss_on=s.loss_on, max_length=s.max_length, tokens_per_step=s.tokens_per_step,
        tokens_per_batch=s.tokens_per_batch, seed=seed, compile_blocks="off",  # alike in each arm
    )  # fmt: skip


def row_settings(start: str, settings: Settings, seed: int, tokens: int) -> tuple[str, Phase1Config]:
    """Return the variant's name and the settings of phase 1; `tokens` is what the training texts hold.

    A recipe that reads snippets learns from windows of 50 tokens, as many as make up the tokens of the others.
    """
    s, recipe = settings, parse_recipe(settings.recipe)
    usual: dict[str, Any] = dict(
        max_length=s.max_length, token_budget=s.token_budget, seed=seed, require_improvement=False,
        validation_windows=200,
    )  # fmt: skip
    if start != "recipe":
        more = dict(learning_rate=s.rate, epochs=s.epochs, batch_size=s.batch, window=0)
        return start, Phase1Config.from_params(**usual, **more, variants=[start])
    name = f"mean_{recipe.objective}"
    return name, Phase1Config.from_params(
        **usual, variants=[name], learning_rate=recipe.rate, head_learning_rate=recipe.head_rate,
        head_init=recipe.head_init, warmup=recipe.warmup, rate_after=recipe.after, average_last=recipe.average,
        head_fit=recipe.fit, ce_decay=recipe.fade, token_sampling=recipe.sampling, batch_size=recipe.batch,
        **_budget(recipe, s.epochs * tokens, s.epochs),
    )  # fmt: skip


def _budget(recipe: Run, tokens: int, epochs: int) -> dict[str, Any]:
    if recipe.data == "texts":
        return {"window": 0, "epochs": epochs}
    return {"window": 50, "epochs": 1, "train_windows": max(1, tokens // 50)}


def same_steps(plan: Sequence[Step], texts: ExampleSet) -> list[Step]:
    """The steps of a plan with the tokens that they learn in other texts: those of another tokenizer."""
    counts = [example.targets for example in texts.examples]
    return [Step(step.batches, sum(counts[k] for batch in step.batches for k in batch)) for step in plan]


def tune(
    start: Start, train: ExampleSet, validation: ExampleSet, planned: ExampleSet, config: FineTuneConfig
) -> tuple[Start, dict[str, Any]]:
    """Run an arm's stages in memory, with the steps that the base model's tokens give.

    Args:
        start: left as it is.
        train, validation: texts under the start's tokenizer.
        planned: the training texts under the base model's tokenizer.

    Returns:
        The tuned model, and `stages` (what each did) and `epochs` (losses by stage and epoch).
    """
    if len(train) != len(planned):
        raise SystemExit(f"{len(train)} training texts under one tokenizer, {len(planned)} under the other")
    model: Any = copy.deepcopy(start.model)
    done, epochs = [], []
    for stage in plan_stages(config):
        training = StageTraining(model, stage, train, validation, config, limit=start.limit, new_ids=start.new_ids)
        training.epochs = [same_steps(_plan(planned, config, epoch), train) for epoch in range(stage.epochs)]
        records = [event.record for event in training.run() if event.record is not None]
        done.append(vars(training.result()))
        keys = ("stage", "epoch", "loss", "validation_loss")
        epochs += [{key: record[key] for key in keys} for record in records if record["kind"] == "epoch"]
        model = training.close()
        if hasattr(model, "merge_and_unload"):
            model = model.merge_and_unload()
    return dataclasses.replace(start, model=model), {"stages": done, "epochs": epochs}


def _plan(texts: ExampleSet, config: FineTuneConfig, epoch: int) -> list[Step]:
    return plan_epoch(
        texts.examples, tokens_per_step=config.tokens_per_step, tokens_per_batch=config.tokens_per_batch,
        seed=config.seed * 1_000_003 + epoch,
    )  # fmt: skip
