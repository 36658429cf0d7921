"""Batches: every example once or as often as wanted, little padding, targets from lengths."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import N, V, chat_tokenizer, rendered_pairs
from training.phase1_parts import example_set

from vocabx_utils.corpus import Rendered
from vocabx_utils.training.batches import collate, epoch_batches, equal_shares, padding_share, plan_epoch
from vocabx_utils.training.cross_entropy import IGNORE
from vocabx_utils.training.examples import AlignedSet, Example, ExampleSet, encode


def examples_of(lengths: list[int]) -> list[Example]:
    return [Example(np.arange(length, dtype=np.int64), 1) for length in lengths]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(2, 300), min_size=1, max_size=80),
    per_step=st.integers(50, 2000),
    world=st.integers(1, 4),
    seed=st.integers(0, 9),
)
def test_every_example_once_within_budget_and_padding(lengths, per_step, world, seed):
    examples = examples_of(lengths)
    plan = plan_epoch(examples, tokens_per_step=per_step, tokens_per_batch=320, world=world, seed=seed)
    seen = [number for step in plan for batch in step.batches for number in batch]
    assert sorted(seen) == list(range(len(lengths)))
    for step in plan:
        assert step.targets == sum(examples[k].targets for batch in step.batches for k in batch)
        for batch in step.batches:
            widest = max(lengths[k] for k in batch)
            assert -(-len(batch) // world) * widest <= 320
    assert padding_share(plan, examples) <= 0.04


def test_steps_do_not_depend_on_processes_or_memory():
    examples = examples_of(np.random.default_rng(0).integers(5, 90, 200).tolist())
    plans = [
        plan_epoch(examples, tokens_per_step=500, tokens_per_batch=budget, world=world, seed=3)
        for budget, world in ((100, 1), (1000, 1), (100, 4))
    ]
    members = [[sorted(k for batch in step.batches for k in batch) for step in plan] for plan in plans]
    assert members[0] == members[1] == members[2]
    sizes = [sum(len(examples[k].ids) for k in step) for step in members[0]]
    assert max(sizes) < 1.5 * min(sizes)


def test_epochs_differ_and_repeat_by_seed():
    examples = examples_of(list(range(5, 60)))
    plans = [plan_epoch(examples, tokens_per_step=200, tokens_per_batch=200, seed=s) for s in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]


def test_text_longer_than_a_batch_is_refused():
    with pytest.raises(ValueError, match="tokens_per_batch=50"):
        plan_epoch(examples_of([60]), tokens_per_step=100, tokens_per_batch=50)


def test_end_of_text_is_learned_once_where_pad_is_eos():
    tokenizer = chat_tokenizer()
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    eos = tokenizer.eos_token_id
    coded = encode(["ab<eos>cd<eos>", "a<eos>"], tokenizer, max_length=64).examples
    _ids, targets = collate(coded, (0, 1))
    assert (targets[0] == eos).sum() == 2  # the inner one and the end
    assert (targets[1] == eos).sum() == 1
    length = len(coded[1].ids)
    assert targets[1, length - 1 :].eq(IGNORE).all()
    assert targets[1, length - 2] == eos


def test_answer_only_starts_at_the_first_byte_of_the_answer():
    tokenizer = chat_tokenizer()
    for text in rendered_pairs(tokenizer):
        coded = encode([text], tokenizer, max_length=500, loss_on="answer").examples[0]
        learned = tokenizer.decode(coded.ids[coded.first_target :])
        assert learned == text.text[text.answer_start :]
        whole = encode([text], tokenizer, max_length=500, loss_on="all").examples[0]
        assert whole.first_target == 1 and np.array_equal(whole.ids, coded.ids)


def test_multibyte_answer_boundary():
    tokenizer = chat_tokenizer()
    text = Rendered("é🙂 q🙂é!", 3)  # the answer begins at "q"
    coded = encode([text], tokenizer, max_length=99, loss_on="answer").examples[0]
    assert tokenizer.decode(coded.ids[coded.first_target :]).endswith("q🙂é!")


def test_text_cut_before_its_answer_is_skipped_and_counted():
    tokenizer = chat_tokenizer()
    given_texts = rendered_pairs(tokenizer, 3)
    short = Rendered("q a", 2)
    coded = encode([*given_texts, short, "x", ""], tokenizer, max_length=8, loss_on="answer")
    assert (len(coded.examples), coded.skipped, coded.cut) == (1, 5, 3)
    with pytest.raises(ValueError, match="none of 3 texts"):
        encode(given_texts, tokenizer, max_length=8, loss_on="answer")


def test_processes_share_a_batch_without_loss():
    examples = examples_of([9, 8, 8, 7, 5])
    whole_ids, whole_targets = collate(examples, range(5))
    parts = [collate(examples, range(5), rank=rank, world=2) for rank in range(2)]
    assert parts[0][0].shape == parts[1][0].shape == (3, 9)
    assert torch.equal(parts[0][0], whole_ids[0::2])
    assert torch.equal(parts[1][0][:2], whole_ids[1::2])
    assert parts[1][1][2].eq(IGNORE).all()
    assert torch.equal(parts[0][1], whole_targets[0::2])


def test_occurrences():
    coded = encode(["abcabc", "ab"], chat_tokenizer(), max_length=64)
    first = int(coded.examples[0].ids[0])
    assert coded.occurrences(first, 1)[0] == sum((e.ids == first).sum() for e in coded.examples)
    by_hand = ExampleSet(tuple(Example(np.array(ids)) for ids in ([5, 7, 5], [6, 7], [5])))
    assert by_hand.occurrences(5, 3).tolist() == [3, 1, 2]
    assert by_hand.occurrences(5, 3, followed=True).tolist() == [1, 1, 1]


# --- drawn so that new tokens are seen equally often


def held(examples: AlignedSet) -> np.ndarray:
    """(E, N) how often each example holds each new token."""
    return np.array([np.bincount(e.ids[e.ids >= V] - V, minlength=N) for e in examples.examples])


def test_expected_counts_are_nearly_equal() -> None:
    examples = example_set(window=8)
    before, shares = held(examples).mean(0), equal_shares(examples)
    after = shares @ held(examples)
    assert shares.min() > 0 and abs(shares.sum() - 1) < 1e-12
    seen = before > 0
    assert before[seen].max() / before[seen].min() > 3 * after[seen].max() / after[seen].min()


def test_no_example_is_drawn_again_and_again() -> None:
    """One example of a rare token among three hundred of another would be half of all draws."""
    one = example_set(0, 1).examples[0]
    rare, common = (replace(one, ids=np.array([5, V + token, 6])) for token in (0, 1))
    shares = equal_shares(AlignedSet((rare, *[common] * 300), vocab_size=V, n_new=N))
    assert 10 < shares[0] * 301 < 25 and np.ptp(shares[1:]) < 1e-12


def test_without_new_tokens_all_are_alike() -> None:
    examples = example_set(0, 4)
    plain = AlignedSet(tuple(replace(e, ids=e.ids % V) for e in examples.examples), vocab_size=V, n_new=N)
    assert equal_shares(plain).tolist() == [0.25] * 4


def test_draws_follow_the_shares_and_repeat_by_seed() -> None:
    examples = example_set()
    shares = np.arange(1.0, len(examples) + 1)
    shares /= shares.sum()
    drawn = [
        np.concatenate(epoch_batches(examples, 4, seed=seed, epoch=epoch, shares=shares))
        for seed, epoch in ((0, 1), (0, 1), (0, 2), (1, 1))
    ]
    assert np.array_equal(drawn[0], drawn[1]) and not np.array_equal(drawn[0], drawn[2])
    for found in drawn:
        counts = np.bincount(found, minlength=len(examples))
        assert counts.sum() == len(examples)
        assert np.abs(counts - shares * len(examples)).max() < 1
    assert sorted(np.concatenate(epoch_batches(examples, 4, seed=0, epoch=1))) == list(range(len(examples)))
