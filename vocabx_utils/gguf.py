"""GGUF files: one conversion to a plain Hugging Face folder, with the tokenizer that the file names.

transformers rebuilds model and tokenizer from a GGUF file, but not every pre-tokenizer: `smollm` loses its split
into single digits, `qwen2` its NFC normaliser. So the ones we know are set here from `tokenizer.ggml.pre`, and the
others are refused, since a wrong pre-tokenizer changes every id without an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import torch
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers

from vocabx_utils import portable
from vocabx_utils.files import hash_bytes
from vocabx_utils.portable import save_model, save_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class ModelError(ValueError):
    """A model or tokenizer cannot be loaded; the message says what is wrong and what to do."""


ARCHITECTURES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3", "starcoder2", "phi3", "stablelm")
_GPT4_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"


def _isolated(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


def _byte_level(*before: pre_tokenizers.PreTokenizer, regex: bool = False) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([*before, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)])


def _digits_then_gpt2() -> pre_tokenizers.PreTokenizer:
    return _byte_level(pre_tokenizers.Digits(individual_digits=True), regex=True)


def _qwen2() -> pre_tokenizers.PreTokenizer:
    return _byte_level(_isolated(_CONTRACTIONS + r"|\p{N}" + _GPT4_TAIL))


def _llama3() -> pre_tokenizers.PreTokenizer:
    return _byte_level(_isolated(_CONTRACTIONS + r"|\p{N}{1,3}" + _GPT4_TAIL))


def _deepseek_coder() -> pre_tokenizers.PreTokenizer:
    patterns = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+")
    return _byte_level(*map(_isolated, patterns), pre_tokenizers.Digits(individual_digits=True))


# tokenizer.ggml.pre -> its pre-tokenizer, and whether the family normalises to NFC
PRE_TOKENIZERS: dict[str, tuple[Callable[[], pre_tokenizers.PreTokenizer], bool]] = {
    "smollm": (_digits_then_gpt2, False),
    "starcoder": (_digits_then_gpt2, False),
    "refact": (_digits_then_gpt2, False),
    "gpt-2": (lambda: _byte_level(regex=True), False),
    "qwen2": (_qwen2, True),
    "llama-bpe": (_llama3, False),
    "deepseek-coder": (_deepseek_coder, False),
}


def converter() -> str:
    """Name what converts: a digest of this module and of what writes the folder, and the version of transformers.

    A cache outlives the code that filled it. A conversion by another converter may hold another tokenizer, which
    would change every number after it without a word; so such a conversion is made again.
    """
    sources = (Path(source).read_bytes() for source in (__file__, portable.__file__))
    return f"{hash_bytes(sources)[:12]}-transformers-{version('transformers')}"


def read_metadata(path: Path) -> tuple[dict[str, Any], int]:
    """Read the key-value part of a GGUF file and check that all its tensors are there.

    Returns:
        The part, and the bytes that the tensors take in float32.

    Raises:
        ModelError: not a GGUF file, or shorter than its header says.
    """
    import gguf

    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path} is not a GGUF file (it does not begin with 'GGUF').")
    try:
        with _read_at_once():
            reader = gguf.GGUFReader(path)
    except Exception as error:  # the reader lets numpy's and its own errors through
        raise ModelError(f"{path} is truncated or damaged ({type(error).__name__}: {error}).") from error
    size = 4 * sum(int(tensor.n_elements) for tensor in reader.tensors)
    return {key: field.contents() for key, field in reader.fields.items()}, size


@contextmanager
def _read_at_once() -> Iterator[None]:
    """Let the reader have the whole file in memory instead of mapped.

    It takes millions of small slices to read a vocabulary, four times over. Slices of a memory map are objects of
    their own class and took a third to a half of a conversion's time.
    """

    numpy = ModuleType("numpy")
    vars(numpy).update(vars(np), memmap=lambda path, mode: np.fromfile(path, np.uint8))
    with mock.patch("gguf.gguf_reader.np", numpy):
        yield


def check_known(path: Path, metadata: dict[str, Any]) -> None:
    """Refuse what could not be restored faithfully.

    Raises:
        ModelError: names the architecture or pre-tokenizer found and the known ones.
    """
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ModelError(f"{path.name}: architecture {architecture!r}. Known: {', '.join(ARCHITECTURES)}.")
    if metadata.get("tokenizer.ggml.model") == "llama":  # SentencePiece: the vocabulary says it all
        return
    pre = metadata.get("tokenizer.ggml.pre")
    if pre not in PRE_TOKENIZERS:
        raise ModelError(
            f"{path.name}: pre-tokenizer {pre!r} (tokenizer.ggml.pre). Known: {', '.join(PRE_TOKENIZERS)}. "
            "Load the model from its hub id or folder, which bring the tokenizer's own files."
        )


def convert_into(path: Path, metadata: dict[str, Any], folder: Path) -> None:
    """Write the model (float32) and the tokenizer of a GGUF file as a Hugging Face folder.

    Raises:
        ModelError: transformers cannot read it.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        with _read_at_once():
            model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
            rebuilt = AutoTokenizer.from_pretrained(**where)
    except (ValueError, KeyError, RuntimeError, EOFError) as error:
        raise ModelError(f"transformers could not read {path.name}: {error}") from error
    tokenizer = _restore_tokenizer(rebuilt, metadata)
    # A model from GGUF refuses to be saved while it carries its quantisation config.
    model.__dict__.pop("hf_quantizer", None)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.__dict__.pop("is_quantized", None)
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    model.config.update({**ends, "bos_token_id": tokenizer.bos_token_id})
    model.generation_config = GenerationConfig(**ends)
    save_model(model, folder)
    save_tokenizer(tokenizer, folder)


def _restore_tokenizer(rebuilt: Any, metadata: dict[str, Any]) -> PreTrainedTokenizerFast:
    """Set normaliser and pre-tokenizer from the metadata; drop `[PAD…]` entries and what the file does not list.

    Args:
        rebuilt: what transformers made from the file.
        metadata: the file's key-value part.
    """
    from transformers import PreTrainedTokenizerFast

    content = json.loads(rebuilt.backend_tokenizer.to_str())
    tokens = metadata["tokenizer.ggml.tokens"]
    real = {token for token in tokens if not re.fullmatch(r"\[PAD\d+\]", token)}
    vocabulary = content["model"]["vocab"]
    if isinstance(vocabulary, dict):
        content["model"]["vocab"] = {t: i for t, i in vocabulary.items() if t in real}
    # the class that transformers builds from may bring special tokens of its own, which the model has no rows for
    content["added_tokens"] = [a for a in content["added_tokens"] if a["content"] in real]
    backend = Tokenizer.from_str(json.dumps(content))
    if metadata.get("tokenizer.ggml.model") != "llama":
        make, nfc = PRE_TOKENIZERS[metadata["tokenizer.ggml.pre"]]
        backend.pre_tokenizer = make()
        if nfc:
            backend.normalizer = normalizers.NFC()
    named = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {role: metadata.get(f"tokenizer.ggml.{key}_token_id") for role, key in named.items()}
    if metadata.get("tokenizer.ggml.add_bos_token") is False:  # llama.cpp wants an id; the model never saw it
        ids["bos_token"] = None
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        chat_template=metadata.get("tokenizer.chat_template"),
        clean_up_tokenization_spaces=False,
        **{role: tokens[i] for role, i in ids.items() if i is not None},
    )
