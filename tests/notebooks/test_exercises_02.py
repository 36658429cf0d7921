"""The answers to the exercises of notebook 02, computed."""

from __future__ import annotations

import itertools

from vocabx_utils.vocabulary.boundaries import align_boundaries
from vocabx_utils.vocabulary.encoding import piece_ends
from vocabx_utils.vocabulary.lookahead import map_token_sequences

ORIGINAL = ["x", ".", "st", "d", "(", "st", ")"]
EXTENDED = ["x", ".", "std", "(", "st", ")"]


def test_exercise_1_ends_pairs_and_anchors() -> None:
    ends = piece_ends(ORIGINAL), piece_ends(EXTENDED)
    assert ends[0].tolist() == [1, 2, 4, 5, 6, 8, 9]
    assert ends[1].tolist() == [1, 2, 5, 6, 8, 9]
    exact = [tuple(pair) for pair in align_boundaries(*ends).tolist()]
    assert exact == [(0, 0), (1, 1), (3, 2), (4, 3), (5, 4), (6, 5)]
    group = map_token_sequences(ORIGINAL, EXTENDED, order="extended")
    assert group.divergent == [([2, 3], [2])]
    # what stands for the group, beside the five pairs of identical tokens
    anchored = {anchor: {tuple(p) for p in group.pairs(anchor)[0].tolist()} for anchor in ("last", "first", "none")}
    assert anchored["none"] == set(group.similar)
    assert anchored["last"] - anchored["none"] == {(3, 2)}
    assert anchored["first"] - anchored["none"] == {(2, 2)}


def test_exercise_1_the_walk_takes_the_argument_for_the_start_of_the_word() -> None:
    found = map_token_sequences(ORIGINAL, EXTENDED, order="sum")
    assert found.similar == [(0, 0), (1, 1), (2, 4), (6, 5)]
    assert found.divergent == [([], [2, 3]), ([3, 4, 5], [])]
    exact = {tuple(pair) for pair in align_boundaries(piece_ends(ORIGINAL), piece_ends(EXTENDED)).tolist()}
    assert set(found.similar) - exact == {(2, 4)}
    assert exact - set(found.similar) == {(3, 2), (4, 3), (5, 4)}


def test_exercise_2_counting_characters_makes_false_pairs() -> None:
    cuts = [bytes([b]) for b in "⭢".encode()]
    heads = list(itertools.accumulate(cuts))
    started = [1 for _ in heads]
    complete = [int(head.decode(errors="ignore") == "⭢") for head in heads]
    assert complete == [0, 0, 1]

    def pairs(ends: list[int]) -> set[tuple[int, int]]:
        return {(i, j) for i, a in enumerate(ends) for j, b in enumerate(ends) if a == b}

    right = pairs(piece_ends(cuts).tolist())
    assert right == {(0, 0), (1, 1), (2, 2)}
    assert (len(pairs(started)), len(pairs(started) - right)) == (9, 6)
    assert (len(pairs(complete)), len(pairs(complete) - right)) == (5, 2)
