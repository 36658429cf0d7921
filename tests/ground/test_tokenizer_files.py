"""What a folder's tokenizer.json says is what is used, whatever class the folder names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fixtures.small_tokenizers import FAMILIES, small_tokenizers
from tokenizers import Regex, Tokenizer, pre_tokenizers
from transformers import AutoTokenizer

from vocabx_utils.models import ModelError, load_tokenizer
from vocabx_utils.tokenizer_files import original_vocab_size, tokenizer_digest, twin
from vocabx_utils.vocabulary.encoding import encode_all

TEXTS = ["    return x", " hello", "hello", "def f(x):\n\tif x:\n\t\treturn  1\r\n", "don't I'LL"]


@pytest.fixture(scope="module")
def base_tokenizers() -> dict[str, Any]:
    return small_tokenizers()


def name_class(folder: Path, **changes: Any) -> Path:
    """Put a class's name and other settings into a folder's tokenizer_config.json."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


@pytest.mark.parametrize(("name", "other"), [("llama2", "LlamaTokenizer"), ("smollm", "GPT2Tokenizer")])
def test_the_file_counts_not_the_class(base_tokenizers: dict[str, Any], tmp_path: Path, name: str, other: str) -> None:
    base_tokenizers[name].save_pretrained(tmp_path)
    file = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    if name == "smollm":  # words otherwise than GPT-2 has them
        split = pre_tokenizers.Split(Regex(r"\S+|\s+"), "isolated")
        file.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
        file.save(str(tmp_path / "tokenizer.json"))
    name_class(tmp_path, tokenizer_class=other)
    expected = [e.ids for e in file.encode_batch(TEXTS, add_special_tokens=False)]
    loaded = load_tokenizer(tmp_path)
    assert encode_all(loaded, TEXTS) == expected
    assert loaded.eos_token == base_tokenizers[name].eos_token
    # the case has an edge: transformers alone reads these texts otherwise
    assert encode_all(AutoTokenizer.from_pretrained(tmp_path), TEXTS) != expected


def test_a_role_without_a_token_in_the_file_is_left_out(base_tokenizers: dict[str, Any], tmp_path: Path) -> None:
    """To enter it would give it an id that the model has no row for."""
    base_tokenizers["smollm"].save_pretrained(tmp_path)
    name_class(tmp_path, pad_token="<|nowhere|>")
    with pytest.warns(UserWarning, match=r"does not hold pad_token '<\|nowhere\|>': left out"):
        loaded = load_tokenizer(tmp_path)
    assert len(loaded) == len(base_tokenizers["smollm"]) and loaded.pad_token is None
    assert loaded.eos_token == "<|im_end|>"


def test_a_damaged_file_is_refused(base_tokenizers: dict[str, Any], tmp_path: Path) -> None:
    base_tokenizers["smollm"].save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0", "model"')
    with pytest.raises(ModelError, match="Could not load a tokenizer"):
        load_tokenizer(tmp_path)


def test_vocab_and_merges_alone_are_what_their_class_says(base_tokenizers: dict[str, Any], tmp_path: Path) -> None:
    base_tokenizers["smollm"].save_pretrained(tmp_path)
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(m) for m in model["merges"]))
    (tmp_path / "tokenizer.json").unlink()
    name_class(tmp_path, tokenizer_class="GPT2Tokenizer")
    assert encode_all(load_tokenizer(tmp_path), ["mean x"])


def test_what_is_rebuilt_from_a_sentencepiece_model_is_refused(
    base_tokenizers: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without tokenizer.json nothing says where such a tokenizer puts spaces."""
    base_tokenizers["llama2"].save_pretrained(tmp_path / "whole")
    rebuilt = AutoTokenizer.from_pretrained(tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer.json").unlink()
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda *_, **__: rebuilt)
    with pytest.raises(ModelError, match=r"bare holds no tokenizer\.json"):
        load_tokenizer(tmp_path / "bare")


def test_b37_added_tokens_count(tiny_folder: Path) -> None:
    """transformers' own vocab_size leaves added tokens out (case B37)."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    before = original_vocab_size(tokenizer)
    tokenizer.add_tokens(["groupby_x"])
    assert original_vocab_size(tokenizer) == before + 1 == tokenizer.convert_tokens_to_ids("groupby_x") + 1
    assert tokenizer.vocab_size == before


def test_the_digest_of_a_tokenizer_survives_saving_and_sees_a_changed_rule(tiny_base: Any, tmp_path: Path) -> None:
    tokenizer = tiny_base.tokenizer
    tokenizer.save_pretrained(tmp_path)
    before = tokenizer_digest(tokenizer)
    again = load_tokenizer(tmp_path)
    again(["a", "b c"], padding=True, truncation=True, max_length=4)  # a caller's settings
    assert tokenizer_digest(again) == before
    again.backend_tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    assert tokenizer_digest(again) != before


@pytest.mark.parametrize("name", FAMILIES)
def test_a_twin_is_equal_and_has_settings_and_added_tokens_of_its_own(
    base_tokenizers: dict[str, Any], name: str
) -> None:
    backend = base_tokenizers[name].backend_tokenizer
    before = backend.to_str()
    other = twin(backend)
    assert other.to_str() == before
    other.enable_truncation(3)
    other.add_tokens(["zqgroupby"])
    assert backend.to_str() == before != other.to_str()
