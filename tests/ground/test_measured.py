"""What was measured at full size is grouped by what may be compared."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vocabx_utils import files
from vocabx_utils import measured as bench


def measured(variant: str, kl_last: float = 1.0, **changes: Any) -> dict[str, Any]:
    """One line of results/phase1, as far as the claims read it."""
    usual = {"model": "M", "corpus": "python", "schedule": "ours", "strategy": "added", "n": 800, "new_share": 0.02}
    return {"name": variant, "variant": variant, "kl_last": kl_last, **usual, **changes}


def test_measurements_are_compared_only_within_a_setting() -> None:
    rows = [
        measured("mean_untrained"), measured("align_untrained"), measured("mean_kl_last", 0.2),
        measured("mean_kl_last", 0.3, schedule="thesis"),
        measured("mean_kl_last", 0.4, strategy="merges"), measured("mean_kl_last", 0.5, n=100),
        measured("mean_kl_last", 0.6, corpus="headers"),
    ]  # fmt: skip
    found = {
        title: {name: row["kl_last"] for name, row in variants.items()}
        for title, variants in bench.by_setting(rows).items()
    }
    assert found == {
        "M, python": {"mean_untrained": 1.0, "align_untrained": 1.0, "mean_kl_last": 0.2},
        "M, python, thesis schedule": {"mean_untrained": 1.0, "mean_kl_last": 0.3},
        "M, python, merges": {"mean_kl_last": 0.4},
        "M, python, N = 100": {"mean_kl_last": 0.5},
        "M, headers": {"mean_kl_last": 0.6},
    }


def test_the_line_over_lambda_holds_what_differs_in_lambda_alone() -> None:
    names = ("mean_kl_last_ce0.3", "mean_kl_last", "mean_kl_last_ce3", "mean_kl_last_t2", "mean_kl_last_ce0.3_w4",
             "mean_kl_first", "random_kl_last", "mean_ce", "mean_untrained", "mean_hidden_last")  # fmt: skip
    rows = {name: {"kl_last": float(at), "bpb": 1.0} for at, name in enumerate(names)}
    assert bench.ce_line(rows) == [(0.0, 1.0, 1.0), (0.3, 0.0, 1.0), (3.0, 2.0, 1.0)]


def test_the_sweep_needs_two_sizes_with_their_starts() -> None:
    rows = [measured("mean_untrained", 2.0), measured("mean_kl_last", 0.5)]
    assert bench.sweep(rows) == {}
    rows[1]["without_examples"] = 200
    rows += [measured("mean_kl_last", 0.1, n=100, new_share=0.01)]
    assert bench.sweep(rows) == {}
    rows += [measured("mean_untrained", 1.0, n=100), measured("mean_kl_last", 9.0, n=400, schedule="thesis")]
    found = bench.sweep(rows)
    assert list(found) == ["M, python"] and list(found["M, python"]) == [100, 800]
    assert found["M, python"][100] == pytest.approx(
        {"share": 0.01, "untrained": 1.0, "trained": 0.1, "kept": 0.9, "untaught": 0.0}
    )
    assert found["M, python"][800]["kept"] == pytest.approx(0.75) and found["M, python"][800]["untaught"] == 0.25


def test_bench_results_are_read_from_both_kinds_of_file(tmp_path: Path) -> None:
    files.append_jsonl(tmp_path / "a.jsonl", {"name": "x", "kl_last": 1.0})
    files.write_json(tmp_path / "b.json", [{"name": "y", "kl_last": 2.0}, {"other": 1}])
    assert [row["name"] for row in bench.read_bench(tmp_path)] == ["x", "y"]
    assert bench.read_bench(tmp_path / "nothing") == []


def test_phrases_are_swept_by_strategy_without_dropout(tmp_path: Path) -> None:
    def record(objective: str, kl: float, **changes: Any) -> dict[str, Any]:
        usual = {"model": "M", "text": "python", "strategy": "phrases", "n": 800, "dropout": 0.0, "new_share": 0.25}
        return {**usual, "objective": objective, "kl_last": kl, "bpb": 1.0, **changes}

    rows = [
        record("untrained", 2.0), record("kl_last", 0.5), record("kl_last", 0.9, dropout=0.3), record("ce", 0.7),
        record("mean_untrained", 1.0, n=200), record("mean_kl_last", 0.1, n=200, new_share=0.15, without_examples=20),
        record("mean_kl_last", 0.1, n=3200), record("untrained", 1.0, strategy="merges"),
        record("kl_last", 0.5, strategy="merges"),
    ]  # fmt: skip
    files.write_jsonl(tmp_path / "M-python.jsonl", rows)
    files.write_json(tmp_path / "tokenizers.json", {"n": 3})
    found = bench.read_phrases(tmp_path)
    assert len(found) == len(rows) and bench.read_phrases(tmp_path / "nothing") == []
    swept = bench.sweep_phrases(found)
    assert list(swept) == ["M, python, phrases"] and list(swept["M, python, phrases"]) == [200, 800]
    line = swept["M, python, phrases"]
    assert line[800] == pytest.approx({"share": 0.25, "untrained": 2.0, "trained": 0.5, "kept": 0.75, "untaught": 0.0})
    assert line[200]["kept"] == pytest.approx(0.9) and line[200]["untaught"] == 0.1


def test_recipes_are_their_sweeps_and_a_verdict(tmp_path: Path) -> None:
    assert bench.read_recipes(tmp_path / "nothing") == ({}, {})
    files.write_jsonl(tmp_path / "one.jsonl", [{"run": "ce:x"}])
    files.write_jsonl(tmp_path / "final" / "one.jsonl", [{"run": "ce:x", "seed": 0}])
    assert bench.read_recipes(tmp_path) == ({"one": [{"run": "ce:x"}]}, {})
    files.write_json(tmp_path / "verdict.json", {"settings": {}})
    assert bench.read_recipes(tmp_path)[1] == {"settings": {}}


def test_arms_of_a_domain_are_compared_on_the_same_documents(tmp_path: Path) -> None:
    def line(arm: str, n: int, bits: list[float], seed: int = 0) -> dict[str, Any]:
        return {"arm": arm, "n": n, "bits": bits, "bytes": [10, 20, 40, 30, 25, 15, 35, 12], "seed": seed}

    base = [12.0, 22.0, 50.0, 31.0, 27.0, 17.0, 36.0, 14.0]
    tuned, ours = [8.0, 15, 33, 25, 20, 11, 29, 9], [9.0, 19, 30, 28, 19, 14, 30, 11]
    lines = [line("words", 800, ours), line("base_lora", 0, tuned), line("words", 800, base, seed=1)]
    files.write_jsonl(tmp_path / "M-german.jsonl", [*lines, line("base", 0, base)])
    files.write_jsonl(tmp_path / "N-german.jsonl", [line("words", 800, ours)])
    found = bench.read_domains(tmp_path)
    assert [(row["arm"], row["n"]) for row in found] == [("base", 0), ("base_lora", 0), ("words", 800), ("words", 800)]
    assert found[2]["above_base"][0] == pytest.approx((sum(ours) - sum(base)) / 187)
    assert found[2]["above_lora"][0] == pytest.approx((sum(ours) - sum(tuned)) / 187)
    low, high = found[2]["above_base"][1:]
    assert low < found[2]["above_base"][0] < high
    assert found[0]["above_base"] == [0, 0, 0] and found[3]["above_base"] is found[3]["above_lora"] is None
    moved = line("words_lora_rows", 800, [bits - 1 for bits in tuned])
    files.write_jsonl(
        tmp_path / "O-german.jsonl", [moved, line("words_lora", 800, tuned), line("words_lora", 3200, base)]
    )
    resting, moving, _ = bench.read_domains(tmp_path)[-3:]
    assert resting["above_resting"] is None and moving["above_resting"][0] == pytest.approx(-len(tuned) / 187)
    assert bench.read_domains(tmp_path / "none") == []


def test_bits_of_two_variants_are_paired_by_text_after_the_last_stage() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(50, 500, 40).tolist()
    bits = {name: (np.array(sizes) * rng.uniform(0.5, 1.5, 40)).tolist() for name in ("start", "one", "two")}
    one, two = (
        {
            "start": {"bits": {"domain": bits["start"]}, "bytes": {"domain": sizes}},
            "b": {"bits": {"domain": bits[name]}, "bytes": {"domain": sizes}},
        }
        for name in ("one", "two")
    )
    gap = bench.bits_gap(one, two, "domain")
    assert gap.estimate == pytest.approx((sum(bits["one"]) - sum(bits["two"])) / sum(sizes))
    less = [a - b for a, b in zip(bits["one"], bits["two"], strict=True)]
    left_out = [(sum(less) - less[k]) / (sum(sizes) - sizes[k]) for k in range(40)]  # the jackknife as it is defined
    error = math.sqrt(39 / 40 * sum((value - sum(left_out) / 40) ** 2 for value in left_out))
    assert gap.high - gap.low == pytest.approx(2 * 2.0227 * error, rel=0.03)  # t with 39 degrees of freedom
    others = {"b": {"bits": {"domain": bits["two"]}, "bytes": {"domain": [1, *sizes[1:]]}}}
    with pytest.raises(ValueError, match="same texts"):
        bench.bits_gap(one, others, "domain")


def test_speeds_are_told_beside_those_of_plain_lora(tmp_path: Path) -> None:
    arms = [("base_lora", 0), ("both_lora", 800), ("words_lora", 800)]
    files.write_jsonl(
        tmp_path / "M-german.jsonl",
        [{"arm": arm, "n": n, "bits": [1.0, 2.0], "bytes": [2, 3], "seed": 0} for arm, n in (*arms, ("words", 800))],
    )
    gains = [[1.0, 2.0, 1.25], [1.5, 2.2, 2.0], [1.1, 1.0, 1.0]]
    told = {"speed_range": [1, 2], "base_speed": {}, "speed": {}}
    read = [
        {"arm": arm, "n": n, "speed_gain": own[-1], "speed_gains": own} | told
        for (arm, n), own in zip(arms, gains, strict=True)
    ]
    files.write_jsonl(tmp_path / "speed" / "M-german.jsonl", read[1:2])
    found = {row["arm"]: row for row in bench.read_domains(tmp_path)}
    assert found["both_lora"]["speed_gain"] == 2.0 and "speed_of_lora" not in found["both_lora"]
    read[2]["reading"] = 1  # at another time than the base with LoRA
    files.write_jsonl(tmp_path / "speed" / "M-german.jsonl", read)
    found = {row["arm"]: row for row in bench.read_domains(tmp_path)}
    assert found["both_lora"]["speed_of_lora"] == pytest.approx([1.5, 1.1, 1.6])
    assert found["words_lora"]["speed_gain"] == 1.0 and "speed_of_lora" not in found["words_lora"]
    assert found["base_lora"]["speed_of_lora"] == [1.0, 1.0, 1.0] and "speed_gain" not in found["words"]
