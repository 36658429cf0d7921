"""First values of the new rows.

Input rows: ``random``, ``mean``, ``first``, ``last``, ``align`` (Yamaguchi et al. 2024) and ``focus`` (Dobler & de
Melo 2023). Head rows: ``random``, ``mean``, ``first`` (the thesis). Rows are float32 on the CPU.

Shapes: V original ids, N new tokens, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor

from vocabx_utils.models import BaseModel

__all__ = ["HEAD_METHODS", "INPUT_METHODS", "SubtokenLike", "head_rows", "input_rows"]

InputMethod = Literal["random", "mean", "first", "last", "align", "focus"]
HeadMethod = Literal["random", "mean", "first"]
INPUT_METHODS: tuple[str, ...] = get_args(InputMethod)
HEAD_METHODS: tuple[str, ...] = get_args(HeadMethod)


class SubtokenLike(Protocol):
    """What this module needs of `vocabx_utils.vocabulary.tokens.NewToken`."""

    @property
    def id(self) -> int: ...

    @property
    def subtokens(self) -> tuple[int, ...]: ...


def input_rows(
    method: str,
    base: BaseModel,
    tokens: Sequence[SubtokenLike],
    generator: torch.Generator,
    *,
    aligned: Iterable[Any] | None = None,
    spell: Callable[[int], str] = str,
) -> Tensor:
    """Return first values of the new embedding rows.

    Args:
        method: one of `INPUT_METHODS`.
        base: the base model.
        tokens: the N new tokens, in order of id.
        generator: CPU generator; used by ``random`` and to seed ``focus``.
        aligned: texts under both tokenizers (`AlignedText`), needed by ``align`` and ``focus``.
        spell: the extended tokenizer's text of an id, for ``focus``.

    Returns:
        (N, D) float32.

    Raises:
        ValueError: unknown method, or a method that needs texts was given none.
    """
    if method not in INPUT_METHODS:
        raise ValueError(f"input rows {method!r}: expected one of {', '.join(INPUT_METHODS)}")
    matrix = base.input_rows[: base.vocab_size]
    if method in ("align", "focus"):
        if aligned is None:
            raise ValueError(f"input rows {method!r} are computed from texts: pass aligned=...")
        from vocabx_utils.vocabulary import auxiliary

        if method == "align":
            return auxiliary.align_rows(matrix, tokens, aligned)
        return auxiliary.focus_rows(matrix, tokens, aligned, spell, seed=generator.initial_seed() % 2**31)
    return _from_subtokens(method, matrix, tokens, generator)


def head_rows(method: str, base: BaseModel, tokens: Sequence[SubtokenLike], generator: torch.Generator) -> Tensor:
    """Return first values of the new head rows.

    ``first`` gives a new token the logit of its first subtoken, which the model already predicts at that place
    (thesis, section on the head).

    Args:
        method: one of `HEAD_METHODS`.
        base: the base model.
        tokens: the N new tokens, in order of id.
        generator: CPU generator for ``random``.

    Returns:
        (N, D) float32.

    Raises:
        ValueError: unknown method.
    """
    if method not in HEAD_METHODS:
        raise ValueError(f"head rows {method!r}: expected one of {', '.join(HEAD_METHODS)}")
    return _from_subtokens(method, base.head_rows[: base.vocab_size], tokens, generator)


def _from_subtokens(method: str, matrix: Tensor, tokens: Sequence[SubtokenLike], generator: torch.Generator) -> Tensor:
    if method == "random":
        return random_rows(matrix, len(tokens), generator)
    rows = torch.empty(len(tokens), matrix.shape[1])
    for place, token in enumerate(tokens):
        if not token.subtokens:
            raise ValueError(f"new token {token.id} has no subtokens under the original tokenizer")
        own = matrix[list(token.subtokens)].float().cpu()
        rows[place] = own.mean(0) if method == "mean" else own[0 if method == "first" else -1]
    return rows


def random_rows(matrix: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw rows from a normal distribution with the mean and standard deviation of all entries of a matrix.

    Args:
        matrix: (V, D) original rows, padding rows excluded.
        count: N.
        generator: CPU generator.

    Returns:
        (N, D) float32.
    """
    # float64: a float32 mean over 1e8 entries loses digits.
    mean, deviation = float(matrix.double().mean()), float(matrix.double().std())
    return torch.randn(count, matrix.shape[1], generator=generator) * deviation + mean
