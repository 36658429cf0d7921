"""First values of the new rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny import WIDTH, N, Token, V, new_tokens, tiny_model, tokenizers
from training.phase1_parts import aligned

from vocabx_utils.names import INPUT_METHODS
from vocabx_utils.vocabulary.initialization import (
    HEAD_METHODS,
    align_rows,
    head_rows,
    input_rows,
    original_tuples,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("method", ["mean", "first", "last"])
def test_subtoken_methods(method: str) -> None:
    base = tiny_model()
    rows = input_rows(method, base, new_tokens(), generator())
    matrix = base.input_rows.double().numpy()
    for row, token in zip(rows.numpy(), new_tokens(), strict=True):
        own = matrix[list(token.subtokens)]
        want = {"mean": own.mean(0), "first": own[0], "last": own[-1]}[method]
        np.testing.assert_allclose(row, want, rtol=1e-5, atol=1e-7)


def test_the_head_starts_from_its_own_matrix() -> None:
    base = tiny_model()
    rows = head_rows("first", base, new_tokens(), generator())
    firsts = [token.subtokens[0] for token in new_tokens()]
    assert torch.equal(rows, base.head_rows[firsts])
    assert not torch.equal(rows, base.input_rows[firsts])


def test_random_rows_have_the_spread_of_the_original_ones_and_ignore_padding_rows() -> None:
    base = tiny_model()
    with torch.no_grad():
        base.input_rows[V:] = 1e6
    many = [Token(V + i, (1, 2)) for i in range(2000)]
    rows = input_rows("random", base, many, generator())
    original = base.input_rows[:V]
    assert float(rows.std()) == pytest.approx(float(original.std()), rel=0.03)
    assert float(rows.mean()) == pytest.approx(float(original.mean()), abs=0.01)
    assert torch.equal(rows, input_rows("random", base, many, generator()))
    assert not torch.equal(rows, input_rows("random", base, many, generator(1)))


def test_align_equals_mean_where_every_token_covers_its_own_subtokens() -> None:
    base = tiny_model()
    rows = align_rows(base.input_rows, new_tokens(), aligned())
    torch.testing.assert_close(rows, input_rows("mean", base, new_tokens(), generator()))


def test_align_weighs_tuples_by_how_often_they_were_seen() -> None:
    class Text:
        def __init__(self, original: list[int], ends: list[int]) -> None:
            self.original_ids, self.original_ends = np.array(original), np.array(ends)
            self.extended_ids, self.extended_ends = np.array([5, V]), np.array([1, 5])

    split, other = Text([5, 7, 8], [1, 3, 5]), Text([5, 9], [1, 5])
    seen = original_tuples([split, split, split, other], V)
    assert seen == {V: {(7, 8): 3, (9,): 1}}
    matrix = tiny_model().input_rows
    want = 0.75 * (matrix[7] + matrix[8]) / 2 + 0.25 * matrix[9]
    torch.testing.assert_close(align_rows(matrix, [Token(V, (7, 8))], [split, split, split, other])[0], want)


def test_focus_combines_original_rows_and_repeats() -> None:
    pytest.importorskip("gensim")
    pytest.importorskip("entmax")
    base = tiny_model()
    spell = tokenizers().extended.convert_ids_to_tokens
    rows = input_rows("focus", base, new_tokens(), generator(), aligned=aligned(), spell=spell)
    assert rows.shape == (N, WIDTH)
    assert torch.equal(rows, input_rows("focus", base, new_tokens(), generator(), aligned=aligned(), spell=spell))
    # sparsemax weights are a convex combination, so no row can leave the range of the original ones
    assert (rows >= base.input_rows[:V].min(0).values - 1e-5).all()
    assert (rows <= base.input_rows[:V].max(0).values + 1e-5).all()


def test_unknown_methods_and_missing_texts_are_refused() -> None:
    base = tiny_model()
    with pytest.raises(ValueError, match="expected one of"):
        input_rows("median", base, new_tokens(), generator())
    with pytest.raises(ValueError, match="expected one of"):
        head_rows("last", base, new_tokens(), generator())
    with pytest.raises(ValueError, match="aligned"):
        input_rows("align", base, new_tokens(), generator())
    assert set(HEAD_METHODS) <= set(INPUT_METHODS)
