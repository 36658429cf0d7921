"""What the rows of results/domains say in words and shares: for docs/domains.md, and for README.md.

Every sentence is chosen by the rows, so that new lines change it; differences are bits per byte of the same documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench_parts import NOTHING, table_of, told_interval

from vocabx_utils.intervals import Interval, judge
from vocabx_utils.measured import DOMAIN_ARMS, DOMAIN_TEXTS

Row = dict[str, Any]
Rows = Sequence[Row]
_SIDES = {
    "loses": "**Expansion with LoRA loses against plain LoRA** in {} of {} comparisons (its bits per byte are above, "
    "and the interval excludes 0):",
    "wins": "It ends below plain LoRA in {} of {}:",
    "cannot tell": "The interval holds 0 in {} of {}:",
}


def place(row: Row) -> str:
    """Name model and text of a row."""
    return f"{row['model'].removesuffix('-Instruct')}, {DOMAIN_TEXTS.get(row['text'], row['text'])}"


def arm(row: Row) -> str:
    """Name an arm, with N where it has new tokens."""
    name = DOMAIN_ARMS[row["arm"]]
    return name if row["n"] == 0 else f"{name}, {row['n']:,}"


def side_of(gap: Sequence[float]) -> str:
    """Judge a difference in bits per byte by its interval: `loses`, `wins` or `cannot tell`."""
    return {"confirmed": "loses", "not confirmed": "wins"}.get(judge(Interval(*gap)), "cannot tell")


def span(values: Sequence[float], form: Callable[[float], str]) -> str:
    """`lowest to highest`, or the one value that there is."""
    low, high = form(min(values)), form(max(values))
    return low if low == high else f"{low} to {high}"


# --- against plain LoRA ---------------------------------------------------------------------------------------------


def lora_sentences(rows: Rows) -> str:
    """Say where expansion with LoRA loses against plain LoRA, where it wins and where the interval cannot tell.

    A comparison is an arm with new tokens and LoRA against the base with LoRA, in bits per byte of the same documents.
    """
    compared = [row for row in rows if row["n"] and row["lora"] and row["above_lora"]]
    if not compared:
        return NOTHING
    said = []
    for side, words in _SIDES.items():
        own = [row for row in compared if side_of(row["above_lora"]) == side]
        if own:
            told = "\n".join(f"- {name}: {_ends(some)}" for name, some in by_place(own).items())
            said.append(f"{words.format(len(own), len(compared))}\n\n{told}")
    if all(side_of(row["above_lora"]) != "loses" for row in compared):
        said.insert(0, f"In none of {len(compared)} comparisons does expansion with LoRA end surely above plain LoRA.")
    return "\n\n".join([*said, *_order(compared), *_phase1_alone(rows)])


def by_place(rows: Rows) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(place(row), []).append(row)
    return found


def _ends(rows: Rows) -> str:
    """The lowest and the highest difference of a place, and how many arms there are."""
    ordered = sorted(rows, key=lambda row: row["above_lora"][0])
    ends = [f"{row['above_lora'][0]:+.3f} ({arm(row)})" for row in (ordered[0], ordered[-1])]
    return ends[0] if len(rows) == 1 else f"{' to '.join(ends)}, {len(rows)} arms"


def _order(compared: Rows) -> list[str]:
    """Count pairs of arms with resting rows that differ in the kind of tokens alone, and in N alone."""
    gaps = {(place(r), r["arm"], r["n"]): r["above_lora"][0] for r in compared if not r["arm"].endswith("_rows")}
    kinds = [(gaps[p, "both_lora", n], low) for (p, name, n), low in gaps.items() if name == "words_lora"
             if (p, "both_lora", n) in gaps]  # fmt: skip
    sizes = [(high, low) for (p, name, n), low in gaps.items() for (q, other, m), high in gaps.items()
             if (p, name) == (q, other) and m > n]  # fmt: skip
    told = [
        f"{words} in {sum(high > low for high, low in found)} of {len(found)} pairs"
        for words, found in (
            ("words and phrases end above words of the same N", kinds),
            ("the larger N ends above the smaller", sizes),
        )
        if found
    ]
    return [f"With LoRA behind them, {', and '.join(told)}."] if told else []


def _phase1_alone(rows: Rows) -> list[str]:
    """The same of learned rows without LoRA: what frozen blocks can do."""
    alone = [r for r in rows if r["arm"] in ("words", "both") and r["above_lora"]]
    if not alone:
        return []
    above = [r for r in alone if side_of(r["above_lora"]) == "loses"]
    gaps = [r["above_lora"][0] for r in alone]
    return [
        f"Learned rows alone, with frozen blocks, stay above plain LoRA in {len(above)} of {len(alone)} comparisons "
        f"(differences from {min(gaps):+.3f} to {max(gaps):+.3f})."
    ]


# --- against the base -----------------------------------------------------------------------------------------------


def shares(rows: Rows, arms: Sequence[str]) -> list[float]:
    """Change of the base's bits per byte, as a share of them, of every row of these arms."""
    bases = {place(row): row["bpb"] for row in rows if row["arm"] == "base"}
    return [r["above_base"][0] / bases[place(r)] for r in rows if r["arm"] in arms and r["above_base"]]


def change_table(rows: Rows) -> str:
    """By text, how far the base's bits per byte change with LoRA alone and with rows alone, over models and N."""
    arms = ("base_lora", "words", "both", "words_untrained", "words_thesis")
    lines = []
    for text in dict.fromkeys(row["text"] for row in rows):
        own = [row for row in rows if row["text"] == text]
        found = [shares(own, [name]) for name in arms]
        lines.append([DOMAIN_TEXTS.get(text, text), *(span(s, "{:+.0%}".format) if s else "" for s in found)])
    if not lines:
        return NOTHING
    table = table_of(["text", *(DOMAIN_ARMS[name] for name in arms)], lines)
    return "\n\n".join([table, *_thesis(rows)])


def _thesis(rows: Rows) -> list[str]:
    """Where the thesis's objective at its own rate ends."""
    gaps = {(place(r), r["arm"], r["n"]): r["above_base"] for r in rows if r["above_base"]}
    found = [
        (gap, gaps[p, "words", n][0], gaps[p, "words_untrained", n][0])
        for (p, name, n), gap in gaps.items()
        if name == "words_thesis" and {(p, "words", n), (p, "words_untrained", n)} <= gaps.keys()
    ]
    if not found:
        return []
    above = sum(side_of(gap) == "loses" for gap, _, _ in found)
    near = sum(abs(gap[0] - untrained) < abs(gap[0] - ours) for gap, ours, untrained in found)
    return [
        f"The thesis's objective, at its own rate, ends above the base in {above} of {len(found)} places and sizes, "
        f"and nearer to the untrained rows than to ours in {near}."
    ]


# --- rows that move -------------------------------------------------------------------------------------------------


def moving_table(rows: Rows) -> str:
    """Set arms whose new rows move with LoRA beside those whose rows rest, on the same documents and steps."""
    resting = {(place(row), f"{row['arm']}_rows", row["n"]): row for row in rows}
    pairs = [(row, resting[place(row), row["arm"], row["n"]]) for row in rows if row["above_resting"]]
    lines = [
        [
            place(row), arm(rest), f"{row['settings']['lora_rate']:g}", interval(rest["above_lora"]),
            interval(row["above_lora"]), interval(row["above_resting"]), f"{_taken(row, rest):.0%}",
        ]
        for row, rest in pairs
    ]  # fmt: skip
    header = ["model, text", "arm, N", "LoRA's rate", "above base + LoRA: rows resting", "rows moving",
              "moving above resting", "of the gap taken away"]  # fmt: skip
    return f"{table_of(header, lines)}\n\n{_moved(pairs)}" if lines else NOTHING


def _taken(row: Row, rest: Row) -> float:
    """Share of the gap to plain LoRA that moving rows take away."""
    return float(-row["above_resting"][0] / rest["above_lora"][0])


def _moved(pairs: Sequence[tuple[Row, Row]]) -> str:
    most = [row for row, rest in pairs if _taken(row, rest) > 0.5]
    less = [row for row, rest in pairs if _taken(row, rest) <= 0.5]
    told = []
    for words, some in (("more than half of the gap", most), ("half of it or less", less)):
        rates = span([row["settings"]["lora_rate"] for row in some], "{:g}".format) if some else ""
        told += [f"{words} in {len(some)} (LoRA's rate {rates})"] if some else []
    unsure = sum(side_of(row["above_resting"]) != "wins" for row, _ in pairs)
    surely = f"; in {unsure} of these the interval of moving above resting does not lie below 0" if unsure else ""
    return f"Of {len(pairs)} lines, rows that move take away {', '.join(told)}{surely}."


def interval(gap: Sequence[float] | None) -> str:
    """A difference with its limits."""
    return "" if gap is None else told_interval(gap, "+.3f")
