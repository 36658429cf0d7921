"""GGUF files: one conversion to a plain Hugging Face folder, with the tokenizer that the file names.

transformers rebuilds model and tokenizer from a GGUF file, but not every pre-tokenizer: `smollm` loses its split
into single digits, `qwen2` its NFC normaliser. So the ones we know are set here from `tokenizer.ggml.pre`, and the
others are refused, since a wrong pre-tokenizer changes every id without an error.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
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
from vocabx_utils.files import read_json, write_json
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
    sources = Path(__file__).read_bytes() + Path(portable.__file__).read_bytes()
    return f"{hashlib.sha256(sources).hexdigest()[:12]}-transformers-{version('transformers')}"


def is_current(folder: Path, **facts: str) -> bool:
    """Whether `folder` holds a finished conversion by this converter, with these facts in its `source.json`."""
    stamp = folder / "source.json"
    if not stamp.exists():
        return False
    found = read_json(stamp)
    return all(found.get(key) == value for key, value in {"converter": converter(), **facts}.items())


def convert_gguf(path: Path, parent: Path, name: str | None = None, facts: Mapping[str, str] | None = None) -> Path:
    """Convert a GGUF file once to safetensors and tokenizer files.

    Args:
        path: the GGUF file.
        parent: folder that holds conversions.
        name: folder name below `parent`; by default the file's stem and the start of its SHA-256.
        facts: what else goes into the conversion's `source.json`.

    Returns:
        Folder that `transformers` loads; an earlier conversion by the same `converter` is taken as it is.

    Raises:
        ModelError: missing, truncated or no GGUF file, or an architecture or pre-tokenizer we do not know.
    """
    if not path.is_file():
        raise ModelError(f"GGUF file {path} does not exist.")
    if name is None:
        with path.open("rb") as file:
            name = f"{path.stem}-{hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"
    target = parent / name
    if is_current(target, **(facts or {})):
        return target
    metadata = read_metadata(path)
    check_known(path, metadata)
    parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=parent, prefix=f".{name}-"))
    try:
        _convert_into(path, metadata, scratch)
        source = {"file": path.name, "architecture": metadata["general.architecture"], "converter": converter()}
        write_json(scratch / "source.json", {**source, **(facts or {})})
        scratch.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)  # unfinished, or of another converter
        scratch.rename(target)
    except OSError as error:
        raise OSError(error.errno, f"Could not write the conversion of {path.name} to {parent}: {error}") from error
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def read_metadata(path: Path) -> dict[str, Any]:
    """Read the key-value part of a GGUF file and check that all its tensors are there.

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
    return {key: field.contents() for key, field in reader.fields.items()}


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


def _convert_into(path: Path, metadata: dict[str, Any], folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    where = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    try:
        with _read_at_once():
            model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32)
            rebuilt = AutoTokenizer.from_pretrained(**where)
    except (ValueError, KeyError, RuntimeError, EOFError) as error:
        raise ModelError(f"transformers could not read {path.name}: {error}") from error
    tokenizer = restore_tokenizer(rebuilt, metadata)
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


def restore_tokenizer(rebuilt: Any, metadata: dict[str, Any]) -> PreTrainedTokenizerFast:
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
