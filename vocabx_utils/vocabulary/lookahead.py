"""The thesis's token mapping: walk two token sequences, look ahead when they part.

Kept to the letter as a reference (Algorithm "Token Sequence Mapping", `alg:token-mapping`), because results of the
thesis rest on it. It compares tokens, not text: when a token of a divergent span comes again soon after, it may take
the two for each other, and every pair that it then records joins two different places of the text. `check_lookahead`
counts that on whole corpora. Everything else in this project uses byte ends (`alignment`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from vocabx_utils.vocabulary.alignment import IDENTICAL, MERGED, AlignedText, Anchor, KindArray, check_anchor
from vocabx_utils.vocabulary.spelling import IntArray

Order = Literal["sum", "original", "extended"]
ORDERS: tuple[Order, ...] = ("sum", "original", "extended")


@dataclass(frozen=True)
class TokenMapping:
    """What the look-ahead algorithm returns."""

    similar: list[tuple[int, int]]  # index pairs (i, j), 0-based, at which both sequences hold the same token
    # pairs of index lists (original side, extended side) that stand for each other. One of the two lists may be empty.
    divergent: list[tuple[list[int], list[int]]]

    def pairs(self, anchor: Anchor = "first") -> tuple[IntArray, KindArray]:
        """Return the positions whose distributions are compared, in the thesis's own grouping; see `AlignedText.pairs`.

        The thesis keeps the columns of a group's first tokens. A group of which one side is empty has nothing to
        compare.
        """
        check_anchor(anchor)
        found = [(i, j, IDENTICAL) for i, j in self.similar]
        if anchor != "none":
            end = 0 if anchor == "first" else -1
            found += [(left[end], right[end], MERGED) for left, right in self.divergent if left and right]
        table = np.array(sorted(found), dtype=np.int64).reshape(-1, 3)
        return table[:, :2], table[:, 2].astype(np.int8)


def _offsets(lookahead: int, order: Order) -> Iterator[tuple[int, int]]:
    """Yield the offsets (d, d') other than (0, 0) in the order in which they are tried."""
    if order == "sum":
        for total in range(1, 2 * lookahead + 1):
            for d in range(max(0, total - lookahead), min(total, lookahead) + 1):
                yield d, total - d
        return
    for outer in range(lookahead + 1):
        for inner in range(lookahead + 1):
            if outer or inner:
                yield (outer, inner) if order == "original" else (inner, outer)


def map_token_sequences(
    original: Sequence[int] | Sequence[str],
    extended: Sequence[int] | Sequence[str],
    lookahead: int = 20,
    order: Order = "sum",
) -> TokenMapping:
    """Map two tokenizations of one text onto each other as the thesis's Algorithm `alg:token-mapping` does.

    The thesis asks for "the smallest offsets d, d'" without saying how two offsets are compared. `order`
    holds the three readings: `sum` (smallest d + d', then smallest d), `original` (smallest d, then d'),
    `extended` (smallest d', then d). The thesis's worked example comes out the same under each. `lookahead` is the
    largest offset tried on either side, in tokens. ValueError where it is below 1, or for an unknown order.

    Example:
        >>> map_token_sequences(["import", " num", "py", " as"], ["import", " numpy", " as"])
        TokenMapping(similar=[(0, 0), (3, 2)], divergent=[([1, 2], [1])])
    """
    if lookahead < 1:
        raise ValueError(f"lookahead={lookahead} tokens; it must be at least 1 (the thesis uses 20)")
    if order not in ORDERS:
        raise ValueError(f"order={order!r} is unknown; use one of {', '.join(ORDERS)}")
    offsets = list(_offsets(lookahead, order))
    similar: list[tuple[int, int]] = []
    divergent: list[tuple[list[int], list[int]]] = []
    i = j = 0
    n, m = len(original), len(extended)
    while i < n and j < m:
        if original[i] == extended[j]:
            similar.append((i, j))
            i, j = i + 1, j + 1
            continue
        for d, e in offsets:
            if i + d < n and j + e < m and original[i + d] == extended[j + e]:
                divergent.append((list(range(i, i + d)), list(range(j, j + e))))
                i, j = i + d, j + e
                break
        else:
            divergent.append(([i], [j]))
            i, j = i + 1, j + 1
    if i < n:
        divergent.append((list(range(i, n)), []))
    if j < m:
        divergent.append(([], list(range(j, m))))
    return TokenMapping(similar, divergent)


def wrong_pairs(mapping: TokenMapping, original_ends: IntArray, extended_ends: IntArray) -> list[tuple[int, int]]:
    """List the similar pairs (i, j) that join two places of the text: their byte ends, (To,) and (Te,), differ."""
    if not mapping.similar:
        return []
    pairs = np.array(mapping.similar, dtype=np.int64)
    wrong = np.asarray(original_ends)[pairs[:, 0]] != np.asarray(extended_ends)[pairs[:, 1]]
    return [(int(i), int(j)) for i, j in pairs[wrong]]


class WrongPair(NamedTuple):
    """A pair of equal tokens at two different places of a text."""

    text: int  # which text
    original: int  # position i in O
    extended: int  # position j in E
    partner: int | None  # the position in O that has read the same text as j, or None if there is none


@dataclass(frozen=True)
class LookaheadCheck:
    """What the look-ahead algorithm does on a corpus, under one reading of "smallest offsets"."""

    order: Order  # the reading, see `map_token_sequences`
    similar: int  # pairs of equal tokens that it records
    wrong: tuple[WrongPair, ...]  # those that join two different places
    missed: int  # pairs of identical tokens at the same place that it does not record

    @property
    def texts(self) -> int:
        """Number of texts with a wrong pair."""
        return len({pair.text for pair in self.wrong})

    def within(self, tokens: int, texts: int) -> dict[int, list[WrongPair]]:
        """Return wrong pairs with a true partner, by text: all three positions below `tokens`, at most `texts` texts.

        A causal model that reads a text only so far gives their distributions.
        """
        found: dict[int, list[WrongPair]] = {}
        for pair in sorted(self.wrong, key=lambda pair: pair.text):
            if pair.partner is not None and max(pair.original, pair.extended, pair.partner) < tokens:
                found.setdefault(pair.text, []).append(pair)
        return dict(list(found.items())[:texts])


def check_lookahead(aligned: Sequence[AlignedText], lookahead: int = 20, order: Order = "sum") -> LookaheadCheck:
    """Run the look-ahead algorithm over aligned texts and compare its pairs with the exact ones."""
    similar, missed = 0, 0
    wrong: list[WrongPair] = []
    for n, text in enumerate(aligned):
        mapping = map_token_sequences(text.original_ids.tolist(), text.extended_ids.tolist(), lookahead, order)
        partner = {j: i for i, j in text.boundaries.tolist()}
        found = wrong_pairs(mapping, text.original_ends, text.extended_ends)
        wrong += [WrongPair(n, i, j, partner.get(j)) for i, j in found]
        similar += len(mapping.similar)
        exact = {(i, j) for i, j in text.boundaries[text.kind == IDENTICAL].tolist()}
        missed += len(exact.difference(mapping.similar))
    return LookaheadCheck(order, similar, tuple(wrong), missed)
