"""Which learned phrases become tokens: those that the finished tokenizer really produces often enough.

A finished tokenizer reads text otherwise than the learner does. A piece that crosses words is an added token: it is cut
out of a text before anything else reads it, the leftmost first and the longest of those that begin at one place, and
it may cut a word behind it (` = None` inside ` = NoneType`). A piece that stays inside a word is an appended merge of
what is left. So the tokenizer is built, the corpus is encoded and counted again, what falls short is dropped, and the
places are filled with further pieces, until nothing changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from vocabx_utils.vocabulary import surgery
from vocabx_utils.vocabulary.encoding import encode_each
from vocabx_utils.vocabulary.mergeplan import MergePlan, plan_merges
from vocabx_utils.vocabulary.options import TokenOptions
from vocabx_utils.vocabulary.phrases import PhraseLearner
from vocabx_utils.vocabulary.spelling import IntArray, Spelling
from vocabx_utils.vocabulary.tokens import Proposal


def crosses_words(spelling: Spelling, text: str) -> bool:
    """Tell whether the original pre-tokenizer cuts a text, so that no merge could make it one token."""
    return len(spelling.split(text)) > 1


def phrase_layout(spelling: Spelling, plan: MergePlan, phrases: Mapping[str, bool]) -> dict[str, Any]:
    """Layout with the pieces of a plan at ids V, V + 1, … and added tokens behind them.

    Args:
        plan: pieces that stay inside a word, and their merges.
        phrases: each text that crosses words, and whether it may match only where it is a whole word.
    """
    base = surgery.merged_layout(spelling, list(plan.subtokens), list(plan.merges))
    return surgery.added_layout(spelling, phrases, base)


def choose_phrases(learner: PhraseLearner, n: int, options: TokenOptions) -> list[Proposal]:
    """Choose up to `n` tokens, in order of birth.

    Args:
        learner: of the corpus; it goes on learning as far as is needed, and can be used again.
        n: tokens wanted, steps of merges included unless `count_steps` is off.
        options: the learner's own, with another `exclude` at most.
    """
    choice = _Choice(learner, options)
    while True:
        choice.fill(n)
        proposals = choice.recount()
        weak = choice.weak()
        if not weak:
            return proposals
        choice.drop(weak)


class _Choice:
    """Pieces chosen so far, while the learner's merges are looked through one after the other."""

    def __init__(self, learner: PhraseLearner, options: TokenOptions) -> None:
        self.learner, self.options, self.spelling = learner, options, learner.spelling
        self.barred = options.barred(self.spelling)
        self.shown: dict[int, int] = {}  # of each piece looked at: how often it stood after the last merge looked at
        self.fit: dict[int, bool] = {}
        self.waiting: set[int] = set()  # fit and often enough, but not chosen yet
        self.kept: set[int] = set()
        self.texts: set[bytes] = set()  # bytes that are waiting, kept or dropped: other parents may make the same
        self.counts: dict[int, int] = {}  # of the finished tokenizer, by id of the learner
        self.files: dict[int, int] = {}

    # --- which pieces ---

    def fill(self, n: int) -> None:
        """Take further pieces until `n` are there, or the corpus has no more."""
        while True:
            for piece in sorted(self.waiting):
                if self._size({*self.kept, piece}) <= n:
                    self.kept.add(piece)
                    self.waiting.discard(piece)
            if self._size(self.kept) >= n or not self._look(n - self._size(self.kept)):
                return

    def drop(self, pieces: set[int]) -> None:
        """Give pieces up for good; one that a longer piece is made of stays as its step."""
        self.kept -= pieces

    def weak(self) -> set[int]:
        """Pieces that the finished tokenizer makes too rarely, or in too few texts."""
        least, files = self.options.min_count, self.options.min_files
        return {i for i in self.kept if self.counts[i] < least or self.files[i] < files}

    def _size(self, pieces: set[int]) -> int:
        return len(self._with_steps(pieces) if self.options.count_steps else pieces)

    def _with_steps(self, pieces: set[int]) -> set[int]:
        inside = [i for i in pieces if not self._crosses(i)]
        return pieces.union(*(self.learner.new_ids_within(i) for i in inside))

    def _look(self, places: int) -> bool:
        """Look at further merges until so many pieces wait; False if there is none left."""
        learner, least = self.learner, self.options.min_count
        while len(self.waiting) < places:
            number = len(self.shown)
            if number == len(learner.parents) and not learner.step():
                return bool(self.waiting)
            new, born = learner.V + number, learner.born[number]
            self.shown[new] = born
            for part in learner.parents[number]:
                if part in self.shown:
                    self.shown[part] -= born
                    if self.shown[part] < least:
                        self.waiting.discard(part)
            raw = learner.raws[new]
            if raw not in self.texts and self._fits(new):
                self.texts.add(raw)
                self.waiting.add(new)
        return True

    def _crosses(self, piece: int) -> bool:
        return crosses_words(self.spelling, self.learner.raws[piece].decode("utf-8", "replace"))

    def _fits(self, piece: int) -> bool:
        if piece not in self.fit:
            self.fit[piece] = self._judge(piece)
        return self.fit[piece]

    def _judge(self, piece: int) -> bool:
        """Whether a piece may become a token: whole characters, new, and not left out."""
        spelling, options, raw = self.spelling, self.options, self.learner.raws[piece]
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return False
        if raw in self.barred or (text.isspace() and not options.keep_whitespace):
            return False
        if text in spelling.vocab or spelling.piece(text) in spelling.vocab or spelling.normalise(text) != text:
            return False
        if crosses_words(spelling, text):
            return len(raw) <= options.max_phrase_bytes and not spelling.inside_a_token(text)
        steps = self.learner.new_ids_within(piece)[:-1]
        return options.mix_words and len(raw) <= options.max_bytes and all(map(self._fits, steps))

    # --- what the finished tokenizer makes of them ---

    def recount(self) -> list[Proposal]:
        """Build the tokenizer, count its tokens in the corpus, and return them as proposals."""
        chosen = sorted(self._with_steps(self.kept))
        proposals = [self._proposal(i, rank) for rank, i in enumerate(chosen)]
        plan = plan_merges(self.spelling, [p for p in proposals if p.merge], [])
        phrases = {p.text: False for p in proposals if not p.merge}
        layout = phrase_layout(self.spelling, plan, phrases)
        counts, files = _count(layout, self.learner.texts, self.spelling)
        order = [*map(self.spelling.raw, plan.subtokens), *(t.encode() for t in phrases)]
        at = {raw: k for k, raw in enumerate(order)}
        for piece, proposal in zip(chosen, proposals, strict=True):
            place = at[proposal.raw]
            self.counts[piece], self.files[piece] = int(counts[place]), int(files[place])
        return [self._proposal(i, rank) for rank, i in enumerate(chosen)]

    def _proposal(self, piece: int, rank: int) -> Proposal:
        learner, raw, count = self.learner, self.learner.raws[piece], self.counts.get(piece, 0)
        text = raw.decode()
        if self._crosses(piece):
            return Proposal(text, raw, count, self.spelling.subtokens(text), rank)
        left, right = learner.parents[piece - learner.V]
        return Proposal(text, raw, count, learner.parts(piece), rank, (learner.pieces[left], learner.pieces[right]))


def _count(layout: dict[str, Any], texts: Sequence[str], spelling: Spelling) -> tuple[IntArray, IntArray]:
    """How often each new token occurs, and in how many texts, (N,) each."""
    built = Tokenizer.from_str(json.dumps(layout))
    V = spelling.first_free_id
    counts = np.zeros(built.get_vocab_size() + V, dtype=np.int64)  # gaps among old ids make it longer than needed
    files = np.zeros_like(counts)
    for ids in encode_each(built, texts):
        new = np.asarray(ids, dtype=np.int64) - V
        found, often = np.unique(new[new >= 0], return_counts=True)
        counts[found] += often
        files[found] += 1
    return counts, files
