"""Worked examples of the thesis: texts under two tokenizers and how their positions pair."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALIGNMENT_EXAMPLE", "LOSS_PIPELINE", "POSITION_MAPPING", "TOKENIZATION_TABLE", "AlignmentExample"]


@dataclass(frozen=True)
class AlignmentExample:
    """One text under the original and the extended tokenizer, as token strings.

    `similar` and `divergent` hold index pairs (original, extended), counted from 0.
    """

    label: str
    original: tuple[str, ...]
    extended: tuple[str, ...]
    similar: tuple[tuple[int, int], ...]
    divergent: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]


def _tokens(joined: str) -> tuple[str, ...]:
    return tuple(joined.split("|"))


ALIGNMENT_EXAMPLE = AlignmentExample(
    "alg:token-mapping",
    _tokens("int| |Cell|Connect|D|L|S|(|void|)| {| |return| |0|;| }"),
    _tokens("int| |CellConnect|DLS|(|void|)| {| |return| |0|;| }"),
    ((0, 0), (1, 1), *((i, i - 3) for i in range(7, 17))),
    (((2, 3, 4, 5, 6), (2, 3)),),
)
"""Worked example of the token mapping: `int CellConnectDLS(void) { return 0; }`."""

LOSS_PIPELINE = AlignmentExample(
    "fig:complete_loss_pipeline",
    _tokens("Import|num|py|as|np|\n|def|compute|_|mean|_|st|d|(|arr|)|:"),
    _tokens("Import|numpy|as|np|\n|def|compute|_|mean|_|std|(|arr|)|:"),
    ((0, 0), *((i, i - 1) for i in range(3, 11)), *((i, i - 2) for i in range(13, 17))),
    (((1, 2), (1,)), ((11, 12), (10,))),
)
"""The text of the loss figure; the thesis also compares the first token of both divergent groups."""

POSITION_MAPPING = AlignmentExample(
    "tab:awedist_mappings",
    ("The", "patient", "took", "pal", "at", "able", "medication"),
    ("The", "patient", "took", "palatable", "medication"),
    ((0, 0), (1, 1), (2, 2), (6, 4)),
    (((3, 4, 5), (3,)),),
)
"""AweDist's mapping. The thesis writes pairs as (extended, original); here they are (original, extended)."""

TOKENIZATION_TABLE: tuple[tuple[str, int], ...] = (
    ("def", 8942),
    (" calculate", 2651),
    ("_sum", 7326),
    ("(", 91),
    ("a", 382),
    (",", 11),
    (" b", 404),
)
"""Tokens and ids of `def calculate_sum(a, b):` in `tab:tokenization_process` (without its closing `):`)."""
