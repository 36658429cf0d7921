"""First values of input rows that are learned from domain text: Align and FOCUS.

* Align: Yamaguchi, Villavicencio and Aletras, "How can we effectively expand the vocabulary of LLMs with 0.01GB
  of target language text?", 2024.
* FOCUS: Dobler and de Melo, "FOCUS: effective embedding initialization for monolingual specialization of
  multilingual models", 2023.

Shapes: V original ids, N new tokens, D width.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["align_rows", "focus_rows", "original_tuples", "require_focus"]


def original_tuples(aligned: Iterable[Any], first_new_id: int) -> dict[int, Counter[tuple[int, ...]]]:
    """Count, for every new token, the tuples of original tokens that cover its bytes in the texts.

    Args:
        aligned: texts with ``original_ids``, ``extended_ids`` and the byte ends of both.
        first_new_id: V.

    Returns:
        Counts by new id. With appended merges a token always covers its own subtokens; a token added to the
        tokenizer can cover several different tuples, and parts of its neighbours.
    """
    found: dict[int, Counter[tuple[int, ...]]] = {}
    for text in aligned:
        ids, ends = np.asarray(text.extended_ids), np.asarray(text.extended_ends)
        original_ends = np.asarray(text.original_ends)
        original = np.asarray(text.original_ids)
        for at in np.flatnonzero(ids >= first_new_id):
            start = ends[at - 1] if at else 0
            # every original token that overlaps the bytes (start, ends[at]]; specials have no bytes and fall out
            low = np.searchsorted(original_ends, start, side="right")
            high = np.searchsorted(original_ends, ends[at], side="left") + 1
            cover = tuple(int(i) for i in original[low:high])
            found.setdefault(int(ids[at]), Counter())[cover] += 1
    return found


def align_rows(matrix: Tensor, tokens: Sequence[Any], aligned: Iterable[Any]) -> Tensor:
    """Average the subtoken means of every tuple seen for a token, weighted by how often it was seen.

    Args:
        matrix: (V, D) original embedding rows.
        tokens: the N new tokens; one that no text holds falls back to the mean of its subtokens.
        aligned: texts under both tokenizers.

    Returns:
        (N, D) float32.
    """
    seen = original_tuples(aligned, min((token.id for token in tokens), default=0))
    rows = torch.empty(len(tokens), matrix.shape[1])
    for place, token in enumerate(tokens):
        tuples = seen.get(token.id) or Counter({tuple(token.subtokens): 1})
        means = torch.stack([matrix[list(ids)].float().cpu().mean(0) for ids in tuples])
        weights = torch.tensor(list(tuples.values()), dtype=torch.float32)
        rows[place] = (weights / weights.sum()) @ means
    return rows


def require_focus() -> None:
    """Refuse to begin where the packages that FOCUS needs are missing.

    Raises:
        RuntimeError: names them.
    """
    missing = [name for name in ("gensim", "entmax") if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(f"focus needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def focus_rows(
    matrix: Tensor,
    tokens: Sequence[Any],
    aligned: Iterable[Any],
    spell: Callable[[int], str] = str,
    *,
    seed: int,
    width: int = 100,
    epochs: int = 3,
) -> Tensor:
    """Combine original rows by sparsemax weights over similarities in an auxiliary embedding.

    The auxiliary embedding is FastText trained on the domain text under the extended tokenizer; original tokens
    that occur in that text are the overlap. Four things are ours and not the authors' (their package `deepfocus`),
    because our texts are far smaller than theirs: skip-gram instead of CBOW, five negative samples instead of ten,
    tokens from their first occurrence on instead of their tenth, and the mean of the subtokens, where they draw from a
    normal distribution, for a token without an auxiliary vector.

    Args:
        matrix: (V, D) original embedding rows.
        tokens: the N new tokens; one without an auxiliary vector falls back to the mean of its subtokens.
        aligned: texts under both tokenizers.
        spell: gives the token of an id as text, whose character n-grams FastText uses; with the default, the
            digits of the id, n-grams are switched off.
        seed: of FastText.
        width: of the auxiliary embedding.
        epochs: passes of FastText over the text.

    Returns:
        (N, D) float32.

    Raises:
        RuntimeError: gensim or entmax is not installed.
    """
    require_focus()
    from entmax import sparsemax
    from gensim.models import FastText

    first_new = min((token.id for token in tokens), default=0)
    texts = [[int(i) for i in text.extended_ids] for text in aligned]
    names = {i: spell(i) for i in sorted({i for ids in texts for i in ids})}
    auxiliary = FastText(
        [[names[i] for i in ids] for ids in texts],
        vector_size=width, window=5, min_count=1, epochs=epochs, sg=1, workers=1, seed=seed,
        max_n=0 if spell is str else 6,
    ).wv  # fmt: skip
    known = [i for i in names if i < first_new]
    if not known:
        raise ValueError("no original token occurs in the texts, so there is nothing to combine")
    overlap = torch.nn.functional.normalize(torch.tensor(auxiliary[[names[i] for i in known]]), dim=1)
    sources = matrix[known].float().cpu()
    rows = torch.empty(len(tokens), matrix.shape[1])
    for place, token in enumerate(tokens):
        if token.id not in names:
            rows[place] = matrix[list(token.subtokens)].float().cpu().mean(0)
            continue
        vector = torch.nn.functional.normalize(torch.tensor(auxiliary[names[token.id]]), dim=0)
        rows[place] = sparsemax(overlap @ vector, dim=0) @ sources
    return rows
