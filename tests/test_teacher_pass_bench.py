"""The bench of the teacher's pass: merged products change nothing, and rows say what they must say."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bench_scripts import bench, scripts  # noqa: F401  (a fixture)

from vocabx_utils import files
from vocabx_utils.training.teacher import tokens_of_a_pass


@pytest.mark.parametrize("biased", [False, True])
def test_merged_products_are_the_same_model(biased: bool) -> None:
    script = bench("teacher_pass")
    torch.manual_seed(0)
    model = bench("bench_parts").random_model("tiny").float()
    if biased:
        for layer in model.model.layers:
            for name in ("q_proj", "k_proj", "v_proj"):
                part = getattr(layer.self_attn, name)
                part.bias = torch.nn.Parameter(torch.randn(len(part.weight)))
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        before = model(ids).logits
        script.merge_gate_and_up(model)
        script.merge_query_key_value(model)
        after = model(ids).logits
        for layer in model.model.layers:  # the separate weights are not asked any more
            layer.mlp.gate_proj.weight.zero_()
            layer.self_attn.k_proj.weight.zero_()
        torch.testing.assert_close(model(ids).logits, before, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)


def test_a_row_a_way_and_none_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, fused = bench("teacher_pass"), []
    monkeypatch.setattr(script, "fuse", fused.append)
    sizes = ["--tokens", "64", "128", "--times", "1", "3", "--rounds", "1"]
    given = ["--workload", "tiny", *sizes, "--out", str(tmp_path)]
    script.main([*given, "--ways", "as it is"])
    script.main([*given, "--ways", "as it is", "gate and up in one"])
    [path] = tmp_path.glob("teacher-*.json")
    rows = files.read_json(path)["rows"]
    assert [(row["way"], row["tokens_of_a_pass"], row["texts"]) for row in rows] == [
        (way, tokens, texts) for way in ("as it is", "gate and up in one") for tokens in (64, 128) for texts in (8, 24)
    ]
    assert len(fused) == 2 and all(row["share"] == row["flops_per_s"] / row["ceiling_flops"] > 0 for row in rows)
    table = bench("report").teacher_table({"x": files.read_json(path)})
    assert table.count("\n") == 1 + len(rows) and bench("report").teacher_table({}) == "not measured"


def test_a_gpus_teacher_reads_more_at_once() -> None:
    assert [tokens_of_a_pass(torch.device(kind), 100) for kind in ("cpu", "cuda")] == [100, 400]
