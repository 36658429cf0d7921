"""What a variant's name says: the first values of its rows, and the objective that they learn by.

`mean_kl_last_ce0.3` starts from the mean of the subtokens and minimises the KL at the last subtoken plus 0.3 times the
cross-entropy; in `mean_kl_last_end4x2` the end of a new token's span and the two positions after it count four times,
in `mean_kl_last_endonly` nothing else counts. The thesis's four methods are {random, mean} x {CE, KL}.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from vocabx_utils.names import INPUT_METHODS

Anchor = Literal["first", "last", "none"]
ANCHORS: tuple[Anchor, ...] = ("first", "last", "none")
RECOMMENDED = "kl_last_ce0.03"
"""What to take where nothing speaks for another objective, by the measurements of docs/recipes.md."""
_NUMBER = r"[0-9]+(?:\.[0-9]+)?(?:e-?[0-9]+)?"
_NAME = re.compile(
    rf"(?:ce|(?P<match>kl|hidden|cosine)_(?P<anchor>first|last|none)(?:_ce(?P<ce>{_NUMBER}))?"
    rf"(?:_hidden(?P<hidden>{_NUMBER}))?(?:_end(?P<end>only|{_NUMBER})(?:x(?P<after>[0-9]+))?)?)"
    rf"(?:_t(?P<temperature>{_NUMBER}))?(?:_l(?P<layer>[0-9]+))?(?:_w(?P<new>{_NUMBER}))?"
)


@dataclass(frozen=True)
class Objective:
    """An objective for the new input rows.

    Args:
        match: `kl` (this project's and the thesis's), `hidden` (mean squared error of hidden states: AweDist,
            now Token Distillation, Dobler et al. 2025), `cosine` (one minus their cosine, which the thesis
            suggests instead) or None (cross-entropy alone, the usual baseline).
        anchor: which pair stands for a divergent group: `last` (ours), `first` (the thesis read literally)
            or `none`.
        ce_weight: lambda, the weight of CE beside `match`.
        temperature: tau of Hinton et al. 2015; the KL is scaled by tau squared.
        layer: hidden state to match, -1 for the last.
        new_target_weight: weight of a position whose target is a new token, in the CE of both sides.
        end_weight: weight in `match` of the boundary that ends a divergent group, where the student's newest token is
            new, and of the `after` positions behind it; the others weigh 1, and the loss stays a weighted mean.
        after: positions behind such an end, in the student's tokens, that count as the end does.
        end_only: compare at those places only, and at no other.
        hidden_weight: weight beside a KL of the mean squared error of the last hidden states, at the same places.
    """

    match: Literal["kl", "hidden", "cosine"] | None = "kl"
    anchor: Anchor = "last"
    ce_weight: float = 0.0
    temperature: float = 1.0
    layer: int = -1
    new_target_weight: float = 1.0
    end_weight: float = 1.0
    after: int = 0
    end_only: bool = False
    hidden_weight: float = 0.0

    def __post_init__(self) -> None:
        if self.anchor not in ANCHORS:
            raise ValueError(f"anchor {self.anchor!r}: expected one of {ANCHORS}")
        if self.match is None and self.ce_weight <= 0:
            raise ValueError("an objective without a match needs a positive ce_weight")
        if self.ce_weight < 0 or self.new_target_weight <= 0 or self.temperature <= 0:
            raise ValueError(f"weights must not be negative and the temperature be positive: {self}")
        if self.end_weight <= 0 or self.after < 0:
            raise ValueError(f"the weight of an end must be positive and what follows it not negative: {self}")
        if self.by_place and (self.match is None or self.anchor != "last"):
            raise ValueError(f"the end of a span is the anchor `last` of a match, not {self.match} at {self.anchor!r}")
        if self.hidden_weight < 0 or (self.hidden_weight and self.match != "kl"):
            raise ValueError(f"a weight of hidden states, not negative, stands beside KL, not beside {self.match!r}")
        if self.temperature != 1 and self.match != "kl":
            raise ValueError(f"a temperature belongs to KL, not to {self.match!r}")
        if self.layer != -1 and self.match not in ("hidden", "cosine"):
            raise ValueError(
                f"a layer belongs to a distance of hidden states (hidden or cosine), not to {self.match or 'ce'}; KL "
                "and CE read the last layer"
            )

    @property
    def by_place(self) -> bool:
        """Whether places are weighted or chosen by where a span ends."""
        return self.end_only or self.end_weight != 1 or self.after > 0


@dataclass(frozen=True)
class Recipe:
    """What a variant's name says."""

    name: str
    init: str  # first values of the input rows
    objective: Objective | None  # None for an untrained variant

    def head_init(self, choice: str = "auto") -> str:
        """First values of the head rows: the thesis pairs random with random and mean with first."""
        if choice != "auto":
            return choice
        return "random" if self.init == "random" else "first"


def parse_variant(name: str) -> Recipe:
    """Read a variant's name, for example `mean_kl_last` or `random_untrained`; ValueError where it says something else.

    Example:
        >>> parse_variant("mean_kl_last").objective == Objective("kl", "last")
        True
    """
    init, _, objective = name.partition("_")
    if init not in INPUT_METHODS or not objective:
        raise ValueError(
            f"variant {name!r}: expected <input rows>_<objective> with input rows {', '.join(INPUT_METHODS)}"
        )
    return Recipe(name, init, None if objective == "untrained" else parse_objective(objective))


def parse_objective(name: str) -> Objective:
    """Read an objective from its name: `[kl|hidden|cosine_<anchor>][_ce<lambda>][_hidden<weight>]…`.

    In this order: `_ce<lambda>`; `_hidden<weight>` of the squared error of hidden states beside a KL; `_end<weight>`,
    or `_end<weight>x<positions after it>`, with `only` in place of the weight where nothing else is to be compared;
    `_t<tau>`; `_l<layer>`; `_w<weight of new targets>`.

    Raises:
        ValueError: the name does not follow the grammar.

    Example:
        >>> parse_objective("kl_last_ce0.3").ce_weight
        0.3
        >>> found = parse_objective("kl_last_end4x2")
        >>> found.end_weight, found.after
        (4.0, 2)
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(
            f"objective {name!r}: expected ce, kl_<anchor>, hidden_<anchor> or cosine_<anchor> with anchor first, last "
            "or none, and then, in this order, _ce<lambda>, _hidden<weight>, _end<weight or only>x<places after it>, "
            "_t<tau>, _l<layer>, _w<weight of new targets>"
        )
    match: Any = found["match"]
    anchor: Any = found["anchor"] or "last"
    return Objective(
        match=match,
        anchor=anchor,
        ce_weight=float(found["ce"] or 0.0) if match else 1.0,
        temperature=float(found["temperature"] or 1.0),
        layer=int(found["layer"]) if found["layer"] else -1,
        new_target_weight=float(found["new"] or 1.0),
        end_weight=1.0 if found["end"] in (None, "only") else float(found["end"]),
        after=int(found["after"] or 0),
        end_only=found["end"] == "only",
        hidden_weight=float(found["hidden"] or 0.0),
    )
