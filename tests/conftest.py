"""Small real parts for every test: a byte-level BPE tokenizer and a two-layer Llama with random weights."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_parts import byte_level_bpe, tiny_decoder
from transformers import PreTrainedTokenizerFast

from vocabx_utils.models import BaseModel, load_base_model

CODE = [
    "def mean(values):\n    return sum(values) / len(values)\n",
    "import numpy as np\nx = np.zeros((3, 4))\nfor i in range(10):\n    x[i] = i + 1\n",
    "class Frame:\n    def groupby(self, key):\n        return self.data.groupby(key).mean()\n",
    "The quick brown fox returns a value. Naïve café, 12345 and emoji 🙂.",
]


def train_tokenizer(texts: list[str], size: int = 400) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer with an end token that is the padding token too."""
    names = {"bos_token": "<|begin|>", "eos_token": "<|end|>", "pad_token": "<|end|>"}
    return byte_level_bpe(texts, size, ["<|begin|>", "<|end|>"], **names)


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


SLOW = Path(__file__).parent / "slow_tests.txt"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the listed tests as slow; the list is measured, see tools/mark_slow.py."""
    slow = set(SLOW.read_text(encoding="utf-8").splitlines())
    for item in items:
        if listed_name(item) in slow:
            item.add_marker(pytest.mark.slow)


def listed_name(item: pytest.Item) -> str:
    """Name of a test function as in a JUnit report, without the values of its parameters."""
    module = item.nodeid.split("::")[0].removesuffix(".py").replace("/", ".")
    return f"{module}::{getattr(item, 'originalname', None) or item.name}"


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hugging Face folder of the tiny model."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def tiny_base(tiny_folder: Path) -> BaseModel:
    """The tiny model, loaded as a base model on the CPU in float32."""
    return load_base_model(tiny_folder, device="cpu")


@pytest.fixture(autouse=True)
def no_open_figures() -> Iterator[None]:
    """Each test begins without figures, whatever ran before it."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(autouse=True)
def own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the checkout's runs."""
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path / "runs"))
