"""Which new tokens to propose: the thesis's selection, and ours by continued BPE."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from vocabx_utils.vocabulary.continued_bpe import LearnedMerges, MergeOptions, learn_merges
from vocabx_utils.vocabulary.families import SPACE_MARK, Family, TokenizerError, family_of
from vocabx_utils.vocabulary.wordtable import WordTable, count_words

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

Strategy = Literal["added", "merges"]


class FewerTokensWarning(UserWarning):
    """The corpus offers fewer new tokens than were asked for."""


@dataclass(frozen=True)
class Proposal:
    """A token that `select_tokens` proposes.

    Attributes:
        text: its text (the replacement character where the bytes are no whole characters).
        raw: its UTF-8 bytes.
        count: occurrences in the corpus, after all other proposals took theirs.
        subtokens: original ids that it replaces.
        rank: place in the order of selection.
        merges: the pair of pieces that makes it, with its place in the order of merges (strategy `merges` only).
    """

    text: str
    raw: bytes
    count: int
    subtokens: tuple[int, ...]
    rank: int
    merges: tuple[tuple[int, str, str], ...] = ()


def select_tokens(
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerFast,
    n: int,
    *,
    strategy: Strategy = "merges",
    min_count: int = 2,
    max_bytes: int = 32,
    across_digits: bool = False,
    keep_whitespace: bool | None = None,
    exclude: Iterable[str | bytes] = (),
    min_files: int = 1,
    count_steps: bool = True,
    fresh_vocab_size: int | None = None,
    table: WordTable | None = None,
) -> list[Proposal]:
    """Propose new tokens for a corpus.

    Args:
        texts: the documents of the domain.
        tokenizer: the original tokenizer.
        n: tokens wanted, 1 or more.
        strategy: `added` is the thesis's algorithm: a fresh BPE on the corpus, its most frequent tokens that are
            neither numbers nor substrings of original tokens. `merges` is ours: continued BPE.
        min_count: fewest occurrences in the corpus.
        max_bytes: longest token in UTF-8 bytes (the thesis names no limit: `added` uses it only when below 32).
        across_digits: let merges join digits (`merges` only).
        keep_whitespace: propose pure whitespace too; None is yes for `added` (the thesis names no such step), no
            for `merges`.
        exclude: texts that must not be proposed; `Ġword` and `▁word` mean the word with its leading space.
        min_files: fewest texts that a token stands in when it is chosen.
        count_steps: whether `n` counts tokens that the corpus never shows, being steps of merges towards longer
            ones. If not, the steps come on top (`merges` only; they have `count` 0).
        fresh_vocab_size: size of the fresh BPE (`added` only), which the thesis does not state; the default is the
            larger of 8,000 and 16·n.
        table: the same texts already counted by `count_words` (`merges` only), for choosing again and again.

    Returns:
        At most `n` proposals: for `added` the most frequent first, for `merges` in order of birth, which is the order
        of their merges. Fewer come with a `FewerTokensWarning` that says why.

    Raises:
        TokenizerError: the tokenizer cannot be extended, `n` is below 1, or the corpus holds no text.
    """
    if n < 1:
        raise TokenizerError(f"n is {n}; expected 1 or more new tokens.")
    if min_count < 1 or max_bytes < 2 or min_files < 1:
        raise TokenizerError(
            f"min_count is {min_count}, max_bytes {max_bytes} and min_files {min_files}; expected at least 1, 2 and 1."
        )
    documents = [text for text in texts if text]
    if not documents:
        raise TokenizerError("The corpus holds no text. Check the folder and the pattern it was read with.")
    family = family_of(tokenizer)
    check_strategy(strategy, family)
    barred = frozenset(family.spaced_form(e).encode() if isinstance(e, str) else e for e in exclude)
    if strategy == "added":
        keep = True if keep_whitespace is None else keep_whitespace
        limit = max_bytes if max_bytes < 32 else None
        size = fresh_vocab_size or max(8_000, 16 * n)
        found = _thesis_selection(documents, family, n, size, min_count, min_files, limit, keep, barred)
    else:
        options = MergeOptions(
            min_count, max_bytes, across_digits, bool(keep_whitespace), barred, min_files, count_steps
        )
        table = table or count_words(documents, family, across_digits=across_digits, files_kept=min_files)
        found = proposals_from_merges(learn_merges(table, family, n, options), family)
    offered = sum(count_steps or p.count > 0 for p in found)
    if offered < n:
        spread = f" and stand in {min_files} files or more" if min_files > 1 else ""
        warnings.warn(
            f"The corpus offers {offered} new tokens that occur {min_count} times or more{spread}; {n} were asked for.",
            FewerTokensWarning,
            stacklevel=2,
        )
    return found


def check_strategy(strategy: str, family: Family) -> None:
    """Check that a strategy exists and that texts come back under it.

    Raises:
        TokenizerError: they do not, and why.
    """
    if strategy not in ("added", "merges"):
        raise TokenizerError(f"strategy is {strategy!r}; expected 'added' or 'merges'.")
    if strategy == "merges":
        return
    if family.segment_prefix == "unless_space":
        raise TokenizerError(
            "This tokenizer puts a space before each stretch of text between added tokens that has none, so `f(x)` "
            "with a new added token f would come back as `f (x)`. Use strategy 'merges', which has no such loss."
        )
    if family.segment_prefix == "added" and family.rewrites:
        raise TokenizerError(
            "This tokenizer's normaliser both changes characters and puts a space before each stretch of text, which "
            "cannot be told apart behind an added token. Use strategy 'merges'."
        )


def proposals_from_merges(learned: LearnedMerges, family: Family) -> list[Proposal]:
    """Turn learned merges into proposals, in order of birth."""

    def piece(i: int) -> str:
        return learned.pieces.get(i) or family.pieces[i]

    proposals = []
    for rank, merge in enumerate(learned.merges):
        raw = family.raw(piece(merge.result))
        text, shown = raw.decode("utf-8", "replace"), learned.shown.get(merge.result, 0)
        steps = ((rank, piece(merge.left), piece(merge.right)),)
        proposals.append(Proposal(text, raw, shown, learned.parts[merge.result], rank, steps))
    return proposals


# --- the thesis's algorithm "Vocabulary Expansion for Tokenizer" -------------------------------------------


def _thesis_selection(
    texts: Sequence[str],
    family: Family,
    n: int,
    fresh_vocab_size: int,
    min_count: int,
    min_files: int,
    max_bytes: int | None,
    keep_whitespace: bool,
    exclude: frozenset[bytes],
) -> list[Proposal]:
    if family.kind == "sentencepiece" and family.rewrites:
        texts = [family.normalise(text) for text in texts]
    fresh = train_fresh_bpe(texts, family, fresh_vocab_size)
    counts, files = _occurrences(texts, fresh, family)
    old = OldTexts(family)
    chosen: list[Proposal] = []
    for raw, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if len(chosen) == n or count < min_count:
            break
        try:
            text = raw.decode()
        except UnicodeDecodeError:  # part of a character: an added token can only hold whole ones
            continue
        if is_number(text) or raw in exclude or files[raw] < min_files or (max_bytes and len(raw) > max_bytes):
            continue
        if not keep_whitespace and text.isspace():
            continue
        if old.contains(text) or family.piece(text) in family.vocab or text in family.vocab:
            continue
        chosen.append(Proposal(text, raw, count, family.subtokens(text), len(chosen)))
    return chosen


def is_number(text: str) -> bool:
    """Whether a token is just a number, as in the thesis's examples 12 and 31."""
    return bool(text.strip()) and text.strip().replace(".", "").isnumeric()


class OldTexts:
    """The texts of all original tokens, to look substrings up in."""

    def __init__(self, family: Family) -> None:
        # A noncharacter between them keeps a candidate from matching across two tokens.
        texts = (family.raw_of(i).decode("utf-8", "replace") for i in family.pieces)
        self._joined = "\ufdd0".join(texts)

    def contains(self, text: str) -> bool:
        """Whether `text` is a substring of an original token (or one itself)."""
        return text in self._joined


def train_fresh_bpe(texts: Sequence[str], family: Family, vocab_size: int) -> Tokenizer:
    """Train a BPE from nothing with the original normaliser and pre-tokenizer.

    SentencePiece-style tokenizers have no pre-tokenizer; theirs was a split at spaces when they were trained, and
    at line ends, since lines were sentences. The same is done here, and letters, digits and signs are kept apart as
    continued merges keep them (see `wordtable.joinable`): a token `s.` would cut every plural before a full stop.

    Args:
        texts: documents.
        family: of the original tokenizer.
        vocab_size: entries of the fresh tokenizer, its alphabet included.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    fresh = Tokenizer(models.BPE())
    alphabet: list[str] = []
    if family.kind == "byte-level":
        fresh.pre_tokenizer = family.backend.pre_tokenizer
        if family.backend.normalizer is not None:
            fresh.normalizer = family.backend.normalizer
        alphabet = pre_tokenizers.ByteLevel.alphabet()
    else:
        lines = pre_tokenizers.Split(Regex(r"[\r\n]+"), "isolated")
        classes = pre_tokenizers.Split(Regex(r" ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\p{L}\p{M}\p{N} ]+"), "isolated")
        words = pre_tokenizers.Metaspace(replacement=SPACE_MARK, prepend_scheme="never", split=True)
        fresh.pre_tokenizer = pre_tokenizers.Sequence([lines, classes, words])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, min_frequency=2, show_progress=False, initial_alphabet=alphabet
    )
    fresh.train_from_iterator(texts, trainer)
    return fresh


def _occurrences(texts: Sequence[str], fresh: Tokenizer, family: Family) -> tuple[Counter[bytes], Counter[bytes]]:
    """How often each token occurs, and in how many texts."""
    counts: Counter[int] = Counter()
    files: Counter[int] = Counter()
    for start in range(0, len(texts), 256):
        for encoding in fresh.encode_batch(list(texts[start : start + 256]), add_special_tokens=False):
            counts.update(encoding.ids)
            files.update(set(encoding.ids))
    raw = {i: family.raw(piece) for piece, i in fresh.get_vocab().items()}
    return Counter({raw[i]: n for i, n in counts.items()}), Counter({raw[i]: n for i, n in files.items()})
