"""Put proposed tokens in one order of merges, whatever order they were proposed in."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from vocabx_utils.texts import TokenizerError
from vocabx_utils.vocabulary.spelling import Spelling
from vocabx_utils.vocabulary.tokens import Proposal


@dataclass
class MergePlan:
    """New pieces and merges, built up in order."""

    spelling: Spelling  # of the original tokenizer
    # original ids that each new piece replaces, in the order of the new ids
    subtokens: dict[str, tuple[int, ...]] = field(default_factory=dict)
    merges: dict[tuple[str, str], int] = field(default_factory=dict)  # place of each pair of pieces, in order

    def knows(self, piece: str) -> bool:
        """Tell whether a piece is in the original vocabulary or among the new ones."""
        return piece in self.subtokens or piece in self.spelling.vocab

    def add(self, left: str, right: str) -> None:
        """Append a merge, and its piece if that is new."""
        self.merges.setdefault((left, right), len(self.merges))
        self.subtokens.setdefault(left + right, self._parts(left) + self._parts(right))

    def symbols(self, piece: str) -> list[str]:
        """Return the pieces that one pre-token becomes under the original merges and the new ones so far."""
        out = [self.spelling.pieces[i] for i in self.spelling.tokenize_piece(piece)]
        while ranked := [(self.merges[p], k) for k, p in enumerate(itertools.pairwise(out)) if p in self.merges]:
            _, k = min(ranked)
            out[k : k + 2] = [out[k] + out[k + 1]]
        return out

    def reach(self, piece: str, wanted: set[str]) -> None:
        """Add the merges that still lack for a pre-token to become one token.

        Among the possible steps, one that makes another wanted token comes first, then the leftmost. TokenizerError
        where every step would make an original token, which would change how old text tokenizes, or join a byte piece,
        which the decoder only knows alone.
        """
        while len(out := self.symbols(piece)) > 1:
            free = [k for k, (a, b) in enumerate(itertools.pairwise(out)) if self._may_join(a, b)]
            if not free:
                text = self.spelling.raw(piece).decode("utf-8", "replace")
                raise TokenizerError(
                    f"{text!r} cannot become one token by merges: the original tokenizer reads it as {out}, and "
                    "joining any two of these makes a token that it has already, or joins a byte piece. "
                    "Use strategy 'added' for it."
                )
            k = min(free, key=lambda k: (out[k] + out[k + 1] not in wanted, k))
            self.add(out[k], out[k + 1])

    def _may_join(self, left: str, right: str) -> bool:
        if left + right in self.spelling.vocab:
            return False
        return self.spelling.kind == "byte-level" or not (left.startswith("<0x") or right.startswith("<0x"))

    def _parts(self, piece: str) -> tuple[int, ...]:
        return self.subtokens.get(piece) or (self.spelling.vocab[piece],)


def plan_merges(spelling: Spelling, proposals: Iterable[Proposal], texts: Sequence[str]) -> MergePlan:
    """Order the merges of learned proposals, and of further tokens given as text.

    The plan depends on the set of proposals and texts, not on their order: learned merges in the order in which they
    were learned, then texts by length and bytes. Merges whose parts were not passed on are made up for. TokenizerError
    where a text cannot become one token.
    """
    chosen = sorted(proposals, key=lambda p: (p.rank, p.raw))
    plan = MergePlan(spelling)
    for left, right in (p.merge for p in chosen if p.merge):
        if plan.knows(left) and plan.knows(right) and left + right not in spelling.vocab:
            plan.add(left, right)
    # bytes that are no whole characters can only be spelt by their merge
    pieces = ["".join(p.merge) if p.merge else spelling.piece(p.text) for p in chosen]
    wanted = {piece for piece in pieces if piece not in plan.subtokens} | {spelling.piece(text) for text in texts}
    for piece in sorted(wanted, key=lambda piece: (len(spelling.raw(piece)), spelling.raw(piece))):
        plan.reach(piece, wanted)
    return plan
