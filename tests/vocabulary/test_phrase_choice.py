"""What is chosen is what the finished tokenizer produces, and nothing old moves."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabx_utils.texts import TokenizerError
from vocabx_utils.vocabulary.alignment import align_text
from vocabx_utils.vocabulary.audit import UNICODE_STRESS
from vocabx_utils.vocabulary.checks import round_trip_failures
from vocabx_utils.vocabulary.encoding import encode_all
from vocabx_utils.vocabulary.extend import add_tokens, extend_tokenizer
from vocabx_utils.vocabulary.options import TokenOptions
from vocabx_utils.vocabulary.phrase_choice import _Borders, choose_phrases
from vocabx_utils.vocabulary.phrase_forms import crosses_words
from vocabx_utils.vocabulary.phrases import PhraseLearner
from vocabx_utils.vocabulary.proposals import select_tokens
from vocabx_utils.vocabulary.spelling import spelling_of
from vocabx_utils.vocabulary.tokens import Extension, load_extension

BYTE_LEVEL = ["smollm", "qwen", "llama3", "gpt4"]
WORDS = ["für", "die", "Übersetzung", "über", "größe", "Maß", "🙂🙃", "zählt", "gilt", "können"]
GERMAN = [" ".join(WORDS[(k * j + j) % len(WORDS)] for j in range(1, 12)) + "\n" for k in range(40)]


@cache
def borders(tokenizer: Any, text: str) -> set[int]:
    """Byte ends of the original tokens of one text, and its beginning."""
    spelling, ends, at = spelling_of(tokenizer), {0}, 0
    for i in encode_all(tokenizer, [text])[0]:
        at += len(spelling.raw_of(i))
        ends.add(at)
    return ends


def clean_counts(extension: Extension, texts: list[str]) -> dict[int, int]:
    """How often each new token begins and ends where original tokens do."""
    spelling, counts = spelling_of(extension.extended), dict.fromkeys(extension.new_ids, 0)
    for text, ids in zip(texts, encode_all(extension.extended, texts), strict=True):
        old, at = borders(extension.original, text), 0
        for i in ids:
            end = at + len(spelling.raw_of(i))
            counts[i] = counts.get(i, 0) + (at in old and end in old)
            at = end
    return {i: counts[i] for i in extension.new_ids}


@pytest.mark.parametrize("form", ["patterns", "literal"])
@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_the_finished_tokenizer_makes_what_was_counted(
    base_tokenizers: dict[str, Any], domain: list[str], name: str, mixed: bool, form: Any
) -> None:
    options = TokenOptions(min_count=3, min_files=2, mix_words=mixed, max_cut=0.2, phrase_form=form)
    proposals = select_tokens(domain, base_tokenizers[name], 60, "phrases", options)
    extension = add_tokens(base_tokenizers[name], proposals, "phrases", phrase_form=form)
    counts, clean, spelling = extension.count(domain), clean_counts(extension, domain), spelling_of(extension.original)
    assert extension.N == len(proposals) == 60
    encoded = encode_all(extension.extended, domain)
    for token in extension.tokens:
        crosses = crosses_words(spelling, token.text)
        assert token.count == counts[token.id]
        assert token.raw.decode() == token.text and (mixed or crosses)
        if crosses:  # a word may stand as a step
            assert clean[token.id] >= max(3, 0.8 * token.count)
            assert sum(token.id in ids for ids in encoded) >= 2
            assert token.subtokens == tuple(encode_all(extension.original, [token.text])[0])


def test_what_tokens_save_adds_up_to_what_the_tokenizer_saves(
    base_tokenizers: dict[str, Any], domain: list[str]
) -> None:
    for name in BYTE_LEVEL:
        options = TokenOptions(min_count=3, max_cut=1, phrase_form="literal")
        extension = extend_tokenizer(base_tokenizers[name], domain, 40, "phrases", options)
        both = (extension.original, extension.extended)
        before, after = (sum(map(len, encode_all(tokenizer, domain))) for tokenizer in both)
        borders = _Borders(domain, spelling_of(extension.original))
        uses = borders.uses(extension.extended.backend_tokenizer, [token.raw for token in extension.tokens])
        # the whitespace before a phrase may be read otherwise, too, which is not counted
        assert sum(use.saved for use in uses) == pytest.approx(before - after, rel=5e-3)
        assert [use.shown for use in uses] == [*extension.count(domain).values()]


def test_a_phrase_does_not_end_in_the_space_of_the_next_word(smollm_like: Any) -> None:
    texts = ["a = 1, b = 2, c = 3, d = foo, e = bar"] * 5
    proposals = select_tokens(texts, smollm_like, 4, "phrases")
    assert proposals and not [p for p in proposals if p.text.endswith(" ")]


def test_text_without_a_phrase_keeps_its_ids_and_all_text_comes_back(
    base_tokenizers: dict[str, Any], domain: list[str], tmp_path: Path
) -> None:
    for name in BYTE_LEVEL:
        extension = extend_tokenizer(base_tokenizers[name], domain, 40, "phrases", TokenOptions(min_count=3))
        lines = [line for text in domain for line in text.splitlines(keepends=True)]
        both = encode_all(extension.original, lines), encode_all(extension.extended, lines)
        untouched = [(a, b) for a, b in zip(*both, strict=True) if max(b, default=0) < extension.V]
        assert len(untouched) > 100 and all(a == b for a, b in untouched)
        joined = [f"{t.text}(x) a{t.text}, {t.text}{t.text} b\n{t.text}" for t in extension.tokens]
        assert not round_trip_failures(extension, [*UNICODE_STRESS, *joined, *domain])
        for cycle in ("one", "two"):
            extension.save(tmp_path / name / cycle)
            loaded = load_extension(tmp_path / name / cycle)
            assert loaded.tokens == extension.tokens and loaded.strategy == "phrases"
            assert encode_all(loaded.extended, lines[:300]) == both[1][:300]


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
@settings(max_examples=60, deadline=None)
def test_any_text_comes_back(base_tokenizers: dict[str, Any], text: str) -> None:
    for name in ("smollm", "qwen"):
        if name not in _ready:
            _ready[name] = add_tokens(
                base_tokenizers[name], [" über die", "return self", "):\n    ", "é 🙂"], "phrases"
            )
        assert not round_trip_failures(
            _ready[name], [text, f"{text} über die{text}return self{text}):\n    {text}é 🙂"]
        )


_ready: dict[str, Extension] = {}


@pytest.mark.filterwarnings("ignore:The corpus offers")
@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_umlauts_and_emoji_are_never_split(base_tokenizers: dict[str, Any], name: str) -> None:
    proposals = select_tokens(GERMAN, base_tokenizers[name], 30, "phrases")
    assert any("ü" in p.text and " " in p.text.strip() for p in proposals)
    assert all(p.raw.decode() == p.text for p in proposals)
    assert not round_trip_failures(add_tokens(base_tokenizers[name], proposals, "phrases"), GERMAN)


def test_special_tokens_stand_in_no_phrase(smollm_like: Any) -> None:
    texts = ["<|im_start|>user\nhello there<|im_end|>\n<|im_start|>user\nhello there<|im_end|>\n"] * 9
    with pytest.warns(UserWarning, match="offers"):
        proposals = select_tokens(texts, smollm_like, 40, "phrases")
    assert proposals and not any("im_" in p.text for p in proposals)
    special = smollm_like.convert_tokens_to_ids("<|im_end|>")
    extension = add_tokens(smollm_like, proposals, "phrases")
    assert encode_all(extension.extended, texts)[0].count(special) == 2


def test_options_are_heeded(smollm_like: Any, domain: list[str]) -> None:
    def chosen(**named: Any) -> list[Any]:
        return select_tokens(domain, smollm_like, 40, "phrases", TokenOptions(min_count=3, **named))

    spelling = spelling_of(smollm_like)
    usual = chosen()
    assert any(not crosses_words(spelling, p.text) for p in usual)
    assert any("\n" in p.text for p in chosen(max_cut=1.0))
    assert not any("\n" in p.text or "\r" in p.text for p in chosen(line_breaks=False))
    assert all(crosses_words(spelling, p.text) for p in chosen(mix_words=False))
    assert all(len(p.raw) <= 6 for p in chosen(max_phrase_bytes=6, max_bytes=6))
    left_out = usual[0].text
    assert left_out not in [p.text for p in chosen(exclude=frozenset([left_out]))]
    assert chosen() == usual == select_tokens(domain[::-1], smollm_like, 40, "phrases", TokenOptions(min_count=3))
    for wrong in ({"max_phrase_bytes": 1}, {"max_cut": 1.5}):
        with pytest.raises(TokenizerError, match="expected at least 2, and a share"):
            TokenOptions(**wrong)


def test_a_learner_can_be_used_again(smollm_like: Any, domain: list[str]) -> None:
    options = TokenOptions(min_count=3)
    learner = PhraseLearner(domain, spelling_of(smollm_like), options)
    many, few = (choose_phrases(learner, n, options) for n in (60, 20))
    assert few == choose_phrases(PhraseLearner(domain, spelling_of(smollm_like), options), 20, options)
    assert len(many) == 60


def test_rare_tokens_of_the_training_texts_are_replaced(smollm_like: Any, domain: list[str]) -> None:
    training = domain[: len(domain) // 2]
    extension = extend_tokenizer(
        smollm_like, domain, 30, "phrases", TokenOptions(min_count=3), training_texts=training, min_train_count=5
    )
    assert extension.N == 30 and min(extension.count(training).values()) >= 5
    assert extension.report["too_rare_in_training"]


def test_a_long_span_is_aligned_to_its_byte_ends(base_tokenizers: dict[str, Any]) -> None:
    for name in BYTE_LEVEL:
        phrase = ":\n\n    Parameters\n    ----------\n   "
        extension = add_tokens(base_tokenizers[name], [phrase, " größer als"], "phrases")
        text = f"x{phrase} data: é größer als 3{phrase} y"
        aligned = align_text(extension, text)
        for i, j in aligned.boundaries:
            assert aligned.original_ends[i] == aligned.extended_ends[j]
        at = next(t.id for t in extension.tokens if t.text == phrase)
        ends = aligned.extended_ends[aligned.extended_ids == at].tolist()
        assert ends == [text.encode().find(phrase.encode(), k) + len(phrase) for k in (0, 45)]
        assert aligned.original_ends[-1] == aligned.extended_ends[-1] == len(text.encode())


def test_sentencepiece_style_tokenizers_are_refused(base_tokenizers: dict[str, Any]) -> None:
    for name in ("llama2", "metaspace"):
        with pytest.raises(TokenizerError, match="needs a byte-level tokenizer"):
            select_tokens(["a b a b"], base_tokenizers[name], 3, "phrases")
        with pytest.raises(TokenizerError, match="needs a byte-level tokenizer"):
            add_tokens(base_tokenizers[name], ["a b"], "phrases")
