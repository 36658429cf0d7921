"""The tokens before an example's first divergence, run once: no new token stands there, so nothing ever changes.

A block looks only backwards. What it makes of these positions is the same for the teacher and for every student at
every step, so their keys, values and final states are kept and they cost neither a forward nor a backward pass. Nor do
the logits of the V original ids change there: what the cross-entropy needs of them is kept too.

Shapes: B examples, T extended ids, P of them before the divergence, D width; L blocks with H key heads of width d; V
original ids.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from vocabx_utils.batching import pad
from vocabx_utils.models import BaseModel, is_sharded
from vocabx_utils.student import Student, cache_argument, logit_transform
from vocabx_utils.training.batches import Batch, micro_batches
from vocabx_utils.training.examples import AlignedSet
from vocabx_utils.training.fusing import is_fused
from vocabx_utils.training.goals import OldSums, old_sums
from vocabx_utils.training.packed import Layout, packable, run_packed

_CPU_BYTES = 2 << 30
_TRIED = 2  # examples on which a packed pass is compared with a plain one
Kept = tuple[Tensor, Tensor]  # (L, 2, P, H, d) keys and values, (P, D) final states


class SharedBeginnings:
    """Keys, values, final states and sums of logits of the shared beginnings of a split; read at the first use.

    Args:
        base: the base model.
        examples: the split.
        token_budget: tokens of one pass, padding included.
        limit: bytes that may be kept; a split that needs more is run from its first token, like a model that keeps
            no keys. 2 GiB on a CPU unless given. Nothing is kept of blocks that a compiler has fused, since they run
            faster whole than with keys beside them, on a GPU, which short texts leave waiting for its next kernel
            anyway, and of sharded blocks, since each process has to make as many passes as the others.
    """

    def __init__(
        self, base: BaseModel, examples: AlignedSet, *, token_budget: int = 8192, limit: int | None = None
    ) -> None:
        if limit is None:
            kept = base.device.type == "cpu" and not is_fused(base.model) and not is_sharded(base.model)
            limit = _CPU_BYTES if kept else 0
        self.base, self.examples, self.token_budget, self.limit = base, examples, token_budget, limit
        self.lengths = [min(e.prefix_pairs, len(e.ids) - 1) for e in examples.examples]
        self.ends = np.cumsum([0, *self.lengths])  # of each example's positions in `old`
        self.kept: dict[int, Kept] | None = None
        self.old: OldSums | None = None  # at all positions of all beginnings

    def hidden(
        self,
        model: Student,
        ids: Tensor,
        indices: Sequence[int],
        *,
        layer: int = -1,
        new_at: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Run the blocks over a batch, (B, T) ids, each example from its first divergence on, in one row (`packed`).

        What is kept is the base model's, so a student with blocks of its own (after LoRA, say, or loaded again) is run
        from the first token. Arguments and results are those of `Student.hidden`; the states are 0 at padding and, of
        another layer than the last, at positions that are kept.
        """
        if model.model is not self.base.model:
            return model.hidden(ids, layer=layer, new_at=new_at)
        if self.kept is None:
            self.kept = self._read()
        if not self.kept:  # nothing to put in order: a list of rows would make a GPU wait
            return model.hidden(ids, layer=layer, new_at=new_at)
        return self._packed(model, ids, [self.kept[index] for index in indices], indices, layer)

    def sums(self, model: Student, batch: Batch, indices: Sequence[int]) -> OldSums | None:
        """Return what the original head makes of those positions of a batch that lie in a beginning, its last U ones.

        It is called after `hidden`, with the same examples, and returns None where nothing is kept.
        """
        if model.model is not self.base.model or self.old is None:
            return None
        positions = batch.positions[len(batch.positions) - batch.before :].cpu().numpy()
        rows, places = np.divmod(positions, batch.ids.shape[1])
        at = self.ends[np.asarray(indices)[rows]] + places
        return self.old[torch.from_numpy(at).to(self.old.sums.device)]

    def skipped(self, indices: Sequence[int], width: int) -> int:
        """Count the positions of a batch, padding included, that cost no pass."""
        if not self.kept:
            return 0
        return sum(width - len(self.examples.examples[index].ids) + self.lengths[index] for index in indices)

    def _packed(
        self, model: Student, ids: Tensor, kept: Sequence[Kept], indices: Sequence[int], layer: int = -1
    ) -> tuple[Tensor, Tensor]:
        """Run what follows the beginnings of some examples in one row; see `hidden`."""
        lengths = [len(self.examples.examples[index].ids) for index in indices]
        layout = Layout.of(lengths, ids.shape[1], [keys_values for keys_values, _ in kept], ids.device)
        embedded = model.embed(layout.pack(ids)[None])  # (1, S, D)
        output = run_packed(self.base.model.base_model, embedded, layout, layers=layer != -1)
        final = layout.unpack(output.last_hidden_state[0], torch.cat([states for _, states in kept]))  # (B, T, D)
        return final, final if layer == -1 else layout.unpack(output.hidden_states[layer][0])

    def _agrees(self, kept: dict[int, Kept]) -> bool:
        """Try some examples, in original ids: whether a packed pass gives the states of a plain one."""
        tried = range(min(_TRIED, len(self.examples)))
        texts = [self.examples.examples[index].ids.clip(max=self.base.vocab_size - 1) for index in tried]
        ids, real = (tensor.to(self.base.device) for tensor in pad(texts))
        teacher = Student(self.base.model, self.base.vocab_size)
        plain, _ = teacher.hidden(ids)
        packed, _ = self._packed(teacher, ids, [kept[index] for index in tried], tried)
        apart, size = ((states * real[..., None]).abs().max() for states in (packed - plain, plain))
        return bool(apart <= (1e-3 if plain.dtype == torch.float32 else 4e-2) * size.clamp(min=1.0))

    @torch.no_grad()
    def _read(self) -> dict[int, Kept]:
        """Run the base model over all prefixes; nothing where they do not fit or cannot be gone on from in a row."""
        kept: dict[int, Kept] = {}
        longest = max(len(example.ids) for example in self.examples.examples)
        if self.limit == 0 or not packable(self.base.model, longest):
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
                keys_values = both[:, :, row, :, :length].transpose(2, 3).contiguous()  # (L, 2, P, H, d)
                kept[index] = keys_values, output.last_hidden_state[row, :length].clone()
        if not kept:
            return kept
        nothing = keys_values[:, :, :0], output.last_hidden_state[0, :0]
        kept = {index: kept.get(index, nothing) for index in range(len(self.lengths))}
        if not self._agrees(kept):
            return {}
        states = torch.cat([kept[index][1] for index in chosen])  # (all P, D)
        parts = [self.examples.examples[index].ids[1 : self.lengths[index] + 1] for index in chosen]
        head, targets = self.base.head_rows[: self.base.vocab_size], torch.from_numpy(np.concatenate(parts))
        self.old = old_sums(states, targets.to(states.device), head, logit_transform(self.base.model.config))
        return kept
