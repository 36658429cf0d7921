"""What the rows of results/domains say in words and shares: for docs/domains.md, and for README.md.

Every sentence is chosen by the rows, so that new lines change it; differences are bits per byte of the same documents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench_parts import table_of, told_speed

from vocabx_utils.intervals import Interval, judge
from vocabx_utils.measured import DOMAIN_ARMS, DOMAIN_TEXTS

Row = dict[str, Any]
Rows = Sequence[Row]
NOTHING = "not measured"
_SIDES = {
    "loses": "**Expansion with LoRA loses against plain LoRA** in {} of {} comparisons (its bits per byte are above, "
    "and the interval excludes 0):",
    "wins": "It ends below plain LoRA in {} of {}:",
    "cannot tell": "The interval holds 0 in {} of {}:",
}
_PACES = {"confirmed": "faster", "not confirmed": "slower"}


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
            told = "\n".join(f"- {name}: {_ends(some)}" for name, some in _by_place(own).items())
            said.append(f"{words.format(len(own), len(compared))}\n\n{told}")
    if all(side_of(row["above_lora"]) != "loses" for row in compared):
        said.insert(0, f"In none of {len(compared)} comparisons does expansion with LoRA end surely above plain LoRA.")
    return "\n\n".join([*said, *_order(compared), *_phase1_alone(rows)])


def _by_place(rows: Rows) -> dict[str, list[Row]]:
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
    return "" if gap is None else "{:+.3f} [{:+.3f}, {:+.3f}]".format(*gap)


# --- speed ----------------------------------------------------------------------------------------------------------


def pace_of(row: Row) -> str:
    """Judge a gain in speed by all of its readings: `faster` (above 1), `slower` (below 1) or `neither`."""
    return _PACES.get(judge(Interval(row["speed_gain"], *row["speed_range"]), 1.0), "neither")


def timed(rows: Rows) -> list[Row]:
    """Rows whose speed was read."""
    return [row for row in rows if "speed_gain" in row]


def _held(reading: dict[str, Any]) -> float:
    """Characters that a token holds in what a model wrote."""
    return float(reading["characters"] / reading["tokens"])


def _longer(row: Row) -> float:
    """Characters a token of what an arm wrote, of those of what the base wrote."""
    return _held(row["speed"]) / _held(row["base_speed"])


def _longer_in_texts(row: Row) -> float:
    """The same of held-out text, which either tokenizer cuts."""
    return 1 / (1 - float(row["saved"]))


def _paced(row: Row) -> float:
    """Tokens a second that an arm wrote, of those that the base wrote."""
    return float(row["speed"]["tokens_per_s"] / row["base_speed"]["tokens_per_s"])


def speed_table(rows: Rows) -> str:
    """Split each gain in characters a second into characters a token and tokens a second."""
    lines = [
        [
            place(r), arm(r), told_speed(r), f"{_held(r['base_speed']):.2f}, {_held(r['speed']):.2f}",
            f"{_longer(r):.2f}", f"{_longer_in_texts(r):.2f}",
            f"{r['base_speed']['tokens_per_s']:,}, {r['speed']['tokens_per_s']:,}", f"{_paced(r):.2f}", pace_of(r),
        ]
        for r in timed(rows)
    ]  # fmt: skip
    header = ["model, text", "arm, N", "characters a second, of base", "characters a token: base, arm", "of base",
              "of base in held-out text", "tokens a second: base, arm", "of base", "generation is"]  # fmt: skip
    return table_of(header, lines) if lines else NOTHING


def speed_by_arm(rows: Rows) -> str:
    """Where each arm is faster and slower than the base, over models and texts, and by which of the two factors."""
    read = timed(rows)
    names = [name for name in DOMAIN_ARMS if any(row["arm"] == name for row in read)]
    if not names:
        return NOTHING
    own = {DOMAIN_ARMS[name]: [row for row in read if row["arm"] == name] for name in names}
    lines = [
        [
            name, span([row["speed_gain"] for row in found], "{:.2f}".format),
            *(str(sum(pace_of(row) == side for row in found)) for side in ("faster", "slower", "neither")),
            span([*map(_longer, found)], "{:.2f}".format), str(_shorter(found)) if found[0]["n"] else "",
            span([*map(_paced, found)], "{:.2f}".format),
        ]
        for name, found in own.items()
    ]  # fmt: skip
    header = ["arm", "characters a second, of base", "faster", "slower", "neither", "characters a token, of base",
              "fewer than in held-out text", "tokens a second, of base"]  # fmt: skip
    return "\n\n".join([table_of(header, lines), *_paces(read)])


def _paces(rows: Rows) -> list[str]:
    """Tokens a second of the base's, with and without new tokens, by model."""
    found: dict[str, dict[bool, list[float]]] = {}
    for row in rows:
        found.setdefault(place(row).split(", ")[0], {}).setdefault(bool(row["n"]), []).append(_paced(row))
    told = [
        f"{model} {' and '.join(_paced_as(new, own) for new, own in sorted(kinds.items()))}"
        for model, kinds in found.items()
    ]
    return [f"Tokens a second, of the base's: {'; '.join(told)}."]


def _paced_as(new: bool, shares: Sequence[float]) -> str:
    return f"{span(shares, '{:.2f}'.format)} {'with' if new else 'without'} new tokens"


def against_lora(rows: Rows) -> list[Row]:
    """Arms with new tokens and LoRA whose speed was read beside that of the base with LoRA."""
    return [row for row in timed(rows) if row["n"] and row["lora"] and "speed_of_lora" in row]


def lora_speed_table(rows: Rows) -> str:
    """What new tokens do to a tuned model: its speed, and its bits per byte, of those of the base with LoRA."""
    found = against_lora(rows)
    if not found:
        return NOTHING
    lines = [
        [place(r), arm(r), "{:.2f} ({:.2f} to {:.2f})".format(*r["speed_of_lora"]), lora_pace(r),
         interval(r["above_lora"])]
        for r in found
    ]  # fmt: skip
    header = ["model, text", "arm, N", "characters a second, of base + LoRA", "generation is",
              "bits per byte above base + LoRA"]  # fmt: skip
    return table_of(header, lines)


def lora_pace(row: Row) -> str:
    """Judge it by all readings, as `pace_of` does."""
    return _PACES.get(judge(Interval(*row["speed_of_lora"]), 1.0), "neither")


def _shorter(rows: Rows) -> int:
    """In how many lines tokens grow less in what an arm writes than in held-out text."""
    return sum(_longer(row) < _longer_in_texts(row) for row in rows)


def speed_sentence(rows: Rows) -> str:
    """How many characters a second arms with new tokens write, of the base's and of plain LoRA's; empty if unread."""
    form, read = "{:.2f}".format, timed(rows)
    rested = {kind: [row for row in read if row["arm"] == kind] for kind in ("words", "both")}
    tuned = {kind: [row for row in against_lora(read) if row["arm"] == f"{kind}_lora"] for kind in ("words", "both")}
    plain = [
        f"{span([row['speed_gain'] for row in found], form)} times the base's characters a second "
        f"{_counted(kind, [*map(pace_of, found)])}"
        for kind, found in rested.items()
        if found
    ]
    beside = [
        f"{span([row['speed_of_lora'][0] for row in found], form)} times {_counted(kind, [*map(lora_pace, found)])}"
        for kind, found in tuned.items()
        if found
    ]
    if not plain:
        return ""
    told = f"What a model writes by itself is another matter. With learned rows it writes {' and '.join(plain)}."
    if beside:
        told += f" With LoRA behind them, and beside LoRA alone, it writes {' and '.join(beside)}."
    return told


def _counted(kind: str, sides: Sequence[str]) -> str:
    """`with words (faster in 5 and slower in 1 of 6 places)`."""
    faster, slower = sides.count("faster"), sides.count("slower")
    return f"with {DOMAIN_ARMS[kind]} (faster in {faster} and slower in {slower} of {len(sides)} places)"
