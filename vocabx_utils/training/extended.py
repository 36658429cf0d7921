"""A frozen language model with N extra rows on each side: the only tensors that phase 1 trains.

The input side holds one row for every new token, the head one row more for every new token. The V original
rows are never parameters of the training, so weight decay and momentum cannot move them.

Shapes: V ids of the original tokenizer, N new tokens, D model width, B texts, T tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from vocabx_utils.models import BaseModel, cache_argument
from vocabx_utils.student import UnsupportedModelError, embed, logit_transform, logits

__all__ = ["ExtendedModel", "rows_checksum"]


def rows_checksum(matrix: Tensor) -> int:
    """Return a number that changes when any bit of a matrix changes place or value (not cryptographic).

    Args:
        matrix: any two-dimensional tensor.
    """
    kinds: Mapping[int, torch.dtype] = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = matrix.detach().contiguous().view(kinds[matrix.element_size()])
    rows = torch.arange(1, bits.shape[0] + 1, device=bits.device, dtype=torch.int64)
    columns = torch.arange(1, bits.shape[1] + 1, device=bits.device, dtype=torch.int64)
    total = torch.zeros((), dtype=torch.int64, device=bits.device)
    for start in range(0, bits.shape[0], 4096):
        part = bits[start : start + 4096].to(torch.int64)
        total += ((part * columns).sum(1) * rows[start : start + 4096]).sum()
    return int(total)


class ExtendedModel(nn.Module):
    """A frozen base model whose vocabulary goes on from V to V + N.

    The new rows are float32 parameters whatever the model's dtype: at learning rates of 1e-4 a bfloat16 row
    would lose most updates to rounding.

    Args:
        base: the frozen, untied base model.
        input_rows: (N, D) first values of the new embedding rows.
        head_rows: (N, D) first values of the new head rows.
        first_new_id: V, the id of the first new token; ``base.vocab_size`` unless given.

    Raises:
        UnsupportedModelError: the family's embedding or head is not one that can be extended faithfully.
        ValueError: shapes that do not fit.
    """

    input_rows: nn.Parameter
    head_rows: nn.Parameter

    def __init__(self, base: BaseModel, input_rows: Tensor, head_rows: Tensor, first_new_id: int | None = None) -> None:
        super().__init__()
        width = base.input_rows.shape[1]
        if input_rows.shape != head_rows.shape or input_rows.ndim != 2 or input_rows.shape[1] != width:
            raise ValueError(
                f"new rows of shape {tuple(input_rows.shape)} and {tuple(head_rows.shape)}: expected twice (N, {width})"
            )
        self.base = base
        self.vocab_size = base.vocab_size if first_new_id is None else first_new_id
        if self.vocab_size > base.rows:
            raise ValueError(f"first new id {self.vocab_size} lies beyond the {base.rows} rows of the model")
        self.transform = logit_transform(base.model.config)
        self.input_rows = nn.Parameter(input_rows.detach().to(base.device, torch.float32).clone())
        self.head_rows = nn.Parameter(head_rows.detach().to(base.device, torch.float32).clone())
        # Held in a list so that the frozen weights are neither parameters nor state of this module.
        self._frozen = [base.model.requires_grad_(False).eval()]
        if getattr(base.model.get_output_embeddings(), "bias", None) is not None:
            raise UnsupportedModelError("a head with a bias is not supported: new tokens would have none")
        self._check_family()

    @property
    def device(self) -> torch.device:
        return self.base.device

    @property
    def n_new(self) -> int:
        """N, the number of new tokens."""
        return self.input_rows.shape[0]

    @property
    def head(self) -> Tensor:
        """(V, D) original head rows without padding rows, in the model's dtype."""
        return self.base.head_rows[: self.vocab_size]

    def embed(self, ids: Tensor, new_at: Tensor | None = None) -> Tensor:
        """Look up embeddings of ids below V + N.

        Args:
            ids: (B, T) token ids.
            new_at: flat positions of the new tokens in ``ids``; found here unless given (giving them saves
                a synchronisation on a GPU).

        Returns:
            (B, T, D) in the model's dtype, scaled as the family scales its own embeddings.
        """
        table: Any = self._frozen[0].get_input_embeddings()
        return embed(table, ids, self.vocab_size, self.input_rows, new_at)

    def hidden(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        layer: int = -1,
        new_at: Tensor | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the blocks once.

        Right padding needs no mask, since no real token looks at what follows it.

        Args:
            ids: (B, T) token ids below V + N.
            attention_mask: (B, T), 1 at real tokens; needed for left padding only. With a cache it covers the tokens
                in there too.
            layer: which hidden state to return beside the last: -1 the last (after the final norm), otherwise
                an index into the family's ``hidden_states`` (0 is the embedding).
            new_at: see `embed`.
            cache: keys and values of what stands before ``ids``; those of ``ids`` are added to it.

        Returns:
            (B, T, D) final hidden states and (B, T, D) those of ``layer``.
        """
        positions = None
        if attention_mask is not None:
            positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
        body = self._frozen[0].base_model
        output = body(
            inputs_embeds=self.embed(ids, new_at),
            attention_mask=attention_mask,
            position_ids=positions,
            output_hidden_states=layer != -1,
            use_cache=cache is not None,
            **({} if cache is None else {cache_argument(body): cache}),
        )
        final = output.last_hidden_state
        return final, final if layer == -1 else output.hidden_states[layer]

    def logits(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return float32 logits over V + N, for looking rather than training: it keeps all of them.

        Args:
            ids: (B, T) token ids below V + N.
            attention_mask: (B, T), 1 at real tokens, or None.

        Returns:
            (B, T, V + N).
        """
        hidden, _ = self.hidden(ids, attention_mask)
        weights = torch.cat([self.head, self.head_rows.to(self.head.dtype)])
        return logits(hidden, weights, self.transform)

    @torch.no_grad()
    def _check_family(self) -> None:
        """Refuse a family whose own logits differ from ours on a probe of original tokens."""
        ids = torch.arange(2, 10, device=self.device)[None] % self.vocab_size
        ours = self.logits(ids)[..., : self.vocab_size]
        theirs = self._frozen[0](input_ids=ids, use_cache=False).logits[..., : self.vocab_size].float()
        tolerance = 1e-3 if self.base.dtype == torch.float32 else 4e-2
        if not (ours - theirs).abs().max() <= tolerance * theirs.abs().max().clamp(min=1.0):
            raise UnsupportedModelError(
                f"model type {self._frozen[0].config.model_type!r}: head products differ from the model's own "
                "logits, so its losses cannot be computed in chunks"
            )
