"""Folders that other releases of transformers load too, and compute the same from.

Release 5 renamed settings that release 4 reads: rotary embeddings moved into `rope_parameters`, `torch_dtype` became
`dtype`, the class of a fast tokenizer and the list of further special tokens have other names. A name that a release
does not know is passed over without a word and its default is taken, so a folder may load and compute something
else. Here every such setting is written under both names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocabx_utils.files import os_errors, read_json, write_json

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "FAMILIES",
    "PortableError",
    "attention_for_release_4",
    "check_portable",
    "portable_config",
    "save_model",
    "save_tokenizer",
]

# Model types of which `make test-matrix` loads an exported folder in both releases and compares what it computes.
FAMILIES = frozenset(
    {
        *("llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2", "gemma3_text", "phi3", "gpt2", "gpt_neox", "opt"),
        *("falcon", "bloom", "mpt", "cohere", "cohere2", "granite", "stablelm", "starcoder2", "olmo2", "smollm3"),
    }
)
# Kinds of scaled rotary embeddings that both releases compute alike.
SCALINGS = frozenset({"default", "linear", "yarn", "longrope", "llama3"})
_FULL, _SLIDING = "full_attention", "sliding_attention"
# Settings by model type that release 4 heeds in its plain attention only, and the value that asks for nothing.
_PLAIN_ATTENTION: dict[str, dict[str, Any]] = {
    "gemma2": {"attn_logit_softcapping": None},
    "gpt2": {"scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True},
}


class PortableError(ValueError):
    """A model cannot be written so that other releases of transformers compute the same from it."""


def check_portable(config: PreTrainedConfig) -> None:
    """Refuse models whose folder would not compute the same elsewhere, or of which nobody has tried it.

    Args:
        config: of the model.

    Raises:
        PortableError: names the family or the setting, and what to do.
    """
    kind = config.model_type
    if kind not in FAMILIES:
        raise PortableError(
            f"model type {kind!r}: that a folder of it computes the same under transformers 4 and 5 was not tried. "
            f"Tried: {', '.join(sorted(FAMILIES))}. Write it with `model.save_pretrained` for this release alone."
        )
    written = config.to_dict()
    portable = portable_config(written)
    old = {name: value for name, value in portable.items() if name not in ("rope_parameters", "dtype")}
    again = type(config)(**old).to_dict()
    if lost := sorted(name for name in ("rope_parameters", "dtype") if again.get(name) != written.get(name)):
        raise PortableError(
            f"model type {kind!r}: {lost[0]} = {written[lost[0]]} has no spelling that transformers 4 reads alike (it "
            f"would read {again.get(lost[0])}). Write the model with `model.save_pretrained` for this release alone."
        )


def attention_for_release_4(config: PreTrainedConfig) -> str | None:
    """Name the attention that release 4 has to be told to take (`attn_implementation`), or None where any will do.

    It cannot be written into a folder: release 4 overwrites what `config.json` says of it.
    """
    heeded = _PLAIN_ATTENTION.get(config.model_type, {})
    return "eager" if any(getattr(config, name) != value for name, value in heeded.items()) else None


def portable_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Spell the settings of a `config.json` so that releases 4 and 5 read them alike.

    Args:
        config: what release 5 writes.

    Returns:
        The same with the older names beside the newer ones.

    Raises:
        PortableError: the rotary embeddings differ in a way that release 4 has no words for.
    """
    portable = dict(config)
    if portable.get("dtype") is not None:
        portable["torch_dtype"] = portable["dtype"]
    kind = str(portable.get("model_type"))
    rope = portable.get("rope_parameters")
    if not rope:
        return portable
    if _FULL in rope or _SLIDING in rope:
        whole = rope.get(_FULL) or {}
        if kind == "gemma3_text":
            portable["rope_local_base_freq"] = (rope.get(_SLIDING) or {}).get("rope_theta", 10_000.0)
            _check_plain(kind, rope.get(_SLIDING) or {})
        elif len({tuple(sorted(each.items())) for each in rope.values() if each}) > 1:
            raise PortableError(f"model type {kind!r}: rotary embeddings that differ by kind of layer: {rope}")
    else:
        whole = rope
    return portable | _older_rope(kind, whole)


def _check_plain(kind: str, rope: Mapping[str, Any]) -> None:
    if rope.get("rope_type", "default") != "default":
        raise PortableError(f"model type {kind!r}: scaled rotary embeddings in sliding layers: {rope}")


def _older_rope(kind: str, rope: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings as release 4 reads them: base and share of the head by themselves, scaling in `rope_scaling`."""
    scaling = dict(rope)
    theta, share = scaling.pop("rope_theta", None), scaling.pop("partial_rotary_factor", None)
    scaling_type = scaling.get("rope_type", "default")
    if scaling_type not in SCALINGS:
        raise PortableError(
            f"model type {kind!r}: rope_type {scaling_type!r}; both releases know {', '.join(sorted(SCALINGS))}."
        )
    if kind == "phi3" and scaling_type == "longrope":  # release 4 wants these three and no further one
        scaling = {"type": scaling_type, **{key: scaling[key] for key in ("short_factor", "long_factor")}}
    older: dict[str, Any] = {} if scaling_type == "default" else {"rope_scaling": scaling}
    if theta is not None:
        older["rope_theta"] = theta
    if share is not None:
        older["partial_rotary_factor"] = share
    if kind == "gpt_neox":
        older |= {"rotary_emb_base": theta, "rotary_pct": share}
    return older


def save_model(model: PreTrainedModel, folder: Path, **options: Any) -> None:
    """Save weights, configuration and generation settings.

    Release 5 renames some weights when it loads them and gives them their old names when it saves them, but only the
    names that it saw: a tied head was in no file, and untied it would be written under a name that release 4 does not
    know. Without the record of what was seen, all names are turned back.

    Generation settings are written as they are: `save_pretrained` refuses some that it has loaded, such as a
    temperature without `do_sample`, once a padding row was added to them.

    Args:
        model: any causal model.
        folder: where to.
        **options: of `save_pretrained`.
    """
    from transformers import GenerationConfig

    model.__dict__.pop("_weight_conversions", None)
    settings = model.generation_config
    model.generation_config = settings and GenerationConfig()
    try:
        with os_errors(folder):
            model.save_pretrained(folder, **options)
    finally:
        model.generation_config = settings
    if settings is not None:
        settings.to_json_file(folder / "generation_config.json")
    write_json(folder / "config.json", portable_config(read_json(folder / "config.json")))


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Save a tokenizer with a fast backend under the class that every release has.

    Its `tokenizer.json` says all, so the class of a single model, which would build it anew from parts, is not named.

    Args:
        tokenizer: with a fast backend.
        folder: where to.

    Raises:
        OSError: the disk is full, for example.
    """
    with os_errors(folder):
        tokenizer.save_pretrained(folder)
    path = Path(folder) / "tokenizer_config.json"
    settings = read_json(path)
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings.pop("backend", None)
    if isinstance(further := settings.get("extra_special_tokens"), list):  # release 4 expects names under this key
        del settings["extra_special_tokens"]
        settings["additional_special_tokens"] = further
    write_json(path, settings)
