"""Cuts inside new tokens, listed and measured one at a time in float64 beside the package."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from fixtures.alignment_tokenizers import LINES, make_tokenizer
from tiny import WIDTH, V, as_base, tiny_decoder

from vocabx_utils.intervals import ratio_interval
from vocabx_utils.student import Student
from vocabx_utils.training.prompt_cuts import Cut, choose_cuts, list_cuts, measure_cuts, summarize_cuts
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.spelling import spelling_of

PHRASES = (" naïve café", "):\n\treturn", "groupby y 🙂", "import numpy as")


@cache
def extension(family: str = "byte-level") -> Any:
    return add_tokens(make_tokenizer(family), PHRASES, "added")


@cache
def models() -> tuple[Any, Student]:
    base = as_base(tiny_decoder(V, initializer_range=0.3), make_tokenizer("byte-level"))
    generator = torch.Generator().manual_seed(2)
    rows = [0.5 * torch.randn(extension().N, WIDTH, generator=generator) for _ in range(2)]
    return base, Student(base.model, base.vocab_size, *rows)


def written_out(pair: Any, text: str) -> list[tuple[str, str, int]]:
    """Prompt, place and token at each character: where every phrase stands is found in the text itself."""
    found = []
    for characters in range(1, len(text)):
        place, token = "outside", -1
        for new in pair.tokens:
            start = text.find(new.text)
            while start >= 0:
                if start < characters <= start + len(new.text):
                    token = new.id
                    place = "end" if characters == start + len(new.text) else "inside"
                start = text.find(new.text, start + 1)
        found.append((text[:characters], place, token))
    return found


@pytest.mark.parametrize("family", ["byte-level", "digits", "nfc", "metaspace"])
def test_every_place_is_listed_with_the_token_around_it(family: str) -> None:
    pair = extension(family)
    lines = LINES[:4]
    cuts = list_cuts(pair, lines)
    wanted = [(number, *row) for number, text in enumerate(lines) for row in written_out(pair, text)]
    assert [(cut.text, cut.prompt, cut.place, cut.token) for cut in cuts] == wanted
    assert {cut.place for cut in cuts} == {"inside", "end", "outside"}
    raws = {t.id: t.raw for t in pair.tokens}
    assert all(raws[c.token][: c.depth] == c.prompt.encode()[-c.depth :] for c in cuts if c.token >= 0)


def test_long_prompts_begin_at_a_border_of_both() -> None:
    text = "".join(LINES)
    cuts, whole = list_cuts(extension(), [text], context=40), list_cuts(extension(), [text])
    borders, at = set(), 0
    for word in spelling_of(extension().extended).backend.encode(text).ids:
        borders.add(at)
        at += len(spelling_of(extension().extended).raws[word])
    for cut, full in zip(cuts, whole, strict=True):
        assert full.prompt.endswith(cut.prompt) and len(cut.prompt.encode()) <= 40
        assert len(full.prompt.encode()) - len(cut.prompt.encode()) in borders


@pytest.mark.parametrize("budget", [40, 4096])
def test_values_are_those_of_float64_one_prompt_at_a_time(budget: int) -> None:
    base, student = models()
    cuts = choose_cuts(list_cuts(extension(), LINES[:4]), 25, seed=3)
    found = measure_cuts(base, student, extension(), cuts, token_budget=budget)
    model, heads = base.model.double(), [base.head_rows[: base.vocab_size], student.head_rows.detach()]
    table = torch.cat([model.get_input_embeddings().weight[: base.vocab_size], student.input_rows.detach().double()])
    for cut, row in zip(cuts, found.to_dict("records"), strict=True):
        states = []
        for tokenizer in (extension().original, extension().extended):
            ids = torch.tensor(tokenizer.encode(cut.prompt, add_special_tokens=False))
            states.append(model.model(inputs_embeds=table[ids][None]).last_hidden_state[0, -1])
        log_p, log_q = (torch.log_softmax(state @ heads[0].double().T, -1) for state in states)
        assert row["kl"] == pytest.approx(float((log_p.exp() * (log_p - log_q)).sum()), rel=1e-3, abs=1e-5)
        full = torch.softmax(states[1] @ torch.cat(heads).double().T, -1)
        assert row["new_mass"] == pytest.approx(float(full[base.vocab_size :].sum()), rel=1e-3)
        assert (row["text"], row["place"], row["token"]) == (cut.text, cut.place, cut.token)
    base.model.float()
    means = summarize_cuts(found)
    for place in ("inside", "end", "outside"):
        few = found[found["place"] == place]
        assert means.loc[place, "cuts"] == len(few)
        assert means.loc[place, "kl"] == pytest.approx(few["kl"].mean())
        sums = few.groupby("text")["kl"]
        assert means.loc[place, "kl_low"] == pytest.approx(ratio_interval(sums.sum(), sums.size()).low)
    assert np.isnan(summarize_cuts(found[found["place"] == "end"]).loc["inside", "kl"])


def test_some_of_each_kind_are_drawn() -> None:
    cuts = [Cut(0, "x" * (k + 1), "inside" if k % 3 else "outside") for k in range(30)]
    few = choose_cuts(cuts, 4)
    assert [cut.place for cut in few].count("inside") == 4 == [cut.place for cut in few].count("outside")
    assert few == choose_cuts(cuts, 4) != choose_cuts(cuts, 4, seed=1)
    assert choose_cuts(cuts, 100) == cuts and [cuts.index(c) for c in few] == sorted(cuts.index(c) for c in few)
