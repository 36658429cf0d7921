"""How often an example is drawn so that all new tokens are seen about equally often.

A corpus shows some new tokens a thousand times and others twenty times, and each row learns from its own places.
Drawing examples instead of reading each once evens that out; an example of a rare token is then read several times.

Shapes: E examples, N new tokens.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vocabx_utils.training.examples import AlignedSet

_ROUNDS, _MOST = 200, 20.0  # of scaling; an example is drawn at most so many times as often as on average


def equal_shares(examples: AlignedSet) -> npt.NDArray[np.float64]:
    """Return the probability with which each example is drawn, (E,), by iterative scaling.

    Tokens without an example are left out of account. Where the examples do not allow equal counts, or only by drawing
    one of them again and again, what comes near is returned.
    """
    rows, tokens = [], []
    for row, example in enumerate(examples.examples):
        at = example.new_at(examples.vocab_size)
        rows += [row] * len(at)
        tokens += (example.ids[at] - examples.vocab_size).tolist()
    line, token = np.array(rows, np.int64), np.array(tokens, np.int64)
    held = np.bincount(line, minlength=len(examples))  # (E,) new tokens in each example
    shares = np.full(len(examples), 1.0 / len(examples))
    if not len(line):
        return shares
    for _ in range(_ROUNDS):
        counts = np.bincount(token, shares[line], minlength=examples.n_new)  # (N,) expected in one draw
        seen = counts > 0
        wanted = np.zeros_like(counts)
        wanted[seen] = np.sqrt(counts[seen].mean() / counts[seen])
        factor = np.bincount(line, wanted[token], minlength=len(examples)) / np.maximum(held, 1)
        shares = np.where(held > 0, shares * factor, shares)
        shares = np.minimum(shares / shares.sum(), _MOST / len(examples))
    return shares / shares.sum()
