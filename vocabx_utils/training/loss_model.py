"""A causal model as fine-tuning sees it: ids and targets in, one summed loss out.

Legend: V original vocabulary, N new tokens, T tokens of a text, B texts of a batch, D model width.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from vocabx_utils.config import FineTuneConfig
from vocabx_utils.student import token_losses
from vocabx_utils.training import fusing, stages
from vocabx_utils.training.cross_entropy import linear_cross_entropy
from vocabx_utils.training.stage_files import new_rows_of


class LossModel(nn.Module):
    """The model as the training loop sees it (thesis eq. `cross_entropy_context`).

    The embedding is looked up without a padding index (where pad = eos that index would silence the gradient of
    end-of-text), masters in float32 are cast once, and the logits never exist as a whole.

    Args:
        model: plain untied causal model, possibly with LoRA layers inside.
        limit: V + N; matrix rows from here on are padding.
        dtype: of activations; under bf16 products run in autocast.
        train_rows: let the new rows move although the matrices are frozen (during LoRA).
    """

    def __init__(
        self,
        model: PreTrainedModel,
        limit: int,
        dtype: torch.dtype = torch.float32,
        new_ids: range = range(0),
        train_rows: bool = False,
    ) -> None:
        super().__init__()
        check_shape(model)
        self.tuned = model
        self.limit, self.dtype, self.new_ids = limit, dtype, new_ids
        self.new_input: nn.Parameter | None = None
        self.new_head: nn.Parameter | None = None
        if train_rows and len(new_ids):
            input_rows, head_rows = new_rows_of(model, new_ids)
            self.new_input = nn.Parameter(input_rows.float())
            self.new_head = nn.Parameter(head_rows.float())

    def hidden(self, ids: Tensor) -> Tensor:
        """Final hidden states (B, T, D) of right-padded ids (B, T)."""
        rows = functional.embedding(ids, stages.matrices_of(self.tuned)[0]).to(self.dtype)
        if self.new_input is not None:
            places = (ids - self.new_ids.start).clamp(0, len(self.new_ids) - 1)
            new = functional.embedding(places, self.new_input).to(self.dtype)
            rows = torch.where((ids >= self.new_ids.start)[..., None], new, rows)
        states: Tensor = self.tuned.get_decoder()(inputs_embeds=rows, use_cache=False).last_hidden_state
        return states

    def head(self) -> Tensor:
        """Head rows that count (V + N, D)."""
        weight: Tensor = stages.matrices_of(self.tuned)[1]
        if self.new_head is None:
            return weight if len(weight) == self.limit else weight[: self.limit]
        old = weight[: self.new_ids.start].to(self.dtype)
        return torch.cat([old, self.new_head.to(self.dtype)])

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Sum of the cross-entropy over the targets that count, float32, in nats."""
        states, weight = self.states(ids)
        if not torch.is_grad_enabled():
            keep = targets >= 0
            losses = torch.zeros(targets.shape, dtype=torch.float32, device=targets.device)  # (B, T)
            losses[keep] = token_losses(states[keep], weight, targets[keep])
            return losses.sum(dim=1).sum()
        learn_from = 0 if self.new_head is None else self.new_ids.start
        flat = states.flatten(0, 1).to(self.dtype)
        return linear_cross_entropy(flat, weight, targets.flatten(), learn_from=learn_from)

    def states(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Final hidden states (B, T, D) and the head rows that count, under autocast where the model is bf16."""
        cast = torch.autocast(ids.device.type, self.dtype) if self.dtype != torch.float32 else nullcontext()
        with cast:
            return self.hidden(ids), self.head()


def check_shape(model: PreTrainedModel) -> None:
    """Refuse, with a ValueError, a family that does anything around its matrices: the loss reads them directly."""
    config = model.config
    scales = {getattr(config, name, None) for name in ("logit_scale", "logits_scaling")}
    features = {
        "a head bias": getattr(model.get_output_embeddings(), "bias", None) is not None,
        "soft-capped logits": getattr(config, "final_logit_softcapping", None) is not None,
        "a scaled embedding": hasattr(model.get_input_embeddings(), "embed_scale"),
        "scaled logits": bool(scales - {None, 1.0}),
    }
    if odd := [name for name, present in features.items() if present]:
        raise ValueError(f"{type(model).__name__} has {', '.join(odd)}; fine-tuning knows plain decoders only")


# --- what surrounds a stage's steps -------------------------------------------------------------------------


def prepare(
    model: PreTrainedModel, config: FineTuneConfig, stage: stages.Stage, tokens: int, shape: tuple[int, int]
) -> str:
    """Gradient checkpointing and compilation as configured; both are undone when the stage closes.

    `tokens` and `shape` are those of `fusing.fuse_where_it_pays`, whose line is returned.
    """
    wanted = config.gradient_checkpointing
    if wanted == "always" or (wanted == "auto" and stage.key.startswith("c")):
        # renamed in transformers 5.2x; both names take the same keyword arguments in the same place
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    # under autocast the products cast for themselves; peft's own cast to float32 would only cost memory traffic
    _cast_adapter_inputs(model, stages.matrices_of(model)[1].dtype == torch.float32)
    return fusing.fuse_where_it_pays(model, config.compile_blocks, tokens, shape)


def undo_preparation(model: PreTrainedModel) -> None:
    """Undo what `prepare` did."""
    disable = getattr(model, "activation_checkpointing_disable", None) or model.gradient_checkpointing_disable
    disable()
    _cast_adapter_inputs(model, True)
    fusing.unfuse(model)


def _cast_adapter_inputs(model: PreTrainedModel, cast: bool) -> None:
    layers: Any = model.modules()
    for module in layers:
        if hasattr(module, "lora_A"):
            module.cast_input_dtype_enabled = cast


def reshard(tuned: LossModel) -> None:
    """Let go of parameters that the last forward pass has put together."""
    units: Any = [tuned, *stages.blocks_of(tuned.tuned)]
    for unit in units:
        unit.reshard()


def reset_peak() -> None:
    """Begin to measure device memory anew."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int:
    """Most device memory since then on CUDA, else most resident memory of the process."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
