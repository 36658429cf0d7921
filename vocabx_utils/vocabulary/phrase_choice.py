"""Which learned phrases become tokens: those that the finished tokenizer really produces often enough.

A finished tokenizer reads text otherwise than the learner does. A piece that crosses words is an added token: it is cut
out of a text before anything else reads it, the leftmost first and the longest of those that begin at one place, and
it may cut an old token (` = None` inside ` = NoneType`). A piece that stays inside a word is an appended merge of what
is left. So the tokenizer is built, the corpus is encoded and counted again, what falls short is dropped, and the places
are filled with further pieces, until nothing changes. A phrase that cuts old tokens too often is dropped as well: `, `
with its space would win nothing where it takes the space of the next word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
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
    wanted = n + n // 3  # some will fall short; of what is left over, those stay that save most
    while True:
        choice.fill(wanted)
        choice.recount()
        weak = choice.weak()
        choice.kept -= weak  # for good; one that a longer piece is made of stays as its step
        if not choice.trim(n) and not weak:
            return choice.proposals()
        wanted = n + len(weak) // 2


class _Choice:
    """Pieces chosen so far, while the learner's merges are looked through one after the other."""

    def __init__(self, learner: PhraseLearner, options: TokenOptions) -> None:
        self.learner, self.options, self.spelling = learner, options, learner.spelling
        self.barred = options.barred(self.spelling)
        self.borders = _Borders(learner.texts, self.spelling)
        self.shown: dict[int, int] = {}  # of each piece looked at: how often it stood after the last merge looked at
        self.waiting: set[int] = set()  # may become tokens, stand often enough, but are not chosen yet
        self.kept: set[int] = set()
        self.seen: set[bytes] = set()  # of all that ever waited: other parents may make the same bytes
        # of the finished tokenizer: occurrences, texts with one, occurrences that cut no old token
        self.counts: dict[bytes, tuple[int, int, int]] = {}
        self.fits = cache(self._fits)  # for each piece once
        self.crosses = cache(self._crosses)
        self.subtokens = cache(self._subtokens)

    def fill(self, n: int) -> None:
        """Take further pieces until `n` are there, or the corpus has no more."""
        have, more = self._counted(self.kept), True
        while True:
            for piece in sorted(self.waiting):
                if len(have) < n and len(larger := have | self._counted({piece})) <= n:
                    self.kept.add(piece)
                    self.waiting.discard(piece)
                    have = larger
            if len(have) >= n or not more:
                return
            more = self._look(n - len(have))

    def weak(self) -> set[int]:
        """Pieces that the finished tokenizer makes too rarely, in too few texts, or too often across old tokens."""
        least, files, cut = self.options.min_count, self.options.min_files, self.options.max_cut
        rows = ((i, *self.counts[self.learner.raws[i]]) for i in self.kept)
        return {i for i, count, texts, clean in rows if clean < max(least, (1 - cut) * count) or texts < files}

    def trim(self, n: int) -> bool:
        """Put pieces back until `n` are left, those that save the fewest tokens first; False if there are no more."""
        before = len(self.kept)
        while (surplus := len(self._counted(self.kept)) - n) > 0:
            worst = sorted(self.kept, key=lambda i: (self._saved(i), -i))[:surplus]
            self.kept.difference_update(worst)
            self.waiting.update(worst)
        return len(self.kept) < before

    def proposals(self) -> list[Proposal]:
        """Return what is kept and the steps towards it, in order of birth."""
        return [self._proposal(i, rank) for rank, i in enumerate(sorted(self._with_steps(self.kept)))]

    def recount(self) -> None:
        """Build the tokenizer and count its tokens in the corpus."""
        proposals = self.proposals()
        plan = plan_merges(self.spelling, [p for p in proposals if p.merge], [])
        phrases = {p.text: False for p in proposals if not p.merge}
        built = Tokenizer.from_str(json.dumps(phrase_layout(self.spelling, plan, phrases)))
        order = [*map(self.spelling.raw, plan.subtokens), *(t.encode() for t in phrases)]
        counts = map(tuple, self.borders.counts(built, order).tolist())
        self.counts = dict(zip(order, counts, strict=True))

    # --- the pieces ---

    def _look(self, more: int) -> bool:
        """Look at further merges until so many more pieces wait; False if there is no further merge."""
        learner, least = self.learner, self.options.min_count
        while more:
            number = len(self.shown)
            if number == len(learner.parents) and not learner.step():
                return False
            new, born = learner.V + number, learner.born[number]
            self.shown[new] = born
            for part in learner.parents[number]:
                if part in self.shown:
                    self.shown[part] -= born
                    if self.shown[part] < least:
                        self.waiting.discard(part)
            if learner.raws[new] not in self.seen and self.fits(new):
                self.seen.add(learner.raws[new])
                self.waiting.add(new)
                more -= 1
        return True

    def _counted(self, pieces: set[int]) -> set[bytes]:
        """Bytes of the tokens that count among those wanted."""
        return {self.learner.raws[i] for i in (self._with_steps(pieces) if self.options.count_steps else pieces)}

    def _with_steps(self, pieces: set[int]) -> set[int]:
        return pieces.union(*map(self._steps, pieces))

    def _steps(self, piece: int) -> list[int]:
        """Pieces that merges towards this one make on the way."""
        return [] if self.crosses(piece) else self.learner.new_ids_within(piece)[:-1]

    def _saved(self, piece: int) -> int:
        """Original tokens that a piece saves, where it cuts none."""
        return self.counts[self.learner.raws[piece]][2] * (len(self.subtokens(piece)) - 1)

    def _crosses(self, piece: int) -> bool:
        return crosses_words(self.spelling, self.learner.raws[piece].decode("utf-8", "replace"))

    def _subtokens(self, piece: int) -> tuple[int, ...]:
        if self.crosses(piece):
            return self.spelling.subtokens(self.learner.raws[piece].decode())
        return self.learner.parts(piece)

    def _fits(self, piece: int) -> bool:
        """Tell whether a piece may become a token: whole characters, new, and not left out."""
        spelling, options, raw = self.spelling, self.options, self.learner.raws[piece]
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return False
        if raw in self.barred or (text.isspace() and not options.keep_whitespace):
            return False
        if text in spelling.vocab or spelling.piece(text) in spelling.vocab or spelling.normalise(text) != text:
            return False
        if self.crosses(piece):
            return len(raw) <= options.max_phrase_bytes and not spelling.inside_a_token(text)
        return options.mix_words and len(raw) <= options.max_bytes and all(map(self.fits, self._steps(piece)))

    def _proposal(self, piece: int, rank: int) -> Proposal:
        learner, raw = self.learner, self.learner.raws[piece]
        count = self.counts.get(raw, (0,))[0]
        left, right = (learner.pieces[i] for i in learner.parents[piece - learner.V])
        merge = None if self.crosses(piece) else (left, right)
        return Proposal(raw.decode(), raw, count, self.subtokens(piece), rank, merge)


class _Borders:
    """A corpus, and where its original tokens end."""

    def __init__(self, texts: Sequence[str], spelling: Spelling) -> None:
        self.texts, self.V = texts, spelling.first_free_id
        self.widths = spelling.widths
        self.borders = []  # for each text, whether a token begins or ends at each of its bytes, (bytes + 1,)
        for ids in encode_each(spelling.backend, texts):
            ends = np.cumsum(self.widths[ids])
            borders = np.zeros(ends[-1] + 1 if len(ends) else 1, dtype=bool)
            borders[0], borders[ends] = True, True
            self.borders.append(borders)

    def counts(self, built: Tokenizer, raws: Sequence[bytes]) -> IntArray:
        """For each new token its occurrences, the texts with one, and the occurrences that cut no old token, (N, 3).

        Args:
            raws: bytes of the new tokens, in the order of their ids.
        """
        widths = np.concatenate([self.widths, np.array([len(raw) for raw in raws], dtype=np.int64)])
        counts = np.zeros((len(raws), 3), dtype=np.int64)
        for ids, borders in zip(encode_each(built, self.texts), self.borders, strict=True):
            row = np.asarray(ids, dtype=np.int64)
            ends = np.cumsum(widths[row])
            new = row >= self.V
            tokens, ends, starts = row[new] - self.V, ends[new], ends[new] - widths[row[new]]
            clean = borders[starts] & borders[ends]
            found = np.bincount(tokens, minlength=len(raws))
            counts += np.stack([found, found > 0, np.bincount(tokens[clean], minlength=len(raws))], axis=1)
        return counts
