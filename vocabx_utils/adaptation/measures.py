"""The finished model folder against the base, on files that nothing was chosen on: quality, speed and continuations."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch

from vocabx_utils.adaptation.plan import WINDOW
from vocabx_utils.adaptation.settings import AdaptSettings, Sizes
from vocabx_utils.adaptation.texts import Text, spread
from vocabx_utils.evaluation.decoding import Completion, generate, prepare_engine
from vocabx_utils.evaluation.likelihood import SpanScore, likelihood_table, score_spans, shared_spans, whole_spans
from vocabx_utils.evaluation.prompts import Prompt
from vocabx_utils.models import BaseModel
from vocabx_utils.progress import progress
from vocabx_utils.student import Student
from vocabx_utils.training.examples import choose_windows
from vocabx_utils.training.fusing import seconds_of
from vocabx_utils.training.teacher import ask_teacher
from vocabx_utils.training.validation import evaluate
from vocabx_utils.vocabulary.alignment import align_texts
from vocabx_utils.vocabulary.encoding import encode_each
from vocabx_utils.vocabulary.tokens import Extension

_PIECE = 1500  # characters that are scored together
_PROMPT, _BEHIND = 240, 160  # characters of a prompt, and what must follow it in its text
_FILES = 8  # below which an interval over files says nothing
_AT_ONCE = 64  # pieces scored between two looks at the clock
_ROUNDS = 3  # of timed generation
KL_NAMES = ("kl_last", "kl_identical", "kl_pooled_last")


@dataclass(frozen=True)
class Models:
    """The two models, and the rows before training."""

    base: BaseModel  # the original
    adapted: BaseModel  # the exported folder, loaded as anyone would
    extension: Extension  # both tokenizers
    untrained: tuple[torch.Tensor, torch.Tensor]  # first values of the rows, (N, D) each

    @property
    def new(self) -> slice:
        """Places of the new rows."""
        return slice(self.extension.V, self.extension.V + self.extension.N)

    def students(self) -> dict[str, Student]:
        """Return the model with its first rows, and with what was learned, as validation takes them."""
        v = self.extension.V
        learned = (self.adapted.input_rows[self.new], self.adapted.head_rows[self.new])
        return {
            "before": Student(self.base.model, v, *self.untrained),
            "after": Student(self.adapted.model, v, *learned),
        }


def divergence(models: Models, held_out: Sequence[Text], sizes: Sizes, seed: int) -> dict[str, Any]:
    """Measure the KL from the base at windows around new tokens of the held-out files.

    Returns:
        `windows`, `tokens`, and for "before" and "after" training the means of `KL_NAMES`, in nats per position.
    """
    extension = models.extension
    aligned = align_texts(extension, [text.read for text in held_out])
    if not any((text.extended_ids >= extension.V).any() for text in aligned):
        return {"windows": 0, "tokens": 0}
    examples = choose_windows(aligned, extension.V, extension.N, window=WINDOW, limit=sizes.held_out_windows, seed=seed)
    teacher = ask_teacher(models.base, examples, token_budget=sizes.token_budget)
    found: dict[str, Any] = {"windows": len(examples), "tokens": examples.tokens}
    for name, student in models.students().items():
        scores, _ = evaluate(student, examples, teacher, token_budget=sizes.token_budget)
        found[name] = {kind: scores[kind] for kind in KL_NAMES}
    return found


def likelihood(models: Models, held_out: Sequence[Text], sizes: Sizes, seed: int) -> dict[str, Any]:
    """Measure bits per byte of held-out text under the base, the untrained rows and the finished model.

    All are scored on the same bytes, in pieces of up to 1,500 characters. Differences to the base are paired by file,
    or by piece where there are few files; `units` says which.

    Returns:
        `rows` (those of `likelihood.likelihood_table`: base, before, after), `files`, `bytes`, `units`.
    """
    original, extended = models.extension.original, models.extension.extended
    pieces = spread(held_out, _PIECE, sizes.held_out_bytes)
    context = min(4096, _context(models.base) or 4096)
    spans = whole_spans(pieces, (original, extended), context)
    with progress(total=3 * len(spans), desc="bits per byte", unit="piece", delay=10) as bar:

        def scored(model: BaseModel, tokenizer: Any) -> list[SpanScore]:
            found: list[SpanScore] = []
            for start in range(0, len(spans), _AT_ONCE):
                part = spans[start : start + _AT_ONCE]
                found += score_spans(model.model, tokenizer, part, max_tokens=context)
                bar.update(len(part))
            return found

        scores = {"base": scored(models.base, original)}
        with _first_rows(models):
            scores["before"] = scored(models.adapted, extended)
        scores["after"] = scored(models.adapted, extended)
    files = len({span.task_id for span in spans})
    by_file = files >= _FILES
    units = {name: _together(found, by_file) for name, found in scores.items()}
    table = likelihood_table(units, reference="base", seed=seed).to_dict("records") if len(spans) > 1 else []
    found = {"rows": table, "files": files, "bytes": sum(span.size for span in spans)}
    return found | {"units": "files" if by_file else "pieces, since the files are few"}


def _together(scores: Sequence[SpanScore], by_file: bool) -> list[SpanScore]:
    """Sum the pieces of each file, the units that differences are paired by; of a single file, its pieces."""
    found: dict[str, SpanScore] = {}
    for number, score in enumerate(scores):
        name = score.task_id if by_file else f"{score.task_id} {number}"
        known = found.get(name, SpanScore(name, 0.0, 0, 0))
        found[name] = SpanScore(name, known.bits + score.bits, known.bytes + score.bytes, known.tokens + score.tokens)
    return list(found.values())


@contextlib.contextmanager
def _first_rows(models: Models) -> Iterator[None]:
    """Put the rows from before training into the finished model, and the learned ones back at the end."""
    places = [models.adapted.input_rows.data[models.new], models.adapted.head_rows.data[models.new]]
    learned = [place.clone() for place in places]
    try:
        for place, rows in zip(places, models.untrained, strict=True):
            place.copy_(rows.to(place))
        yield
    finally:
        for place, rows in zip(places, learned, strict=True):
            place.copy_(rows)


def packing(models: Models, held_out: Sequence[Text]) -> dict[str, Any]:
    """Count what tokens hold: characters per token on held-out text, and in a context of the model's length."""
    texts = [text.plain for text in held_out]
    characters = sum(map(len, texts))
    context = _context(models.base)
    found: dict[str, Any] = {"context": context}
    for name, tokenizer in (("base", models.extension.original), ("after", models.extension.extended)):
        per_token = characters / max(sum(map(len, encode_each(tokenizer, texts))), 1)
        found[name] = {"characters_per_token": per_token}
        if context:
            found[name]["context_characters"] = int(context * per_token)
    return found


def continuations(
    models: Models, held_out: Sequence[Text], settings: AdaptSettings, packed: dict[str, Any]
) -> dict[str, Any]:
    """Let both models continue the same prompts greedily, and time them in turn.

    What a model writes after a prompt may be anything, so its own characters per second say little about speed. The
    rate is therefore tokens per second, times the characters that a token holds on held-out text.

    Returns:
        `prompts`: prompt, and under "base" and "after" the continuation, its tokens and how many are new.
        `speed`: for both, `tokens_per_second` and `characters_per_second` (of the quickest round, the least disturbed
        one), those of all `rounds`, and `own` (characters per second of what it wrote); `ratio` of the two rates, and
        the `ratios` of the rounds, rising: their range tells how quiet the machine was.
    """
    spans = _prompts(models, held_out, settings.continuations)
    sides = {
        "base": (models.base, models.extension.original),
        "after": (models.adapted, models.extension.extended),
    }
    asked = {name: [_prompt(span, tokenizer) for span in spans] for name, (_, tokenizer) in sides.items()}
    engines = {
        name: prepare_engine(base.model, tokenizer, asked[name], settings.new_tokens)
        for name, (base, tokenizer) in sides.items()
    }
    replies: dict[str, list[Completion]] = {}
    times: dict[str, list[float]] = {name: [] for name in sides}

    def reply(name: str) -> None:
        base, tokenizer = sides[name]
        replies[name] = generate(
            base.model, tokenizer, asked[name], max_new_tokens=settings.new_tokens, engine=engines[name]
        )

    rounds = range(_ROUNDS + 1)  # the first one warms up
    for round_ in progress(rounds, desc="continuations", unit="round", delay=10):
        for name, (base, _) in sides.items():
            seconds = seconds_of(partial(reply, name), base.device)
            if round_:
                times[name].append(seconds)
    speed: dict[str, Any] = {}
    for name, found in replies.items():
        written = sum(len(reply.ids) for reply in found)
        tokens = [written / seconds for seconds in times[name]]
        per_token = packed[name]["characters_per_token"]
        speed[name] = {
            "tokens_per_second": max(tokens),
            "characters_per_second": max(tokens) * per_token,
            "rounds": [rate * per_token for rate in tokens],
            "own": sum(len(reply.text) for reply in found) / min(times[name]),
        }
    speed["ratio"] = speed["after"]["characters_per_second"] / speed["base"]["characters_per_second"]
    pairs = zip(speed["after"]["rounds"], speed["base"]["rounds"], strict=True)
    speed["ratios"] = sorted(after / base for after, base in pairs)
    first_new = models.extension.V
    prompts = [
        {"file": name, "prompt": text}
        | {
            side: {"text": found[k].text, "tokens": len(found[k].ids), "new": sum(i >= first_new for i in found[k].ids)}
            for side, found in replies.items()
        }
        for k, (name, text) in enumerate(spans)
    ]
    return {"prompts": prompts, "speed": speed, "batch": len(prompts), "new_tokens": settings.new_tokens}


def _prompts(models: Models, held_out: Sequence[Text], count: int) -> list[tuple[str, str]]:
    """Beginnings of held-out texts of different files, cut where both tokenizers have a boundary."""
    tokenizers = (models.extension.original, models.extension.extended)
    found: list[tuple[str, str]] = []
    for text in held_out:
        if text.rendered is not None:
            found.append((text.name, text.read[: text.rendered.answer_start]))
            continue
        end = text.plain.find("\n", _PROMPT) + 1
        if not 0 < end <= 2 * _PROMPT:
            end = _PROMPT
        if len(text.plain) >= end + _BEHIND and text.plain[end:].strip():
            [span] = shared_spans([(text.name, text.plain, end)], tokenizers)
            found.append((text.name, text.plain[: span.start]))
    if not found:  # short texts only
        longest = max(held_out, key=lambda text: len(text.read))
        middle = max(1, len(longest.read) // 2)
        [span] = shared_spans([(longest.name, longest.read, middle)], tokenizers)
        found = [(longest.name, longest.read[: span.start])]
    names = {name for name, _ in found}
    if len(names) >= count:  # one of each file
        found = list({name: (name, text) for name, text in reversed(found)}.values())[::-1]
    step = max(1, len(found) // count)
    return found[::step][:count]


def _prompt(span: tuple[str, str], tokenizer: Any) -> Prompt:
    name, text = span
    begun = bool(tokenizer.bos_token) and text.startswith(tokenizer.bos_token)  # by the template of a pair
    ids = tokenizer(text, add_special_tokens=not begun)["input_ids"]
    return Prompt(name, text, tuple(ids), "", False, (), "text")


def _context(base: BaseModel) -> int | None:
    return cast(int | None, getattr(base.model.config.get_text_config(), "max_position_embeddings", None))


def sample_cut(extension: Extension, held_out: Sequence[Text], characters: int = 700) -> dict[str, Any]:
    """Cut the passage with most new tokens into the tokens of both tokenizers, for the report.

    Returns:
        `file`, and for "base" and "after" the tokens in order, each as (text, whether it is new).
    """
    pieces = spread(held_out, characters, 400_000)
    encoded = encode_each(extension.extended, (text for _, text in pieces))
    dense = [sum(i >= extension.V for i in ids) for ids in encoded]
    name, piece = pieces[max(range(len(pieces)), key=lambda k: dense[k])]
    found: dict[str, Any] = {"file": name}
    for side, tokenizer in (("base", extension.original), ("after", extension.extended)):
        coded = tokenizer(piece, add_special_tokens=False, return_offsets_mapping=True)
        found[side] = [
            (piece[low:high], int(i) >= extension.V)
            for i, (low, high) in zip(coded["input_ids"], coded["offset_mapping"], strict=True)
            if high > low
        ]
    return found
