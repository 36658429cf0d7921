"""Where a fine-tuning variant starts from, and how a finished one is put together again.

A variant starts from the base model (the control), from the rows of a phase-1 variant, or from a finished stage of
another variant (sequential fine-tuning branches off after stage a). Its key holds that origin, so that export and
later stages can rebuild it from the run folder alone.

Legend: V original vocabulary, N new tokens, D model width.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from vocabx_utils import corpus, files, paths, runs
from vocabx_utils.fetch import DEFAULT_MODEL
from vocabx_utils.models import BaseModel, freeze, load_base_model, with_extra_rows
from vocabx_utils.rows import read_history
from vocabx_utils.tokenizer_files import extension_name, require_tokenizer
from vocabx_utils.training.stage_files import load_stage, merged
from vocabx_utils.vocabulary.tokens import Extension, load_extension

STAGE = "04"


@dataclass(frozen=True)
class Start:
    """A plain untied model with its tokenizer: ready to be tuned, or to be exported."""

    model: PreTrainedModel  # tuning and exporting change it in place; wrapped by peft where stage "b" came last
    tokenizer: PreTrainedTokenizerFast  # the extended one, or the original one where there are no new tokens
    new_ids: range  # V to V + N - 1; empty, but at V, where there are no new tokens
    base: BaseModel | None = None  # the original model, where it is known
    origin: dict[str, Any] = field(default_factory=dict)  # JSON-ready description, part of the variant's key
    folder: Path | None = None  # of the finished variant that was loaded

    @property
    def limit(self) -> int:
        """V + N: ids from here on are padding rows."""
        return self.new_ids.stop


def require_start(given: object) -> None:
    """Refuse what is no `Start`, such as a plain model, which says neither its tokenizer nor its new tokens."""
    if not isinstance(given, Start):
        raise ValueError(
            f"the model to tune or export is given as a {type(given).__name__}; give what learn_rows, fine_tune, "
            "starts.from_rows or starts.load_folder returned, which knows its tokenizer and its new tokens"
        )


def open_start(run: runs.Run, start: str, base: BaseModel, extension: Extension | None) -> Start:
    """Open a start by name: `base`, `phase1:VARIANT` or `VARIANT:STAGE` (a finished stage of notebook 04).

    Raises:
        ValueError: another form, new tokens without an extension, or files that do not belong together.
        runs.MissingStageError: an earlier notebook's files are missing.
    """
    place, _, name = start.partition(":")
    if start != "base" and not name:
        raise ValueError(f"start is {start!r}; expected 'base', 'phase1:VARIANT' or 'VARIANT:STAGE'")
    if start == "base":
        return _start_of(run, {"kind": "base"}, base, extension)
    if place == "phase1":
        return _start_of(run, {"kind": "phase1", "phase1": name}, base, extension)
    return _start_of(run, {"kind": "branch", "variant": place, "stage": name}, base, extension)


def from_rows(
    base: BaseModel | PreTrainedModel,
    extension: Extension,
    input_rows: Tensor,
    head_rows: Tensor,
    *,
    made: str = "the extension",
    **origin: Any,
) -> Start:
    """Put rows that are in memory, both (N, D), into a copy of the base model, as `in_memory` does.

    Raises:
        ModelError: the extension belongs to another tokenizer (it is called by `made`), or a shape is wrong.
    """
    base = base if isinstance(base, BaseModel) else freeze(base, extension.original)
    require_tokenizer(base, extension.original, made)
    model = with_extra_rows(base, input_rows, head_rows, extension.V)
    new_ids = range(extension.V, extension.V + extension.N)
    return Start(model, extension.extended, new_ids, base, _origin(base, **origin))


def load_variant(
    run: runs.Run,
    variant: str,
    base: BaseModel | None = None,
    extension: Extension | None = None,
    *,
    upto: str | None = None,
) -> Start:
    """Rebuild a variant of notebook 04 from the run folder, in evaluation mode and frozen.

    Args:
        base, extension: loaded from what the variant's key names, and from the run, when left out.
        upto: last stage to load, which has to be finished; by default the whole variant has to be, and all are.

    Raises:
        runs.MissingStageError: a stage or an earlier notebook's file is missing.
        ValueError: the base model is another one.
    """
    folder = run.require(STAGE, f"{variant}/{'provenance' if upto is None else 'key'}.json").parent
    key = files.read_json(folder / "key.json")
    origin = key["origin"]
    base = base or load_base_model(origin["model"], dtype=origin["dtype"])
    if origin["fingerprint"] != base.fingerprint:
        raise ValueError(
            f"variant {variant} was made from {origin['model']} (weights {origin['fingerprint']}), not from "
            f"{base.name} (weights {base.fingerprint}); load that base model in the same dtype"
        )
    if extension is None and key["new_ids"][1] > key["new_ids"][0]:
        extension = load_extension(run.require("01", "extension"))
    start = _start_of(run, origin, base, extension)
    model: Any = start.model
    for stage in _stages_upto(folder, upto):
        model = load_stage(merged(model), folder / stage, new_ids=start.new_ids)
    model.eval().requires_grad_(False)
    return replace(start, model=model, origin=origin, folder=folder if upto is None else None)


def load_folder(folder: Path, model: str = DEFAULT_MODEL) -> Start:
    """Load a variant by its folder.

    Args:
        folder: `RUN/04_fine_tuning/VARIANT`, or `RUN/03_phase1_training/VARIANT` for the rows of its last epoch.
        model: source of the base model of a phase-1 variant; a fine-tuned one knows its own.

    Raises:
        ValueError: the path is not a variant of one of the two notebooks, or `model` is not its base.
        runs.MissingStageError: the variant is not finished.
    """
    folder = Path(folder).resolve()
    stage = folder.parent.name[:2]
    if stage not in ("03", STAGE):
        raise ValueError(
            f"{folder} is not a variant: expected RUN/04_fine_tuning/VARIANT or RUN/03_phase1_training/VARIANT"
        )
    run = runs.Run(folder.parents[1].name, folder.parents[1])
    if stage == STAGE:
        return load_variant(run, folder.name)
    key = runs.read_provenance(folder)["key"]
    base = load_base_model(model, dtype=key["dtype"].removeprefix("torch."))
    if base.fingerprint != key["model"]:
        raise ValueError(
            f"{folder.name} was trained on weights {key['model']}, {model} has {base.fingerprint}: name the right base "
            "with --model"
        )
    return _from_phase1(run, folder.name, base, load_extension(run.require("01", "extension")))


def run_texts(
    run: runs.Run, split: str, tokenizer: PreTrainedTokenizerFast, limit: int | None = None
) -> list[corpus.Rendered]:
    """Render a split (`train` or `validation`) of notebook 01 with the template that it chose.

    At most `limit` pairs are kept, evenly spread. MissingStageError where notebook 01 has not run.
    """
    pairs = corpus.pairs_from_jsonl(run.require("01", f"splits/{split}.jsonl"), limit)
    facts = run.folder / "01_tokenizer_extension" / "corpus.json"
    template: Any = files.read_json(facts).get("template", "thesis") if facts.exists() else "thesis"
    return [corpus.render(pair, template, tokenizer) for pair in pairs]


def _from_phase1(
    run: runs.Run, phase1: str, base: BaseModel, extension: Extension, *, epoch: int | None = None
) -> Start:
    """The extended model with the rows that a phase-1 variant learned, those of its last epoch by default."""
    path = read_history(run, phase1).file(epoch)
    rows = files.read_tensors(path)
    if len(rows["input_rows"]) != extension.N:
        raise ValueError(
            f"{paths.show_path(path)} holds {len(rows['input_rows'])} rows, the extension has {extension.N} new "
            "tokens: notebook 01 was run again since; run notebook 03 again too"
        )
    origin = {"kind": "phase1", "phase1": phase1, "rows": path.name, "digest": files.file_digest(path)[:16]}
    return from_rows(base, extension, rows["input_rows"], rows["head_rows"], made=extension_name(run), **origin)


def _start_of(run: runs.Run, origin: dict[str, Any], base: BaseModel, extension: Extension | None) -> Start:
    """Open the control, rows of phase 1 (of the last epoch unless told), or another variant after a finished stage."""
    if origin["kind"] == "base":
        none = range(base.vocab_size, base.vocab_size)
        return Start(copy.deepcopy(base.model), base.tokenizer, none, base, _origin(base, kind="base"))
    if origin["kind"] == "branch":
        variant, stage = origin["variant"], origin["stage"]
        loaded = load_variant(run, variant, base, extension, upto=stage)
        digest = files.file_digest(run.require(STAGE, f"{variant}/{stage}/result.json"))[:16]
        made = _origin(base, kind="branch", variant=variant, stage=stage, digest=digest)
        return replace(loaded, model=merged(loaded.model), origin=made)
    if extension is None:
        raise ValueError(f"the rows of {origin['phase1']} are those of new tokens: give the extension of notebook 01")
    epoch = int(Path(origin["rows"]).stem.removeprefix("epoch_")) if "rows" in origin else None
    return _from_phase1(run, origin["phase1"], base, extension, epoch=epoch)


def _stages_upto(folder: Path, upto: str | None) -> list[str]:
    """Finished stages of a variant's folder, in the order in which they ran, as far as they are wanted."""
    done = [key for key in ("a", "b", "c1", "c2") if (folder / key / "result.json").exists()]
    if upto is None:
        return done
    if upto not in done:
        raise runs.MissingStageError(
            f"stage {upto} of variant {folder.name} is not finished (finished: {', '.join(done) or 'none'}); "
            "run notebook 04 with it first"
        )
    return done[: done.index(upto) + 1]


def _origin(base: BaseModel, **more: Any) -> dict[str, Any]:
    dtype = str(base.dtype).removeprefix("torch.")
    return {"model": base.name, "dtype": dtype, "fingerprint": base.fingerprint, **more}
