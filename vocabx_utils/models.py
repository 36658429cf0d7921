"""Base models: from a fetched default, a hub id, a local folder or a GGUF file; always untied and frozen.

`V` counts the ids that the tokenizer can produce, `V_rows` the rows of the matrices (padding rows included).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, BitsAndBytesConfig, PreTrainedTokenizerFast
from transformers.utils import logging

from vocabx_utils.fetch import DEFAULT_MODEL, resolve_source
from vocabx_utils.files import hash_bytes
from vocabx_utils.gguf import ModelError
from vocabx_utils.tokenizer_files import original_vocab_size, read_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_SAMPLED = 4096  # values of each tensor in a fingerprint, at least where it has as many


@dataclasses.dataclass(frozen=True)
class BaseModel:
    """A frozen, untied causal language model with its tokenizer."""

    name: str  # the source it was loaded from
    # in evaluation mode, no parameter requires a gradient, input embedding and head are two tensors
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast  # the original tokenizer
    vocab_size: int  # `V`, ids that the tokenizer can produce
    device: torch.device  # where the weights are
    dtype: torch.dtype  # their type
    fingerprint: str  # changes when configuration or weights change

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
        """Return name, sizes, device and dtype, for printing."""
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
    quantization: str = "none",
) -> BaseModel:
    """Load a base model from a packaged name, hub id, local folder or `.gguf` file, untie its head and freeze it.

    For `device` and `dtype` see `pick_device` and `pick_dtype`; a revision is the commit or tag of a hub id, and for
    `quantization` see `quantization_of`. ModelError where the source is missing, damaged or of a kind that cannot be
    extended, or bitsandbytes is missing.

    Example:
        >>> base = load_base_model(folder)
        >>> base.model.training, base.vocab_size == len(base.tokenizer), base.head_rows.shape[1] == base.width
        (False, True, True)
    """
    from transformers import AutoModelForCausalLM  # takes seconds, for which a tokenizer alone need not wait

    where = pick_device(device)
    kind = pick_dtype(dtype, where)
    how = quantization_of(quantization, kind, where)
    path = resolve_source(source)
    tokenizer = load_tokenizer(source, revision=revision)
    try:
        with quiet_transformers():
            model = AutoModelForCausalLM.from_pretrained(path, dtype=kind, revision=revision, **how)
    except (OSError, ValueError, KeyError, RuntimeError, EOFError, SafetensorError, UnpicklingError) as error:
        raise ModelError(f"Could not load a causal language model from {str(source)!r}: {error}") from error
    return made_base(model, tokenizer, str(source), where)


def quantization_of(name: str, dtype: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Return what transformers needs to load the linear layers of the blocks in fewer bits; nothing for "none".

    "4bit" is the NormalFloat of QLoRA (https://arxiv.org/abs/2305.14314) in bitsandbytes, which computes in `dtype` and
    passes gradients through. Embedding and head stay as they are. ModelError where bitsandbytes is missing, and without
    CUDA: for a CPU it packs weights anew in a way that has no gradient.
    """
    if name == "none":
        return {}
    if name != "4bit":
        raise ModelError(f"quantization is {name!r}; expected 'none' or '4bit'.")
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ModelError(
            "quantization '4bit' needs the package bitsandbytes, which is not installed: `pip install bitsandbytes`, "
            "or set quantization to 'none'."
        )
    if device.type != "cuda":
        raise ModelError(f"quantization '4bit' needs a CUDA GPU, the device is {device}: set quantization to 'none'.")
    bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=dtype)
    index = torch.cuda.current_device() if device.index is None else device.index
    return {"quantization_config": bits, "device_map": {"": index}}


def freeze(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> BaseModel:
    """Make a base model of a model and its tokenizer that are in memory; both are left as they are.

    The weights are copied, unless they are untied and frozen already (those of `load_base_model` are). ModelError for
    a kind that cannot be extended, values that are infinite or NaN, or fewer rows than the tokenizer has ids.
    """
    from transformers import PreTrainedModel

    if hasattr(model, "peft_config") or not isinstance(model, PreTrainedModel):
        raise ModelError(
            f"expected a plain model of transformers, not a {type(model).__name__}: merge an adapter first."
        )
    moves = model.training or any(parameter.requires_grad for parameter in model.parameters())
    if moves or model.config.tie_word_embeddings:
        model = copy.deepcopy(model)
    return made_base(model, tokenizer, str(model.name_or_path or type(model).__name__), model.device)


def made_base(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, name: str, device: torch.device) -> BaseModel:
    """Untie and freeze a model in place, and check it; every process has to call it where the model is sharded."""
    avoid_cudnn_attention()  # also where the model lies on the CPU: sharded runs move it to GPUs later
    model = untie(model).eval().requires_grad_(False).to(device)  # type: ignore[arg-type]
    check_finite(model, name)
    vocab_size = original_vocab_size(tokenizer)
    _check_row_count(name, vocab_size, cast(Any, model.get_input_embeddings()).weight.shape[0])
    return BaseModel(name, model, tokenizer, vocab_size, device, model.dtype, weights_fingerprint(model))


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hold back the progress bars of transformers, which fill notebooks with nothing a reader needs."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def load_tokenizer(source: str | Path = DEFAULT_MODEL, *, revision: str | None = None) -> PreTrainedTokenizerFast:
    """Load a base model's tokenizer (source as there), exactly as its tokenizer.json says; see `read_tokenizer`."""
    return read_tokenizer(resolve_source(source), revision)


def check_rows(source: str | Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Refuse a tokenizer with more ids than the model of the same source has rows, without loading the weights.

    A token that was added to a folder's tokenizer while the matrices were left as they were would have no row. The
    ModelError says how many rows and ids there are, and what to do.
    """
    try:
        config = AutoConfig.from_pretrained(resolve_source(source))
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


def untie(model: PreTrainedModel) -> PreTrainedModel:
    """Give the head its own copy of the weights if it shares them with the input embedding, in place.

    `from_pretrained(..., tie_word_embeddings=False)` would leave a random head, and a clone is tied again by later
    calls unless the configuration says untied: hence both here. ModelError without a linear head without a bias.
    """
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if not isinstance(head, nn.Linear) or not isinstance(embedding, nn.Embedding):
        raise ModelError(f"{type(model).__name__}: expected an nn.Embedding and an nn.Linear head.")
    if head.bias is not None:
        raise ModelError(f"{type(model).__name__}: the head has a bias, which extra rows do not provide for.")
    _check_plain_head(head)
    model.config.tie_word_embeddings = False
    if head.weight is embedding.weight or head.weight.data_ptr() == embedding.weight.data_ptr():
        head.weight = nn.Parameter(embedding.weight.detach().clone(), requires_grad=False)
    return model


def _check_plain_head(head: nn.Module) -> None:
    """Refuse a head that is more than a product with its rows, which a plain one could not replace."""
    if type(head).forward is not nn.Linear.forward:
        raise ModelError(
            f"the head is a {type(head).__name__}, which computes logits in a way of its own; expected a plain "
            "nn.Linear. New rows would be read differently from how they were learned."
        )


def check_finite(model: nn.Module, source: str = "the model") -> None:
    """Refuse weights that are infinite or NaN, before anything is computed from them; names the first such tensor."""
    for name, parameter in model.named_parameters():
        if not bool(torch.isfinite(gathered(parameter)).all()):
            raise ModelError(
                f"{source}: weights {name} hold values that are infinite or NaN. The file is damaged, or was saved in "
                "a dtype that is too small for it; load the model from another copy."
            )


def pick_device(device: str = "auto") -> torch.device:
    """Return a device: `auto` is CUDA or else the CPU; Apple's MPS only when asked for, since its losses differ.

    ModelError where there is no such device.
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
    """Return a dtype: `auto` is bfloat16 on CUDA and float32 elsewhere; an unknown name raises ModelError."""
    if dtype == "auto":
        return torch.bfloat16 if torch.device(device).type == "cuda" else torch.float32
    if dtype not in {"float32", "bfloat16", "float16"}:
        raise ModelError(f"dtype is {dtype!r}; expected 'auto', 'float32', 'bfloat16' or 'float16'.")
    return getattr(torch, dtype)


def weights_fingerprint(model: nn.Module) -> str:
    """Return a digest of every tensor's name, shape, dtype and thousands of evenly spaced values (16 hex digits)."""

    def parts() -> Iterator[bytes]:
        for name, tensor in sorted(model.state_dict().items()):
            flat = gathered(tensor.detach()).reshape(-1)
            values = flat[:: max(1, flat.numel() // _SAMPLED)].float().cpu().numpy().tobytes()
            yield f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode() + values

    return hash_bytes(parts())[:16]


def is_sharded(model: nn.Module) -> bool:
    """Whether parts of a model's parameters lie in other processes (see `training.sharding`)."""
    return any(hasattr(parameter, "device_mesh") for parameter in model.parameters())


def gathered(tensor: Tensor) -> Tensor:
    """Return a tensor, put together where it is sharded; then every process has to call it."""
    return cast(Any, tensor).full_tensor() if hasattr(tensor, "full_tensor") else tensor  # type: ignore[no-any-return]


# --- extra rows --------------------------------------------------------------------------------------------


def with_extra_rows(
    base: BaseModel, input_rows: Tensor, head_rows: Tensor, first_new_id: int | None = None
) -> PreTrainedModel:
    """Copy the model and put `N` new rows into both matrices, as a plain Hugging Face model.

    The rows are (N, D) each. Those of the original matrix from `first_new_id` on (`V` by default) are padding
    (reserved rows) and are overwritten; where the generation configuration suppressed their ids, it does so no more.
    The copy is trainable and untied, has max(V_rows, first_new_id + N) rows, and its configuration's `vocab_size` is
    right. ModelError where shapes disagree, or a new id would land on a row that the tokenizer uses.
    """
    first = base.vocab_size if first_new_id is None else first_new_id
    if input_rows.shape != head_rows.shape or input_rows.ndim != 2 or input_rows.shape[1] != base.width:
        given = tuple(input_rows.shape), tuple(head_rows.shape)
        raise ModelError(f"input rows {given[0]} and head rows {given[1]}; expected two of (N, {base.width}).")
    if first < base.vocab_size:
        raise ModelError(f"first new id {first} is an id of the original tokenizer (V = {base.vocab_size}).")
    _check_plain_head(base.model.get_output_embeddings())
    model = copy.deepcopy(base.model).requires_grad_(True)
    new_input, new_head = _grown(base.input_rows, input_rows, first), _grown(base.head_rows, head_rows, first)
    rows = len(new_input)
    embedding: Any = model.get_input_embeddings()  # kept: Gemma's own class scales what it looks up
    embedding.weight, embedding.num_embeddings, embedding.padding_idx = nn.Parameter(new_input), rows, None
    head = nn.Linear(base.width, rows, bias=False, device="meta")
    head.weight = nn.Parameter(new_head)
    model.set_output_embeddings(head)
    model.config.vocab_size = rows
    if hasattr(model, "vocab_size"):  # Gemma's loss cuts the logits by it
        model.vocab_size = rows
    model.config.tie_word_embeddings = False
    _allow(model, range(first, first + len(input_rows)))
    return model


def _allow(model: PreTrainedModel, new_ids: range) -> None:
    """Take ids off the lists of what is never generated, on which an export sets the padding rows of a model."""
    for name in ("suppress_tokens", "begin_suppress_tokens"):
        if held := getattr(model.generation_config, name, None):
            setattr(model.generation_config, name, [i for i in held if i not in new_ids] or None)


def _grown(matrix: Tensor, new_rows: Tensor, first: int) -> Tensor:
    rows = max(matrix.shape[0], first + new_rows.shape[0])
    grown = matrix.new_zeros(rows, matrix.shape[1])
    grown[: matrix.shape[0]] = matrix.detach()
    grown[first : first + new_rows.shape[0]] = new_rows.detach().to(grown)
    return grown
