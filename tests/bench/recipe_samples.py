"""Snippets whose ends the teacher wrote: real text up to a new token's end, and from there a sample of the model.

What follows a new token is then drawn from the distribution that the KL compares with, not from the corpus. The sampled
tokens count: a run reads so many fewer snippets that what it reads and what was written make up the budget together.

Shapes: B snippets, P original ids of the real part, L sampled ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from recipe_data import draw, extend_again
from torch import Tensor
from transformers import DynamicCache

from vocabx_utils.models import BaseModel
from vocabx_utils.student import Student, logits
from vocabx_utils.training.examples import AlignedSet, whole_texts
from vocabx_utils.vocabulary.alignment import align_texts

_BEFORE = 20  # original ids of real text, the new token's subtokens included
_AT_ONCE = 1024  # snippets


def sampled_examples(
    base: BaseModel, content: dict[str, Any], pool: AlignedSet, tokens: int, seed: int
) -> tuple[AlignedSet, int]:
    """Return snippets with sampled ends, and how many tokens were sampled for them; together about `tokens`."""
    length = content["window"] - _BEFORE
    count = max(1, round(tokens / (content["window"] + length)))
    starts = _starts(draw(pool, count * content["window"], seed))
    generator = torch.Generator(base.device).manual_seed(seed)
    texts = []
    for part in starts.split(_AT_ONCE):
        written = torch.cat([part, sample(base, part, length, generator)], 1)
        texts += base.tokenizer.batch_decode(written.tolist(), skip_special_tokens=False)
    whole = [text.lstrip("\ufffd").split("\ufffd")[0] for text in texts]  # ids may end inside a character
    extension = extend_again(content, base.tokenizer)
    read = whole_texts(align_texts(extension, whole), extension.V, extension.N, max_length=1024)
    found = tuple(e for e in read.examples if len(e.new_at(extension.V)))
    return AlignedSet(found, vocab_size=extension.V, n_new=extension.N), len(texts) * length


def _starts(examples: AlignedSet) -> Tensor:
    """(B, P) original ids up to the end of the new token nearest to the middle of each snippet that has so many."""
    found = []
    for example in examples.examples:
        ends = example.pairs["last"][example.merged["last"]]
        ends = ends[ends[:, 0] >= _BEFORE - 1, 0]
        if len(ends):
            end = int(ends[np.argmin(np.abs(ends - len(example.original_ids) // 2))])
            found.append(example.original_ids[end + 1 - _BEFORE : end + 1])
    if not found:
        raise SystemExit(f"no snippet has {_BEFORE} original tokens up to the end of a new one")
    return torch.from_numpy(np.stack(found))


@torch.no_grad()
def sample(base: BaseModel, ids: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Continue (B, P) ids by (B, L) samples of the model at temperature 1, over its V ids."""
    teacher, cache, unread = Student(base.model, base.vocab_size), DynamicCache(), ids
    found = []
    for _ in range(length):
        final, _ = teacher.hidden(unread.to(base.device), cache=cache)
        p = torch.softmax(logits(final[:, -1], teacher.head, teacher.transform), -1)  # (B, V)
        unread = torch.multinomial(p, 1, generator=generator)
        found.append(unread)
    return torch.cat(found, 1).cpu()
