"""What stands around the blocks of a student: how ids become vectors, and final states logits.

Families differ here. Gemma scales its embeddings, Gemma 2 caps its logits, Cohere and Granite scale them. Training,
evaluation and analysis compute students from parts (rows, blocks, head), so each of them needs the family's own
arithmetic, and all of them take it from this module.

Shapes: V ids of the original tokenizer, N new tokens, D model width, B texts, T tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["LogitTransform", "UnsupportedModelError", "embed", "final_norm", "logit_transform", "logits"]

# Configuration names that speak of logits but leave the output logits alone.
_HARMLESS = {"attn_logit_softcapping", "attention_logit_cap", "router_aux_loss_coef", "output_router_logits"}


class UnsupportedModelError(ValueError):
    """The model family computes its output in a way that the chunked losses do not reproduce."""


@dataclass(frozen=True)
class LogitTransform:
    """How a model family turns head products into logits: ``cap * tanh(scale * h W^T / cap)``.

    Args:
        scale: factor on the product (Cohere's ``logit_scale``, one over Granite's ``logits_scaling``).
        softcap: limit of Gemma 2's soft capping, or None.
    """

    scale: float = 1.0
    softcap: float | None = None

    def apply_(self, logits: Tensor) -> Tensor:
        """Transform float32 products in place and return them."""
        if self.scale != 1.0:
            logits.mul_(self.scale)
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits

    def chain_(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """Turn a gradient of the logits into one of the products, in place.

        Args:
            gradient: gradient with respect to the transformed logits.
            logits: those logits.
        """
        if self.softcap is not None:
            gradient.mul_(1.0 - (logits / self.softcap).square_())
        if self.scale != 1.0:
            gradient.mul_(self.scale)
        return gradient


def logit_transform(config: Any) -> LogitTransform:
    """Read a family's logit scaling and capping from its configuration.

    Args:
        config: a ``PretrainedConfig``.

    Raises:
        UnsupportedModelError: the configuration names a treatment of logits that is not known here.
    """
    known = {"final_logit_softcapping", "logit_scale", "logits_scaling"}
    for name, value in config.to_dict().items():
        strange = "logit" in name.lower() or name == "lm_head_multiplier"
        if strange and name not in known | _HARMLESS and value not in (None, False, 1, 1.0):
            raise UnsupportedModelError(
                f"model type {config.model_type!r} has {name} = {value!r}, which the chunked losses do not "
                f"reproduce; known are {sorted(known)}"
            )
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    return LogitTransform(scale, getattr(config, "final_logit_softcapping", None))


def embed(table: nn.Module, ids: Tensor, first_new_id: int, new_rows: Tensor, new_at: Tensor | None = None) -> Tensor:
    """Look up embeddings of ids below V + N, scaled as the family scales its own.

    Args:
        table: the model's input embedding module.
        ids: (B, T) token ids.
        first_new_id: V.
        new_rows: (N, D) input rows of the new tokens, any float dtype.
        new_at: flat positions of the new tokens in ``ids``; found here unless given (giving them saves a
            synchronisation on a GPU).

    Returns:
        (B, T, D) in the dtype of the table.
    """
    flat = ids.reshape(-1)
    if new_at is None:
        new_at = torch.nonzero(flat >= first_new_id).squeeze(1)
    old = table(flat.clamp(max=first_new_id - 1))
    new = functional.embedding(flat[new_at] - first_new_id, new_rows).to(old.dtype)
    scale: Any = getattr(table, "embed_scale", None)
    if scale is not None:
        new = new * torch.as_tensor(scale).to(old)
    return old.index_copy(0, new_at, new).view(*ids.shape, -1)


def final_norm(model: Any) -> nn.Module:
    """Find the norm behind the last block: the last module of that kind that the decoder itself holds.

    Args:
        model: a causal language model.

    Raises:
        UnsupportedModelError: the decoder holds none.
    """
    norms = [module for module in model.get_decoder().children() if "norm" in type(module).__name__.lower()]
    if not norms:
        raise UnsupportedModelError(f"{type(model).__name__} has no norm behind its last block, which the lens needs")
    return norms[-1]


def logits(hidden: Tensor, head: Tensor, transform: LogitTransform) -> Tensor:
    """Turn final states into float32 logits as the family does.

    Args:
        hidden: (..., D) states after the final norm.
        head: (R, D) head rows in the same dtype.
        transform: of `logit_transform`.

    Returns:
        (..., R), a tensor of its own.
    """
    return transform.apply_((hidden @ head.T).float())
