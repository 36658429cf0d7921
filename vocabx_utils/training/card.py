"""The model card of an export, written from what the run folder recorded and from nothing else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2

from vocabx_utils import files, runs
from vocabx_utils.fetch import PACKAGED

_TRAINED = {
    "a": ("whole input embedding and head", ("a_epochs", "a_rate", "a_warmup")),
    "b": (
        "LoRA on all linear layers of all blocks",
        ("b_epochs", "b_rate", "b_warmup", "lora_rank", "lora_alpha", "lora_dropout", "rows_in_b"),
    ),
    "c1": ("first half of the blocks", ("c_epochs", "c_rate", "c_warmup")),
    "c2": ("second half of the blocks", ("c_epochs", "c_rate", "c_warmup", "c_refreeze")),
}
_SHARED = ("loss_on", "max_length", "tokens_per_step", "weight_decay", "clip_norm", "seed")


def write_card(facts: Mapping[str, Any], folder: Path | None = None) -> str:
    """Fill in `card.md.jinja`: Markdown with a YAML header.

    Args:
        facts: what was noted about the exported folder.
        folder: of the fine-tuned variant, whose training is told; a card without it tells what the matrices hold.
    """
    base, told = str(facts["base_model"]), {}
    if folder is not None:
        provenance = runs.read_provenance(folder)
        key = provenance["key"]
        stages, base = provenance.get("stages", []), key["origin"]["model"]
        told = {
            "variant": folder.name,
            "provenance": provenance,
            "key": key,
            "origin": key["origin"],
            "new": key["new_ids"][1] - key["new_ids"][0],
            "trained": {stage: _TRAINED[stage] for stage in stages},
            "results": {stage: files.read_json(folder / stage / "result.json") for stage in stages},
            "bits": _bits_per_byte(folder, stages),
            "shared": _SHARED,
            "spell": lambda names: ", ".join(f"{name} {key[name]}" for name in names),
        }
    # a local path says nothing to others, and hubs refuse it as the name of a base
    on_a_hub = base.count("/") == 1 and not base.startswith((".", "/"))
    source = Path(__file__).with_name("card.md.jinja").read_text(encoding="utf-8")
    jinja = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined)
    template = jinja.from_string(source)
    return template.render({"key": None} | told, base=base, licence=licence_of(base), on_a_hub=on_a_hub, facts=facts)


def licence_of(base: str) -> str | None:
    """Licence of a base model as its folder or our list of packaged models names it; None where neither does."""
    if base in PACKAGED:
        return PACKAGED[base].licence
    folder = Path(base)
    source = folder / "source.json"
    if base and source.is_file() and (named := files.read_json(source).get("licence")):
        return str(named)
    if base and (folder / "README.md").is_file():
        text = (folder / "README.md").read_text(encoding="utf-8", errors="replace")
        if header := re.match(r"---\n(.*?)\n---", text, re.DOTALL):
            named = re.search(r"^license: *[\"']?([^\"'\n]+)", header[1], re.MULTILINE)
            return named[1].strip() if named else None
    return None


def _bits_per_byte(folder: Path, stages: list[str]) -> dict[str, tuple[float, float]]:
    """Bits per byte by kind of text, before and after; nothing where they were not measured."""
    places = [folder / "start" / "observed.json", folder / stages[-1] / "observed.json"] if stages else []
    if not places or not all(place.exists() for place in places):
        return {}
    before, after = (files.read_json(place).get("bits_per_byte", {}) for place in places)
    return {name: (before[name], after[name]) for name in before if name in after}
