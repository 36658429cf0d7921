"""Samples files: resumed by problem, refused where the settings are others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from evaluation.evaluation_parts import ds1000_problem, humaneval_problem, mbpp_problem, tiny_model
from transformers import PreTrainedTokenizerFast

from vocabx_utils.evaluation.benchmarks import Problem
from vocabx_utils.evaluation.decoding import generate
from vocabx_utils.evaluation.generation import SampleSettings, generate_samples, sample_answers
from vocabx_utils.evaluation.prompts import build_prompt
from vocabx_utils.healing import Healer
from vocabx_utils.vocabulary.spelling import spelling_of

PROBLEMS: list[Problem] = [humaneval_problem(0), humaneval_problem(1), mbpp_problem(), ds1000_problem()]


def test_samples_resume_by_problem(gpt2_like: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    model, path = tiny_model("llama", len(gpt2_like)), tmp_path / "samples.jsonl"
    rows = generate_samples(model, gpt2_like, PROBLEMS, path, SampleSettings(max_new_tokens=6))
    assert [row["task_id"] for row in rows] == [problem.task_id for problem in PROBLEMS]
    whole = path.read_text()
    lines = whole.splitlines(keepends=True)
    marked = json.loads(lines[1]) | {"solution": "kept"}
    path.write_text(json.dumps(marked) + "\n" + lines[3][: len(lines[3]) // 2])
    again = generate_samples(model, gpt2_like, PROBLEMS, path, SampleSettings(max_new_tokens=6))
    assert again[1]["solution"] == "kept" and again[0] == rows[0] and again[3] == rows[3]
    assert len(path.read_text().splitlines()) == 4


def test_samples_of_other_settings_are_refused(gpt2_like: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    model, path = tiny_model("llama", len(gpt2_like)), tmp_path / "samples.jsonl"
    generate_samples(model, gpt2_like, PROBLEMS[:1], path, SampleSettings(max_new_tokens=4))
    with pytest.raises(ValueError, match="another file"):
        generate_samples(model, gpt2_like, PROBLEMS[:1], path, SampleSettings(max_new_tokens=5))
    with pytest.raises(ValueError, match="another file"):
        generate_samples(model, gpt2_like, PROBLEMS[:1], path, SampleSettings(max_new_tokens=4, style="thesis"))
    with pytest.raises(ValueError, match="another file"):
        generate_samples(model, gpt2_like, PROBLEMS[:1], path, SampleSettings(max_new_tokens=4, heal=Healer([b"a"])))
    with pytest.raises(ValueError, match="not among the problems"):
        generate_samples(model, gpt2_like, PROBLEMS[1:2], path, SampleSettings(max_new_tokens=4))


def test_answers_of_before_there_was_healing_are_known(gpt2_like: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    model, path = tiny_model("llama", len(gpt2_like)), tmp_path / "samples.jsonl"
    rows = generate_samples(model, gpt2_like, PROBLEMS, path, SampleSettings(max_new_tokens=4))
    path.write_text("".join(json.dumps({k: v for k, v in row.items() if k != "healed"}) + "\n" for row in rows))
    again = generate_samples(model, gpt2_like, PROBLEMS, path, SampleSettings(max_new_tokens=4))
    assert [row["solution"] for row in again] == [row["solution"] for row in rows]


def test_healed_answers_are_those_of_a_healed_prompt(gpt2_like: PreTrainedTokenizerFast) -> None:
    model, prompts = tiny_model("llama", len(gpt2_like)), [build_prompt(p, gpt2_like, style="thesis") for p in PROBLEMS]
    healer = Healer(spelling_of(gpt2_like).raws)
    rows = sample_answers(model, gpt2_like, PROBLEMS, SampleSettings("thesis", max_new_tokens=6, heal=healer))
    expected = generate(model, gpt2_like, prompts, max_new_tokens=6, heal=healer)
    assert [row["raw_solution"] for row in rows] == [reply.text for reply in expected]
    assert all(row["healed"] for row in rows) and any(healer.cut(p.ids)[1] for p in prompts)


def test_answers_in_memory_are_those_of_the_file(gpt2_like: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    model, settings = tiny_model("llama", len(gpt2_like)), SampleSettings(max_new_tokens=6)
    rows = sample_answers(model, gpt2_like, PROBLEMS, settings)
    assert rows == generate_samples(model, gpt2_like, PROBLEMS, tmp_path / "samples.jsonl", settings)
    assert all(row.items() >= settings.written(problem).items() for row, problem in zip(rows, PROBLEMS, strict=True))
