"""Token healing: a prompt may end anywhere, and is continued as if it had been read together with what follows.

A prompt that ends inside a token stands as other tokens than the whole text would, and the model continues what it has
hardly ever seen. So the end of the prompt is taken back to a place where a token begins whichever continuation follows,
and the first tokens that are generated are held to the bytes that were taken back: the model may choose the token that
the prompt cut apart, and the text of the prompt stays what it was.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class Healer:
    """Takes ends of prompts back and says which tokens may stand there instead.

    Args:
        raws: bytes of each id, none for tokens that stand for no text: `spelling_of(tokenizer).raws` of the tokenizer
            that read the prompts, the extended one where there is one.

    Example:
        >>> healer = Healer([b"a", b"b", b" ", b" if", b" if not", b"x"])
        >>> healer.cut([5, 3])  # ` if` may go on as ` if not`, so only `x` is kept
        (1, b' if')
        >>> healer.allowed(b" if").tolist(), healer.cut([3, 5])
        ([2, 3, 4], (2, b''))
    """

    def __init__(self, raws: Sequence[bytes]) -> None:
        self.raws = list(raws)
        self._ids = np.array(sorted((i for i, raw in enumerate(raws) if raw), key=lambda i: self.raws[i]), np.int64)
        self._keys = [self.raws[i] for i in self._ids]  # sorted, so those with a common beginning stand together
        self.longest = max(map(len, self._keys), default=0)

    def cut(self, ids: Sequence[int]) -> tuple[int, bytes]:
        """Find how many ids of a prompt are kept, one at least, and the bytes of those that are taken back.

        No token that begins before the cut, at whatever byte, could run past the end of the prompt. A token border is
        then one in every continuation that only appends; where the merges inside a word turn on what follows it, the
        tokens of the prompt may still differ from those of the whole text.
        """
        tail, starts = b"", list[int]()  # bytes of the last tokens, and how many bytes before the end each begins
        for token in reversed(ids[1:]):
            if len(tail) >= self.longest + 4 or not self.raws[token]:
                break
            tail = self.raws[token] + tail
            starts.append(len(tail))
        reach = next((n for n in range(min(len(tail), self.longest), 0, -1) if self._goes_on(tail[-n:])), 0)
        for removed, start in enumerate(starts, 1):
            if start >= reach > 0 and tail[-start] & 0xC0 != 0x80:  # not inside a character
                return len(ids) - removed, tail[-start:]
        return (len(ids) - len(starts), tail) if reach else (len(ids), b"")

    def _goes_on(self, end: bytes) -> bool:
        """Whether some token begins with these bytes and is longer."""
        at = bisect_right(self._keys, end)
        return at < len(self._keys) and self._keys[at].startswith(end)

    def allowed(self, rest: bytes) -> np.ndarray:
        """Return the ids that may come next where `rest` is still to say: its beginnings, and what begins with it."""
        spans = []
        for size in range(1, min(len(rest) - 1, self.longest) + 1):
            low = bisect_left(self._keys, rest[:size])
            spans.append(self._ids[low : bisect_right(self._keys, rest[:size], lo=low)])
        low = bisect_left(self._keys, rest)
        beyond = bisect_left(self._keys, True, lo=low, key=lambda raw: raw[: len(rest)] > rest)
        return np.sort(np.concatenate([*spans, self._ids[low:beyond]]))

    def hold(self, scores: Tensor, rests: Sequence[bytes]) -> Tensor:
        """Return scores (B, R) in which a row that still has something to say can say nothing else.

        ValueError where no token of the R can say it.
        """
        held = scores.clone()
        for row, rest in enumerate(rests):
            if not rest:
                continue
            ids = self.allowed(rest)
            chosen = torch.from_numpy(ids[ids < scores.shape[1]]).to(scores.device)
            if not len(chosen):
                raise ValueError(f"no token begins with or in {rest!r}: were these ids read by the healer's tokenizer?")
            held[row] = float("-inf")
            held[row, chosen] = scores[row, chosen]
        return held

    def after(self, rest: bytes, token: int) -> bytes:
        """Return what is left to say once an allowed token is said."""
        return rest[len(self.raws[token]) :]
