"""Which runs a fair search of recipes tries: twelve for each objective, all with the same training tokens.

A run is `<family>:<objective>:<rate>:<rate of the head>:<first values of the head>`, and then, in this order, what is
not as usual: `wu0.5` (share of warm-up), `const` (the rate stays), `avg0.25` (rows averaged over the last quarter),
`fit0.3` (head rows fitted after the last step, see `training/head_fit.py`; snippets are read once more for it), `fade`
(lambda falls to 0), `equal` (tokens seen equally often), `texts` or `sampled` (other data), `b32` (batch).

Families: `td` is Token Distillation as published (Dobler, Elliott and de Melo 2025, https://arxiv.org/abs/2505.20133):
mean squared error of the last hidden states at the end of a span and at all unmerged positions behind it, snippets of
50 tokens, batches of 16, one pass, AdamW at 1e-4 for both sides, warm-up over half of it and then linear decay, both
first values from the mean of the subtokens, the head rows by cross-entropy. Ours merges every new token of a snippet,
theirs only the one that it was chosen for; theirs asks for 100 snippets a token, ours is held to the budget of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from vocabx_utils.measured import RECIPES, REFERENCE_RECIPES
from vocabx_utils.training.objectives import parse_objective

PUBLISHED = "td:hidden_last:0.0001:0.0001:mean:wu0.5"
NEW = tuple(name for name in RECIPES if name not in (*REFERENCE_RECIPES, "texts"))


@dataclass(frozen=True)
class Run:
    """What a run's name says."""

    family: str
    objective: str
    rate: float
    head_rate: float
    head_init: str = "mean"
    warmup: float = 0.1
    after: str = "linear"
    average: float = 0.0
    fit: float = 0.0
    fade: bool = False
    sampling: str = "each"
    data: str = "snippets"
    batch: int = 16

    @property
    def settings(self) -> str:
        """The name without the family: runs with the same settings are the same run."""
        words = [self.objective, f"{self.rate:g}", f"{self.head_rate:g}", self.head_init]
        words += [f"wu{self.warmup:g}"] * (self.warmup != 0.1) + ["const"] * (self.after == "constant")
        words += [f"avg{self.average:g}"] * (self.average > 0) + [f"fit{self.fit:g}"] * (self.fit > 0)
        words += ["fade"] * self.fade
        words += ["equal"] * (self.sampling == "equal") + [self.data] * (self.data != "snippets")
        return ":".join(words + [f"b{self.batch}"] * (self.batch != 16))

    @property
    def name(self) -> str:
        """The whole name."""
        return f"{self.family}:{self.settings}"


def parse_run(name: str) -> Run:
    """Read a run's name; SystemExit where it does not follow the grammar."""
    try:
        family, objective, rate, head_rate, head_init, *words = name.split(":")
        parse_objective(objective)
        more: dict[str, Any] = {}
        for word in words:
            if word in ("texts", "sampled"):
                more["data"] = word
            elif word in ("const", "fade", "equal"):
                key, value = {"const": ("after", "constant"), "fade": ("fade", True), "equal": ("sampling", "equal")}[
                    word
                ]
                more[key] = value
            elif word.startswith("wu"):
                more["warmup"] = float(word[2:])
            elif word.startswith("fit"):
                more["fit"] = float(word[3:])
            elif word.startswith("avg"):
                more["average"] = float(word[3:])
            else:
                more["batch"] = int(word.removeprefix("b"))
        run = Run(family, objective, float(rate), float(head_rate), head_init, **more)
    except ValueError as error:
        raise SystemExit(f"run {name!r}: {error}; see the first lines of recipe_runs.py") from error
    if head_init not in ("mean", "first"):
        raise SystemExit(f"run {name!r}: first values of the head are mean or first, not {head_init!r}")
    return run


# rates of input rows and head rows, in the order in which they are tried; `first` is the head's first subtoken
_RATES = (
    (1e-3, 1e-4), (5e-4, 1e-4), (2e-3, 1e-4), (1e-3, 3e-4), (2e-3, 3e-4), (5e-4, 3e-4), (1e-3, 1e-3), (1e-3, 5e-5),
    (2e-3, 1e-3), (3e-3, 1e-4), (3e-4, 1e-4),
)  # fmt: skip
_TD_RATES = (
    (1e-4, 1e-4), (1e-3, 1e-4), (1e-3, 1e-3), (3e-4, 1e-4), (2e-3, 1e-4), (3e-4, 3e-4), (5e-4, 1e-4), (1e-3, 3e-4),
    (2e-3, 3e-4), (3e-3, 1e-4), (2e-3, 2e-3),
)  # fmt: skip


def _over_rates(family: str, objective: str, rates: tuple[tuple[float, float], ...] = _RATES, **more: Any) -> list[Run]:
    """Eleven pairs of rates, and one with the other first values of the head."""
    return [Run(family, objective, *pair, **more) for pair in rates] + [
        Run(family, objective, 1e-3, 1e-4, "first", **more)
    ]


def _grid() -> dict[str, list[Run]]:
    mixed = (
        (0.1, 1e-3, 1e-4), (0.03, 1e-3, 1e-4), (0.3, 1e-3, 1e-4), (0.1, 2e-3, 1e-4), (0.03, 2e-3, 1e-4),
        (0.3, 2e-3, 1e-4), (0.1, 1e-3, 3e-4), (0.1, 5e-4, 1e-4), (0.03, 1e-3, 3e-4), (1.0, 1e-3, 1e-4),
        (0.1, 2e-3, 1e-3),
    )  # fmt: skip
    kl_ce = [Run("kl_ce", f"kl_last_ce{share:g}", rate, head) for share, rate, head in mixed]
    kl_ce.append(Run("kl_ce", "kl_last_ce0.1", 1e-3, 1e-4, "first"))
    middle = ((7e-4, 1e-4), (1e-3, 1e-4), (5e-4, 1e-4))
    r1 = [Run("r1", "kl_last_ce0.03", *pair) for pair in middle]
    r1 += [Run("r1", "kl_last_ce0.03", rate, head) for rate, _ in middle for head in (2e-4, 5e-5)]
    r1 += [Run("r1", f"kl_last_ce{share:g}", *middle[0]) for share in (0.01, 0.06, 0.1)]
    ends = [("r2", f"kl_last_ce0.03_end{weight}x2", rate, 1e-4) for weight in (4, 8, 6) for rate, _ in middle]
    ends += [("r2", f"kl_last_ce0.03_end{weight}x2", 1e-3, 2e-4) for weight in (4, 8, 6)]
    averaged = ((4, 0.5, "constant"), (4, 0.25, "linear"), (8, 0.5, "constant"), (4, 0.25, "constant"))
    r3 = [
        Run("r3", f"kl_last_ce0.03_end{weight}x2", rate, 1e-4, average=average, after=after)
        for weight, average, after in averaged
        for rate, _ in middle
    ]
    fitted = (
        ("kl_last", 1e-3, 0.3), ("kl_last_ce0.03", 7e-4, 0.3), ("kl_last", 2e-3, 0.3), ("kl_last", 1e-3, 1),
        ("kl_last", 1e-3, 0.1), ("kl_last_ce0.03_end4x2", 1e-3, 0.3), ("hidden_last", 1e-3, 0.3),
        # set after these, on the sweep split: less weight and the rates between them were better in all settings
        ("kl_last", 2e-3, 0.1), ("kl_last", 7e-4, 0.1), ("kl_last", 2e-3, 0.03), ("kl_last_ce0.1", 2e-3, 0.1),
    )  # fmt: skip
    r4 = [Run("r4", objective, rate, 1e-4, fit=fit) for objective, rate, fit in fitted]
    r4.append(Run("r4", "kl_last", 1e-3, 1e-4, after="constant", average=0.5, fit=0.1))
    beside = [
        Run("kl_hidden", f"kl_last_ce0.03_hidden{weight:g}", rate, 1e-4)
        for rate in (1e-3, 7e-4, 2e-3)
        for weight in (0.1, 1, 0.03, 0.3)
    ]
    equal = [  # snippets are even already, whole texts are not
        Run("equal", "kl_last_ce0.03", rate, head, sampling="equal", data=data)
        for head in (1e-4, 2e-4)
        for rate, _ in middle
        for data in ("snippets", "texts")
    ]
    fade = [
        Run("fade", f"kl_last_ce{share:g}", rate, head, fade=True)
        for head in (1e-4, 2e-4)
        for share in (0.1, 0.3)
        for rate, _ in middle
    ]
    sampled, texts = (
        [
            Run(family, f"kl_last_ce{share:g}", rate, head, data=family)
            for share in (0.03, 0.1)
            for head in (1e-4, 3e-4)
            for rate in (1e-3, 5e-4, 2e-3)
        ]
        for family in ("sampled", "texts")
    )
    return {
        "td": _over_rates("td", "hidden_last", _TD_RATES, warmup=0.5),
        "r1": r1,
        "kl": _over_rates("kl", "kl_last"),
        "r2": [Run(*words) for words in ends],
        "kl_ce": kl_ce,
        "r3": r3,
        "r4": r4,
        "hidden": _over_rates("hidden", "hidden_last"),
        "ce": _over_rates("ce", "ce"),
        "kl_hidden": beside,
        "fade": fade,
        "equal": equal,
        "sampled": sampled,
        "texts": texts,
    }


GRID = _grid()


def choose_runs(patterns: list[str], rounds: int = 12) -> list[Run]:
    """Return runs of the grid that a pattern names (`r1`, `td:*`, `*:1e-05:*`), and whole names that are not in it.

    The first run of every family comes first, then the second of each: where time runs out, all had the same budget.
    `rounds` takes so many of each.
    """
    ordered = [runs[k] for k in range(rounds) for runs in GRID.values()]
    chosen = [run for run in ordered if any(p == run.family or fnmatchcase(run.name, p) for p in patterns)]
    for pattern in patterns:
        known = any(pattern == run.family or fnmatchcase(run.name, pattern) for runs in GRID.values() for run in runs)
        if not known:
            chosen.append(parse_run(pattern))
    return chosen
