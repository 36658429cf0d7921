"""Align texts under an original and an extended tokenizer.

Teacher and student have read the same text at positions i and j if, and only if, their byte ends are equal (see
`boundaries`). The thesis's own algorithm stands in `lookahead`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from vocabx_utils.vocabulary.boundaries import Side, first_divergence, match_tokens
from vocabx_utils.vocabulary.encoding import encode_each, text_batches
from vocabx_utils.vocabulary.spelling import BoolArray, IntArray, Spelling, spelling_of
from vocabx_utils.vocabulary.tokens import Extension
from vocabx_utils.vocabulary.walk import follow, new_added

KindArray = npt.NDArray[np.int8]
Anchor = Literal["first", "last", "none"]
ANCHORS: tuple[Anchor, ...] = ("first", "last", "none")
IDENTICAL, MERGED = 0, 1


@dataclass(frozen=True, eq=False)
class AlignedText:
    """One text under both tokenizers, and where the two may be compared."""

    original_ids: IntArray  # O, (To,)
    extended_ids: IntArray  # E, (Te,)
    original_ends: IntArray  # byte ends of O, (To,)
    extended_ends: IntArray  # byte ends of E, (Te,)
    boundaries: IntArray  # every pair (i, j) at which both sides have read the same text, (P, 2), rising
    original_special: BoolArray  # tokens of O that stand for no text, (To,)
    extended_special: BoolArray  # the same of E, (Te,)
    # first position in E of each span that was left as its original tokens on purpose (see `training.dropout`)
    unmerged: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @cached_property
    def kind(self) -> KindArray:
        """`IDENTICAL` or `MERGED` for each boundary, (P,)."""
        same = self.original_ids[self.boundaries[:, 0]] == self.extended_ids[self.boundaries[:, 1]]
        return np.where(same, IDENTICAL, MERGED).astype(np.int8)

    @cached_property
    def groups(self) -> IntArray:
        """Divergent groups, (G, 4): O[a:b] and E[c:d] are two spellings of the same bytes.

        A group lies between two neighbouring boundaries and ends at a `MERGED` one. Unpaired specials at its start
        are left out.
        """
        merged = np.flatnonzero(self.kind == MERGED)
        before = np.concatenate([np.full((1, 2), -1, dtype=np.int64), self.boundaries])[merged] + 1  # (G, 2)
        stops = self.boundaries[merged] + 1  # (G, 2)
        a = _skip_specials(before[:, 0], self.original_special)
        c = _skip_specials(before[:, 1], self.extended_special)
        return np.stack([a, stops[:, 0], c, stops[:, 1]], axis=1)

    @cached_property
    def first_divergence(self) -> int:
        """Index before which both sides are equal; see `boundaries.first_divergence`."""
        return first_divergence(self.original_ids, self.extended_ids)

    def pairs(self, anchor: Anchor = "last") -> tuple[IntArray, KindArray]:
        """Return the positions whose next-token distributions are compared, (P, 2), rising, and their kinds, (P,).

        Args:
            anchor: what stands for a divergent group. `last`: its boundary, where both sides have read the same text.
                `first`: its first token on either side, which have read different amounts of text. `none`: nothing,
                identical tokens only. The columns that the thesis's loss figure keeps are the pairs of `first` if a
                column stands after its token, and those of `last` if it predicts it; the thesis does not say which.
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


def check_anchor(anchor: str) -> None:
    """Refuse an anchor that is not one of `ANCHORS`."""
    if anchor not in ANCHORS:
        raise ValueError(f"anchor={anchor!r} is unknown; use one of {', '.join(ANCHORS)}")


def _skip_specials(positions: IntArray, special: BoolArray) -> IntArray:
    """Move each position to the first token at or after it that stands for text."""
    if not special.any():
        return positions
    text = np.flatnonzero(~special)
    return text[np.searchsorted(text, positions)]


def align_text(extension: Extension, text: str, *, add_special_tokens: bool = False) -> AlignedText:
    """Tokenize a text with both tokenizers of an extension and align the two.

    `add_special_tokens` lets both add their own specials (BOS, EOS). ValueError for kinds of tokenizers that
    `spelling_of` refuses, or if the two do not read the same text.

    Example:
        >>> from vocabx_utils.models import load_tokenizer
        >>> from vocabx_utils.vocabulary.extend import add_tokens
        >>> extension = add_tokens(load_tokenizer("smollm2-135m"), [" groupby"])
        >>> aligned = align_text(extension, "x groupby y")  # x, group, by, y and x, groupby, y
        >>> aligned.boundaries.tolist(), aligned.groups.tolist()
        ([[0, 0], [2, 1], [3, 2]], [[1, 3, 1, 2]])
    """
    return align_texts(extension, [text], add_special_tokens=add_special_tokens)[0]


def align_texts(
    extension: Extension, texts: Iterable[str], *, add_special_tokens: bool = False, batch_characters: int = 1_000_000
) -> list[AlignedText]:
    """Align many texts, as `align_text` does one; so many characters are encoded and matched at a time."""
    aligned: list[AlignedText] = []
    for batch in text_batches(texts, batch_characters):
        both = (
            encode_each(tokenizer, batch, add_special_tokens=add_special_tokens)
            for tokenizer in (extension.original, extension.extended)
        )
        left, right = ([np.array(ids, dtype=np.int64) for ids in side] for side in both)
        aligned += _align_batch(extension, batch, left, right)
    return aligned


def align_ids(
    extension: Extension, original_ids: Sequence[int] | IntArray, extended_ids: Sequence[int] | IntArray
) -> AlignedText:
    """Align two token sequences of one text that are already encoded: O, (To,), and E, (Te,).

    ValueError for unknown ids, or if the two sequences do not spell the same text.
    """
    left, right = (np.asarray(ids, dtype=np.int64) for ids in (original_ids, extended_ids))
    return _align_batch(extension, [None], [left], [right])[0]


def _align_batch(
    extension: Extension, texts: Sequence[str | None], left: list[IntArray], right: list[IntArray]
) -> list[AlignedText]:
    """Align a batch with one match over all of its tokens, the texts laid end to end one byte apart."""
    spellings = spelling_of(extension.original), spelling_of(extension.extended)
    rows = [_lay_out(spelling, ids) for spelling, ids in zip(spellings, (left, right), strict=True)]
    walked = _texts_to_walk(texts, rows[0], rows[1], *spellings)
    lengths = np.maximum(rows[0].totals, rows[1].totals)
    base = np.concatenate([[0], np.cumsum(lengths + 1)])[:-1]
    pairs = match_tokens(*(Side(r.ids, r.ends + np.repeat(base, r.sizes), r.widths > 0, r.special) for r in rows))
    cuts = np.searchsorted(pairs[:, 0], rows[0].starts)
    aligned = []
    for n in range(len(texts)):
        if n in walked:
            aligned.append(_walk(left[n], right[n], *spellings))
            continue
        a, b = (slice(r.starts[n], r.starts[n + 1]) for r in rows)
        boundaries = pairs[cuts[n] : cuts[n + 1]] - [rows[0].starts[n], rows[1].starts[n]]
        ends, special = (rows[0].ends[a], rows[1].ends[b]), (rows[0].special[a], rows[1].special[b])
        aligned.append(AlignedText(left[n], right[n], *ends, boundaries, *special))
    return aligned


@dataclass(frozen=True)
class _Row:
    """The tokens of a batch in one row, (T,); ends count from each text's start. Sizes and totals are by text."""

    ids: IntArray
    widths: IntArray
    special: BoolArray
    ends: IntArray
    sizes: IntArray  # tokens of each text
    starts: IntArray  # first token of each text, and T
    totals: IntArray  # bytes of each text


def _lay_out(spelling: Spelling, texts: list[IntArray]) -> _Row:
    sizes = np.array([len(ids) for ids in texts], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    ids = np.concatenate(texts)
    widths = spelling.widths_of(ids)
    running = np.concatenate([[0], np.cumsum(widths)])
    before = running[starts[:-1]]
    ends = running[1:] - np.repeat(before, sizes)
    return _Row(ids, widths, spelling.is_control[ids], ends, sizes, starts, running[starts[1:]] - before)


def _texts_to_walk(
    texts: Sequence[str | None], left: _Row, right: _Row, original: Spelling, extended: Spelling
) -> set[int]:
    """List the texts that must be followed token by token, since the two sides may count different bytes.

    See `walk.follow`. Equal totals prove nothing: a space that is missing before a new token may be made up for by one
    too many after another.
    """
    unequal = set(np.flatnonzero(left.totals != right.totals).tolist())
    is_new = new_added(original, extended)
    if not (is_new.any() and (extended.rewrites or extended.segment_prefix != "none")):
        return unequal
    hits = np.concatenate([[0], np.cumsum(is_new[right.ids])])[right.starts]
    for n in np.flatnonzero(np.diff(hits)).tolist():
        text = texts[n]
        if extended.segment_prefix != "none" or text is None or extended.normalise(text) != text:
            unequal.add(n)
    return unequal


def _walk(left: IntArray, right: IntArray, original: Spelling, extended: Spelling) -> AlignedText:
    """Align one text along the bytes that the original side read."""
    widths = np.array([len(original.raws[index]) for index in left], dtype=np.int64)
    left_ends = np.cumsum(widths)
    right_ends, exact = follow(b"".join(original.raws[index] for index in left), right, original, extended)
    left_special, right_special = original.is_control[left], extended.is_control[right]
    advances = np.diff(right_ends, prepend=0) > 0
    boundaries = match_tokens(
        Side(left, left_ends, widths > 0, left_special),
        Side(right, right_ends, advances & exact, right_special & exact),
    )
    return AlignedText(left, right, left_ends, right_ends, boundaries, left_special, right_special)


def summarize(aligned: Iterable[AlignedText], first_new: int) -> dict[str, float | int]:
    """Count texts, tokens, boundaries by kind, divergent groups, tokens without a partner; shares are in 0..1.

    Of the new tokens, whose ids begin at `first_new` (V): their share of all extended tokens, and the mean length of
    what one of them stands for, in bytes and in original tokens.
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
        "share_unpaired": (extended - identical - len(groups)) / max(extended, 1),
        **_summarize_new(found, groups, first_new),
    }


def _summarize_new(found: list[AlignedText], groups: IntArray, first_new: int) -> dict[str, float | int]:
    """Count new tokens; what a group holds beside them (rests of tokens that were cut) belongs to their span."""
    new = [text.extended_ids >= first_new for text in found]
    count = sum(int(which.sum()) for which in new)
    widths = (np.diff(text.extended_ends, prepend=0)[which] for text, which in zip(found, new, strict=True))
    # every new token lies in one group, and a group without one is there because of its neighbour
    replaced = int((groups[:, 1] - groups[:, 0]).sum()) - int((groups[:, 3] - groups[:, 2]).sum()) + count
    return {
        "new_tokens": count,
        "share_new": count / max(sum(len(which) for which in new), 1),
        "bytes_per_new": sum(int(width.sum()) for width in widths) / max(count, 1),
        "subtokens_per_new": replaced / max(count, 1),
    }
