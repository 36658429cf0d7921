"""The new tokens of an adaptation and what they save."""

from __future__ import annotations

from pathlib import Path

import pytest
from adaptation.adaptation_parts import write_sources
from adaptation.conftest import Finished
from fixtures.small_tokenizers import small_tokenizers

from vocabx_utils.adaptation import proposal
from vocabx_utils.adaptation.settings import AdaptSettings
from vocabx_utils.adaptation.texts import read_texts, split_texts
from vocabx_utils.models import load_tokenizer
from vocabx_utils.texts import TokenizerError


def test_gains_are_those_of_the_held_out_files(finished: Finished) -> None:
    summary = finished.made.summary
    extension = proposal.load(finished.made.folder / summary["tokens"]["folder"])
    texts = read_texts(finished.source, extension.original)
    held = split_texts(texts, 0.15, 0.1).held_out
    row = proposal.total(summary["tokens"]["gains"])
    before, after = (
        sum(len(t(text.plain, add_special_tokens=False)["input_ids"]) for text in held)
        for t in (extension.original, extension.extended)
    )
    assert (row["tokens_before"], row["tokens_after"]) == (before, after)
    assert row["saved_per_1000"] == pytest.approx(1000 * (1 - after / before))
    assert row["bytes"] == sum(len(text.plain.encode()) for text in held)
    assert summary["tokens"]["changed"] == 0  # merges leave text without new tokens as it is


def test_auto_takes_merges_where_phrases_are_refused(tmp_path: Path) -> None:
    tokenizer = small_tokenizers()["llama2"]
    split = split_texts(read_texts(write_sources(tmp_path / "src"), tokenizer), 0.15, 0.1)
    found = proposal.propose(tmp_path / "tokens", tokenizer, split, AdaptSettings(n=4, strategy="auto"), lambda _: None)
    assert found["strategy"] == "merges" and "phrases cannot be used here (Strategy 'phrases' needs" in found["choice"]
    with pytest.raises(TokenizerError, match="needs a byte-level tokenizer"):
        proposal.propose(tmp_path / "more", tokenizer, split, AdaptSettings(n=4, strategy="phrases"), lambda _: None)


def test_auto_takes_what_saves_more(tmp_path: Path, tiny_folder: Path) -> None:
    tokenizer = load_tokenizer(tiny_folder)
    split = split_texts(read_texts(write_sources(tmp_path / "src"), tokenizer), 0.15, 0.1)
    made = {
        strategy: proposal.propose(
            tmp_path / strategy, tokenizer, split, AdaptSettings(n=6, strategy=strategy), lambda _: None
        )
        for strategy in ("merges", "phrases", "auto")
    }
    saved = {name: proposal.total(found["gains"])["saved_per_1000"] for name, found in made.items()}
    assert saved["auto"] == max(saved.values()) and saved["merges"] != saved["phrases"]
    assert not made["auto"]["warnings"]
