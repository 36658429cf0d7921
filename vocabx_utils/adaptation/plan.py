"""What an adaptation will cost, told before a weight is loaded: memory, disk and tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from vocabx_utils import folders
from vocabx_utils.adaptation.settings import AdaptSettings, Sizes
from vocabx_utils.fetch import resolve_source
from vocabx_utils.gguf import ModelError
from vocabx_utils.models import pick_device, pick_dtype, quiet_transformers
from vocabx_utils.student import logit_transform
from vocabx_utils.training.teacher import tokens_of_a_pass

_PROCESS = 1e9  # bytes of the interpreter and its libraries
_KEPT = 28  # values that autograd keeps for each token and layer, in widths
_LOGITS = 3  # copies of a chunk of logits
_CHUNK = 256  # positions whose logits are held at once
WINDOW = 48  # tokens around a new token
LORA_BATCH = 2048  # tokens of a step of LoRA


@dataclass(frozen=True)
class Shape:
    """A model as its configuration describes it."""

    parameters: int  # of the untied model
    width: int  # D
    layers: int  # blocks
    rows: int  # of a matrix
    device: torch.device  # where it will lie
    item: int  # bytes of a value there

    @property
    def nbytes(self) -> int:
        """Bytes of the weights."""
        return self.parameters * self.item


@dataclass(frozen=True)
class Plan:
    """What is announced, all of it estimates from above."""

    memory: float  # bytes at the peak, of the device on a GPU and of the process on a CPU
    disk: float  # bytes below the folder to write
    tokens_per_epoch: int  # that phase 1 reads

    def tell(self, out: Path, device: torch.device, free: float) -> str:
        """Spell it in a line."""
        where = "of the card" if device.type == "cuda" else "of this process"
        return (
            f"memory {where}: about {self.memory / 1e9:.1f} GB at the peak. Disk below {out}: about "
            f"{self.disk / 1e9:.1f} GB ({free / 1e9:.0f} GB are free). Phase 1 reads up to "
            f"{self.tokens_per_epoch:,} tokens an epoch"
        )


def read_shape(model: str, device: str, dtype: str) -> Shape:
    """Read the shape of a model from its configuration, without its weights.

    Raises:
        ModelError: there is no such model, or no causal language model.
        vocabx_utils.student.UnsupportedModelError: the family treats its logits in an unknown way.
    """
    where = pick_device(device)
    try:
        with quiet_transformers(), torch.device("meta"):
            config: Any = AutoConfig.from_pretrained(resolve_source(model))
            empty: Any = AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"Could not read the configuration of {model!r}: {error}") from error
    logit_transform(config)
    rows, width = empty.get_input_embeddings().weight.shape
    count = sum(parameter.numel() for parameter in empty.parameters())
    count += rows * width if config.tie_word_embeddings else 0
    layers = config.get_text_config().num_hidden_layers
    return Shape(count, width, layers, rows, where, pick_dtype(dtype, where).itemsize)


def plan_for(shape: Shape, settings: AdaptSettings, sizes: Sizes) -> Plan:
    """Estimate what an adaptation takes.

    Memory: the base, and then either what autograd keeps of a step or two more copies of the weights (the extended
    model, and the exported one that is read back), with a quarter of the other for what is not given back, or what a
    block of the teacher holds while it reads held-out windows beside these copies; a chunk of logits, rows and the
    teacher's states. LoRA adds its adapters with two moments, and longer texts.
    Disk: the model, rows and moments of a checkpoint for each run of the sweep, and the teacher's states.
    """
    n, d = settings.n, shape.width
    rows = 2 * n * d
    step = min(sizes.token_budget, 16 * WINDOW)
    tokens = sizes.train_windows * WINDOW
    states = (sizes.train_windows + sizes.sweep_windows + 2 * sizes.validation_windows) * WINDOW * d * shape.item
    model = shape.nbytes + rows * shape.item
    lora = 0.0
    if settings.fine_tune == "lora":
        step = max(step, LORA_BATCH)
        lora = 4 * (7 * 2 * settings.lora_rank * d * shape.layers * 4)
    kept = step * shape.layers * d * _KEPT * shape.item
    read = min(tokens_of_a_pass(shape.device, sizes.token_budget), sizes.held_out_windows * WINDOW)
    block = read * d * _KEPT * shape.item
    logits = _LOGITS * _CHUNK * (shape.rows + n) * 4
    process = 0 if shape.device.type == "cuda" else _PROCESS
    larger, smaller = max(2 * model, kept + lora), min(2 * model, kept + lora)
    memory = process + model + larger + max(smaller / 4, block) + logits + 6 * rows * 4 + states
    disk = model + 12 * rows * 4 + states + lora
    return Plan(memory, disk, tokens)


def check_space(plan: Plan, out: Path) -> float:
    """Return the free bytes on the disk of the folder to write; what a stopped command left there counts as written.

    SpaceError where the plan's files would not fit there.
    """
    written = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) if out.is_dir() else 0
    left = max(0, int(plan.disk) - written)
    return folders.require_space(out, left, "the adaptation", "make room, or give an --out on another disk")
