"""Overlap between training pairs and benchmark problems, reported and filtered out.

A pair that repeats a problem makes its score meaningless (Code Alpaca has functions of 41 HumanEval problems,
CodeFeedback has HumanEval's `fibfib` in 85 rows).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vocabx_utils.corpus import Pair
from vocabx_utils.evaluation.benchmarks import Problem

_WORD = re.compile(r"\w+|[^\w\s]")
_DEFINED = re.compile(r"\bdef\s+(\w+)\s*\(")
_SHORTEST = 6  # problems with fewer words than this say nothing by themselves
# Names that many unrelated programs define; for these a shared name is no sign of a shared problem.
_COMMON_NAMES = frozenset(("add", "main", "function", "search", "solution", "solve", "task_func"))


@dataclass(frozen=True)
class Hit:
    """One training pair that shares text with one problem."""

    pair: int  # index of the pair
    task_id: str
    ngrams: int  # shared n-grams of words
    name: str  # the function of the problem that the answer of the pair defines, or `""`
    example: str  # one shared n-gram, as words


@dataclass(frozen=True)
class Report:
    """Overlap with one benchmark: all hits, and the sizes of both sides."""

    benchmark: str
    problems: int
    pairs: int
    hits: tuple[Hit, ...]

    @property
    def touched_pairs(self) -> frozenset[int]:
        """Indices of pairs that touch at least one problem."""
        return frozenset(hit.pair for hit in self.hits)

    def row(self) -> dict[str, object]:
        """Return as one row of a table how many problems a pair touches, or names, and how many pairs touch one."""
        return {
            "benchmark": self.benchmark,
            "problems": self.problems,
            "touched": len({hit.task_id for hit in self.hits}),
            "by function name": len({hit.task_id for hit in self.hits if hit.name}),
            "pairs": self.pairs,
            "pairs touched": len(self.touched_pairs),
        }


def words(text: str) -> list[str]:
    """Split a text into lower-case words and single punctuation signs; layout does not matter."""
    return _WORD.findall(text.lower())


def ngrams(tokens: Sequence[str], n: int) -> set[tuple[str, ...]]:
    """Return the set of n-grams; a text shorter than `n` (but not tiny) is one n-gram by itself."""
    if _SHORTEST <= len(tokens) < n:
        return {tuple(tokens)}
    return {tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)}


def overlap(pairs: Sequence[Pair], problems: Sequence[Problem], *, n: int = 13) -> Report:
    """Find pairs that share n-grams of words with the problems of one benchmark, or define their function.

    N-grams that occur in more than one problem (such as shared imports and standard sentences of the
    benchmark) do not count, and neither do names of everyday use.

    Args:
        n: words and punctuation signs of an n-gram (13 as in Brown et al. 2020), 2 or more.
    """
    if n < 2:
        raise ValueError(f"expected n of at least 2, got n={n}")
    index = _index(problems, n)
    lengths = sorted({len(gram) for gram in index})
    names = {problem.entry_point: problem.task_id for problem in problems}
    functions = {name: task for name, task in names.items() if len(name) > 3 and name not in _COMMON_NAMES}
    hits = []
    for number, pair in enumerate(pairs):
        found: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        for gram in _pair_ngrams(pair, lengths, index):
            found[index[gram]].append(gram)
        named = {functions[name]: name for name in _DEFINED.findall(pair.answer) if name in functions}
        for task in sorted(found.keys() | named.keys()):
            grams = found.get(task, [])
            example = " ".join(min(grams)) if grams else ""
            hits.append(Hit(number, task, len(grams), named.get(task, ""), example))
    benchmark = problems[0].benchmark if problems else ""
    return Report(benchmark, len(problems), len(pairs), tuple(hits))


def decontaminate(
    pairs: Sequence[Pair], benchmarks: Iterable[Sequence[Problem]], *, n: int = 13
) -> tuple[list[Pair], list[Report]]:
    """Drop every pair that touches a problem; return the pairs left, in order, and one report per benchmark."""
    reports = [overlap(pairs, problems, n=n) for problems in benchmarks]
    touched = frozenset().union(*(report.touched_pairs for report in reports))
    return [pair for number, pair in enumerate(pairs) if number not in touched], reports


def _index(problems: Sequence[Problem], n: int) -> dict[tuple[str, ...], str]:
    """Map each n-gram that is in one problem only to that problem."""
    owners: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for problem in problems:
        for text in (problem.prompt, problem.complete_prompt, problem.reference):
            for gram in ngrams(words(text), n):
                owners[gram].add(problem.task_id)
    return {gram: next(iter(tasks)) for gram, tasks in owners.items() if len(tasks) == 1}


def _pair_ngrams(pair: Pair, lengths: Iterable[int], index: Mapping[tuple[str, ...], str]) -> set[tuple[str, ...]]:
    found: set[tuple[str, ...]] = set()
    for text in (pair.query, pair.answer):
        tokens = words(text)
        for length in lengths:
            # zip over shifted copies makes the n-grams several times faster than slices
            grams = zip(*(tokens[i:] for i in range(length)), strict=False)
            found.update(gram for gram in grams if gram in index)
    return found
