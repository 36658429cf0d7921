"""Both phases in one call each, on plain objects of transformers, without files.

What they return is a `Start`: `model.generate` works on it, `fine_tune` goes on from it, `export.export_model` writes
it. There are no checkpoints either; for long trainings take `phase1_stage` and `finetuning_stage`.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from vocabx_utils.config import FineTuneConfig, Phase1Config
from vocabx_utils.corpus import Rendered
from vocabx_utils.models import BaseModel, freeze
from vocabx_utils.settings import ConfigError
from vocabx_utils.texts import text_list
from vocabx_utils.tokenizer_files import require_tokenizer
from vocabx_utils.training.checks import check_moved
from vocabx_utils.training.examples import encode
from vocabx_utils.training.finetuning import StageTraining
from vocabx_utils.training.finetuning_stage import check_start
from vocabx_utils.training.loop import Record, show
from vocabx_utils.training.objectives import RECOMMENDED, parse_variant
from vocabx_utils.training.phase1 import Phase1Training, new_student, prepare
from vocabx_utils.training.stage_files import merged
from vocabx_utils.training.stages import plan_stages
from vocabx_utils.training.starts import Start, from_rows, require_start
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.proposals import Proposal
from vocabx_utils.vocabulary.tokens import Extension

_ALL = 2**31  # windows: as many as the texts offer
# Settings of the notebooks that do nothing in memory: the model is given, no variant is named, and no file is written.
_OF_BOTH = {"run_name", "model", "device", "dtype", "variants"}
_OF_PHASE_1 = {
    "train_limit", "validation_limit", "checkpoint_steps", "require_improvement", "quantization", "teacher_storage",
    "gradient_checkpointing", "sharded",
}  # fmt: skip
_OF_PHASE_2 = {"without_a", "full", "train_texts", "validation_texts", "checkpoint_every"}


@dataclass(frozen=True, kw_only=True)
class LearnedRows(Start):
    """The extended model, ready to generate, to be tuned or exported, and what was learned."""

    extension: Extension  # both tokenizers and the N new tokens
    input_rows: Tensor  # (N, D) float32, on the CPU
    head_rows: Tensor
    metrics: list[Record]  # one mapping per epoch, epoch 0 (before training) first; see `validation.evaluate`


@dataclass(frozen=True, kw_only=True)
class TunedModel(Start):
    """The fine-tuned model, adapters merged into it, and its losses."""

    losses: list[Record]  # one mapping per optimiser step (kind "step") and per epoch (kind "epoch")


def learn_rows(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    new_tokens: Extension | Sequence[str | Proposal],
    texts: Iterable[str],
    objective: str = RECOMMENDED,
    *,
    init: str = "mean",
    epochs: int = 2,
    learning_rate: float = 1e-2,
    seed: int = 0,
    validation_texts: Iterable[str] | None = None,
    **settings: Any,
) -> LearnedRows:
    """Learn rows for new tokens (phase 1) in memory.

    Args:
        model: a causal language model; it is left as it is.
        tokenizer: its own.
        new_tokens: what `extend_tokenizer` or `add_tokens` returned, or the texts of new tokens.
        texts: to learn from.
        objective: what the input rows minimise, see `objectives.parse_objective`; `untrained` only measures the start.
        init: first values of the input rows, see `vocabulary.initialization.first_rows`.
        learning_rate: its peak.
        validation_texts: texts that each epoch is judged by; the training texts unless given.
        settings: further fields of `config.Phase1Config`, such as `phrase_dropout` and `head_learning_rate`. All
            windows around new tokens are read, unless `train_windows` says how many. Those that do nothing in memory,
            such as `dtype`, are refused.

    Raises:
        ModelError: the model cannot be extended, or the extension is that of another tokenizer.
        ValueError: a token or setting is wrong, or no text holds a new token.
        RowsNotTrainedError: a row with examples did not change.

    Example:
        >>> learned = learn_rows(model, tokenizer, [" groupby", " ravel"], texts, learning_rate=0.02)
        >>> learned.tokenizer.tokenize("x groupby")
        ['x', 'Ġgroupby']
        >>> learned.metrics[-1]["kl_last"] < learned.metrics[0]["kl_last"]  # nats, before and after
        True
        >>> ids = learned.tokenizer("import numpy", return_tensors="pt")["input_ids"]
        >>> learned.model.generate(ids, max_new_tokens=2, do_sample=False).shape[1] - ids.shape[1]
        2
    """
    texts, judged = _listed(texts, validation_texts)
    _refuse_idle(settings, _OF_BOTH | _OF_PHASE_1)
    base = freeze(model, tokenizer)
    extension = new_tokens if isinstance(new_tokens, Extension) else add_tokens(tokenizer, new_tokens)
    require_tokenizer(base, extension.original, "the extension")
    if not extension.N:
        raise ValueError("new_tokens is empty; expected one token or more")
    recipe = parse_variant(f"{init}_{objective}")
    known = {"epochs": epochs, "learning_rate": learning_rate, "seed": seed, "variants": [recipe.name]}
    usual = {"train_windows": _ALL, "validation_windows": _ALL, "require_improvement": False}
    config = Phase1Config.from_params(**usual | settings | known)
    data = prepare(base, extension, texts, judged, config)
    student = new_student(recipe, base, extension.tokens, config, data.aligned, extension.spell)
    before = student.input_rows.detach().cpu().clone()
    training = Phase1Training(recipe, student, data, config)
    metrics = [event.record for event in show(training, recipe.name, delay=1) if event.record is not None]
    rows, head = (values.detach().cpu() for values in training.parameters.values())
    check_moved(recipe, before, rows, data.train)
    start = from_rows(base, extension, rows, head)
    return LearnedRows(**vars(start), extension=extension, input_rows=rows, head_rows=head, metrics=metrics)


def fine_tune(
    start: Start | BaseModel,
    texts: Iterable[str | Rendered],
    stages: Sequence[str] = ("a", "b"),
    *,
    validation_texts: Iterable[str | Rendered] | None = None,
    **settings: Any,
) -> TunedModel:
    """Fine-tune a model (phase 2) in memory.

    Args:
        start: what `learn_rows` returned, or a base model; it is left as it is.
        texts: to learn from; of those that `corpus.render` gave, the answers only where `loss_on` is "answer". Of each
            the first `max_length` tokens are read, 1,024 unless the setting says otherwise; a warning counts those
            that were cut, and those that were left out because nothing in them can be learned.
        stages: in order: "a" the whole embedding and head, "b" LoRA on all blocks, "c" the blocks by halves.
        validation_texts: texts that each epoch is judged by; the training texts unless given.
        settings: further fields of `config.FineTuneConfig`, such as `max_length`, `b_epochs`, `lora_rank` and `seed`.

    Raises:
        ValueError: a setting is wrong, or the model is one that a stage cannot tune.
        RuntimeError: a tensor that had to stay moved, or a new row with examples did not move.

    Example:
        >>> learned = learn_rows(model, tokenizer, [" groupby", " ravel"], texts)
        >>> tuned = fine_tune(learned, texts, "b", b_epochs=2, lora_rank=4)
        >>> first, *_, last = [row["validation_loss"] for row in tuned.losses if row["kind"] == "epoch"]
        >>> last < first  # nats per token
        True
    """
    texts, judged = _listed(texts, validation_texts, (Rendered,))
    _refuse_idle(settings, _OF_BOTH | _OF_PHASE_2)
    if isinstance(start, BaseModel):
        none = range(start.vocab_size, start.vocab_size)
        start = Start(start.model, start.tokenizer, none, start)
    require_start(start)
    config = FineTuneConfig.from_params(**settings | {"stages": list(stages)})
    train, validation = (
        encode(part, start.tokenizer, max_length=config.max_length, loss_on=config.loss_on) for part in (texts, judged)
    )
    model: Any = copy.deepcopy(start.model)
    for name, part in (("training", train), ("validation", validation))[: 1 if validation_texts is None else 2]:
        for line in part.left_out(name, config.max_length):
            warnings.warn(f"{line}; max_length says how many tokens of a text are read", stacklevel=2)
    plan = plan_stages(config)
    check_start(model, plan, config, train, validation, start.limit, start.new_ids)
    losses: list[Record] = []
    for stage in plan:
        training = StageTraining(model, stage, train, validation, config, limit=start.limit, new_ids=start.new_ids)
        losses += [event.record for event in show(training, stage.title, delay=1) if event.record is not None]
        training.result()
        model = merged(training.close())
    return TunedModel(model, start.tokenizer, start.new_ids, start.base, start.origin, losses=losses)


def _refuse_idle(settings: Mapping[str, Any], idle: set[str]) -> None:
    """Refuse settings that would be passed over."""
    if found := sorted(idle & settings.keys()):
        raise ConfigError(
            f"{', '.join(found)} would have no effect in memory; leave {'it' if len(found) == 1 else 'them'} out. The "
            "model is trained as it is, on its device and in its dtype: move or convert it first."
        )


def _listed(
    texts: Iterable[Any], validation_texts: Iterable[Any] | None, besides: tuple[type, ...] = ()
) -> tuple[list[Any], list[Any]]:
    """Return the texts to learn from and those that judge, which are the same unless given."""
    learned = text_list(texts, besides=besides)
    if validation_texts is None:
        return learned, learned
    return learned, text_list(validation_texts, "validation_texts", besides=besides)
