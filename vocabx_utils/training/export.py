"""A checkpoint that anyone can load: a plain Hugging Face folder, without this package.

Legend: V original vocabulary, N new tokens, R matrix rows, D model width.
"""

from __future__ import annotations

import contextlib
import copy
import glob
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from vocabx_utils import locks, runs
from vocabx_utils.models import (
    DEFAULT_MODEL,
    BaseModel,
    check_finite,
    load_base_model,
    quiet_transformers,
    require_tokenizer,
    with_extra_rows,
)
from vocabx_utils.portable import attention_for_release_4, check_portable, save_model, save_tokenizer
from vocabx_utils.training import card
from vocabx_utils.training.stage_files import save_adapter
from vocabx_utils.training.stages import matrices_of
from vocabx_utils.training.variants import STAGE, Start, from_phase1, load_variant

if TYPE_CHECKING:
    from vocabx_utils.vocabulary.tokens import Extension

FACTS = "vocabx_export.json"

__all__ = [
    "FACTS",
    "ExportError",
    "export_model",
    "export_path",
    "export_variant",
    "pad_rows",
    "probe_changed",
    "write_folder",
]

# Digits, runs of spaces and line ends, scripts, marks and emoji: where pre-tokenizers differ.
_PROBE = (
    "\n \n\n \t\t x  y   z\n    return 3 33 333 3333 1.5..2 \U0001f680\U0001f468‍\U0001f469‍\U0001f467 "
    "naïve Ünïcode каша 数据 ข้อมูล ''' \"\"\" `` ==== -- ... !!?? We'll I'M you'RE\r\n\xa0end"
)


class ExportError(ValueError):
    """The folder exists, or what was written does not equal the model in memory."""


def export_model(
    base: BaseModel,
    extension: Extension,
    input_rows: torch.Tensor,
    head_rows: torch.Tensor,
    out: str | Path,
    **options: Any,
) -> Path:
    """Write the base model with its new rows (phase 1) as a plain Hugging Face folder.

    Args:
        base: the original model.
        extension: new tokens and extended tokenizer.
        input_rows: (N, D).
        head_rows: (N, D).
        out: folder to make.
        **options: of ``write_folder``.

    Returns:
        The folder.
    """
    require_tokenizer(base, extension.original, "the extension")
    model = with_extra_rows(base, input_rows, head_rows, extension.V)
    options.setdefault("reserved_rows_used", max(0, min(base.rows, extension.V + extension.N) - extension.V))
    options.setdefault("base_model", base.name)
    new_ids = range(extension.V, extension.V + extension.N)
    return write_folder(model, extension.extended, out, limit=new_ids.stop, new_ids=new_ids, **options)


def export_variant(
    run: runs.Run,
    variant: str,
    out: str | Path,
    *,
    base: BaseModel | None = None,
    extension: Extension | None = None,
    adapter: Literal["merge", "separate"] = "merge",
    **options: Any,
) -> Path:
    """Write a fine-tuned variant as a plain Hugging Face folder.

    Args:
        run: the run.
        variant: a finished variant of notebook 04.
        out: folder to make.
        base: the original model; loaded by the name in the variant's key when left out.
        extension: of notebook 01; loaded from the run when left out.
        adapter: "merge" adds LoRA into the weights; "separate" writes the base with its rows and ``adapter/`` in it.
        **options: of ``write_folder``.

    Returns:
        The folder.

    Raises:
        runs.MissingStageError: the variant is not finished.
        ExportError: the folder exists.
    """
    folder = run.require(STAGE, f"{variant}/provenance.json").parent
    provenance = runs.read_provenance(folder)
    key = provenance["key"]
    _refuse_existing(Path(out))
    if base is None:
        base = load_base_model(key["origin"]["model"], dtype=key["origin"]["dtype"])
    if extension is None and key["new_ids"][1] > key["new_ids"][0]:
        from vocabx_utils.vocabulary.tokens import load_extension

        extension = load_extension(run.require("01", "extension"))
    start = load_variant(run, variant, base, extension)
    options.setdefault("card_text", card.write_card(folder, provenance))
    options.setdefault("reserved_rows_used", max(0, min(base.rows, start.limit) - base.vocab_size))
    options.setdefault("base_model", base.name)
    return _export_start(start, Path(out), adapter, base, options)


def export_path(folder: Path, out: Path, *, model: str = DEFAULT_MODEL, **options: Any) -> Mapping[str, Any]:
    """Export a variant by its folder, of notebook 04 or of notebook 03.

    Args:
        folder: ``<run>/04_fine_tuning/<variant>`` or ``<run>/03_phase1_training/<variant>``.
        out: folder to make.
        model: source of the base model, for variants of notebook 03 (those of notebook 04 know theirs).
        **options: of ``export_variant`` and ``write_folder``.

    Returns:
        What was noted about the export.

    Raises:
        ValueError: the path is not a variant of one of the two notebooks, or ``model`` is not its base.
        runs.MissingStageError: the variant is not finished.
    """
    folder = Path(folder).resolve()
    run = runs.Run(folder.parents[1].name, folder.parents[1])
    stage = folder.parent.name[:2]
    if stage == "04":
        return read_facts(export_variant(run, folder.name, out, **options))
    if stage != "03":
        raise ValueError(
            f"{folder} is not a variant: expected RUN/04_fine_tuning/VARIANT or RUN/03_phase1_training/VARIANT"
        )
    from vocabx_utils.vocabulary.tokens import load_extension

    _refuse_existing(Path(out))
    options.pop("adapter", None)
    key = runs.read_provenance(folder)["key"]
    base = load_base_model(model, dtype=key["dtype"].removeprefix("torch."))
    if base.fingerprint != key["model"]:
        raise ValueError(
            f"{folder.name} was trained on weights {key['model']}, {model} has {base.fingerprint}: name the right base "
            "with --model"
        )
    extension = load_extension(run.require("01", "extension"))
    start = from_phase1(run, folder.name, base, extension)
    options.setdefault("base_model", base.name)
    return read_facts(_export_start(start, Path(out), "merge", base, options))


def write_folder(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    out: str | Path,
    *,
    limit: int,
    new_ids: range = range(0),
    pad_to: int | None = None,
    shard_size: str = "2GB",
    base_model: str = "",
    card_text: str = "",
    reserved_rows_used: int = 0,
    original: PreTrainedTokenizerFast | None = None,
    probe: str = _PROBE,
    verify: bool = True,
    parts: Mapping[str, Path] | None = None,
) -> Path:
    """Write any plain causal model with its tokenizer: the one place where a checkpoint leaves the house.

    Written beside ``out`` and renamed at the end, so that a folder named ``out`` is always whole.

    Args:
        model: plain untied model; left as it is.
        tokenizer: its tokenizer; a chat template is taken along.
        out: folder to make; must not exist, or be empty.
        limit: V + N; rows from here on are padding.
        new_ids: ids of the new tokens.
        pad_to: round the rows up to a multiple of this (64 suits GPUs); all padding rows are then overwritten with
            the mean head row, whose logit can never exceed the largest one.
        shard_size: largest safetensors file.
        base_model: for the card.
        card_text: the model card; a short one is written when empty.
        reserved_rows_used: padding rows of the base that new tokens took over; reported.
        original: tokenizer before extension, to compare on ``probe``; None skips that.
        probe: text whose ids llama.cpp's converter hashes to recognise a pre-tokenizer.
        verify: load the folder again and compare logits and ids (memory of two models).
        parts: further folders by the name that they get inside ``out``; they are moved there.

    Returns:
        The folder.

    Raises:
        ExportError: ``out`` exists, ids outnumber rows, or the folder's logits or ids differ from those in memory.
        SpaceError: the model would not fit on the disk; nothing was written.
        PortableError: other releases of transformers would compute something else from the folder.
    """
    out = Path(out)
    _refuse_existing(out)
    check_portable(model.config)
    check_finite(model)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    runs.require_space(out, size, "the exported model", "make room, or give a folder on another disk")
    rows = len(matrices_of(model)[1])
    if limit > rows:
        raise ExportError(
            f"the tokenizer needs {limit} rows, the model has {rows}: extend it with models.with_extra_rows first"
        )
    plain = pad_rows(model, limit, pad_to) if pad_to else _with_config(model, rows)
    padding = list(range(limit, plain.config.vocab_size))
    facts = {
        "vocabulary": limit,
        "first_new_id": new_ids.start if len(new_ids) else None,
        "new_tokens": len(new_ids),
        "rows": plain.config.vocab_size,
        "padding_rows": len(padding),
        "reserved_rows_used": reserved_rows_used,
        "tied": False,
        "base_model": base_model,
        "licence": card.licence_of(base_model),
        "transformers_4_attention": attention_for_release_4(model.config),
        "probe_changed": None if original is None else probe_changed(original, tokenizer, probe),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    with locks.writing(out), _scratch_beside(out) as scratch:
        _write(plain, tokenizer, scratch, padding, shard_size)
        runs.write_json(scratch / FACTS, facts)
        runs.write_text(scratch / "README.md", card_text or card.short_card(facts))
        if verify:
            _verify(model, scratch, limit)
            _verify_tokenizer(tokenizer, scratch, [probe, *(str(tokenizer.decode([i])) for i in new_ids)])
        for name, folder in (parts or {}).items():
            shutil.move(folder, scratch / name)
        if out.exists():
            out.rmdir()
        scratch.chmod(0o755)
        scratch.rename(out)
    return out


@contextlib.contextmanager
def _scratch_beside(out: Path) -> Iterator[Path]:
    """A hidden folder beside ``out`` to write into; what killed exports to ``out`` left there is removed.

    The caller holds the lock of ``out``, so nobody else works in such a folder.
    """
    for left in out.parent.glob(f".{glob.escape(out.name)}-????????"):
        shutil.rmtree(left, ignore_errors=True)
    scratch = Path(tempfile.mkdtemp(dir=out.parent, prefix=f".{out.name}-"))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@torch.no_grad()
def pad_rows(model: PreTrainedModel, limit: int, multiple: int) -> PreTrainedModel:
    """Round the rows of both matrices up to a multiple, with padding rows that never win.

    The mean of the real head rows gives, for any hidden state, the mean of the real logits: at most their largest.
    Engines that know nothing of padding can therefore never pick such a row greedily; those that read the
    generation configuration never pick it at all.

    Args:
        model: plain untied model; left as it is, its blocks are shared by the copy.
        limit: V + N.
        multiple: 64, for example.

    Returns:
        A model that shares everything but the two matrices.

    Raises:
        ValueError: ``multiple`` is under 1.
    """
    if multiple < 1:
        raise ValueError(f"pad_to is {multiple}; expected 1 or more, such as 64")
    embedding, head = matrices_of(model)
    rows = -(-max(len(head), limit) // multiple) * multiple
    padded = _with_config(model, rows)
    matrices = []
    for matrix in (embedding, head):
        new = matrix.new_empty(rows, matrix.shape[1])
        new[:limit] = matrix[:limit]
        new[limit:] = matrix[:limit].float().mean(0).to(matrix.dtype)
        matrices.append(nn.Parameter(new, requires_grad=False))
    padded.set_input_embeddings(nn.Embedding(rows, embedding.shape[1], _weight=matrices[0]))
    output = nn.Linear(head.shape[1], rows, bias=False, device="meta")
    output.weight = matrices[1]
    padded.set_output_embeddings(output)
    return padded


def probe_changed(original: PreTrainedTokenizerFast, extended: PreTrainedTokenizerFast, probe: str = _PROBE) -> bool:
    """Tell whether a probe text gets other ids than before the extension.

    llama.cpp's converter recognises a pre-tokenizer by a hash of the ids of its own probe text; where new merges
    change them, it says "BPE pre-tokenizer was not recognized". Give its text as ``probe`` to know for sure.
    """
    ids = [t(probe, add_special_tokens=False)["input_ids"] for t in (original, extended)]
    return bool(ids[0] != ids[1])


def _export_start(start: Start, out: Path, adapter: str, base: BaseModel, options: dict[str, Any]) -> Path:
    common: dict[str, Any] = {"limit": start.limit, "new_ids": start.new_ids, "original": base.tokenizer}
    model: Any = start.model
    if not hasattr(model, "peft_config"):
        return write_folder(model, start.tokenizer, out, **common, **options)
    if adapter == "merge":
        return write_folder(model.merge_and_unload(), start.tokenizer, out, **common, **options)
    with tempfile.TemporaryDirectory(prefix="vocabx-") as scratch:
        # in a folder of its own: transformers would load an adapter that lies beside the weights by itself
        parts = {"adapter": Path(scratch) / "adapter"}
        save_adapter(model, parts["adapter"], new_ids=start.new_ids, base=str(out))
        return write_folder(model.unload(), start.tokenizer, out, parts=parts, **common, **options)


def _with_config(model: PreTrainedModel, rows: int) -> PreTrainedModel:
    """A shallow copy with a configuration of its own, so that the caller's model stays as it is."""
    plain = copy.copy(model)
    plain._modules = dict(model._modules)
    base = model.base_model_prefix
    if base in plain._modules and isinstance(plain._modules[base], nn.Module):
        inner = copy.copy(plain._modules[base])
        inner._modules = dict(inner._modules)  # type: ignore[union-attr]
        plain._modules[base] = inner
    plain.config = copy.deepcopy(model.config)
    plain.generation_config = copy.deepcopy(model.generation_config)
    plain.config.vocab_size = rows
    plain.config.tie_word_embeddings = False
    if hasattr(plain.config, "quantization_config"):
        del plain.config.quantization_config
    return plain


def _write(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    padding: list[int],
    shard_size: str,
) -> None:
    if model.generation_config is not None and padding:
        held = model.generation_config.suppress_tokens or []
        model.generation_config.suppress_tokens = sorted({*held, *padding})
    with quiet_transformers():
        save_model(model, folder, max_shard_size=shard_size)
        save_tokenizer(tokenizer, folder)


@torch.no_grad()
def _verify(model: PreTrainedModel, folder: Path, limit: int) -> None:
    """Load what was written as a stranger would, and compare logits on a few ids."""
    with quiet_transformers():
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=model.dtype)
        loaded = loaded.to(model.device).eval()
    ids = torch.arange(0, limit, max(1, limit // 48), device=model.device)[None]
    here, there = (m(input_ids=ids, use_cache=False).logits[..., :limit].float() for m in (model.eval(), loaded))
    error = float((here - there).abs().max() / here.abs().max().clamp_min(1.0))
    allowed = 1e-5 if model.dtype == torch.float32 else 1e-2
    if not error <= allowed:
        raise ExportError(
            f"the written folder gives logits that differ by {error:.2g} (allowed {allowed:g}); nothing was exported. "
            "Is the disk damaged, or does this architecture tie matrices that the configuration calls untied?"
        )


def _verify_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path, texts: list[str]) -> None:
    """Load the tokenizer as a stranger would; for some model types transformers takes a class of its own instead."""
    loaded = AutoTokenizer.from_pretrained(folder)
    for text in texts:
        ids, there = (t(text, verbose=False)["input_ids"] for t in (tokenizer, loaded))
        if there != ids or loaded.decode(ids) != tokenizer.decode(ids):
            raise ExportError(
                f"{text!r} has ids {ids[:8]} here and {there[:8]} (read back as {loaded.decode(ids)!r}) in the written "
                f"folder, which AutoTokenizer opens as {type(loaded).__name__}; nothing was exported. Leave that token "
                "out, or use strategy 'merges'."
            )


def _refuse_existing(out: Path) -> None:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out} exists and is not empty; choose another folder or remove it")


def read_facts(folder: str | Path) -> Mapping[str, Any]:
    """Read what ``write_folder`` noted about an exported folder (ids, rows, padding).

    Raises:
        ExportError: the folder was not exported by this package.
    """
    path = Path(folder) / FACTS
    if not path.exists():
        raise ExportError(f"{folder} has no {FACTS}: it was not written by `vocabx export`")
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts
