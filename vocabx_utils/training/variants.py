"""Where a fine-tuning variant starts from, and how a finished one is put together again.

A variant starts from the base model (the control), from the rows of a phase-1 variant, or from a finished stage of
another variant (sequential fine-tuning branches off after stage a). Its key holds that origin, so that export and
later stages can rebuild it from the run folder alone.

Legend: V original vocabulary, N new tokens, D model width.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from vocabx_utils import corpus, runs
from vocabx_utils.models import BaseModel, extension_name, require_tokenizer, with_extra_rows
from vocabx_utils.training.stage_files import load_stage

if TYPE_CHECKING:
    from vocabx_utils.vocabulary.tokens import Extension

STAGE = "04"

__all__ = [
    "Start",
    "from_base",
    "from_branch",
    "from_phase1",
    "load_variant",
    "open_start",
    "run_texts",
    "stages_done",
]


@dataclass(frozen=True)
class Start:
    """A plain untied model ready to be tuned.

    Attributes:
        model: a copy; tuning changes it in place.
        tokenizer: original for the base model, extended otherwise.
        new_ids: ids of the new tokens, empty for the base model.
        limit: V + N.
        origin: JSON-ready description, part of the variant's key.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    new_ids: range
    limit: int
    origin: dict[str, Any]


def open_start(run: runs.Run, start: str, base: BaseModel, extension: Extension | None) -> Start:
    """Open a start by name.

    Args:
        run: the run.
        start: "base", "phase1:VARIANT" or "VARIANT:STAGE" (a finished stage of notebook 04).
        base: the original model.
        extension: the extension of notebook 01; not needed for "base".

    Raises:
        ValueError: another form, or new tokens without an extension.
    """
    if start == "base":
        return from_base(base)
    place, _, name = start.partition(":")
    if not name:
        raise ValueError(f"start is {start!r}; expected 'base', 'phase1:VARIANT' or 'VARIANT:STAGE'")
    if place != "phase1":
        return from_branch(run, place, name, base, extension)
    if extension is None:
        raise ValueError(f"start {start!r} needs the extension of notebook 01")
    return from_phase1(run, name, base, extension)


def run_texts(
    run: runs.Run, split: str, tokenizer: PreTrainedTokenizerFast, limit: int | None = None
) -> list[corpus.Rendered]:
    """Render a split of notebook 01 with the template that it chose.

    Args:
        run: the run.
        split: "train" or "validation".
        tokenizer: gives the special tokens of the template.
        limit: keep at most this many, evenly spread.

    Raises:
        runs.MissingStageError: notebook 01 has not run.
    """
    pairs = corpus.pairs_from_jsonl(run.require("01", f"splits/{split}.jsonl"), limit)
    facts = run.folder / "01_tokenizer_extension" / "corpus.json"
    template: Any = runs.read_json(facts).get("template", "thesis") if facts.exists() else "thesis"
    return [corpus.render(pair, template, tokenizer) for pair in pairs]


def from_base(base: BaseModel) -> Start:
    """The control: no new token, nothing trained yet."""
    model = copy.deepcopy(base.model)
    return Start(
        model, base.tokenizer, range(base.vocab_size, base.vocab_size), base.vocab_size, _origin(base, kind="base")
    )


def from_phase1(
    run: runs.Run, phase1: str, base: BaseModel, extension: Extension, *, epoch: int | None = None
) -> Start:
    """The extended model with the rows that a phase-1 variant learned.

    Args:
        run: the run.
        phase1: name of a variant of notebook 03.
        base: the original model.
        extension: the extension of notebook 01.
        epoch: which checkpoint; the last one by default.

    Raises:
        runs.MissingStageError: notebook 03 has not made the rows.
        ValueError: the rows do not belong to this extension, or the extension to another tokenizer.
    """
    folder = run.require("03", f"{phase1}/rows")
    found = runs.epoch_files(folder)
    if not found:
        raise runs.MissingStageError(f"{runs.show_path(folder)} holds no epoch: run notebook 03 first")
    wanted = max(found) if epoch is None else epoch
    path = found.get(wanted) or run.require("03", f"{phase1}/rows/epoch_{wanted:02d}.safetensors")
    require_tokenizer(base, extension.original, extension_name(run))
    rows = runs.read_tensors(path)
    if len(rows["input_rows"]) != extension.N:
        raise ValueError(
            f"{runs.show_path(path)} holds {len(rows['input_rows'])} rows, the extension has {extension.N} new "
            "tokens: notebook 01 was run again since; run notebook 03 again too"
        )
    model = with_extra_rows(base, rows["input_rows"], rows["head_rows"], extension.V)
    new_ids = range(extension.V, extension.V + extension.N)
    origin = _origin(base, kind="phase1", phase1=phase1, rows=path.name, digest=runs.file_digest(path)[:16])
    return Start(model, extension.extended, new_ids, new_ids.stop, origin)


def from_branch(run: runs.Run, variant: str, stage: str, base: BaseModel, extension: Extension | None) -> Start:
    """The model after a finished stage of another variant.

    Args:
        run: the run.
        variant: a variant of notebook 04 whose stage is finished.
        stage: "a", "b", "c1" or "c2".
        base: the original model.
        extension: the extension of notebook 01, None for variants of the base model.
    """
    loaded = load_variant(run, variant, base, extension, upto=stage)
    digest = runs.file_digest(run.require(STAGE, f"{variant}/{stage}/result.json"))[:16]
    origin = _origin(base, kind="branch", variant=variant, stage=stage, digest=digest)
    return Start(_merged(loaded.model), loaded.tokenizer, loaded.new_ids, loaded.limit, origin)


def load_variant(
    run: runs.Run, variant: str, base: BaseModel, extension: Extension | None, *, upto: str | None = None
) -> Start:
    """Rebuild a variant from the run folder.

    Args:
        run: the run.
        variant: a variant of notebook 04.
        base: the original model that it was made from.
        extension: the extension of notebook 01; may be None for variants of the base model.
        upto: last stage to load; by default all that are finished. "start" loads none.

    Returns:
        The model (wrapped by peft when the last loaded stage is "b"), tokenizer and ids.

    Raises:
        runs.MissingStageError: a stage or an earlier notebook's file is missing.
        ValueError: the base model is another one.
    """
    folder = run.require(STAGE, f"{variant}/key.json").parent
    origin = runs.read_json(folder / "key.json")["origin"]
    if origin["fingerprint"] != base.fingerprint:
        raise ValueError(
            f"variant {variant} was made from {origin['model']} (weights {origin['fingerprint']}), not from "
            f"{base.name} (weights {base.fingerprint}); load that base model in the same dtype"
        )
    start = _start_of(run, origin, base, extension)
    done = stages_done(folder)
    if upto is not None and upto != "start" and upto not in done:
        raise runs.MissingStageError(
            f"stage {upto} of variant {variant} is not finished (finished: {', '.join(done) or 'none'}); "
            "run notebook 04 with it first"
        )
    keep = done if upto is None else [] if upto == "start" else done[: done.index(upto) + 1]
    model: Any = start.model
    for key in keep:
        model = load_stage(_merged(model), folder / key, new_ids=start.new_ids)
    model.eval().requires_grad_(False)
    return Start(model, start.tokenizer, start.new_ids, start.limit, origin)


def stages_done(folder: Path) -> list[str]:
    """Finished stages of a variant's folder, in the order in which they ran."""
    return [key for key in ("a", "b", "c1", "c2") if (folder / key / "result.json").exists()]


def _start_of(run: runs.Run, origin: dict[str, Any], base: BaseModel, extension: Extension | None) -> Start:
    if origin["kind"] == "base":
        return from_base(base)
    if origin["kind"] == "branch":
        return from_branch(run, origin["variant"], origin["stage"], base, extension)
    if extension is None:
        raise ValueError("this variant has new tokens: give the extension of notebook 01")
    epoch = int(origin["rows"].removeprefix("epoch_").removesuffix(".safetensors"))
    return from_phase1(run, origin["phase1"], base, extension, epoch=epoch)


def _merged(model: Any) -> Any:
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model


def _origin(base: BaseModel, **more: Any) -> dict[str, Any]:
    dtype = str(base.dtype).removeprefix("torch.")
    return {"model": base.name, "dtype": dtype, "fingerprint": base.fingerprint, **more}
