"""Fused blocks where they pay: a compiler joins the small operations of each block, in place.

Fused, a block reads and writes its activations less often. Compiling takes a while, so `auto` measures a pass
first and fuses only where the passes to come save more than that. It never does so without CUDA.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import PreTrainedModel

from vocabx_utils import files
from vocabx_utils.models import is_sharded
from vocabx_utils.training.blocks import causal_only, quick_blocks
from vocabx_utils.training.sharding import unwrapped
from vocabx_utils.training.stages import blocks_of

# A trial run with 24 blocks on an H200: 14 s for training and validation, 0.45 of a pass of 8 x 1,024 tokens saved.
COMPILE_SECONDS = 30.0
SAVED_SHARE = 0.3
FILE = "blocks.json"


def fuse(model: PreTrainedModel) -> None:
    """Let the compiler fuse each block, in place, at its next call; ValueError where the family's blocks are not found.

    Of a sharded block it gets the arithmetic alone: what gathers it hangs on the call.
    """
    sharded = is_sharded(model)
    for block in map(unwrapped, blocks_of(model)):
        if sharded:
            block.forward = torch.compile(block.forward)
        else:
            block.compile()
    _forget(model)


def unfuse(model: PreTrainedModel) -> None:
    """Take the blocks as they were."""
    for block in model.modules():
        block._compiled_call_impl = None
        if _has_fused_forward(block):
            del block.forward
    _forget(model)


def is_fused(model: PreTrainedModel) -> bool:
    """Whether a model's blocks run through the compiler."""
    return any(block._compiled_call_impl is not None or _has_fused_forward(block) for block in model.modules())


def _has_fused_forward(block: nn.Module) -> bool:
    return hasattr(vars(block).get("forward"), "_torchdynamo_orig_callable")


def _forget(model: PreTrainedModel) -> None:
    """Drop what was recorded of the blocks: they run otherwise now."""
    if (blocks := quick_blocks(model)) is not None:
        blocks.forget()


def fuse_where_it_pays(model: PreTrainedModel, choice: str, tokens: int, shape: tuple[int, int]) -> str:
    """Fuse a model's blocks, in place, if the choice says so, or if a measured pass says that it pays.

    Args:
        choice: "on", "off" or "auto".
        tokens: read by all passes to come.
        shape: (B, T) of a usual pass.

    Returns:
        A line that says what was decided and why; empty where nothing was to be decided.
    """
    if choice == "on" and not is_fused(model):
        fuse(model)
    if choice != "auto" or model.device.type != "cuda" or is_fused(model):
        return ""
    if is_sharded(model) or getattr(model, "is_quantized", False):
        return "blocks are not fused, since they are sharded or held in fewer bits; compile_blocks = 'on' fuses them"
    try:
        blocks_of(model)
    except ValueError as error:
        return f"blocks are not fused: {error}"
    took = pass_seconds(model, *shape)
    passes = tokens / (shape[0] * shape[1])
    saved = SAVED_SHARE * took * passes
    if saved > COMPILE_SECONDS:
        fuse(model)
    word = "fused" if saved > COMPILE_SECONDS else "not fused"
    return (
        f"blocks are {word}: a pass of {shape[0]} x {shape[1]} tokens takes {1e3 * took:,.0f} ms, {passes:,.0f} passes "
        f"come, fusing would save about {saved:,.0f} s and take up to {COMPILE_SECONDS:.0f} s"
    )


def pass_seconds(model: PreTrainedModel, texts: int, tokens: int) -> float:
    """Time the blocks on embeddings (texts, tokens, D), forward and backward: seconds of the quicker of two passes."""
    width: int = cast(Any, model.get_input_embeddings()).weight.shape[1]
    dtypes = {parameter.dtype for parameter in blocks_of(model).parameters()}
    dtype = min(dtypes, key=lambda kind: kind.itemsize)  # what is trained may have a float32 copy
    precision = torch.autocast(model.device.type, dtype) if len(dtypes) > 1 else contextlib.nullcontext()
    embedded = torch.zeros(texts, tokens, width, dtype=dtype, device=model.device, requires_grad=True)

    def once() -> None:
        with causal_only(), precision:
            final = model.base_model(inputs_embeds=embedded, use_cache=False).last_hidden_state
        torch.autograd.grad(final.sum(), embedded)

    return min([seconds_of(once, model.device) for _ in range(3)][1:])


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Time a call, to the end of what it has started on a device."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    began = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - began


# --- what a run decided, it keeps -----------------------------------------------------------------------------


def settled(choice: str, folder: Path) -> Any:
    """Return what `auto` came to in a folder, so that a run that goes on computes as it began."""
    path = folder / FILE
    return files.read_json(path)["compile_blocks"] if choice == "auto" and path.exists() else choice


def settle(model: PreTrainedModel, folder: Path) -> None:
    """Keep in a folder whether a model's blocks are fused; without CUDA nothing was decided."""
    if model.device.type == "cuda":
        files.write_json(folder / FILE, {"compile_blocks": "on" if is_fused(model) else "off"})
