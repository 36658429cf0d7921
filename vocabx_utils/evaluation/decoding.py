"""Replies of a model to prompts: greedy, batched, independent of batch size and order."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from vocabx_utils.batching import like_length, pad
from vocabx_utils.evaluation import slots as slot_engine
from vocabx_utils.evaluation.answers import find_stop
from vocabx_utils.evaluation.prompts import Prompt
from vocabx_utils.healing import Healer
from vocabx_utils.tokenizer_files import original_vocab_size

# the model ended the reply; a stop text or closing fence came; the limit was reached, so it may be truncated
Finish = Literal["eos", "stop", "length"]
Engine = Literal["auto", "slots", "plain"]
_END_TOKENS = ("<|im_end|>", "<|EOT|>", "<|endoftext|>", "<|eot_id|>")
_TAIL = 24  # ids decoded to look for a stop text; longer than any stop text
_CHUNK = 8  # steps of plain generation between two looks at the replies


@dataclass(frozen=True)
class Completion:
    """A reply."""

    text: str  # after the prompt, without end token, cut where a stop text or the closing fence ends it
    ids: tuple[int, ...]  # an end token included
    finish: Finish


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int = 448,
    batch_size: int | None = None,
    engine: Engine | slot_engine.SlotDecoder = "auto",
    heal: Healer | None = None,
    on_done: Callable[[int, Completion], None] = lambda index, reply: None,
) -> list[Completion]:
    """Answer prompts, of at least one token each, greedily; the replies are in the order of the prompts.

    Args:
        max_new_tokens: longest reply, in tokens, 1 or more.
        batch_size: prompts in flight; by default 8 on the CPU and as many as memory allows, at most 512, on
            a GPU.
        engine: `"slots"`: static cache, refilled rows, CUDA graphs; `"plain"`: `model.generate` with
            left padding, for models whose attention cannot be replaced; `"auto"` chooses; or what `prepare_engine`
            made for the same model and such prompts.
        heal: for prompts that may end inside a token: each is continued from where `Healer.cut` takes it back to. The
            text of a reply begins behind the prompt all the same, its ids where the kept part of the prompt ends; those
            that say again what was taken back come on top of `max_new_tokens`.
        on_done: called with index and reply as each reply ends.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; expected 1 or more")
    if empty := [prompt.task_id for prompt in prompts if not prompt.ids]:
        raise ValueError(f"{len(empty)} prompts have no token, the first is that of {empty[0]}")
    if not prompts:
        return []
    replies: dict[int, Completion] = {}
    healed = None if heal is None else Healing(model, tokenizer, prompts, heal, batch_size)
    asked = prompts if healed is None else healed.prompts
    if isinstance(engine, str):
        engine = prepare_engine(model, tokenizer, asked, max_new_tokens, batch_size, engine)
    if isinstance(engine, slot_engine.SlotDecoder):
        coming = _by_slots(engine, tokenizer, asked, max_new_tokens)
    else:
        coming = _plain(model, tokenizer, asked, max_new_tokens, batch_size)
    for index, reply in coming:
        replies[index] = reply if healed is None else healed.whole(index, reply)
        on_done(index, replies[index])
    return [replies[index] for index in range(len(prompts))]


def prepare_engine(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    batch_size: int | None = None,
    engine: Engine = "auto",
) -> Engine | slot_engine.SlotDecoder:
    """Return what `generate` chooses for such prompts, to be asked several times: slots keep what they recorded."""
    if engine == "plain" or (engine == "auto" and not slot_engine.supports(model)):
        return "plain"
    longest = max(len(prompt.ids) for prompt in prompts) + max_new_tokens
    size = min(batch_size or default_batch_size(model, longest), len(prompts))
    return slot_engine.SlotDecoder(model, slots=size, length=longest, ids=_usable_ids(model, tokenizer))


def default_batch_size(model: PreTrainedModel, length: int) -> int:
    """Return 8 on the CPU, else the prompts of `length` tokens that half the free memory holds, at most 512."""
    if model.device.type != "cuda":
        return 8
    free, _ = torch.cuda.mem_get_info(model.device)
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
    """Decode a reply, without special tokens, together with the end of its prompt, and cut by text.

    Decoded alone, a reply loses its leading space with SentencePiece tokenizers: the indentation of a function body.
    """
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    context = list(prompt_ids[-8:])
    before = str(tokenizer.decode(context, **options))
    both = str(tokenizer.decode(context + list(ids), **options))
    if both.startswith(before):
        return both[len(before) :]
    # The prompt's last character is completed by the reply; such a prompt is not made by `build_prompt`.
    return str(tokenizer.decode(list(ids), **options))


class Healing:
    """Prompts whose ends were taken back and said again, greedily and with the rest of the token that they cut apart.

    `prompts` are the prompts with what was said in place of their ends.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[Prompt],
        healer: Healer,
        batch_size: int | None = None,
    ) -> None:
        self.tokenizer, self.originals = tokenizer, prompts
        cuts = [healer.cut(prompt.ids) for prompt in prompts]
        self.kept = [prompt.ids[:count] for prompt, (count, _) in zip(prompts, cuts, strict=True)]
        self.taken = [taken for _, taken in cuts]
        self.said: list[list[int]] = [[] for _ in prompts]
        rests, usable = list(self.taken), _usable_ids(model, tokenizer)
        size = batch_size or _plain_batch_size(model)
        while waiting := [index for index, rest in enumerate(rests) if rest]:
            texts = [(*self.kept[index], *self.said[index]) for index in waiting]
            for batch in like_length([len(text) for text in texts], count=size, longest_first=True):
                scores = _next_scores(model, [texts[row] for row in batch])[:, :usable]
                chosen = healer.hold(scores, [rests[waiting[row]] for row in batch]).argmax(-1).tolist()
                for row, token in zip(batch, chosen, strict=True):
                    self.said[waiting[row]].append(token)
                    rests[waiting[row]] = healer.after(rests[waiting[row]], token)
        self.prompts = [
            replace(prompt, ids=(*kept, *said))
            for prompt, kept, said in zip(prompts, self.kept, self.said, strict=True)
        ]

    def whole(self, index: int, reply: Completion) -> Completion:
        """Put what was said before a reply in front of it, without the text that the prompt already holds."""
        ids = (*self.said[index], *reply.ids)
        known = len(self.taken[index].decode("utf-8", "replace"))
        text, finish = completion_text(self.tokenizer, self.kept[index], ids)[known:], reply.finish
        if (end := find_stop(text, self.originals[index])) is not None:
            text, finish = text[:end], "stop"
        return Completion(text, ids, finish)


@torch.inference_mode()
def _next_scores(model: PreTrainedModel, texts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Head products behind some texts, (B, rows of the head); capping and scaling do not change their order."""
    body, head = cast(Any, model.get_decoder()), cast(Any, model.get_output_embeddings())
    ids, _ = pad(texts)  # on the right, where causal attention never looks
    hidden = body(input_ids=ids.to(model.device), use_cache=False).last_hidden_state
    last = torch.tensor([len(text) - 1 for text in texts], device=hidden.device)
    scores: torch.Tensor = head(hidden[torch.arange(len(texts), device=hidden.device), last])
    return scores


@dataclass(frozen=True)
class ReplyReader:
    """Finds where replies end, in text and in ids; `ends` are the ids that end one."""

    tokenizer: PreTrainedTokenizerBase
    ends: frozenset[int]

    def finish(self, ids: list[int], new: int, prompt: Prompt) -> Finish | None:
        """Look at the newest ids; cut `ids` after an end token."""
        at = next((i for i in range(len(ids) - new, len(ids)) if ids[i] in self.ends), None)
        if at is not None:
            del ids[at + 1 :]
            return "eos"
        return "stop" if self.stop_met(ids, new, prompt) else None

    def stop_met(self, ids: Sequence[int], new: int, prompt: Prompt) -> bool:
        """Tell whether a stop text came with the newest ids."""
        tail = str(self.tokenizer.decode(list(ids[-(new + _TAIL) :]), skip_special_tokens=True))
        if "`" not in tail and not any(stop in tail for stop in prompt.stops):
            return False
        return find_stop(completion_text(self.tokenizer, prompt.ids, ids), prompt) is not None

    def completion(self, ids: Sequence[int], finish: Finish, prompt: Prompt) -> Completion:
        """Make the reply; one with a stop text is cut to the first ids that hold the text before it.

        Rows are looked at every few steps, so ids after a stop text are accidents of when that was.
        """
        text = completion_text(self.tokenizer, prompt.ids, ids)
        if (end := find_stop(text, prompt)) is not None:
            finish, text = "stop", text[:end]
            # the fewest ids whose text is at least as long
            within = bisect.bisect_left(
                range(len(ids)), end, key=lambda count: len(completion_text(self.tokenizer, prompt.ids, ids[:count]))
            )
            ids = ids[:within]
        return Completion(text, tuple(ids), finish)

    def shortened(self, ids: Sequence[int], prompt: Prompt, step: int = _CHUNK) -> Completion:
        """Read a reply that may be padded or run on after its stop text, `step` ids at a time."""
        kept: list[int] = []
        for start in range(0, len(ids), step):
            new = ids[start : start + step]
            kept.extend(new)
            finish = self.finish(kept, len(new), prompt)
            if finish is not None:
                return self.completion(kept, finish, prompt)
        return self.completion(kept, "length", prompt)


def _by_slots(
    decoder: slot_engine.SlotDecoder,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
) -> Iterator[tuple[int, Completion]]:
    reader = ReplyReader(tokenizer, end_ids(decoder.model, tokenizer))
    finishes: dict[int, Finish] = {}

    def is_done(row: slot_engine.Row, new: int) -> bool:
        finish = reader.finish(row.ids, new, prompts[row.index])
        if finish is not None:
            finishes[row.index] = finish
        return finish is not None

    for row in decoder.decode([prompt.ids for prompt in prompts], is_done, max_new_tokens):
        yield row.index, reader.completion(row.ids, finishes.get(row.index, "length"), prompts[row.index])


def _plain(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    max_new_tokens: int,
    batch_size: int | None,
) -> Iterator[tuple[int, Completion]]:
    """Answer by `model.generate` with left padding, batches of similar length."""
    reader = ReplyReader(tokenizer, end_ids(model, tokenizer))
    filler = min(reader.ends, default=0)
    # The checkpoint's own settings may ask for sampling or a repetition penalty (Qwen2.5: 1.1).
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        temperature=1.0,
        top_p=1.0,
        top_k=50,
        repetition_penalty=1.0,
        pad_token_id=filler,
        eos_token_id=sorted(reader.ends),
        suppress_tokens=list(range(_usable_ids(model, tokenizer), _head_rows(model))) or None,
    )
    size = batch_size or _plain_batch_size(model)
    for batch in like_length([len(prompt.ids) for prompt in prompts], count=size, longest_first=True):
        ids, mask = pad([prompts[index].ids for index in batch], left=True, value=filler)  # (B, T)
        stops = _Stops([prompts[index] for index in batch], reader, ids.shape[1])
        output = cast(Any, model).generate(
            ids.to(model.device),
            attention_mask=mask.to(model.device),
            generation_config=settings,
            stopping_criteria=[stops],
        )  # (B, T + new)
        for index, reply in zip(batch, output[:, ids.shape[1] :].tolist(), strict=True):
            yield index, reader.shortened(reply, prompts[index])


class _Stops:
    """Stopping criterion of `model.generate`: which rows have met a stop text (looked at every few steps)."""

    def __init__(self, prompts: Sequence[Prompt], reader: ReplyReader, width: int) -> None:
        self.prompts, self.reader, self.width = prompts, reader, width
        self.done = torch.zeros(len(prompts), dtype=torch.bool)

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        new = input_ids.shape[1] - self.width
        if new and new % _CHUNK == 0:
            for row, prompt in enumerate(self.prompts):
                if not self.done[row]:
                    self.done[row] = self.reader.stop_met(input_ids[row, self.width :].tolist(), _CHUNK, prompt)
        return self.done.to(input_ids.device)


def _plain_batch_size(model: PreTrainedModel) -> int:
    return 192 if model.device.type == "cuda" else 8


def _usable_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return how many ids the tokenizer has; head rows behind them are padding and never generated."""
    return min(_head_rows(model), original_vocab_size(tokenizer))


def _head_rows(model: PreTrainedModel) -> int:
    return cast(torch.Tensor, cast(Any, model.get_output_embeddings()).weight).shape[0]
