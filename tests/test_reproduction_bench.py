"""The reproduction from end to end on a tiny model: what is found is on disk at once and never done again."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from bench_scripts import BENCH, bench, scripts  # noqa: F401  (a fixture of every test here)
from forked import be_script, run_forked

from vocabx_utils import files
from vocabx_utils.evaluation.decoding import Completion
from vocabx_utils.models import load_tokenizer
from vocabx_utils.training.batches import Step
from vocabx_utils.training.examples import Example, ExampleSet

ROOT = Path(__file__).parents[1]


# --- arms -----------------------------------------------------------------------------------------------------------


def test_names_of_arms_say_start_and_stages() -> None:
    arms = bench("reproduction_arms")
    settings = arms.Settings()
    everyone = [arm.name for arm in arms.arms_of(["base_lora", "descriptive", "core", "base"])]
    assert everyone == ["base_lora", *arms.DESCRIPTIVE, *arms.CORE[1:], "base"]
    told = {name: arms.parse_arm(name) for name in (*arms.CORE, *arms.DESCRIPTIVE, "base")}
    assert told["base"].stages == () and told["base_lora"].stages == ("b",) and told["base"].start == "base"
    assert told["mean_kl_last_a_full"].stages == ("a", "c") and told["mean_kl_last_a_full"].start == "mean_kl_last"
    assert told["phrases_recipe_a_lora"].extension(settings) == "phrases-800"
    assert told["base_a_lora"].extension(settings) is None
    with pytest.raises(SystemExit, match="mean_kl_lst"):
        arms.parse_arm("mean_kl_lst_a_lora")


def test_arms_without_stage_a_have_its_updates_too() -> None:
    arms = bench("reproduction_arms")
    settings = arms.Settings(a_epochs=2, b_epochs=2)
    with_a, without = (arms.tuning_config(arms.parse_arm(n), settings, 0) for n in ("base_a_lora", "base_lora"))
    assert with_a.a_epochs + with_a.b_epochs == without.b_epochs
    assert with_a.b_warmup * with_a.b_epochs == pytest.approx(without.b_warmup * without.b_epochs)
    full = arms.tuning_config(arms.parse_arm("mean_ce_a_full"), settings, 0)
    assert 2 * full.c_epochs == with_a.b_epochs


def test_steps_hold_the_same_texts_under_another_tokenizer() -> None:
    arms = bench("reproduction_arms")
    shorter = ExampleSet(tuple(Example(np.arange(n), 2) for n in (4, 6, 9)), 0, 0)
    plan = [Step(((0, 2),), 99), Step(((1,),), 99)]
    found = arms.same_steps(plan, shorter)
    assert [step.batches for step in found] == [step.batches for step in plan]
    assert [step.targets for step in found] == [(4 - 2) + (9 - 2), 6 - 2]


def test_settings_are_read_and_changed(tmp_path: Path) -> None:
    arms = bench("reproduction_arms")
    files.write_json(tmp_path / "settings.json", {"settings": {"lora_rate": 2e-5}})
    found = arms.Settings.read(tmp_path, ["b_epochs=3"])
    assert (found.lora_rate, found.b_epochs) == (2e-5, 3)
    with pytest.raises(SystemExit, match="lora_rat"):
        arms.Settings.read(tmp_path, ["lora_rat=1"])


# --- contrasts ------------------------------------------------------------------------------------------------------


def test_a_clear_difference_is_found_and_none_is_not() -> None:
    contrasts = bench("reproduction_contrasts")
    rng = np.random.default_rng(1)
    sizes = rng.integers(20, 200, 300).astype(float)
    base = rng.normal(1, 0.2, (3, 300)) * sizes
    noise = rng.normal(0, 0.02, (3, 300)) * sizes
    assert contrasts.p_value(base + noise - 0.02 * sizes, base, sizes, 1000) < 0.01
    assert contrasts.p_value(base + noise, base, sizes, 1000) > 0.05
    assert contrasts.p_value(base[:1] - sizes, base[:1], sizes, 1000) == 1.0  # one seed bounds nothing


def test_more_problems_show_smaller_gains() -> None:
    contrasts = bench("reproduction_contrasts")
    few, many = (contrasts.smallest_gain(np.random.default_rng(0), 0.2, 0.1, 3, n, 5) for n in (500, 2000))
    assert many is not None and (few is None or many < few)


def outcomes_of(bits: dict[tuple[str, int], Any], passed: dict[tuple[str, int], Any]) -> Any:
    """Outcomes of arms and seeds over ten problems of HumanEval, each of 10 to 19 bytes."""
    ids = [f"HumanEval/{k}" for k in range(10)]
    rows = [
        {"arm": arm, "seed": seed, "benchmarks": {
            "humaneval": {"ids": ids, "bits": list(found), "bytes": list(range(10, 20))}
        }}
        for (arm, seed), found in bits.items()
    ]  # fmt: skip
    verdicts = [
        {"arm": arm, "seed": seed, "benchmark": "humaneval", "ids": ids, "passed_ids": [ids[k] for k in found]}
        for (arm, seed), found in passed.items()
    ]
    return bench("reproduction_contrasts").Outcomes(rows, verdicts)


CONTENT = {
    "seeds": 2, "problems": 10, "kept": {"humaneval": 10},
    "contrasts": {"phase 1": {"first": "one", "second": "two", "question": "?"}},
}  # fmt: skip


def test_a_contrast_is_decided_by_all_its_seeds_and_problems_only() -> None:
    judge = bench("reproduction_contrasts").judge_contrasts
    rng = np.random.default_rng(2)
    bits = {(arm, seed): rng.normal(20 + (arm == "one"), 0.1, 10) for arm in ("one", "two") for seed in (0, 1)}
    passed = {("one", 0): [0, 1], ("two", 0): [1, 2, 3]}
    found = judge(CONTENT, outcomes_of(bits, passed), frozenset())["phase 1"]
    assert found["bpb"]["decided"] and found["bpb"]["p_holm"] < 0.05
    assert not found["pass"]["decided"] and found["pass"]["p"] is None is found["pass"]["p_holm"]
    assert found["pass"]["estimate"] == pytest.approx(-0.1) and found["pass"]["low"] is None
    fewer = judge(CONTENT | {"problems": 11}, outcomes_of(bits, passed), frozenset())["phase 1"]["bpb"]
    assert not fewer["decided"] and fewer["p_holm"] is None and fewer["estimate"] == found["bpb"]["estimate"]


def test_one_seed_is_described_as_a_slow_count_would() -> None:
    described = bench("reproduction_described")
    rng = np.random.default_rng(3)
    bits = {(arm, 0): rng.normal(20, 1, 10) for arm in ("one", "two")}
    outcomes = outcomes_of(bits, {("one", 0): [0, 1, 4], ("two", 0): [1, 2]})
    holding = frozenset(f"HumanEval/{k}" for k in (0, 1, 2))
    end = {"bits": {"English prose": [30.0, 40.0]}, "bytes": {"English prose": [50, 50]}}
    other = {"bits": {"English prose": [20.0, 40.0]}, "bytes": end["bytes"]}
    observed = [{"arm": arm, "seed": 0, "observed": {"end": told}} for arm, told in (("base", end), ("one", other))]
    found = described.describe(CONTENT, outcomes, observed, holding)
    row = found["pairs"]["phase 1"]
    gap = sum(float(a - b) for a, b in zip(bits["one", 0], bits["two", 0], strict=True)) / sum(range(10, 20))
    assert row["bpb"]["all"]["estimate"] == pytest.approx(gap, abs=1e-12) == row["bpb"]["humaneval"]["estimate"]
    there = sum(float(bits["one", 0][k] - bits["two", 0][k]) for k in (0, 1, 2)) / (10 + 11 + 12)
    assert row["bpb"]["with a new token"]["estimate"] == pytest.approx(there, abs=1e-12)
    rates = row["pass"]
    assert rates["all"]["estimate"] == pytest.approx(0.1) and rates["all"]["low"] < 0 < rates["all"]["high"]
    assert (rates["all"]["only first"], rates["all"]["only second"]) == (2, 1)
    assert rates["with a new token"]["estimate"] == 0 and rates["without"]["estimate"] == pytest.approx(1 / 7)
    assert found["elsewhere"]["one"]["English prose"]["estimate"] == pytest.approx(-0.1)
    half = described.describe(CONTENT | {"kept": {"humaneval": 10, "mbpp": 4}}, outcomes, [], holding)
    assert set(half["pairs"]["phase 1"]["bpb"]) == {"humaneval"}  # "all" is all benchmarks or nothing
    assert half["elsewhere"] == {}


def test_what_one_seed_shows_follows_from_the_files(tmp_path: Path) -> None:
    seen = bench("reproduction_seen").seen
    arms = ("base", "base_lora", "base_a_lora", "mean_untrained_a_lora", "mean_kl_last_a_lora", "recipe_a_lora")
    bits = {"base": 100, "base_lora": 99, "base_a_lora": 110, "recipe_a_lora": 111}
    mass = {"mean_untrained_a_lora": 0.04, "mean_kl_last_a_lora": 0.01, "recipe_a_lora": 0.004}
    solved = dict(zip(arms, (5, 8, 4, 2, 3, 6), strict=True))

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        files.write_jsonl(tmp_path / name, [{"arm": row.pop("arm"), "seed": 0, **row} for row in rows])

    write("verdicts.jsonl", [
        {"arm": arm, "benchmark": "ds1000", "passed_ids": list(range(n)), "failures": {"no code": 10 * n}}
        for arm, n in solved.items()
    ])  # fmt: skip
    write("metrics.jsonl", [{"arm": a, "new_row_mass": mass.get(a), "held_out_bpb": len(a) / 10} for a in arms])
    write("bits.jsonl", [
        {"arm": arm, "benchmarks": {"ds1000": {"bits": [n], "bytes": [200]}}} for arm, n in bits.items()
    ])  # fmt: skip
    write("answers.jsonl", [{"arm": arm, "characters": 10 * len(arm), "tokens": 20} for arm in arms])
    files.write_json(tmp_path / "contrasts.json", {"extension": "x"})
    density = {"ds1000": [[1, 50], [1, 50]], "mbpp": [[1, 900]]}
    files.write_json(tmp_path / "data.json", {"extensions": {"x": {"density": density}}})

    def gap(value: float) -> dict[str, Any]:
        return {"estimate": value, "low": value - 0.001, "high": value + 0.001}

    pairs = {
        "leading recipe": {"bpb": {"all": gap(0.01), "with a new token": gap(0.02), "without": gap(0.003)}, "pass": {}},
        "new tokens alone": {"bpb": {"all": gap(0.02)}, "pass": {}},
        "phase 1": {"bpb": {"all": gap(-0.015)}, "pass": {"all": gap(0.01)}},
        "freed matrices": {"bpb": {}, "pass": {"ds1000": gap(-0.2)}},
    }
    changes = {"base_lora": {"domain": gap(0.5), "English prose": gap(0.5), "other language": gap(-0.5)}}
    described = {"seed": 0, "pairs": pairs, "elsewhere": changes}
    said = seen(tmp_path, described).splitlines()
    assert said[0].startswith("- **1 of 3 arms with new tokens solves more") and "`base_a_lora`, 4" in said[0]
    assert "The recipe solves 6 and differs by +0.0100 [+0.0090, +0.0110]" in said[0]
    assert "not taught 4.0%, those of phase 1 1.0%, the recipe's 0.4%" in said[1]
    assert "), phase 1 takes back 75%." in said[1]
    assert "one token in 50 (ds1000) to one token in 900 (mbpp)" in said[2]
    assert "6.50 characters with the recipe, 5.50 without" in said[2]
    assert (
        "alone solves 8" in said[3] and "20 to 60 answers hold no code, after LoRA alone 80, of the base 50" in said[3]
    )
    assert "in 2 of 3 arms; elsewhere bits per byte rise in 1 of 2 comparisons" in said[4]
    assert "take 0.900 bits per byte after LoRA alone, from 0.400." in said[4]
    write("verdicts.jsonl", [{"arm": "base", "benchmark": "ds1000", "passed_ids": [], "failures": {}}])
    assert len(seen(tmp_path, described).splitlines()) == 3 and seen(tmp_path, {}) == ""


def test_the_pilot_takes_the_likeliest_of_what_costs_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    known = bench("reproduction_arms").Settings().tuning()
    ways = {
        "base": (50, 0.9),
        "pairs:all:1e-3:2": (40, 0.6),
        "completion:answer:5e-5:1": (48, 0.8),
        "x:y:1:1": (50, 0.85),
        "completion:answer:5e-5:1:a1e-4": (50, 0.75),
        "completion:answer:5e-5:1:a3e-5": (49, 0.7),
        "completion:answer:5e-5:1:a1e-3": (45, 0.65),
        "x:y:1:1:a1e-4": (50, 0.5),
    }
    rows = [
        {"setting": name, "held_out_bpb": bpb, "settings": known | {"lora_rate": bpb, "a_epochs": 0, "a_rate": bpb}}
        for name, (_, bpb) in ways.items()
    ]
    ids = [str(k) for k in range(100)]
    verdicts = [
        {
            "place": f"pilot/{name.replace(':', '_')}",
            "arm": "",
            "benchmark": "mbpp",
            "ids": ids,
            "passed_ids": ids[:passed],
        }
        for name, (passed, _) in ways.items()
    ]
    files.write_jsonl(tmp_path / "pilot.jsonl", rows)
    files.write_jsonl(tmp_path / "verdicts.jsonl", verdicts)
    bench("reproduction").main(["choose", "--results", str(tmp_path)])
    found = files.read_json(tmp_path / "settings.json")
    assert found["from"]["setting"] == "completion:answer:5e-5:1" and found["settings"]["lora_rate"] == 0.8
    assert found["stage_a_from"]["setting"] == "completion:answer:5e-5:1:a3e-5" and found["settings"]["a_rate"] == 0.7
    files.write_json(tmp_path / "settings.json", {"settings": {"recipe": "r1"}})
    files.write_jsonl(tmp_path / "pilot.jsonl", rows[:4])  # none with stage a
    bench("reproduction").main(["choose", "--results", str(tmp_path)])
    found = files.read_json(tmp_path / "settings.json")
    assert "a_rate" not in found["settings"] and found["settings"]["recipe"] == "r1"
    assert "keeps its usual rate" not in capsys.readouterr().out
    files.write_jsonl(tmp_path / "pilot.jsonl", [*rows[:4], rows[6]])  # one with it, which loses too much
    bench("reproduction").main(["choose", "--results", str(tmp_path)])
    assert "a_rate" not in files.read_json(tmp_path / "settings.json")["settings"]
    assert "stage a keeps its usual rate: each of the 1 tried loses more than 3 points" in capsys.readouterr().out
    files.write_jsonl(tmp_path / "pilot.jsonl", rows[:2])
    with pytest.raises(SystemExit, match="loses at most 3 points"):
        bench("reproduction").main(["choose", "--results", str(tmp_path)])


def test_the_committed_page_says_what_the_files_say() -> None:
    results, page = ROOT / "results" / "gpu", (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    described = files.read_json(results / "described.json")
    said = bench("reproduction_seen").seen(results, described)
    report = bench("reproduction_report")
    assert said.count("\n") == 4 and f"<!-- seen -->\n{said}\n<!-- end -->" in page  # else: reproduction.py judge
    assert (
        report.status(results) in page and report.pilot_part(results) in page and report.passed_table(results) in page
    )
    told = bench("reproduction_seen").empty_answers(results, ROOT / "results" / "bench" / "answers.json")
    assert "(`results/bench/answers.json`, 0 of 1,007 failures" in told and "0 in bigcodebench" in told and told in page
    assert bench("reproduction_seen").empty_answers(results, ROOT / "none.json") == ""
    rates = {row["setting"]: row for row in files.read_jsonl(results / "pilot.jsonl")}
    bodies = [name for name in rates if name.split(":")[0] in ("completion", "functions", "pairs")]
    passed = bench("reproduction_score").pilot_rates(files.read_jsonl(results / "verdicts.jsonl"))
    table = bench("reproduction_score").pilot_table(list(rates.values()), passed)
    share = {row["setting"]: {b: row[b][0] for b in ("humaneval", "mbpp")} for row in table}
    assert all(share["base"]["humaneval"] - share[name]["humaneval"] > 0.11 for name in bodies)  # "11 points or more"
    calm = [name for name in bodies if not name.startswith("pairs")]
    assert all(abs(share[name]["mbpp"] - share["base"]["mbpp"]) < 0.0305 for name in calm)


def test_tables_say_what_was_not_measured_and_in_which_unit() -> None:
    report = bench("reproduction_report")
    found = [
        {"claim": "C1 one", "answer": "cannot tell", "reason": "not measured here: mean_ce"},
        {"claim": "C2 two", "answer": "cannot tell", "reason": "+0.1 [-0.1, 0.3]"},
    ]
    verdicts = [row.split(" | ")[1] for row in report.claims_table(found).splitlines()[2:]]
    assert verdicts == ["not measured", "cannot tell"] and report.claims_table([]) == ""
    case = {"seeds": 3, "problems": 9}
    rows = [
        case | {"outcome": "pass@1", "discordant": 0.1, "smallest": 0.03},
        case | {"outcome": "bpb", "sd_problems": 0.03, "sd_seeds": 0.002, "smallest": 0.012},
        case | {"outcome": "bpb", "sd_problems": 0.03, "sd_seeds": 0.002, "smallest": None},
    ]
    sizes = [row.split(" | ")[-1] for row in report.detectable({"detectable": rows}).splitlines()[2:]]
    assert sizes == ["3 points |", "0.012 bits |", "none of the grid |"]


# --- from end to end ------------------------------------------------------------------------------------------------


SMALL = (
    "extension=merges-12", "rare=rare-12", "epochs=1", "a_epochs=1", "b_epochs=1", "lora_rank=2", "kind=pairs",
    "max_length=512",  # attention over longer ones is what costs
)  # fmt: skip


@pytest.fixture
def prepared(tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Data of a few pairs, and the folder of results."""
    data = bench("reproduction_data")
    monkeypatch.setattr(data, "PACKAGES", dict(tokenizer=("formulaic",), train=("seaborn",), validation=("patsy",)))
    monkeypatch.setattr(data, "SIZES", {"tokenizer": 12, "further": 0, "train": 24, "validation": 6})
    run = bench("reproduction").main
    words = f"prepare --model {tiny_folder} --label Tiny --out {tmp_path / 'data'} --results {tmp_path / 'gpu'}"
    run([*words.split(), "--benchmarks", "humaneval", "--n", "8", "12", "--phrases", "0"])
    return tmp_path / "data", tmp_path / "gpu"


def test_the_whole_experiment_in_small(
    prepared: tuple[Path, Path],
    tiny_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, results = prepared
    run = bench("reproduction").main
    about = files.read_json(results / "data.json")["extensions"]
    assert about["merges-12"]["trained 4 times"] == 12 and about["rare-12"]["tokens"] == 12
    rows = bench("reproduction_data").Data(data, "Tiny")
    tokenizer = load_tokenizer(str(tiny_folder))
    assert len(rows.render("train", "pairs", tokenizer)) == 24 >= len(rows.render("train", "functions", tokenizer))
    for text in rows.render("train", "completion", tokenizer):
        assert '"""' in text.text[: text.answer_start] and text.text[text.answer_start :].startswith("    ")

    run(f"contrasts --results {results} --extension merges-12 --trials 2".split())
    given = f"--model {tiny_folder} --data {data} --label Tiny --results {results} --rows {tmp_path / 'rows'}".split()
    given += ["--limit", "2", "--pairs", "6", "--max-new-tokens", "4", "--benchmarks", "humaneval", "--set", *SMALL]
    answer = ["--answer", "humaneval"]
    arms = ["--arms", "base", "base_a_lora", "base_lora", "mean_kl_last_a_lora", "recipe_a_lora", "--seeds", "0", "1"]
    run(["run", *given, "--answer", *arms])
    metrics = (results / "metrics.jsonl").read_text()
    found = {(row["arm"], row["seed"]): row for row in map(json.loads, metrics.splitlines())}
    assert len(found) == 10
    steps = {name: sum(found[name, 0]["steps"].values()) for name in ("base_a_lora", "base_lora", "recipe_a_lora")}
    assert len(set(steps.values())) == 1 and found["base", 0]["steps"] == {}
    assert found["base", 0]["bpb"] == found["base", 1]["bpb"]
    run(["run", *given, *answer, "--arms", "base", "mean_kl_last_a_lora"])
    assert (results / "metrics.jsonl").read_text() == metrics
    answers = files.read_jsonl(results / "answers.jsonl")
    assert [(row["arm"], row["tuned_again"]) for row in answers] == [("base", True), ("mean_kl_last_a_lora", True)]
    assert len(files.read_jsonl(results / "rows.jsonl")) == 4  # found again, not trained again
    with pytest.raises(SystemExit, match="lora_rank"):
        run(["run", *given, "lora_rank=3", "--answer", "--arms", "mean_ce_a_lora"])

    with pytest.raises(SystemExit, match="no bodies of train"):
        rows.render("train", "mixed", tokenizer)
    said = ["    return 1\n```\nand more", "    return (\n```", "    return 2", ""]  # whole, not Python, whole, nothing
    monkeypatch.setattr(bench("reproduction_pilot"), "generate", lambda model, words, prompts, **more: [
        Completion(said[k % 4], (), "eos") for k in range(len(prompts))
    ])  # fmt: skip
    run(["own", *given, "--pairs", "24"])
    rows = bench("reproduction_data").Data(data, "Tiny")
    whole, own, mixed = (rows.render("train", kind, tokenizer) for kind in ("completion", "own", "mixed"))
    bodies = [text.text[text.answer_start :] for text in own]
    end = tokenizer.eos_token or ""
    assert bodies == [f"    return {1 + k % 2}\n```{end}" for k in range(len(own))]
    assert len(own) == len(whole[::2]) and len(mixed) == len(whole)
    assert [text in whole for text in mixed] == [bool(k % 2) for k in range(len(mixed))]
    run(["pilot", *given, *answer, "--sweep", "pairs:all:1e-3:1", "mixed:answer:1e-3:1"])
    run(["causal", *given, "--variants", "mean_kl_last", "--windows", "4"])
    [tested] = files.read_jsonl(results / "causal.jsonl")
    assert {row["k"] for row in tested["table"]} >= {1, 3, 10} and len(tested["cosines"]["end"]["first"]) == 12

    grid = [*given[: given.index("--rows")], "--pairs", "6", "--n", "12", "--epochs", "1", "--thesis-epochs", "1", "1"]
    few = [
        "--variants",
        "mean_untrained",
        "mean_kl_last",
        "--once",
        "mean_ce@thesis",
        "mean_untrained@n8",
        "mean_kl_last@n8",
    ]
    run(["phase1", *grid, *few, "--seeds", "0", "1"])
    [lines] = (results / "phase1" / "s0").glob("*.jsonl")
    assert len(files.read_jsonl(lines)) == 5

    verdicts = [
        {"place": f"{arm}-s0", "arm": arm, "seed": 0, "benchmark": "humaneval", "ids": ["HumanEval/0", "HumanEval/1"],
         "passed_ids": ["HumanEval/0"] if arm != "base" else [], "failures": {"wrong answer": 1}}
        for arm in ("base", "base_a_lora", "recipe_a_lora", "base_lora")
    ]  # fmt: skip
    files.write_jsonl(results / "verdicts.jsonl", verdicts)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "reproduction.md").write_text((ROOT / "docs" / "reproduction.md").read_text())
    run(f"judge --results {results} --docs {tmp_path / 'docs'} --stored {tmp_path}".split())
    judged = files.read_json(results / "verdict.json")["contrasts"]
    assert judged["leading recipe"]["bpb"]["seeds"] == [0, 1] and judged["leading recipe"]["bpb"]["problems"] == 2
    told = {row["claim"].split()[0]: row["reason"] for row in files.read_json(results / "verdict.json")["claims"]}
    assert "N = 8" in told["C12"] and "mean init, KL (last)" in told["C5"] and len(told) == 17
    assert judged["leading recipe"]["pass"]["estimate"] == 0.0 and judged["KL or CE"]["bpb"] is None
    table = (results / "table.csv").read_text()
    assert table.startswith("variant,seed,benchmark,passed,kept,total,p_value,bpb")
    assert "base_lora,0,humaneval,1,2,164,1.0," in table
    page = (tmp_path / "docs" / "reproduction.md").read_text()
    assert "`recipe_a_lora`" in page and "not measured" in page and "not decided" in page
    assert "Measured: seeds 0 and 1 of 3 seeds, 5 of 8 arms." in page and "None of the contrasts is decided." in page
    described = files.read_json(results / "described.json")["pairs"]
    assert described["leading recipe"]["pass"]["all"]["problems"] == 2 and "KL or CE" not in described
    assert (tmp_path / "docs" / "figures" / "reproduction.png").exists()
    with pytest.raises(SystemExit, match="not written again"):
        run(f"contrasts --results {results} --extension merges-12 --trials 2".split())


# --- beside each other ----------------------------------------------------------------------------------------------


@pytest.fixture
def forked_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The processes of arms are forked, which spares each of them the imports."""
    launch = subprocess.Popen

    class Forked:
        def __init__(self, future: Future[list[int]]) -> None:
            self.future, self.returncode = future, None

        def poll(self) -> int | None:
            if self.future.done():
                [self.returncode] = self.future.result()
            return self.returncode

    def start(command: list[str], **options: Any) -> Any:
        if str(BENCH / "reproduction.py") not in command:
            return launch(command, **options)
        more = {"log": Path(options["stdout"].name), "environment": options["env"]}
        return Forked(threads.submit(run_forked, be_script, *command[1:], **more))

    with ThreadPoolExecutor() as threads:
        monkeypatch.setattr(subprocess, "Popen", start)
        yield


def told(folder: Path) -> dict[str, list[Any]]:
    """The lines of each file in one order, without what may differ between two runs of the same."""
    passing = {"seconds", "train_seconds", "characters_per_s", "peak_bytes", "date", "processes"}

    def lasting(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: lasting(one) for key, one in value.items() if key not in passing}
        return list(map(lasting, value)) if isinstance(value, list) else value

    found = {path.name: lasting(files.read_jsonl(path)) for path in folder.glob("*.jsonl")}
    return {name: sorted(rows, key=json.dumps) for name, rows in found.items()}


def test_arms_beside_each_other_say_what_they_say_in_turn(
    prepared: tuple[Path, Path],
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    forked_processes: None,
) -> None:
    data, _ = prepared
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = bench("reproduction").main
    few = ["--limit", "1", "--pairs", "4", "--max-new-tokens", "4", "--benchmarks", "humaneval"]
    few += ["--answer", "humaneval", "--set", *SMALL]

    def measure(name: str, *more: str) -> dict[str, list[Any]]:
        place = f"--results {tmp_path / name} --rows {tmp_path / f'rows-{name}'}".split()
        given = f"--model {tiny_folder} --data {data} --label Tiny".split()
        run(["run", *given, *place, *few, "--arms", "base_lora", "mean_kl_last_a_lora", *more])
        run(["pilot", *given, *place, *few, "--sweep", "pairs:all:1e-3:1:a1e-4", *more])
        return told(tmp_path / name)

    found = measure("beside", "--processes", "2")
    assert {name: len(rows) for name, rows in found.items()} == {
        "rows.jsonl": 1, "bits.jsonl": 2, "observed.jsonl": 2, "metrics.jsonl": 2, "answers.jsonl": 2, "pilot.jsonl": 2
    }  # fmt: skip
    assert found == measure("turn")
    for name, processes in (("beside", 2), ("turn", 1)):
        rows = [row for file in ("metrics", "answers") for row in files.read_jsonl(tmp_path / name / f"{file}.jsonl")]
        assert {row["processes"] for row in rows} == {processes}
        assert len([*(tmp_path / name / "answers").glob("**/*.jsonl.gz")]) == 4
        assert not (tmp_path / name / "parts").exists()


STAND_IN = Path(__file__).parent / "fixtures" / "arm_process.py"


@pytest.fixture
def spread_arms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Call `run` with processes that train nothing."""
    spread = bench("reproduction_spread")
    monkeypatch.setattr(spread, "_SCRIPT", STAND_IN)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    files.write_json(tmp_path / "tuning.json", bench("reproduction_arms").Settings().tuning())
    return lambda *words: bench("reproduction").main(arm_words(tmp_path, *words))


def arm_words(folder: Path, *words: str) -> list[str]:
    given = f"run --model none --data none --results {folder / 'gpu'} --rows {folder / 'rows'} --answer mbpp".split()
    return [*given, *words]


def test_a_process_that_fails_is_started_once_more_and_the_others_go_on(
    tmp_path: Path, spread_arms: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arms = ("mean_ce_a_lora", "random_ce_a_lora", "base", "base_lora", "base_a_lora")
    with pytest.raises(SystemExit, match=r"failed twice: mean_ce_a_lora-s0;"):
        spread_arms("--processes", "2", "--arms", *arms)
    starts = {arm: files.read_jsonl(tmp_path / f"{arm}-s0.jsonl") for arm in arms}
    assert {arm: len(rows) for arm, rows in starts.items()} == dict(zip(arms, (2, 2, 1, 1, 1), strict=True))
    assert {row["card"] for rows in starts.values() for row in rows} == {"3", "5"}
    for file in ("bits", "metrics", "answers"):
        found = [row["arm"] for row in files.read_jsonl(tmp_path / "gpu" / f"{file}.jsonl")]
        assert sorted(found) == sorted(arms[1:])
    assert [path.name for path in (tmp_path / "gpu" / "parts").iterdir()] == ["mean_ce_a_lora-s0.log"]
    said = capsys.readouterr().out
    assert "5 to do, 4 at a time" in said and "base-s0 starts on card" in said and "projected end" in said
    assert said.count("exit status 1, RuntimeError: no memory") == 3
    spread_arms("--processes", "2", "--arms", *arms[1:])
    assert "0 to do" in capsys.readouterr().out


def test_rows_are_not_made_twice_and_nothing_starts_without_time(
    tmp_path: Path, spread_arms: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arms = ("mean_kl_last_lora", "mean_kl_last_a_lora", "base")
    spread_arms("--arms", *arms, "--minutes", "0")  # two cards, one arm on each
    said = capsys.readouterr().out
    assert "3 are left out, from mean_kl_last_lora-s0 on: no time" in said and "starts" not in said
    spread_arms("--arms", *arms)
    said = [line.partition(" on")[0] for line in capsys.readouterr().out.splitlines()]
    assert said[1:3] == ["mean_kl_last_lora-s0 starts", "base-s0 starts"]
    assert said.index("mean_kl_last_lora-s0 ends") < said.index("mean_kl_last_a_lora-s0 starts")
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "merges-800-mean_kl_last-s1.safetensors").touch()
    spread_arms("--arms", *arms, "--seeds", "1")
    said = [line.partition(" on")[0] for line in capsys.readouterr().out.splitlines()]
    assert said[1:3] == ["mean_kl_last_lora-s1 starts", "mean_kl_last_a_lora-s1 starts"]


PARENT = f"""
import os, sys, time
from pathlib import Path
import reproduction, reproduction_spread

def killed(part, results):
    while not (results / "parts" / "mean_kl_first_a_lora-s0" / "metrics.jsonl").exists():
        time.sleep(0.02)
    os.kill(os.getpid(), 9)

reproduction_spread._SCRIPT = Path({str(STAND_IN)!r})
reproduction_spread._take_over = killed
reproduction.main(sys.argv[1:])
"""
"""It is killed when it has a finished part to take over, and another that has metrics but no answers."""


def test_a_killed_parent_takes_its_processes_with_it_and_the_next_takes_over(
    tmp_path: Path, spread_arms: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    words, results = ("--processes", "2", "--arms", "base", "mean_kl_first_a_lora"), tmp_path / "gpu"
    (tmp_path / "parent.py").write_text(PARENT)
    log, environment = tmp_path / "log.txt", {"PYTHONPATH": str(BENCH), "CUDA_VISIBLE_DEVICES": ""}
    called = (str(tmp_path / "parent.py"), *arm_words(tmp_path, *words))
    assert run_forked(be_script, *called, log=log, environment=environment) == [-9], log.read_text()
    [left] = files.read_jsonl(tmp_path / "mean_kl_first_a_lora-s0.jsonl")
    end = time.monotonic() + 10
    while psutil.pid_exists(left["process"]) and psutil.Process(left["process"]).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.02)
    assert not (results / "answers.jsonl").exists()

    spread_arms(*words)
    said = capsys.readouterr().out
    assert "base-s0: taken over" in said and "mean_kl_first_a_lora-s0: taken over" in said and "1 to do" in said
    assert len(files.read_jsonl(tmp_path / "base-s0.jsonl")) == 1
    again = files.read_jsonl(tmp_path / "mean_kl_first_a_lora-s0.jsonl")
    assert [row["trained"] for row in again] == [False, True]
    for file in ("bits", "metrics", "answers"):
        found = sorted(row["arm"] for row in files.read_jsonl(results / f"{file}.jsonl"))
        assert found == ["base", "mean_kl_first_a_lora"]
    assert not (results / "parts").exists()


def test_what_a_kill_broke_off_is_not_taken_over(tmp_path: Path) -> None:
    part, about = tmp_path / "parts" / "base-s0", {"arm": "base", "seed": 0}
    for name in ("bits", "rows"):
        files.write_jsonl(part / f"{name}.jsonl", [about])
    (part / "answers" / "base-s0").mkdir(parents=True)
    (part / "answers" / "base-s0" / "mbpp.jsonl.gz").touch()  # its line was not written any more
    bench("reproduction_spread")._take_over(part, tmp_path)
    assert files.read_jsonl(tmp_path / "rows.jsonl") == [about]
    assert not (tmp_path / "bits.jsonl").exists() and not (tmp_path / "answers").exists() and not part.exists()


def test_characters_a_second_are_told_of_unshared_cards_only(tmp_path: Path) -> None:
    line = {"seed": 0, "benchmark": "mbpp", "answers": 2, "tokens_per_answer": 5, "tokens": 10, "cut_off": 0}
    rows = [
        line | {"arm": "base", "characters": 40, "seconds": 2},
        line | {"arm": "base", "characters": 40, "seconds": 8, "processes": 3},
        line | {"arm": "base_lora", "characters": 40, "seconds": 8, "processes": 3},
    ]
    files.write_jsonl(tmp_path / "answers.jsonl", rows)
    report = bench("reproduction_report")
    cells = [row.split(" | ") for row in report.lengths_table(tmp_path).splitlines()[2:]]
    assert [row[-1] for row in cells] == ["20 |", "shared card |"] and [row[-2] for row in cells] == ["4.000", "4.000"]
    assert "| answers | 3 | 0.1 |" in report.minutes(tmp_path)  # 2 + 8/3 + 8/3 seconds
