"""What is measured on a finished model, against the same by the models' own logits and plain counts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from adaptation.conftest import Finished

from vocabx_utils.adaptation import learning, measures, proposal
from vocabx_utils.adaptation.settings import AdaptSettings, sizes_of
from vocabx_utils.adaptation.texts import Text, read_texts, split_texts, spread
from vocabx_utils.models import load_base_model


class Case:
    """Models, held-out texts and sizes of the finished adaptation."""

    def __init__(self, finished: Finished) -> None:
        folder, self.summary = finished.made.folder, finished.made.summary
        extension = proposal.load(folder / self.summary["tokens"]["folder"])
        rows = next((folder / "work").glob("rows-*"))
        self.models = measures.Models(
            load_base_model(finished.model, device="cpu"),
            load_base_model(finished.made.model, device="cpu"),
            extension,
            learning.rows_of(rows, 0),
        )
        self.held = split_texts(read_texts(finished.source, extension.original), 0.15, 0.1).held_out
        self.sizes = sizes_of(AdaptSettings(n=6), False)


@pytest.fixture(scope="module")
def case(finished: Finished) -> Iterator[Case]:
    yield Case(finished)


def bits(model: Any, tokenizer: Any, text: str, start: int) -> tuple[float, int]:
    """Bits of a text from a character on by the model's own logits in float64, and the bytes there."""
    coded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids, first = coded["input_ids"], [low for low, _ in coded["offset_mapping"]].index(start)
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids])).logits[0, :, : len(tokenizer)].double()
    found = torch.log_softmax(logits[:-1], -1)[range(len(ids) - 1), ids[1:]]
    return -float(found[first - 1 :].sum()) / math.log(2), len(text[start:].encode())


def test_bits_per_byte_are_those_of_the_models_own_logits(case: Case) -> None:
    found = measures.likelihood(case.models, case.held, case.sizes, 0)
    rows = {row["model"]: row for row in found["rows"]}
    original, extended = case.models.extension.original, case.models.extension.extended
    total = {"base": [0.0, 0], "after": [0.0, 0]}
    for _, piece in spread(case.held, 1500, case.sizes.held_out_bytes):
        for part in measures.whole_spans([("p", piece)], (original, extended), 256):
            for name, base, tokenizer in (
                ("base", case.models.base, original),
                ("after", case.models.adapted, extended),
            ):
                value, size = bits(base.model, tokenizer, part.text, part.start)
                total[name][0] += value
                total[name][1] += size
    for name, (value, size) in total.items():
        assert rows[name]["bits_per_byte"] == pytest.approx(value / size, rel=1e-4)
        assert size == found["bytes"]
    assert rows["before"]["bits_per_byte"] != rows["after"]["bits_per_byte"]
    assert rows["after"]["tokens"] < rows["base"]["tokens"]
    again = measures.likelihood(case.models, case.held, case.sizes, 0)  # the learned rows are back in their places
    assert again == found == case.summary["likelihood"]


def test_divergence_compares_the_first_rows_and_the_learned_ones(case: Case) -> None:
    found = measures.divergence(case.models, case.held, case.sizes, 0)
    assert found["windows"] > 10 and found["before"]["kl_last"] != found["after"]["kl_last"]
    new = slice(case.models.extension.V, case.models.extension.V + case.models.extension.N)
    learned = case.models.adapted.input_rows[new].clone(), case.models.adapted.head_rows[new].clone()
    same = measures.divergence(replace(case.models, untrained=learned), case.held, case.sizes, 0)
    assert same["before"] == pytest.approx(found["after"], rel=1e-5)
    none = measures.divergence(case.models, [Text("a", "t", "0 1 2\n")], case.sizes, 0)
    assert none == {"windows": 0, "tokens": 0}


def test_a_context_holds_what_its_tokens_hold(case: Case) -> None:
    found = measures.packing(case.models, case.held)
    for name, tokenizer in (
        ("base", case.models.extension.original),
        ("after", case.models.extension.extended),
    ):
        tokens = sum(len(tokenizer(text.plain, add_special_tokens=False)["input_ids"]) for text in case.held)
        per_token = sum(len(text.plain) for text in case.held) / tokens
        assert found[name]["characters_per_token"] == pytest.approx(per_token)
        assert found[name]["context_characters"] == int(256 * per_token)


def test_both_models_continue_the_same_prompts(case: Case) -> None:
    settings = AdaptSettings(n=6, new_tokens=5, continuations=2)
    packed = measures.packing(case.models, case.held)
    found = measures.continuations(case.models, case.held, settings, packed)
    assert len(found["prompts"]) == found["batch"] == 2
    assert len({row["file"] for row in found["prompts"]}) == 2
    for row in found["prompts"]:
        assert row["base"]["new"] == 0 and row["base"]["tokens"] <= 5
        assert any(text.plain.startswith(row["prompt"]) for text in case.held)
    speed = found["speed"]
    for name in ("base", "after"):
        per_token = packed[name]["characters_per_token"]
        assert speed[name]["characters_per_second"] == pytest.approx(speed[name]["tokens_per_second"] * per_token)
        assert max(speed[name]["rounds"]) == pytest.approx(speed[name]["characters_per_second"])
    wanted = speed["after"]["characters_per_second"] / speed["base"]["characters_per_second"]
    assert speed["ratio"] == pytest.approx(wanted) and speed["ratios"] == sorted(speed["ratios"])


def test_short_texts_and_pairs_give_prompts_too(case: Case) -> None:
    short = [Text("a", "t", "def window_season(filter)")]
    [(name, prompt)] = measures._prompts(case.models, short, 6)
    assert name == "a" and 0 < len(prompt) < len(short[0].plain) and short[0].plain.startswith(prompt)


def test_the_passage_is_all_there(case: Case) -> None:
    found = measures.sample_cut(case.models.extension, case.held, 300)
    base, after = ("".join(text for text, _ in found[side]) for side in ("base", "after"))
    assert base == after and any(base in text.plain for text in case.held)
    assert not any(new for _, new in found["base"]) and any(new for _, new in found["after"])
    assert len(found["after"]) < len(found["base"])
