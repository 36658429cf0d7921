"""Tokenizers exactly as their folders' tokenizer.json says.

transformers builds the tokenizers of some classes anew from vocabulary and merges, with the normaliser and
pre-tokenizer that the class knows. Llama-2's then reads the spaces at the start of a line otherwise than the file,
and a folder that names a wrong class (GPT-4o's under GPT-2's) other words: both without a message. So the backend
always comes from the file. transformers is asked only for what the file does not hold: which token has which role,
the chat template, and lengths and sides.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import cached_file

from vocabx_utils.fetch import PACKAGED
from vocabx_utils.files import digest, read_json
from vocabx_utils.gguf import ModelError
from vocabx_utils.paths import stage_name
from vocabx_utils.runs import Run

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from vocabx_utils.models import BaseModel

FILE = "tokenizer.json"
_HOLDS_ONE = (FILE, "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_SETTINGS = ("model_max_length", "padding_side", "truncation_side", "model_input_names", "chat_template")


def read_tokenizer(source: str, revision: str | None = None) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a folder or hub id with the backend of its tokenizer.json.

    Without such a file it is what transformers builds from `vocab.json` and `merges.txt`. ModelError where there is no
    tokenizer, it cannot be read, has no fast backend, or only a SentencePiece model file says how it cuts text.
    """
    try:
        built = AutoTokenizer.from_pretrained(source, revision=revision)
    except Exception as error:  # the backend raises plain Exception for a file that it cannot parse
        raise ModelError(_why_none(source, error)) from error
    if not built.is_fast:
        raise ModelError(
            f"{source}: {type(built).__name__} has no fast backend ({FILE}). "
            "Convert it with `transformers.convert_slow_tokenizer` and save it first."
        )
    file = _find_file(source, revision)
    if file is None:
        _check_rebuilt(source, built)
        return cast("PreTrainedTokenizerFast", built)
    return plain_tokenizer(built, _from_file(file))


def _why_none(source: str, error: Exception) -> str:
    place = Path(source)
    if place.is_dir() and not any((place / name).is_file() for name in _HOLDS_ONE):
        return (
            f"{source} holds no tokenizer: expected {FILE} beside the weights. Put the one of the model's publisher "
            "into the folder, or call `tokenizer.save_pretrained` on it."
        )
    if not place.is_dir():
        return (
            f"Could not load a tokenizer from {source!r}: it is no folder and no packaged model "
            f"({', '.join(PACKAGED)}), and as a hub id: {error}"
        )
    return f"Could not load a tokenizer from {source!r}: {error}"


def plain_tokenizer(like: Any, backend: Tokenizer) -> PreTrainedTokenizerFast:
    """Make a tokenizer with a backend, which is not copied, and special tokens, chat template and settings of another.

    Decoding never drops spaces before signs, which code needs. A role whose token the backend does not hold is left out
    with a warning: to enter the token would give it an id that the model has no row for.
    """
    settings = {name: getattr(like, name) for name in _SETTINGS if getattr(like, name, None) is not None}
    shared: Any = _Shared(backend)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=shared, clean_up_tokenization_spaces=False, **settings)
    _carry_roles(tokenizer, like)
    return tokenizer


def twin(backend: Tokenizer) -> Tokenizer:
    """Return a tokenizer of the same parts that has its own settings and added tokens.

    The model, by far the largest part, is shared and not copied.
    """
    other = type(backend)(backend.model)
    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if (part := getattr(backend, name)) is not None:
            setattr(other, name, part)
    other.add_tokens([token for _, token in sorted(backend.get_added_tokens_decoder().items())])
    return other


class _Shared:
    """Stands for a backend where transformers would copy it, by way of its JSON."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend

    def __deepcopy__(self, memo: dict[int, Any]) -> Tokenizer:
        return self.backend


def _from_file(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the backend raises plain Exception
        raise ModelError(f"Could not read {file}: {error}") from error


def _carry_roles(tokenizer: PreTrainedTokenizerFast, like: Any) -> None:
    """Name special tokens as `like` does, without entering any into the vocabulary."""
    known = tokenizer.backend_tokenizer.token_to_id
    roles = dict(like.special_tokens_map)
    listed = [*roles.pop("extra_special_tokens", []), *roles.pop("additional_special_tokens", [])]
    standard = set(tokenizer.SPECIAL_TOKENS_ATTRIBUTES)
    listed += [token for role, token in roles.items() if role not in standard]
    absent = sorted(f"{role} {token!r}" for role, token in roles.items() if role in standard and known(token) is None)
    if absent:
        warnings.warn(f"{FILE} does not hold {', '.join(absent)}: left out.", stacklevel=3)
    for role, token in roles.items():
        if role in standard and known(token) is not None:
            setattr(tokenizer, role, token)
    extra = [
        token for token in dict.fromkeys([*listed, *map(str, like.extra_special_tokens)]) if known(token) is not None
    ]
    tokenizer.extra_special_tokens = extra


def _find_file(source: str, revision: str | None) -> Path | None:
    if Path(source).is_dir():
        path = Path(source) / FILE
        return path if path.is_file() else None
    found = cached_file(source, FILE, revision=revision, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None


def _check_rebuilt(source: str, built: Any) -> None:
    """Refuse a tokenizer that transformers made from a SentencePiece model: it places spaces by its own rule."""
    model = built.backend_tokenizer.model
    if getattr(model, "byte_fallback", False) or type(model).__name__ == "Unigram":
        raise ModelError(
            f"{source} holds no {FILE}, and what transformers builds from a SentencePiece model may cut spaces "
            f"otherwise than the model was trained with. Put the {FILE} of the model's publisher into the folder."
        )


def original_vocab_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return `V`: one more than the largest id that the tokenizer can produce.

    `tokenizer.vocab_size` leaves added tokens out, and `len` counts entries, which may have gaps.
    """
    return max(tokenizer.get_vocab().values()) + 1


def tokenizer_digest(tokenizer: PreTrainedTokenizerFast) -> str:
    """Digest what decides a text's ids: vocabulary, merges, normaliser, pre-tokenizer, added tokens (16 hex digits).

    Padding, truncation and begin tokens are left out: callers set them as they need.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    return digest([content.get(part) for part in ("model", "normalizer", "pre_tokenizer", "added_tokens")])


def require_tokenizer(base: BaseModel, original: PreTrainedTokenizerFast, made: str) -> None:
    """Refuse a base model whose tokenizer is not the one that an extension (`made`, for the message) was made for.

    Equal V is not enough: Llama 2 and Mistral 7B have 32,000 ids each, and other ones for the same text. The
    ModelError names both.
    """
    stored, own = tokenizer_digest(original), tokenizer_digest(base.tokenizer)
    if stored != own:
        raise ModelError(
            f"{made} extends another tokenizer (digest {stored}, V = {original_vocab_size(original)}) than that of the "
            f"model {base.name!r} (digest {own}, V = {base.vocab_size}). Choose the model that notebook 01 was run "
            "with, or run notebook 01 with this one under another run name."
        )


def require_run_tokenizer(base: BaseModel, run: Run) -> None:
    """Refuse a base model whose tokenizer is not that which notebook 01 of a run extended; see `require_tokenizer`."""
    original = read_tokenizer(str(run.require("01", "extension/original")))
    require_tokenizer(base, original, extension_name(run))


def extension_name(run: Run) -> str:
    """Name a run's extension and the model that notebook 01 made it with, for messages."""
    key = run.folder / stage_name("01") / "key.json"
    model = read_json(key).get("model") if key.exists() else None
    return f"the extension of run {run.name!r}" + (f" (made with model {model!r})" if model else "")
