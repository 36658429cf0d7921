"""First values of the new rows, float32 on the CPU.

Input rows: `random`, `mean`, `first` and `last` of a token's subtokens, and two that are learned from domain text:

* `align`: Yamaguchi, Villavicencio and Aletras, "How can we effectively expand the vocabulary of LLMs with 0.01GB of
  target language text?", 2024.
* `focus`: Dobler and de Melo, "FOCUS: effective embedding initialization for monolingual specialization of multilingual
  models", 2023.

Head rows: `random`, `mean`, `first` (the thesis).

Shapes: V original ids, N new tokens, D width.
"""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from vocabx_utils.models import BaseModel, freeze
from vocabx_utils.names import INPUT_METHODS
from vocabx_utils.rows import NewToken
from vocabx_utils.vocabulary.alignment import align_texts
from vocabx_utils.vocabulary.tokens import Extension

HeadMethod = Literal["random", "mean", "first"]
HEAD_METHODS: tuple[str, ...] = get_args(HeadMethod)


def first_rows(
    model: PreTrainedModel,
    extension: Extension,
    input_method: str = "mean",
    head_method: str = "first",
    *,
    texts: Sequence[str] = (),
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return first values of the rows of new tokens: those of the embedding and those of the head, each (N, D).

    Args:
        model: causal language model with the tokenizer that was extended.
        texts: of the domain, which `align` and `focus` need.

    Raises:
        ValueError: unknown method, or a method that needs texts was given none.

    Example:
        >>> from vocabx_utils import add_tokens
        >>> extension = add_tokens(tokenizer, [" groupby", " numpy"])
        >>> input_rows, head_rows = first_rows(model, extension)
        >>> subtokens = list(extension.tokens[0].subtokens)
        >>> bool((input_rows[0] == model.get_input_embeddings().weight[subtokens].mean(0)).all())
        True
    """
    base, generator = freeze(model, extension.original), torch.Generator().manual_seed(seed)
    aligned = align_texts(extension, texts) or None
    rows = input_rows(input_method, base, extension.tokens, generator, aligned=aligned, spell=extension.spell)
    return rows, head_rows(head_method, base, extension.tokens, generator)


def input_rows(
    method: str,
    base: BaseModel,
    tokens: Sequence[NewToken],
    generator: torch.Generator,
    *,
    aligned: Iterable[Any] | None = None,
    spell: Callable[[int], str] = str,
) -> Tensor:
    """Return first values of the new embedding rows, (N, D).

    Args:
        generator: of the CPU; used by `random` and to seed `focus`.
        aligned: texts under both tokenizers (`AlignedText`), needed by `align` and `focus`.
        spell: the extended tokenizer's text of an id, for `focus`.

    Raises:
        ValueError: unknown method, or a method that needs texts was given none.
    """
    if method not in INPUT_METHODS:
        raise ValueError(f"input rows {method!r}: expected one of {', '.join(INPUT_METHODS)}")
    matrix = base.input_rows[: base.vocab_size]  # (V, D)
    if method not in ("align", "focus"):
        return _from_subtokens(method, matrix, tokens, generator)
    if aligned is None:
        raise ValueError(f"input rows {method!r} are computed from texts: pass aligned=...")
    if method == "align":
        return align_rows(matrix, tokens, aligned)
    return _focus_rows(matrix, tokens, aligned, spell, generator.initial_seed() % 2**31)


def head_rows(method: str, base: BaseModel, tokens: Sequence[NewToken], generator: torch.Generator) -> Tensor:
    """Return first values of the new head rows, (N, D).

    `first` gives a new token the logit of its first subtoken, which the model already predicts at that place (thesis,
    section on the head). ValueError for a method that is not one of `HEAD_METHODS`.
    """
    if method not in HEAD_METHODS:
        raise ValueError(f"head rows {method!r}: expected one of {', '.join(HEAD_METHODS)}")
    return _from_subtokens(method, base.head_rows[: base.vocab_size], tokens, generator)


def _from_subtokens(method: str, matrix: Tensor, tokens: Sequence[NewToken], generator: torch.Generator) -> Tensor:
    if method == "random":
        # normal, with the mean and deviation of all entries; a float32 mean over 1e8 of them loses digits
        mean, deviation = float(matrix.double().mean()), float(matrix.double().std())
        return torch.randn(len(tokens), matrix.shape[1], generator=generator) * deviation + mean
    rows = torch.empty(len(tokens), matrix.shape[1])  # (N, D)
    for place, token in enumerate(tokens):
        if not token.subtokens:
            raise ValueError(f"new token {token.id} has no subtokens under the original tokenizer")
        own = matrix[list(token.subtokens)].float().cpu()  # (K, D)
        rows[place] = own.mean(0) if method == "mean" else own[0 if method == "first" else -1]
    return rows


def align_rows(matrix: Tensor, tokens: Sequence[NewToken], aligned: Iterable[Any]) -> Tensor:
    """Average the subtoken means of every tuple seen for a token, weighted by how often it was seen: (N, D).

    A token that no text holds falls back to the mean of its subtokens.
    """
    seen = original_tuples(aligned, min((token.id for token in tokens), default=0))
    rows = torch.empty(len(tokens), matrix.shape[1])  # (N, D)
    for place, token in enumerate(tokens):
        tuples = seen.get(token.id) or Counter({tuple(token.subtokens): 1})
        means = torch.stack([matrix[list(ids)].float().cpu().mean(0) for ids in tuples])  # (tuples, D)
        weights = torch.tensor(list(tuples.values()), dtype=torch.float32)
        rows[place] = (weights / weights.sum()) @ means
    return rows


def original_tuples(aligned: Iterable[Any], first_new_id: int) -> dict[int, Counter[tuple[int, ...]]]:
    """Count, for every new token, the tuples of original tokens that cover its bytes in the texts.

    With appended merges a token always covers its own subtokens; a token added to the tokenizer can cover several
    different tuples, and parts of its neighbours.
    """
    found: dict[int, Counter[tuple[int, ...]]] = {}
    for text in aligned:
        ids, ends = np.asarray(text.extended_ids), np.asarray(text.extended_ends)
        original, original_ends = np.asarray(text.original_ids), np.asarray(text.original_ends)
        for at in np.flatnonzero(ids >= first_new_id):
            start = ends[at - 1] if at else 0
            # every original token that overlaps the bytes (start, ends[at]]; specials have no bytes and fall out
            low = np.searchsorted(original_ends, start, side="right")
            high = np.searchsorted(original_ends, ends[at], side="left") + 1
            cover = tuple(int(i) for i in original[low:high])
            found.setdefault(int(ids[at]), Counter())[cover] += 1
    return found


def require_focus() -> None:
    """Raise a RuntimeError that names the packages that FOCUS needs, where they are missing."""
    missing = [name for name in ("gensim", "entmax") if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(f"focus needs {' and '.join(missing)}: pip install {' '.join(missing)}")


def _focus_rows(
    matrix: Tensor, tokens: Sequence[NewToken], aligned: Iterable[Any], spell: Callable[[int], str], seed: int
) -> Tensor:
    """Combine original rows by sparsemax weights over similarities of auxiliary vectors: (N, D).

    The auxiliary vectors are FastText's, trained on the domain text under the extended tokenizer; original tokens that
    occur in that text are the overlap. FastText uses character n-grams of what `spell` gives; with `str`, the digits
    of the id, they are switched off. Four things are ours and not the authors' (their package `deepfocus`), because
    our texts are far smaller than theirs: skip-gram instead of CBOW, five negative samples instead of ten, tokens from
    their first occurrence on instead of their tenth, and the mean of the subtokens, where they draw from a normal
    distribution, for a token without an auxiliary vector.
    """
    require_focus()
    from entmax import sparsemax
    from gensim.models import FastText

    first_new = min((token.id for token in tokens), default=0)
    texts = [[int(i) for i in text.extended_ids] for text in aligned]
    names = {i: spell(i) for i in sorted({i for ids in texts for i in ids})}
    vectors = FastText(
        [[names[i] for i in ids] for ids in texts],
        vector_size=100, window=5, min_count=1, epochs=3, sg=1, workers=1, seed=seed, max_n=0 if spell is str else 6,
    ).wv  # fmt: skip
    known = [i for i in names if i < first_new]
    if not known:
        raise ValueError("no original token occurs in the texts, so there is nothing to combine")
    overlap = torch.nn.functional.normalize(torch.tensor(vectors[[names[i] for i in known]]), dim=1)  # (known, 100)
    sources = matrix[known].float().cpu()  # (known, D)
    rows = torch.empty(len(tokens), matrix.shape[1])  # (N, D)
    for place, token in enumerate(tokens):
        if token.id not in names:
            rows[place] = matrix[list(token.subtokens)].float().cpu().mean(0)
            continue
        vector = torch.nn.functional.normalize(torch.tensor(vectors[names[token.id]]), dim=0)
        rows[place] = sparsemax(overlap @ vector, dim=0) @ sources
    return rows
