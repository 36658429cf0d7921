"""What the variants of the series are called: how a name is put together, and how a table or legend spells it."""

from __future__ import annotations

from typing import Literal, get_args

InputMethod = Literal["random", "mean", "first", "last", "align", "focus"]
"""How input rows begin, the first word of a variant's name (see `vocabulary.initialization`)."""
INPUT_METHODS: tuple[str, ...] = get_args(InputMethod)
TUNED = "tuned_"
"""Stands before the name of a variant of notebook 04 where notebook 05 means it."""

_ENDINGS = {"_no_a": "without stage a", "_full": "full fine-tuning"}
_OBJECTIVES = {"ce": "CE", "kl": "KL", "hidden": "hidden MSE"}


def split_variant(name: str) -> tuple[str, list[str]]:
    """Split a name into that of its phase-1 variant, and what later stages did to it, in words.

    Example:
        >>> split_variant("tuned_mean_ce_full"), split_variant("tuned_mean_ce"), split_variant("mean_ce")
        (('mean_ce', ['full fine-tuning']), ('mean_ce', ['fine-tuned']), ('mean_ce', []))
    """
    stem = name.removeprefix(TUNED)
    for ending, words in _ENDINGS.items():
        if stem.endswith(ending):
            return stem.removesuffix(ending), [words]  # says that it is tuned
    return stem, ["fine-tuned"] if stem != name else []


def variant_label(name: str) -> str:
    """Spell the name of a variant, of any notebook, for a legend.

    Example:
        >>> variant_label("mean_kl_last"), variant_label("mean_ce_full")
        ('mean init, KL (last)', 'mean init, CE, full fine-tuning')
    """
    stem, added = split_variant(name)
    if stem == "base":
        return ", ".join(["base model", *added])
    init, _, objective = stem.partition("_")
    kind, *rest = objective.split("_")
    details = f" ({', '.join(word.replace('ce', 'CE share ') for word in rest)})" if rest else ""
    return ", ".join([f"{init} init", _OBJECTIVES.get(kind, kind) + details, *added])
