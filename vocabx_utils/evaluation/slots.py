"""Greedy decoding in slots: a static key-value cache whose rows are refilled as soon as one is done.

Every slot keeps its own position, so prompts of different lengths share a step without padding, and a slot
computes the same whoever its neighbours are. One step is one launch of a captured CUDA graph; on the CPU the
same code runs without graphs. Only the attention and the cache are replaced, the model is Hugging Face's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from vocabx_utils.batching import pad
from vocabx_utils.evaluation.slot_cache import SlotCache, slot_attention
from vocabx_utils.products import aligned_rows
from vocabx_utils.student import cache_argument

_BLOCK = 64  # cache lengths are multiples of this, which the attention kernels want aligned
_GRAPH_BLOCK = 256  # one graph is captured for each multiple of this
_CHUNK = 8  # steps between two looks at the replies
_PROMPT_TOKENS = 32_768  # most tokens, padding included, of one pass over prompts


@dataclass
class Row:
    """One prompt in its slot: index of the prompt, its length in tokens, and the ids generated so far."""

    index: int
    prompt_length: int
    ids: list[int] = field(default_factory=list)

    @property
    def position(self) -> int:
        """Cache position of the newest id, which the next step reads."""
        return self.prompt_length + len(self.ids) - 1


class SlotDecoder:
    """Decodes many prompts greedily in a fixed number of slots.

    Args:
        model: causal language model in evaluation mode.
        slots: most prompts in flight.
        length: longest prompt and reply together, in tokens.
        ids: ids that may be generated are 0 to `ids - 1`; the rows of the head behind them are padding.
        graphs: capture steps as CUDA graphs; by default where the model is on a GPU.
    """

    def __init__(
        self, model: PreTrainedModel, *, slots: int, length: int, ids: int, graphs: bool | None = None
    ) -> None:
        self.model, self.ids, self.slots = model, ids, slots
        self.device, self.dtype = model.device, model.dtype
        self.graphs = self.device.type == "cuda" if graphs is None else graphs
        self.length = _rounded(length + _CHUNK, _GRAPH_BLOCK if self.graphs else _BLOCK)
        self.cache = SlotCache(model.config.get_text_config().num_hidden_layers, slots, self.length)
        self.body: Any = model.get_decoder()
        self.head = _aligned(model.get_output_embeddings())
        self.cache_name = cache_argument(self.body)
        self.tokens = torch.zeros(slots, dtype=torch.long, device=self.device)
        self.positions = torch.zeros(slots, dtype=torch.long, device=self.device)
        self.step = torch.zeros(1, dtype=torch.long, device=self.device)
        self.output = torch.zeros(slots, _CHUNK, dtype=torch.long, device=self.device)
        self.captured: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}

    @torch.inference_mode()
    def decode(
        self, prompts: Sequence[Sequence[int]], is_done: Callable[[Row, int], bool], max_new_tokens: int
    ) -> Iterator[Row]:
        """Yield the rows as they finish, with the reply, of `max_new_tokens` ids at most, in `row.ids`.

        A `ValueError` where a prompt and its reply are longer than the slots.

        Args:
            prompts: token ids of each prompt.
            is_done: called with a row and the number of its new ids; may shorten `row.ids`.
        """
        longest = max(map(len, prompts), default=0)
        if longest + max_new_tokens + _CHUNK > self.length:
            raise ValueError(
                f"a prompt of {longest} tokens and a reply of {max_new_tokens} do not fit into slots of "
                f"{self.length - _CHUNK}: make the decoder with a larger `length`"
            )

        def extend(row: Row, new: list[int]) -> bool:
            """Add ids to a row, and tell whether it is done."""
            new = new[: max_new_tokens - len(row.ids)]
            row.ids.extend(new)
            return is_done(row, len(new)) or len(row.ids) >= max_new_tokens

        # The longest enter first, from the end of the list; prompts of one length in their order.
        waiting = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))[::-1]
        active: list[Row | None] = [None] * self.slots
        self.cache.rows = self.slots
        with slot_attention(self.model):
            while waiting or any(active):
                yield from self._refill(prompts, waiting, active, extend)
                if not waiting:
                    active = self._compact(active)
                if not any(active):
                    continue
                new = self._chunk(active)
                for slot, row in enumerate(active):
                    if row is not None and extend(row, new[slot]):
                        yield row
                        active[slot] = None

    def _refill(
        self,
        prompts: Sequence[Sequence[int]],
        waiting: list[int],
        active: list[Row | None],
        extend: Callable[[Row, list[int]], bool],
    ) -> Iterator[Row]:
        """Run waiting prompts into free slots, a bounded number of tokens a pass."""
        free = [slot for slot, row in enumerate(active) if row is None]
        # Small passes waste launches: wait until an eighth of the slots is free, unless nothing else runs.
        if len(free) < min(len(waiting), max(1, self.slots // 8)) and any(active):
            return
        while free and waiting:
            batch: list[Row] = []
            width = 0
            while len(batch) < len(free) and waiting:
                width = max(width, len(prompts[waiting[-1]]))
                if batch and width * (len(batch) + 1) > _PROMPT_TOKENS:
                    break
                index = waiting.pop()
                batch.append(Row(index, len(prompts[index])))
            slots, free = free[: len(batch)], free[len(batch) :]
            first = self._prompt_pass([prompts[row.index] for row in batch], slots)
            for row, slot, token in zip(batch, slots, first, strict=True):
                if extend(row, [token]):
                    free.append(slot)
                    yield row
                else:
                    active[slot] = row

    def _prompt_pass(self, prompts: Sequence[Sequence[int]], slots: Sequence[int]) -> list[int]:
        """Store the keys of prompts, padded on the right where causal attention never looks; return next ids."""
        ids, _ = pad(prompts)  # (B, T)
        last_places = torch.tensor([len(prompt) - 1 for prompt in prompts], device=self.device)
        self.cache.prompt_slots = torch.tensor(slots, device=self.device)
        positions = torch.arange(ids.shape[1], device=self.device).expand(ids.shape)
        hidden = self._forward(ids.to(self.device), positions, None)
        self.cache.prompt_slots = None
        last = hidden[torch.arange(len(prompts), device=self.device), last_places]  # (B, D)
        return self.head(last)[:, : self.ids].argmax(-1).tolist()

    def _forward(self, ids: Tensor, positions: Tensor, mask: Tensor | None) -> Tensor:
        cache = {"use_cache": True, self.cache_name: self.cache}
        return self.body(input_ids=ids, position_ids=positions, attention_mask=mask, **cache).last_hidden_state

    def _chunk(self, active: Sequence[Row | None]) -> list[list[int]]:
        """Run some steps for all slots and return the new ids, (rows, `_CHUNK`)."""
        rows = self.cache.rows
        tokens = [row.ids[-1] if row else 0 for row in active]
        positions = [row.position if row else 0 for row in active]
        length = _rounded(max(positions) + _CHUNK + 1, _GRAPH_BLOCK if self.graphs else _BLOCK)
        length = min(length, self.length)
        self.tokens[:rows].copy_(torch.tensor(tokens))
        self.positions[:rows].copy_(torch.tensor(positions))
        self.step.zero_()
        for _ in range(_CHUNK):
            self._one_step(rows, length)
        return self.output[:rows].tolist()

    def _one_step(self, rows: int, length: int) -> None:
        if not self.graphs:
            self._step(rows, length)
            return
        if (rows, length) not in self.captured:
            self.captured[rows, length] = self._capture(rows, length)
        self.captured[rows, length].replay()

    def _capture(self, rows: int, length: int) -> torch.cuda.CUDAGraph:
        """Record one step. Warm-up steps on a side stream overwrite only what is restored afterwards."""
        saved = self.tokens.clone(), self.positions.clone(), self.step.clone(), self.output.clone()
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._step(rows, length)
                self._restore(saved)
        torch.cuda.current_stream(self.device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.captured.values())).pool() if self.captured else None
        with torch.cuda.graph(graph, pool=pool):
            self._step(rows, length)
        self._restore(saved)
        return graph

    def _restore(self, saved: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
        for target, value in zip((self.tokens, self.positions, self.step, self.output), saved, strict=True):
            target.copy_(value)

    def _step(self, rows: int, length: int) -> None:
        """Read the newest id of each slot, write the next one; no value leaves the device."""
        tokens, positions = self.tokens[:rows], self.positions[:rows]
        self.cache.rows, self.cache.length, self.cache.positions = rows, length, positions
        reach = torch.arange(length, device=self.device)[None] <= positions[:, None]
        mask = torch.zeros(rows, length, dtype=self.dtype, device=self.device)
        mask = mask.masked_fill(~reach, float("-inf"))[:, None, None]
        hidden = self._forward(tokens[:, None], positions[:, None], mask)
        following = self.head(hidden[:, -1])[:, : self.ids].argmax(-1)
        self.output[:rows].scatter_(1, self.step.expand(rows)[:, None], following[:, None])
        tokens.copy_(following)
        positions.add_(1)
        self.step.add_(1)

    def _compact(self, active: list[Row | None]) -> list[Row | None]:
        """Once nothing waits, halve the slots whenever half of them stand idle."""
        order = [slot for slot, row in enumerate(active) if row is not None]
        least = max(len(order), 32 if self.graphs else 1)  # smaller graphs are no faster
        target = len(active)
        while target // 2 >= least:
            target //= 2
        if not order or target == len(active):
            return active
        idle = [slot for slot, row in enumerate(active) if row is None]
        chosen = order + idle[: target - len(order)]
        self.cache.keep(torch.tensor(chosen, device=self.device))
        return [active[slot] for slot in chosen]


def _aligned(head: Any) -> Callable[[Tensor], Tensor]:
    """A head whose products run at full speed with any number of rows, if it is a product and nothing else."""
    if type(head).forward is not nn.Linear.forward or head.bias is not None:
        return cast(Callable[[Tensor], Tensor], head)
    weights = aligned_rows(head.weight.detach())
    return lambda hidden: functional.linear(hidden, weights)


def cache_bytes(model: PreTrainedModel, length: int) -> int:
    """Return the bytes of keys and values of one slot with `length` tokens."""
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * width * model.dtype.itemsize * length


def supports(model: PreTrainedModel) -> bool:
    """Tell whether the model lets its attention be replaced and attends to all earlier tokens."""
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ["full_attention"]
    return getattr(type(model), "_supports_attention_backend", False) and set(kinds) == {"full_attention"}


def _rounded(value: int, step: int) -> int:
    return -(-value // step) * step
