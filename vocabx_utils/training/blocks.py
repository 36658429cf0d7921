"""The frozen blocks on a GPU, not bound by the host: replayed as CUDA graphs where a shape comes back.

A block starts some thirty kernels, forward and backward about a hundred. Below a few thousand tokens the host takes
longer to start them than the card to run them. The blocks of phase 1 are frozen and always the same, so what they do
for a shape (B, T) is recorded once, forward and backward, and then replayed with one call each.

Texts differ in length, so shapes are rounded up and padded with zeros on the right: no real token looks there. Shapes
that are met for the first or second time run as they are.

Shapes: B texts, T tokens, D model width.
"""

from __future__ import annotations

import contextlib
import warnings
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional
from transformers import PreTrainedModel

from vocabx_utils.models import is_sharded
from vocabx_utils.training.sharding import recomputes

_SEEN, _KEPT = 2, 64  # a shape is recorded when it comes after this many times; so many recordings are kept
_BLOCKS: weakref.WeakKeyDictionary[PreTrainedModel, Blocks] = weakref.WeakKeyDictionary()
Run = Callable[[Tensor], Tensor]


def quick_blocks(model: PreTrainedModel) -> Blocks | None:
    """Return the one `Blocks` of a frozen model on a GPU, which all its students and its teacher share; None on a CPU.

    Blocks that are sharded, computed again in the backward pass or held in fewer bits are not replayed.
    Recordings hold where the weights lie: call `forget` after the model was moved or its blocks were compiled.
    """
    if model.device.type != "cuda":
        return None
    if model not in _BLOCKS:
        _BLOCKS[model] = Blocks(model)
        if is_sharded(model) or recomputes(model) or getattr(model, "is_quantized", False):
            _BLOCKS[model].record = None  # gathering, computing again and unpacking are left to their libraries
    return _BLOCKS[model]


class Blocks:
    """What a model's blocks make of embeddings (B, T, D), with and without gradient: (B, T, D) final states.

    A replay writes where the one before has written: with gradient, run backward before the next call.

    Args:
        model: frozen, on a GPU.
        record: makes a function of one shape from a function and an example; CUDA graphs unless given.
    """

    def __init__(self, model: PreTrainedModel, record: Callable[[Run, Tensor], Run] | None = None) -> None:
        self._model = weakref.ref(model)
        sliding = getattr(model.config.get_text_config(), "sliding_window", None)
        self.longest = sliding or 1 << 30  # longer texts need a mask, which is built on the host
        self.record: Callable[[Run, Tensor], Run] | None = record or GraphRecorder()
        self.seen: Counter[tuple[Any, ...]] = Counter()
        self.recorded: OrderedDict[tuple[Any, ...], Run] = OrderedDict()

    def forget(self) -> None:
        """Drop all recordings."""
        self.seen.clear()
        self.recorded.clear()

    def __call__(self, embedded: Tensor) -> Tensor:
        """Run all blocks and the final norm."""
        texts, tokens, _ = embedded.shape
        graded = embedded.requires_grad and torch.is_grad_enabled()
        shape = (round_up(texts), round_up(tokens, 8), graded)
        run = self._recorded(shape, embedded) if shape[1] < self.longest else None
        if run is None:
            return self._run(embedded)
        padded = embedded
        if shape[:2] != (texts, tokens):
            padded = functional.pad(embedded, (0, 0, 0, shape[1] - tokens, 0, shape[0] - texts))
        return run(padded)[:texts, :tokens]

    def _run(self, embedded: Tensor) -> Tensor:
        body: Any = self._model().base_model  # type: ignore[union-attr]
        with causal_only():
            final: Tensor = body(inputs_embeds=embedded, use_cache=False).last_hidden_state
        return final

    def _recorded(self, shape: tuple[int, int, bool], embedded: Tensor) -> Run | None:
        if shape in self.recorded:
            self.recorded.move_to_end(shape)
            return self.recorded[shape]
        self.seen[shape] += 1
        if self.seen[shape] <= _SEEN or self.record is None:
            return None
        example = torch.zeros(*shape[:2], embedded.shape[2], dtype=embedded.dtype, device=embedded.device)
        try:
            self.recorded[shape] = self.record(self._run, example.requires_grad_(shape[2]))
        except RuntimeError as error:
            why = f"blocks cannot be recorded and run as they are: {str(error)[:200]}"
            if isinstance(error, torch.OutOfMemoryError):
                self.recorded.clear()
                torch.cuda.empty_cache()
                why = f"no memory to record blocks of {shape[0]} x {shape[1]} tokens; they run as they are"
            warnings.warn(why, stacklevel=2)
            self.record = None
            return None
        if len(self.recorded) > _KEPT:
            self.recorded.popitem(last=False)
        return self.recorded[shape]


class GraphRecorder:
    """Record functions as CUDA graphs that share one pool of memory: they never run at the same time."""

    def __init__(self) -> None:
        self.pool: Any = None

    def __call__(self, run: Run, example: Tensor) -> Run:
        """Return a replay of `run` for tensors of the example's shape, with its gradient if the example wants one."""
        if self.pool is None:
            self.pool = torch.cuda.graph_pool_handle()
        if example.requires_grad:
            torch.cuda.empty_cache()  # what earlier shapes took stays free for this one
            graphed: Run = torch.cuda.make_graphed_callables(run, (example,), pool=self.pool)  # type: ignore[assignment]
            torch.cuda.empty_cache()
            return graphed
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            for _ in range(2):
                run(example)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph, pool=self.pool):
            result = run(example)

        def replay(embedded: Tensor) -> Tensor:
            example.copy_(embedded)
            graph.replay()
            return result.clone()

        return replay


@contextlib.contextmanager
def causal_only() -> Iterator[None]:
    """Let transformers take the plain causal way, since every row holds one text without padding on its left.

    It would search for several texts in a row, which asks the card for an answer in every pass, and while a graph is
    recorded some releases build a mask, with which attention takes a slower kernel.
    """
    with (
        mock.patch("transformers.masking_utils.find_packed_sequence_indices", return_value=None),
        mock.patch("transformers.masking_utils.is_tracing", return_value=False),
    ):
        yield


def round_up(count: int, least: int = 1) -> int:
    """Round up to one of eight steps between powers of two, and to a multiple of `least`: at most an eighth is added.

    >>> [round_up(n, 8) for n in (1, 50, 64, 65, 130, 1000, 1024)]
    [8, 56, 64, 72, 144, 1024, 1024]
    """
    step = max(least, 1 << max(0, (count - 1).bit_length() - 4))
    return -(-count // step) * step
