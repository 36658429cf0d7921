"""THE student: a frozen language model with N extra rows on each side. Without rows it is the teacher.

The input side holds one row for every new token, the head one row more for every new token. Training, evaluation and
analysis compute embeddings, states, logits and likelihoods here and nowhere else, because families differ around
their blocks: Gemma scales its embeddings, Gemma 2 caps its logits, Cohere and Granite scale them.

Shapes: V ids of the original tokenizer, N new tokens, D model width, B texts, T tokens, L blocks.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache, PreTrainedModel

from vocabx_utils.batching import like_length, pad

# Configuration names that speak of logits but leave the output logits alone.
_HARMLESS = {"attn_logit_softcapping", "attention_logit_cap", "router_aux_loss_coef", "output_router_logits"}
_HEAD_POSITIONS = 256  # positions whose logits are held at once
_FAITHFUL: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # models whose logits were compared with ours


class UnsupportedModelError(ValueError):
    """The model family computes its output in a way that the chunked losses do not reproduce."""


class Student(nn.Module):
    """A frozen model whose vocabulary goes on from V to V + N.

    The new rows are float32 parameters whatever the model's dtype: at learning rates of 1e-4 a bfloat16 row would lose
    most updates to rounding. They are the only parameters, so weight decay and momentum cannot move the V old rows;
    with them the model is put into evaluation mode and needs no gradient any more.

    Args:
        model: untied causal language model.
        vocab_size: V, the first id that is not the original tokenizer's; rows of the model from there on are padding.
        input_rows: (N, D) first values of the new embedding rows; none by default.
        head_rows: (N, D) first values of the new head rows; none by default: logits are then over V.

    Raises:
        UnsupportedModelError: the family's embedding or head is not one that can be extended faithfully.
        ValueError: shapes that do not fit.
    """

    input_rows: nn.Parameter
    head_rows: nn.Parameter

    def __init__(
        self,
        model: PreTrainedModel,
        vocab_size: int,
        input_rows: Tensor | None = None,
        head_rows: Tensor | None = None,
    ) -> None:
        super().__init__()
        table: Tensor = cast(Any, model.get_input_embeddings()).weight
        known, width = table.shape
        shapes = [tuple(rows.shape) for rows in (input_rows, head_rows) if rows is not None]
        if any(len(shape) != 2 or shape[1] != width or shape != shapes[0] for shape in shapes):
            raise ValueError(f"new rows of shape {' and '.join(map(str, shapes))}: expected twice (N, {width})")
        if vocab_size > known:
            raise ValueError(f"first new id {vocab_size} lies beyond the {known} rows of the model")
        if getattr(model.get_output_embeddings(), "bias", None) is not None:
            raise UnsupportedModelError("a head with a bias is not supported: new tokens would have none")
        self.vocab_size, self.device, self.transform = vocab_size, table.device, logit_transform(model.config)
        for name, rows in (("input_rows", input_rows), ("head_rows", head_rows)):
            values = table.new_zeros(0, width) if rows is None else rows.detach()
            setattr(self, name, nn.Parameter(values.to(table.device, torch.float32).clone()))
        self.blocks: Callable[[Tensor], Tensor] | None = None  # a quicker way from embeddings to final states
        # Held in a list so that the frozen weights are neither parameters nor state of this module.
        self._frozen = [model.requires_grad_(False).eval() if shapes else model]
        if model not in _FAITHFUL:
            self._check_family()
            _FAITHFUL.add(model)

    @property
    def model(self) -> PreTrainedModel:
        """The frozen model."""
        return self._frozen[0]

    @property
    def n_new(self) -> int:
        """N, the number of new tokens."""
        return self.input_rows.shape[0]

    @property
    def head(self) -> Tensor:
        """(V, D) original head rows without padding rows, in the model's dtype."""
        return cast(Any, self.model.get_output_embeddings()).weight[: self.vocab_size]

    def full_head(self) -> Tensor:
        """Return all (V + N, D) head rows in the model's dtype; a copy unless there are no new ones."""
        return torch.cat([self.head, self.head_rows.to(self.head.dtype)]) if len(self.head_rows) else self.head

    def embed(self, ids: Tensor, new_at: Tensor | None = None) -> Tensor:
        """Look up embeddings of ids (B, T) below V + N, (B, T, D) in the model's dtype, scaled as the family does.

        `new_at` are the flat positions of the new tokens in `ids`; giving them saves a synchronisation on a GPU.
        """
        table: Any = self.model.get_input_embeddings()
        if not self.n_new:
            return table(ids)
        flat = ids.reshape(-1)  # (B T,)
        if new_at is None:
            new_at = torch.nonzero(flat >= self.vocab_size).squeeze(1)
        old = table(flat.clamp(max=self.vocab_size - 1))  # (B T, D)
        new = functional.embedding(flat[new_at] - self.vocab_size, self.input_rows).to(old.dtype)
        scale: Any = getattr(table, "embed_scale", None)
        if scale is not None:
            new = new * torch.as_tensor(scale).to(old)
        return old.index_copy(0, new_at, new).view(*ids.shape, -1)  # (B, T, D)

    def hidden(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        layer: int = -1,
        new_at: Tensor | None = None,
        cache: Cache | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the blocks once over ids (B, T) below V + N.

        Args:
            attention_mask: (B, T), 1 at real tokens; needed for left padding only, since no real token looks at what
                follows it. With a cache it covers the tokens in there too.
            layer: which hidden state to return beside the last: -1 the last (after the final norm), otherwise an
                index into the family's `hidden_states` (0 is the embedding).
            new_at: see `embed`.
            cache: keys and values of what stands before `ids`; those of `ids` are added to it.

        Returns:
            (B, T, D) final hidden states and (B, T, D) those of `layer`.
        """
        if self.blocks is not None and layer == -1 and attention_mask is None and cache is None:
            final = self.blocks(self.embed(ids.to(self.device), new_at))
            return final, final
        output = self._run(ids, attention_mask, layer != -1, new_at, cache)
        final = output.last_hidden_state
        return final, final if layer == -1 else output.hidden_states[layer]

    def _run(
        self,
        ids: Tensor,
        mask: Tensor | None,
        layers: bool = False,
        new_at: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Any:
        more: dict[str, Any] = {}
        body: Any = self.model.base_model
        if cache is not None:
            more[cache_argument(body)] = cache
        if mask is not None and not mask[:, 0].all():  # padded on the left
            positions = (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -ids.shape[1] :]
            more["position_ids"] = positions.to(self.device)
        # with keys beside it a fused block would be compiled anew for every layer, which takes minutes
        plainly = cache is not None and self.device.type == "cuda"
        with torch.compiler.set_stance("force_eager") if plainly else nullcontext():
            return body(
                inputs_embeds=self.embed(ids.to(self.device), new_at),
                attention_mask=None if mask is None else mask.to(self.device),
                output_hidden_states=layers,
                use_cache=cache is not None,
                **more,
            )

    def logits(self, ids: Tensor) -> Tensor:
        """Return float32 logits over V + N, (B, T, V + N), for looking rather than training: it keeps all of them."""
        return logits(self.hidden(ids)[0], self.full_head(), self.transform)

    def log_probabilities(self, hidden: Tensor) -> Tensor:
        """Return the log-softmax of final states (..., D) over the V original tokens, (..., V) float32."""
        return torch.log_softmax(logits(hidden, self.head, self.transform), dim=-1)

    @torch.no_grad()
    def encode(self, sequences: Sequence[Sequence[int]], *, layers: bool = False, batch_size: int = 8) -> list[Tensor]:
        """Read texts of ids below V + N and return their hidden states in the model's dtype.

        Of each text (T, D), after the final norm, or with `layers` (L + 1, T, D), the embedding first. ValueError where
        a text is empty or holds an id without a row.
        """
        found: list[Any] = [None] * len(sequences)
        for batch, output in self._read(sequences, like_length([*map(len, sequences)], count=batch_size), layers):
            states = torch.stack(output.hidden_states) if layers else output.last_hidden_state  # (L + 1, B, T, D)
            for row, at in enumerate(batch):
                found[at] = states[..., row, : len(sequences[at]), :].clone()
        return found

    @torch.inference_mode()
    def negative_log_likelihood(
        self, sequences: Sequence[Sequence[int]], starts: Sequence[int] | None = None, *, batch_tokens: int = 2048
    ) -> list[float]:
        """Score texts: the sum of -log p over the tokens of each from `starts` on, in nats, over V + N in float32.

        The first scored token of a text has index 1 at least, which is the default; `batch_tokens` count padding too.
        ValueError where a text is empty or holds an id without a row.
        """
        scores, head = [0.0] * len(sequences), self.full_head()
        firsts = [1] * len(sequences) if starts is None else starts
        batches = like_length([*map(len, sequences)], tokens=batch_tokens, longest_first=True)
        for batch, output in self._read(sequences, batches):
            for states, at in zip(output.last_hidden_state, batch, strict=True):
                targets = torch.as_tensor(sequences[at][firsts[at] :], device=self.device)  # (scored,)
                states = states[firsts[at] - 1 : len(sequences[at]) - 1]  # (scored, D)
                scores[at] = float(token_losses(states, head, targets, self.transform).double().sum())
        return scores

    def _read(
        self, sequences: Sequence[Sequence[int]], batches: Sequence[Sequence[int]], layers: bool = False
    ) -> Iterator[tuple[Sequence[int], Any]]:
        known = self.vocab_size + self.n_new
        for at, ids in enumerate(sequences):
            if not len(ids) or max(ids) >= known:
                raise ValueError(f"Sequence {at} is empty or has an id without a row (there are {known} rows).")
        for batch in batches:
            yield batch, self._run(*pad([sequences[at] for at in batch]), layers)

    def final_norm(self, states: Tensor) -> Tensor:
        """Apply the norm behind the last block: the last module of that kind that the decoder itself holds."""
        decoder: Any = self.model.get_decoder()
        norms = [module for module in decoder.children() if "norm" in type(module).__name__.lower()]
        if not norms:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} has no norm behind its last block, which the lens needs"
            )
        return norms[-1](states)

    @torch.no_grad()
    def _check_family(self) -> None:
        """Refuse a family whose own logits differ from ours on a probe of original tokens."""
        ids = torch.arange(2, 10, device=self.device)[None] % self.vocab_size
        ours = self.logits(ids)[..., : self.vocab_size]
        theirs = self.model(input_ids=ids, use_cache=False).logits[..., : self.vocab_size].float()
        tolerance = 1e-3 if self.head.dtype == torch.float32 else 4e-2
        if not (ours - theirs).abs().max() <= tolerance * theirs.abs().max().clamp(min=1.0):
            raise UnsupportedModelError(
                f"model type {self.model.config.model_type!r}: head products differ from the model's own "
                "logits, so its losses cannot be computed in chunks"
            )


def cache_argument(body: nn.Module) -> str:
    """Name the argument that takes keys and values, which transformers renamed between releases."""
    names = inspect.signature(inspect.unwrap(body.forward)).parameters
    return "cache" if "cache" in names else "past_key_values"


def logits(hidden: Tensor, head: Tensor, transform: LogitTransform) -> Tensor:
    """Turn final states (..., D) into float32 logits (..., R) of the R head rows given, as the family does."""
    return transform.apply_((hidden @ head.T).float())


@torch.no_grad()
def token_losses(hidden: Tensor, head: Tensor, targets: Tensor, transform: LogitTransform | None = None) -> Tensor:
    """Return (P,) float32 cross-entropy of final states (P, D) against ids (P,) of the R head rows given, in nats.

    The logits of a few positions at a time are held.
    """
    head, transform = head.to(hidden.dtype), transform or LogitTransform()
    parts = zip(hidden.split(_HEAD_POSITIONS), targets.split(_HEAD_POSITIONS), strict=True)
    found = [functional.cross_entropy(logits(h, head, transform), wanted, reduction="none") for h, wanted in parts]
    return torch.cat(found)  # of no position, one empty part


@dataclass(frozen=True)
class LogitTransform:
    """How a model family turns head products into logits: `cap * tanh(scale * h W^T / cap)`."""

    scale: float = 1.0  # factor on the product (Cohere's `logit_scale`, one over Granite's `logits_scaling`)
    softcap: float | None = None  # limit of Gemma 2's soft capping, or None

    def apply_(self, logits: Tensor) -> Tensor:
        """Transform float32 products in place and return them."""
        if self.scale != 1.0:
            logits.mul_(self.scale)
        if self.softcap is not None:
            logits.div_(self.softcap).tanh_().mul_(self.softcap)
        return logits

    def chain_(self, gradient: Tensor, logits: Tensor) -> Tensor:
        """Turn a gradient with respect to transformed logits into one of the products, in place."""
        if self.softcap is not None:
            gradient.mul_(1.0 - (logits / self.softcap).square_())
        if self.scale != 1.0:
            gradient.mul_(self.scale)
        return gradient


def logit_transform(config: Any) -> LogitTransform:
    """Read a family's logit scaling and capping from its configuration, a `PretrainedConfig`.

    UnsupportedModelError where that names a treatment of logits that is not known here.
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
