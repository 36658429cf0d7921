"""Which positions of two tokenizations of one text may be compared.

Teacher and student have read the same text at positions i and j if, and only if, their byte ends are equal.
That rule is exact and linear, and it pairs three things: identical tokens, the last subtoken of a merged
span with the token that replaced it, and inner boundaries that both sides share. Special tokens stand for no
text; they have no bytes of their own and are paired by identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property

import numpy as np

from vocabx_utils.vocabulary.lookahead import IDENTICAL, MERGED, Anchor, IntArray, KindArray, check_anchor
from vocabx_utils.vocabulary.token_bytes import BoolArray


@dataclass(frozen=True, eq=False)
class AlignedText:
    """One text under both tokenizers, and where the two may be compared.

    Attributes:
        original_ids: O, (To,) int64.
        extended_ids: E, (Te,) int64.
        original_ends: byte ends of O, (To,) int64.
        extended_ends: byte ends of E, (Te,) int64.
        boundaries: every pair (i, j) at which both sides have read the same text, (P, 2) int64, rising.
        original_special: (To,) bool, tokens that stand for no text.
        extended_special: (Te,) bool.
    """

    original_ids: IntArray
    extended_ids: IntArray
    original_ends: IntArray
    extended_ends: IntArray
    boundaries: IntArray
    original_special: BoolArray
    extended_special: BoolArray

    @cached_property
    def kind(self) -> KindArray:
        """`IDENTICAL` or `MERGED` for each boundary, (P,) int8."""
        same = self.original_ids[self.boundaries[:, 0]] == self.extended_ids[self.boundaries[:, 1]]
        return np.where(same, IDENTICAL, MERGED).astype(np.int8)

    @cached_property
    def groups(self) -> IntArray:
        """Divergent groups, (G, 4) int64: O[a:b] and E[c:d] are two spellings of the same bytes.

        A group lies between two neighbouring boundaries and ends at a `MERGED` one. Unpaired specials at its
        start are left out.
        """
        merged = np.flatnonzero(self.kind == MERGED)
        before = np.concatenate([np.full((1, 2), -1, dtype=np.int64), self.boundaries])[merged] + 1
        starts = np.stack(
            [
                _skip_specials(before[:, 0], self.original_special),
                _skip_specials(before[:, 1], self.extended_special),
            ],
            axis=1,
        )
        stops = self.boundaries[merged] + 1
        return np.stack([starts[:, 0], stops[:, 0], starts[:, 1], stops[:, 1]], axis=1)

    @cached_property
    def first_divergence(self) -> int:
        """Index before which both sides are equal; see `first_divergence`."""
        return first_divergence(self.original_ids, self.extended_ids)

    def pairs(self, anchor: Anchor = "last") -> tuple[IntArray, KindArray]:
        """Return the positions whose next-token distributions are compared.

        Args:
            anchor: what stands for a divergent group. `last`: its boundary, where both sides have read the
                same text. `first`: its first token on either side (the literal reading of the thesis; the
                two have read different amounts of text). `none`: nothing, identical tokens only.

        Returns:
            pairs (P, 2) int64, rising, and kind (P,) int8: `IDENTICAL` or `MERGED`.

        Raises:
            ValueError: for an unknown anchor.
        """
        check_anchor(anchor)
        if anchor == "last":
            return self.boundaries, self.kind
        if anchor == "none":
            keep = self.kind == IDENTICAL
            return self.boundaries[keep], self.kind[keep]
        pairs = self.boundaries.copy()
        pairs[self.kind == MERGED] = self.groups[:, [0, 2]]
        return pairs, self.kind


def first_divergence(original_ids: Sequence[int] | IntArray, extended_ids: Sequence[int] | IntArray) -> int:
    """Return the number of leading tokens that are equal on both sides.

    Teacher and student are the same model there, so the KL is exactly zero before this index.

    Args:
        original_ids: O, (To,).
        extended_ids: E, (Te,).

    Returns:
        The first index at which the ids differ, or the shorter length.
    """
    left, right = np.asarray(original_ids), np.asarray(extended_ids)
    shorter = min(len(left), len(right))
    differs = np.flatnonzero(left[:shorter] != right[:shorter])
    return int(differs[0]) if len(differs) else shorter


def align_boundaries(
    original_ends: Sequence[int] | IntArray,
    extended_ends: Sequence[int] | IntArray,
    original_ids: Sequence[int] | IntArray | None = None,
    extended_ids: Sequence[int] | IntArray | None = None,
) -> IntArray:
    """Pair all positions at which two tokenizations of one text have consumed the same bytes.

    Exact, and linear in the length of the text. Where an end repeats, the tokens that repeat it are
    specials: the token that reached the end is paired with its counterpart, and the specials among
    themselves, in order (by id when ids are given, so that a special on one side only stays alone).

    Args:
        original_ends: byte ends of O, (To,), never falling.
        extended_ends: byte ends of E, (Te,), never falling.
        original_ids: O, (To,), optional.
        extended_ids: E, (Te,), optional.

    Returns:
        (P, 2) int64, rising in both columns.

    Raises:
        ValueError: if ends fall, or ids and ends differ in length.

    Example:
        >>> align_boundaries([6, 10, 12, 15], [6, 12, 15]).tolist()
        [[0, 0], [2, 1], [3, 2]]
    """
    left, right = _checked_ends(original_ends, original_ids), _checked_ends(extended_ends, extended_ids)
    left_text, right_text = np.diff(left, prepend=0) > 0, np.diff(right, prepend=0) > 0
    if original_ids is None or extended_ids is None:
        left_ids, right_ids = np.zeros_like(left), np.zeros_like(right)
    else:
        left_ids, right_ids = np.asarray(original_ids), np.asarray(extended_ids)
    return match_tokens(left, right, left_text, right_text, ~left_text, ~right_text, left_ids, right_ids)


def _checked_ends(ends: Sequence[int] | IntArray, ids: Sequence[int] | IntArray | None) -> IntArray:
    array = np.asarray(ends, dtype=np.int64)
    if array.ndim != 1 or (len(array) and (array[0] < 0 or bool((np.diff(array) < 0).any()))):
        raise ValueError("byte ends must be one rising sequence of counts; did ids or widths get in their place?")
    if ids is not None and len(ids) != len(array):
        raise ValueError(f"{len(ids)} ids and {len(array)} byte ends; there must be one end for each id")
    return array


def match_tokens(
    left: IntArray,
    right: IntArray,
    left_text: BoolArray,
    right_text: BoolArray,
    left_special: BoolArray,
    right_special: BoolArray,
    left_ids: IntArray,
    right_ids: IntArray,
) -> IntArray:
    """Pair text tokens by their ends, and specials by end and id."""
    if left_text.all() and right_text.all():
        return _common_values(left, right)
    at_left, at_right = np.flatnonzero(left_text), np.flatnonzero(right_text)
    found = _common_values(left[at_left], right[at_right])
    pairs = np.stack([at_left[found[:, 0]], at_right[found[:, 1]]], axis=1)
    at_left, at_right = np.flatnonzero(left_special), np.flatnonzero(right_special)
    found = _common_specials(left[at_left], right[at_right], left_ids[at_left], right_ids[at_right])
    specials = np.stack([at_left[found[:, 0]], at_right[found[:, 1]]], axis=1)
    both = np.concatenate([pairs, specials])
    return both[np.argsort(both[:, 0], kind="stable")]


BLOCK = 1 << 15


def _common_values(left: IntArray, right: IntArray) -> IntArray:
    """Indices of equal values of two strictly rising arrays, (P, 2).

    One block of `right` at a time, so that the look-up table stays in the processor's cache.
    """
    found = [np.zeros((0, 2), dtype=np.int64)]
    heads = right[::BLOCK]
    cuts = np.concatenate([np.searchsorted(left, heads), [len(left)]])
    for n, (start, stop) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)):
        if start < stop:
            pairs = _common_in_block(left[start:stop], right[n * BLOCK : (n + 1) * BLOCK])
            pairs += [start, n * BLOCK]
            found.append(pairs)
    return np.concatenate(found)


def _common_in_block(left: IntArray, right: IntArray) -> IntArray:
    low, span = right[0], int(right[-1] - right[0]) + 1
    left = left[: np.searchsorted(left, right[-1], side="right")]
    if span > 64 * len(right) + 1024:  # far more bytes than tokens: a table would waste memory
        place = np.searchsorted(right, left)
        hit = np.flatnonzero(right[place] == left)
    else:
        table = np.full(span, -1, dtype=np.int32)
        table[right - low] = np.arange(len(right), dtype=np.int32)
        place = table[left - low]
        hit = np.flatnonzero(place >= 0)
    pairs = np.empty((len(hit), 2), dtype=np.int64)
    pairs[:, 0], pairs[:, 1] = hit, place[hit]
    return pairs


def _common_specials(left: IntArray, right: IntArray, left_ids: IntArray, right_ids: IntArray) -> IntArray:
    """Indices of equal (end, id) of two lists of specials, (P, 2)."""
    if np.array_equal(left, right) and np.array_equal(left_ids, right_ids):
        return np.repeat(np.arange(len(left), dtype=np.int64)[:, None], 2, axis=1)
    keys_left = list(zip(left.tolist(), left_ids.tolist(), strict=True))
    keys_right = list(zip(right.tolist(), right_ids.tolist(), strict=True))
    blocks = SequenceMatcher(None, keys_left, keys_right, autojunk=False).get_matching_blocks()
    pairs = [(block.a + k, block.b + k) for block in blocks for k in range(block.size)]
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _skip_specials(positions: IntArray, special: BoolArray) -> IntArray:
    """Move each position to the first token at or after it that stands for text."""
    if not special.any():
        return positions
    text = np.flatnonzero(~special)
    return text[np.searchsorted(text, positions)]


def summarize(aligned: Iterable[AlignedText]) -> dict[str, float | int]:
    """Count what an alignment of many texts holds.

    Args:
        aligned: aligned texts.

    Returns:
        Numbers of texts, tokens on either side, boundaries by kind, divergent groups and their sizes,
        original tokens without a partner, and shares in 0..1.
    """
    found = list(aligned)
    original = sum(len(text.original_ids) for text in found)
    extended = sum(len(text.extended_ids) for text in found)
    identical = sum(int((text.kind == IDENTICAL).sum()) for text in found)
    groups = np.concatenate([text.groups for text in found] or [np.zeros((0, 4), dtype=np.int64)])
    equal_prefix = sum(text.first_divergence for text in found)
    return {
        "texts": len(found),
        "texts_that_diverge": sum(len(text.groups) > 0 for text in found),
        "bytes": sum(int(text.original_ends[-1]) for text in found if len(text.original_ends)),
        "original_tokens": original,
        "extended_tokens": extended,
        "identical_pairs": identical,
        "merged_pairs": len(groups),
        "original_unpaired": original - identical - len(groups),
        "extended_unpaired": extended - identical - len(groups),
        "groups_of_one_new_token": int((groups[:, 3] - groups[:, 2] == 1).sum()),
        "longest_group": int((groups[:, 1] - groups[:, 0]).max(initial=0)),
        "share_saved": (original - extended) / max(original, 1),
        "share_before_first_divergence": equal_prefix / max(extended, 1),
    }
