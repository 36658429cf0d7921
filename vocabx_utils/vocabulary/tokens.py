"""New tokens: choose them, extend a tokenizer by them, keep both tokenizers and the table of tokens together.

Two strategies. `added` is the thesis's: tokens are cut out of the text before anything else happens. `merges` is
ours: merges are appended to the original ones, so text without new tokens tokenizes exactly as before.
"""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vocabx_utils.files import read_json, write_json
from vocabx_utils.portable import save_tokenizer
from vocabx_utils.tokenizer_files import read_tokenizer
from vocabx_utils.vocabulary import surgery
from vocabx_utils.vocabulary.families import SPACE_MARK, Family, TokenizerError, family_of
from vocabx_utils.vocabulary.mergeplan import plan_merges
from vocabx_utils.vocabulary.proposals import (
    FewerTokensWarning,
    OldTexts,
    Proposal,
    Strategy,
    check_strategy,
    select_tokens,
)
from vocabx_utils.vocabulary.wordtable import batches, count_words

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedTokenizerFast

__all__ = [
    "Extension",
    "FewerTokensWarning",
    "NewToken",
    "Proposal",
    "TokenizerError",
    "extend_for_training",
    "extend_tokenizer",
    "load_extension",
    "select_tokens",
]


@dataclass(frozen=True)
class NewToken:
    """One new token.

    Attributes:
        id: V or more.
        text: its text (the replacement character where its bytes are no whole characters).
        raw: its UTF-8 bytes.
        subtokens: original ids that it replaces.
        count: occurrences in the corpus that it was chosen on; 0 for tokens that were given as text.
        wanted: False for a token that only serves as a step of merges towards longer ones: it was not asked for,
            or the corpus never shows it.
    """

    id: int
    text: str
    raw: bytes
    subtokens: tuple[int, ...]
    count: int = 0
    wanted: bool = True

    @property
    def tokens_saved(self) -> int:
        """Original tokens saved on that corpus."""
        return self.count * (len(self.subtokens) - 1)


@dataclass(frozen=True)
class Extension:
    """An original tokenizer, the extended one, and the tokens that are new.

    Attributes:
        original: the tokenizer as it was.
        extended: the tokenizer with new ids V to V + N − 1 (also as `tokenizer`).
        tokens: the new tokens in the order of their ids.
        strategy: `added` or `merges`.
        report: what happened: what was asked for, left out, and noted.
    """

    original: PreTrainedTokenizerFast
    extended: PreTrainedTokenizerFast
    tokens: tuple[NewToken, ...]
    strategy: Strategy
    V: int
    report: Mapping[str, Any]

    @property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The extended tokenizer."""
        return self.extended

    @property
    def N(self) -> int:
        """Number of new tokens."""
        return len(self.tokens)

    @property
    def new_ids(self) -> range:
        """Ids of the new tokens."""
        return range(self.V, self.V + self.N)

    def count(self, texts: Iterable[str]) -> dict[int, int]:
        """Occurrences of each new token in texts, by id; tokens that do not occur have 0."""
        counts: Counter[int] = Counter()
        for ids in encode_each(self.extended, texts):
            counts.update(i for i in ids if i >= self.V)
        return {i: counts.get(i, 0) for i in self.new_ids}

    def table(self) -> pd.DataFrame:
        """The new tokens, one a row."""
        import pandas as pd

        pieces = self.original.convert_ids_to_tokens
        rows = [
            {
                "id": t.id,
                "text": t.text,
                "subtokens": " | ".join(pieces(list(t.subtokens))),
                "k": len(t.subtokens),
                "bytes": len(t.raw),
                "count": t.count,
                "tokens_saved": t.tokens_saved,
                "wanted": t.wanted,
            }
            for t in self.tokens
        ]
        columns = ["id", "text", "subtokens", "k", "bytes", "count", "tokens_saved", "wanted"]
        return pd.DataFrame(rows, columns=columns)

    def save(self, folder: str | Path) -> None:
        """Write `original/` and `extended/` (plain Hugging Face folders) and `tokens.json`."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_tokenizer(self.original, folder / "original")
        save_tokenizer(self.extended, folder / "extended")
        tokens = [{**vars(t), "raw": t.raw.hex(), "subtokens": list(t.subtokens)} for t in self.tokens]
        content = {"strategy": self.strategy, "V": self.V, "N": self.N}
        write_json(folder / "tokens.json", {**content, "report": dict(self.report), "tokens": tokens})


def load_extension(folder: str | Path) -> Extension:
    """Load what `Extension.save` wrote.

    Raises:
        TokenizerError: the folder holds no extension, or its files are damaged or do not fit together.
    """
    folder = Path(folder)
    if not (folder / "tokens.json").is_file():
        raise TokenizerError(
            f"{folder} holds no extension (tokens.json is missing). `vocabx tokens propose` and notebook 01 write one."
        )
    try:
        return _read_extension(folder)
    except TokenizerError:
        raise
    except Exception as error:  # of JSON, of files and of the tokenizers library: no common base class
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise TokenizerError(f"{folder} is damaged ({reason}). Make the extension again.") from error


def _read_extension(folder: Path) -> Extension:
    content = read_json(folder / "tokens.json")
    original, extended = (read_tokenizer(str(folder / side)) for side in ("original", "extended"))
    tokens = tuple(
        NewToken(**{**t, "raw": bytes.fromhex(t["raw"]), "subtokens": tuple(t["subtokens"])}) for t in content["tokens"]
    )
    family = family_of(extended)
    fits = family.first_free_id == content["V"] + len(tokens)
    if not fits or any(family.raw_of(t.id) != t.raw for t in tokens):
        raise TokenizerError(
            f"{folder}: tokens.json and extended/ hold different new tokens. Make the extension again."
        )
    return Extension(original, extended, tokens, content["strategy"], content["V"], content["report"])


def extend_tokenizer(
    tokenizer: PreTrainedTokenizerFast,
    new_tokens: Iterable[str | Proposal],
    strategy: Strategy = "merges",
) -> Extension:
    """Extend a tokenizer.

    Args:
        tokenizer: the original tokenizer; it is left as it is.
        new_tokens: texts, or proposals of `select_tokens`, in any order; the order does not change the result. A
            leading space is part of a token: ` groupby` is the word inside a line, `groupby` the one behind a
            bracket. The spellings `Ġgroupby` and `▁groupby` mean the former.
        strategy: `merges` appends merges; longer tokens may need further tokens as steps, which are marked
            `wanted=False`. `added` makes added tokens, which are cut out of a text before anything else reads it: the
            leftmost first, of those that begin at one place the longest, and none that overlaps an earlier one. A
            token inside original tokens matches whole words only; where the longest fails on that, no shorter one
            is tried. They are not special, and match the text as it is written, or as the normaliser leaves it
            where that changes characters (NFC).

    Returns:
        The extension, its new ids V, V + 1, …

    Raises:
        TokenizerError: the tokenizer cannot be extended so; a token is empty, is in the original vocabulary, can be
            produced by no text, or keeps text from coming back. The message lists the tokens.
    """
    family = family_of(tokenizer)
    check_strategy(strategy, family)
    proposals, texts, notes = _sort_inputs(new_tokens, family)
    _refuse_known(family, proposals, texts)
    if strategy == "added":
        return _extend_added(tokenizer, family, proposals, texts, notes)
    return _extend_merges(tokenizer, family, proposals, texts, notes)


def _sort_inputs(new_tokens: Iterable[str | Proposal], family: Family) -> tuple[list[Proposal], list[str], list[str]]:
    if isinstance(new_tokens, str):
        raise TokenizerError(f"new_tokens is the string {new_tokens!r}; expected a list of strings or proposals.")
    proposals: dict[bytes, Proposal] = {}
    texts: set[str] = set()
    notes: list[str] = []
    for token in new_tokens:
        if isinstance(token, Proposal):
            proposals.setdefault(token.raw, token)
            continue
        if not isinstance(token, str) or not token:
            raise TokenizerError(f"A proposed token is {token!r}; expected text of one character or more.")
        text = family.spaced_form(token)
        if text != token:
            notes.append(f"{token!r} was read as {text!r}, the word with its leading space.")
        written = text
        if family.rewrites and (text := family.normalise(written)) != written:
            notes.append(f"{written!r} was read as {text!r}, its form under the tokenizer's normaliser.")
        if not text:
            raise TokenizerError(f"The tokenizer's normaliser leaves nothing of {token!r}: no text can show it.")
        texts.add(text)
    texts -= {p.text for p in proposals.values() if p.raw == p.text.encode("utf-8", "replace")}
    ordered = sorted(proposals.values(), key=lambda p: (p.rank, p.raw))
    return ordered, sorted(texts, key=lambda t: (len(t.encode()), t.encode())), sorted(notes)


def _refuse_known(family: Family, proposals: Sequence[Proposal], texts: Sequence[str]) -> None:
    contents = {family.pieces[i] for i in family.specials}
    known = [t for t in texts if family.piece(t) in family.vocab or t in contents]
    known += [p.text for p in proposals if not p.merges and family.piece(p.text) in family.vocab]
    if known:
        raise TokenizerError(
            f"The original tokenizer has {', '.join(map(repr, known))} already. Leave "
            f"{'it' if len(known) == 1 else 'them'} out."
        )


def extend_for_training(
    texts: Sequence[str],
    training_texts: Sequence[str],
    tokenizer: PreTrainedTokenizerFast,
    n: int,
    *,
    min_train_count: int = 4,
    strategy: Strategy = "merges",
    **options: Any,
) -> Extension:
    """Choose exactly `n` tokens of which the training texts show each often enough, and extend by them.

    Tokens that are too rare there (steps of merges included) are barred and the choice is made again.

    Args:
        texts: what tokens are chosen on.
        training_texts: what rows are trained on.
        tokenizer: the original tokenizer.
        n: new tokens.
        min_train_count: fewest occurrences in the training texts.
        strategy: see `extend_tokenizer`.
        options: further options of `select_tokens`.

    Returns:
        An extension of `n` tokens; its report lists what was barred.

    Raises:
        TokenizerError: the texts do not offer so many.
    """
    barred: set[bytes] = set()
    if strategy == "merges":
        digits = options.get("across_digits", False)
        options["table"] = count_words([t for t in texts if t], family_of(tokenizer), across_digits=digits)
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FewerTokensWarning)
            proposals = select_tokens(texts, tokenizer, n, strategy=strategy, exclude=barred, **options)
        if len(proposals) < n:
            raise TokenizerError(
                f"{n} new tokens were asked for; the texts offer {len(proposals)} that occur {min_train_count} times "
                "or more in the training split. Ask for fewer, lower min_train_count or min_count, or add text."
            )
        extension = extend_tokenizer(tokenizer, proposals, strategy)
        counts = extension.count(training_texts)
        rare = {t.raw for t in extension.tokens if counts[t.id] < min_train_count}
        if not rare:
            left_out = sorted(raw.decode("utf-8", "replace") for raw in barred)
            return replace(extension, report={**extension.report, "too_rare_in_training": left_out})
        barred |= rare


# --- strategy `merges` -------------------------------------------------------------------------------------


def _extend_merges(
    tokenizer: PreTrainedTokenizerFast,
    family: Family,
    proposals: list[Proposal],
    texts: list[str],
    notes: list[str],
) -> Extension:
    _refuse_crossing(family, [*texts, *(p.text for p in proposals if not p.merges)])
    plan = plan_merges(family, proposals, texts)
    extended = surgery.build(surgery.merged_layout(family, plan.pieces, plan.merges), tokenizer)
    counts = {p.raw: p.count for p in proposals}
    given = {family.raw(family.piece(t)) for t in texts} | {p.raw for p in proposals if not p.merges}
    wanted = given | {raw for raw, count in counts.items() if count}
    tokens = []
    for k, piece in enumerate(plan.pieces):
        raw = family.raw(piece)
        text = raw.decode("utf-8", "replace")
        new = NewToken(family.first_free_id + k, text, raw, plan.subtokens[piece], counts.get(raw, 0), raw in wanted)
        tokens.append(new)
    report = _report(proposals, texts, notes) | {
        "merges": len(plan.merges),
        "steps": sum(not t.wanted for t in tokens),
    }
    extension = Extension(tokenizer, extended, tuple(tokens), "merges", family.first_free_id, report)
    check_reachable(extension, [t for t in tokens if t.raw in given])
    check_round_trips(extension)
    return extension


def _refuse_crossing(family: Family, texts: Iterable[str]) -> None:
    crossing = [(t, parts) for t in texts if len(parts := family.split(t)) != 1]
    if crossing:
        listed = "; ".join(f"{t!r} is cut into {parts}" for t, parts in crossing)
        raise TokenizerError(
            f"Merges cannot cross the cuts of the original pre-tokenizer: {listed}. "
            "Propose the parts, or use strategy 'added'."
        )


# --- strategy `added` --------------------------------------------------------------------------------------


def _extend_added(
    tokenizer: PreTrainedTokenizerFast,
    family: Family,
    proposals: list[Proposal],
    texts: list[str],
    notes: list[str],
) -> Extension:
    if broken := [p.raw for p in proposals if p.text.encode("utf-8", "replace") != p.raw]:
        raise TokenizerError(f"Added tokens hold whole characters; these bytes do not: {broken}. Use 'merges'.")
    counts = {p.text: p.count for p in proposals}
    words = _whole_words(family, [*counts, *texts])
    extended = surgery.build(surgery.added_layout(family, words), tokenizer)
    tokens = [
        NewToken(family.first_free_id + k, text, text.encode(), family.subtokens(text), counts.get(text, 0))
        for k, text in enumerate(words)
    ]
    bare = [t for t in words if not t[0].isspace()]
    report = _report(proposals, texts, notes) | {
        "whole_words_only": [t for t, single in words.items() if single],
        "without_leading_space": len(bare),
    }
    extension = Extension(tokenizer, extended, tuple(tokens), "added", family.first_free_id, report)
    check_reachable(extension, tokens)
    check_round_trips(extension)
    return extension


def _whole_words(family: Family, texts: list[str]) -> dict[str, bool]:
    """For each text, whether it must match whole words only, so that no original token is cut (case `stand`)."""
    odd = [t for t in texts if t in family.vocab or (family.kind == "sentencepiece" and SPACE_MARK in t)]
    if odd:
        raise TokenizerError(f"Spelt like pieces of the original vocabulary, so decoding would mix them up: {odd}.")
    old = OldTexts(family)
    result: dict[str, bool] = {}
    cutting: list[str] = []
    for text in texts:
        inside = old.contains(text)
        is_word = all(c.isalnum() or c == "_" for c in (text[0], text[-1]))
        if inside and not is_word:
            cutting.append(text)
        result[text] = inside
    if cutting:
        raise TokenizerError(
            f"{', '.join(map(repr, cutting))}: substrings of original tokens. As added tokens they would cut those "
            "apart wherever they occur. Leave them out, or use strategy 'merges'."
        )
    return result


# --- shared ------------------------------------------------------------------------------------------------


def _report(proposals: list[Proposal], texts: list[str], notes: list[str]) -> dict[str, Any]:
    return {"requested": len(proposals) + len(texts), "notes": notes}


def check_reachable(extension: Extension, tokens: Sequence[NewToken]) -> None:
    """Check that text can produce each token.

    Raises:
        TokenizerError: lists the tokens that no probe text produced.
    """
    if dead := unreachable(extension, tokens):
        raise TokenizerError(
            f"No text produces {', '.join(repr(t.text) for t in dead)}: a row for "
            f"{'it' if len(dead) == 1 else 'them'} would never be trained. Leave out, or use the other strategy."
        )


_CONTEXTS = ("{}", "x{}", "x {}", "{} x", "({})", "x\n{}\nx", "x{}x", ".{}(", "\n{}x", "0{}0")


def check_round_trips(extension: Extension) -> None:
    """Check that texts with new tokens come back as under the original tokenizer.

    Raises:
        TokenizerError: lists the tokens whose texts do not.
    """
    whole = [t for t in extension.tokens if t.text.encode("utf-8", "replace") == t.raw]
    lines = ["|".join([t.text * 2, *(c.format(t.text) for c in _CONTEXTS)]) for t in whole]
    broken = {text for text, _, _ in round_trip_failures(extension, lines)}
    if guilty := [t.text for t, line in zip(whole, lines, strict=True) if line in broken]:
        raise TokenizerError(
            f"Text with {', '.join(map(repr, guilty))} does not come back as under the original tokenizer. "
            "Leave out, or use the other strategy."
        )


def round_trip_failures(extension: Extension, texts: Sequence[str]) -> list[tuple[str, str, str]]:
    """Texts that the extended tokenizer gives back otherwise than the original one.

    The original is the yardstick, not the text: a normaliser (Qwen's NFC) changes text before any token is made.
    """

    def through(tokenizer: PreTrainedTokenizerFast) -> list[str]:
        ids = encode_all(tokenizer, texts)
        return tokenizer.backend_tokenizer.decode_batch(ids, skip_special_tokens=False)

    before, after = through(extension.original), through(extension.extended)
    return [(t, b, a) for t, b, a in zip(texts, before, after, strict=True) if a != b]


def unreachable(extension: Extension, tokens: Sequence[NewToken]) -> list[NewToken]:
    """Tokens that do not show in any of a few short contexts of their own text."""
    probes = [(t.id, c.format(text)) for t in tokens for text in _texts_with(t.raw) for c in _CONTEXTS]
    encoded = encode_each(extension.extended, (probe for _, probe in probes))
    shown = {token for (token, _), ids in zip(probes, encoded, strict=True) if token in ids}
    return [t for t in tokens if t.id not in shown]


def _texts_with(raw: bytes) -> list[str]:
    """Texts that hold these bytes: themselves, or, where they cut a character, with what may stand around them."""
    try:
        return [raw.decode()]
    except UnicodeDecodeError:
        texts = (head + raw + tail for head in _HEADS for tail in _TAILS)
        return [text for whole in texts if (text := whole.decode("utf-8", "ignore")).encode() == whole]


_CONTINUED = [bytes([b]) for b in range(0x80, 0xC0)]
_TAILS = [b"", *_CONTINUED, *(b + b"\x80" for b in _CONTINUED), *(b + b"\x80\x80" for b in _CONTINUED)]
_HEADS = [b"", *(bytes([b]) for b in range(0xC2, 0xF5))]
_HEADS += [bytes([b, c]) for b in range(0xE0, 0xF5) for c in (0x80, 0x90, 0xA0)] + [b"\xf0\x9f\x98", b"\xf0\x9d\x94"]


def encode_all(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> list[list[int]]:
    """Token ids of texts without special tokens."""
    return list(encode_each(tokenizer, texts))


def encode_each(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str]) -> Iterator[list[int]]:
    """Token ids of one text after the other, which large corpora need; many are tokenized at a time."""
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()  # state that an earlier call may have left; every call sets its own
    backend.no_padding()
    for batch in batches(texts):
        for encoding in backend.encode_batch_fast(batch, add_special_tokens=False):
            yield encoding.ids


def same_backend(one: PreTrainedTokenizerFast, other: PreTrainedTokenizerFast) -> bool:
    """Whether two tokenizers behave alike: their backends' JSON is equal, key order aside."""
    return json.loads(one.backend_tokenizer.to_str()) == json.loads(other.backend_tokenizer.to_str())
