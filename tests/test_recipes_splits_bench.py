"""The splits of packages of the test bed of recipes: packages apart, passages counted, and what splits by file said."""

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
R1, R4 = "r1:kl_last_ce0.03:0.001:0.0001:mean", "r4:kl_last:0.001:0.0001:mean:fit0.3"
RESULTS = BENCH.parents[1] / "results" / "recipes"
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
    files.write_json(results / "texts.json", {"settings": {"smollm2-headers": told}})
    assert check() == {"b.h", "p.h"}
    package(others, "libb-tools-dev", {"usr/include/tools.h": "t"}, source="b")
    with pytest.raises(SystemExit, match=r"libb-tools-dev: source package b also holds headers below .*report"):
        check()
    package(others, "libb-tools-dev", {"usr/include/b/tools.h": "t"}, source="tools")
    with pytest.raises(SystemExit, match=r"libb-tools-dev: \['b'\] also holds headers below .*report"):
        check()
    told["packages"].append({"name": "liba-dev", "version": "1:2.0-1"})
    files.write_json(results / "texts.json", {"settings": {"smollm2-headers": told}})
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
    texts = files.read_json(RESULTS / "texts.json")
    swept, held = texts["packages_sweep"], set()
    assert {"openssl", "linux", "glibc", "nodejs"} < set(texts["sources_of_the_bed"])
    for setting, found in texts["settings"].items():
        assert not {p["source"] for p in found["packages"]} & set(texts["sources_of_the_bed"])
        told = texts["splits"][setting]
        assert sum(p["texts"] for p in found["packages"]) == told["packages"]["texts"] == told["report"]["texts"]
        assert told["packages"]["texts_without"] == 0 and max(told["packages"]["shared"].values()) < 0.1
        assert told["report"]["shared"]["training"] > 4  # why headers have splits by package
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


# --- what splits by file had said ------------------------------------------------------------------------------------


def test_splits_by_file_are_judged_by_the_same_rule_and_students_of_two_trainings_compared(tmp_path: Path) -> None:
    splits = bench("recipe_splits")
    rows = lines({R1: (0.9, 0.9, 0), LIGHT: (0.7, 0.7, 0), PUBLISHED: (1, 1, 0)})
    base = {"run": "base", "seed": 0, "nats": rows[0]["nats"], "n_bytes": rows[0]["n_bytes"]}
    changed = rows[5] | {"kl_last": [1.04 * value for value in rows[5]["kl_last"]]}
    assert splits.judge_by_file(tmp_path) == {}
    files.write_jsonl(tmp_path / "again" / "smollm2-headers.jsonl", [rows[0], changed, rows[1] | {"seed": 9}])
    files.write_jsonl(tmp_path / "final" / "smollm2-headers.jsonl", [base, *rows])
    files.write_jsonl(tmp_path / "final" / "qwen-headers.jsonl", rows)
    runs = {"smollm2-headers": [R1, PUBLISHED], "qwen-headers": [R1, PUBLISHED]}
    files.write_json(tmp_path / "chosen.json", {"finalists": ["r1"], "runs": runs})
    judged = splits.judge_by_file(tmp_path)
    found = judged["settings"]["smollm2-headers"]
    assert found["seeds"] == 5 and set(found["finalists"]) == {R1}  # LIGHT is of a family that was not named
    assert found["finalists"][R1]["leads"]  # although it is far behind LIGHT, which is no reference
    assert found["finalists"][R1]["columns"]["kl_last"]["reference"] == PUBLISHED
    again = found["again"]
    assert again["rows"] == 2 and again["kl_last"] == pytest.approx(0.04) and again["bpb"] == 0
    told = splits.told_by_file(judged)
    assert "low rates led in 2 of 2 settings of headers." in told and "qwen-headers: nothing was trained twice." in told
    assert "by at most KL identical 0.0 %, KL at merged spans 4.0 %, bits per byte 0.0000; in 1 rows" in told
    table = splits.by_file_table(judged, {"smollm2-headers": {"rows": {R1: {"kl_last": [0.5, 0.4, None]}}}})
    assert f"| smollm2-headers | **finalist then** `{R1}` | " in table and "| 0.5000 [0.4000, ∞] |" in table
    assert f"| qwen-headers | `{LIGHT}` | " in table


def test_the_page_says_of_its_rows_and_splits_what_its_files_say() -> None:
    report, splits, verdicts = bench("recipe_report"), bench("recipe_splits"), bench("recipe_verdict")
    sweeps, verdict = read_recipes(RESULTS)
    settings, by_file = verdict["settings"], verdict["by_file"]
    page = (BENCH.parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8")
    texts = files.read_json(RESULTS / "texts.json")
    told = [report.answer(verdict), report.final_table(verdict), report.comparison_table(verdict)]
    told += [report.advice_table(verdict), splits.texts_table(texts), splits.sources(texts)]
    told += [splits.told_by_file(by_file), splits.by_file_table(by_file, settings)]
    assert all(part in page for part in told)  # else: python tests/bench/recipe_report.py
    assert not any("error" in row for rows in sweeps.values() for row in rows)  # "none did"
    assert not any(found["leads_in"] for found in verdict["finalists"].values())
    whole = [setting for setting in sweeps if setting != "qwen-headers"]  # "each fails to lead in two … at least"
    assert all(len({*found["measured_in"]} & {*whole}) >= 2 for found in verdict["finalists"].values())
    named = [verdicts.choose_finalists({s: sweeps[s] for s in found})["finalists"] for found in (sweeps, whole)]
    assert named[0] == named[1] == [*verdict["finalists"]]  # "name the same two finalists without it"
    old = {s: files.read_jsonl(RESULTS / "by_file" / f"{s}.jsonl") for s in by_file["settings"]}
    old |= {s: rows for s, rows in sweeps.items() if s not in old}
    late = ("kl_hidden", "fade", "equal", "sampled", "texts")
    first = {s: [row for row in rows if row["family"] not in late] for s, rows in old.items()}
    assert verdicts.choose_finalists(first) == files.read_json(RESULTS / "by_file" / "chosen.json")
    assert verdicts.choose_finalists(old)["finalists"] == ["r4", "kl_hidden"]  # "the same sweeps would name"
    columns, lowest = ("kl_identical", "kl_last", "bpb"), {}
    for setting, found in settings.items():
        rows, against = found["rows"], found["advice"]["against"]
        lowest[setting] = [min(rows, key=lambda name, c=c, rows=rows: rows[name][c][0]) for c in columns]
        own = rows[found["advice"]["run"]]
        assert all(own[c][0] < 1.15 * rows[low][c][0] for c, low in zip(columns[:2], lowest[setting], strict=False))
        assert own["bpb"][0] - rows[lowest[setting][2]]["bpb"][0] < verdicts.MARGINS["bpb"]
        assert all(part["kl_identical"]["estimate"] < 0 for part in against.values() if part["run"][:2] in ("td", "hi"))
        hidden = against["hidden MSE"]["kl_identical"]
        assert hidden["better"] or (setting == "qwen-python" and hidden["high"] > 0)
        ce = [row for name, row in rows.items() if name.startswith("ce:")]
        assert all(1.7 < row[c][0] / own[c][0] < 6.25 for row in ce for c in columns[:2])
        assert setting != "smollm2-headers" or all(row["bpb"][0] > own["bpb"][0] for row in ce)
        assert all(abs(against["KL last"][c]["estimate"]) < 0.1 for c in columns[:2])
        saves = against["KL last"]["bpb"]["better"]  # "With SmolLM2 it saves bits"
        assert saves == setting.startswith("smollm2") and not any(against["KL last"][c]["better"] for c in columns[:2])
    families = {setting: [name.split(":")[0] for name in names] for setting, names in lowest.items()}
    assert [names[2] for names in families.values()].count("ce") == 3
    assert all(names[1] == "hidden" for setting, names in families.items() if setting.startswith("qwen"))
    assert all(names[1] == "kl:kl_last:0.003:0.0001:mean" for s, names in lowest.items() if s.startswith("smollm2"))
    assert lowest["smollm2-headers"][2] == settings["smollm2-headers"]["advice"]["run"]
    for setting, old in by_file["settings"].items():
        assert all(row["above_base"][0] > 0 for row in settings[setting]["rows"].values())
        assert min(old["rows"].items(), key=lambda item: item[1]["bpb"][0])[0].startswith("ce:")
        assert any(row["above_base"][0] < 0 for row in old["rows"].values())
        again = files.read_jsonl(RESULTS / "by_file" / "again" / f"{setting}.jsonl")
        before = files.read_jsonl(RESULTS / "by_file" / "final" / f"{setting}.jsonl")
        same = splits.read_again([row for row in again if "hidden_last" in row["run"]], before)
        assert same["rows"] == 3 and max(same[column] for column in verdicts.MARGINS) < 1e-6  # "in six digits"
    pair = [f"kl:kl_last:0.0005:{rate}:mean" for rate in ("0.0003", "0.0001")]  # "save KL last no bits"
    for folder, saves in ((RESULTS, False), (RESULTS / "by_file", True)):
        _, sums, counts = verdicts.gather(files.read_jsonl(folder / "final" / "qwen-headers.jsonl"))
        one, other = (sums[name]["bpb"] for name in pair)
        assert verdicts.compare(one, other, counts["bpb"], "bpb")["better"] == saves
    for judged in settings["qwen-headers"]["finalists"].values():  # "an interval there is tens of per cent wide"
        assert judged["columns"]["kl_last"]["high"] - judged["columns"]["kl_last"]["low"] > 0.3


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
    report, others, rng = tmp_path / "unpacked", tmp_path / "others", np.random.default_rng(1)
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    common = [*made, "--judged", "9", "--characters", "200", "--root", str(tmp_path / "root")]
    budget = ["--token-budget", "512"]

    # the report split
    with pytest.raises(SystemExit, match="prepare-packages --split packages --setting smollm2-headers"):
        recipes.main(["final", *made, *budget, "--runs", R1])
    command = ["prepare-packages", "--split", "packages", *common, "--packages", str(report)]
    with pytest.raises(SystemExit, match=r"is not what .* was made from"):
        recipes.main([*command, "--root", str(report / "lib0-dev" / "DEBIAN")])
    recipes.main(command)
    assert {name: (data / name).read_bytes() for name in before} == before
    first = files.read_json(results / "texts.json")
    own, both = first["settings"]["smollm2-headers"], first["splits"]["smollm2-headers"]
    given = [p["texts"] for p in own["packages"]]  # a text that is left out costs its package a turn
    assert sum(given) == 9 and len(given) == 4 and max(given) <= 3 and own["packages"][0]["version"] == "1:2.0-1"
    assert own["left_out"]["without a new token"] and own["left_out"]["shared"]
    assert both["packages"]["texts"] == 9 and both["packages"]["texts_without"] == 0
    assert both["packages"]["shared"] == {"training": 0.0, "sweep": 0.0, "training_text": 0.0}

    # the sweep split, from yet other packages
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    for k in range(2):
        package(others, f"other{k}-dev", {f"usr/include/other{k}/o{j}.h": header(rng) for j in range(3)})
    package(others, "name-dev", {"usr/include/name/h0.h": header(rng)})
    copies = enumerate(sorted(report.glob("lib*/usr/include/own*/h*.h")))
    package(others, "copy-dev", {f"usr/include/copy/c{k}.h": path.read_text("utf-8") for k, path in copies})
    command = ["prepare-packages", "--split", "packages_sweep", *common, "--packages", str(others)]
    runs = [R1, R4, PUBLISHED, ADVISED]
    sweep = ["sweep", *made, *budget, "--runs", *runs]
    with pytest.raises(SystemExit, match="prepare-packages --split packages_sweep"):
        recipes.main(sweep)
    with pytest.raises(SystemExit, match="lib0-dev: source package lib0-dev also holds headers"):
        recipes.main([*command, "--packages", str(report), "--beside", str(report)])
    recipes.main([*command, "--judged", "99", "--beside", str(report)])
    assert {name: (data / name).read_bytes() for name in before} == before
    texts = files.read_json(results / "texts.json")
    part = texts.pop("packages_sweep")
    own, told = part["settings"]["smollm2-headers"], part["splits"]["smollm2-headers"]["packages_sweep"]
    assert texts == first  # what is told of the report split stays
    assert {p["name"] for p in own["packages"]} == {"copy-dev", "other0-dev", "other1-dev"}
    assert own["left_out"]["shared"] == 9 == both["packages"]["texts"]  # all copies
    assert set(told["shared"]) == {"training", "training_text", "sweep", "report", "packages"}
    assert not any(told["shared"].values())
    assert set(own["sha256"]) == {*before, "packages_sweep.npz"}

    # runs, finalists and the page
    recipes.main(sweep)
    found = files.read_jsonl(results / "smollm2-headers.jsonl")
    assert sorted(row["run"] for row in found) == sorted(runs)
    assert all(row["split"] == "packages_sweep" and row["texts"] == told["texts"] for row in found)
    recipes.main(["choose", "--results", str(results)])
    assert sorted(files.read_json(results / "chosen.json")["runs"]["smollm2-headers"]) == sorted(runs)
    final = ["final", *made, *budget, "--seeds", "2"]
    recipes.main([*final, "--minutes", "0"])
    recipes.main(final)
    path = results / "final" / "smollm2-headers.jsonl"
    found = files.read_jsonl(path)
    assert {row["split"] for row in found} == {"packages"}
    assert sorted((row["run"], row["seed"]) for row in found) == sorted(
        [("base", 0), *((name, seed) for name in runs for seed in (0, 1))]
    )
    content = path.read_bytes()
    recipes.main(final)
    assert path.read_bytes() == content and "0 trainings" in capsys.readouterr().out
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "recipes.md").write_text((BENCH.parents[1] / "docs" / "recipes.md").read_text(encoding="utf-8"))
    recipes.main(["judge", "--results", str(results), "--docs", str(docs)])
    judged = files.read_json(results / "verdict.json")
    assert judged["settings"]["smollm2-headers"]["texts"] == 9 and judged["by_file"] == {}
    page = (docs / "recipes.md").read_text(encoding="utf-8")
    assert page.count("-->\nnot measured yet\n") == 1 and "| smollm2-headers | report, by package | 9 |" in page

    # files that are not those that were told of, and lines of another split
    (data / "packages_sweep.npz").write_bytes(before["sweep.npz"])
    with pytest.raises(SystemExit, match=r"packages_sweep.npz is not the file"):
        recipes.main([*sweep, LIGHT])
    (data / "sweep.npz").write_bytes(b"other")
    with pytest.raises(SystemExit, match=r"sweep.npz is not the file"):
        recipes.main([*final, "--seeds", "3"])


def test_lines_of_another_split_are_not_added_to(tmp_path: Path, made: list[str]) -> None:
    recipes, results = bench("recipes"), tmp_path / "results"
    files.write_jsonl(results / "smollm2-python.jsonl", [{"run": R1, "split": "packages_sweep"}])
    asked = ["sweep", "--setting", "smollm2-python", *made[2:], "--runs", R1]
    with pytest.raises(SystemExit, match="holds lines of packages_sweep, not of sweep: move it away"):
        recipes.main(asked)
