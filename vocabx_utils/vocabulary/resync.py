"""Where the thesis's look-ahead algorithm re-synchronises at the wrong place, on whole corpora.

The look-ahead algorithm compares tokens. When a token of a divergent span comes again soon after, it may take the
two for each other; every pair that it then records joins two different places of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vocabx_utils.vocabulary.alignment import IDENTICAL, AlignedText, Order, map_token_sequences, wrong_pairs


@dataclass(frozen=True)
class WrongPair:
    """A pair of equal tokens at two different places of a text.

    Attributes:
        text: which text.
        original: position i in O.
        extended: position j in E.
        partner: the position in O that has read the same text as j, or None if there is none.
    """

    text: int
    original: int
    extended: int
    partner: int | None


@dataclass(frozen=True)
class LookaheadCheck:
    """What the look-ahead algorithm does on a corpus, under one reading of "smallest offsets".

    Attributes:
        order: the reading, see `map_token_sequences`.
        similar: pairs of equal tokens that it records.
        wrong: those that join two different places.
        missed: pairs of identical tokens at the same place that it does not record.
    """

    order: Order
    similar: int
    wrong: tuple[WrongPair, ...]
    missed: int

    @property
    def texts(self) -> int:
        """Number of texts with a wrong pair."""
        return len({pair.text for pair in self.wrong})


def check_lookahead(aligned: Sequence[AlignedText], lookahead: int = 20, order: Order = "sum") -> LookaheadCheck:
    """Run the look-ahead algorithm over aligned texts and compare its pairs with the exact ones.

    Args:
        aligned: aligned texts.
        lookahead: largest offset tried, in tokens.
        order: the reading of "smallest offsets".

    Returns:
        Counts and the wrong pairs, in the order of the texts.
    """
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
