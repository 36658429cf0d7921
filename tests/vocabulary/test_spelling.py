"""Families: how pieces spell text, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from vocabx_utils.texts import TokenizerError
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.proposals import select_tokens
from vocabx_utils.vocabulary.spelling import Spelling, spelling_of

KINDS = {name: "byte-level" for name in ("smollm", "qwen", "llama3", "gpt4")} | {
    "llama2": "sentencepiece",
    "metaspace": "sentencepiece",
}


def test_each_family_is_recognised(base_tokenizers: dict[str, Any]) -> None:
    assert {name: spelling_of(t).kind for name, t in base_tokenizers.items()} == KINDS


def test_byte_symbols_are_the_alphabet_of_the_backend(smollm_like: PreTrainedTokenizerFast) -> None:
    raws = [spelling_of(smollm_like).raw(symbol) for symbol in pre_tokenizers.ByteLevel.alphabet()]
    assert sorted(raws) == [bytes([byte]) for byte in range(256)]


def test_first_free_id_counts_gaps(base_tokenizers: dict[str, Any]) -> None:
    spelling = spelling_of(base_tokenizers["gpt4"])
    assert spelling.first_free_id == 720 and len(spelling.vocab) == 701


@given(text=st.text(min_size=1).filter(lambda t: "▁" not in t and not t.startswith("<0x")))
def test_a_piece_gives_its_bytes_back(base_tokenizers: dict[str, Any], text: str) -> None:
    for name in ("smollm", "llama2"):
        spelling = families.setdefault(name, spelling_of(base_tokenizers[name]))
        assert spelling.raw(spelling.piece(text)) == text.encode()


families: dict[str, Spelling] = {}


def test_every_piece_spells_what_decoding_says(tokenizer: PreTrainedTokenizerFast) -> None:
    spelling = spelling_of(tokenizer)
    if spelling.kind != "byte-level":
        return
    for token_id in sorted(set(spelling.pieces) - spelling.added_ids)[::7]:
        decoded = tokenizer.backend_tokenizer.decode([token_id])
        assert spelling.raw_of(token_id).decode("utf-8", "replace") == decoded


def refused(model: Any, **settings: Any) -> PreTrainedTokenizerFast:
    backend = Tokenizer(model)
    for name, value in settings.items():
        setattr(backend, name, value)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=None, eos_token=None)


@pytest.mark.parametrize(
    ("model", "name", "reason"),
    [
        (models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0), "Unigram", "probabilities"),
        (models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"), "WordPiece", "longest piece"),
        (models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"), "WordLevel", "whole words"),
        (models.BPE({"a": 0, "b</w>": 1}, [], end_of_word_suffix="</w>"), "end_of_word_suffix", "do not join"),
        (models.BPE({"a": 0}, [], dropout=0.1), "dropout", "random"),
        (models.BPE({"a": 0}, []), "byte-level", "given back exactly|back exactly"),
    ],
)
@pytest.mark.parametrize("strategy", ["merges", "added"])
def test_other_models_are_refused_with_type_and_reason(model: Any, name: str, reason: str, strategy: Any) -> None:
    tokenizer = refused(model)
    for attempt in (
        lambda: add_tokens(tokenizer, ["ab"], strategy=strategy),
        lambda: select_tokens(["ab ab"], tokenizer, 1, strategy=strategy),
    ):
        with pytest.raises(TokenizerError, match=name) as caught:
            attempt()
        assert any(part in str(caught.value) for part in reason.split("|"))


def test_a_tokenizer_without_fast_backend_is_refused() -> None:
    with pytest.raises(TokenizerError, match="ByT5Tokenizer has no fast backend"):
        add_tokens(ByT5Tokenizer(), ["ab"])


def test_padding_entries_of_gguf_files_are_dropped(smollm_like: PreTrainedTokenizerFast) -> None:
    layout = json.loads(smollm_like.backend_tokenizer.to_str())
    layout["model"]["vocab"] |= {t["content"]: t["id"] for t in layout["added_tokens"]}
    layout["model"]["vocab"] |= {f"[PAD{i}]": i for i in range(702, 720)}
    padded = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(layout)))
    assert spelling_of(padded).first_free_id == 702
    extension = add_tokens(padded, [" groupby"])
    assert extension.V == 702 and "[PAD702]" not in extension.extended.get_vocab()


@pytest.mark.parametrize("strategy", ["merges", "added", "phrases"])
def test_the_spelling_known_from_building_is_the_one_that_would_be_asked_for(
    tokenizer: PreTrainedTokenizerFast, strategy: Any
) -> None:
    try:
        extended = add_tokens(tokenizer, [" groupby", "return self"][: 1 + (strategy == "phrases")], strategy).extended
    except TokenizerError:  # `phrases`, and `added` where text would not come back
        return
    backend = Tokenizer.from_str(extended.backend_tokenizer.to_str())
    known, asked = spelling_of(extended), spelling_of(backend)
    assert json.dumps(known.layout) == json.dumps(asked.layout) and known.vocab == asked.vocab
    assert known.backend.to_str() == asked.backend.to_str() == backend.to_str()
    assert known.widths.tolist() == asked.widths.tolist() and known.added_ids == asked.added_ids
