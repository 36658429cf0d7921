"""The texts of notebook 04, and one call that tunes one of its variants (see `tuning_plans`) or all of them.

Legend: V original vocabulary, N new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from vocabx_utils import runs
from vocabx_utils.config import FineTuneConfig
from vocabx_utils.corpus import Rendered
from vocabx_utils.models import BaseModel
from vocabx_utils.training.examples import encode
from vocabx_utils.training.finetuning_stage import FineTuned, Measured, fine_tune
from vocabx_utils.training.forgetting import Snapshot, TextSet
from vocabx_utils.training.starts import STAGE, open_start, run_texts
from vocabx_utils.training.tuning_plans import TuningPlan
from vocabx_utils.vocabulary.tokens import Extension


@dataclass(frozen=True)
class Texts:
    """The same texts for every variant, whatever its tokenizer."""

    train: tuple[Rendered, ...]
    validation: tuple[Rendered, ...]


def choose_texts(run: runs.Run, extension: Extension, config: FineTuneConfig) -> Texts:
    """Take the texts of notebook 01's splits, those with most new tokens first where only some are wanted.

    MissingStageError where notebook 01 has not run.
    """
    train, validation = (
        _densest(run_texts(run, split, extension.extended), extension.extended, extension.V, count, config.max_length)
        for split, count in (("train", config.train_texts), ("validation", config.validation_texts))
    )
    return Texts(train, validation)


def tune_variants(
    run: runs.Run,
    plans: Sequence[TuningPlan],
    base: BaseModel,
    extension: Extension | None,
    texts: Texts,
    config: FineTuneConfig,
    **options: Any,
) -> dict[str, FineTuned]:
    """Tune variants one after the other, by name; a model that several of them start from is measured once.

    A plan that starts from another comes after it; `options` are text sets and prompt, see `tune_variant`.
    """
    tuned: dict[str, FineTuned] = {}
    measured: dict[str, Measured] = {}
    for plan in plans:
        start = measured.get(plan.start)
        done = tune_variant(run, plan, base, extension, texts, config, measured=start, **options)
        measured.setdefault(plan.start, done.measured("start"))
        measured |= {f"{plan.name}:{stage}": done.measured(stage) for stage in done.stages.stage}
        tuned[plan.name] = done
    return tuned


def tune_variant(
    run: runs.Run,
    plan: TuningPlan,
    base: BaseModel,
    extension: Extension | None,
    texts: Texts,
    config: FineTuneConfig,
    *,
    sets: Sequence[TextSet] = (),
    prompt: str = "",
    max_new_tokens: int = 48,
    measured: Measured | None = None,
) -> FineTuned:
    """Tune one variant below `04_fine_tuning`, or read it back when it is finished.

    Args:
        extension: of notebook 01; None is enough for the base model.
        config: its `stages`, and what else the plan sets, are replaced by the plan's.
        sets: text sets measured before and after each stage; none, no measurement.
        prompt: continued greedily after each stage.
        measured: the variant's start, where another variant has measured that model already.
    """
    start = open_start(run, plan.start, base, extension)
    train, validation = (
        encode(part, start.tokenizer, max_length=config.max_length, loss_on=config.loss_on)
        for part in (texts.train, texts.validation)
    )
    memory = max(4096, config.tokens_per_batch)
    observe = Snapshot(start.tokenizer, start.limit, start.new_ids, tuple(sets), prompt, max_new_tokens, memory)
    return fine_tune(
        start.model,
        train,
        validation,
        run.stage(STAGE, plan.name),
        replace(config, stages=plan.stages, **plan.settings),
        limit=start.limit,
        new_ids=start.new_ids,
        origin=start.origin,
        observe=observe if sets or prompt else None,
        start=measured,
    )


def _densest(
    texts: list[Rendered], tokenizer: PreTrainedTokenizerFast, first_new_id: int, count: int, max_length: int
) -> tuple[Rendered, ...]:
    """The `count` texts with most new tokens among their first `max_length`, in their old order."""
    if not count or count >= len(texts):
        return tuple(texts)
    coded = tokenizer([text.text for text in texts], add_special_tokens=False)["input_ids"]
    new = np.asarray([sum(token >= first_new_id for token in ids[:max_length]) for ids in coded])
    return tuple(texts[k] for k in sorted(np.argsort(-new, kind="stable")[:count]))
