"""Variants from what earlier notebooks wrote, and their measurements kept in files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from evaluation.evaluation_parts import humaneval_problem, mbpp_problem
from tokenizers import AddedToken

from vocabx_utils import models, runs
from vocabx_utils.evaluation.likelihood import likelihood_table, reference_spans
from vocabx_utils.evaluation.results import Result
from vocabx_utils.evaluation.variants import last_rows, load_variant, open_folder, read_measured, spread, variant_bits
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
        runs.write_tensors(
            made.stage("03", "mean_ce") / "rows" / f"epoch_{epoch:02d}.safetensors",
            {"input_rows": rows, "head_rows": rows / 10},
        )
    return made


def test_variants_are_loaded_by_name(run: runs.Run, tiny_base: BaseModel) -> None:
    base = load_variant(run, "base", tiny_base)
    assert base.model is tiny_base.model
    variant = load_variant(run, "mean_ce", tiny_base)
    first = tiny_base.vocab_size
    assert last_rows(run, "mean_ce").name == "epoch_10.safetensors"
    assert torch.all(variant.model.get_input_embeddings().weight[first : first + 2] == 10)
    assert variant.fingerprint != base.fingerprint
    assert not any(parameter.requires_grad for parameter in variant.model.parameters())
    ids = variant.tokenizer("return a", add_special_tokens=False)["input_ids"]
    assert ids == [first]


def test_a_tuned_variant_is_read_from_its_export(run: runs.Run, tiny_base: BaseModel) -> None:
    with pytest.raises(runs.MissingStageError, match="04_fine_tuning"):
        load_variant(run, "tuned_mean_ce", tiny_base)
    folder = run.stage("04", "mean_ce") / "exported"
    extended = load_variant(run, "mean_ce", tiny_base)
    extended.model.save_pretrained(folder)
    extended.tokenizer.save_pretrained(folder)
    tuned = load_variant(run, "tuned_mean_ce", tiny_base)
    assert tuned.first_new_id == tiny_base.vocab_size
    assert len(tuned.tokenizer) == len(extended.tokenizer)


def test_missing_stages_name_their_notebook(run: runs.Run, tiny_base: BaseModel) -> None:
    with pytest.raises(runs.MissingStageError, match="03_phase1_training"):
        load_variant(run, "mean_kl_last", tiny_base)
    (run.stage("03", "empty") / "rows").mkdir()
    with pytest.raises(runs.MissingStageError, match="holds no epoch"):
        last_rows(run, "empty")


def test_bits_are_measured_once(run: runs.Run, tiny_base: BaseModel, monkeypatch: pytest.MonkeyPatch) -> None:
    variants = [load_variant(run, name, tiny_base) for name in ("base", "mean_ce")]
    spans = reference_spans(PROBLEMS, [variant.tokenizer for variant in variants])
    scores = {v.name: variant_bits(open_folder(run, v, {"style": "thesis"}), v, spans) for v in variants}
    table = likelihood_table(scores, reference="base").set_index("model")
    assert table.loc["base", "difference"] == 0.0
    gap = table.loc["mean_ce", "bits_per_byte"] - table.loc["base", "bits_per_byte"]
    assert table.loc["mean_ce", "difference"] == pytest.approx(gap)
    monkeypatch.setattr("vocabx_utils.evaluation.variants.score_spans", lambda *_: pytest.fail("measured again"))
    folder = open_folder(run, variants[0], {"style": "thesis"})
    assert variant_bits(folder, variants[0], spans) == scores["base"]
    with pytest.raises(ValueError, match="other texts"):
        variant_bits(folder, variants[0], spans[:1])
    with pytest.raises(runs.KeyMismatchError, match="style"):
        open_folder(run, variants[0], {"style": "chat"})


def test_scores_of_different_problems_are_not_compared(run: runs.Run, tiny_base: BaseModel, tmp_path: Path) -> None:
    base = load_variant(run, "base", tiny_base)
    spans = reference_spans(PROBLEMS, [base.tokenizer])
    scores = variant_bits(tmp_path, base, spans)
    with pytest.raises(ValueError, match="different problems"):
        likelihood_table({"base": scores, "other": scores[:1]}, reference="base")
    with pytest.raises(ValueError, match="reference"):
        likelihood_table({"base": scores}, reference="other")


def test_problems_are_spread_evenly() -> None:
    many = [humaneval_problem(number) for number in range(10)]
    assert [problem.task_id for problem in spread(many, 3)] == ["HumanEval/0", "HumanEval/3", "HumanEval/6"]
    assert spread(many, 0) == spread(many, 20) == many


RESULT = Result("x/0", 0, "pass", "", "", {}, 1, 1, 0.1, 10, 1, 3.0, "key", "bwrap", "humaneval", "hash")


def test_stored_evaluations_are_read_by_model_and_variant(tmp_path: Path) -> None:
    assert read_measured(tmp_path / "nothing") == {}
    for variant in ("base", "mean_ce"):
        for name in ("humaneval", "mbpp"):
            path = tmp_path / "Model-1B" / variant / f"results_{name}.jsonl"
            runs.write_jsonl(path, [RESULT.to_dict() | {"task_id": f"{name}/0"}])
    found = read_measured(tmp_path)
    assert {variant: len(rows) for variant, rows in found["Model-1B"].items()} == {"base": 2, "mean_ce": 2}
