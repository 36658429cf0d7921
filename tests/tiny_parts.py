"""The smallest real parts that the fixtures are made of: a byte-level BPE tokenizer and a random decoder."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

KINDS: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
}


def byte_level_bpe(
    texts: Iterable[str], size: int, specials: Sequence[str], pre_tokenizer: Any = None, **named: Any
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer.

    Args:
        texts: to train on.
        size: of the vocabulary.
        specials: special tokens, ids from 0.
        pre_tokenizer: in place of GPT-2's.
        **named: ``eos_token`` and so on.
    """
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizer or pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **named)


def tiny_decoder(rows: int, *, kind: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """Make a decoder with random weights: two layers, width 32, untied.

    Args:
        rows: of both matrices.
        kind: of `KINDS`.
        seed: of the weights.
        **changes: of its configuration. An ``initializer_range`` far above the usual makes predictions differ.
    """
    config_class, model_class = KINDS[kind]
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(seed)
    return model_class(config_class(vocab_size=rows, **(shape | changes))).eval()
