"""The models that are evaluated, read from what earlier notebooks wrote, and their results, kept in files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from vocabx_utils import corpus, files, models, paths, runs, tokenizer_files
from vocabx_utils.evaluation.likelihood import Span, SpanScore, score_spans
from vocabx_utils.rows import read_history

_TUNED = "tuned_"
_LONGEST = 700  # characters of a held-out pair


@dataclass(frozen=True)
class Contender:
    """One model under evaluation.

    Attributes:
        name: `base`, a variant of notebook 03, or `tuned_` and a variant that notebook 04 exported.
        model: plain Hugging Face model.
        tokenizer: its tokenizer, the original or the extended one.
        first_new_id: first id that the original tokenizer does not have.
        fingerprint: changes with the weights.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    first_new_id: int
    fingerprint: str


def load_contender(run: runs.Run, name: str, base: models.BaseModel) -> Contender:
    """Load one contender of a run.

    Args:
        base: the original model; it is left as it is.

    Returns:
        The contender, in evaluation mode on the device of `base`.

    Raises:
        MissingStageError: an earlier notebook has not made it; the message says which.
        ModelError: the run extends another tokenizer than that of `base`.
    """
    first = base.vocab_size
    if name == "base":
        return Contender(name, base.model, base.tokenizer, first, base.fingerprint)
    tokenizer_files.require_run_tokenizer(base, run)
    if name.startswith(_TUNED):
        folder = run.require("04", f"{name.removeprefix(_TUNED)}/exported")
        tuned = models.load_base_model(folder, device=str(base.device), dtype=str(base.dtype).removeprefix("torch."))
        return Contender(name, tuned.model, tuned.tokenizer, first, tuned.fingerprint)
    tokenizer = models.load_tokenizer(extended_tokenizer(run))
    rows = files.read_tensors(read_history(run, name).file())
    model = models.with_extra_rows(base, rows["input_rows"], rows["head_rows"], first)
    model = model.eval().requires_grad_(False).to(base.device)
    fingerprint = files.digest([base.fingerprint, *(_checksum(rows[key]) for key in sorted(rows))])
    return Contender(name, model, tokenizer, first, fingerprint)


def extended_tokenizer(run: runs.Run) -> Path:
    """Return the folder of the extended tokenizer of notebook 01."""
    return run.require("01", "extension/extended")


def held_out(run: runs.Run, tokenizer: PreTrainedTokenizerFast, first_new_id: int, count: int) -> list[corpus.Pair]:
    """Return validation pairs of notebook 01 whose answers hold new tokens, the richest first.

    Args:
        first_new_id: first new id.
        count: most pairs.
    """
    rows = files.read_jsonl(run.require("01", "splits/validation.jsonl"))
    pairs = [corpus.Pair(row["query"], row["answer"], row.get("lang", ""), row.get("source", "")) for row in rows]
    short = [pair for pair in pairs if len(pair.query) + len(pair.answer) <= _LONGEST]

    def new(pair: corpus.Pair) -> int:
        return sum(i >= first_new_id for i in tokenizer(pair.answer, add_special_tokens=False)["input_ids"])

    counts = {id(pair): new(pair) for pair in short}
    rich = [pair for pair in short if counts[id(pair)]]
    return sorted(rich, key=lambda pair: -counts[id(pair)])[:count]


def open_folder(run: runs.Run, contender: Contender, settings: dict[str, object]) -> Path:
    """Claim the folder of a contender for results made with these settings.

    Raises:
        KeyMismatchError: it holds results of other settings or other weights.
    """
    folder = run.stage("05", contender.name)
    runs.claim(folder, {"variant": contender.name, "weights": contender.fingerprint, **settings})
    return folder


def contender_bits(folder: Path, contender: Contender, spans: Sequence[Span]) -> list[SpanScore]:
    """Score spans by a contender, or read the scores if `folder` holds them.

    Args:
        folder: folder of the contender, see `open_folder`.

    Raises:
        ValueError: the file belongs to other spans.
    """
    path = folder / "bits_per_byte.jsonl"
    digest = corpus.fingerprint(f"{span.task_id} {span.start} {span.text}" for span in spans)
    if path.exists():
        rows = files.read_jsonl(path)
        if any(row.pop("spans", None) != digest for row in rows) or len(rows) != len(spans):
            raise ValueError(f"{paths.show_path(path)} was measured on other texts: remove it to measure again")
        return [SpanScore(**row) for row in rows]
    scores = score_spans(contender.model, contender.tokenizer, spans)
    files.write_jsonl(path, [asdict(score) | {"spans": digest} for score in scores])
    return scores


def _checksum(tensor: Tensor) -> str:
    return files.hash_bytes([tensor.float().contiguous().numpy().tobytes()])[:16]
