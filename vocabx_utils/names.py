"""What variants and metrics are called: how a variant's name is put together, and how a table or legend spells both."""

from __future__ import annotations

import re
from typing import Literal, get_args

InputMethod = Literal["random", "mean", "first", "last", "align", "focus"]
"""How input rows begin, the first word of a variant's name (see `vocabulary.initialization`)."""
INPUT_METHODS: tuple[str, ...] = get_args(InputMethod)
TUNED = "tuned_"
"""Stands before the name of a variant of notebook 04 where notebook 05 means it."""

_ENDINGS = {"_no_a": "without stage a", "_full": "full fine-tuning"}
_OBJECTIVES = {"ce": "CE", "kl": "KL", "hidden": "hidden MSE"}
_WEIGHT = re.compile(r"ce([0-9].*)")  # lambda, of cross-entropy beside a KL
_NATS, _POSITION = "nats per token", "nats per position"
_SHARED = "tokens that both tokenizations have"
METRICS = {
    "ce": ("cross-entropy", _NATS),
    "ce_old": ("cross-entropy at old tokens", _NATS),
    "ce_new": ("cross-entropy at new tokens", _NATS),
    "bpb": ("bits per byte", ""),
    "kl_identical": (f"KL at {_SHARED}", _POSITION),
    "kl_identical_all": (f"KL at all {_SHARED}", _POSITION),
    "kl_last": ("KL at the last subtoken of merged spans", _POSITION),
    "kl_first": ("KL at the first subtoken of merged spans", _POSITION),
    "kl_pooled": (f"KL at {_SHARED} and at first subtokens", _POSITION),
    "kl_pooled_last": (f"KL at {_SHARED} and at last subtokens", _POSITION),
}
"""Validation metrics of phase 1 in words, and their unit, empty where the words hold it."""


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
    details = ", ".join(_detail(word) for word in rest if not _WEIGHT.fullmatch(word))
    weights = [f" + {found[1]} CE" for word in rest if (found := _WEIGHT.fullmatch(word))]
    spelt = _OBJECTIVES.get(kind, kind) + (f" ({details})" if details else "") + "".join(weights)
    return ", ".join([f"{init} init", spelt, *added])


def published_label(name: str) -> str:
    """Spell a variant of the thesis's tables, whose KL may be either one: at which subtoken depends on the reading.

    Example:
        >>> published_label("mean_kl_first"), published_label("mean_ce")
        ('mean init, KL', 'mean init, CE')
    """
    return variant_label(name.replace("_kl_first", "_kl"))


def _detail(word: str) -> str:
    """Spell a part of an objective's name, such as `t2` or `last`."""
    return re.sub(r"^t([0-9].*)$", r"temperature \1", word)


def metric_label(name: str) -> str:
    """Spell a validation metric with its unit; a name that is not known stays as it is.

    Example:
        >>> metric_label("kl_last"), metric_label("bpb"), metric_label("seconds")
        ('KL at the last subtoken of merged spans (nats per position)', 'bits per byte', 'seconds')
    """
    words, unit = METRICS.get(name, (name, ""))
    return f"{words} ({unit})" if unit else words
