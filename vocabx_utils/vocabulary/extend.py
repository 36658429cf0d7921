"""Extend a tokenizer: by tokens that are chosen on texts, or by tokens that are given."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerFast

from vocabx_utils.texts import TokenizerError, require_text, text_list
from vocabx_utils.vocabulary import surgery
from vocabx_utils.vocabulary.checks import check_reachable, check_round_trips
from vocabx_utils.vocabulary.mergeplan import MergePlan, plan_merges
from vocabx_utils.vocabulary.options import DEFAULT_OPTIONS, PhraseForm, Strategy, TokenOptions, check_strategy
from vocabx_utils.vocabulary.phrase_forms import choose_form, crosses_words, phrase_layout
from vocabx_utils.vocabulary.phrases import PhraseLearner
from vocabx_utils.vocabulary.proposals import FewerTokensWarning, select_tokens
from vocabx_utils.vocabulary.spelling import SPACE_MARK, Spelling, is_padding, spelling_of
from vocabx_utils.vocabulary.tokens import Extension, NewToken, Proposal
from vocabx_utils.vocabulary.wordtable import WordTable, count_words

_TRIES = 8  # choices that are made to find a number of tokens which texts offer


def extend_tokenizer(
    tokenizer: PreTrainedTokenizerFast,
    texts: Iterable[str],
    n: int,
    strategy: Strategy = "merges",
    options: TokenOptions = DEFAULT_OPTIONS,
    *,
    training_texts: Iterable[str] | None = None,
    min_train_count: int = 4,
) -> Extension:
    """Extend a tokenizer by exactly `n` tokens of a domain, each of which the training texts show often enough.

    Tokens that are too rare there (steps of merges included) are barred and the choice is made again; the extension's
    report lists them.

    Args:
        tokenizer: the original tokenizer; it is left as it is.
        texts: what tokens are chosen on, in any iterable; it is read once.
        strategy: `merges` appends merges, `added` makes added tokens, `phrases` does both; see `add_tokens`.
        training_texts: what rows will be trained on; the same texts if not given.
        min_train_count: fewest occurrences there.

    Raises:
        TokenizerError: the tokenizer cannot be extended, or the texts do not offer so many tokens.

    Example:
        >>> from vocabx_utils.models import load_tokenizer
        >>> texts = ["df.groupby('city').mean(skipna=True)", "df.groupby('year').sum(skipna=False)"] * 2
        >>> extension = extend_tokenizer(load_tokenizer("smollm2-135m"), texts, n=1, strategy="merges")
        >>> extension.original.tokenize("mean(skipna=True)")
        ['mean', '(', 'skip', 'na', '=', 'True', ')']
        >>> extension.extended.tokenize("mean(skipna=True)")
        ['mean', '(', 'skipna', '=', 'True', ')']
    """
    texts = text_list(texts)
    shown = texts if training_texts is None else text_list(training_texts, "training_texts")
    table = _read_once(texts, spelling_of(tokenizer), strategy, options)

    def made(number: int) -> Extension | int:
        """The extension by so many tokens, or how many were left, fewer, when too rare ones had been barred."""
        barred: set[bytes] = set()
        while True:
            allowed = replace(options, exclude=options.exclude | barred)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FewerTokensWarning)
                proposals = select_tokens(texts, tokenizer, number, strategy, allowed, table=table)
            if len(proposals) < number:
                return len(proposals)
            extension = add_tokens(tokenizer, proposals, strategy, phrase_form=options.phrase_form)
            counts = extension.count(shown)
            rare = {t.raw for t in extension.tokens if counts[t.id] < min_train_count}
            if not rare:
                left_out = sorted(raw.decode("utf-8", "replace") for raw in barred)
                return replace(extension, report={**extension.report, "too_rare_in_training": left_out})
            barred |= rare

    found = made(n)
    if not isinstance(found, int):
        return found
    offered = f"at most {found}"
    for _ in range(_TRIES):  # another number is another choice with other steps, so fewer may be left than now
        fewer = made(found) if found else None
        if not isinstance(fewer, int):
            offered = str(found)
            break
        found, offered = fewer, f"at most {fewer}"
    raise TokenizerError(
        f"{n} new tokens were asked for; the texts offer {offered} that occur {min_train_count} times or more in the "
        "training split. Ask for fewer, lower min_train_count or min_count, or add text."
    )


def extend_as_thesis(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], n: int = 800) -> Extension:
    """Extend by `n` added tokens chosen on texts, as the thesis does; by fewer, with a warning, if they offer fewer."""
    return add_tokens(tokenizer, select_tokens(texts, tokenizer, n, "added"), "added")


def _read_once(
    texts: Sequence[str], spelling: Spelling, strategy: Strategy, options: TokenOptions
) -> WordTable | PhraseLearner | None:
    """What a strategy makes of a corpus before it chooses, so that choosing again costs little."""
    check_strategy(strategy, spelling)
    documents = [t for t in texts if t]
    if strategy == "phrases":
        return PhraseLearner(documents, spelling, options)
    return count_words(documents, spelling, options) if strategy == "merges" else None


def add_tokens(
    tokenizer: PreTrainedTokenizerFast,
    new_tokens: Iterable[str | Proposal],
    strategy: Strategy = "merges",
    *,
    phrase_form: PhraseForm = "auto",
) -> Extension:
    """Extend a tokenizer by given tokens, with new ids V, V + 1, …

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
            where that changes characters (NFC). `phrases` appends merges for what stays inside a word, and lets
            what crosses words through the pre-tokenizer, or makes added tokens of it.
        phrase_form: which of the two (`phrases` only); see `phrase_forms`.

    Raises:
        TokenizerError: the tokenizer cannot be extended so; a token is empty, is in the original vocabulary, can be
            produced by no text, or keeps text from coming back. The message lists the tokens.

    Example:
        >>> from vocabx_utils.models import load_tokenizer
        >>> extension = add_tokens(load_tokenizer("smollm2-135m"), [" groupby"])
        >>> extension.V, extension.extended.tokenize("x groupby y")
        (49152, ['x', 'Ġgroupby', 'Ġy'])
    """
    spelling = spelling_of(tokenizer)
    check_strategy(strategy, spelling)
    proposals, texts, notes = _sort_inputs(new_tokens, spelling)
    _refuse_known(spelling, proposals, texts)
    if strategy == "phrases":
        layout, tokens, given, further = _by_phrases(spelling, proposals, texts, choose_form(spelling, phrase_form))
    else:
        make = _by_merges if strategy == "merges" else _by_added_tokens
        layout, tokens, given, further = make(spelling, proposals, texts)
    report = {"requested": len(proposals) + len(texts), "notes": notes} | further
    if padding := [t.text for t in tokens if is_padding(t.text)]:
        raise TokenizerError(
            f"{', '.join(map(repr, padding))}: spelt like the entries of GGUF files for padding rows, which no text "
            f"produces. Leave {'it' if len(padding) == 1 else 'them'} out."
        )
    extended = surgery.build(layout, tokenizer)
    extension = Extension(tokenizer, extended, tuple(tokens), strategy, spelling.first_free_id, report)
    check_reachable(extension, given)
    check_round_trips(extension)
    return extension


# What a strategy makes: the layout, the new tokens, those of them that a text must produce, entries of the report.
_Made = tuple[dict[str, Any], list[NewToken], list[NewToken], dict[str, Any]]


def _sort_inputs(
    new_tokens: Iterable[str | Proposal], spelling: Spelling
) -> tuple[list[Proposal], list[str], list[str]]:
    """Proposals by rank, further tokens as text by length, and notes on how they were read."""
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
        require_text(token, f"the proposed token {token!r}")
        text = spelling.spaced_form(token)
        if text != token:
            notes.append(f"{token!r} was read as {text!r}, the word with its leading space.")
        written = text
        if spelling.rewrites and (text := spelling.normalise(written)) != written:
            notes.append(f"{written!r} was read as {text!r}, its form under the tokenizer's normaliser.")
        if not text:
            raise TokenizerError(f"The tokenizer's normaliser leaves nothing of {token!r}: no text can show it.")
        texts.add(text)
    texts -= {p.text for p in proposals.values() if p.raw == p.text.encode("utf-8", "replace")}
    ordered = sorted(proposals.values(), key=lambda p: (p.rank, p.raw))
    return ordered, sorted(texts, key=lambda t: (len(t.encode()), t.encode())), sorted(notes)


def _refuse_known(spelling: Spelling, proposals: list[Proposal], texts: list[str]) -> None:
    contents = {spelling.pieces[i] for i in spelling.added_ids}
    known = [t for t in texts if spelling.piece(t) in spelling.vocab or t in contents]
    known += [p.text for p in proposals if not p.merge and spelling.piece(p.text) in spelling.vocab]
    if known:
        raise TokenizerError(
            f"The original tokenizer has {', '.join(map(repr, known))} already. Leave "
            f"{'it' if len(known) == 1 else 'them'} out."
        )


def _by_merges(spelling: Spelling, proposals: list[Proposal], texts: list[str]) -> _Made:
    whole = [*texts, *(p.text for p in proposals if not p.merge)]
    if crossing := [(t, parts) for t in whole if len(parts := spelling.split(t)) != 1]:
        listed = "; ".join(f"{t!r} is cut into {parts}" for t, parts in crossing)
        raise TokenizerError(
            f"Merges cannot cross the cuts of the original pre-tokenizer: {listed}. "
            "Propose the parts, or use strategy 'added'."
        )
    plan = plan_merges(spelling, proposals, texts)
    tokens, given = _tokens_of_plan(spelling, plan, proposals, texts)
    layout = surgery.merged_layout(spelling, list(plan.subtokens), list(plan.merges))
    further = {"merges": len(plan.merges), "steps": sum(not t.wanted for t in tokens)}
    return layout, tokens, given, further


def _tokens_of_plan(
    spelling: Spelling, plan: MergePlan, proposals: list[Proposal], texts: list[str]
) -> tuple[list[NewToken], list[NewToken]]:
    """The new tokens of a plan, and those of them that a text must produce by itself."""
    counts = {p.raw: p.count for p in proposals}
    given = {spelling.raw(spelling.piece(t)) for t in texts} | {p.raw for p in proposals if not p.merge}
    wanted = given | {raw for raw, count in counts.items() if count}
    tokens = []
    for token_id, (piece, subtokens) in enumerate(plan.subtokens.items(), spelling.first_free_id):
        raw = spelling.raw(piece)
        text = raw.decode("utf-8", "replace")
        tokens.append(NewToken(token_id, text, raw, subtokens, counts.get(raw, 0), raw in wanted))
    return tokens, [t for t in tokens if t.raw in given]


def _by_phrases(spelling: Spelling, proposals: list[Proposal], texts: list[str], form: PhraseForm) -> _Made:
    inside = [p for p in proposals if p.merge or not crosses_words(spelling, p.text)]
    words = [t for t in texts if not crosses_words(spelling, t)]
    plan = plan_merges(spelling, inside, words)
    tokens, given = _tokens_of_plan(spelling, plan, inside, words)
    crossing = [p for p in proposals if not p.merge and crosses_words(spelling, p.text)]
    phrases = _added_texts(spelling, crossing, [t for t in texts if crosses_words(spelling, t)])
    added = _added_tokens(spelling, phrases, crossing, spelling.first_free_id + len(tokens))
    further: dict[str, Any] = {"merges": len(plan.merges), "steps": sum(not t.wanted for t in tokens)}
    further |= {"phrases": len(added), "phrase_form": form}
    return phrase_layout(spelling, plan, phrases, form), [*tokens, *added], [*given, *added], further


def _by_added_tokens(spelling: Spelling, proposals: list[Proposal], texts: list[str]) -> _Made:
    words = _whole_words(spelling, _added_texts(spelling, proposals, texts))
    tokens = _added_tokens(spelling, words, proposals, spelling.first_free_id)
    further = {
        "whole_words_only": [t for t, single in words.items() if single],
        "without_leading_space": sum(not t[0].isspace() for t in words),
    }
    return surgery.added_layout(spelling, words), tokens, tokens, further


def _added_texts(spelling: Spelling, proposals: list[Proposal], texts: list[str]) -> list[str]:
    """Texts of added tokens in the order of their ids, each once; refuses what cannot be one."""
    if broken := [p.raw for p in proposals if p.text.encode("utf-8", "replace") != p.raw]:
        raise TokenizerError(f"Added tokens hold whole characters; these bytes do not: {broken}. Use 'merges'.")
    found = list(dict.fromkeys([*(p.text for p in proposals), *texts]))
    odd = [t for t in found if t in spelling.vocab or (spelling.kind == "sentencepiece" and SPACE_MARK in t)]
    if odd:
        raise TokenizerError(f"Spelt like pieces of the original vocabulary, so decoding would mix them up: {odd}.")
    return found


def _added_tokens(spelling: Spelling, words: Iterable[str], proposals: list[Proposal], first_id: int) -> list[NewToken]:
    counts = {p.text: p.count for p in proposals}
    return [
        NewToken(token_id, text, text.encode(), spelling.subtokens(text), counts.get(text, 0))
        for token_id, text in enumerate(words, first_id)
    ]


def _whole_words(spelling: Spelling, texts: list[str]) -> dict[str, bool]:
    """For each text, whether it must match whole words only, so that no original token is cut (case `stand`)."""
    inside = {t: spelling.inside_a_token(t) for t in texts}
    cutting = [t for t in texts if inside[t] and not all(c.isalnum() or c == "_" for c in (t[0], t[-1]))]
    if cutting:
        raise TokenizerError(
            f"{', '.join(map(repr, cutting))}: substrings of original tokens. As added tokens they would cut those "
            "apart wherever they occur. Leave them out, or use strategy 'merges'."
        )
    return inside
