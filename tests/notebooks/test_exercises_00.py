"""The answers to the exercises of notebook 00 are right."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from tiny import byte_level_bpe
from tokenizers.normalizers import NFC

from vocabx_utils.vocabulary.encoding import byte_ends

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "00_start.ipynb"


@pytest.fixture(scope="module")
def exercises() -> str:
    """The last cell, with its hidden answers."""
    cell = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"][-1]
    return "".join(cell["source"])


def test_a_higher_loss_per_token_may_be_a_lower_cost(exercises: str) -> None:
    tokens, before, after = map(float, re.findall(r"text of (\d+) tokens.*from (\d\.\d\d) to (\d\.\d\d)", exercises)[0])
    saved = 5
    assert "shortens a text of 300 tokens by five" in exercises
    totals = tokens * before, (tokens - saved) * after
    assert f"{tokens:.0f} × {before:.2f} = {totals[0]:.1f} nats before" in exercises
    assert f"{tokens - saved:.0f} × {after:.2f} = {totals[1]:.1f} nats after" in exercises
    bits = [total / math.log(2) / 1000 for total in totals]  # whatever the length of the text in bytes
    assert after > before and bits[1] < bits[0] and bits[1] / bits[0] > 0.99  # "a little better"


def test_accents_have_the_bytes_that_the_answer_names(exercises: str) -> None:
    composed, combined = (json.loads(text) for text in re.findall(r'`("[^`]+")`', exercises))
    tokenizer = byte_level_bpe(["cafe au lait"], 300, ["<s>"])

    def last(text: str) -> int:
        return int(byte_ends(tokenizer, tokenizer(text, add_special_tokens=False)["input_ids"])[-1])

    sizes = last(composed), last(combined)
    assert "first spelling has {} bytes and the second has {}".format(*sizes) in exercises
    tokenizer.backend_tokenizer.normalizer = NFC()
    assert last(composed) == last(combined) == sizes[0]
    assert f"the same {sizes[0]} bytes" in exercises
