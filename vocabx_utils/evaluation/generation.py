"""Answers to benchmark problems: greedy, batched, resumable, independent of batch size and order."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from vocabx_utils import files, locks
from vocabx_utils.batching import like_length, pad
from vocabx_utils.evaluation import slots as slot_engine
from vocabx_utils.evaluation.answers import extract_answer, find_stop
from vocabx_utils.evaluation.benchmarks import Problem
from vocabx_utils.evaluation.prompts import Prompt, build_prompt
from vocabx_utils.progress import progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Finish = Literal["eos", "stop", "length"]
Engine = Literal["auto", "slots", "plain"]
_END_TOKENS = ("<|im_end|>", "<|EOT|>", "<|endoftext|>", "<|eot_id|>")
_TAIL = 24  # ids decoded to look for a stop text; longer than any stop text


@dataclass(frozen=True)
class Completion:
    """A reply.

    Attributes:
        text: Text after the prompt, without end token, cut where a stop text or the closing fence ends it.
        ids: Its token ids, an end token included.
        finish: ``"eos"``: the model ended it; ``"stop"``: a stop text or closing fence came;
            ``"length"``: the limit was reached, so the answer may be truncated.
    """

    text: str
    ids: tuple[int, ...]
    finish: Finish


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int = 448,
    batch_size: int | None = None,
    engine: Engine = "auto",
    on_done: Callable[[int, Completion], None] | None = None,
) -> list[Completion]:
    """Answer prompts greedily.

    Args:
        model: Causal language model; the original one, or one with extra rows.
        tokenizer: Its tokenizer.
        prompts: The prompts; each must hold at least one token.
        max_new_tokens: Longest reply, in tokens.
        batch_size: Prompts in flight; by default 8 on the CPU and as many as memory allows, at most 512, on
            a GPU.
        engine: ``"slots"``: static cache, refilled rows, CUDA graphs; ``"plain"``: ``model.generate`` with
            left padding, for models whose attention cannot be replaced; ``"auto"`` chooses.
        on_done: Called with index and reply as each reply ends.

    Returns:
        Replies in the order of the prompts.

    Raises:
        ValueError: An empty prompt, or a limit that is not positive.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; expected 1 or more")
    empty = [prompt.task_id for prompt in prompts if not prompt.ids]
    if empty:
        raise ValueError(f"{len(empty)} prompts have no token, the first is that of {empty[0]}")
    if not prompts:
        return []
    if engine == "auto":
        engine = "slots" if slot_engine.supports(model) else "plain"
    run = _by_slots if engine == "slots" else _plain
    replies: dict[int, Completion] = {}
    for index, reply in run(model, tokenizer, prompts, max_new_tokens, batch_size):
        replies[index] = reply
        if on_done is not None:
            on_done(index, reply)
    return [replies[index] for index in range(len(prompts))]


def default_batch_size(model: PreTrainedModel, length: int) -> int:
    """Return 8 on the CPU, else the prompts of ``length`` tokens that half the free memory holds, at most 512."""
    device, _ = slot_engine.placement(model)
    if device.type != "cuda":
        return 8
    free, _ = torch.cuda.mem_get_info(device)
    fitting = int(0.5 * free / slot_engine.cache_bytes(model, length))
    return max(1, min(512, fitting // 32 * 32 or fitting))


def end_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids that end a reply: the tokenizer's and those of the generation settings."""
    ids = {tokenizer.eos_token_id}
    for config in (getattr(model, "generation_config", None), model.config):
        value = getattr(config, "eos_token_id", None)
        ids.update(value if isinstance(value, list | tuple) else [value])
    vocabulary = tokenizer.get_vocab()
    ids.update(vocabulary.get(name) for name in _END_TOKENS)
    return frozenset(i for i in ids if isinstance(i, int))


def completion_text(tokenizer: PreTrainedTokenizerBase, prompt_ids: Sequence[int], ids: Sequence[int]) -> str:
    """Decode a reply together with the end of its prompt and cut by text.

    Decoded alone, a reply loses its leading space with SentencePiece tokenizers, and with it the indentation
    of a function body.

    Args:
        tokenizer: The tokenizer.
        prompt_ids: Token ids of the prompt.
        ids: Token ids of the reply.

    Returns:
        Text of the reply; special tokens are left out.
    """
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    context = list(prompt_ids[-8:])
    before = str(tokenizer.decode(context, **options))
    both = str(tokenizer.decode(context + list(ids), **options))
    if both.startswith(before):
        return both[len(before) :]
    # The prompt's last character is completed by the reply; such a prompt is not made by ``build_prompt``.
    return str(tokenizer.decode(list(ids), **options))


def generate_samples(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    path: str | Path,
    *,
    style: str = "chat",
    prefill: str = "auto",
    variant: str = "instruct",
    examples: Sequence[Problem] = (),
    max_new_tokens: int = 448,
    batch_size: int | None = None,
    engine: Engine = "auto",
    desc: str = "answers",
) -> list[dict[str, Any]]:
    """Answer problems and append each answer to a samples file as it ends; problems in the file are skipped.

    Args:
        model: Causal language model.
        tokenizer: Its tokenizer.
        problems: The problems, of one benchmark or of several.
        path: ``samples.jsonl``; the official evaluators read it unchanged.
        style: Prompt style, see ``prompts.build_prompt``.
        prefill: Head of the answer block.
        variant: BigCodeBench prompt.
        examples: Solved MBPP problems for ``style="completion"``.
        max_new_tokens: Longest reply, in tokens.
        batch_size: Prompts in flight.
        engine: See ``generate``.
        desc: Label of the progress display.

    Returns:
        Rows of the file in the order of the problems.

    Raises:
        ValueError: The file holds answers made with other settings, or to other problems.
    """
    path = Path(path)
    prompts = [
        build_prompt(problem, tokenizer, style=style, prefill=prefill, variant=variant, examples=examples)
        for problem in problems
    ]
    done = _read_done(path, {prompt.task_id: prompt for prompt in prompts}, max_new_tokens)
    todo = [index for index, problem in enumerate(problems) if problem.task_id not in done]
    files.write_jsonl(path, done.values())
    with (
        locks.writing(path),
        progress(total=len(todo), desc=desc, unit="answer") as bar,
        _Appender(path) as file,
    ):

        def store(position: int, reply: Completion) -> None:
            index = todo[position]
            row = sample_row(problems[index], prompts[index], reply, max_new_tokens)
            file.append(row)
            done[row["task_id"]] = row
            bar.update(1)

        generate(
            model,
            tokenizer,
            [prompts[index] for index in todo],
            max_new_tokens=max_new_tokens,
            batch_size=batch_size,
            engine=engine,
            on_done=store,
        )
    rows = [done[problem.task_id] for problem in problems]
    files.write_jsonl(path, rows)
    return rows


def sample_row(problem: Problem, prompt: Prompt, reply: Completion, max_new_tokens: int) -> dict[str, Any]:
    """Return one row of ``samples.jsonl``."""
    return {
        "task_id": problem.task_id,
        "sample": 0,
        "solution": extract_answer(problem, prompt, reply.text),
        "raw_solution": reply.text,
        "finish": reply.finish,
        "new_tokens": len(reply.ids),
        "prompt_tokens": len(prompt.ids),
        "max_new_tokens": max_new_tokens,
        "settings": prompt.settings,
    }


class _Appender:
    """Appends rows to JSON Lines and syncs every two seconds, so that a kill costs seconds, not the run."""

    def __init__(self, path: Path) -> None:
        self.file = path.open("a", encoding="utf-8")
        self.synced = time.monotonic()

    def __enter__(self) -> _Appender:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def append(self, row: Mapping[str, Any]) -> None:
        self.file.write(json.dumps(row, ensure_ascii=False) + "\n")
        if time.monotonic() - self.synced > 2:
            self.file.flush()
            os.fsync(self.file.fileno())
            self.synced = time.monotonic()


def _read_done(path: Path, prompts: Mapping[str, Prompt], max_new_tokens: int) -> dict[str, dict[str, Any]]:
    if not path.exists():
        return {}
    done = {}
    for row in files.read_jsonl(path):
        prompt = prompts.get(row.get("task_id", ""))
        if prompt is None:
            raise ValueError(f"{path} holds an answer to {row.get('task_id')!r}, which is not among the problems")
        wanted = {"settings": prompt.settings, "max_new_tokens": max_new_tokens}
        found = {name: row.get(name) for name in wanted}
        if found != wanted:
            raise ValueError(f"{path} was made with {found}, now {wanted} is asked for: choose another file")
        done[row["task_id"]] = row
    return done


def _by_slots(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    batch_size: int | None,
) -> Iterator[tuple[int, Completion]]:
    longest = max(len(prompt.ids) for prompt in prompts) + max_new_tokens
    size = min(batch_size or default_batch_size(model, longest), len(prompts))
    decoder = slot_engine.SlotDecoder(model, slots=size, length=longest, ids=_usable_ids(model, tokenizer))
    ends, finishes = end_ids(model, tokenizer), {}

    def is_done(row: slot_engine.Row, new: int) -> bool:
        finish = _finish(row.ids, new, prompts[row.index], tokenizer, ends)
        if finish is not None:
            finishes[row.index] = finish
        return finish is not None

    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index].ids))
    for row in decoder.decode([prompt.ids for prompt in prompts], order, is_done, max_new_tokens):
        yield row.index, _completion(row.ids, finishes.get(row.index, "length"), prompts[row.index], tokenizer)


def _plain(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    batch_size: int | None,
) -> Iterator[tuple[int, Completion]]:
    """Answer by ``model.generate`` with left padding, batches of similar length."""
    device, _ = slot_engine.placement(model)
    ends, usable = end_ids(model, tokenizer), _usable_ids(model, tokenizer)
    size = batch_size or (8 if device.type != "cuda" else 192)
    filler = min(ends, default=0)
    # The checkpoint's own settings may ask for sampling or a repetition penalty (Qwen2.5: 1.1).
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        temperature=1.0,
        top_p=1.0,
        top_k=50,
        repetition_penalty=1.0,
        pad_token_id=filler,
        eos_token_id=sorted(ends),
        suppress_tokens=list(range(usable, _head_rows(model))) or None,
    )
    for batch in like_length([len(prompt.ids) for prompt in prompts], count=size, longest_first=True):
        ids, mask = pad([prompts[index].ids for index in batch], left=True, value=filler)
        width = ids.shape[1]
        stops = _Stops([prompts[index] for index in batch], tokenizer, width)
        output = (
            cast(Any, model)
            .generate(
                ids.to(device),
                attention_mask=mask.to(device),
                generation_config=settings,
                stopping_criteria=[stops],
            )[:, width:]
            .tolist()
        )
        for row, index in enumerate(batch):
            yield index, _shortened(output[row], prompts[index], tokenizer, ends)


class _Stops:
    """Stopping criterion of ``model.generate``: which rows have met a stop text (looked at every 8 steps)."""

    def __init__(self, prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, width: int) -> None:
        self.prompts, self.tokenizer, self.width = prompts, tokenizer, width
        self.done = torch.zeros(len(prompts), dtype=torch.bool)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        new = input_ids.shape[1] - self.width
        if new % 8 == 0:
            for row, prompt in enumerate(self.prompts):
                ids = input_ids[row, self.width :].tolist() if not self.done[row] else []
                if ids and _stop_met(ids, 8, prompt, self.tokenizer):
                    self.done[row] = True
        return self.done.to(input_ids.device)


def _shortened(ids: list[int], prompt: Prompt, tokenizer: PreTrainedTokenizerBase, ends: frozenset[int]) -> Completion:
    """Read the end of a reply that may be padded or run on after its stop text."""
    kept: list[int] = []
    for start in range(0, len(ids), 8):
        new = ids[start : start + 8]
        kept.extend(new)
        finish = _finish(kept, len(new), prompt, tokenizer, ends)
        if finish is not None:
            return _completion(kept, finish, prompt, tokenizer)
    return _completion(kept, "length", prompt, tokenizer)


def _finish(
    ids: list[int], new: int, prompt: Prompt, tokenizer: PreTrainedTokenizerBase, ends: frozenset[int]
) -> Finish | None:
    """Look at the newest ids; cut ``ids`` after an end token."""
    at = next((i for i in range(len(ids) - new, len(ids)) if ids[i] in ends), None)
    if at is not None:
        del ids[at + 1 :]
        return "eos"
    return "stop" if _stop_met(ids, new, prompt, tokenizer) else None


def _stop_met(ids: Sequence[int], new: int, prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> bool:
    tail = str(tokenizer.decode(list(ids[-(new + _TAIL) :]), skip_special_tokens=True))
    if "`" not in tail and not any(stop in tail for stop in prompt.stops):
        return False
    return find_stop(completion_text(tokenizer, prompt.ids, ids), prompt) is not None


def _completion(ids: Sequence[int], finish: str, prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> Completion:
    """Make the reply; one with a stop text is cut to the first ids that hold the text before it.

    Rows are looked at every few steps, so ids after a stop text are accidents of when that was.
    """
    text = completion_text(tokenizer, prompt.ids, ids)
    if (end := find_stop(text, prompt)) is not None:
        finish, text = "stop", text[:end]
        ids = ids[: _ids_within(tokenizer, prompt, ids, len(text))]
    return Completion(text, tuple(ids), finish)  # type: ignore[arg-type]


def _ids_within(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, ids: Sequence[int], characters: int) -> int:
    """Return the fewest ids whose text has at least so many characters (binary search)."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high) // 2
        if len(completion_text(tokenizer, prompt.ids, ids[:middle])) >= characters:
            high = middle
        else:
            low = middle + 1
    return low


def _usable_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return how many ids the tokenizer has; head rows behind them are padding and never generated."""
    return min(_head_rows(model), max(tokenizer.get_vocab().values()) + 1)


def _head_rows(model: PreTrainedModel) -> int:
    return cast(torch.Tensor, cast(Any, model.get_output_embeddings()).weight).shape[0]
