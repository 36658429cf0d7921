"""How fast arms of results/domains generate, in tables and words: for docs/domains.md, and for README.md.

A gain in characters a second is characters a token of what was written, times tokens a second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench_parts import NOTHING, table_of, told_range, told_speed
from domain_told import Row, Rows, arm, by_place, interval, place, span

from vocabx_utils.intervals import Interval, judge
from vocabx_utils.measured import DOMAIN_ARMS

_PACES = {"confirmed": "faster", "not confirmed": "slower"}


def pace_of(gain: Sequence[float]) -> str:
    """Judge a gain, as median, lowest and highest reading: `faster` (all above 1), `slower` (below 1) or `neither`."""
    return _PACES.get(judge(Interval(*gain), 1.0), "neither")


def gain_of(row: Row) -> tuple[float, float, float]:
    """Characters a second, of those of the base: median, lowest and highest reading."""
    low, high = row["speed_range"]
    return row["speed_gain"], low, high


def timed(rows: Rows) -> list[Row]:
    """Rows whose speed was read."""
    return [row for row in rows if "speed_gain" in row]


def least(rows: Rows) -> dict[str, int]:
    """The smallest N of each model and text, 0 where no arm has new tokens."""
    return {name: min((row["n"] for row in own if row["n"]), default=0) for name, own in by_place(rows).items()}


def has_more(row: Row, few: Mapping[str, int]) -> bool:
    """Whether an arm has more new tokens than the fewest of its model and text, see `least`."""
    return bool(row["n"] > few[place(row)])


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
            f"{r['base_speed']['tokens_per_s']:,}, {r['speed']['tokens_per_s']:,}", f"{_paced(r):.2f}",
            pace_of(gain_of(r)),
        ]
        for r in timed(rows)
    ]  # fmt: skip
    header = ["model, text", "arm, N", "characters a second, of base", "characters a token: base, arm", "of base",
              "of base in held-out text", "tokens a second: base, arm", "of base", "generation is"]  # fmt: skip
    return table_of(header, lines) if lines else NOTHING


def speed_by_arm(rows: Rows) -> str:
    """Where each arm is faster and slower than the base, over models and texts, and by which of the two factors."""
    read, few = timed(rows), least(rows)
    if not read:
        return NOTHING
    own: dict[tuple[int, bool], list[Row]] = {}
    for row in read:
        own.setdefault((list(DOMAIN_ARMS).index(row["arm"]), has_more(row, few)), []).append(row)
    lines = [
        [
            _named(found), span([row["speed_gain"] for row in found], "{:.2f}".format),
            *(str(sum(pace_of(gain_of(row)) == side for row in found)) for side in ("faster", "slower", "neither")),
            span([*map(_longer, found)], "{:.2f}".format), str(_shorter(found)) if found[0]["n"] else "",
            span([*map(_paced, found)], "{:.2f}".format),
        ]
        for _, found in sorted(own.items())
    ]  # fmt: skip
    header = ["arm, N", "characters a second, of base", "faster", "slower", "neither", "characters a token, of base",
              "fewer than in held-out text", "tokens a second, of base"]  # fmt: skip
    return f"{table_of(header, lines)}\n\n{_paces(read)}{_grown(read)}"


def _named(rows: Rows) -> str:
    """Name an arm, with all N that it was read with."""
    name, sizes = DOMAIN_ARMS[rows[0]["arm"]], [row["n"] for row in rows]
    return f"{name}, {span(sizes, '{:,}'.format)}" if max(sizes) else name


def _paces(rows: Rows) -> str:
    """Tokens a second of the base's, by model: without new tokens, with the fewest, and with more."""
    few = least(rows)
    found: dict[str, dict[tuple[bool, bool], list[Row]]] = {}
    for row in rows:
        kind = bool(row["n"]), has_more(row, few)
        found.setdefault(place(row).split(", ")[0], {}).setdefault(kind, []).append(row)
    told = [f"{model} {', '.join(_paced_as(kinds[kind]) for kind in sorted(kinds))}" for model, kinds in found.items()]
    return f"Tokens a second, of the base's: {'; '.join(told)}."


def _paced_as(rows: Rows) -> str:
    sizes = span([row["n"] for row in rows], "{:,}".format)
    return f"{span([*map(_paced, rows)], '{:.2f}'.format)} with {'no' if sizes == '0' else sizes} new tokens"


def _grown(rows: Rows) -> str:
    """In how many places what an arm writes holds more characters a token with the larger N, by arm."""
    few = least(rows)
    small = {(place(row), row["arm"]): _longer(row) for row in rows if row["n"] == few[place(row)]}
    grown: dict[str, list[bool]] = {}
    for row in rows:
        if has_more(row, few) and (place(row), row["arm"]) in small:
            grown.setdefault(DOMAIN_ARMS[row["arm"]], []).append(_longer(row) > small[place(row), row["arm"]])
    told = ", ".join(f"{name} in {sum(more)} of {len(more)}" for name, more in grown.items())
    return f" More characters a token with the larger N than with the smaller: {told} places." if told else ""


def against_lora(rows: Rows) -> list[Row]:
    """Arms with new tokens and LoRA whose speed was read beside that of the base with LoRA."""
    return [row for row in timed(rows) if row["n"] and row["lora"] and "speed_of_lora" in row]


def lora_speed_table(rows: Rows) -> str:
    """What new tokens do to a tuned model: its speed, and its bits per byte, of those of the base with LoRA."""
    found = against_lora(rows)
    if not found:
        return NOTHING
    lines = [
        [place(r), arm(r), told_range(r["speed_of_lora"]), pace_of(r["speed_of_lora"]),
         interval(r["above_lora"])]
        for r in found
    ]  # fmt: skip
    header = ["model, text", "arm, N", "characters a second, of base + LoRA", "generation is",
              "bits per byte above base + LoRA"]  # fmt: skip
    return table_of(header, lines)


def _shorter(rows: Rows) -> int:
    """In how many lines tokens grow less in what an arm writes than in held-out text."""
    return sum(_longer(row) < _longer_in_texts(row) for row in rows)


def speed_sentence(rows: Rows) -> str:
    """Tell the characters a second of arms with the fewest new tokens, of the base's and of plain LoRA's, if read."""
    few = least(rows)
    read = [row for row in timed(rows) if row["n"] == few[place(row)]]
    rested = {kind: [gain_of(row) for row in read if row["arm"] == kind] for kind in ("words", "both")}
    tuned = {
        kind: [row["speed_of_lora"] for row in against_lora(read) if row["arm"] == f"{kind}_lora"] for kind in rested
    }
    if not any(rested.values()):
        return ""
    told = "What a model writes by itself is another matter. With learned rows it writes "
    told += _counted(rested, " the base's characters a second") + "."
    if any(tuned.values()):
        told += f" With LoRA behind them, and beside LoRA alone, it writes {_counted(tuned)}."
    return told


def _counted(gains: Mapping[str, Sequence[Sequence[float]]], of: str = "") -> str:
    """`0.91 to 1.22 times with words (faster in 3 and slower in 1 of 6 places)`, of each kind that was read."""
    told = []
    for kind, found in gains.items():
        sides = [pace_of(gain) for gain in found]
        faster, slower = sides.count("faster"), sides.count("slower")
        if found:
            times = f"{span([gain[0] for gain in found], '{:.2f}'.format)} times{of} with {DOMAIN_ARMS[kind]}"
            told.append(f"{times} (faster in {faster} and slower in {slower} of {len(sides)} places)")
    return " and ".join(told)
