"""The tiny models, tokenizers and texts of all tests: two layers of random weights, byte-level BPE of 300 entries."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from vocabx_utils.corpus import Pair, Rendered, render
from vocabx_utils.models import BaseModel, untie, weights_fingerprint

# --- any tokenizer, any model --------------------------------------------------------------------------------


def byte_level_bpe(
    texts: Iterable[str], size: int, specials: Sequence[str], pre_tokenizer: Any = None, **named: Any
) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer.

    Args:
        texts: to train on.
        size: of the vocabulary.
        specials: special tokens, ids from 0.
        pre_tokenizer: in place of GPT-2's.
        **named: `eos_token` and so on.
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


def with_words(tokenizer: PreTrainedTokenizerFast, words: Sequence[str] = ("groupby", "numpy", "unseenword")) -> Any:
    """Return a copy of a tokenizer with new words behind its vocabulary."""
    new = copy.deepcopy(tokenizer)
    new.add_tokens([AddedToken(word, special=False, normalized=False) for word in words])
    return new


_SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "tie_word_embeddings": False,
}
_DECODER = _SHAPE | {"intermediate_size": 64, "num_key_value_heads": 2}
_ENDS = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
_OWN = _SHAPE | _ENDS | {"initializer_range": 0.3}
_LLAMA_LIKE = _OWN | {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8}

# Name, prefix of the classes, shape of the configuration.
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _LLAMA_LIKE),
    "qwen2": ("Qwen2", _LLAMA_LIKE),
    "qwen3": ("Qwen3", _LLAMA_LIKE),
    "mistral": ("Mistral", _LLAMA_LIKE),
    "phi3": ("Phi3", _LLAMA_LIKE),
    "gemma": ("Gemma", _LLAMA_LIKE),
    "gemma2": ("Gemma2", _LLAMA_LIKE | {"final_logit_softcapping": 2.0}),
    "gemma3": ("Gemma3Text", _LLAMA_LIKE),
    "cohere": ("Cohere", _LLAMA_LIKE | {"logit_scale": 0.0625}),
    "granite": ("Granite", _LLAMA_LIKE | {"logits_scaling": 8.0, "embedding_multiplier": 3.0}),
    "gpt2": ("GPT2", _OWN),
    "gpt_neox": ("GPTNeoX", _OWN | {"intermediate_size": 48}),
    "opt": ("OPT", _SHAPE | _ENDS | {"ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3}),
    "falcon": ("Falcon", _OWN),
    "bloom": ("Bloom", _OWN),
    "mpt": ("Mpt", {"d_model": 32, "n_heads": 4, "n_layers": 2, "max_seq_len": 256, "initializer_range": 0.3}),
}


def _random_model(prefix: str, rows: int, seed: int, shape: dict[str, Any]) -> Any:
    config = getattr(transformers, f"{prefix}Config")(vocab_size=rows, **shape)
    torch.manual_seed(seed)
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def tiny_decoder(rows: int, *, family: str = "llama", seed: int = 0, **changes: Any) -> Any:
    """Make a decoder of the families built like Llama: width 32, untied.

    Args:
        rows: of both matrices.
        family: `llama` or `qwen2`.
        seed: of the weights.
        **changes: of its configuration. An `initializer_range` far above the usual makes predictions differ.
    """
    return _random_model(FAMILIES[family][0], rows, seed, _DECODER | changes)


def tiny_family(family: str, rows: int, *, seed: int = 0) -> Any:
    """Make a model of one of `FAMILIES`, with weights large enough that predictions differ."""
    prefix, shape = FAMILIES[family]
    return _random_model(prefix, rows, seed, shape)


# --- base models ---------------------------------------------------------------------------------------------


def as_base(model: Any, tokenizer: Any = None, dtype: torch.dtype = torch.float32) -> BaseModel:
    """Return a model as a frozen base model on the CPU; rows behind the tokenizer's ids are padding.

    Without a tokenizer, `tokenizers().original` is its own.
    """
    tokenizer = tokenizer or tokenizers().original
    model = untie(model).eval().requires_grad_(False).to(dtype)
    return BaseModel("tiny", model, tokenizer, len(tokenizer), torch.device("cpu"), dtype, weights_fingerprint(model))


def word_base(words: int = 60, padding: int = 4, *, seed: int = 0) -> BaseModel:
    """A Llama whose tokenizer knows whole words, `w0` to `w59`, and nothing else."""
    backend = Tokenizer(WordLevel({f"w{i}": i for i in range(words)}, unk_token="w0"))
    model = tiny_decoder(words + padding, seed=seed, initializer_range=0.5)
    return as_base(model, PreTrainedTokenizerFast(tokenizer_object=backend))


# --- two tokenizers of one training run, for phase 1 -----------------------------------------------------------

V, N, ROWS, WIDTH = 300, 12, 308, 32
WORDS = ("groupby", "dataframe", "numpy", "reshape", "ravel", "array", "axis", "mean", "return", "import")


@dataclass(frozen=True)
class Token:
    """A new token as phase 1 needs it."""

    id: int
    subtokens: tuple[int, ...]


@dataclass(frozen=True)
class TokenizerPair:
    """An extension as phase 1 needs it."""

    original: PreTrainedTokenizerFast
    extended: PreTrainedTokenizerFast


def texts(count: int = 24) -> list[str]:
    """Deterministic texts in which the words come back in changing company."""
    lines = []
    for k in range(count):
        words = [WORDS[(k * 7 + j * (k % 3 + 1)) % len(WORDS)] for j in range(6 + k % 5)]
        lines.append(f"def f{k}(x): " + " ".join(words) + f".{WORDS[k % len(WORDS)]}(x, {k})\n")
    return lines


@cache
def tokenizers() -> TokenizerPair:
    """Two tokenizers of one training run: the larger one goes on merging where the smaller one stops."""
    original, extended = (
        byte_level_bpe(texts(), size, ["<eos>"], eos_token="<eos>", pad_token="<eos>") for size in (V, V + N)
    )
    return TokenizerPair(original, extended)


@cache
def new_tokens() -> tuple[Token, ...]:
    """The ids that only the larger tokenizer has."""
    pair = tokenizers()
    names = pair.extended.convert_ids_to_tokens(list(range(V, V + N)))
    alphabet = {chr(c): c for c in (*range(33, 127), *range(161, 173), *range(174, 256))}
    assert all(set(name) <= set(alphabet) | {"Ġ"} for name in names)
    spelled = [name.replace("Ġ", " ") for name in names]
    return tuple(
        Token(V + i, tuple(pair.original.encode(text, add_special_tokens=False))) for i, text in enumerate(spelled)
    )


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: Any) -> BaseModel:
    """A Llama for `tokenizers().original`, with rows behind V that no id uses."""
    shape = {"intermediate_size": 48, "max_position_embeddings": 256, "initializer_range": 0.2}
    return as_base(tiny_decoder(ROWS, seed=seed, **(shape | changes)), dtype=dtype)


# --- a chat model and question-answer pairs, for fine-tuning and export ----------------------------------------

NAMES = ("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta")
CHAT = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)


def pairs(count: int = 12) -> list[Pair]:
    """Questions for a function and answers of different lengths."""
    return [
        Pair(
            f"Write the function {NAMES[k % 8]}{k}.",
            f"```python\ndef {NAMES[k % 8]}{k}(x):\n    return groupby(x) + numpy.mean(x, {k})\n"
            + "    # next\n" * (k % 4)
            + "```",
        )
        for k in range(count)
    ]


def rendered_pairs(tokenizer: PreTrainedTokenizerFast, count: int = 12) -> list[Rendered]:
    """The pairs in the thesis's template."""
    return [render(pair, "thesis", tokenizer) for pair in pairs(count)]


def chat_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of 300 entries with a chat template; the pad token is its end-of-text."""
    words = ["Write the function return x"] * 3 + list(NAMES)
    fast = byte_level_bpe(words, 300, ["<eos>"], eos_token="<eos>", pad_token="<eos>")
    fast.chat_template = CHAT
    return fast


def chat_base(
    *, rows: int | None = None, tie: bool = False, layers: int = 4, width: int = 32, seed: int = 0
) -> BaseModel:
    """A random Llama for `chat_tokenizer`; `rows` above the vocabulary are padding."""
    tokenizer = chat_tokenizer()
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
    return as_base(model, tokenizer)


def new_rows(base: BaseModel, count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Random input and head rows, each `(count, D)`."""
    generator = torch.Generator().manual_seed(seed)
    return (
        0.2 * torch.randn(count, base.width, generator=generator),
        0.2 * torch.randn(count, base.width, generator=generator),
    )


# --- a model folder ------------------------------------------------------------------------------------------

CODE = [
    "def mean(values):\n    return sum(values) / len(values)\n",
    "import numpy as np\nx = np.zeros((3, 4))\nfor i in range(10):\n    x[i] = i + 1\n",
    "class Frame:\n    def groupby(self, key):\n        return self.data.groupby(key).mean()\n",
    "The quick brown fox returns a value. Naïve café, 12345 and emoji 🙂.",
]


def train_tokenizer(lines: list[str], size: int = 400) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with an end token that is the padding token too."""
    names = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|end|>"}
    return byte_level_bpe(lines, size, ["<|begin|>", "<|end|>"], **names)


def save_tiny_model(folder: Path, *, tied: bool = True, extra_rows: int = 16) -> Path:
    """Write a tiny tied model with padding rows, and its tokenizer, as a Hugging Face folder."""
    tokenizer = train_tokenizer(CODE * 3)
    model = tiny_decoder(
        len(tokenizer) + extra_rows,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    with torch.no_grad():  # larger weights than the default: predictions that differ between positions
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, 0.15)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
