"""Byte ends of tokens, and what the ids of a text are."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
from fixtures.alignment_tokenizers import make_tokenizer, with_added
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from vocabx_utils.texts import TokenizerError
from vocabx_utils.vocabulary.alignment import align_text
from vocabx_utils.vocabulary.encoding import byte_ends, encode_all
from vocabx_utils.vocabulary.spelling import spelling_of


def normalised(tokenizer, text: str) -> bytes:
    backend = tokenizer.backend_tokenizer
    if backend.normalizer is not None:
        text = backend.normalizer.normalize_str(text)
    return text.replace("\u2581", " ").encode()


@cache
def original(family: str) -> PreTrainedTokenizerFast:
    return make_tokenizer(family)


@pytest.mark.parametrize("family", ["byte-level", "digits", "nfc", "sentencepiece"])
@given(text=st.text(max_size=40))
@settings(max_examples=60, deadline=None)
def test_byte_ends_count_the_normalised_text(family, text):
    tokenizer = original(family)
    ids = tokenizer.encode(text, add_special_tokens=False)
    spelling = spelling_of(tokenizer)
    assert b"".join(spelling.raws[index] for index in ids) == normalised(tokenizer, text)
    ends = byte_ends(tokenizer, ids)
    assert ends.dtype == np.int64 and ends.shape == (len(ids),)
    assert (int(ends[-1]) if ids else 0) == len(normalised(tokenizer, text))


def test_byte_ends_inside_a_character():
    tokenizer = original("byte-level")
    ids = tokenizer.encode("⭢", add_special_tokens=False)
    assert len(ids) == 3  # one character, three tokens: characters could not tell them apart
    assert byte_ends(tokenizer, ids).tolist() == [1, 2, 3]


def test_nfc_text_counts_composed_characters():
    tokenizer = original("nfc")
    ids = tokenizer.encode("e\u0301x", add_special_tokens=False)
    assert byte_ends(tokenizer, ids)[-1] == len("éx".encode()) == 3


def test_specials_are_zero_wide_and_added_tokens_are_not():
    pair = with_added("byte-level")
    tokenizer = pair.extended
    ids = [tokenizer.convert_tokens_to_ids(token) for token in ("<|begin|>", "groupby", "<|end|>", "🙂 日")]
    assert byte_ends(tokenizer, ids).tolist() == [0, 7, 7, 7 + len("🙂 日".encode())]


def test_table_follows_a_tokenizer_that_grows():
    tokenizer = make_tokenizer("byte-level")
    before = len(spelling_of(tokenizer).widths)
    tokenizer.add_tokens([AddedToken("zzz", normalized=False)])
    assert len(spelling_of(tokenizer).widths) == before + 1
    assert spelling_of(tokenizer) is spelling_of(tokenizer)


def test_padding_rows_are_refused():
    tokenizer = original("byte-level")
    with pytest.raises(ValueError, match=r"token id 5000 is not in the tokenizer"):
        byte_ends(tokenizer, [1, 5000])
    with pytest.raises(ValueError, match=r"token id -100 is not"):
        byte_ends(tokenizer, [-100])


def test_other_model_types_are_refused_by_name():
    unigram = Tokenizer(models.Unigram([("a", -1.0)], unk_id=0))
    wordpiece = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    for tokenizer, name in ((unigram, "Unigram"), (wordpiece, "WordPiece")):
        with pytest.raises(ValueError, match=name):
            spelling_of(tokenizer)
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match="neither byte-level nor"):
        spelling_of(words)
    with pytest.raises(ValueError, match="no fast backend"):
        spelling_of(SimpleNamespace())


def test_settings_of_an_earlier_call_cut_no_text():
    tokenizer, text = make_tokenizer("byte-level"), "import numpy as np"
    whole = encode_all(tokenizer, [text])
    tokenizer([text], truncation=True, max_length=2)
    aligned = align_text(SimpleNamespace(original=tokenizer, extended=tokenizer), text)
    assert [aligned.original_ids.tolist()] == encode_all(tokenizer, [text]) == whole and len(whole[0]) > 2


@pytest.mark.parametrize("bad", ["half \ud800", "\udfff", 7, None])
def test_what_no_tokenizer_takes_is_named(bad):
    with pytest.raises(TokenizerError, match=r"text 1 (holds .* half of a surrogate pair|is .*; expected a string)"):
        encode_all(original("byte-level"), ["fine", bad])


def test_half_a_character_cannot_be_aligned():
    tokenizer = original("byte-level")
    with pytest.raises(TokenizerError, match=r"text 0 holds .* half of a surrogate pair"):
        align_text(SimpleNamespace(original=tokenizer, extended=tokenizer), "half \ud800")
