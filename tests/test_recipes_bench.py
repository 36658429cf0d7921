"""The test bed of recipes: examples that travel, runs with equal budgets, verdicts on numbers with a known answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench_scripts import BENCH, bench, scripts  # noqa: F401  (a fixture of every test here)
from tiny import N, V
from training.phase1_parts import example_set

from vocabx_utils import files
from vocabx_utils.figures.gains import draw_frontier
from vocabx_utils.measured import RECIPES, REFERENCE_RECIPES, read_recipes
from vocabx_utils.training.phase1 import Phase1Training

# --- examples -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [0, 12])
def test_examples_come_back_as_they_were(window: int) -> None:
    data, examples = bench("recipe_data"), example_set(window=window)
    found = data.unpack(data.pack(examples))
    assert (found.vocab_size, found.n_new, len(found)) == (V, N, len(examples))
    for one, other in zip(examples.examples, found.examples, strict=True):
        assert np.array_equal(one.ids, other.ids) and np.array_equal(one.original_ids, other.original_ids)
        for anchor in one.pairs:
            assert np.array_equal(one.pairs[anchor], other.pairs[anchor])
            assert np.array_equal(one.merged[anchor], other.merged[anchor])
        for name in ("prefix_pairs", "n_bytes", "n_original_bytes", "source"):
            assert getattr(one, name) == getattr(other, name)


def test_tokens_take_turns_and_seeds_draw_others() -> None:
    data, pool = bench("recipe_data"), example_set(window=8)
    drawn = [data.draw(pool, pool.tokens // 3, seed) for seed in (0, 0, 1)]
    assert drawn[0].fingerprint() == drawn[1].fingerprint() != drawn[2].fingerprint()
    counts, offered = data.examples_of_each(drawn[0]), data.examples_of_each(pool)
    turns = max(1, int(counts.min()))
    assert ((counts >= turns) | (counts == offered)).all()
    assert pool.tokens // 3 <= drawn[0].tokens < pool.tokens // 3 + 40
    texts = data.draw(example_set(), 200, 0, by_token=False)
    assert 200 <= texts.tokens < 280


# --- runs -----------------------------------------------------------------------------------------------------------


def test_every_family_has_the_same_budget_and_names_are_read_back() -> None:
    runs = bench("recipe_runs")
    assert {len({run.name for run in grid}) for grid in runs.GRID.values()} == {12}
    assert {*REFERENCE_RECIPES, *runs.NEW, "texts"} == set(RECIPES) == set(runs.GRID)
    assert all(runs.parse_run(run.name) == run for grid in runs.GRID.values() for run in grid)
    assert runs.GRID["td"][0].name == runs.PUBLISHED
    first = runs.choose_runs(["*"])[: len(runs.GRID)]
    assert [run.family for run in first] == list(runs.GRID)  # where time runs out, all had as many
    assert len(runs.choose_runs(["td", "r1"], rounds=3)) == 6
    assert runs.choose_runs(["*:first:wu0.5"], rounds=1) == []  # a pattern of the grid whose run comes later
    own = runs.choose_runs(["r1:*:0.001:*", "kl:kl_first:1e-3:1e-4:mean:b32"])
    assert len(own) == 4 and own[-1].objective == "kl_first" and own[-1].batch == 32
    for wrong in ("kl:kl_last:1e-3", "kl:kl_lst:1e-3:1e-4:mean", "kl:kl_last:1e-3:1e-4:zero", "kl:ce:1:1:mean:wide"):
        with pytest.raises(SystemExit, match="run '"):
            runs.parse_run(wrong)


# --- end to end -----------------------------------------------------------------------------------------------------


@pytest.fixture
def made(tmp_path: Path, tiny_folder: Path) -> list[str]:
    """A small setting of the tiny model, and what its commands take."""
    rng = np.random.default_rng(0)
    for k in range(90):
        words = ["".join(rng.choice(list("qzxjkwv"), rng.integers(2, 5))) for _ in range(60)]
        folder = tmp_path / "root" / f"package{k}"
        folder.mkdir(parents=True)
        (folder / "a.py").write_text(" ".join(words) + "\n", encoding="utf-8")
    sizes = "--n 6 --least 5 --window 24 --tokens 700 --characters 200 --judged 8 --min-count 3 --min-files 2"
    common = ["--setting", "smollm2-python", "--model", str(tiny_folder)]
    out = tmp_path / "data" / "smollm2-python"
    asked = ["prepare", *common, "--root", str(tmp_path / "root"), "--out", str(out), *sizes.split()]
    bench("recipes").main(asked)
    return [*common, "--data", str(tmp_path / "data"), "--results", str(tmp_path / "results"), "--token-budget", "512"]


def test_from_texts_to_the_page(
    tmp_path: Path, made: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes, runs = bench("recipes"), bench("recipe_runs")
    monkeypatch.setattr(bench("recipe_samples"), "_BEFORE", 8)
    step = Phase1Training.step

    def diverges(self: Phase1Training, indices: list[int]) -> Any:
        return step(self, indices) * (float("nan") if self.config.learning_rate > 1e9 else 1)

    monkeypatch.setattr(Phase1Training, "step", diverges)
    content = files.read_json(tmp_path / "data" / "smollm2-python" / "setting.json")
    assert content["N"] == 6 and content["fewest_examples"] >= 5
    assert sum(path.stat().st_size for path in (tmp_path / "data").rglob("*")) < 100_000
    firsts = [grid[0].name for grid in runs.GRID.values()]
    diverging = "r1:kl_last_ce0.03:1e+30:1e-4:mean"
    recipes.main(["sweep", *made, "--runs", *firsts, "kl_ce:kl_last_ce0.03:0.0007:0.0001:mean", diverging])
    path = tmp_path / "results" / "smollm2-python.jsonl"
    rows = {row["run"]: row for row in files.read_jsonl(path)}
    failed = [row["run"] for row in rows.values() if "error" in row]
    assert len(rows) == 16 and failed == ["r1:kl_last_ce0.03:1e+30:0.0001:mean"]
    whole = {name: row for name, row in rows.items() if "error" not in row}
    assert all(0.6 * 700 < row["tokens"] + row["sampled"] < 1.4 * 700 for row in whole.values())
    assert whole[firsts[list(runs.GRID).index("sampled")]]["sampled"] > 100
    same = [row for row in whole.values() if row["settings"] == rows[runs.GRID["r1"][0].name]["settings"]]
    assert len(same) == 2 and same[1]["copied"] and same[0]["kl_last"] == same[1]["kl_last"]
    assert len({row["start"]["kl_last"] for row in whole.values()}) == 1
    assert len({(row["kl_last"], row["bpb"]) for row in whole.values()}) == len(whole) - 1
    before = path.read_bytes()
    recipes.main(["sweep", *made, "--runs", *firsts])
    recipes.main(["sweep", *made, "--runs", "td", "--minutes", "0"])
    assert path.read_bytes() == before and "no time" in capsys.readouterr().out

    recipes.main(["choose", "--results", str(tmp_path / "results")])
    chosen = files.read_json(tmp_path / "results" / "chosen.json")
    assert len(chosen["finalists"]) == 2 and runs.PUBLISHED in chosen["runs"]["smollm2-python"]
    advised = next(n for n in chosen["runs"]["smollm2-python"] if n.startswith("kl_ce:"))
    names = [*chosen["runs"]["smollm2-python"][:2], runs.PUBLISHED, runs.GRID["ce"][0].name, advised]
    assert [name.split(":")[0] for name in names[:2]] == chosen["finalists"]
    recipes.main(["final", *made, "--seeds", "2", "--runs", *names])
    final = files.read_jsonl(tmp_path / "results" / "final" / "smollm2-python.jsonl")
    assert sorted((row["run"], row["seed"]) for row in final) == sorted(
        [("base", 0), *((name, seed) for name in names for seed in (0, 1))]
    )
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "recipes.md").write_text((BENCH.parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8"))
    recipes.main(["judge", "--results", str(tmp_path / "results"), "--docs", str(docs)])
    judged = files.read_json(tmp_path / "results" / "verdict.json")
    assert {found["answer"] for found in judged["finalists"].values()} == {"not measured"}  # of one setting
    rows_of = judged["settings"]["smollm2-python"]["rows"]
    line = next(row for row in final if row["run"] == names[0] and row["seed"] == 1)
    assert line["n_last"] == final[1]["n_last"] and len(line["nats"]) == judged["settings"]["smollm2-python"]["texts"]
    means = [sum(row["kl_last"]) / sum(row["n_last"]) for row in final if row["run"] == names[0]]
    assert rows_of[names[0]]["kl_last"][0] == pytest.approx(np.mean(means))
    page = (docs / "recipes.md").read_text(encoding="utf-8")
    assert "-->\nnot measured\n" not in page and (docs / "figures" / "recipes.svg").exists()
    sweeps, verdict = read_recipes(tmp_path / "results")
    drawing = draw_frontier(sweeps, verdict)
    ax = drawing.figure.axes[0]
    beyond = re.search(r"(\d+) runs lie far beyond", drawing.alt)
    assert sum(len(points.get_xdata()) for points in ax.lines if points.get_markersize() == 4) == len(whole) - int(
        beyond[1] if beyond else 0
    )
    assert len(ax.containers) == len(names) and "SmolLM2-135M" in drawing.alt


# --- verdicts on invented numbers -----------------------------------------------------------------------------------


def lines(changes: dict[str, tuple[float, float, float]], seeds: int = 5, texts: int = 80) -> list[dict[str, Any]]:
    """Report lines of runs whose KLs are so many times those of a reference, and bits per byte so much more."""
    rng = np.random.default_rng(0)
    n_bytes, places = rng.integers(1000, 4000, texts), rng.integers(20, 60, texts)
    level, bits = rng.gamma(4, 0.01, texts), rng.normal(0.7, 0.1, texts)
    rows: list[dict[str, Any]] = []
    for name, (identical, last, more) in changes.items():
        for seed in range(seeds):
            noise = rng.normal(1, 0.01, (2, texts)) * rng.normal(1, 0.002)
            nats = (bits + more + rng.normal(0, 0.002, texts)) * n_bytes * np.log(2)
            rows.append({
                "run": name, "seed": seed, "n_identical": (20 * places).tolist(), "n_last": places.tolist(),
                "n_bytes": n_bytes.tolist(), "nats": nats.tolist(), "seconds": 1.0,
                "kl_identical": (level * identical * noise[0] * 20 * places).tolist(),
                "kl_last": (8 * level * last * noise[1] * places).tolist(),
            })  # fmt: skip
    return rows


@pytest.mark.parametrize(
    ("own", "others", "leads"),
    [
        ((0.9, 0.9, 0.0), {"kl:a": (1, 1, 0)}, True),  # better on two, equal on the third
        ((0.9, 1.0, -0.003), {"kl:a": (1, 1, 0)}, True),
        ((0.9, 0.9, 0.003), {"kl:a": (1, 1, 0)}, False),  # worse on bits per byte
        ((0.9, 1.06, -0.003), {"kl:a": (1, 1, 0)}, False),  # worse at merged spans
        ((0.9, 1.0, 0.0), {"kl:a": (1, 1, 0)}, False),  # better on one alone
        ((1.0, 1.0, 0.0), {"kl:a": (1, 1, 0)}, False),  # the same
        ((0.9, 0.9, 0.0), {"kl:a": (1, 1, 0), "ce:b": (2, 2, -0.01)}, False),  # one reference is ahead on one column
    ],
)
def test_the_rule_on_invented_numbers(own: tuple[float, float, float], others: dict[str, Any], leads: bool) -> None:
    verdicts = bench("recipe_verdict")
    more = {"r1:other": (0.1, 0.1, -1), "r2:own": (0.1, 0.1, -1)}  # neither named nor a reference
    found = verdicts.judge_setting(lines({"r1:own": own, **others, **more}), ["r1:own"])
    ((name, judged),) = found["finalists"].items()
    assert name == "r1:own" and judged["leads"] is leads and found["rows"].keys() == {name, *others, *more}
    assert judged["columns"]["bpb"]["reference"] == ("ce:b" if "ce:b" in others else "kl:a")
    for at, (column, truth) in enumerate(zip(verdicts.MARGINS, own, strict=True)):
        best = min(values[at] for values in others.values())
        wanted = truth - best if column == "bpb" else truth / best - 1
        assert judged["columns"][column]["estimate"] == pytest.approx(wanted, abs=6e-3)


def test_a_recipe_leads_in_three_settings_or_not_at_all() -> None:
    verdicts = bench("recipe_verdict")
    ahead, behind = (
        verdicts.judge_setting(lines({"r1:own": (share, share, 0.0), "kl:a": (1, 1, 0)}), ["r1:own"])
        for share in (0.9, 1.1)
    )
    for settings, answer in (
        ([ahead, ahead, ahead, behind], "leads"),
        ([ahead, ahead, behind, behind], "does not lead"),
        ([ahead, ahead], "not measured"),
    ):
        named = {f"s{k}": found for k, found in enumerate(settings)}
        assert verdicts.verdict(named, ["r1"])["r1"]["answer"] == answer


def test_the_advised_run_is_named_by_the_sweep_and_judged_by_the_report_split() -> None:
    verdicts = bench("recipe_verdict")
    sweep = [
        {"run": name, "family": name.split(":")[0], "kl_identical": 0.01 * far, "kl_last": 0.1 * far, "bpb": 0.7}
        for name, far in (("r1:x", 1.1), ("kl_ce:x", 1.0), ("kl:x", 1.0), ("kl:y", 1.2), ("ce:x", 4.0))
    ]
    # on the report split another one is better, which must not name it
    report = lines({"r1:x": (0.8, 0.8, 0), "kl_ce:x": (1, 1, 0), "kl:x": (1.2, 1, 0), "kl:y": (2, 2, 0),
                    "ce:x": (4, 4, -0.01), verdicts.PUBLISHED: (1.5, 2, 0.01)})  # fmt: skip
    found = verdicts.advice(report, sweep)
    assert found["run"] == "kl_ce:x"
    runs = {label: part["run"] for label, part in found["against"].items()}
    assert runs == {"Token Distillation as published": verdicts.PUBLISHED, "KL last": "kl:x", "CE": "ce:x"}
    published, nearest, ce = found["against"].values()
    assert published["kl_last"]["estimate"] == pytest.approx(-0.5, abs=6e-3) and published["bpb"]["better"]
    assert nearest["kl_identical"]["estimate"] == pytest.approx(-1 / 6, abs=6e-3)
    assert not nearest["kl_last"]["better"] and ce["bpb"]["low"] > 0
    advice_against = bench("recipe_report").advice_against
    table = advice_against({"settings": {"one": {"advice": found}, "two": {"advice": found}, "three": {}}})
    assert list(table.index) == list(runs) and table.loc["CE", "bits per byte"].endswith("better in 0, worse in 2 of 2")
    assert re.match(
        r"-5[01]% to -(49|50)%; better in 2, worse in 0 of 2", table.loc[table.index[0], "KL at merged spans"]
    )
    assert verdicts.advice(report, []) == {"run": "", "against": {}} and advice_against({}).empty


def test_lines_of_other_texts_are_refused() -> None:
    rows = lines({"r1:own": (1, 1, 0), "a": (1, 1, 0)}, seeds=2)
    with pytest.raises(SystemExit, match="no seed was trained for all of r1:own, a"):
        bench("recipe_verdict").judge_setting([rows[0], rows[-1]], ["r1"])
    rows[-1]["n_last"] = [1] * 80
    with pytest.raises(SystemExit, match="a, seed 1: other texts than r1:own"):
        bench("recipe_verdict").judge_setting(rows, ["r1"])


def test_finalists_are_the_nearest_of_two_new_families() -> None:
    verdicts = bench("recipe_verdict")
    values = {
        "td:x": (1.2, 0.9, 0.01), "ce:x": (2, 2, -0.002), "kl:x": (1, 1, 0.0), "kl:y": (1.5, 1, 0.0),
        "r1:x": (0.95, 1, 0.0), "r1:y": (0.94, 1, 0.0), "r2:x": (0.99, 1, 0.0), "r3:x": (5, 5, 1),
    }  # fmt: skip
    sweep = [
        {"run": name, "family": name.split(":")[0], "kl_identical": 0.01 * a, "kl_last": 0.1 * b, "bpb": 0.7 + c}
        for name, (a, b, c) in values.items()
    ] + [{"run": "r2:z", "family": "r2", "error": "loss is nan"}]
    other = [dict(row) for row in sweep if row["run"] != "r1:y"]
    chosen = verdicts.choose_finalists({"one": sweep, "two": other, "none": []})
    assert chosen["finalists"] == ["r1", "r2"]
    published = "td:hidden_last:0.0001:0.0001:mean:wu0.5"
    assert chosen["runs"]["one"] == ["r1:y", "r2:x", "td:x", "kl:x", "ce:x", published]  # each at its own best
    assert chosen["runs"]["two"][:2] == ["r1:x", "r2:x"] and set(chosen["runs"]) == {"one", "two"}
    without = [row for row in other if row["family"] != "r1"]  # a family that a sweep has not tried is no finalist
    assert verdicts.choose_finalists({"one": sweep, "two": without})["finalists"] == ["r2", "r3"]
    assert verdicts.choose_finalists({}) == {"finalists": [], "mean_distance": {}, "runs": {}}


# --- what each lever does alone -------------------------------------------------------------------------------------


def swept(values: dict[str, tuple[float, float, float]], **more: Any) -> list[dict[str, Any]]:
    """Lines of a sweep: KL at identical places, at merged spans, bits per byte."""
    runs = bench("recipe_runs")
    return [
        {"run": name, "family": runs.parse_run(name).family, "settings": runs.parse_run(name).settings,
         "kl_identical": a, "kl_last": b, "bpb": c, "tokens": 1000, "sampled": 0, "budget": 1000} | more
        for name, (a, b, c) in values.items()
    ]  # fmt: skip


def test_pairs_differ_in_what_a_family_tries_alone() -> None:
    further = bench("recipe_pairs")
    rows = swept({
        "r1:kl_last_ce0.03:0.001:0.0001:mean": (0.01, 0.1, 0.700),
        "kl_hidden:kl_last_ce0.03_hidden0.1:0.001:0.0001:mean": (0.011, 0.08, 0.699),
        "kl_hidden:kl_last_ce0.03_hidden1:0.001:0.0001:mean": (0.02, 0.05, 0.698),
        "kl_hidden:kl_last_ce0.03_hidden1:0.002:0.0001:mean": (9, 9, 9),  # no other run has its rates
        "equal:kl_last_ce0.03:0.001:0.0001:mean:equal": (0.012, 0.1, 0.702),
        "equal:kl_last_ce0.03:0.001:0.0001:mean:equal:texts": (0.06, 0.6, 0.75),
        "texts:kl_last_ce0.03:0.001:0.0001:mean:texts": (0.03, 0.4, 0.74),
        "r2:kl_last_ce0.03_end4x2:0.001:0.0001:mean": (0.013, 0.09, 0.701),
        "r3:kl_last_ce0.03_end4x2:0.001:0.0001:mean:avg0.25": (0.013, 0.099, 0.702),
        "r3:kl_last_ce0.03_end4x2:0.001:0.0001:mean:const:avg0.25": (8, 8, 8),  # no run has its rates without it
        "r4:kl_last_ce0.03:0.001:0.0001:mean:fit0.1": (0.01, 0.1, 0.69),
    })  # fmt: skip
    rows.append({"run": "fade:kl_last_ce0.03:0.001:0.0001:mean:fade", "family": "fade", "error": "loss is nan",
                 "settings": "kl_last_ce0.03:0.001:0.0001:mean:fade"})  # fmt: skip
    wanted = {
        RECIPES["r2"]: (0.3, -0.1, 0.001),
        RECIPES["r3"]: (0.0, 0.1, 0.001),
        RECIPES["r4"]: (0.0, 0.0, -0.01),
        "KL last + hidden MSE, weight 0.1 or less": (0.1, -0.2, -0.001),
        "KL last + hidden MSE, weight above 0.1": (1.0, -0.5, -0.002),
        "tokens seen equally often": (0.2, 0.0, 0.002),
        "tokens seen equally often, in whole texts": (1.0, 0.5, 0.01),
        "whole texts": (2.0, 3.0, 0.04),
    }
    found = further.pairs(rows)
    assert found.keys() == wanted.keys()
    for label, changes in wanted.items():
        assert found[label] == pytest.approx(np.array([changes]))
    line = (
        "| KL last + hidden MSE, weight 0.1 or less | one | 1 | +10 % (+10 to +10 %) | -20 % (-20 to -20 %) | -0.0010 "
    )
    assert line in further.pair_table({"one": rows})
    for run in (run for family in further.PAIRED for run in bench("recipe_runs").GRID[family]):
        assert bench("recipe_runs").parse_run("x:" + further.without(run)[1]).settings != run.settings


def test_distances_and_gaps_to_the_best_of_each_column() -> None:
    verdicts = bench("recipe_verdict")
    rows = swept({
        "kl:kl_last:0.001:0.0001:mean": (0.01, 0.103, 0.701), "ce:ce:0.001:0.0001:mean": (0.02, 0.2, 0.7),
        "fade:kl_last_ce0.1:0.001:0.0001:mean:fade": (0.0103, 0.1, 0.703),
    })  # fmt: skip
    gaps = verdicts.gaps(rows)["fade:kl_last_ce0.1:0.001:0.0001:mean:fade"]
    assert list(gaps.values()) == pytest.approx([1.0, 0.0, 3.0])
    assert verdicts.distances(rows)["kl:kl_last:0.001:0.0001:mean"] == pytest.approx((0 + 1 + 1) / 3)


def test_notes_name_what_is_missing_and_who_misses_the_budget() -> None:
    further, grid = bench("recipe_pairs"), bench("recipe_runs").GRID
    whole = swept({run.name: (0.01, 0.1, 0.7) for runs in grid.values() for run in runs})
    said = further.notes({"one": whole})
    assert "Every run of the grid is there" in said and "budget" not in said
    rows = [row for row in whole if row["run"] not in (grid["td"][0].name, grid["fade"][3].name)]
    for row in rows:
        if row["family"] == "sampled":
            row |= {"tokens": 600, "sampled": 360}
    said = further.notes({"one": whole, "two": rows})
    assert "two lacks 1 of 12 of Token Distillation, 1 of 12 of λ fading." in said and "one lacks" not in said
    assert "more than 1 % in: ends written by the teacher (-4.0 to -4.0 %)." in said


def test_the_page_says_of_levers_what_the_sweeps_say() -> None:
    further, verdicts, runs = bench("recipe_pairs"), bench("recipe_verdict"), bench("recipe_runs")
    sweeps, _ = read_recipes(BENCH.parents[1] / "results" / "recipes")
    page = (BENCH.parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
    for part in (bench("recipe_report").sweep_table(sweeps), further.notes(sweeps), further.pair_table(sweeps)):
        assert part in page  # else: python tests/bench/recipe_report.py
    for setting, rows in sweeps.items():
        apart, lowest = verdicts.distances(rows), min(row["kl_identical"] for row in rows)
        of_run = {row["run"]: row for row in rows}
        nearest = {f: min((n for n in apart if n.split(":")[0] == f), key=apart.__getitem__) for f in runs.GRID}
        assert setting != "qwen-python" or min(apart, key=apart.__getitem__) == nearest["kl_hidden"]
        for family in ("td", "hidden"):  # "between a fifth and nine tenths larger than the lowest"
            assert 1.2 < of_run[nearest[family]]["kl_identical"] / lowest < 1.9
    pairs = {setting: further.pairs(rows) for setting, rows in sweeps.items()}
    small, large = (f"KL last + hidden MSE, weight {what}" for what in ("0.1 or less", "above 0.1"))
    for setting in ("smollm2-python", "smollm2-headers"):
        assert (abs(pairs[setting][small][:, :2]) < 0.03).all()
        assert (pairs[setting][large][:, 0] > 0).all() and (pairs[setting][large][:, 1] < 0).all()
    assert (pairs["qwen-python"][small][:, 1] < 0).all()
    assert pairs["qwen-headers"][small][:, 1].min() < 0 < pairs["qwen-headers"][small][:, 1].max()
    equal = RECIPES["equal"]
    for setting, found in pairs.items():
        weighed = found[RECIPES["r2"]]
        assert setting == "qwen-python" or ((weighed[:, 0] > 0) & (weighed[:, 1] < 0)).all()
        averaged = abs(found[RECIPES["r3"]])
        assert averaged[:, 0].max() < 0.03 and averaged[:, 2].max() < verdicts.MARGINS["bpb"]
        assert (found["λ fading"][:, 0] < 0).all() and (found[f"{equal}, in whole texts"] > 0).all()
        assert (found[equal] > 0).all() or not setting.endswith("headers")
        for label in (RECIPES["sampled"], RECIPES["texts"]):
            assert (found[label][:, 1:] > 0).all()
    fading = np.concatenate([found["λ fading"] for found in pairs.values()])
    assert (fading[:, 2] > 0).mean() > 0.5
    assert np.median(pairs["qwen-python"][equal][:, 1]) > 0.03 and (pairs["smollm2-python"][equal][:, 1] < 0).all()
    later = ("kl_hidden", "fade", "equal", "sampled", "texts")
    assert max(run.head_rate for family in later for run in runs.GRID[family]) == 3e-4
