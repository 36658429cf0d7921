"""The two GPU measurements, end to end on a tiny model: unattended, and continued where a call ended."""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from tiny import pairs

from vocabx_utils import corpus, files
from vocabx_utils.claims import judge_tuned
from vocabx_utils.evaluation.prompts import resolve_prefill
from vocabx_utils.measured import read_bench, read_finetuning, stage_table
from vocabx_utils.models import load_base_model
from vocabx_utils.vocabulary.tokens import load_extension

BENCH = Path(__file__).parent / "bench"


def script(name: str) -> ModuleType:
    """Import a script as if it were started: what lies beside it can be imported."""
    if str(BENCH) not in sys.path:
        sys.path.append(str(BENCH))
    spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def anchors_arguments(tmp_path: Path, tiny_folder: Path) -> list[str]:
    splits = {"tokenizer": pairs(12), "train": pairs(8), "validation": pairs(12)[8:]}
    with gzip.open(tmp_path / "python.jsonl.gz", "wt", encoding="utf-8") as file:
        for split, some in splits.items():
            file.writelines(json.dumps({"split": split, **vars(pair)}) + "\n" for pair in some)
    options = "--label Tiny --n 6 --train 8 --validation 4 --curve 3 --epochs 1 --thesis-epochs 1 --thesis-restart 1"
    return [
        *("--model", str(tiny_folder), "--data", str(tmp_path / "python.jsonl.gz"), "--out", str(tmp_path / "out")),
        *options.split(),
    ]


def test_anchors_continue_and_feed_the_claims(
    tmp_path: Path, anchors_arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    anchors = script("anchors")
    first = ["mean_untrained", "mean_kl_last", "mean_kl_first@thesis", "mean_hidden_last"]
    assert anchors.main([*anchors_arguments, "--variants", *first[:2]]) == 0
    out = tmp_path / "out" / "Tiny-python-added.jsonl"
    before = out.read_text()
    with out.open("a") as file:
        file.write('{"name": "mean_hidden_last", "kl_la')  # a call that was killed while it wrote

    train, seen = anchors.train_variant, []

    def only_hidden_works(name: str, *rest: Any, **options: Any) -> Any:
        seen.append(name)
        if name == "mean_kl_first":
            raise ValueError("a variant that cannot be trained")
        return train(name, *rest, **options)

    monkeypatch.setattr(anchors, "train_variant", only_hidden_works)
    assert anchors.main([*anchors_arguments, "--variants", *first]) == 1
    assert seen == ["mean_kl_first", "mean_hidden_last"]  # what is there is not measured again, one failure is no end
    assert "a variant that cannot be trained" in capsys.readouterr().err
    assert out.read_text().startswith(before)
    monkeypatch.undo()
    assert anchors.main([*anchors_arguments, "--variants", *first, "mean_untrained@n3", "mean_kl_last@n3"]) == 0

    rows = read_bench(tmp_path / "out")
    assert [row["name"] for row in rows] == [
        "mean_untrained", "mean_kl_last", "mean_hidden_last", "mean_kl_first@thesis", "mean_untrained@n3",
        "mean_kl_last@n3",
    ]  # fmt: skip
    assert {row["model"] for row in rows} == {"Tiny"} and [row["n"] for row in rows][-1] == 3
    assert [len(row["curve"]) for row in rows] == [1, 2, 2, 3, 1, 2]


def test_anchors_start_nothing_that_would_end_too_late(
    tmp_path: Path, anchors_arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    files.append_jsonl(tmp_path / "out" / "Tiny-python-added.jsonl", {"name": "mean_ce", "seconds": 500.0})
    assert script("anchors").main([*anchors_arguments, "--variants", "mean_untrained", "--minutes", "8"]) == 0
    assert "left out: 8 minutes would not do" in capsys.readouterr().out


def test_groups_are_spelled_as_the_trainer_reads_them() -> None:
    anchors = script("anchors")
    names = [name for group in anchors.GROUPS.values() for name in group]
    assert len(names) == len(set(names)) and all(anchors.spelled(name, 800) for name in names)
    with pytest.raises(SystemExit, match="unknown mark @thsis"):
        anchors.spelled("mean_ce@thsis", 800)


def test_fine_tuning_starts_from_the_rows_that_anchors_wrote(
    tmp_path: Path, tiny_folder: Path, anchors_arguments: list[str]
) -> None:
    """The same corpus, tokens and rows on both sides, so that stage a goes on where phase 1 ended."""
    anchors, finetune = script("anchors"), script("finetune")
    assert anchors.main([*anchors_arguments, "--variants", "mean_kl_last"]) == 0
    options = f"--corpus {tmp_path / 'python.jsonl.gz'} --strategy added --validation 4 --new-tokens 6"
    finetune.main(["prepare", "--model", str(tiny_folder), "--out", str(tmp_path / "data"), *options.split()])
    extension = load_extension(tmp_path / "data" / "extension")
    rows = tmp_path / "out" / "Tiny-python-added-rows.safetensors"
    given = argparse.Namespace(rows=rows, variant="mean_kl_last")
    input_rows, _, start = finetune.start_rows(None, extension, given)
    base = load_base_model(tiny_folder, device="cpu")
    means = torch.stack([base.input_rows[list(token.subtokens)].mean(0) for token in extension.tokens])
    assert start == "phase 1, mean_kl_last"
    assert torch.cosine_similarity(input_rows, means).min() > 0.9  # one epoch at this rate moves them a little
    with pytest.raises(SystemExit, match="the extension has 5 new tokens"):
        finetune.start_rows(None, SimpleNamespace(N=5), given)


def test_fine_tuning_continues_and_feeds_the_claims(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finetune = script("finetune")
    monkeypatch.setattr(corpus, "pairs_from_packages", lambda: pairs(60))
    data, out = tmp_path / "data", tmp_path / "out"
    prepare = "--pairs 20 --validation 4 --new-tokens 5"
    finetune.main(["prepare", "--model", str(tiny_folder), "--out", str(data), *prepare.split()])
    options = (
        "--label Tiny --shapes tiny --compiled no --length 128 --tokens-per-batch tiny=256 --variant-batch 512 "
        "--step-tokens 1024 --steps 3 --warmup 1 --epochs 1 --size 64"
    )
    arguments = ["measure", "--model", str(tiny_folder), "--data", str(data), "--out", str(out)]
    arguments += [*options.split(), "--prompt", "", "--scratch", str(tmp_path / "scratch")]

    tune, calls = finetune.fine_tune, []

    def some_fail(model: Any, *rest: Any, **settings: Any) -> Any:
        calls.append(rest[3].stages)
        if len(calls) == 1:
            raise finetune.OutOfMemory("with batches of 512")
        if len(calls) == 4:
            raise RuntimeError("the machine was taken back")
        return tune(model, *rest, **settings)

    monkeypatch.setattr(finetune, "fine_tune", some_fail)
    finetune.main(arguments)
    assert calls == [("a", "b"), ("a", "b"), ("c",), ("b",), ("b",), ("c",)]
    first = files.read_json(out / "Tiny.json")["variants"]
    assert list(read_finetuning(out)) == ["Tiny"] and "base b" not in read_finetuning(out)["Tiny"]
    assert first["base b"] == {"error": "RuntimeError: the machine was taken back"}
    assert first["expanded a+b"]["tokens_per_batch"] == 256  # halved, since memory did not suffice

    throughput = (out / "finetune-cpu.json").read_bytes()
    calls[:] = [()] * 4
    finetune.main(arguments)
    assert calls[4:] == [("b",)]
    variants = files.read_json(out / "Tiny.json")["variants"]
    assert {name: value for name, value in variants.items() if name != "base b"} == {
        name: value for name, value in first.items() if name != "base b"
    }
    assert (out / "finetune-cpu.json").read_bytes() == throughput
    for name, found in variants.items():
        observed = found["observed"]
        assert set(observed) == {"start", *(row["stage"] for row in found["stages"])}, name
        assert all(row["seconds"] > 0 and row["peak_bytes"] > 0 for row in found["stages"])
        assert set(observed["start"]["bits_per_byte"]) == {"domain", "other language", "English prose"}
    rows = json.loads(throughput)["workloads"]
    assert [(row["shape"], row["stage"], row["compiled"]) for row in rows] == [
        ("tiny", "a", False),
        ("tiny", "b", False),
    ]

    (read,) = read_finetuning(out).values()
    table = stage_table(read)
    assert list(table.loc["expanded a+c"].index) == ["start", "c1", "c2"]
    assert table.loc[("expanded a+c", "start"), "domain"] == table.loc[("expanded a+b", "a"), "domain"]
    assert table.loc[("expanded b", "b"), "seconds"] > 0 and table["seconds"].isna().sum() == len(read)
    assert {"English prose", "other language", "peak GB"} <= set(table) and table["validation loss"].notna().all()
    c8, c9 = judge_tuned(read, "expanded a+b", without_a="expanded b", full="expanded a+c")
    assert "n = 4)" in c8.reason and c8.reason.endswith("steps each")
    assert "domain" in c9.reason


def test_the_evaluation_page_shows_the_committed_results() -> None:
    root = BENCH.parents[1]
    page = (root / "docs" / "evaluation.md").read_text(encoding="utf-8")
    for table in script("answers").tables(root / "results" / "bench").split("\n\n"):
        assert table in page


def test_the_evaluation_page_shows_every_difference_of_extraction() -> None:
    root = BENCH.parents[1]
    report = files.read_json(root / "results" / "bench" / "extraction.json")
    extraction = script("extraction")
    assert extraction.summary(report) in (root / "docs" / "evaluation.md").read_text(encoding="utf-8")
    tables = [found for found in report.values() if isinstance(found, dict)]
    assert sum(found["replies"] for found in tables) == 2804 + 200
    for found in tables:
        assert found["same"] + sum(map(len, found["differences"].values())) == found["replies"]
        assert extraction.UNEXPLAINED not in found["differences"]
    assert report["made-up"]["right"]["ours"] == 200


def test_differences_of_extraction_are_explained() -> None:
    explain = script("extraction").explain
    function, other = "def f(x):\n    return x", "def f(x):\n    return 2 * x"
    assert explain(function, f"{function}\n", "f", function) == ""
    assert "without return" in explain("def f(x):\n    print(x)", "", "f", "def f(x):\n    print(x)")
    assert "decorated" in explain(f"@g\n{function}", "", "f", f"@g\n{function}")
    assert "glued" in explain(function, "", "f", f"{function}</s>")
    assert "last whole one" in explain(other, function, "f", f"{function}\n{other}")
    assert explain("x = 1", function, "f", function) == script("extraction").UNEXPLAINED


def test_no_score_is_below_its_floor() -> None:
    answers = files.read_json(BENCH.parents[1] / "results" / "bench" / "answers.json")
    floors = script("answers").FLOORS
    for name, floor in floors.items():
        style = f"chat/{resolve_prefill(name, 'chat', 'auto')}"
        found = [row["passed"] for setting, row in answers[name].items() if setting.startswith(style)]
        assert len(found) == 1 and found[0] >= floor


def test_phrases_are_measured_reported_and_continued(tmp_path: Path) -> None:
    measuring, report = script("phrase_tokenizers"), script("phrase_report")
    for k in range(40):
        text = "".join(f"    if x is not None and {w}{k % 3}:\n        return self.{w}\n" for w in ("ab", "cd", "ef"))
        (tmp_path / f"f{k}.py").write_text(f"def f{k}(self, x):\n{text}")
    out = tmp_path / "tokenizers.json"
    asked = ["--corpus", f"own=/{tmp_path}:*.py", "--no-python", "--sizes", "8", "--ways-at", "8"]
    asked += ["--speed-bytes", "20000", "--out", str(out)]
    assert measuring.main(asked) == 0
    content = files.read_json(out)
    rows = {row["strategy"]: row for row in content["rows"]}
    assert list(rows) == list(measuring.STRATEGIES)
    assert rows["phrases"]["saved_percent"] > rows["merges"]["saved_percent"]
    (ways,) = content["ways"]
    assert ways["patterns"]["changed_positions"] == ways["patterns"]["of_them_changed"] == 0
    assert ways["patterns"]["round_trip_failures"] == ways["literal"]["round_trip_failures"] == 0
    assert ways["patterns"]["saved_percent"] > 10
    assert measuring.main(asked) == 0 and files.read_json(out)["rows"] == content["rows"]  # nothing is measured again
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "phrases.md").write_text((BENCH.parents[1] / "docs" / "phrases.md").read_text())
    report.write(out, docs, told=8)
    page = (docs / "phrases.md").read_text()
    read = {"model": "M-Instruct", "text": "python", "n": 8, "strategy": "both", "saved": 0.25, "speed_gain": 1.1}
    told = report.speed_sentence([read, read | {"strategy": "merges", "speed_range": [0.9, 1.2]}])
    assert told.endswith(
        ": M on Python packages with 8 tokens of `merges`, which save 25.0% of the tokens of held-out text, "
        "1.10 (0.90 to 1.20)."
    )
    assert "SmolLM2, own" in page and "-->\nnot measured" not in page and (docs / "figures" / "phrases.svg").exists()


def test_nothing_is_begun_that_would_end_after_its_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    parts, clock = script("bench_parts"), [0.0]
    monkeypatch.setattr(parts.time, "perf_counter", lambda: clock[0])
    begun = []
    limits = argparse.Namespace(started=0.0, minutes=1.0)
    for seconds in parts.while_time_lasts([10, 20, 5, 5], limits, 1.5, lambda n, item: f"{n} left, from {item} on"):
        begun.append(seconds)
        clock[0] += seconds
    assert begun == [10, 20, 5]  # 25 s are left then, and the longest took 20, of which half as much more is wanted
    assert capsys.readouterr().out == "1 left, from 5 on: no time\n"


def test_numbers_are_told_alike_on_every_page() -> None:
    parts = script("bench_parts")
    assert parts.told_interval((0.125, -0.2, None), "+.2f") == "+0.12 [-0.20, ∞]"
    assert parts.told_range((1.1, 0.9, 1.2)) == "1.10 (0.90 to 1.20)"
    assert parts.table_of(["a", "b"], [["x", "1"]], right=(1,)) == "| a | b |\n| --- | ---: |\n| x | 1 |"
    assert [parts.told_speed(row) for row in ({}, {"speed_gain": 1.1})] == ["", "1.10"]
    found = {"humaneval": {"bits": [3.0, 1.0], "bytes": [2, 2]}, "mbpp": {"bits": [12.0], "bytes": [4]}}
    assert script("reproduction_described").bits_over_all(found) == 2.0


def test_what_is_not_there_yet_is_empty_and_other_settings_are_refused(tmp_path: Path) -> None:
    parts, path = script("bench_parts"), tmp_path / "lines.jsonl"
    assert parts.known_lines(path) == [] and parts.known_json(tmp_path / "none.json") == {}
    files.append_jsonl(path, {"arm": "words", "settings": {"rate": 1, "passes": 2}})
    parts.refuse_others(path, parts.known_lines(path), {"rate": 1, "passes": 2}, "--out")
    with pytest.raises(SystemExit, match=r"words with other settings .*\{'rate': \(1, 3\)\}; choose another --out"):
        parts.refuse_others(path, parts.known_lines(path), {"rate": 3, "passes": 2}, "--out")
    assert [parts.label_of(*given) for given in ((None, "a/B.gguf"), ("C", "a/B"))] == ["B", "C"]


def test_products_in_bfloat16_are_compared_with_float32(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    products, threads = script("cpu_products"), torch.get_num_threads()
    out = tmp_path / "products.json"
    options = f"--model {tiny_folder} --rows 2 --length 6 --rounds 2 --threads {threads} --out {out}"
    monkeypatch.setattr(sys, "argv", ["cpu_products.py", *options.split()])
    products.main()
    ways = files.read_json(out)["ways"]
    assert list(ways) == ["float32", "autocast", "switch", "linear"] and len(ways["linear"]["seconds"]) == 2
    assert ways["float32"]["gradient_off"] == 0 < ways["linear"]["gradient_off"] < 0.1
    model = load_base_model(str(tiny_folder)).model.float()
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    with products.linear(model):
        assert sum("forward" in vars(layer) for layer in layers) == len(layers) - 1  # not the head
    assert not any("forward" in vars(layer) for layer in layers)
    assert torch.backends.mkldnn.matmul.fp32_precision != "bf16"  # the switch is back
