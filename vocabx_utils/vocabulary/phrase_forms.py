"""Two forms in which a phrase, a piece that crosses words, can stand in a tokenizer.

`patterns`: the pre-tokenizer lets the phrase through. Alternatives for the phrases stand in front of its own
expression; each matches its phrase only where the original expression ends at the phrase's end as well, so no old
token is cut and all text outside new tokens is read as before. The model then takes a pre-token that is a vocabulary
entry whole (`ignore_merges`; merges of later rank would do, but take an id for each step on the way).

`literal`: the phrase is an added token, not special. It is cut out of a text before anything else reads it, the
leftmost first and the longest of those that begin at one place, so it cuts old tokens where its text stands inside
them (` = None` inside ` = NoneType`). Any byte-level tokenizer can have it.

The first is taken where the pre-tokenizer's expression is known; `docs/phrases.md` measures what the second costs.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

from vocabx_utils.texts import TokenizerError
from vocabx_utils.vocabulary import surgery
from vocabx_utils.vocabulary.mergeplan import MergePlan
from vocabx_utils.vocabulary.options import PhraseForm
from vocabx_utils.vocabulary.spelling import Spelling

# what ByteLevel cuts with where it has `use_regex`
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def crosses_words(spelling: Spelling, text: str) -> bool:
    """Tell whether the original pre-tokenizer cuts a text, so that no merge could make it one token."""
    return len(spelling.split(text)) > 1


def choose_form(spelling: Spelling, wanted: PhraseForm = "auto") -> PhraseForm:
    """Return `patterns` or `literal`; `auto` is the former where it can be had.

    TokenizerError says why it cannot be had, where it is wanted.
    """
    if wanted == "literal":
        return wanted
    why_not = _why_no_patterns(spelling)
    if why_not and wanted == "patterns":
        raise TokenizerError(f"Phrases cannot be let through by the pre-tokenizer: {why_not} Use the form 'literal'.")
    return "literal" if why_not else "patterns"


def phrase_layout(spelling: Spelling, plan: MergePlan, phrases: Sequence[str], form: PhraseForm) -> dict[str, Any]:
    """Layout with the pieces of a plan at ids V, V + 1, … and the phrases behind them; `form` is not `auto`."""
    if form == "literal":
        base = surgery.merged_layout(spelling, list(plan.subtokens), list(plan.merges))
        return surgery.added_layout(spelling, dict.fromkeys(phrases, False), base)
    pieces = [*plan.subtokens, *map(spelling.piece, phrases)]
    layout = surgery.merged_layout(spelling, pieces, list(plan.merges))
    if phrases:
        layout["model"] |= {"ignore_merges": True}
        layout["pre_tokenizer"] = _letting_through(spelling, phrases)
    return layout


def _why_no_patterns(spelling: Spelling) -> str:
    try:
        _cutting_step(spelling)
    except TokenizerError as error:
        return str(error)
    if not spelling.ignores_merges:
        own = ((i, p) for i, p in spelling.pieces.items() if i not in spelling.added_ids)
        if odd := next((p for i, p in own if spelling.tokenize_piece(p) != [i]), None):
            return f"merges do not reach the entry {odd!r}, so taking pre-tokens whole would change old text."
    return ""


def _cutting_step(spelling: Spelling) -> tuple[list[dict[str, Any]], int, str]:
    """Steps of the pre-tokenizer, which of them cuts by an expression, and the expression.

    The last step is ByteLevel; steps before the cutting one (`Digits`) keep their cuts, which no phrase then crosses.
    """
    step = spelling.layout["pre_tokenizer"]
    steps: list[dict[str, Any]] = copy.deepcopy(step["pretokenizers"] if step["type"] == "Sequence" else [step])
    last, splits = steps[-1], [s for s in steps if s["type"] == "Split"]
    unknown = TokenizerError(f"its pre-tokenizer has no known form ({', '.join(s['type'] for s in steps)}).")
    if last["type"] != "ByteLevel" or last["add_prefix_space"] or len(splits) + last["use_regex"] != 1:
        raise unknown
    if not splits:
        last["use_regex"] = False
        split = {"type": "Split", "pattern": {"Regex": _GPT2}, "behavior": "Isolated", "invert": False}
        return [*steps[:-1], split, last], len(steps) - 1, _GPT2
    # the expression matches all text, so what is removed between its matches (`Removed`, inverted) is nothing
    if (splits[0]["behavior"], splits[0]["invert"]) not in (("Isolated", False), ("Removed", True)):
        raise unknown
    if "Regex" not in splits[0]["pattern"]:
        raise unknown
    return steps, steps.index(splits[0]), splits[0]["pattern"]["Regex"]


def _letting_through(spelling: Spelling, phrases: Sequence[str]) -> dict[str, Any]:
    steps, at, original = _cutting_step(spelling)
    steps[at]["pattern"] = {"Regex": _alternatives(spelling, phrases, original)}
    return {"type": "Sequence", "pretokenizers": steps}


def _alternatives(spelling: Spelling, phrases: Sequence[str], original: str) -> str:
    """The phrases, longer ones first and sorted by first character, then the original expression.

    A phrase's last pre-token is read by the original expression itself, and must end where the phrase does. Its
    start needs no look: pre-tokens are cut from left to right, so it is the end of one.
    """
    groups: dict[str, list[str]] = {}
    for text in sorted(phrases, key=lambda t: (-len(t), t)):
        tail = spelling.raw(spelling.split(text)[-1]).decode()
        head, end = re.escape(text[: -len(tail)]), re.escape(tail)
        groups.setdefault(text[0], []).append(f"{head}(?={end})(?>{original})(?<={head}{end})")
    tried = [f"(?={re.escape(first)})(?:{'|'.join(parts)})" for first, parts in sorted(groups.items())]
    return "|".join([*tried, original])
