"""The engines that `phase1.py` compares; each takes the same step over the same texts.

literal  as we read the thesis: every step runs the teacher, builds both logit matrices whole and in float32
         at every position, finds the pairs with the look-ahead algorithm (anchor: first token of a group) and makes two
         backward passes for two optimisers. The frozen base takes no gradient and only new rows are trained, as
         in `ours`: the comparison is about the method, not about careless code.
plain    what a competent engineer writes from the thesis in an afternoon: teacher under `no_grad` in every step,
         alignment computed before, one backward pass, a fused optimiser; `plain` keeps the logits in the model's dtype,
         `plain32` turns them into float32.
ours     `training.phase1.Phase1Training` with the teacher cached.
floor    what no implementation can leave out: the student's forward and backward pass (replayed, and from the first
         divergence on, as in `ours`) and the bare products with the head (student at every target, gradient at every
         compared position, new rows), no softmax. The teacher's product is not among them: see `training.goals`.

Shapes: B texts, T tokens, V original ids, N new tokens, D width, P positions, K of them compared.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from torch import Tensor
from torch.nn import functional
from torch.optim import AdamW

from vocabx_utils.config import Phase1Config
from vocabx_utils.models import BaseModel
from vocabx_utils.products import aligned_rows
from vocabx_utils.rows import NewToken
from vocabx_utils.student import Student
from vocabx_utils.training.batches import align_batch, micro_batches
from vocabx_utils.training.blocks import quick_blocks
from vocabx_utils.training.examples import AlignedSet
from vocabx_utils.training.objectives import parse_variant
from vocabx_utils.training.phase1 import Phase1Data, Phase1Training
from vocabx_utils.training.shared_beginnings import SharedBeginnings
from vocabx_utils.training.softmax import default_chunk, logit_products
from vocabx_utils.training.teacher import TeacherStates, teacher_cache
from vocabx_utils.vocabulary.initialization import head_rows, input_rows
from vocabx_utils.vocabulary.lookahead import map_token_sequences

Step = Callable[[list[int]], Any]


@dataclass(frozen=True)
class Problem:
    """A base model, what it is to learn, and from which texts."""

    base: BaseModel
    tokens: tuple[NewToken, ...]
    train: AlignedSet
    config: Phase1Config

    def student(self) -> Student:
        """Mean of subtokens for the input rows, first subtoken for the head."""
        generator = torch.Generator().manual_seed(0)
        rows = input_rows("mean", self.base, self.tokens, generator)
        heads = head_rows("first", self.base, self.tokens, generator)
        return Student(self.base.model, self.base.vocab_size, rows, heads)

    def cache(
        self, examples: AlignedSet, folder: Path | None = None, processes: PartialState | None = None
    ) -> TeacherStates:
        """The teacher's states, in a folder that nobody else uses unless processes share one."""
        folder = folder or Path(tempfile.mkdtemp(prefix="vocabx-teacher-"))
        return teacher_cache(
            self.base, examples, folder, token_budget=self.config.token_budget, tell=lambda _: None,
            processes=processes,
        ).to(self.base.device)  # fmt: skip


def ours(
    problem: Problem, *, anchor: str = "last", cache: TeacherStates | None = None, processes: PartialState | None = None
) -> Phase1Training:
    """The package's own training, ready for `Phase1Training.step`."""
    cache = cache or problem.cache(problem.train)
    data = Phase1Data(problem.train, problem.train, cache, cache)
    return Phase1Training(parse_variant(f"mean_kl_{anchor}"), problem.student(), data, problem.config, processes)


def literal(problem: Problem) -> Step:
    """Both optimisers and one step of the thesis's pipeline."""
    base, model, config = problem.base, problem.student(), problem.config
    optimizers = [
        AdamW([rows], lr=config.learning_rate, weight_decay=0.0) for rows in (model.input_rows, model.head_rows)
    ]
    head = aligned_rows(model.head)  # slow products would say nothing about the method
    examples = problem.train.examples
    lengths = [len(example.ids) for example in examples]

    def step(indices: list[int], factor: float = 1.0) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=False)
            optimizer.param_groups[0]["lr"] = config.learning_rate * factor
        targets = sum(lengths[i] - 1 for i in indices)
        for part in micro_batches(lengths, indices, config.token_budget):
            original, extended = (
                _padded([getattr(examples[i], side) for i in part], base.device) for side in ("original_ids", "ids")
            )
            pairs = [
                map_token_sequences(examples[i].original_ids.tolist(), examples[i].ids.tolist()).pairs("first")[0]
                for i in part
            ]
            with torch.no_grad():
                teacher = base.model(input_ids=original, use_cache=False).logits[..., : model.vocab_size].float()
            hidden, _ = model.hidden(extended)
            student = (hidden @ head.T)[..., : model.vocab_size].float()
            new = (hidden.detach() @ model.head_rows.to(hidden.dtype).T).float()
            line = torch.from_numpy(np.repeat(np.arange(len(part)), [len(p) for p in pairs])).to(base.device)
            left, right = torch.from_numpy(np.concatenate(pairs)).to(base.device).unbind(1)
            log_p = functional.log_softmax(teacher[line, left], -1)
            log_q = functional.log_softmax(student[line, right], -1)
            # the mean runs over the pairs of the whole step, which this part does not know: over its share of tokens
            share = len(line) * len(indices) / len(part)
            (functional.kl_div(log_q, log_p, log_target=True, reduction="sum") / share).backward(retain_graph=True)
            logits = torch.cat([student.detach(), new], -1)[:, :-1]
            goal = _padded([examples[i].ids[1:] for i in part], base.device, fill=-100)
            loss = functional.cross_entropy(logits.flatten(0, 1), goal.flatten(), ignore_index=-100, reduction="sum")
            (loss / targets).backward()
        for optimizer in optimizers:
            optimizer.step()

    step.model = model  # type: ignore[attr-defined]
    return step


def plain(problem: Problem, *, float32: bool = False) -> Step:
    """Both optimisers and one step of the method in straightforward torch."""
    base, model, config, examples = problem.base, problem.student(), problem.config, problem.train.examples
    fused = True if base.device.type == "cuda" else None
    optimizers = [
        AdamW([rows], lr=config.learning_rate, weight_decay=0.0, fused=fused)
        for rows in (model.input_rows, model.head_rows)
    ]
    head, vocab = aligned_rows(model.head), model.vocab_size
    lengths = [len(example.ids) for example in examples]
    pairs = [torch.from_numpy(example.pairs["last"]) for example in examples]

    def products(states: Tensor) -> Tensor:
        found = (states @ head.T)[..., :vocab]
        return found.float() if float32 else found

    def step(indices: list[int], factor: float = 1.0) -> None:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
            optimizer.param_groups[0]["lr"] = config.learning_rate * factor
        targets = sum(lengths[i] - 1 for i in indices)
        # the mean runs over all aligned positions; before the first divergence the KL is 0
        compared = sum(len(pairs[i]) + examples[i].prefix_pairs for i in indices)
        for part in micro_batches(lengths, indices, config.token_budget):
            original, extended = (
                _padded([getattr(examples[i], side) for i in part], base.device) for side in ("original_ids", "ids")
            )
            line = torch.repeat_interleave(torch.arange(len(part)), torch.tensor([len(pairs[i]) for i in part]))
            left, right = torch.cat([pairs[i] for i in part]).unbind(1)
            line, left, right = (at.to(base.device, non_blocking=True) for at in (line, left, right))
            with torch.no_grad():
                states = base.model.base_model(input_ids=original, use_cache=False).last_hidden_state[line, left]
                log_p = functional.log_softmax(products(states), -1)  # (K, V)
            hidden, _ = model.hidden(extended)
            student = products(hidden)  # (B, T, V)
            log_q = functional.log_softmax(student[line, right], -1)
            kl = functional.kl_div(log_q, log_p, log_target=True, reduction="sum") / compared
            new = hidden.detach() @ model.head_rows.to(hidden.dtype).T
            logits = torch.cat([student.detach(), new.to(student.dtype)], -1)[:, :-1]  # (B, T - 1, V + N)
            goal = _padded([examples[i].ids[1:] for i in part], base.device, fill=-100)
            ce = functional.cross_entropy(logits.flatten(0, 1), goal.flatten(), ignore_index=-100, reduction="sum")
            (kl + ce / targets).backward()
        for optimizer in optimizers:
            optimizer.step()

    step.model = model  # type: ignore[attr-defined]
    return step


def floor(problem: Problem) -> Step:
    """The student's passes and the bare products, over the same batches."""
    base, model, config = problem.base, problem.student(), problem.config
    model.blocks = quick_blocks(base.model)
    examples = problem.train
    lengths = [len(example.ids) for example in examples.examples]
    rows = [np.zeros(len(example.teacher_at()), np.int64) for example in examples.examples]
    chunk = default_chunk(base.vocab_size, base.device)
    beginnings = SharedBeginnings(base, examples, token_budget=config.token_budget)
    head, new = aligned_rows(model.head), model.head_rows.detach().to(base.dtype)
    gradient = torch.rand(chunk, len(head), device=base.device, dtype=base.dtype) / base.vocab_size
    few = torch.rand(chunk, len(new), device=base.device, dtype=base.dtype)

    def products(hidden: Tensor, compared: int) -> Tensor:
        result = torch.zeros_like(hidden)
        for start in range(0, len(hidden), chunk):
            part = hidden[start : start + chunk]
            size, with_teacher = len(part), max(0, min(chunk, compared - start))
            logit_products(part, head)
            logit_products(part, new)
            logit_products(part.T, few[:size].T)
            if with_teacher:
                result[start : start + with_teacher] = gradient[:with_teacher] @ head
        return result

    def step(indices: list[int]) -> None:
        for part in micro_batches(lengths, indices, config.token_budget):
            batch = align_batch(examples, part, "last", rows).to(base.device)
            hidden, _ = beginnings.hidden(model, batch.ids, part, new_at=batch.new_at)
            flat = hidden.reshape(-1, hidden.shape[-1]).index_select(0, batch.positions)
            with torch.no_grad():
                gradients = products(flat, len(batch.teacher_rows))
            flat.backward(gradients)
        model.zero_grad()

    return step


def _padded(rows: list[Any], device: torch.device, fill: int = 0) -> Tensor:
    ids = np.full((len(rows), max(len(row) for row in rows)), fill, np.int64)
    for line, row in enumerate(rows):
        ids[line, : len(row)] = row
    return torch.from_numpy(ids).to(device)
