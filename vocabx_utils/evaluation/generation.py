"""Answers of a model to benchmark problems, in memory or in a samples file that a stopped run continues."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vocabx_utils import files, locks
from vocabx_utils.evaluation.answers import extract_answer
from vocabx_utils.evaluation.benchmarks import Problem
from vocabx_utils.evaluation.decoding import Engine, generate
from vocabx_utils.evaluation.prompts import build_prompt, prompt_settings
from vocabx_utils.healing import Healer
from vocabx_utils.progress import progress

_SYNC_SECONDS = 2.0  # what a kill may cost


@dataclass(frozen=True)
class SampleSettings:
    """How answers are asked for (see `prompts.build_prompt`) and generated (see `decoding.generate`)."""

    style: str = "chat"
    prefill: str = "auto"  # head of the answer block
    wording: str = "instruct"  # BigCodeBench: `"instruct"` or `"complete"`
    examples: Sequence[Problem] = ()  # solved MBPP problems for `style="completion"`
    max_new_tokens: int = 448  # of the longest reply
    batch_size: int | None = None  # prompts in flight; None for as many as memory allows
    engine: Engine = "auto"
    heal: Healer | None = None  # takes ends of prompts back, for tokens that cross words; see `decoding.generate`

    def written(self, problem: Problem) -> dict[str, object]:
        """Return what every sample of a problem records of these settings."""
        prompt = prompt_settings(problem.benchmark, self.style, self.prefill, self.wording)
        return {"max_new_tokens": self.max_new_tokens, "settings": prompt, "healed": self.heal is not None}


def sample_answers(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    settings: SampleSettings | None = None,
    *,
    on_row: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """Answer problems, of one benchmark or of several, greedily; `on_row` is called with each row as its answer ends.

    Returns:
        One row a problem, in their order: `task_id`, `solution` (the code to execute), `raw_solution`, `finish` and
        how it was made. `execution.execute` and the official evaluators take them as they are.

    Example:
        >>> from vocabx_utils.evaluation.benchmarks import load_benchmark
        >>> problems = load_benchmark("humaneval")[:2]
        >>> rows = sample_answers(model, tokenizer, problems, SampleSettings("thesis", max_new_tokens=4))
        >>> [row["task_id"] for row in rows]  # and `evaluate_answers("humaneval", rows)` executes them
        ['HumanEval/0', 'HumanEval/1']
    """
    settings = settings or SampleSettings()
    asked = {"style": settings.style, "prefill": settings.prefill, "wording": settings.wording}
    prompts = [build_prompt(problem, tokenizer, **asked, examples=settings.examples) for problem in problems]
    rows: dict[int, dict[str, Any]] = {}

    def store(index: int, reply: Any) -> None:
        problem, prompt = problems[index], prompts[index]
        rows[index] = {
            "task_id": problem.task_id,
            "sample": 0,
            "solution": extract_answer(problem, prompt, reply.text),
            "raw_solution": reply.text,
            "finish": reply.finish,
            "new_tokens": len(reply.ids),
            "prompt_tokens": len(prompt.ids),
            **settings.written(problem),
        }
        on_row(rows[index])

    generate(
        model,
        tokenizer,
        prompts,
        max_new_tokens=settings.max_new_tokens,
        batch_size=settings.batch_size,
        engine=settings.engine,
        heal=settings.heal,
        on_done=store,
    )
    return [rows[index] for index in range(len(problems))]


def generate_samples(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    problems: Sequence[Problem],
    path: str | Path,
    settings: SampleSettings | None = None,
    *,
    desc: str = "answers",
) -> list[dict[str, Any]]:
    """Answer problems and append each answer to a samples file as it ends; problems in the file are skipped.

    The rows are those of `sample_answers`, in the order of the problems; official evaluators read the file unchanged.
    A `ValueError` where it holds answers made with other settings, or to other problems.
    """
    path, settings = Path(path), settings or SampleSettings()
    done = _read_done(path, {problem.task_id: settings.written(problem) for problem in problems})
    todo = [problem for problem in problems if problem.task_id not in done]
    files.write_jsonl(path, done.values())
    synced = time.monotonic()
    with (
        locks.writing(path),
        progress(total=len(todo), desc=desc, unit="answer") as bar,
        path.open("a", encoding="utf-8") as file,
    ):

        def store(row: dict[str, Any]) -> None:
            nonlocal synced
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            if time.monotonic() - synced > _SYNC_SECONDS:
                file.flush()
                os.fsync(file.fileno())
                synced = time.monotonic()
            done[row["task_id"]] = row
            bar.update(1)

        sample_answers(model, tokenizer, todo, settings, on_row=store)
    rows = [done[problem.task_id] for problem in problems]
    files.write_jsonl(path, rows)
    return rows


def _read_done(path: Path, wanted: Mapping[str, Mapping[str, object]]) -> dict[str, dict[str, Any]]:
    """Read the answers that a file holds; `wanted` are the settings that each must have, by problem."""
    done: dict[str, dict[str, Any]] = {}
    for row in files.read_jsonl(path) if path.exists() else ():
        task = row.get("task_id", "")
        if task not in wanted:
            raise ValueError(f"{path} holds an answer to {row.get('task_id')!r}, which is not among the problems")
        found = {name: row.get(name) for name in wanted[task]} | {"healed": row.get("healed", False)}
        if found != wanted[task]:
            raise ValueError(f"{path} was made with {found}, now {wanted[task]} is asked for: choose another file")
        done[task] = row
    return done
