"""Windows, batches and the positions that are compared."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import N, V, texts, tokenizers
from training.phase1_parts import aligned, example_set

from vocabx_utils.training.batches import align_batch, epoch_batches, micro_batches
from vocabx_utils.training.examples import choose_windows, whole_texts
from vocabx_utils.training.objectives import ANCHORS
from vocabx_utils.vocabulary.alignment import align_ids


@pytest.mark.parametrize("window", [0, 8, 16])
def test_every_pair_is_at_or_after_the_divergence_and_has_equal_byte_ends(window: int) -> None:
    for example in example_set(window=window).examples:
        again = align_ids(tokenizers(), example.original_ids, example.ids)
        prefix = example.prefix_pairs
        assert np.array_equal(example.original_ids[:prefix], example.ids[:prefix])
        for anchor in ANCHORS:
            pairs, merged = example.pairs[anchor], example.merged[anchor]
            assert (pairs >= prefix).all()
            i, j = pairs.T
            same = example.original_ids[i] == example.ids[j]
            if anchor != "first":
                assert np.array_equal(again.original_ends[i], again.extended_ends[j])
                assert np.array_equal(same, ~merged)
            assert len(np.unique(j)) == len(j)
        assert example.n_bytes == again.extended_ends[-1] - again.extended_ends[0]
        assert example.n_original_bytes == again.original_ends[-1] - again.original_ends[0]


def test_windows_are_short_and_spread_over_the_tokens() -> None:
    chosen = choose_windows(aligned(), V, N, window=12, limit=20)
    assert 0 < len(chosen) <= 20
    assert max(len(e.ids) for e in chosen.examples) <= 13
    everything = whole_texts(aligned(), V, N, max_length=10_000).counts()
    assert ((chosen.counts() > 0) == (everything > 0)).all()
    again = choose_windows(aligned(), V, N, window=12, limit=20)
    assert again.fingerprint() == chosen.fingerprint()
    assert choose_windows(aligned(), V, N, window=12, limit=20, seed=1).fingerprint() != chosen.fingerprint()


def test_long_texts_are_cut_at_a_common_boundary_and_counted() -> None:
    cut = whole_texts(aligned(), V, N, max_length=20)
    assert max(max(len(e.ids), len(e.original_ids)) for e in cut.examples) <= 20
    assert cut.cut > 0
    for example in cut.examples:
        spelled = [
            tokenizers().original.decode(example.original_ids),
            tokenizers().extended.decode(example.ids),
        ]
        assert spelled[0] == spelled[1]
        assert texts()[example.source].startswith(spelled[0])


def test_texts_of_one_token_are_skipped() -> None:
    one = align_ids(tokenizers(), [65], [65])
    assert len(whole_texts([one, *aligned()], V, N)) == len(aligned())
    assert whole_texts([one], V, N).skipped == 1


def test_an_epoch_holds_every_example_once_and_can_be_repeated() -> None:
    examples = example_set()
    first = epoch_batches(examples, 5, seed=3, epoch=1)
    assert sorted([i for step in first for i in step]) == list(range(len(examples)))
    assert first == epoch_batches(examples, 5, seed=3, epoch=1)
    assert first != epoch_batches(examples, 5, seed=3, epoch=2)
    assert all(len(step) <= 5 for step in first)


def test_micro_batches_keep_the_budget() -> None:
    lengths = [5, 40, 7, 9, 100, 6]
    parts = list(micro_batches(lengths, [0, 1, 2, 3, 4, 5], 42))
    assert sorted([i for part in parts for i in part]) == [0, 1, 2, 3, 4, 5]
    for part in parts:
        assert len(part) == 1 or max(lengths[i] for i in part) * len(part) <= 42


def test_a_batch_holds_each_pair_and_target_once() -> None:
    examples = example_set()
    rows, total = [], 0
    for example in examples.examples:
        count = len(example.teacher_at())
        rows.append(np.arange(total, total + count))
        total += count
    for anchor in ANCHORS:
        batch = align_batch(examples, [3, 0, 7], anchor, rows)
        width = batch.ids.shape[1]
        compared = len(batch.teacher_rows)
        pairs = [(i, line, e) for line, i in enumerate([3, 0, 7]) for e in [examples.examples[i]]]
        assert compared == sum(len(e.pairs[anchor]) for _, _, e in pairs)
        want = [
            (rows[i][np.searchsorted(e.teacher_at(), a)], line * width + b)
            for i, line, e in pairs
            for a, b in e.pairs[anchor]
        ]
        assert list(zip(batch.teacher_rows.tolist(), batch.positions[:compared].tolist(), strict=True)) == want
        assert int((batch.targets >= 0).sum()) == sum(len(e.ids) - 1 for _, _, e in pairs)
        assert len(torch.unique(batch.positions)) == len(batch.positions)
        flat = batch.ids.reshape(-1)
        has = batch.targets >= 0
        assert torch.equal(flat[batch.positions[has] + 1], batch.targets[has])
        assert torch.equal(batch.new_at, torch.nonzero(flat >= V).squeeze(1))
        shared = [line * width + at for _, line, e in pairs for at in range(min(e.prefix_pairs, len(e.ids) - 1))]
        assert batch.before == len(shared) > 0 and batch.positions[-batch.before :].tolist() == shared
        again = align_batch(examples, [3, 0, 7], anchor, rows).to(torch.device("cpu"))  # what examples keep is the same
        assert vars(again).keys() == vars(batch).keys() and again.before == batch.before
        assert torch.equal(again.teacher_rows, batch.teacher_rows)


def test_inner_end_tokens_are_supervised_once_though_they_pad() -> None:
    """B50: pad and end are one id (0); masks come from lengths, so an inner end stays a target, on both sides."""
    ids = [70, 0, 71, 72, 0]
    both = [align_ids(tokenizers(), ids, ids), align_ids(tokenizers(), ids[:3], ids[:3])]
    batch = align_batch(whole_texts(both, V, N), [0, 1], None)
    assert int((batch.targets == 0).sum()) == 3
    assert int((batch.targets >= 0).sum()) == 4 + 2
