"""What one seed of the reproduction shows, in sentences whose numbers and words follow from the files.

Nothing here is a verdict: the sentences describe the arms of the seed that `described.json` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench_parts import known_json, known_lines
from reproduction_described import ALL, NEW, OTHERS, bits_over_all, told

from vocabx_utils import files

_RECIPE, _PHASE1, _UNTAUGHT = "recipe_a_lora", "mean_kl_last_a_lora", "mean_untrained_a_lora"
_FREED, _TUNED, _BASE = "base_a_lora", "base_lora", "base"
_PROMPT = "thesis/code/instruct"  # of answers.json, as here and in notebook 05
_BY_NAME = {_UNTAUGHT: "those that were not taught", _PHASE1: "those of phase 1", _RECIPE: "the recipe's"}
Table = Mapping[str, Any]


def seen(results: Path, described: Table) -> str:
    """The sentences, one bullet for each comparison that is there; empty where none is."""
    if not described.get("pairs"):
        return ""
    parts = [
        _against_tuned_base(results, described), _untaught(results, described), _where_tokens_stand(results, described),
        _freed(results, described), _likelihood(results, described),
    ]  # fmt: skip
    return "\n".join(f"- {part}" for part in parts if part)


def _of_seed(path: Path, described: Table) -> list[dict[str, Any]]:
    return [row for row in known_lines(path) if row.get("arm") and row["seed"] == described["seed"]]


def _pair(described: Table, name: str, outcome: str, scope: str = ALL) -> Table:
    found = described["pairs"].get(name, {}).get(outcome, {})
    return found.get(scope, {})  # type: ignore[no-any-return]


def _solved(results: Path, described: Table, benchmark: str | None = None) -> dict[str, int]:
    """Problems that each arm passed, of one benchmark or of all."""
    found: dict[str, int] = {}
    for row in _of_seed(results / "verdicts.jsonl", described):
        if benchmark in (None, row["benchmark"]):
            found[row["arm"]] = found.get(row["arm"], 0) + len(row["passed_ids"])
    return found


def _against_tuned_base(results: Path, described: Table) -> str:
    """Arms with new tokens beside the same tuning without them."""
    solved, bits = _solved(results, described), _pair(described, "leading recipe", "bpb")
    others = [arm for arm in solved if arm not in (_BASE, _TUNED, _FREED)]
    if not bits or not {_FREED, _RECIPE} <= solved.keys():
        return ""
    count = sum(solved[arm] > solved[_FREED] for arm in others)
    more = "No arm" if count == 0 else f"{count} of {len(others)} arms"
    return (
        f"**{more} with new tokens solves more problems than the same tuning without them** (`{_FREED}`, "
        f"{solved[_FREED]}). The recipe solves {solved[_RECIPE]} and differs by {told(bits, 'bpb')} in bits per byte."
    )


def _untaught(results: Path, described: Table) -> str:
    """What the rows of new tokens take where none stands, and what learning gives back of what they cost."""
    mass = {row["arm"]: row["new_row_mass"] for row in _of_seed(results / "metrics.jsonl", described)}
    shares = ", ".join(f"{who} {mass[arm]:.1%}" for arm, who in _BY_NAME.items() if mass.get(arm) is not None)
    cost = _pair(described, "new tokens alone", "bpb")
    if not shares or not cost:
        return ""
    back = [
        f"{who} takes back {-gain['estimate'] / cost['estimate']:.0%}"
        for who, name in (("phase 1", "phase 1"), ("the recipe", "recipe beside untaught"))
        if (gain := _pair(described, name, "bpb"))
    ]
    points = _pair(described, "phase 1", "pass")
    solved = f" In points of pass@1 phase 1 differs from untaught by {told(points, 'pass')}." if points else ""
    return (
        "**Untaught tokens cost likelihood even where none stands.** Share of the probability that the new rows hold "
        f"in texts of the domain after tuning: {shares} (`new_row_mass` in `metrics.jsonl`). Of what untaught tokens "
        f"cost in bits per byte ({told(cost, 'bpb')}), {' and '.join(back)}.{solved}"
    )


def _where_tokens_stand(results: Path, described: Table) -> str:
    """The recipe beside the tuned base in problems with a new token and without."""
    there, elsewhere = (_pair(described, "leading recipe", "bpb", scope) for scope in (NEW, OTHERS))
    if not there or not elsewhere:
        return ""
    content = files.read_json(results / "contrasts.json")
    density = files.read_json(results / "data.json")["extensions"][content["extension"]].get("density", {})
    rare = sorted((sum(n for n, _ in d), sum(t for _, t in d), b) for b, d in density.items())
    rates = sorted((total / new, name) for new, total, name in rare if new)
    ends = [f"one token in {every:,.0f} ({name})" for every, name in (rates[0], rates[-1])] if rates else []
    told_rare = f" They are rare in these benchmarks, {' to '.join(ends)}." if ends else ""
    sizes: dict[str, list[int]] = {}
    for row in _of_seed(results / "answers.jsonl", described):
        own = sizes.setdefault(row["arm"], [0, 0])
        own[0], own[1] = own[0] + row["characters"], own[1] + row["tokens"]
    length = ""
    if {_RECIPE, _FREED} <= sizes.keys():
        ours, plain = (sizes[arm][0] / sizes[arm][1] for arm in (_RECIPE, _FREED))
        length = f" A token of an answer holds {ours:.2f} characters with the recipe, {plain:.2f} without new tokens."
    return (
        f"**Where new tokens stand** the recipe differs from the tuned base by {told(there, 'bpb')} bits per byte, "
        f"elsewhere by {told(elsewhere, 'bpb')}.{told_rare}{length}"
    )


def _freed(results: Path, described: Table) -> str:
    """What freeing embedding and head does on DS-1000, and answers without code."""
    solved = _solved(results, described, "ds1000")
    if not {_BASE, _TUNED, _FREED} <= solved.keys():
        return ""
    rows = [row for row in _of_seed(results / "verdicts.jsonl", described) if row["benchmark"] == "ds1000"]
    empty = {row["arm"]: row["failures"].get("no code", 0) for row in rows}
    freed = [count for arm, count in empty.items() if arm not in (_BASE, _TUNED)]
    gap, other = (_pair(described, "freed matrices", "pass", scope) for scope in ("ds1000", "bigcodebench"))
    beside = f" On BigCodeBench the difference is {told(other, 'pass')}." if other else ""
    return (
        f"**Freeing embedding and head on DS-1000:** LoRA alone solves {solved[_TUNED]} of its problems, and with "
        f"freed matrices {solved[_FREED]} (a difference of {told(gap or None, 'pass')} points); the untouched base "
        f"solves {solved[_BASE]}. In the arms with freed matrices {min(freed)} to {max(freed)} answers hold no code, "
        f"after LoRA alone {empty[_TUNED]}, of the base {empty[_BASE]}.{beside}"
    )


def empty_answers(results: Path, stored: Path) -> str:
    """How answers of the base without code go together with those that `stored` (results/bench/answers.json) counts.

    Those were written with weights in four bits, to BigCodeBench alone with the thesis's prompt.
    """
    own = {
        row["benchmark"]: row["failures"].get("no code", 0)
        for row in known_lines(results / "verdicts.jsonl")
        if row["arm"] == _BASE and row["seed"] == 0
    }
    known = known_json(stored).get("bigcodebench", {}).get(_PROMPT)
    if "bigcodebench" not in own or known is None:
        return ""
    counts = {kind: count for kind, count in known["failures"].items() if kind != "exceptions"}
    where = ", ".join(f"{count} in {name}" for name, count in own.items())
    return (
        f"Of the base's {sum(own.values())} answers without code there are {where}. The stored answers that notebook "
        f"05 judges (`results/bench/answers.json`, {counts.get('no code', 0)} of {sum(counts.values()):,} failures "
        "without code) are the same model's in four bits, to BigCodeBench alone, so they are to be compared with the "
        f"base's {own['bigcodebench']} there and not with all {sum(own.values())}."
    )


def _likelihood(results: Path, described: Table) -> str:
    """Whether tuning makes references, and texts elsewhere, less likely."""
    bits = {row["arm"]: row["benchmarks"] for row in _of_seed(results / "bits.jsonl", described)}
    totals = {arm: bits_over_all(found) for arm, found in bits.items() if found.keys() == bits.get(_BASE, {}).keys()}
    held = {row["arm"]: row["held_out_bpb"] for row in _of_seed(results / "metrics.jsonl", described)}
    if not {_BASE, _TUNED} <= totals.keys() & held.keys():
        return ""
    tuned = [arm for arm in totals if arm != _BASE]
    less = sum(totals[arm] > totals[_BASE] for arm in tuned)
    away = [row for arm in described["elsewhere"].values() for kind, row in arm.items() if kind != "domain"]
    surely = sum(  # intervals above 0, of other languages and of English prose
        row["low"] is not None and row["low"] > 0 for row in away
    )
    others = (
        f"; elsewhere bits per byte rise in {surely} of {len(away)} comparisons (other languages, English prose)"
        if away
        else ""
    )
    return (
        f"**Tuning makes references less likely over all** in {less} of {len(tuned)} arms{others}. Pairs held out, its "
        f"own kind, take {held[_TUNED]:.3f} bits per byte after LoRA alone, from {held[_BASE]:.3f}."
    )
