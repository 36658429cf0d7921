"""At which positions two tokenizations of one text have read the same bytes.

That rule is exact and linear, and it pairs three things: identical tokens, the last subtoken of a merged span with the
token that replaced it, and inner boundaries that both sides share. Special tokens stand for no text; they have no bytes
of their own and are paired by identity.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

import numpy as np

from vocabx_utils.vocabulary.spelling import BoolArray, IntArray

_BLOCK = 1 << 13


class Side(NamedTuple):
    """One tokenization: ids and byte ends, which tokens stand for text and which are specials, each (T,)."""

    ids: IntArray
    ends: IntArray
    is_text: BoolArray
    is_special: BoolArray


def align_boundaries(
    original_ends: Sequence[int] | IntArray,
    extended_ends: Sequence[int] | IntArray,
    original_ids: Sequence[int] | IntArray | None = None,
    extended_ids: Sequence[int] | IntArray | None = None,
) -> IntArray:
    """Pair all positions at which two tokenizations of one text have consumed the same bytes: (P, 2), rising.

    Exact, and linear in the length of the text. Where an end repeats, the tokens that repeat it are specials: the token
    that reached the end is paired with its counterpart, and the specials among themselves, in order (by id when ids are
    given, so that a special on one side only stays alone). ValueError where ends fall, or ids and ends differ in
    length.

    >>> align_boundaries([6, 10, 12, 15], [6, 12, 15]).tolist()
    [[0, 0], [2, 1], [3, 2]]
    """
    if original_ids is None or extended_ids is None:
        original_ids = extended_ids = None
    return match_tokens(_bare_side(original_ends, original_ids), _bare_side(extended_ends, extended_ids))


def _bare_side(ends: Sequence[int] | IntArray, ids: Sequence[int] | IntArray | None) -> Side:
    """A side of which only ends, and maybe ids, are known: what repeats an end is a special."""
    array = np.asarray(ends, dtype=np.int64)
    if array.ndim != 1 or (len(array) and (array[0] < 0 or bool((np.diff(array) < 0).any()))):
        raise ValueError("byte ends must be one rising sequence of counts; did ids or widths get in their place?")
    if ids is not None and len(ids) != len(array):
        raise ValueError(f"{len(ids)} ids and {len(array)} byte ends; there must be one end for each id")
    is_text = np.diff(array, prepend=0) > 0
    return Side(np.zeros_like(array) if ids is None else np.asarray(ids), array, is_text, ~is_text)


def match_tokens(original: Side, extended: Side) -> IntArray:
    """Pair text tokens by their ends, and specials by end and id: (P, 2), rising."""
    if original.is_text.all() and extended.is_text.all():
        return _common_values(original.ends, extended.ends)
    left, right = np.flatnonzero(original.is_text), np.flatnonzero(extended.is_text)
    found = _common_values(original.ends[left], extended.ends[right])
    pairs = np.stack([left[found[:, 0]], right[found[:, 1]]], axis=1)
    left, right = np.flatnonzero(original.is_special), np.flatnonzero(extended.is_special)
    found = _common_specials(original.ends[left], extended.ends[right], original.ids[left], extended.ids[right])
    specials = np.stack([left[found[:, 0]], right[found[:, 1]]], axis=1)
    both = np.concatenate([pairs, specials])
    return both[np.argsort(both[:, 0], kind="stable")]


def first_divergence(original_ids: Sequence[int] | IntArray, extended_ids: Sequence[int] | IntArray) -> int:
    """Count the leading tokens that are equal on both sides.

    Teacher and student are the same model there, so the KL is exactly zero before this index.
    """
    left, right = np.asarray(original_ids), np.asarray(extended_ids)
    shorter = min(len(left), len(right))
    differs = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(differs[0]) if len(differs) else shorter


def _common_values(left: IntArray, right: IntArray) -> IntArray:
    """Indices of equal values of two strictly rising arrays without negative values, (P, 2).

    One block of `left` at a time, so that what is searched stays in the processor's cache.
    """
    found = [np.zeros((0, 2), dtype=np.int64)]
    for start in range(0, len(left), _BLOCK):
        block = left[start : start + _BLOCK]
        low, high = np.searchsorted(right, [block[0], block[-1] + 1])
        place = np.searchsorted(right[low:high], block)
        hit = np.flatnonzero(np.append(right[low:high], -1)[place] == block)
        found.append(np.stack([hit + start, place[hit] + low], axis=1))
    return np.concatenate(found)


def _common_specials(left: IntArray, right: IntArray, left_ids: IntArray, right_ids: IntArray) -> IntArray:
    """Indices of equal (end, id) of two lists of specials, (P, 2)."""
    if np.array_equal(left, right) and np.array_equal(left_ids, right_ids):
        return np.repeat(np.arange(len(left), dtype=np.int64)[:, None], 2, axis=1)
    keys_left = list(zip(left.tolist(), left_ids.tolist(), strict=True))
    keys_right = list(zip(right.tolist(), right_ids.tolist(), strict=True))
    blocks = SequenceMatcher(None, keys_left, keys_right, autojunk=False).get_matching_blocks()
    pairs = [(block.a + k, block.b + k) for block in blocks for k in range(block.size)]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)
