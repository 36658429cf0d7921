"""What an extension does to text: gains, and everything that can go wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np
import pandas as pd

from vocabx_utils.glyphs import visible
from vocabx_utils.source_tree import Document
from vocabx_utils.vocabulary.alignment import IDENTICAL, AlignedText, align_texts
from vocabx_utils.vocabulary.checks import round_trip_failures, unreachable
from vocabx_utils.vocabulary.encoding import encode_all, encode_each, text_batches
from vocabx_utils.vocabulary.spelling import spelling_of
from vocabx_utils.vocabulary.tokens import Extension, NewToken

# Own text; each line is a kind of input that tokenizers have been known to get wrong.
UNICODE_STRESS = (
    "café cafe\u0301 Å A\u030a ﬁ ½",  # composed, combining, compatibility forms
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪 🙂🙃",  # joined emoji, skin tones, flags
    "数据框按列分组 データ 한국어 กลุ่ม नमस्ते",
    "مرحبا بالعالم שלום",
    "line one\r\nline two\rline three\n\n\n",
    "\tif x:\n\t\treturn\t0\n    \t mixed",
    "null \x00 bell \x07 escape \x1b[0m",
    "no\u00a0break zero\u200bwidth \u2028separator\ufeff",
    "đem ilÖveyou Ġword ▁word Ċ ĉ Ã©",  # letters that byte-level tokenizers use as symbols for bytes
    "   leading, trailing   ",
    "12345 3.14159 1e-10 0x7fff 1_000_000",
    "Karadžić i ⭢ j ≠ k ∀x∈ℝ 𝒜 𝔸",
    " ",
    "a",
)

# Kinds of text on which converters to other formats compute a check string of ids (case B20).
CHECK_TEXT = (
    "\n \n\n \t\t\n   \n🚀 (rocket) 🙂 3 33 333 3333 3.3 3..3 "
    "------======= don't I'll we've 'RE ``` \"\" !!!??? здравей 数据 กลุ่ม 1314 apple \n"
)
_LONGEST_SHOWN = 80  # characters of a token in `changed_positions`: a phrase of the usual 64 bytes whole


@dataclass(frozen=True)
class Audit:
    """Findings on one extension."""

    unreachable: tuple[NewToken, ...]  # new tokens that no text can produce
    changed_words: pd.DataFrame  # original vocabulary words whose ids change: text, ids before and after, as pieces
    words_checked: int  # how many original words were checked
    # (text, as the original gives it back, as the extended gives it back) where these differ
    round_trips: tuple[tuple[str, str, str], ...]
    texts_checked: int  # how many texts were encoded and decoded
    # new tokens that the training texts do not show, or the other texts where no training texts were given; None if
    # there was no text at all
    missing: tuple[NewToken, ...] | None
    looked_in: str  # which of the two
    # tokens before and after, saved per 1,000 original tokens, and share of new positions, by file type
    by_type: pd.DataFrame
    check_changed: bool  # whether the ids of `CHECK_TEXT` changed
    # positions outside new tokens whose token is not the original's, as `changed_positions` lists them; None if there
    # was no text
    changed_positions: pd.DataFrame | None = None
    old_positions: int = 0  # how many positions outside new tokens were looked at

    @property
    def passed(self) -> bool:
        """No token is dead and every text comes back as before (changed words are a cost, not an error)."""
        return not self.unreachable and not self.round_trips

    def table(self) -> pd.DataFrame:
        """Findings as rows of name, count, of, examples."""
        words = self.changed_words["word"].tolist()
        broken = [text for text, _, _ in self.round_trips]
        rows = [
            ("tokens no text can produce", len(self.unreachable), None, _examples(t.text for t in self.unreachable)),
            ("old words whose ids change", len(words), self.words_checked, _examples(words)),
            ("round-trip failures", len(broken), self.texts_checked, _examples(broken)),
            ("ids of the converter's check text change", int(self.check_changed), 1, ""),
        ]
        if self.missing is not None:
            listed = _examples(t.text for t in self.missing)
            rows.insert(3, (f"new tokens not in the {self.looked_in}", len(self.missing), None, listed))
        if self.changed_positions is not None:
            often = Counter(zip(self.changed_positions["before"], self.changed_positions["after"], strict=True))
            listed = _examples((f"{before} -> {after}" for (before, after), _ in often.most_common(6)), as_is=True)
            name = "positions outside new tokens whose token differs"
            rows.insert(2, (name, len(self.changed_positions), self.old_positions, listed))
        return pd.DataFrame(rows, columns=["finding", "count", "of", "examples"]).astype({"of": "Int64"})


def audit_extension(
    extension: Extension,
    texts: Mapping[str, Sequence[str]],
    training_texts: Sequence[str] | None = None,
    check_text: str = CHECK_TEXT,
) -> Audit:
    """Audit an extension.

    Args:
        texts: texts by file type (or by any name) for the gains; they are also encoded and decoded.
        training_texts: where every new token should occur; where it is not given, `texts` are looked through.
        check_text: text whose ids a converter hashes. llama.cpp uses the one called `chktxt` in its conversion
            script; give it here to learn whether the GGUF pre-tokenizer will be recognised.
    """
    everything = [text for group in texts.values() for text in group]
    by_type, here = _measured(extension, texts)
    counts = here if training_texts is None else Counter(extension.count(training_texts))
    nothing_read = not everything if training_texts is None else not training_texts
    doubtful = [t for t in extension.tokens if not counts[t.id] and not here[t.id]]
    changed, checked = changed_words(extension)
    # new tokens in running text, at the edges, and side by side
    lines = [f"{t.text}(x) a{t.text}, {t.text}{t.text} b\n{t.text}" for t in extension.tokens[:200]]
    probes = [*UNICODE_STRESS, *lines, *everything[:200]]
    moved, old_positions = changed_positions(extension, everything)
    before, after = (encode_all(t, [check_text])[0] for t in (extension.original, extension.extended))
    return Audit(
        unreachable=tuple(unreachable(extension, doubtful)),
        changed_words=changed,
        words_checked=checked,
        round_trips=tuple(round_trip_failures(extension, probes)),
        texts_checked=len(probes),
        missing=None if nothing_read else tuple(t for t in extension.tokens if not counts[t.id]),
        looked_in="texts" if training_texts is None else "training data",
        by_type=by_type,
        check_changed=before != after,
        changed_positions=moved if everything else None,
        old_positions=old_positions,
    )


def texts_by_type(documents: Sequence[Document]) -> dict[str, list[str]]:
    """Group files by their suffix."""
    groups: dict[str, list[str]] = {}
    for document in documents:
        groups.setdefault(PurePath(document.path).suffix or "(none)", []).append(document.text)
    return dict(sorted(groups.items()))


def changed_words(extension: Extension) -> tuple[pd.DataFrame, int]:
    """Return words of the original vocabulary that get other ids, spelt as pieces, and how many were checked.

    A token that cuts a longer word apart shows here (`stand` in `standard`). So does a word that the original
    tokenizer itself only reached in pieces and that is now one new token.
    """
    spelling = spelling_of(extension.original)
    words = []
    for i in sorted(set(spelling.pieces) - spelling.added_ids):
        try:
            words.append(spelling.raw_of(i).decode())
        except UnicodeDecodeError:
            continue  # part of a character: no text by itself
    both = extension.original, extension.extended
    rows = [
        (word, *(" | ".join(t.convert_ids_to_tokens(ids)) for t, ids in zip(both, sides, strict=True)))
        for word, *sides in zip(words, *(encode_all(t, words) for t in both), strict=True)
        if sides[0] != sides[1]
    ]
    return pd.DataFrame(rows, columns=["word", "before", "after"]), len(words)


def recut_texts(extension: Extension, texts: Sequence[str]) -> pd.DataFrame:
    """List the texts that the original tokenizer would have cut elsewhere, each with the first such place.

    Each new token of a text is replaced by its subtokens; what comes out should be the ids that the original gives.

    Returns:
        One row for each text that differs: text (its number), position (in original tokens), and up to five ids
        around that place, `before` as the original reads it and `after` with the subtokens put back.
    """
    parts = {t.id: t.subtokens for t in extension.tokens}
    both = (encode_all(tokenizer, texts) for tokenizer in (extension.original, extension.extended))
    rows = []
    for number, (before, ids) in enumerate(zip(*both, strict=True)):
        after = [old for i in ids for old in parts.get(i, (i,))]
        if after != before:
            shorter = min(len(before), len(after))
            at = next((k for k in range(shorter) if before[k] != after[k]), shorter)
            near = slice(max(0, at - 2), at + 3)
            rows.append((number, at, tuple(before[near]), tuple(after[near])))
    return pd.DataFrame(rows, columns=["text", "position", "before", "after"])


def changed_positions(extension: Extension, texts: Iterable[str]) -> tuple[pd.DataFrame, int]:
    """List positions outside new tokens that hold another token than the original has for the same bytes.

    They are what is left of an old token that a new one cut (` = None` leaves `Type` of ` = NoneType`); there the
    model reads old tokens where it never saw them. `recut_texts` counts texts, this counts places.

    Returns:
        One row for each such position: text (its number), position (in extended tokens), `before` and `after`: the
        original's tokens from the last boundary to the next one, and the extended ones, spelt by `glyphs.visible`. And
        how many positions outside new tokens there are.
    """
    rows: list[tuple[int, int, str, str]] = []
    looked_at = number = 0
    for batch in text_batches(texts):
        for aligned in align_texts(extension, batch):
            old = (aligned.extended_ids < extension.V) & ~aligned.extended_special
            looked_at += int(old.sum())
            old[aligned.boundaries[aligned.kind == IDENTICAL, 1]] = False
            rows += [(number, k, *_around(extension, aligned, k)) for k in np.flatnonzero(old).tolist()]
            number += 1
    return pd.DataFrame(rows, columns=["text", "position", "before", "after"]), looked_at


def _around(extension: Extension, aligned: AlignedText, position: int) -> tuple[str, str]:
    """Both sides' tokens between the boundaries around an extended position, with a bar between two."""
    ends = aligned.boundaries
    k = int(np.searchsorted(ends[:, 1], position))
    stops = ends[k] + 1 if k < len(ends) else (len(aligned.original_ids), len(aligned.extended_ids))
    starts = ends[k - 1] + 1 if k else (0, 0)
    sides = (extension.original, aligned.original_ids), (extension.extended, aligned.extended_ids)
    before, after = (
        " | ".join(visible(spelling_of(t).raw_of(i), limit=_LONGEST_SHOWN) for i in ids[a:b].tolist())
        for (t, ids), a, b in zip(sides, starts, stops, strict=True)
    )
    return before, after


def gains(extension: Extension, texts: Mapping[str, Sequence[str]]) -> pd.DataFrame:
    """Count tokens before and after, by type of text.

    Returns:
        Columns type, texts, bytes, tokens_before, tokens_after, saved_per_1000 (original tokens), new_share (share
        of extended positions that hold a new token); the last row is the total.
    """
    return _measured(extension, texts)[0]


def _measured(extension: Extension, texts: Mapping[str, Sequence[str]]) -> tuple[pd.DataFrame, Counter[int]]:
    """The table of `gains`, and how often each new token occurs."""
    rows = []
    shown: Counter[int] = Counter()
    for name, group in texts.items():
        before = sum(map(len, encode_each(extension.original, group)))
        after, known = 0, shown.total()
        for ids in encode_each(extension.extended, group):
            after += len(ids)
            shown.update(i for i in ids if i >= extension.V)
        new = shown.total() - known
        rows.append([name, len(group), sum(len(t.encode()) for t in group), before, after, new])
    if len(rows) > 1:
        rows.append(["all", *(sum(column) for column in zip(*(r[1:] for r in rows), strict=True))])
    columns = ["type", "texts", "bytes", "tokens_before", "tokens_after", "new"]
    table = pd.DataFrame(rows, columns=columns)
    table["saved_per_1000"] = 1000 * (1 - table.tokens_after / table.tokens_before)
    table["new_share"] = table.new / table.tokens_after
    return table.drop(columns="new"), shown


def _examples(texts: Iterable[str], *, as_is: bool = False) -> str:
    listed = [t if as_is else repr(t) for t in texts]
    return ", ".join(listed[:5]) + (", …" if len(listed) > 5 else "")
