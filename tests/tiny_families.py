"""Tiny random models of many families, for tests of what a family does around its blocks."""

from __future__ import annotations

from typing import Any

import torch
import transformers

_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "tie_word_embeddings": False,
}
_LLAMA_LIKE = _SHAPE | {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.3}

# Name, prefix of the classes, shape of the configuration.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _LLAMA_LIKE),
    "qwen2": ("Qwen2", _LLAMA_LIKE),
    "qwen3": ("Qwen3", _LLAMA_LIKE),
    "mistral": ("Mistral", _LLAMA_LIKE),
    "phi3": ("Phi3", _LLAMA_LIKE),
    "gemma": ("Gemma", _LLAMA_LIKE),
    "gemma2": ("Gemma2", _LLAMA_LIKE | {"final_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3", _LLAMA_LIKE),
    "cohere": ("Cohere", _LLAMA_LIKE | {"logit_scale": 0.0625}),
    "granite": ("Granite", _LLAMA_LIKE | {"logits_scaling": 8.0, "embedding_multiplier": 3.0}),
    "gpt2": ("GPT2", _SHAPE | {"initializer_range": 0.3}),
    "gpt_neox": ("GPTNeoX", _SHAPE | {"intermediate_size": 48, "initializer_range": 0.3}),
    "opt": ("OPT", _SHAPE | {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3}),
    "falcon": ("Falcon", _SHAPE | {"initializer_range": 0.3}),
    "bloom": ("Bloom", _SHAPE | {"initializer_range": 0.3}),
    "mpt": ("Mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256, "initializer_range": 0.3}),
}


def tiny_family(name: str, rows: int, *, seed: int = 0) -> Any:
    """Make a model of a family with random weights large enough that predictions differ.

    Args:
        name: of `FAMILIES`.
        rows: of both matrices.
        seed: of the weights.
    """
    prefix, shape = FAMILIES[name]
    text = "Text" if prefix == "Gemma3" else ""
    config = getattr(transformers, f"{prefix}{text}Config")(vocab_size=rows, **shape)
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).eval()
