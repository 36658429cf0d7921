"""The models that are evaluated, read from what earlier notebooks wrote, and their results, kept in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from vocabx_utils import corpus, files, models, paths, runs, tokenizer_files
from vocabx_utils.evaluation.benchmarks import Problem, benchmark_of, load_benchmark
from vocabx_utils.evaluation.execution import Sample, execute
from vocabx_utils.evaluation.likelihood import Span, SpanScore, score_spans, shared_spans
from vocabx_utils.evaluation.programs import reference_answer
from vocabx_utils.evaluation.results import Result, write_official
from vocabx_utils.rows import read_history

CONTROL = "references"
"""Folder of the reference solutions beside those of the contenders."""
_TUNED = "tuned_"
_LONGEST = 700  # characters of a held-out pair


@dataclass(frozen=True)
class Contender:
    """One model under evaluation, plain Hugging Face, with its tokenizer, the original or the extended one."""

    name: str  # `base`, a variant of notebook 03, or `tuned_` and a variant that notebook 04 exported
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    first_new_id: int  # first id that the original tokenizer does not have
    fingerprint: str  # changes with the weights


def load_contender(run: runs.Run, name: str, base: models.BaseModel) -> Contender:
    """Load one contender of a run, in evaluation mode on the device of `base`, which is left as it is.

    A `MissingStageError` says which notebook has not made it; a `ModelError`, that the run extends another tokenizer.
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
    contents = (rows[key].float().contiguous().numpy().tobytes() for key in sorted(rows))
    fingerprint = files.digest([base.fingerprint, *(files.hash_bytes([content])[:16] for content in contents)])
    return Contender(name, model, tokenizer, first, fingerprint)


def require_contender(run: runs.Run, name: str) -> None:
    """Check that an earlier notebook has made a contender; a `MissingStageError` says which one has not."""
    if name.startswith(_TUNED):
        run.require("04", f"{name.removeprefix(_TUNED)}/exported")
    elif name != "base":
        read_history(run, name)


def extended_tokenizer(run: runs.Run) -> Path:
    """Return the folder of the extended tokenizer of notebook 01."""
    return run.require("01", "extension/extended")


def read_pairs(run: runs.Run, split: str) -> list[corpus.Pair]:
    """Return the pairs of a split of notebook 01: `tokenizer`, `train` or `validation`."""
    return corpus.pairs_from_jsonl(run.require("01", f"splits/{split}.jsonl"))


def held_out_spans(
    run: runs.Run, tokenizers: Sequence[PreTrainedTokenizerFast], first_new_id: int, count: int
) -> list[Span]:
    """Lay out at most `count` short validation pairs whose answers hold new tokens, the richest first.

    `tokenizers` are the original and the extended one, see `likelihood.shared_spans`.
    """
    original, extended = tokenizers
    short = [pair for pair in read_pairs(run, "validation") if len(pair.query) + len(pair.answer) <= _LONGEST]
    encoded = [extended(pair.answer, add_special_tokens=False)["input_ids"] for pair in short]
    counted = [(sum(i >= first_new_id for i in ids), pair) for ids, pair in zip(encoded, short, strict=True)]
    rich = [pair for new, pair in sorted(counted, key=lambda item: -item[0])[:count] if new]
    rendered = (corpus.render(pair, "thesis", original) for pair in rich)
    return shared_spans(((f"held out/{i}", r.text, r.answer_start) for i, r in enumerate(rendered)), tokenizers)


def open_folder(run: runs.Run, contender: Contender, settings: dict[str, object]) -> Path:
    """Claim the folder of a contender; a `KeyMismatchError` where it holds results of other settings or weights."""
    folder = run.stage("05", contender.name)
    runs.claim(folder, {"variant": contender.name, "weights": contender.fingerprint, **settings})
    return folder


def contender_bits(folder: Path, contender: Contender, spans: Sequence[Span]) -> list[SpanScore]:
    """Score spans by a contender, or read the scores of its `folder`; a `ValueError` where those are of other spans."""
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


def execute_contender(
    run: runs.Run,
    name: str,
    rows: Sequence[Mapping[str, Any]] | None,
    problems: Sequence[Problem],
    *,
    workers: int = 2,
    strict: bool = True,
) -> list[Result]:
    """Execute the answers of a contender into results files of its folder, one a benchmark.

    Where the folder holds the samples as well, `samples_eval_results.json` in BigCodeBench's own shape comes beside
    them. For errors see `execution.execute`.

    Args:
        rows: `task_id` and `solution` of an answer to each problem; None for the reference solutions, the control.
    """
    if rows is None:
        rows = [{"task_id": problem.task_id, "solution": reference_answer(problem)} for problem in problems]
    folder, found = run.stage("05", name), []
    for benchmark in dict.fromkeys(problem.benchmark for problem in problems):
        some = {problem.task_id: problem for problem in problems if problem.benchmark == benchmark}
        mine = [row for row in rows if row["task_id"] in some]
        path = folder / f"results_{benchmark}.jsonl"
        found += execute(mine, list(some.values()), path, workers=workers, strict=strict)
    if (samples := folder / "samples.jsonl").exists():
        write_official(found, [Sample(row["task_id"], row["solution"]) for row in rows], samples)
    return found


def answered(run: runs.Run) -> dict[str, list[dict[str, Any]]]:
    """Read the answers that notebook 05 left, the rows of `samples.jsonl` by contender: `base` first, then by name.

    A `MissingStageError` where there are none.
    """
    paths_found = (run.folder / paths.stage_name("05")).glob("*/samples.jsonl")
    found = {path.parent.name: files.read_jsonl(path) for path in paths_found}
    if not any(found.values()):
        run.require("05", "*/samples.jsonl")  # never exists under that name: raises with the remedy
    return {name: found[name] for name in sorted(found, key=lambda name: (name != "base", name))}


def execute_answered(
    run: runs.Run, answers: Mapping[str, Sequence[Mapping[str, Any]]], *, workers: int = 2, strict: bool = True
) -> dict[str, list[Result]]:
    """Execute the rows of `answered`, written elsewhere, such as on a machine without a sandbox; no model is needed.

    Results go where notebook 05 puts them, so that what is there already is not executed again; those of the reference
    solutions, the control, come first. A `ValueError` where the contenders answered different problems; for other
    errors see `execution.execute`.
    """
    wanted = {name: frozenset(row["task_id"] for row in rows) for name, rows in answers.items()}
    ids = frozenset().union(*wanted.values())
    if short := {name: len(ids - found) for name, found in wanted.items() if found != ids}:
        told = ", ".join(f"{name} lacks {count}" for name, count in short.items())
        raise ValueError(
            f"the answers of run {run.name!r} are to different problems ({told} of {len(ids)}): let notebook 05 "
            "finish, or remove the folder of what it no longer compares."
        )
    benchmarks = sorted({benchmark_of(task) for task in ids})
    problems = [problem for name in benchmarks for problem in load_benchmark(name) if problem.task_id in ids]
    rows_of: dict[str, Sequence[Mapping[str, Any]] | None] = {CONTROL: None, **answers}
    how: dict[str, Any] = {"workers": workers, "strict": strict}
    return {name: execute_contender(run, name, rows, problems, **how) for name, rows in rows_of.items()}
