"""Tiny random models of every family that export accepts, with settings that no default equals.

A setting that a release does not find under the name that it knows is replaced by a default, and the logits show it:
weights are large, texts longer than the sliding windows, and bases, epsilons and caps are far from the usual ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tiny import tiny_decoder

from vocabx_utils.models import load_tokenizer

ROWS = 512
LENGTH = 48

_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "initializer_range": 0.3,
}
_LLAMA = _SHAPE | {
    "intermediate_size": 48,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 96,
    "rms_norm_eps": 0.03,
    "hidden_act": "gelu",
    "rope_theta": 37.0,
}
_LAYERNORM = {"layer_norm_eps": 0.03} | {k: v for k, v in _LLAMA.items() if k not in ("rms_norm_eps", "head_dim")}
_MIXED = ["sliding_attention", "full_attention"] * 2
_LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 24}
_YARN = {"rope_type": "yarn", "factor": 3.0, "original_max_position_embeddings": 32, "beta_fast": 4.0}
_LONG = {"short_factor": [1.1, 1.2, 1.4, 1.8], "long_factor": [2.0, 2.5, 3.0, 4.0]}

# Name of a case: prefix of the classes, settings of the configuration.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _LLAMA | {"attention_bias": True, "mlp_bias": True}),
    "llama-linear": ("Llama", _LLAMA | {"rope_scaling": {"rope_type": "linear", "factor": 2.5}}),
    "llama-llama3": ("Llama", _LLAMA | {"rope_scaling": {"rope_type": "llama3", **_LLAMA3}}),
    "llama-yarn": ("Llama", _LLAMA | {"rope_scaling": _YARN}),
    "qwen2": ("Qwen2", _LLAMA | {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}),
    "qwen2-yarn": ("Qwen2", _LLAMA | {"rope_scaling": _YARN}),
    "qwen3": ("Qwen3", _LLAMA | {"use_sliding_window": True, "sliding_window": 8, "layer_types": _MIXED}),
    "mistral": ("Mistral", _LLAMA | {"sliding_window": 8}),
    "gemma": ("Gemma", _LLAMA),
    "gemma2": (
        "Gemma2",
        _LLAMA
        | {"hidden_activation": "silu", "final_logit_softcapping": 3.0, "attn_logit_softcapping": 2.0}
        | {"query_pre_attn_scalar": 5, "sliding_window": 8, "layer_types": _MIXED[::-1]},
    ),
    "gemma3": (
        "Gemma3Text",
        _LLAMA
        | {"hidden_activation": "silu", "query_pre_attn_scalar": 5, "sliding_window": 8, "layer_types": _MIXED}
        | {"rope_local_base_freq": 11.0, "rope_scaling": {"rope_type": "linear", "factor": 2.5}},
    ),
    "phi3": (
        "Phi3",
        {k: v for k, v in _LLAMA.items() if k != "head_dim"} | {"sliding_window": 8, "partial_rotary_factor": 0.5},
    ),
    "phi3-longrope": (
        "Phi3",
        {k: v for k, v in _LLAMA.items() if k != "head_dim"}
        | {"rope_scaling": {"type": "longrope", **_LONG}, "original_max_position_embeddings": 32},
    ),
    "gpt2": (
        "GPT2",
        _SHAPE
        | {"activation_function": "relu", "layer_norm_epsilon": 0.03, "n_inner": 40}
        | {"scale_attn_by_inverse_layer_idx": True, "n_positions": 96},
    ),
    "gpt_neox": (
        "GPTNeoX",
        _SHAPE
        | {"intermediate_size": 48, "rotary_emb_base": 37.0, "rotary_pct": 0.5, "layer_norm_eps": 0.03}
        | {"hidden_act": "relu", "use_parallel_residual": False, "max_position_embeddings": 96},
    ),
    "opt": (
        "OPT",
        {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "init_std": 0.3, "ffn_dim": 48}
        | {"word_embed_proj_dim": 16, "activation_function": "gelu", "max_position_embeddings": 96}
        | {"do_layer_norm_before": False},
    ),
    "opt-prenorm": (
        "OPT",
        {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "init_std": 0.3, "ffn_dim": 48}
        | {"word_embed_proj_dim": 32, "max_position_embeddings": 96, "enable_bias": False},
    ),
    "falcon": (
        "Falcon",
        _SHAPE
        | {"rope_theta": 37.0, "layer_norm_epsilon": 0.03, "activation": "relu", "ffn_hidden_size": 48}
        | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": True, "max_position_embeddings": 96},
    ),
    "falcon-alibi": (
        "Falcon",
        _SHAPE | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "bloom": (
        "Bloom",
        _SHAPE
        | {"n_layer": 4, "n_head": 4, "layer_norm_epsilon": 0.03}
        | {"apply_residual_connection_post_layernorm": True},
    ),
    "mpt": (
        "Mpt",
        {"d_model": 32, "n_heads": 4, "n_layers": 4, "max_seq_len": 96, "initializer_range": 0.3}
        | {"expansion_ratio": 2, "layer_norm_epsilon": 0.03}
        | {"attn_config": {"alibi_bias_max": 4, "softmax_scale": 0.7}},
    ),
    "cohere": ("Cohere", _LAYERNORM | {"logit_scale": 0.3, "use_qk_norm": True}),
    "cohere2": (
        "Cohere2",
        _LAYERNORM | {"head_dim": 16, "logit_scale": 0.3, "sliding_window": 8, "layer_types": _MIXED},
    ),
    "granite": (
        "Granite",
        {k: v for k, v in _LLAMA.items() if k != "head_dim"}
        | {"logits_scaling": 3.0, "embedding_multiplier": 3.0, "residual_multiplier": 0.4}
        | {"attention_multiplier": 0.7},
    ),
    "stablelm": ("StableLm", _LAYERNORM | {"partial_rotary_factor": 0.5, "use_qkv_bias": True, "qk_layernorm": True}),
    "starcoder2": (
        "Starcoder2",
        _SHAPE
        | {"intermediate_size": 48, "num_key_value_heads": 2, "norm_epsilon": 0.03, "rope_theta": 37.0}
        | {"sliding_window": 8, "use_bias": False, "hidden_act": "relu", "max_position_embeddings": 96},
    ),
    "olmo2": ("Olmo2", {k: v for k, v in _LLAMA.items() if k != "head_dim"}),
    "smollm3": (
        "SmolLM3",
        {k: v for k, v in _LLAMA.items() if k != "head_dim"}
        | {"no_rope_layers": [1, 0, 1, 0], "use_sliding_window": True, "sliding_window": 8, "layer_types": _MIXED},
    ),
}


def tiny_model(case: str, *, tied: bool, rows: int = ROWS, **ends: int) -> Any:
    """Make the model of a case.

    Args:
        case: of `CASES`.
        tied: whether the head is the input embedding.
        rows: of both matrices.
        **ends: ids of the special tokens.
    """
    prefix, settings = CASES[case]
    config = getattr(transformers, f"{prefix}Config")(vocab_size=rows, tie_word_embeddings=tied, **{**settings, **ends})
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # norms and biases that are not ones and zeros
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def save_for_a_run(folder: Path, spare_rows: int = 0) -> None:
    """Write a tiny model of random weights with the tokenizer of the default model, for notebooks that run on it."""
    tokenizer = load_tokenizer("smollm2-135m")
    tokenizer.save_pretrained(folder)
    rows = len(tokenizer) + spare_rows
    tiny_decoder(rows, max_position_embeddings=2048, initializer_range=0.3).save_pretrained(folder)
