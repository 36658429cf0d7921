"""Bits per byte, the forgetting sets and the snapshot of a model between stages."""

from __future__ import annotations

import copy
import gzip
import json
import math

import pytest
import torch
from tiny import chat_base, new_rows, rendered_pairs, with_words

from vocabx_utils.models import with_extra_rows
from vocabx_utils.training.forgetting import (
    Snapshot,
    TextSet,
    forgetting_table,
    forgetting_texts,
)

TEXTS = ["def alpha(x):\n    return 1\n", "naïve 🙂", "x"]


@torch.no_grad()
def naive_bits(model, tokenizer, strings, limit):
    """One text at a time, whole softmax in float64."""
    total = 0.0
    for string in strings:
        ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer(string)["input_ids"]]])
        scores = model(ids).logits[0, :-1, :limit].double().log_softmax(-1)
        total -= float(scores.gather(1, ids[0, 1:, None]).sum())
    return total / math.log(2) / sum(len(string.encode()) for string in strings)


def bits_per_byte(model, tokenizer, strings, limit, budget=4096):
    group = TextSet("domain", tuple(strings), "test")
    return Snapshot(tokenizer, limit, range(0), (group,), tokens_per_batch=budget)("", model)["bits_per_byte"]["domain"]


@pytest.mark.parametrize("rows", [None, 340])
def test_bits_per_byte_against_plain_code(rows):
    base = chat_base(rows=rows)
    expected = naive_bits(base.model, base.tokenizer, TEXTS, 300)
    for budget in (64, 4096):
        bits = bits_per_byte(base.model, base.tokenizer, TEXTS, 300, budget)
        assert bits == pytest.approx(expected, rel=1e-5)


def test_bits_per_byte_counts_new_tokens_and_their_bytes():
    base = chat_base()
    model = with_extra_rows(base, *new_rows(base, 3), 300).eval()
    tokenizer = with_words(base.tokenizer)
    strings = ["x groupby numpy", "numpy"]
    bits = bits_per_byte(model, tokenizer, strings, 303)
    assert bits == pytest.approx(naive_bits(model, tokenizer, strings, 303), rel=1e-5)


def test_no_text_is_refused():
    base = chat_base()
    with pytest.raises(ValueError, match="at least one text"):
        bits_per_byte(base.model, base.tokenizer, ["", ""], 300)


def test_mass_on_new_rows():
    base = chat_base()
    input_rows, head_rows = new_rows(base, 3)
    tokenizer = with_words(base.tokenizer)
    model = with_extra_rows(base, input_rows, head_rows, 300).eval()
    ids = torch.tensor([[tokenizer.eos_token_id, *tokenizer(TEXTS[0])["input_ids"]]])
    with torch.no_grad():
        expected = model(ids).logits[0].softmax(-1)[:, 300:].sum(-1).mean()
    seen = Snapshot(tokenizer, 303, range(300, 303), (TextSet("domain", (TEXTS[0],), "test"),))("start", model)
    assert seen["new_row_mass"] == pytest.approx(float(expected), rel=1e-4)


def test_continuation_equals_generate_and_keeps_spaces():
    base = chat_base()
    ids = torch.tensor([base.tokenizer("Write the")["input_ids"]])
    out = copy.deepcopy(base.model).generate(ids, max_new_tokens=8, do_sample=False)[0]
    whole = base.tokenizer.decode(out, skip_special_tokens=True)
    seen = Snapshot(base.tokenizer, 300, range(300, 300), (), "Write the", 8)("start", base.model)
    assert "Write the" + seen["text"] == whole
    assert seen["marked"] == seen["text"] and seen["new_tokens"] == 0


def test_a_continuation_shows_its_new_tokens_in_brackets():
    base = chat_base()
    tokenizer = with_words(base.tokenizer)
    observe = Snapshot(tokenizer, 303, range(300, 303), (), "Write the", 8)
    ids = tokenizer("x groupby numpy naïve", add_special_tokens=False)["input_ids"]
    words = [tokenizer.decode([i]) for i in range(300, 303)]
    marked = "x groupby numpy naïve"
    for i, word in zip(range(300, 303), words, strict=True):
        marked = marked.replace(word, f"[{word}]") if i in ids else marked
    assert observe._mark([*ids, tokenizer.eos_token_id]) == marked and "[" in marked
    input_rows, head_rows = new_rows(base, 3)
    model = with_extra_rows(base, input_rows, 100 * head_rows, 300).eval()  # so that the model says new tokens
    seen = observe("start", model)
    assert seen["new_tokens"] > 0 and seen["marked"].count("[") == seen["new_tokens"] + seen["text"].count("[")


def test_sets_from_installed_packages(monkeypatch):
    monkeypatch.delenv("VOCABX_DATA", raising=False)
    sets = forgetting_texts([text.text for text in rendered_pairs(chat_base().tokenizer)], max_texts=6, max_chars=300)
    assert [s.name for s in sets] == ["domain", "other language", "English prose"]
    assert all(1 <= len(s.texts) <= 6 and max(map(len, s.texts)) <= 300 and s.bytes > 500 for s in sets)
    assert "numpy" in sets[1].source
    again = forgetting_texts([text.text for text in rendered_pairs(chat_base().tokenizer)], max_texts=6, max_chars=300)
    assert sets == again


def test_sets_from_shared_data(monkeypatch, tmp_path):
    rows = [
        {"answer": f"{lang} {'word ' * 60}{k}", "lang": lang} for lang in ("javascript", "text", "sql") for k in "ab"
    ]
    with gzip.open(tmp_path / "code_alpaca_20k.jsonl.gz", "wt") as file:
        file.write("\n".join(map(json.dumps, rows)))
    monkeypatch.setenv("VOCABX_DATA", str(tmp_path))
    sets = forgetting_texts(["domain text"])
    assert [len(s.texts) for s in sets] == [1, 2, 2]
    assert sets[1].texts[0].startswith("javascript") and sets[2].source == "Code Alpaca, text"


def test_snapshot_and_table():
    base = chat_base()
    model = with_extra_rows(base, *new_rows(base, 3), 300).eval()
    sets = (TextSet("domain", tuple(TEXTS), "test"), TextSet("English prose", ("some words",), "test"))
    snapshot = Snapshot(with_words(base.tokenizer), 303, range(300, 303), sets, "Write", 4)
    seen = snapshot("start", model)
    assert set(seen) == {"bits_per_byte", "bits", "bytes", "sources", "new_row_mass", "text", "marked", "new_tokens"}
    for name, bits in seen["bits_per_byte"].items():
        assert sum(seen["bits"][name]) / sum(seen["bytes"][name]) == pytest.approx(bits, rel=1e-3)
    after = json.loads(json.dumps(seen))
    after["bits_per_byte"]["domain"] -= 1.0
    table = forgetting_table({"mean_ce": {"start": seen, "a": seen, "b": after}})
    assert table.stages.tolist() == ["a+b", "a+b"]
    assert table.change.round(9).tolist() == [-1.0, 0.0]
