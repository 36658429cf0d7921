"""Which new tokens to propose: the thesis's selection, ours by continued BPE, and phrases."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Sequence

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from vocabx_utils.texts import TokenizerError, text_list
from vocabx_utils.vocabulary.continued_bpe import LearnedMerges, learn_merges
from vocabx_utils.vocabulary.encoding import encode_each
from vocabx_utils.vocabulary.options import DEFAULT_OPTIONS, Strategy, TokenOptions, check_strategy
from vocabx_utils.vocabulary.phrase_choice import choose_phrases
from vocabx_utils.vocabulary.phrases import PhraseLearner
from vocabx_utils.vocabulary.spelling import SPACE_MARK, Spelling, spelling_of
from vocabx_utils.vocabulary.tokens import Proposal
from vocabx_utils.vocabulary.wordtable import WordTable, count_words


class FewerTokensWarning(UserWarning):
    """The corpus offers fewer new tokens than were asked for."""


def select_tokens(
    texts: Iterable[str],
    tokenizer: PreTrainedTokenizerFast,
    n: int,
    strategy: Strategy = "merges",
    options: TokenOptions = DEFAULT_OPTIONS,
    *,
    table: WordTable | PhraseLearner | None = None,
) -> list[Proposal]:
    """Propose new tokens for a corpus.

    Args:
        strategy: `added` is the thesis's algorithm: a fresh BPE on the corpus, its most frequent tokens that are
            neither numbers nor substrings of original tokens. `merges` is ours: continued BPE. `phrases` crosses words
            as well.
        table: for choosing from the same texts again and again: what `count_words` made of them (`merges`), or their
            `PhraseLearner` (`phrases`).

    Returns:
        At most `n` proposals: for `added` the most frequent first, for the others in order of birth, which is the order
        of their merges. Fewer come with a `FewerTokensWarning` that says why.

    Raises:
        TokenizerError: the tokenizer cannot be extended, `n` is below 1, or the corpus holds no text.

    Example:
        >>> from vocabx_utils.models import load_tokenizer
        >>> texts = ["df.groupby('city').mean(skipna=True)", "df.groupby('year').sum(skipna=False)"]
        >>> [proposal.text for proposal in select_tokens(texts, load_tokenizer("smollm2-135m"), n=1)]
        ['skipna']
    """
    if isinstance(n, str) or n < 1:
        raise TokenizerError(f"n is {n!r}; expected 1 or more new tokens.")
    documents = [text for text in text_list(texts) if text]
    if not documents:
        raise TokenizerError("The corpus holds no text. Check the folder and the pattern it was read with.")
    spelling = spelling_of(tokenizer)
    check_strategy(strategy, spelling)
    if strategy == "added":
        found = _thesis_selection(documents, spelling, n, options)
    elif strategy == "phrases":
        learner = table if isinstance(table, PhraseLearner) else PhraseLearner(documents, spelling, options)
        found = choose_phrases(learner, n, options)
    else:
        words = table if isinstance(table, WordTable) else count_words(documents, spelling, options)
        found = proposals_from_merges(learn_merges(words, spelling, n, options), spelling)
    offered = sum(options.count_steps or p.count > 0 for p in found)
    if offered < n:
        spread = f" and stand in {options.min_files} files or more" if options.min_files > 1 else ""
        warnings.warn(
            f"The corpus offers {offered} new tokens that occur {options.min_count} times or more{spread}; "
            f"{n} were asked for.",
            FewerTokensWarning,
            stacklevel=2,
        )
    return found


def proposals_from_merges(learned: LearnedMerges, spelling: Spelling) -> list[Proposal]:
    """Turn learned merges into proposals, in order of birth."""

    def piece(i: int) -> str:
        return learned.pieces.get(i) or spelling.pieces[i]

    proposals = []
    for rank, merge in enumerate(learned.merges):
        raw = spelling.raw(piece(merge.result))
        text, shown = raw.decode("utf-8", "replace"), learned.shown.get(merge.result, 0)
        pair = (piece(merge.left), piece(merge.right))
        proposals.append(Proposal(text, raw, shown, learned.parts[merge.result], rank, pair))
    return proposals


def _thesis_selection(texts: Sequence[str], spelling: Spelling, n: int, options: TokenOptions) -> list[Proposal]:
    if spelling.kind == "sentencepiece" and spelling.rewrites:
        texts = [spelling.normalise(text) for text in texts]
    fresh = train_fresh_bpe(texts, spelling, options.fresh_vocab_size or max(8_000, 16 * n))
    counts, files = _occurrences(texts, fresh, spelling)
    barred = options.barred(spelling)
    longest = options.max_bytes if options.max_bytes < 32 else None
    chosen: list[Proposal] = []
    for raw, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if len(chosen) == n or count < options.min_count:
            break
        try:
            text = raw.decode()
        except UnicodeDecodeError:  # part of a character: an added token can only hold whole ones
            continue
        number = text.strip().replace(".", "").isnumeric()  # as in the thesis's examples 12 and 31
        if number or raw in barred or files[raw] < options.min_files or (longest and len(raw) > longest):
            continue
        if options.keep_whitespace is False and text.isspace():
            continue
        if spelling.inside_a_token(text) or spelling.piece(text) in spelling.vocab or text in spelling.vocab:
            continue
        chosen.append(Proposal(text, raw, count, spelling.subtokens(text), len(chosen)))
    return chosen


def train_fresh_bpe(texts: Sequence[str], spelling: Spelling, vocab_size: int) -> Tokenizer:
    """Train a BPE from nothing, of `vocab_size` entries, with the original normaliser and pre-tokenizer.

    SentencePiece-style tokenizers have no pre-tokenizer; theirs was a split at spaces when they were trained, and
    at line ends, since lines were sentences. The same is done here, and letters, digits and signs are kept apart as
    continued merges keep them (see `wordtable.joinable`): a token `s.` would cut every plural before a full stop.
    """
    fresh = Tokenizer(models.BPE())
    alphabet: list[str] = []
    if spelling.kind == "byte-level":
        fresh.pre_tokenizer = spelling.backend.pre_tokenizer
        if spelling.backend.normalizer is not None:
            fresh.normalizer = spelling.backend.normalizer
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


def _occurrences(texts: Sequence[str], fresh: Tokenizer, spelling: Spelling) -> tuple[Counter[bytes], Counter[bytes]]:
    """How often each token occurs, and in how many texts."""
    counts: Counter[int] = Counter()
    files: Counter[int] = Counter()
    for ids in encode_each(fresh, texts):
        counts.update(ids)
        files.update(set(ids))
    raw = {i: spelling.raw(piece) for piece, i in fresh.get_vocab().items()}
    return Counter({raw[i]: n for i, n in counts.items()}), Counter({raw[i]: n for i, n in files.items()})
