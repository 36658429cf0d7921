"""Examples drawn so that new tokens are seen equally often."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tiny import N, V
from training.phase1_parts import example_set

from vocabx_utils.training.batches import epoch_batches
from vocabx_utils.training.examples import AlignedSet
from vocabx_utils.training.sampling import equal_shares


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
