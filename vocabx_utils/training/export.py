"""A checkpoint that anyone can load: a plain Hugging Face folder, without this package.

Legend: V original vocabulary, N new tokens, R matrix rows, D model width.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

from vocabx_utils import files, folders
from vocabx_utils.models import check_finite, quiet_transformers
from vocabx_utils.portable import attention_for_release_4, check_portable, save_model, save_tokenizer
from vocabx_utils.training.card import licence_of, write_card
from vocabx_utils.training.stage_files import merged, save_adapter
from vocabx_utils.training.stages import matrices_of
from vocabx_utils.training.starts import Start, require_start

_FACTS = "vocabx_export.json"
# Digits, runs of spaces and line ends, scripts, marks and emoji: where pre-tokenizers differ.
_PROBE = (
    "\n \n\n \t\t x  y   z\n    return 3 33 333 3333 1.5..2 \U0001f680\U0001f468‍\U0001f469‍\U0001f467 "
    "naïve Ünïcode каша 数据 ข้อมูล ''' \"\"\" `` ==== -- ... !!?? We'll I'M you'RE\r\n\xa0end"
)


class ExportError(ValueError):
    """A setting is wrong, the folder exists, or what was written does not equal the model in memory."""


def export_model(
    variant: Start,
    out: str | Path,
    *,
    adapter: Literal["merge", "separate"] = "merge",
    pad_to: int | None = None,
    shard_size: str = "2GB",
    probe: str = _PROBE,
    verify: bool = True,
) -> Mapping[str, Any]:
    """Write a model with its tokenizer as a plain Hugging Face folder.

    Every checkpoint leaves the house here: written beside `out` and renamed at the end, so `out` is whole or absent.

    Args:
        variant: of `learn_rows` or `fine_tune`, of `starts.load_variant` or `starts.load_folder`, or made with
            `starts.from_rows`; its model is left as it is, apart from an adapter, which is merged or taken off.
        out: must not exist, or be empty.
        adapter: `merge` adds LoRA into the weights; `separate` writes the base with its rows, and `adapter/` in it.
        pad_to: round the rows up to a multiple of this (64 suits GPUs); all padding rows are then overwritten with
            the mean head row, whose logit can never exceed the largest one.
        probe: text whose ids llama.cpp's converter hashes to recognise a pre-tokenizer.
        verify: load the folder again and compare logits and ids (memory of two models).

    Returns:
        What was noted about the folder, see `read_facts`.

    Raises:
        ExportError: a setting is wrong or `out` exists, ids outnumber rows, or the folder's logits or ids differ from
            those in memory.
        SpaceError: the model would not fit on the disk; nothing was written.
        ValueError: `variant` is a plain model.
        PortableError: other releases of transformers would compute something else from the folder.

    Example:
        >>> from vocabx_utils import learn_rows
        >>> learned = learn_rows(model, tokenizer, [" groupby", " ravel"], texts)
        >>> export_model(learned, scratch / "mine")["new_tokens"]
        2
        >>> AutoTokenizer.from_pretrained(scratch / "mine").tokenize("x groupby")
        ['x', 'Ġgroupby']
    """
    out = Path(out)
    require_start(variant)
    if adapter not in ("merge", "separate"):
        raise ExportError(f"adapter is {adapter!r}; expected 'merge' or 'separate'")
    if pad_to is not None and pad_to < 1:
        raise ExportError(f"pad_to is {pad_to}; expected 1 or more, such as 64, or None for no padding")
    check_shard_size(shard_size)
    refuse_existing(out)
    check_portable(variant.model.config)
    with folders.atomic_folder(out) as scratch:
        model: Any = variant.model
        if hasattr(model, "peft_config") and adapter == "separate":
            # in a folder of its own: transformers would load an adapter that lies beside the weights by itself
            save_adapter(model, scratch / "adapter", new_ids=variant.new_ids, base=str(out))
            model = model.unload()
        model = merged(model)
        _check(model, variant.limit, out)
        rows = len(matrices_of(model)[1])
        plain = _pad_rows(model, variant.limit, pad_to) if pad_to else _with_config(model, rows)
        facts = _describe(variant, plain, probe)
        _write(plain, variant.tokenizer, scratch, variant.limit, shard_size)
        files.write_json(scratch / _FACTS, facts)
        files.write_text(scratch / "README.md", write_card(facts, variant.folder))
        if verify:
            _verify(model, scratch, variant.limit)
            new = (str(variant.tokenizer.decode([i])) for i in variant.new_ids)
            _verify_tokenizer(variant.tokenizer, scratch, [probe, *new])
    return facts


def read_facts(folder: str | Path) -> Mapping[str, Any]:
    """Read what `export_model` noted about a folder (ids, rows, padding); ExportError where it did not write it."""
    path = Path(folder) / _FACTS
    if not path.exists():
        raise ExportError(f"{folder} has no {_FACTS}: it was not written by `vocabx export`")
    facts: dict[str, Any] = files.read_json(path)
    return facts


def check_shard_size(size: str) -> None:
    """Raise an `ExportError` for a size that `save_pretrained` would not read, before a model is loaded for it."""
    if not re.fullmatch(r"[0-9.]*[1-9][0-9.]* *[KMGT]B", str(size), re.IGNORECASE):
        raise ExportError(f"shard_size is {size!r}; expected a number with KB, MB, GB or TB, such as 2GB")


def refuse_existing(out: Path) -> None:
    """Raise an `ExportError` for a folder with something in it, before a model is loaded for it."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportError(f"{out} exists and is not empty; choose another folder or remove it")


def _check(model: PreTrainedModel, limit: int, out: Path) -> None:
    """Refuse what could not be written whole."""
    check_finite(model)
    size = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    folders.require_space(out, size, "the exported model", "make room, or give a folder on another disk")
    rows = len(matrices_of(model)[1])
    if limit > rows:
        raise ExportError(
            f"the tokenizer needs {limit} rows, the model has {rows}: extend it with models.with_extra_rows first"
        )


def _describe(variant: Start, plain: PreTrainedModel, probe: str) -> dict[str, Any]:
    """What others may want to know of the folder."""
    base, new_ids, rows = variant.base, variant.new_ids, plain.config.vocab_size
    return {
        "vocabulary": variant.limit,
        "first_new_id": new_ids.start if len(new_ids) else None,
        "new_tokens": len(new_ids),
        "rows": rows,
        "padding_rows": rows - variant.limit,
        # padding rows of the base that new tokens took over
        "reserved_rows_used": max(0, min(base.rows, variant.limit) - base.vocab_size) if base else 0,
        "tied": False,
        "base_model": base.name if base else "",
        "licence": licence_of(base.name) if base else None,
        "transformers_4_attention": attention_for_release_4(plain.config),
        "probe_changed": _probe_changed(base.tokenizer, variant.tokenizer, probe) if base else None,
    }


@torch.no_grad()
def _pad_rows(model: PreTrainedModel, limit: int, multiple: int) -> PreTrainedModel:
    """Round the rows of both matrices up to a multiple in a model that shares everything else with the given one.

    The mean of the real head rows gives, for any hidden state, the mean of the real logits: at most their largest.
    Engines that know nothing of padding can therefore never pick such a row greedily; those that read the
    generation configuration never pick it at all.
    """
    embedding, head = matrices_of(model)
    rows = -(-max(len(head), limit) // multiple) * multiple
    padded = _with_config(model, rows)
    matrices = []
    for matrix in (embedding, head):
        new = matrix.new_empty(rows, matrix.shape[1])  # (R, D)
        new[:limit] = matrix[:limit]
        new[limit:] = matrix[:limit].float().mean(0).to(matrix.dtype)
        matrices.append(nn.Parameter(new, requires_grad=False))
    padded.set_input_embeddings(nn.Embedding(rows, embedding.shape[1], _weight=matrices[0]))
    output = nn.Linear(head.shape[1], rows, bias=False, device="meta")
    output.weight = matrices[1]
    padded.set_output_embeddings(output)
    return padded


def _probe_changed(original: PreTrainedTokenizerFast, extended: PreTrainedTokenizerFast, probe: str = _PROBE) -> bool:
    """Tell whether a probe gets other ids than before: llama.cpp's converter then knows the pre-tokenizer no more."""
    ids = [t(probe, add_special_tokens=False)["input_ids"] for t in (original, extended)]
    return bool(ids[0] != ids[1])


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
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path, limit: int, shard_size: str
) -> None:
    padding = range(limit, model.config.vocab_size)
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
