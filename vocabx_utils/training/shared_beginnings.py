"""The tokens before an example's first divergence, run once: no new token stands there, so nothing ever changes.

A block looks only backwards. What it makes of these positions is the same for the teacher and for every student at
every step, so their keys, values and final states are kept and they cost neither a forward nor a backward pass.

Shapes: B examples, T extended ids, P of them before the divergence, D width; L blocks with H key heads of width d.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from transformers import DynamicCache

from vocabx_utils.batching import pad
from vocabx_utils.models import BaseModel, is_sharded
from vocabx_utils.student import Student, cache_argument
from vocabx_utils.training.batches import micro_batches
from vocabx_utils.training.examples import AlignedSet
from vocabx_utils.training.fusing import is_fused

_CPU_BYTES = 2 << 30
_GROUPS = 3


class SharedBeginnings:
    """Keys, values and final states of the shared beginnings of a split; read at the first use.

    Args:
        base: the base model.
        examples: the split.
        token_budget: tokens of one pass, padding included.
        limit: bytes that may be kept; a split that needs more is run from its first token, like a model that keeps
            no keys. 0 keeps nothing: blocks that a compiler has fused run faster whole than with keys beside them.
            2 GiB on a CPU unless given, and 0 on a GPU: short texts leave a GPU waiting for its next kernel anyway, and
            several smaller passes instead of one would let it wait more. 0 on sharded blocks, since each process
            has to make as many passes as the others.
    """

    def __init__(
        self, base: BaseModel, examples: AlignedSet, *, token_budget: int = 8192, limit: int | None = None
    ) -> None:
        if limit is None:
            kept = base.device.type == "cpu" and not is_fused(base.model) and not is_sharded(base.model)
            limit = _CPU_BYTES if kept else 0
        self.base, self.examples, self.token_budget, self.limit = base, examples, token_budget, limit
        self.lengths = [min(e.prefix_pairs, len(e.ids) - 1) for e in examples.examples]
        self.kept: dict[int, tuple[Tensor, Tensor]] | None = None

    def hidden(
        self,
        model: Student,
        ids: Tensor,
        indices: Sequence[int],
        *,
        layer: int = -1,
        new_at: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the blocks over a batch, from a little before the first divergence on.

        Args:
            model: a student. What is kept is the base model's, so a student with blocks of its own (after LoRA, say, or
                loaded again) is run from the first token.
            ids: (B, T) right-padded ids of the examples.
            indices: which examples.
            layer: see `Student.hidden`.
            new_at: see `Student.embed`; used where nothing is kept.

        Returns:
            What `Student.hidden` returns; of another layer than the last, positions that were kept are 0.
        """
        if model.model is not self.base.model:
            return model.hidden(ids, layer=layer, new_at=new_at)
        if self.kept is None:
            self.kept = self._read()
        if not self.kept:  # nothing to put in order: a list of rows would make a GPU wait
            return model.hidden(ids, layer=layer, new_at=new_at)
        groups = self._groups(indices, ids.shape[1])
        finals, others = [], []
        for length, rows in groups:
            batch = ids[rows]
            if length == 0:
                final, other = model.hidden(batch, layer=layer)
            else:
                states, cache = self._take([indices[row] for row in rows], length)
                final, other = model.hidden(batch[:, length:], layer=layer, cache=cache)
                final, other = (torch.cat(pair, 1) for pair in ((states, final), (torch.zeros_like(states), other)))
            finals.append(final)
            others.append(other)
        place = torch.tensor([row for _, rows in groups for row in rows], device=ids.device).argsort()
        final = torch.cat(finals)[place]
        return final, final if layer == -1 else torch.cat(others)[place]

    def skipped(self, indices: Sequence[int], width: int) -> int:
        """Count the positions of a batch that cost no pass."""
        if not self.kept:
            return 0
        return sum(length * len(rows) for length, rows in self._groups(indices, width))

    def _groups(self, indices: Sequence[int], width: int) -> list[tuple[int, list[int]]]:
        """Rows of a batch by the number of positions that are kept for all of a group, so that few are run twice."""
        lengths = [self.lengths[index] for index in indices]
        rows = sorted(range(len(indices)), key=lambda row: (lengths[row], row))
        cuts = [0]
        while len(cuts) < _GROUPS:
            saved = {cut: _skipped(lengths, rows, sorted({*cuts, cut})) for cut in range(1, len(rows))}
            best = max(saved, key=lambda cut: saved[cut], default=0)
            if best == 0 or saved[best] - _skipped(lengths, rows, cuts) < width:
                break  # less than a row is saved: not worth a smaller pass
            cuts = sorted({*cuts, best})
        return [(lengths[rows[start]], rows[start:stop]) for start, stop in pairwise([*cuts, len(rows)])]

    def _take(self, chosen: Sequence[int], length: int) -> tuple[Tensor, DynamicCache]:
        assert self.kept is not None
        kept = [self.kept[index] for index in chosen]
        states = torch.stack([final[:length] for _, final in kept])
        both = torch.stack([keys_values[:, :, :, :length] for keys_values, _ in kept], 2)  # (L, 2, B, H, P, d)
        return states, DynamicCache([(keys, values) for keys, values in both])

    @torch.no_grad()
    def _read(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Run the base model over all prefixes; nothing where they do not fit or the model keeps no keys."""
        kept: dict[int, tuple[Tensor, Tensor]] = {}
        if self.limit == 0:
            return kept
        body = self.base.model.base_model
        if getattr(self.base.model, "_is_stateful", False):  # recurrent families keep states of another kind
            return kept
        chosen = [index for index, length in enumerate(self.lengths) if length]
        # Always all of them in the same batches: a continued run has to meet the same bits.
        for part in micro_batches(self.lengths, chosen, self.token_budget):
            ids, _ = pad([self.examples.examples[i].ids[: self.lengths[i]] for i in part])
            cache = DynamicCache()
            output = body(input_ids=ids.to(self.base.device), use_cache=True, **{cache_argument(body): cache})
            held = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers]
            if not held or any(keys is None or keys.shape[2] != ids.shape[1] for keys, _ in held):
                return {}
            both = torch.stack([torch.stack(pair) for pair in held])  # type: ignore[arg-type]  # (L, 2, B, H, P, d)
            each = (both[:, :, 0, :, 0].numel() + output.last_hidden_state.shape[-1]) * both.element_size()
            if each * sum(self.lengths) > self.limit:
                return {}
            for row, index in enumerate(part):
                length = self.lengths[index]
                kept[index] = both[:, :, row, :, :length].clone(), output.last_hidden_state[row, :length].clone()
        return kept


def _skipped(lengths: Sequence[int], rows: Sequence[int], cuts: Sequence[int]) -> int:
    """Positions that need no pass if the rows, shortest prefix first, are cut at these places."""
    return sum(lengths[rows[start]] * (stop - start) for start, stop in pairwise([*cuts, len(rows)]))
