"""The answers to the exercises of notebook 01, computed."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from vocabx_utils.models import load_tokenizer
from vocabx_utils.vocabulary.extend import add_tokens
from vocabx_utils.vocabulary.options import STRATEGIES, Strategy


@pytest.fixture(scope="module")
def smollm() -> PreTrainedTokenizerFast:
    return load_tokenizer("smollm2-135m")


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_exercise_1_both_spellings_need_one_id_each(smollm: PreTrainedTokenizerFast, strategy: Strategy) -> None:
    made = add_tokens(smollm, [" skipna", "skipna"], strategy)
    assert made.N == 2
    assert [len(token.subtokens) for token in made.tokens] == [2, 2]
    assert all(token.wanted for token in made.tokens)


@pytest.mark.parametrize(("strategy", "ids", "steps"), [("merges", 2, 1), ("added", 1, 0)])
def test_exercise_1_three_pieces_need_a_step_under_merges(
    smollm: PreTrainedTokenizerFast, strategy: Strategy, ids: int, steps: int
) -> None:
    made = add_tokens(smollm, ["isfinite"], strategy)
    assert (made.N, sum(not token.wanted for token in made.tokens)) == (ids, steps)


def test_exercise_2_a_merge_into_an_old_piece_changes_old_text() -> None:
    vocab = {"a": 0, "b": 1, "c": 2, "bc": 3, "abc": 4, "ab": 5}
    before = Tokenizer(models.BPE(vocab, [("b", "c"), ("a", "bc")]))
    layout = json.loads(before.to_str())
    layout["model"]["merges"].append(["a", "b"])
    after = Tokenizer.from_str(json.dumps(layout))
    assert before.encode("ab").tokens == ["a", "b"]
    assert after.encode("ab").ids == [vocab["ab"]]
    assert before.encode("abc").ids == after.encode("abc").ids
