"""The model card of an export, written from what the run folder recorded and from nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vocabx_utils import files
from vocabx_utils.models import PACKAGED

__all__ = ["licence_of", "short_card", "write_card"]

_HYPERPARAMETERS = {
    "a": ("a_epochs", "a_rate", "a_warmup"),
    "b": ("b_epochs", "b_rate", "b_warmup", "lora_rank", "lora_alpha", "lora_dropout", "rows_in_b"),
    "c1": ("c_epochs", "c_rate", "c_warmup"),
    "c2": ("c_epochs", "c_rate", "c_warmup", "c_refreeze"),
}
_SHARED = ("loss_on", "max_length", "tokens_per_step", "weight_decay", "clip_norm", "seed")
_TITLES = {
    "a": "whole input embedding and head",
    "b": "LoRA on all linear layers of all blocks",
    "c1": "first half of the blocks",
    "c2": "second half of the blocks",
}


def short_card(facts: Mapping[str, Any]) -> str:
    """Card of a model that was exported outside a run: what the matrices hold."""
    front = _front(str(facts["base_model"]), facts["licence"])
    title = ["# Model with an extended vocabulary", ""]
    return "\n".join([*front, *title, *_rows(facts), *_attention(facts["transformers_4_attention"]), *_licence(facts)])


def write_card(folder: Path, provenance: Mapping[str, Any]) -> str:
    """Write the card of a fine-tuned variant.

    Args:
        folder: the variant's folder.
        provenance: what ``runs.finish`` wrote there.

    Returns:
        Markdown with a YAML header.
    """
    key, origin = provenance["key"], provenance["key"]["origin"]
    new = key["new_ids"][1] - key["new_ids"][0]
    lines = [
        *_front(origin["model"], licence_of(origin["model"])),
        f"# {origin['model']} · {folder.name}",
        "",
        f"Base model `{origin['model']}` (weights {origin['fingerprint']}), "
        + (
            f"extended by {new} tokens (ids {key['new_ids'][0]} to {key['new_ids'][1] - 1})."
            if new
            else "not extended."
        ),
        f"Start: {_start(origin)}. Input embedding and head are two matrices (untied), also where the base ties them.",
        "",
        "## Training",
        "",
        *_stages(folder, key, provenance.get("stages", [])),
        "",
        "Shared settings: " + ", ".join(f"{name} {key[name]}" for name in _SHARED) + f", dtype {origin['dtype']}.",
        "Optimiser: AdamW, new at each stage.",
        "",
        *_forgetting(folder, provenance.get("stages", [])),
        "## Made with",
        "",
        f"vocabx revision {provenance['git']}, "
        + ", ".join(f"{name} {version}" for name, version in provenance["versions"].items())
        + f"; finished {provenance['finished']}.",
        "",
        *_licence({"base_model": origin["model"], "licence": licence_of(origin["model"])}),
    ]
    return "\n".join(lines)


def licence_of(base: str) -> str | None:
    """Licence of a base model as its folder or our list of packaged models names it; None where neither does."""
    if base in PACKAGED:
        return PACKAGED[base].licence
    folder = Path(base)
    if (
        base
        and (folder / "source.json").is_file()
        and (named := files.read_json(folder / "source.json").get("licence"))
    ):
        return str(named)
    if base and (folder / "README.md").is_file():
        text = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
        if header := re.match(r"---\n(.*?)\n---", text, re.DOTALL):
            named = re.search(r"^license: *[\"']?([^\"'\n]+)", header[1], re.MULTILINE)
            return named[1].strip() if named else None
    return None


def _front(base: str, licence: str | None) -> list[str]:
    # a local path says nothing to others, and hubs refuse it as the name of a base
    named = [f"base_model: {base}"] if base.count("/") == 1 and not base.startswith((".", "/")) else []
    named += [f"license: {licence.lower()}"] if licence else []
    return ["---", "library_name: transformers", "pipeline_tag: text-generation", *named, "---", ""]


def _licence(facts: Mapping[str, Any]) -> list[str]:
    base = f"`{facts['base_model']}`" if facts["base_model"] else "its base model"
    named = f", {facts['licence']}," if facts["licence"] else ""
    return [f"These weights are derived from {base}; the licence of the base model{named} applies to them.", ""]


def _attention(attention: str | None) -> list[str]:
    if attention is None:
        return []
    return [f"Under transformers 4, load it with `attn_implementation=\"{attention}\"`: its default leaves out a "
            "setting of this model.", ""]  # fmt: skip


def _rows(facts: Mapping[str, Any]) -> list[str]:
    return [
        f"Base model `{facts['base_model']}` with {facts['new_tokens']} new tokens; {facts['vocabulary']} ids in use, "
        f"{facts['rows']} matrix rows, {facts['padding_rows']} of them padding "
        f"({facts['reserved_rows_used']} reserved rows of the base were taken over). "
        "Input embedding and head are untied.",
        "",
    ]


def _start(origin: Mapping[str, Any]) -> str:
    if origin["kind"] == "phase1":
        return f"rows of phase 1, variant {origin['phase1']}, {origin['rows'].removesuffix('.safetensors')}"
    if origin["kind"] == "branch":
        return f"stage {origin['stage']} of variant {origin['variant']}"
    return "the base model"


def _stages(folder: Path, key: Mapping[str, Any], stages: list[str]) -> list[str]:
    lines = [
        "| stage | what moved | settings | tokens | validation loss (nats/token) |",
        "| --- | --- | --- | --- | --- |",
    ]
    for stage in stages:
        result = files.read_json(folder / stage / "result.json")
        settings = ", ".join(f"{name} {key[name]}" for name in _HYPERPARAMETERS[stage])
        lines.append(
            f"| {stage} | {_TITLES[stage]} | {settings} | {result['tokens']} | {result['validation_loss']:.4f} |"
        )
    return lines


def _forgetting(folder: Path, stages: list[str]) -> list[str]:
    places = [folder / "start" / "observed.json", folder / stages[-1] / "observed.json"] if stages else []
    if not places or not all(place.exists() for place in places):
        return []
    before, after = (files.read_json(place).get("bits_per_byte", {}) for place in places)
    lines = ["## Bits per byte", "", "| texts | before | after |", "| --- | --- | --- |"]
    lines += [f"| {name} | {before[name]:.4f} | {after[name]:.4f} |" for name in before if name in after]
    return [*lines, ""]
