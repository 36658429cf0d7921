"""The thesis's algorithm: its worked example, its readings, and where it joins two different places."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from vocabx_utils.thesis import LOSS_PIPELINE
from vocabx_utils.vocabulary.alignment import IDENTICAL, MERGED, align_ids
from vocabx_utils.vocabulary.boundaries import align_boundaries
from vocabx_utils.vocabulary.encoding import piece_ends
from vocabx_utils.vocabulary.lookahead import (
    ORDERS,
    LookaheadCheck,
    TokenMapping,
    WrongPair,
    check_lookahead,
    map_token_sequences,
    wrong_pairs,
)

ORIGINAL = ["int", " ", "Cell", "Connect", "D", "L", "S", "(", "void", ")", " {", " ", "return", " ", "0", ";", " }"]
EXTENDED = ["int", " ", "CellConnect", "DLS", "(", "void", ")", " {", " ", "return", " ", "0", ";", " }"]
SIMILAR = [(0, 0), (1, 1), *((k, k - 3) for k in range(7, 17))]


@pytest.mark.parametrize("order", ORDERS)
def test_worked_example_of_the_thesis(order):
    assert (len(ORIGINAL), len(EXTENDED)) == (17, 14)
    mapping = map_token_sequences(ORIGINAL, EXTENDED, order=order)
    assert mapping.similar == SIMILAR
    assert mapping.divergent == [([2, 3, 4, 5, 6], [2, 3])]
    assert wrong_pairs(mapping, piece_ends(ORIGINAL), piece_ends(EXTENDED)) == []


def test_worked_example_with_ids_is_the_same():
    number = {text: index for index, text in enumerate(dict.fromkeys(ORIGINAL + EXTENDED))}
    mapping = map_token_sequences([number[t] for t in ORIGINAL], [number[t] for t in EXTENDED])
    assert mapping == map_token_sequences(ORIGINAL, EXTENDED)


def test_exact_rule_splits_the_thesis_group_at_its_inner_boundary():
    pairs = align_boundaries(piece_ends(ORIGINAL), piece_ends(EXTENDED)).tolist()
    assert pairs == sorted([list(pair) for pair in SIMILAR] + [[3, 2], [6, 3]])


def test_thesis_pairs_for_each_anchor():
    mapping = map_token_sequences(["a", "num", "py", "b"], ["a", "numpy", "b"])
    first, kind = mapping.pairs("first")
    assert first.tolist() == [[0, 0], [1, 1], [3, 2]] and kind.tolist() == [IDENTICAL, MERGED, IDENTICAL]
    assert mapping.pairs("last")[0].tolist() == [[0, 0], [2, 1], [3, 2]]
    assert mapping.pairs("none")[0].tolist() == [[0, 0], [3, 2]]
    assert TokenMapping([], []).pairs("first")[0].shape == (0, 2)


def test_remaining_tokens_and_missing_resynchronisation():
    assert map_token_sequences("abc", "abcde").divergent == [([], [3, 4])]
    assert map_token_sequences("abcde", "abc").divergent == [([3, 4], [])]
    assert map_token_sequences("abx", "cdx", lookahead=1) == TokenMapping([(2, 2)], [([0], [0]), ([1], [1])])
    assert map_token_sequences([], []) == TokenMapping([], [])
    assert map_token_sequences("wxab", "ab") == TokenMapping([(2, 0), (3, 1)], [([0, 1], [])])


def test_lookahead_counts_offsets_up_to_and_including_its_limit():
    original = [*range(100, 120), 7]
    assert map_token_sequences(original, [7], lookahead=20).similar == [(20, 0)]
    assert map_token_sequences(original, [7], lookahead=19).similar == []


def test_readings_of_smallest_offset_differ_where_the_text_repeats_a_token():
    original = ["df", ".", "group", "by", "(", "by", "="]
    extended = ["df", ".", "groupby", "(", "by", "="]
    ends = piece_ends(original), piece_ends(extended)
    wrong = {o: wrong_pairs(map_token_sequences(original, extended, order=o), *ends) for o in ORDERS}
    assert wrong == {"sum": [(3, 4)], "original": [(3, 4)], "extended": []}


@given(st.lists(st.integers(0, 3), max_size=30), st.lists(st.integers(0, 3), max_size=30), st.sampled_from(ORDERS))
def test_mapping_covers_each_position_once(left, right, order):
    mapping = map_token_sequences(left, right, lookahead=5, order=order)
    assert all(left[i] == right[j] for i, j in mapping.similar)
    used_left = [i for i, _ in mapping.similar] + [i for a, _ in mapping.divergent for i in a]
    used_right = [j for _, j in mapping.similar] + [j for _, b in mapping.divergent for j in b]
    assert sorted(used_left) == list(range(len(left))) and sorted(used_right) == list(range(len(right)))


@given(st.lists(st.integers(0, 2), max_size=14), st.lists(st.integers(0, 2), max_size=14))
def test_resynchronisation_takes_the_smallest_sum(left, right):
    mapping = map_token_sequences(left, right, lookahead=20)
    parted = next((k for k, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
    if parted is None:
        return
    later = [
        (i + j, i, j)
        for i, j in itertools.product(range(len(left) - parted), range(len(right) - parted))
        if left[parted + i] == right[parted + j]
    ]
    if later:
        _, d, e = min(later)
        assert mapping.divergent[0] == (list(range(parted, parted + d)), list(range(parted, parted + e)))


@pytest.mark.parametrize("bad", [{"lookahead": 0}, {"order": "largest"}])
def test_mapping_refuses_bad_options(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        map_token_sequences([1], [2], **bad)


def test_lookahead_check_finds_wrong_and_missed_pairs():
    words = ["df", ".", "group", "by", "(", "=", "groupby"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()))
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in words])
    left, right = ([words.index(w) for w in s.split()] for s in ("df . group by ( by =", "df . groupby ( by ="))
    aligned = align_ids(SimpleNamespace(original=tokenizer, extended=tokenizer), left, right)
    checks = [check_lookahead([aligned, aligned], order=order) for order in ("sum", "extended")]
    assert checks[0].wrong == (WrongPair(0, 3, 4, 5), WrongPair(1, 3, 4, 5))
    assert (checks[0].texts, checks[0].missed, checks[1].wrong, checks[1].missed) == (2, 4, (), 0)


def test_columns_that_predict_their_token_are_the_pairs_of_last():
    both = LOSS_PIPELINE.original, LOSS_PIPELINE.extended
    mapping = map_token_sequences(*both)
    columns = mapping.pairs("first")[0]
    assert (columns[1:] - 1).tolist() == mapping.pairs("last")[0][:-1].tolist()
    ends = [piece_ends(side) for side in both]
    assert (ends[0][columns[:, 0]] != ends[1][columns[:, 1]]).sum() == len(LOSS_PIPELINE.divergent) == 2


def test_wrong_pairs_within_reach_are_grouped_by_text():
    pairs = [WrongPair(2, 5, 6, 4), WrongPair(0, 1, 2, 3), WrongPair(0, 90, 3, 4), WrongPair(1, 2, 3, None)]
    check = LookaheadCheck("sum", 9, (*pairs, WrongPair(3, 1, 1, 2), WrongPair(0, 2, 3, 4)), 0)
    assert check.within(50, 2) == {0: [pairs[1], WrongPair(0, 2, 3, 4)], 2: [pairs[0]]}
    assert list(check.within(100, 9)) == [0, 2, 3]
    assert check.within(3, 9) == {3: [WrongPair(3, 1, 1, 2)]}
