"""Texts that are read from different places on, in one row without padding: a pass costs what it reads and no more.

Everything but attention treats each token by itself, so the tokens of all texts stand in one row, whose products are
then larger and read the weights once. Attention gets each text in a row of its own, behind the keys and values that
are known of its beginning.

Shapes: B texts of at most T tokens, S tokens that are run, P that are known of a text; H heads or key heads of width d,
L blocks, D model width.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from vocabx_utils.training.sharding import recomputes

_NAME = "vocabx_packed"
_LAYOUTS: list[Layout] = []  # of the pass in progress


@dataclass(frozen=True)
class Layout:
    """Where the tokens of a row belong."""

    shape: tuple[int, int]  # B, T
    run: Tensor  # (S,) flat places in (B, T) of the tokens in the row, text by text
    known: Tensor  # (sum of P,) flat places of what is known
    keys_values: Sequence[Tensor]  # of each text, (L, 2, P, H, d) keys and values there

    @classmethod
    def of(cls, lengths: Sequence[int], width: int, keys_values: Sequence[Tensor], device: torch.device) -> Layout:
        """Return the layout of texts of B lengths, T = `width`, each run from the end of what is known of it."""
        starts = [part.shape[2] for part in keys_values]
        places = np.arange(len(lengths) * width).reshape(-1, width)
        run = [row[start:stop] for row, start, stop in zip(places, starts, lengths, strict=True)]
        known = [row[:start] for row, start in zip(places, starts, strict=True)]
        at, beside = (torch.from_numpy(np.concatenate(parts)).to(device) for parts in (run, known))
        return cls((len(lengths), width), at, beside, keys_values)

    def unpack(self, tokens: Tensor, known: Tensor | None = None) -> Tensor:
        """Put (S, …) values in their places, beside known ones: (B, T, …), 0 where there are none."""
        whole = tokens.new_zeros(self.shape[0] * self.shape[1], *tokens.shape[1:])
        if known is not None:
            whole.index_copy_(0, self.known, known)
        return whole.index_copy(0, self.run, tokens).unflatten(0, self.shape)

    def pack(self, whole: Tensor) -> Tensor:
        """Take (B, T, …) values of the tokens in the row, (S, …)."""
        return whole.flatten(0, 1).index_select(0, self.run)


def packable(model: PreTrainedModel, longest: int) -> bool:
    """Tell whether a model's texts of up to `longest` tokens may stand in one row.

    Its attention has to be the plain causal one, called through the interface of transformers, and nothing in its
    blocks may be computed again behind this module's back. What a configuration cannot tell is left to a trial.
    """
    config: Any = model.config.get_text_config()
    reach = getattr(config, "sliding_window", None) or longest
    takes = "position_ids" in inspect.signature(inspect.unwrap(model.base_model.forward)).parameters
    through = config._attn_implementation == "sdpa" and getattr(model, "_supports_attention_backend", False)
    return through and takes and reach >= longest and not recomputes(model)


def run_packed(body: nn.Module, embedded: Tensor, layout: Layout, *, layers: bool = False) -> Any:
    """Run the blocks of a `packable` model over one row, (1, S, D) embeddings in the order of its layout.

    Returns what the decoder returns, its states (1, S, D); with `layers` all hidden states.
    """
    with _attending(body, layout):
        places = (layout.run % layout.shape[1])[None]
        return body(inputs_embeds=embedded, position_ids=places, use_cache=False, output_hidden_states=layers)


@contextlib.contextmanager
def _attending(body: Any, layout: Layout) -> Iterator[None]:
    """Let the attention of a decoder's blocks unpack and pack again; gradients need it in the forward pass only."""
    config = body.config.get_text_config()
    before, config._attn_implementation = config._attn_implementation, _NAME
    _LAYOUTS.append(layout)
    try:
        yield
    finally:
        _LAYOUTS.pop()
        config._attn_implementation = before


def _attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """Attend text by text; the arguments are those of transformers, (1, H, S, d) each, and the result (1, S, H, d)."""
    layout = _LAYOUTS[-1]
    known = torch.cat([part[module.layer_idx] for part in layout.keys_values], 1)  # (2, sum of P, H, d)
    queries, keys, values = (
        layout.unpack(tokens[0].transpose(0, 1), beside).transpose(1, 2)  # (B, H, T, d)
        for tokens, beside in ((query, None), (key, known[0]), (value, known[1]))
    )
    found, _ = sdpa_attention_forward(module, queries, keys, values, None, **more | {"is_causal": True})
    return layout.pack(found)[None], None  # from (B, T, H, d)


AttentionInterface.register(_NAME, _attend)
