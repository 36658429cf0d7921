"""Contenders from what earlier notebooks wrote, and their measurements kept in files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from evaluation.evaluation_parts import humaneval_problem, mbpp_problem
from tokenizers import AddedToken

from vocabx_utils import files, models, runs
from vocabx_utils.evaluation import contenders
from vocabx_utils.evaluation.contenders import (
    CONTROL,
    answered,
    contender_bits,
    execute_answered,
    execute_contender,
    held_out_spans,
    load_contender,
    open_folder,
    require_contender,
)
from vocabx_utils.evaluation.jail import SandboxUnavailableError, find_bubblewrap
from vocabx_utils.evaluation.likelihood import likelihood_table, reference_spans
from vocabx_utils.evaluation.programs import reference_answer
from vocabx_utils.models import BaseModel

PROBLEMS = [humaneval_problem(), mbpp_problem()]


@pytest.fixture
def run(tiny_base: BaseModel) -> runs.Run:
    """A run whose notebooks 01 and 03 left an extension of two tokens and one variant of two epochs."""
    made = runs.open_run("quick")
    folder = made.stage("01") / "extension" / "extended"
    tiny_base.tokenizer.save_pretrained(folder)
    tiny_base.tokenizer.save_pretrained(folder.parent / "original")
    extended = models.load_tokenizer(folder)
    extended.add_tokens([AddedToken("return a", normalized=False), AddedToken("twice", normalized=False)])
    extended.save_pretrained(folder)
    for epoch in (2, 10):
        rows = torch.full((2, tiny_base.width), float(epoch))
        files.write_tensors(
            made.stage("03", "mean_ce") / "rows" / f"epoch_{epoch:02d}.safetensors",
            {"input_rows": rows, "head_rows": rows / 10},
        )
    return made


def test_variants_are_loaded_by_name(run: runs.Run, tiny_base: BaseModel) -> None:
    base = load_contender(run, "base", tiny_base)
    assert base.model is tiny_base.model
    variant = load_contender(run, "mean_ce", tiny_base)
    first = tiny_base.vocab_size
    assert torch.all(variant.model.get_input_embeddings().weight[first : first + 2] == 10)
    assert variant.fingerprint != base.fingerprint
    assert not any(parameter.requires_grad for parameter in variant.model.parameters())
    ids = variant.tokenizer("return a", add_special_tokens=False)["input_ids"]
    assert ids == [first]


def test_a_tuned_variant_is_read_from_its_export(run: runs.Run, tiny_base: BaseModel) -> None:
    with pytest.raises(runs.MissingStageError, match="04_fine_tuning"):
        load_contender(run, "tuned_mean_ce", tiny_base)
    with pytest.raises(runs.MissingStageError, match="04_fine_tuning"):
        require_contender(run, "tuned_mean_ce")
    folder = run.stage("04", "mean_ce") / "exported"
    extended = load_contender(run, "mean_ce", tiny_base)
    extended.model.save_pretrained(folder)
    extended.tokenizer.save_pretrained(folder)
    tuned = load_contender(run, "tuned_mean_ce", tiny_base)
    assert tuned.first_new_id == tiny_base.vocab_size
    assert len(tuned.tokenizer) == len(extended.tokenizer)


def test_missing_stages_name_their_notebook(run: runs.Run, tiny_base: BaseModel) -> None:
    with pytest.raises(runs.MissingStageError, match="03_phase1_training"):
        load_contender(run, "mean_kl_last", tiny_base)
    with pytest.raises(runs.MissingStageError, match="03_phase1_training"):
        require_contender(run, "mean_kl_last")
    require_contender(run, "mean_ce")
    require_contender(run, "base")
    (run.stage("03", "empty") / "rows").mkdir()
    with pytest.raises(runs.MissingStageError, match="no phase-1 rows of variant 'empty'"):
        load_contender(run, "empty", tiny_base)


def test_bits_are_measured_once(run: runs.Run, tiny_base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = [load_contender(run, name, tiny_base) for name in ("base", "mean_ce")]
    spans = reference_spans(PROBLEMS, [variant.tokenizer for variant in variants])
    scores = {v.name: contender_bits(open_folder(run, v, {"style": "thesis"}), v, spans) for v in variants}
    table = likelihood_table(scores, reference="base").set_index("model")
    assert table.loc["base", "difference"] == 0.0
    gap = table.loc["mean_ce", "bits_per_byte"] - table.loc["base", "bits_per_byte"]
    assert table.loc["mean_ce", "difference"] == pytest.approx(gap)
    monkeypatch.setattr("vocabx_utils.evaluation.contenders.score_spans", lambda *_: pytest.fail("measured again"))
    folder = open_folder(run, variants[0], {"style": "thesis"})
    assert contender_bits(folder, variants[0], spans) == scores["base"]
    with pytest.raises(ValueError, match="other texts"):
        contender_bits(folder, variants[0], spans[:1])
    with pytest.raises(runs.KeyMismatchError, match="style"):
        open_folder(run, variants[0], {"style": "chat"})


def test_scores_of_different_problems_are_not_compared(run: runs.Run, tiny_base: BaseModel, tmp_path: Path) -> None:
    base = load_contender(run, "base", tiny_base)
    spans = reference_spans(PROBLEMS, [base.tokenizer])
    scores = contender_bits(tmp_path, base, spans)
    with pytest.raises(ValueError, match="different problems"):
        likelihood_table({"base": scores, "other": scores[:1]}, reference="base")
    with pytest.raises(ValueError, match="reference"):
        likelihood_table({"base": scores}, reference="other")


def test_answers_to_several_benchmarks_are_executed_into_one_file_each(run: runs.Run) -> None:
    try:
        find_bubblewrap()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    code = {PROBLEMS[0].task_id: "def add(a, b):\n    return a + b", PROBLEMS[1].task_id: "def twice(x):\n    return x"}
    rows = [{"task_id": task, "solution": text} for task, text in reversed(code.items())]
    found = execute_contender(run, "references", rows, PROBLEMS)
    assert [(row.task_id, row.passed) for row in found] == [("HumanEval/0", True), ("Mbpp/11", False)]
    folder = run.stage("05", "references")
    assert sorted(path.name for path in folder.glob("*.json*")) == ["results_humaneval.jsonl", "results_mbpp.jsonl"]
    files.write_jsonl(folder / "samples.jsonl", rows)
    assert execute_contender(run, "references", rows, PROBLEMS) == found
    control = execute_contender(run, "control", None, PROBLEMS)
    assert all(row.passed for row in control)
    official = files.read_json(folder / "samples_eval_results.json")["eval"]
    assert official["Mbpp/11"][0]["status"] == "fail"


def test_held_out_spans_begin_with_the_richest_pair(run: runs.Run, tiny_base: BaseModel) -> None:
    answers = ["return a", "nothing new", "twice twice return a", "twice " * 400]
    pairs = [{"query": f"q{number}", "answer": answer} for number, answer in enumerate(answers)]
    files.write_jsonl(run.stage("01") / "splits" / "validation.jsonl", pairs)
    tokenizers = [tiny_base.tokenizer, load_contender(run, "mean_ce", tiny_base).tokenizer]
    spans = held_out_spans(run, tokenizers, tiny_base.vocab_size, 9)
    assert [span.text.split("q")[1][0] for span in spans] == ["2", "0"]
    assert len(held_out_spans(run, tokenizers, tiny_base.vocab_size, 1)) == 1
    assert all(span.text[span.start :].lstrip().startswith(("twice", "return")) for span in spans)


def test_answers_that_were_written_elsewhere_are_executed_without_a_model(
    run: runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contenders, "load_benchmark", lambda name: [p for p in PROBLEMS if p.benchmark == name])
    with pytest.raises(runs.MissingStageError, match="05_benchmark_evaluation"):
        answered(run)
    right = [{"task_id": problem.task_id, "solution": reference_answer(problem)} for problem in PROBLEMS]
    wrong = [row | {"solution": "def twice(x):\n    return x"} for row in right]
    for name, rows in {"mean_ce": wrong, "base": right}.items():
        files.write_jsonl(run.stage("05", name) / "samples.jsonl", rows)
    assert list(answered(run)) == ["base", "mean_ce"]
    with pytest.raises(ValueError, match=r"different problems.*mean_ce lacks 1 of 2"):
        execute_answered(run, {"base": right, "mean_ce": wrong[:1]})
    try:
        find_bubblewrap()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))
    found = execute_answered(run, answered(run))
    assert {name: [row.passed for row in rows] for name, rows in found.items()} == {
        CONTROL: [True, True],
        "base": [True, True],
        "mean_ce": [False, False],
    }
    assert (run.stage("05", "mean_ce") / "results_mbpp.jsonl").exists()
