"""A base that one device cannot hold: its blocks spread over the processes, filled from safetensors part by part.

PyTorch's `fully_shard` gathers a block before its pass and lets go of it behind it; the next block is gathered
meanwhile. A frozen block has no gradient and no optimiser state, so gathering is all that it costs. Whatever does not
stand in a block stays whole on every device: both matrices, since the chunked losses read the head directly, the final
norm and a few small tensors beside them.

Gathering is done together, so each process has to make as many passes as every other. Where a step gives one of them
less, it makes an idle pass over a single token (`even_parts`, `idle_pass`).

The weights never lie whole anywhere. The model is made without memory, sharded, given memory for its parts, and
PyTorch's own reader of safetensors then reads, in each process, the slices of each tensor that belong to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from accelerate import PartialState, init_empty_weights
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from vocabx_utils.fetch import resolve_source
from vocabx_utils.models import (
    BaseModel,
    ModelError,
    is_sharded,
    load_tokenizer,
    made_base,
    pick_dtype,
    quiet_transformers,
    untie,
)
from vocabx_utils.student import Student
from vocabx_utils.training.batches import micro_batches
from vocabx_utils.training.stages import block_prefix, blocks_of

_READERS = 4  # files that a process reads at once
GIB = 1 << 30


def shard(root: nn.Module, blocks: Iterable[nn.Module], processes: Any, *, whole: Iterable[nn.Parameter] = ()) -> None:
    """Spread blocks, and the rest of `root` as one unit, over the processes (fully sharded data parallel), in place.

    Args:
        processes: accelerate's `PartialState` or `Accelerator`, of several; ValueError where there is one only.
        whole: parameters outside the blocks that every process keeps as they are.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    _several(processes)
    mesh = init_device_mesh(processes.device.type, (processes.num_processes,))
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(root, mesh=mesh, ignored_params=set(whole))


def _several(processes: Any) -> Any:
    if processes is None or processes.num_processes < 2:
        raise ValueError("sharded=True needs several processes; start with accelerate launch, or set sharded=False")
    return processes


# --- a base without a whole copy ------------------------------------------------------------------------------


def load_sharded_base(
    source: str | Path,
    processes: PartialState | None,
    *,
    dtype: str = "auto",
    tell: Callable[[str], None] = print,
) -> BaseModel:
    """Load a frozen base whose blocks are spread over the processes; every process has to call it.

    Its fingerprint, states and losses are those of `models.load_base_model`, so run folders and teacher caches are
    shared with runs that are not sharded. Its arguments are the same; `tell` receives the line that says what lies on
    each device. The files have to be safetensors whose tensors bear the model's own names.

    Raises:
        ModelError: the source is missing or of another kind, or a part does not fit its device.
        ValueError: there is one process only, or the family's blocks are not found.
    """
    processes = _several(processes)
    kind = pick_dtype(dtype, processes.device)
    tokenizer = load_tokenizer(source)
    with processes.local_main_process_first():  # one of each host fetches what is not there
        folder = _folder_of(source)
    try:
        model = empty_model(AutoConfig.from_pretrained(folder), kind)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"Could not read the configuration of {str(source)!r}: {error}") from error
    tell(require_room(model, processes))
    spread(model, processes)
    read_weights(model, folder)
    return made_base(model, tokenizer, str(source), processes.device)


def empty_model(config: Any, dtype: torch.dtype) -> PreTrainedModel:
    """Make a frozen, untied model whose parameters have no memory yet; its buffers have their values."""
    with init_empty_weights(include_buffers=False), quiet_transformers():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return untie(model).eval().requires_grad_(False)


def spread(model: PreTrainedModel, processes: PartialState) -> None:
    """Shard the blocks of a model in place and give every part memory on its device, whose values are still to come."""
    shard(model.base_model, blocks_of(model), processes, whole=_outside(model))
    materialise(model, processes.device)


def materialise(module: nn.Module, device: torch.device) -> None:
    """Give parameters without memory some on a device, and move everything else there."""
    move: Any = module._apply  # `to_empty` would empty buffers too
    move(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device))


@torch.no_grad()
def read_weights(model: nn.Module, folder: Path) -> None:
    """Fill a model that has memory from `*.safetensors` in a folder; each process reads the slices of its own parts.

    A head that is missing there is that of a tied model.

    Raises:
        ModelError: tensors are missing, or have other shapes than the model's.
    """
    import torch.distributed.checkpoint as checkpoint

    reader = checkpoint.HuggingFaceStorageReader(str(folder), thread_count=_READERS)
    found = reader.read_metadata().state_dict_metadata
    wanted = dict(model.state_dict())
    tied = _tied_head(model, wanted, found)
    if missing := sorted(wanted.keys() - found.keys()):
        raise ModelError(
            f"{folder} lacks {len(missing)} of the {len(wanted)} tensors, for example {missing[:2]}. A sharded base is "
            "read from safetensors whose tensors bear the model's own names: load it once with transformers and save "
            "it with `save_pretrained`."
        )
    for name, tensor in wanted.items():
        if (stored := tuple(cast(Any, found[name]).size)) != tuple(tensor.shape):
            raise ModelError(f"{folder} holds {name} as {stored}, the model wants {tuple(tensor.shape)}")
    together = torch.distributed.is_available() and torch.distributed.is_initialized()
    checkpoint.load(cast(Any, wanted), storage_reader=reader, no_dist=not together)
    if tied is not None:
        tied[0].copy_(tied[1])


def _tied_head(model: Any, wanted: dict[str, Tensor], found: Any) -> tuple[Tensor, Tensor] | None:
    """Take a head that the files lack out of what is wanted; returns it and the embedding that it equals."""
    if not isinstance(model, PreTrainedModel):
        return None
    head, table = (cast(Any, part).weight for part in (model.get_output_embeddings(), model.get_input_embeddings()))
    name = next((name for name, tensor in wanted.items() if tensor.data_ptr() == head.data_ptr()), "")
    if not name or name in found:
        return None
    del wanted[name]
    return head, table


def _folder_of(source: str | Path) -> Path:
    """The folder of a source; that of a hub id is fetched, its safetensors and configuration only."""
    path = Path(resolve_source(source))
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(str(source), allow_patterns=["*.safetensors", "*.json"]))
    except (OSError, ValueError) as error:
        raise ModelError(f"Could not fetch the files of {str(source)!r}: {error}") from error


def _outside(model: PreTrainedModel) -> list[nn.Parameter]:
    """The parameters that do not stand in a block."""
    inside = f"{block_prefix(model)}."
    return [parameter for name, parameter in model.named_parameters() if not name.startswith(inside)]


# --- what lies where ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CardBytes:
    """What the weights of a sharded base take on one of some devices, in bytes."""

    blocks: int  # its part of all blocks
    gathered: int  # two whole blocks, the one that runs and the next
    whole: int  # both matrices, and the rest that stands in no block

    @property
    def total(self) -> int:
        """All of it."""
        return self.blocks + self.gathered + self.whole


def card_bytes(model: PreTrainedModel, cards: int) -> CardBytes:
    """Count what a model's weights take on one of some devices; it needs no memory itself."""
    sizes = [_bytes(block.parameters()) for block in blocks_of(model)]
    return CardBytes(-(-sum(sizes) // cards), 2 * max(sizes), _bytes(_outside(model)))


def require_room(model: PreTrainedModel, processes: PartialState) -> str:
    """Return a line about what lies on each device; ModelError where a GPU cannot hold it."""
    need, cards = card_bytes(model, processes.num_processes), processes.num_processes
    line = (
        f"sharded over {cards} processes, GiB in each: {need.blocks / GIB:.1f} blocks, {need.gathered / GIB:.1f} for "
        f"two gathered ones, {need.whole / GIB:.1f} both matrices and the rest, whole"
    )
    if processes.device.type != "cuda":
        return line
    there = torch.cuda.get_device_properties(processes.device).total_memory
    if need.total > there:
        left = there - need.gathered - need.whole
        remedy = "two blocks and both matrices alone do not fit, and the rows of a matrix are not spread over devices"
        if left > 0:
            remedy = f"at least {-(-need.blocks * cards // left)} of them are needed"
        raise ModelError(f"{line}. The device has {there / GIB:.1f} GiB: {remedy}.")
    return line


def _bytes(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() * parameter.element_size() for parameter in parameters)


# --- passes ---------------------------------------------------------------------------------------------------


def recompute_blocks(model: PreTrainedModel) -> None:
    """Keep the inputs of blocks alone and compute the rest again in the backward pass, in place.

    PyTorch's own wrapper is used, since those of transformers want a model in training mode.
    """
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import CheckpointWrapper, checkpoint_wrapper

    blocks = blocks_of(model)
    for number, block in enumerate(blocks):
        if not isinstance(block, CheckpointWrapper):
            blocks[number] = checkpoint_wrapper(block, preserve_rng_state=False)  # a frozen block draws nothing


def recomputes(model: nn.Module) -> bool:
    """Tell whether `recompute_blocks` has changed a model."""
    return any(type(module).__name__ == "CheckpointWrapper" for module in model.modules())


def unwrapped(block: nn.Module) -> nn.Module:
    """Return the block itself where `recompute_blocks` has wrapped it."""
    inner: nn.Module = getattr(block, "_checkpoint_wrapped_module", block)
    return inner


def even_parts(
    model: nn.Module,
    lengths: Sequence[int],
    indices: Sequence[int],
    token_budget: int,
    processes: PartialState | None,
) -> list[list[int]]:
    """Cut this process's share of some texts into passes of at most `token_budget` tokens.

    Where the model is sharded there are as many as in the process with most, the last ones empty: see `idle_pass`.
    """
    world, rank = (1, 0) if processes is None else (processes.num_processes, processes.process_index)
    shares = [micro_batches(lengths, indices[first::world], token_budget) for first in range(world)]
    missing = max(map(len, shares)) - len(shares[rank])
    # asked last, and only where it matters: a step has no time to look at every parameter
    return shares[rank] + ([[] for _ in range(missing)] if missing and is_sharded(model) else [])


def idle_pass(student: Student) -> None:
    """Run the blocks over one token, backwards too where gradients are on, which changes nothing."""
    final, _ = student.hidden(torch.zeros(1, 1, dtype=torch.long, device=student.device))
    if final.requires_grad:
        final.backward(torch.zeros_like(final))
