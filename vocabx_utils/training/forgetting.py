"""What fine-tuning costs elsewhere: bits per byte on the domain, on another language and on prose.

Per-token losses of two tokenizers cannot be compared; bits per byte can. Each text is scored whole, its first token
given a begin (or end) token, so that both tokenizers answer for exactly the same bytes.

Legend: V original vocabulary, N new tokens.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from vocabx_utils import corpus, files
from vocabx_utils.student import token_losses
from vocabx_utils.training.batches import collate, plan_epoch
from vocabx_utils.training.examples import Example
from vocabx_utils.training.loss_model import LossModel
from vocabx_utils.training.stages import matrices_of
from vocabx_utils.vocabulary.spelling import spelling_of


@dataclass(frozen=True)
class TextSet:
    """Texts of one kind, and where they come from."""

    name: str
    texts: tuple[str, ...]
    source: str

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of all texts."""
        return sum(len(text.encode()) for text in self.texts)


@dataclass(frozen=True)
class Snapshot:
    """Measure a model between stages; give it to `fine_tune` as `observe`."""

    tokenizer: PreTrainedTokenizerFast
    limit: int  # V + N, the ids that count; padding rows take no probability
    new_ids: range
    sets: tuple[TextSet, ...]  # for bits per byte; the first four texts also for the probability of new rows
    prompt: str = ""  # continued greedily; empty for none
    max_new_tokens: int = 48
    tokens_per_batch: int = 4096  # padded tokens of one forward pass; longer texts are refused

    def __call__(self, stage: str, model: PreTrainedModel) -> dict[str, Any]:
        """Return bits per byte by set, the mean probability of all new tokens together, and the continued prompt.

        The continuation is `text`, and `marked` with brackets around each of its `new_tokens`.
        """
        model.eval()
        sizes = {group.name: [len(text.encode()) for text in group.texts] for group in self.sets}
        bits: dict[str, np.ndarray] = {}
        seen: dict[str, Any] = {}
        if self.sets:  # all of them in one pass, which serves both measures
            texts = [text for group in self.sets for text in group.texts]
            read = _read_once(model, self.tokenizer, texts, self.limit, self.tokens_per_batch)
            ends = np.cumsum([len(group.texts) for group in self.sets])
            bits = dict(zip(sizes, np.split(read.bits(), ends[:-1]), strict=True))
            if len(self.new_ids):
                # far above the share of new tokens in such texts, it tells of rows that are too strong
                seen["new_row_mass"] = read.new_mass(self.new_ids, len(self.sets[0].texts[:4]))
        seen |= {
            "bits_per_byte": {name: float(values.sum()) / sum(sizes[name]) for name, values in bits.items()},
            "bits": {name: [round(float(value), 3) for value in values] for name, values in bits.items()},
            "bytes": sizes,
            "sources": {group.name: group.source for group in self.sets},
        }
        return seen | (self._continue(model) if self.prompt else {})

    def _continue(self, model: PreTrainedModel) -> dict[str, Any]:
        """Continue the prompt greedily; return what was added, plainly and marked, and how many new tokens it holds."""
        tokenizer, padding = self.tokenizer, range(self.limit, len(matrices_of(model)[1]))
        ids = tokenizer(self.prompt, add_special_tokens=False, return_tensors="pt")["input_ids"].to(model.device)
        generate: Any = model.generate
        out = generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=self.max_new_tokens,
            pad_token_id=tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id,
            suppress_tokens=list(padding) or None,
            use_cache=True,
        )
        # decoded together with the prompt: a token's leading space is lost at the start of a text
        whole, given = (str(tokenizer.decode(part, skip_special_tokens=True)) for part in (out[0], ids[0]))
        added = out[0, ids.shape[1] :].tolist()
        new = sum(i in self.new_ids for i in added)
        return {"text": whole[len(given) :], "marked": self._mark(added), "new_tokens": new}

    def _mark(self, ids: Sequence[int]) -> str:
        """Spell ids as text, without special tokens, with brackets around each new one."""
        spelling, special = spelling_of(self.tokenizer), set(self.tokenizer.all_special_ids)
        raws = ((i, spelling.raw_of(i)) for i in ids if i not in special)
        return b"".join(b"[" + raw + b"]" if i in self.new_ids else raw for i, raw in raws).decode("utf-8", "replace")


def forgetting_texts(
    domain: Iterable[str], *, max_texts: int = 24, max_chars: int = 600, language: str = "javascript"
) -> tuple[TextSet, ...]:
    """The three sets of the forgetting table: domain, code of another language, English prose.

    With `$VOCABX_DATA` the last two are answers of Code Alpaca in `language` and in plain text; without it they
    are files of installed packages: C headers of numpy with scripts of matplotlib, and the data set descriptions of
    scikit-learn with licences.

    A set has at most `max_texts`, evenly spread over what there is, each cut at a line end to `max_chars` characters.
    """
    path = corpus.data_path("code_alpaca_20k.jsonl.gz")
    if path is not None:
        code, code_source = _alpaca(path, language), f"Code Alpaca, {language}"
        prose, prose_source = _alpaca(path, "text"), "Code Alpaca, text"
    else:
        code = [*_read("numpy", r"\.h$"), *_read("matplotlib", r"\.js$")]
        code_source = "numpy headers, matplotlib scripts"
        prose = [*_read("scikit-learn", r"\.rst$"), *_licences()]
        prose_source = "scikit-learn descriptions, licences"
    found = {
        "domain": (domain, "validation split"),
        "other language": (code, code_source),
        "English prose": (prose, prose_source),
    }
    return tuple(TextSet(name, _trim(texts, max_texts, max_chars), source) for name, (texts, source) in found.items())


def forgetting_table(observed: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> pd.DataFrame:
    """One row per variant and set: bits per byte at the start (before), at the last stage (after), and the change.

    `observed` are `FineTuned.observed` by variant.
    """
    rows = []
    for variant, stages in observed.items():
        before, after = stages["start"]["bits_per_byte"], list(stages.values())[-1]["bits_per_byte"]
        path = "+".join(key for key in stages if key != "start")
        for name, value in before.items():
            rows.append((variant, path, name, value, after[name], after[name] - value))
    return pd.DataFrame(rows, columns=["variant", "stages", "set", "before", "after", "change"])


@dataclass(frozen=True)
class _ReadTexts:
    """Texts that a model has read once: their ids, final hidden states (T, D) of each, the head rows that count."""

    examples: list[Example]
    states: list[Tensor]
    head: Tensor

    def bits(self) -> np.ndarray:
        """Negative log2-likelihood of each text, float64."""
        states = torch.cat([part[:-1] for part in self.states])
        targets = torch.from_numpy(np.concatenate([example.ids[1:] for example in self.examples]))
        losses = token_losses(states, self.head, targets.to(states.device))
        parts = losses.split([example.targets for example in self.examples])
        return torch.stack([part.sum() for part in parts]).double().cpu().numpy() / math.log(2)

    @torch.no_grad()
    def new_mass(self, new_ids: range, count: int) -> float:
        """Mean probability of all new tokens together, over every position of the first `count` texts."""
        head = self.head.to(self.states[0].dtype)
        shares = [
            torch.softmax((states @ head.T).float(), -1)[:, new_ids.start :].sum(-1) for states in self.states[:count]
        ]
        return float(torch.cat(shares).mean())


@torch.no_grad()
def _read_once(
    model: Any, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str], limit: int, tokens_per_batch: int
) -> _ReadTexts:
    if not texts or not all(texts):
        raise ValueError("bits per byte need at least one text, and none may be empty")
    examples = _with_start(tokenizer, texts)
    plain = model.get_base_model() if hasattr(model, "peft_config") else model  # adapters stay active
    tuned = LossModel(plain, limit, matrices_of(model)[1].dtype).eval()
    states = [torch.empty(0)] * len(examples)
    plan = plan_epoch(examples, tokens_per_step=tokens_per_batch, tokens_per_batch=tokens_per_batch)
    for batch in (batch for step in plan for batch in step.batches):
        hidden, _ = tuned.states(collate(examples, batch)[0].to(model.device))
        for row, number in enumerate(batch):
            states[number] = hidden[row, : len(examples[number].ids)]
    return _ReadTexts(examples, states, tuned.head())


def _with_start(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[Example]:
    """Ids of each text behind a begin (or end) token, so that its first token is answered for too."""
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if start is None:
        raise ValueError("the tokenizer has neither a begin nor an end token to start a text with")
    coded = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts)
    return [Example(np.asarray([start, *ids], dtype=np.int64), 1) for ids in coded]


def _trim(texts: Iterable[str], max_texts: int, max_chars: int) -> tuple[str, ...]:
    """A spread of the texts, each cut at a line end."""
    kept = [text for text in texts if text.strip()]
    chosen = [kept[k * len(kept) // max_texts] for k in range(max_texts)] if len(kept) > max_texts else kept
    return tuple(_cut_lines(text, max_chars) for text in chosen)


def _cut_lines(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    end = text.rfind("\n", 0, max_chars)
    return text[: end if end > max_chars // 2 else max_chars]


def _alpaca(path: Path, lang: str, shortest: int = 200) -> list[str]:
    rows = (row for _, row in files.iterate_jsonl(path, allow_torn=False))
    return [row["answer"] for row in rows if row["lang"] == lang and len(row["answer"]) >= shortest]


def _licences() -> list[str]:
    """The different licence texts of the installed packages."""
    texts: list[str] = []
    for distribution in ("numpy", "pandas", "scipy", "scikit-learn", "transformers", "safetensors"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            texts += _read(distribution, r"(?i)licen[^/]*$")
    return list(dict.fromkeys(texts))


def _read(distribution: str, name: str) -> Iterator[str]:
    """Texts of an installed package's files that are neither short nor huge."""
    for file in sorted(importlib.metadata.files(distribution) or []):
        path = Path(str(file.locate()))
        if re.search(name, str(file)) and path.is_file() and path.stat().st_size < 200_000:
            text = path.read_text(encoding="utf-8", errors="ignore")
            if len(text) > 200:
                yield text
