"""A tiny model, tokenizer and texts for the tests of fine-tuning and export."""

from __future__ import annotations

import torch
from tiny_parts import byte_level_bpe, tiny_decoder
from tokenizers import AddedToken
from transformers import PreTrainedTokenizerFast

from vocabx_utils.corpus import Pair, render
from vocabx_utils.models import BaseModel, untie, weights_fingerprint

NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
CHAT = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def pairs(count: int = 12) -> list[Pair]:
    return [
        Pair(
            f"Write the function {NAMES[k % 8]}{k}.",
            f"```python\ndef {NAMES[k % 8]}{k}(x):\n    return groupby(x) + numpy.mean(x, {k})\n"
            + "    # next\n" * (k % 4)
            + "```",
        )
        for k in range(count)
    ]


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of 300 entries whose pad token is its end-of-text."""
    words = ["Write the function return x"] * 3 + list(NAMES)
    fast = byte_level_bpe(words, 300, ["<eos>"], eos_token="<eos>", pad_token="<eos>")
    fast.chat_template = CHAT
    return fast


def extended(tokenizer: PreTrainedTokenizerFast, words: tuple[str, ...] = ("groupby", "numpy", "unseenword")):
    """The tokenizer with new words behind its vocabulary."""
    import copy

    new = copy.deepcopy(tokenizer)
    new.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    return new


def tiny_base(
    *, rows: int | None = None, tie: bool = False, layers: int = 4, width: int = 32, seed: int = 0
) -> BaseModel:
    """A random Llama; ``rows`` above the vocabulary are padding."""
    tokenizer = tiny_tokenizer()
    model = tiny_decoder(
        rows or len(tokenizer),
        seed=seed,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        max_position_embeddings=256,
        tie_word_embeddings=tie,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        initializer_range=0.2,
    )
    model = untie(model).requires_grad_(False)
    return BaseModel(
        "tiny", model, tokenizer, len(tokenizer), torch.device("cpu"), torch.float32, weights_fingerprint(model)
    )


def new_rows(base: BaseModel, count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        0.2 * torch.randn(count, base.width, generator=generator),
        0.2 * torch.randn(count, base.width, generator=generator),
    )


def texts(tokenizer: PreTrainedTokenizerFast, count: int = 12):
    return [render(pair, "thesis", tokenizer) for pair in pairs(count)]
