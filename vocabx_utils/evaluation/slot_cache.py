"""What slots need of a model: a static key-value cache, and the attention that reads it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface, Cache, PreTrainedModel

_ATTENTION = "vocabx_slots"


class SlotCache(Cache):
    """Keys and values of all slots, (slots, heads, length, width) per layer.

    While `prompt_slots` is set, a forward pass stores prompts there and attends within itself only. Else
    each of the first `rows` slots stores one key at its `positions` and reads the first `length`.
    """

    def __init__(self, layers: int, slots: int, length: int) -> None:
        super().__init__(layers=[])
        self.capacity = (slots, length)
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers
        self.prompt_slots: Tensor | None = None
        self.positions: Tensor | None = None
        self.rows = slots
        self.length = length

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values of a layer and return those that attention reads."""
        if self.keys[layer_idx] is None:
            self.keys[layer_idx] = self._empty(key_states)
            self.values[layer_idx] = self._empty(value_states)
        keys, values = self.keys[layer_idx], self.values[layer_idx]
        assert keys is not None and values is not None
        if self.prompt_slots is not None:
            count = key_states.shape[2]
            keys[self.prompt_slots, :, :count] = key_states
            values[self.prompt_slots, :, :count] = value_states
            return key_states, value_states
        assert self.positions is not None
        keys, values = keys[: self.rows], values[: self.rows]
        place = self.positions[:, None, None, None]
        keys.scatter_(2, place.expand_as(key_states), key_states)
        values.scatter_(2, place.expand_as(value_states), value_states)
        return keys[:, :, : self.length], values[:, :, : self.length]

    def keep(self, slots: Tensor) -> None:
        """Move the given slots to the front, in this order."""
        for stored in (self.keys, self.values):
            for layer in stored:
                assert layer is not None
                layer[: len(slots)] = layer[slots]
        self.rows = len(slots)

    def _empty(self, like: Tensor) -> Tensor:
        slots, length = self.capacity
        return like.new_zeros(slots, like.shape[1], length, like.shape[3])

    def get_seq_length(self, layer_idx: int = 0, *args: Any, **kwargs: Any) -> int:
        """Return 0: positions are always given explicitly."""
        return 0

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        """Return length and offset for a causal mask among the new tokens."""
        return int(query_length), 0

    @property
    def is_compileable(self) -> bool:
        """Keep transformers from compiling anything by itself."""
        return False


def _attend_in_slots(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend causally within prompts, or with one query per slot to all its cached keys.

    Query heads that share a key head are packed as queries of that head, so that keys are never repeated in
    memory (seven-fold for Qwen2.5-0.5B).

    Args:
        query: (rows, query heads, queries, width).
        key: (rows, key heads, keys, width), as `value`.
        attention_mask: `None` for prompts, else additive, (rows, 1, 1, keys).

    Returns:
        (rows, queries, query heads, width), and `None` for the weights.
    """
    rows, heads, queries, width = query.shape
    groups = heads // key.shape[1]
    attend = torch.nn.functional.scaled_dot_product_attention
    if attention_mask is None:
        if groups > 1:
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        output = attend(query, key, value, is_causal=True, scale=scaling)
    else:
        packed = query.reshape(rows, key.shape[1], groups, width)
        mask = attention_mask.expand(rows, key.shape[1], groups, -1)
        with _kernels(query.device):
            output = attend(packed, key, value, attn_mask=mask, scale=scaling)
        output = output.reshape(rows, heads, queries, width)
    return output.transpose(1, 2).contiguous(), None


@contextlib.contextmanager
def slot_attention(model: PreTrainedModel) -> Iterator[None]:
    """Let a model attend in slots, and give it back its own attention."""
    AttentionInterface.register(_ATTENTION, _attend_in_slots)
    before = model.config._attn_implementation
    model.set_attn_implementation(_ATTENTION)
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def _kernels(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Keep to kernels that take a mask and can be captured in a graph without planning for each shape."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    return sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
