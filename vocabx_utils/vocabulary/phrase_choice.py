"""Which learned phrases become tokens: those that the finished tokenizer really produces often enough.

A finished tokenizer reads text otherwise than the learner does. A piece that crosses words is taken before what stands
behind it is read, the longest of those that begin at one place; a piece that stays inside a word is an appended merge
of what is left. So the tokenizer is built, the corpus is encoded and counted again, what falls short is dropped, and
the places are filled with further pieces, until nothing changes. In the form `literal` (see `phrase_forms`) a phrase
that cuts old tokens too often is dropped as well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

from vocabx_utils.vocabulary.encoding import encode_each
from vocabx_utils.vocabulary.mergeplan import plan_merges
from vocabx_utils.vocabulary.options import TokenOptions
from vocabx_utils.vocabulary.phrase_forms import choose_form, crosses_words, phrase_layout
from vocabx_utils.vocabulary.phrases import PhraseLearner
from vocabx_utils.vocabulary.spelling import Spelling
from vocabx_utils.vocabulary.tokens import Proposal


def choose_phrases(learner: PhraseLearner, n: int, options: TokenOptions) -> list[Proposal]:
    """Choose up to `n` tokens, steps of merges included unless `count_steps` is off, in order of birth.

    The learner goes on learning as far as is needed, and can be used again; the options are its own, with another
    `exclude` or `phrase_form` at most. TokenizerError where `phrase_form` is `patterns` and cannot be had.
    """
    choice = _Choice(learner, options)
    wanted = n + n // 3  # some will fall short; of what is left over, what saves most stays
    while True:
        choice.fill(wanted)
        choice.recount()
        weak = choice.weak()
        choice.kept -= weak  # for good; one that a longer piece is made of stays as its step
        if not choice.trim(n) and not weak:
            return choice.proposals()
        wanted = n + len(weak) // 2


class Use(NamedTuple):
    """What a finished tokenizer makes of a new token in a corpus."""

    shown: int = 0  # occurrences
    texts: int = 0  # texts with one
    clean: int = 0  # occurrences that cut no old token
    saved: float = 0.0  # original tokens saved; what neighbours save together is shared out among them


class _Choice:
    """Pieces chosen so far, while the learner's merges are looked through one after the other."""

    def __init__(self, learner: PhraseLearner, options: TokenOptions) -> None:
        self.learner, self.options, self.spelling = learner, options, learner.spelling
        self.barred = options.barred(self.spelling)
        self.form = choose_form(self.spelling, options.phrase_form)
        self.borders = _Borders(learner.texts, self.spelling)
        self.shown: dict[int, int] = {}  # of each piece looked at: how often it stood after the last merge looked at
        self.waiting: set[int] = set()  # may become tokens, stand often enough, but are not chosen yet
        self.kept: set[int] = set()
        self.seen: set[bytes] = set()  # of all that ever waited: other parents may make the same bytes
        self.uses: dict[bytes, Use] = {}  # of the finished tokenizer
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
        """Pieces that the finished tokenizer makes too rarely, or too often across old tokens, or that save little."""
        least, files, cut = self.options.min_count, self.options.min_files, self.options.max_cut

        def falls_short(use: Use) -> bool:
            return use.clean < max(least, (1 - cut) * use.shown) or use.saved < least or use.texts < files

        return {i for i in self.kept if falls_short(self.uses[self.learner.raws[i]])}

    def trim(self, n: int) -> bool:
        """Put pieces back until `n` are left, those that save the fewest tokens first; False if there are no more."""
        before = len(self.kept)
        while (surplus := len(self._counted(self.kept)) - n) > 0:
            worst = sorted(self.kept, key=lambda i: (self.uses[self.learner.raws[i]].saved, -i))[:surplus]
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
        phrases = [p.text for p in proposals if not p.merge]
        built = Tokenizer.from_str(json.dumps(phrase_layout(self.spelling, plan, phrases, self.form)))
        order = [*map(self.spelling.raw, plan.subtokens), *(t.encode() for t in phrases)]
        self.uses = dict(zip(order, self.borders.uses(built, order), strict=True))

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
        if raw in self.barred or (text.isspace() and options.keep_whitespace is False):
            return False
        if text in spelling.vocab or spelling.piece(text) in spelling.vocab or spelling.normalise(text) != text:
            return False
        if self.crosses(piece):
            return len(raw) <= options.max_phrase_bytes
        return options.mix_words and len(raw) <= options.max_bytes and all(map(self.fits, self._steps(piece)))

    def _proposal(self, piece: int, rank: int) -> Proposal:
        learner, raw = self.learner, self.learner.raws[piece]
        count = self.uses.get(raw, Use()).shown
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

    def uses(self, built: Tokenizer, raws: Sequence[bytes]) -> list[Use]:
        """Count the new tokens, whose bytes are `raws` in the order of their ids, in the texts.

        What is saved between two places where tokens of both sides end is shared out among the new tokens there; what a
        new token changes in the whitespace before it is not counted.
        """
        widths = np.concatenate([self.widths, np.array([len(raw) for raw in raws], dtype=np.int64)])
        totals = np.zeros((4, len(raws)))
        for ids, borders in zip(encode_each(built, self.texts), self.borders, strict=True):
            row = np.asarray(ids, dtype=np.int64)
            new = np.flatnonzero(row >= self.V)
            if not len(new):
                continue
            ends = np.cumsum(widths[row])
            shared = np.flatnonzero(borders[ends])  # extended tokens that end where an original one does
            group = np.searchsorted(shared, new)
            ended = np.cumsum(borders)  # one more than the original tokens that end up to each byte
            saved = np.diff(ended[ends[shared]], prepend=1) - np.diff(shared, prepend=-1)  # of each group
            each = saved / np.maximum(np.bincount(group, minlength=len(shared)), 1)
            tokens = row[new] - self.V
            clean = borders[ends[new]] & borders[ends[new] - widths[row[new]]]
            found = np.bincount(tokens, minlength=len(raws))
            kept, gain = (np.bincount(tokens, values, minlength=len(raws)) for values in (clean, each[group]))
            totals += np.stack([found, found > 0, kept, gain])
        return [Use(int(shown), int(texts), int(clean), gain) for shown, texts, clean, gain in totals.T.tolist()]
