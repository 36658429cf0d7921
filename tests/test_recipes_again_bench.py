"""The splits of packages of the test bed of recipes: packages apart, passages counted, the same students, one rule."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
from bench_scripts import BENCH, bench, scripts  # noqa: F401  (a fixture of every test here)
from test_recipes_bench import lines

from vocabx_utils import files
from vocabx_utils.measured import read_recipes

LIGHT = "kl_hidden:kl_last_ce0.03_hidden0.1:0.001:0.0001:mean"
HEAVY = "kl_hidden:kl_last_ce0.03_hidden1:0.001:0.0001:mean"
R1, R4 = "r1:kl_last_ce0.03:0.001:0.0001:mean", "r4:kl_last:0.001:0.0001:mean:fit0.3"
PUBLISHED, ADVISED = "td:hidden_last:0.0001:0.0001:mean:wu0.5", "kl_ce:kl_last_ce0.1:0.001:0.0001:mean"


# --- passages -------------------------------------------------------------------------------------------------------


def test_shared_passages_are_those_that_are_found_one_by_one() -> None:
    packages = bench("recipe_packages")
    rng = np.random.default_rng(0)
    known = [rng.integers(0, 50_000, size) for size in (400, 29, 30, 90)]
    own = [np.concatenate([known[0][50:110], rng.integers(0, 50_000, 40)]), known[2], known[1], known[3][::-1]]

    def plain(rows: list[np.ndarray]) -> list[tuple[int, ...]]:
        return [tuple(map(int, row[k : k + 30])) for row in rows for k in range(len(row) - 29)]

    there = set(plain(known))
    wanted = float(np.mean([one in there for one in plain(own)], dtype=np.float64))
    assert 0.1 < wanted < 0.9
    assert packages.shared(own, packages.all_passages(known)) == pytest.approx(wanted, abs=1e-12)
    assert len(packages.all_passages(known)) == len(there)
    assert packages.shared(own, packages.all_passages([])) == 0 == packages.shared([known[1]], np.zeros(3, np.uint64))


# --- packages -------------------------------------------------------------------------------------------------------


def package(folder: Path, name: str, headers: dict[str, str], source: str = "") -> None:
    """An unpacked package, as `dpkg-deb -R` makes it."""
    told = (
        f"Package: {name}\n" + f"Source: {source} (1.0)\n" * bool(source) + "Version: 1:2.0-1\nDescription: a\n b: c\n"
    )
    for path, text in {"DEBIAN/control": told, **headers}.items():
        (folder / name / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / path).write_text(text, encoding="utf-8")


def test_packages_of_the_bed_are_refused(tmp_path: Path) -> None:
    packages, unpacked, root = bench("recipe_packages"), tmp_path / "unpacked", tmp_path / "include"
    for path in ("zlib.h", "linux/fs.h", "x86_64-linux-gnu/sys/io.h"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path, encoding="utf-8")
    with pytest.raises(SystemExit, match="no folder with DEBIAN/control"):
        packages.read_packages(unpacked)
    package(unpacked, "libb-dev", {"usr/include/b/b.h": "b", "usr/include/x86_64-linux-gnu/c.h": "c"}, source="b")
    package(unpacked, "liba-dev", {"usr/lib/a.h": "a"})
    found = packages.read_packages(unpacked)
    assert [(p.name, p.version, p.source) for p in found] == [
        ("liba-dev", "1:2.0-1", "liba-dev"),
        ("libb-dev", "1:2.0-1", "b"),
    ]
    tops = packages.top_folders(root)
    assert tops == {"linux", "sys"} and packages.top_folders(unpacked / "libb-dev") == {"b"}
    packages.check_apart(found, root, ["zlib"], tops)
    with pytest.raises(SystemExit, match="libb-dev: source package b also holds headers"):
        packages.check_apart(found, root, ["zlib", "b"], tops)
    package(unpacked, "libs-dev", {"usr/include/sys/s.h": "s"})
    with pytest.raises(SystemExit, match=r"libs-dev: \['sys'\] also holds headers"):
        packages.check_apart(packages.read_packages(unpacked), root, [], tops)
    assert packages.origins(tmp_path / "nothing") == []


def test_packages_of_the_other_split_are_refused(tmp_path: Path) -> None:
    packages, data, results = bench("recipe_packages"), tmp_path / "data" / "smollm2-headers", tmp_path / "results"
    report, others = tmp_path / "report", tmp_path / "others"
    package(report, "libb-dev", {"usr/include/b/b.h": "b", "usr/lib/p/include/p.h": "p"}, source="b")
    package(others, "libq-dev", {"usr/include/q.h": "q", "usr/lib/q/include/q_parts.h": "q"})
    options = argparse.Namespace(
        data=tmp_path / "data", setting="smollm2-headers", results=results, split="packages_sweep", beside=None
    )

    def check() -> set[str]:
        found: set[str] = packages.check_beside(options, packages.read_packages(others))
        return found

    assert check() == set()  # there is no report split of packages yet
    for name in ("setting.json", "snippets.npz", "texts.npz", "sweep.npz", "report.npz", "packages.npz"):
        data.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(name.encode())
    with pytest.raises(SystemExit, match=r"packages.npz is there: name the folder of its packages with --beside"):
        check()
    options.beside = report
    with pytest.raises(SystemExit, match="nothing on smollm2-headers and packages"):
        check()
    told = {"packages": [{"name": "libb-dev", "version": "1:2.0-1"}], "sha256": packages.checksums(data)}
    files.write_json(results / "packages" / "texts.json", {"settings": {"smollm2-headers": told}})
    assert check() == {"b.h", "p.h"}
    package(others, "libb-tools-dev", {"usr/include/tools.h": "t"}, source="b")
    with pytest.raises(SystemExit, match=r"libb-tools-dev: source package b also holds headers below .*report"):
        check()
    package(others, "libb-tools-dev", {"usr/include/b/tools.h": "t"}, source="tools")
    with pytest.raises(SystemExit, match=r"libb-tools-dev: \['b'\] also holds headers below .*report"):
        check()
    told["packages"].append({"name": "liba-dev", "version": "1:2.0-1"})
    files.write_json(results / "packages" / "texts.json", {"settings": {"smollm2-headers": told}})
    with pytest.raises(SystemExit, match=r"report lacks packages that packages.npz holds texts of: liba-dev"):
        check()
    (data / "packages.npz").write_bytes(b"other")
    with pytest.raises(SystemExit, match=r"packages.npz is not the file"):
        check()


def test_a_package_gives_a_few_texts_of_each_file_and_none_that_the_bed_names(tmp_path: Path) -> None:
    packages = bench("recipe_packages")
    long = "".join(f"int value_{k};\n" for k in range(200))
    package(
        tmp_path,
        "liba-dev",
        {"usr/include/a.h": long, "usr/include/b.h": "int b;\n" * 9, "usr/include/zlib.h": "z" * 99},
    )
    (one,) = packages.read_packages(tmp_path)
    found = list(packages.candidates(one, {"zlib.h"}, 300))
    assert len(found) == 4 and found == list(packages.candidates(one, {"zlib.h"}, 300))
    assert sum(text in long for text in found) == 3 and not any("z" * 9 in text for text in found)
    assert found.index("int b;\n" * 9) < 2  # the first of each file comes before the second of any


def test_the_committed_splits_hold_no_package_of_the_bed_and_share_next_to_nothing() -> None:
    texts = files.read_json(BENCH.parents[1] / "results" / "recipes" / "packages" / "texts.json")
    swept, held = texts["packages_sweep"], set()
    assert {"openssl", "linux", "glibc", "nodejs"} < set(texts["sources_of_the_bed"])
    for setting, found in texts["settings"].items():
        assert not {p["source"] for p in found["packages"]} & set(texts["sources_of_the_bed"])
        told = texts["splits"][setting]
        assert sum(p["texts"] for p in found["packages"]) == told["packages"]["texts"] == told["report"]["texts"]
        assert told["packages"]["texts_without"] == 0 and max(told["packages"]["shared"].values()) < 0.1
        assert told["report"]["shared"]["training"] > 4  # what the second split is for
        held |= {p["source"] for p in found["packages"]}
    for setting, found in swept["settings"].items():
        own = {p["source"] for p in found["packages"]}
        assert len(own) > 50 and not own & (held | set(swept["sources_of_the_bed"]))
        told = swept["splits"][setting]
        assert sum(p["texts"] for p in found["packages"]) == told["packages_sweep"]["texts"] == told["sweep"]["texts"]
        shares = told["packages_sweep"]["shared"]
        assert (
            set(shares) == {"training", "training_text", "sweep", "report", "packages"} and max(shares.values()) < 0.1
        )
        assert told["packages_sweep"]["texts_without"] == 0 and told["sweep"]["shared"]["training"] > 6
        report = texts["settings"][setting]["sha256"]
        assert {name: found["sha256"][name] for name in report} == report  # made beside the very report split
    assert set(swept["settings"]) == set(texts["settings"])


# --- the row that is named ------------------------------------------------------------------------------------------


def test_the_further_row_is_named_once_by_the_sweep(tmp_path: Path) -> None:
    again = bench("recipe_again")
    rows = [
        {"run": name, "family": name.split(":")[0], "kl_identical": 0.01 * far, "kl_last": 0.1 * far, "bpb": 0.7}
        for name, far in ((LIGHT, 1.2), (LIGHT.replace("0.001", "0.002"), 1.1), (HEAVY, 1.0), (R1, 1.0))
    ]
    for setting in ("qwen-headers", "qwen-python"):
        files.write_jsonl(tmp_path / f"{setting}.jsonl", rows)
    with pytest.raises(SystemExit, match="name the further row"):
        again.named_run(tmp_path, "qwen-headers")
    options = argparse.Namespace(results=tmp_path)
    again.name_row(options)
    assert again.named_run(tmp_path, "qwen-headers") == [LIGHT.replace("0.001", "0.002")]
    assert again.named_run(tmp_path, "smollm2-headers") == []
    assert list(files.read_json(tmp_path / "packages" / "named.json")["runs"]) == ["qwen-headers"]
    with pytest.raises(SystemExit, match="and stands"):
        again.name_row(options)


def test_runs_are_named_by_the_sweep_on_one_split_of_headers(tmp_path: Path) -> None:
    verdicts, other = bench("recipe_verdict"), R1.replace("0.001", "0.002")

    def rows(best: str, worse: str) -> list[dict[str, object]]:
        both = ((best, 1.0), (worse, 1.1), (R4, 1.05))
        return [
            {"run": name, "family": name[:2], "kl_identical": 0.01 * far, "kl_last": 0.1 * far, "bpb": 0.7}
            for name, far in both
        ]

    for setting in ("qwen-headers", "smollm2-headers", "qwen-python"):
        files.write_jsonl(tmp_path / f"{setting}.jsonl", rows(R1, other))
    files.write_jsonl(tmp_path / "packages" / "sweep" / "qwen-headers.jsonl", rows(other, R1))
    options = argparse.Namespace(results=tmp_path, settings=None, by=None, split="sweep")
    verdicts.choose(options)
    first = (tmp_path / "chosen.json").read_bytes()
    chosen = files.read_json(tmp_path / "chosen.json")["runs"]
    assert {setting: names[0] for setting, names in chosen.items()} == dict.fromkeys(chosen, R1) and len(chosen) == 3
    options.split = "packages_sweep"
    verdicts.choose(options)
    chosen = files.read_json(tmp_path / "packages" / "sweep" / "chosen.json")["runs"]
    # headers that were not swept on the new split are not named by the old one
    assert {setting: names[0] for setting, names in chosen.items()} == {"qwen-python": R1, "qwen-headers": other}
    assert (tmp_path / "chosen.json").read_bytes() == first


# --- verdicts on invented numbers -----------------------------------------------------------------------------------


def test_both_splits_are_judged_by_one_rule_and_the_named_row_is_no_reference(tmp_path: Path) -> None:
    again, verdicts = bench("recipe_again"), bench("recipe_verdict")
    rows = lines({R1: (0.9, 0.9, 0), LIGHT: (0.7, 0.7, 0), PUBLISHED: (1, 1, 0)})
    base = {"run": "base", "seed": 0, "split": "packages", "nats": rows[0]["nats"], "n_bytes": rows[0]["n_bytes"]}
    second = [base, *(row | {"split": "packages"} for row in rows)]
    changed = rows[1] | {"split": "report", "kl_last": [1.04 * value for value in rows[1]["kl_last"]]}
    files.write_jsonl(
        tmp_path / "packages" / "smollm2-headers.jsonl", [*second, rows[0] | {"split": "report"}, changed]
    )
    files.write_jsonl(tmp_path / "final" / "smollm2-headers.jsonl", rows)
    files.write_jsonl(tmp_path / "packages" / "qwen-headers.jsonl", second[:8])  # a run lacks seeds, another is missing
    named = {"smollm2-headers": LIGHT, "qwen-headers": LIGHT}
    files.write_json(tmp_path / "packages" / "named.json", {"date": "2026-11-30", "row": "named", "runs": named})
    runs = {setting: [R1, PUBLISHED] for setting in named}
    files.write_json(tmp_path / "chosen.json", {"finalists": ["r1"], "runs": runs})
    first = {"qwen-python": verdicts.judge_setting(rows, ["r1"]), "smollm2-headers": {"rows": {}, "finalists": {}}}
    judged = again.judge_again(tmp_path, ["r1"], first)
    found = judged["settings"]["smollm2-headers"]
    assert found["seeds"] == 5 and set(found["finalists"]) == {R1, LIGHT}
    for name in (R1, LIGHT):  # R1 leads although the named row is far ahead of it
        assert (
            found["finalists"][name]["leads"]
            and found["finalists"][name]["columns"]["kl_last"]["reference"] == PUBLISHED
        )
    assert judged["finalists"]["r1"]["measured_in"] == ["qwen-python", "smollm2-headers"]
    assert (
        judged["named"]["verdict"]["answer"] == "not measured"
        and "smollm2-headers" in judged["named"]["verdict"]["leads_in"]
    )
    assert (
        found["again"]["rows"] == 2 and found["again"]["kl_last"] == pytest.approx(0.04) and found["again"]["bpb"] == 0
    )
    told = again.told_answer(judged)
    assert (
        "means change by at most KL identical 0.0 %, KL at merged spans 4.0 %, bits per byte 0.0000; in 1 rows" in told
    )
    assert "leads in 1 of 1 settings of headers. It would need 3" in told and "these 1 could not make up" in told
    assert found["beside"][R1]["kl_last"]["estimate"] == pytest.approx(0.7 / 0.9 - 1, abs=6e-3)
    assert f"| smollm2-headers | `{R1}` | -22." in again.beside_table(judged)
    table = again.both_table(first, judged)
    assert f"**named** `{LIGHT}` |  | " in table and f"**finalist** `{R1}`" in table
    assert again.judge_again(tmp_path / "nothing", ["r1"], first) == {}


def test_the_page_says_of_the_second_split_what_its_files_say() -> None:
    again, verdicts = bench("recipe_again"), bench("recipe_verdict")
    results = BENCH.parents[1] / "results" / "recipes"
    sweeps, verdict = read_recipes(results)
    second = verdict["packages"]
    page = (BENCH.parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
    told = [again.told_answer(second), again.both_table(verdict["settings"], second), again.beside_table(second)]
    assert all(part in page for part in told)  # else: python tests/bench/recipe_report.py
    assert not any("error" in row for rows in sweeps.values() for row in rows)  # "none did"
    assert again.nearest_named(sweeps) == second["named"]["runs"]  # "with all of them it names the same run"
    assert not any(found["leads_in"] for found in [*second["finalists"].values(), second["named"]["verdict"]])
    columns = ("kl_identical", "kl_last", "above_base")
    for split, found in [*verdict["settings"].items(), *second["settings"].items()]:  # "What to take"
        own, rows = found["rows"][found["advice"]["run"]], found["rows"]
        assert all(own[c][0] < 1.15 * min(row[c][0] for row in rows.values()) for c in columns[:2])
        fewest = min(row["bpb"][0] for name, row in rows.items() if not name.startswith("ce:"))
        assert own["bpb"][0] - fewest < verdicts.MARGINS["bpb"]
        hidden = [part for label, part in found["advice"]["against"].items() if label not in ("KL last", "CE")]
        assert len(hidden) == 3 and all(part["kl_identical"]["estimate"] < 0 for part in hidden), split
    lowest = {
        setting: [min(found["rows"], key=lambda name, c=c, f=found: f["rows"][name][c][0]) for c in columns]
        for setting, found in second["settings"].items()
    }
    assert all(row["above_base"][0] > 0 for found in second["settings"].values() for row in found["rows"].values())
    assert [name.split(":")[0] for name in lowest["qwen-headers"]] == ["kl_hidden", "hidden", "ce"]
    assert lowest["smollm2-headers"][:2] == ["kl:kl_last:0.003:0.0001:mean"] * 2
    assert lowest["smollm2-headers"][2] == second["settings"]["smollm2-headers"]["advice"]["run"]
    first = {setting: verdict["settings"][setting]["rows"] for setting in lowest}
    assert all(any(row["above_base"][0] < 0 for row in rows.values()) for rows in first.values())
    for judged in second["settings"]["qwen-headers"]["finalists"].values():  # "ahead by less than the margin"
        assert 0 < judged["columns"]["bpb"]["estimate"] < verdicts.MARGINS["bpb"]
        assert judged["columns"]["kl_last"]["high"] - judged["columns"]["kl_last"]["low"] > 0.3
    for parts in second["settings"]["qwen-headers"]["beside"].values():
        assert all(parts[c]["estimate"] < 0 < parts[c]["high"] for c in columns[:2])
    r4, r1 = second["settings"]["smollm2-headers"]["beside"].values()
    assert r1["kl_identical"]["better"] and r1["kl_last"]["better"] and min(r1["bpb"]["low"], r4["bpb"]["low"]) > 0
    assert all(r4[c]["low"] < 0 < r4[c]["high"] for c in columns[:2])
    for setting in lowest:  # "came back the same in six digits"
        lines = files.read_jsonl(results / "packages" / f"{setting}.jsonl")
        old = files.read_jsonl(results / "final" / f"{setting}.jsonl")
        same = again.read_again([row for row in lines if "hidden_last" in row["run"]], old)
        assert same["rows"] == 3 and max(same[column] for column in verdicts.MARGINS) < 1e-6


# --- end to end -----------------------------------------------------------------------------------------------------


def header(rng: np.random.Generator) -> str:
    """A made-up text whose words the new tokens of `made` are parts of."""
    words = ["".join(rng.choice(list("qzxjkwv"), rng.integers(2, 5))) for _ in range(60)]
    return "\n".join(" ".join(words[k : k + 6]) for k in range(0, 60, 6)) + "\n"


@pytest.fixture
def made(tmp_path: Path, tiny_folder: Path) -> list[str]:
    """A small setting of headers of the tiny model with packages beside it, and what its commands take."""
    rng = np.random.default_rng(0)
    for k in range(90):
        path = tmp_path / "root" / f"project{k}" / f"old{k}.h"
        path.parent.mkdir(parents=True)
        path.write_text(header(rng), encoding="utf-8")
    copied = (tmp_path / "root" / "project3" / "old3.h").read_text(encoding="utf-8")
    for k in range(4):
        headers = {f"usr/include/own{k}/h{j}.h": header(rng) for j in range(4)} | {f"usr/include/own{k}/copy.h": copied}
        package(tmp_path / "unpacked", f"lib{k}-dev", headers | {f"usr/include/own{k}/none.h": "0 0 0 0\n" * 30})
    sizes = "--n 6 --least 5 --window 24 --tokens 700 --characters 200 --judged 8 --min-count 3 --min-files 2"
    common = ["--setting", "smollm2-headers", "--model", str(tiny_folder)]
    root = ["--root", str(tmp_path / "root")]
    bench("recipes").main(
        ["prepare", *common, *root, "--out", str(tmp_path / "data" / "smollm2-headers"), *sizes.split()]
    )
    return [*common, "--data", str(tmp_path / "data"), "--results", str(tmp_path / "results")]


def test_from_packages_to_the_page(tmp_path: Path, made: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    recipes, data, results = bench("recipes"), tmp_path / "data" / "smollm2-headers", tmp_path / "results"
    unpacked = ["--packages", str(tmp_path / "unpacked"), "--judged", "9", "--characters", "200"]
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    budget = ["--token-budget", "512"]
    with pytest.raises(SystemExit, match="prepare-packages --split packages --setting smollm2-headers"):
        recipes.main(["final", "--report", "packages", *made, *budget, "--runs", R1])
    command = ["prepare-packages", "--split", "packages", *made, *unpacked]
    with pytest.raises(SystemExit, match=r"is not what .* was made from"):
        recipes.main([*command, "--root", str(tmp_path / "unpacked" / "lib0-dev" / "DEBIAN")])
    recipes.main([*command, "--root", str(tmp_path / "root")])
    assert {name: (data / name).read_bytes() for name in before} == before
    texts = files.read_json(results / "packages" / "texts.json")
    own, both = texts["settings"]["smollm2-headers"], texts["splits"]["smollm2-headers"]
    given = [p["texts"] for p in own["packages"]]  # a text that is left out costs its package a turn
    assert sum(given) == 9 and len(given) == 4 and max(given) <= 3 and own["packages"][0]["version"] == "1:2.0-1"
    assert own["left_out"]["without a new token"] and own["left_out"]["shared"]
    assert both["packages"]["texts"] == 9 and both["packages"]["texts_without"] == 0
    assert both["packages"]["shared"] == {"training": 0.0, "sweep": 0.0, "training_text": 0.0}

    runs = [R1, R4, PUBLISHED, ADVISED]
    files.write_json(results / "chosen.json", {"finalists": ["r4", "r1"], "runs": {"smollm2-headers": runs}})
    recipes.main(["sweep", *made, *budget, "--runs", R1, ADVISED, LIGHT, HEAVY])
    recipes.main(["name", "--results", str(results)])
    recipes.main(["final", *made, *budget, "--seeds", "1"])
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "recipes.md").write_text((BENCH.parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8"))
    recipes.main(["judge", "--results", str(results), "--docs", str(docs)])
    page = (docs / "recipes.md").read_text(encoding="utf-8")
    assert page.count("-->\nnot measured yet\n") == 4 and "| smollm2-headers | packages | 9 |" in page

    packages = ["final", "--report", "packages", *made, *budget, "--seeds", "2"]
    recipes.main([*packages, "--minutes", "0"])
    recipes.main(packages)
    path = results / "packages" / "smollm2-headers.jsonl"
    found = files.read_jsonl(path)
    named = [*runs, LIGHT]
    assert sorted((row["split"], row["run"], row["seed"]) for row in found) == sorted(
        [
            ("packages", "base", 0),
            *(("packages", n, s) for n in named for s in (0, 1)),
            *(("report", n, 0) for n in named),
        ]
    )
    stored = {row["run"]: row for row in files.read_jsonl(results / "final" / "smollm2-headers.jsonl")}
    for row in found:  # the students are those of the first split
        if row["split"] == "report" and row["run"] in stored:
            for key in ("kl_identical", "kl_last", "nats", "n_last", "tokens", "examples"):
                assert row[key] == stored[row["run"]][key]
    content = path.read_bytes()
    recipes.main(packages)
    assert path.read_bytes() == content and "0 trainings" in capsys.readouterr().out

    recipes.main(["judge", "--results", str(results), "--docs", str(docs)])
    judged = files.read_json(results / "verdict.json")["packages"]
    assert (
        judged["settings"]["smollm2-headers"]["texts"] == 9
        and judged["settings"]["smollm2-headers"]["again"]["rows"] == 4
    )
    assert judged["settings"]["smollm2-headers"]["again"]["kl_last"] == 0
    assert judged["settings"]["smollm2-headers"]["advice"]["against"].keys() == {"Token Distillation as published"}
    assert "-->\nnot measured yet\n" not in (docs / "recipes.md").read_text(encoding="utf-8")
    (data / "sweep.npz").write_bytes(b"other")
    with pytest.raises(SystemExit, match=r"sweep.npz is not the file"):
        recipes.main([*packages, "--seeds", "3"])


def test_a_sweep_on_packages_that_the_report_split_does_not_hold(tmp_path: Path, made: list[str]) -> None:
    recipes, data, results = bench("recipes"), tmp_path / "data" / "smollm2-headers", tmp_path / "results"
    report, others, rng = tmp_path / "unpacked", tmp_path / "others", np.random.default_rng(1)
    common = [*made, "--judged", "9", "--characters", "200", "--root", str(tmp_path / "root")]
    recipes.main(["prepare-packages", "--split", "packages", *common, "--packages", str(report)])
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    first = files.read_json(results / "packages" / "texts.json")

    for k in range(2):
        package(others, f"other{k}-dev", {f"usr/include/other{k}/o{j}.h": header(rng) for j in range(3)})
    package(others, "name-dev", {"usr/include/name/h0.h": header(rng)})
    copies = enumerate(sorted(report.glob("lib*/usr/include/own*/h*.h")))
    package(others, "copy-dev", {f"usr/include/copy/c{k}.h": path.read_text("utf-8") for k, path in copies})
    prepare = ["prepare-packages", "--split", "packages_sweep", *common, "--packages", str(others)]
    sweep = ["sweep", "--split", "packages_sweep", *made, "--token-budget", "512", "--runs", R1, ADVISED, PUBLISHED]
    with pytest.raises(SystemExit, match="prepare-packages --split packages_sweep"):
        recipes.main(sweep)
    with pytest.raises(SystemExit, match="lib0-dev: source package lib0-dev also holds headers"):
        recipes.main([*prepare, "--packages", str(report), "--beside", str(report)])
    recipes.main([*prepare, "--judged", "99", "--beside", str(report)])

    assert {name: (data / name).read_bytes() for name in before} == before
    texts = files.read_json(results / "packages" / "texts.json")
    part = texts.pop("packages_sweep")
    own, told = part["settings"]["smollm2-headers"], part["splits"]["smollm2-headers"]["packages_sweep"]
    assert texts == first  # what is told of the report split stays
    assert {p["name"] for p in own["packages"]} == {"copy-dev", "other0-dev", "other1-dev"}
    assert own["left_out"]["shared"] == 9 == first["splits"]["smollm2-headers"]["packages"]["texts"]  # all copies
    assert set(told["shared"]) == {"training", "training_text", "sweep", "report", "packages"}
    assert not any(told["shared"].values())
    assert set(own["sha256"]) == {*before, "packages_sweep.npz"}

    recipes.main(sweep)
    lines = files.read_jsonl(results / "packages" / "sweep" / "smollm2-headers.jsonl")
    assert {row["run"] for row in lines} == {R1, ADVISED, PUBLISHED} and len(lines) == 3
    assert all(row["split"] == "packages_sweep" and row["texts"] == told["texts"] for row in lines)
    recipes.main([*sweep[:1], *made, "--token-budget", "512", "--runs", R1])
    (old,) = files.read_jsonl(results / "smollm2-headers.jsonl")
    (again,) = [row for row in lines if row["run"] == R1]
    assert old["split"] == "sweep" and old["tokens"] == again["tokens"] and old["bpb"] != again["bpb"]
    recipes.main(["choose", "--split", "packages_sweep", "--results", str(results)])
    chosen = files.read_json(results / "packages" / "sweep" / "chosen.json")
    assert chosen["runs"] == {"smollm2-headers": [R1, PUBLISHED, ADVISED]} and not (results / "chosen.json").exists()
    (data / "packages_sweep.npz").write_bytes(before["sweep.npz"])
    with pytest.raises(SystemExit, match=r"packages_sweep.npz is not the file"):
        recipes.main([*sweep, LIGHT])
