"""The comparison in domains from end to end on a tiny model, and what its page says of plain LoRA."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from bench_scripts import bench, scripts  # noqa: F401  (a fixture of every test here)

from vocabx_utils import files
from vocabx_utils.measured import DOMAIN_ARMS, read_domains, read_phrases, read_recipes
from vocabx_utils.resampling import paired_bootstrap

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "domains.md", ROOT / "results" / "domains"
RECIPE = "r1:kl_last:0.001:0.0001:mean:texts"


# --- texts ----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff renders manual pages")
def test_manual_pages_of_one_language_are_read(tmp_path: Path) -> None:
    texts = bench("domain_texts")
    for language, words in (("sv", "Vad är detta för en sida?"), ("de", "Was für eine Seite ist das?")):
        folder = tmp_path / "usr" / "share" / "man" / language / "man1"
        folder.mkdir(parents=True)
        for name in ("a", "b"):  # the second is the first once more
            (folder / f"{name}.1.gz").write_bytes(gzip.compress(f".TH A 1\n.SH NAMN\n{words}\n".encode()))
    (tmp_path / "usr" / "share" / "man" / "changelog.gz").write_bytes(gzip.compress(b"no page"))
    for kind, words in (("swedish", "Vad är detta"), ("german", "Was für eine")):
        [found] = texts.read_texts(kind, tmp_path)
        assert found.group == "a.1.gz" and words in found.text
    with pytest.raises(SystemExit, match=r"swedish needs --root: .*manpages-sv"):
        texts.read_texts("swedish")


# --- arms -----------------------------------------------------------------------------------------------------------


def test_arms_without_new_tokens_come_once_and_first() -> None:
    arms = bench("domain_arms")
    found = arms.arms_of(list(DOMAIN_ARMS), [800, 3200])
    assert [(arm.name, arm.n) for arm in found[:3]] == [("base", 0), ("base_lora", 0), ("words", 800)]
    assert len(found) == 2 + 2 * 8
    told = {arm.name: (arm.strategy, arm.rows, arm.lora) for arm in found if not arm.moving}
    assert told == {
        "base": ("", "", False), "base_lora": ("", "", True), "words": ("merges", "ours", False),
        "words_lora": ("merges", "ours", True), "both": ("both", "ours", False), "both_lora": ("both", "ours", True),
        "words_untrained": ("merges", "untrained", False), "words_thesis": ("merges", "thesis", False),
    }  # fmt: skip
    moving = {arm.name: (arm.strategy, arm.rows, arm.lora) for arm in found if arm.moving}
    assert moving == {"words_lora_rows": ("merges", "ours", True), "both_lora_rows": ("both", "ours", True)}
    with pytest.raises(SystemExit, match="--arms lora: expected some of base"):
        arms.arms_of(["lora"], [800])


def test_recipes_and_the_thesis_set_phase_1() -> None:
    arms = bench("domain_arms")
    recipe = "r3:kl_last_ce0.03:0.001:0.0001:mean:const:avg0.5"
    settings = bench("reproduction_arms").Settings(recipe=recipe, epochs=2)
    ours, thesis, untrained = (
        arms.rows_config(arms.Arm("x", 8, "merges", rows, False), settings, arms.THESIS, 0, 1000)
        for rows in ("ours", "thesis", "untrained")
    )
    assert ours[0] == "mean_kl_last_ce0.03" and (ours[1].average_last, ours[1].rate_after) == (0.5, "constant")
    assert (ours[1].window, ours[1].epochs, ours[1].train_windows) == (50, 1, 40)  # as many tokens as two epochs
    assert thesis[0] == "mean_kl_first" and thesis[1].learning_rate == thesis[1].head_learning_rate == 4.2e-4
    assert (thesis[1].window, thesis[1].epochs, thesis[1].head_init) == (0, 2, "first")
    assert untrained[0] == "mean_untrained" and untrained[1].head_init == ours[1].head_init
    with pytest.raises(SystemExit, match="sampled"):
        arms.recipe_of("s:kl_last:0.001:0.0001:mean:sampled")


# --- from end to end ------------------------------------------------------------------------------------------------


@pytest.fixture
def given(tmp_path: Path, tiny_folder: Path) -> list[str]:
    """Data of a tiny domain, and what the commands take."""
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("qzxjkwv"), 6)) for _ in range(12)]
    for k in range(60):
        text = "".join(f"int {rng.choice(words)} {rng.choice(words)} ;\n" for _ in range(24))
        (tmp_path / "root").mkdir(exist_ok=True)
        (tmp_path / "root" / f"f{k}.h").write_text(text, encoding="utf-8")
    common = ["--model", str(tiny_folder), "--documents", "14", "--validation", "6"]
    asked = f"--texts headers --root {tmp_path / 'root'} --out {tmp_path / 'data'} --n 6 9 --min-count 5 --digits"
    asked += " --strategies both merges --characters 120"
    bench("phrases").main(["prepare", *common, *asked.split()])
    small = "--n 6 9 --epochs 1 --lora-epochs 2 --lora-rank 2 --tokens-per-step 200 --token-budget 512 --max-length 250"
    where = f"--data {tmp_path / 'data'} --out {tmp_path / 'results'} --label Tiny --keep {tmp_path / 'rows'}"
    return [*common, *small.split(), *where.split()]


def test_from_documents_to_the_page(
    tmp_path: Path, given: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bench("domains").main
    with pytest.raises(SystemExit, match=r"run `domains.py pilot` with the same label first, or give --lora-rate"):
        run(["measure", *given])
    recipes = ["r4:kl_last_ce0.1:0.002:0.0001:mean:fit0.1:texts", RECIPE]
    run(["pilot", *given, "--rates", "1e-4", "3e-3", "--recipes", *recipes])
    pilot = files.read_jsonl(tmp_path / "results" / "pilot" / "Tiny-headers.jsonl")
    assert [row["lora_rate"] for row in pilot[:2]] == [1e-4, 3e-3] and pilot[0]["bpb"] != pilot[1]["bpb"]
    assert [row["recipe"] for row in pilot[2:]] == recipes and pilot[2]["bpb"] != pilot[3]["bpb"]
    run(["pilot", *given, "--rates", "3e-3", "--recipes", RECIPE])
    assert files.read_jsonl(tmp_path / "results" / "pilot" / "Tiny-headers.jsonl") == pilot  # not tried again
    run(["measure", *given, "--arms", "base", "base_lora", "words"])
    path = tmp_path / "results" / "Tiny-headers.jsonl"
    before = path.read_text()
    assert len(before.splitlines()) == 4

    learn, learned = bench("domain_bench").Bench._learn, []

    def counted(self: Any, arm: Any, *rest: Any) -> Any:
        learned.append((arm.name, arm.n))
        return learn(self, arm, *rest)

    monkeypatch.setattr(bench("domain_bench").Bench, "_learn", counted)
    run(["measure", *given])
    assert path.read_text().startswith(before)  # what is there is not measured again
    assert learned == [(name, n) for n in (6, 9) for name in ("both", "words_thesis")]  # the others' rows were kept
    rows = read_domains(tmp_path / "results")
    assert [(row["arm"], row["n"]) for row in rows] == [("base", 0), ("base_lora", 0)] + [
        (name, n) for n in (6, 9) for name in list(DOMAIN_ARMS)[2:]
    ]
    by_arm = {(row["arm"], row["n"]): row for row in rows}
    best = min(pilot[2:], key=lambda row: row["bpb"])
    assert {row["settings"]["recipe"] for row in rows} == {best["recipe"]}

    tuned = [row["lora"] for row in rows if row["lora"]]
    assert len(tuned) == 9 and len({lora["steps"] for lora in tuned}) == 1 and tuned[0]["steps"] > 4
    assert {lora["texts"] for lora in tuned} == {2 * 14}  # every document in each of two passes
    assert len({lora["tokens"] for lora in tuned}) > 1  # but not the same number of tokens
    assert by_arm["words", 6]["saved"] > 0.1 and by_arm["both", 6]["saved"] != by_arm["words", 6]["saved"]

    base, plain = by_arm["base", 0], by_arm["base_lora", 0]
    assert base["above_base"] == [0, 0, 0] and base["saved"] == 0 and abs(base["kl_last"]) < 1e-4
    assert plain["kl_last"] > 1e-3 and plain["kl_places"] == "merges-6" and plain["phase1"] is None
    for row in rows:
        gap = paired_bootstrap(row["bits"], plain["bits"], weights=row["bytes"])
        assert row["above_lora"] == [gap.estimate, gap.low, gap.high]
        assert row["bpb"] == pytest.approx(sum(row["bits"]) / sum(row["bytes"]), rel=1e-4)
        assert row["bpb"] - plain["bpb"] == pytest.approx(row["above_lora"][0], abs=1e-4)
    assert plain["bpb"] < base["bpb"] and by_arm["words_lora", 6]["bpb"] < by_arm["words", 6]["bpb"]
    assert by_arm["words", 6]["kl_last"] < by_arm["words_untrained", 6]["kl_last"]
    assert by_arm["words_lora", 6]["phase1"] == by_arm["words", 6]["phase1"]
    rest, move = by_arm["words_lora", 6], by_arm["words_lora_rows", 6]
    assert rest["lora"]["trainable"] == plain["lora"]["trainable"] < move["lora"]["trainable"]
    assert move["lora"]["trainable"] - rest["lora"]["trainable"] == 2 * 6 * 32  # N rows of width D on each side
    assert move["bpb"] != rest["bpb"] and move["phase1"] == rest["phase1"]
    gap = paired_bootstrap(move["bits"], rest["bits"], weights=rest["bytes"])
    assert move["above_resting"] == [gap.estimate, gap.low, gap.high] and rest["above_resting"] is None

    whole = path.read_text()
    run(["measure", *given, "--recipe", best["recipe"].replace("0.001", "1e-3").replace("0.0001", "1e-4")])
    with pytest.raises(SystemExit, match="'epochs': \\(1, 3\\)"):
        run(["measure", *given, "--epochs", "3"])
    run(["measure", *given, "--seed", "1", "--minutes", "0", "--arms", "base"])
    assert path.read_text() == whole and "no time" in capsys.readouterr().out

    tune, tunings = bench("domain_bench").Bench.tuned, []

    def noted(self: Any, *rest: Any) -> Any:
        tunings.append(rest[1:])
        return tune(self, *rest)

    monkeypatch.setattr(bench("domain_bench").Bench, "tuned", noted)
    other = ["--lora-rank", "3", "--lora-epochs", "1", "--tokens-per-step", "900", "--documents", "9"]
    run(["train", *given, *other, "--n", "6", "--arms", "base_lora", "words", "words_lora"])  # as they were measured
    assert len(tunings) == 2
    lines = whole.splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"words_lora"' not in line or '"n": 6' not in line))
    run(["measure", *given, "--arms", "words_lora"])  # finds the model that was kept
    assert len(tunings) == 2 and files.read_jsonl(path)[-1]["bits"] == by_arm["words_lora", 6]["bits"]
    path.write_text(whole)

    short = ["--speed", "1", "--prompts", "2", "--reply", "8", "--arms", "base_lora", "words", "both", "words_lora"]
    run(["speed", *given, *short, "--n", "6"])
    run(["speed", *given, *short])
    read = files.read_jsonl(tmp_path / "results" / "speed" / "Tiny-headers.jsonl")
    assert [(row["arm"], row["n"]) for row in read] == [("base_lora", 0)] + [
        (name, n) for n in (6, 9) for name in ("words", "both", "words_lora")
    ]
    assert len(learned) == 4 and len(tunings) == 3  # rows were found, and the models of `train`
    assert all(row["base_speed"]["tokens"] == 2 * 8 and len(row["speed_gains"]) == 1 for row in read)
    assert [row["reading"] for row in read] == [0] * 4 + [1] * 3
    told = {(row["arm"], row["n"]): row.get("speed_gain") for row in read_domains(tmp_path / "results")}
    assert told["words_lora", 9] == read[-1]["speed_gain"] and told["both_lora", 9] is None

    docs = tmp_path / "docs"
    docs.mkdir()
    shutil.copy(PAGE, docs)
    run(["page", "--out", str(tmp_path / "results"), "--docs", str(docs)])
    page = (docs / "domains.md").read_text(encoding="utf-8")
    assert (
        "-->\nnot measured" not in page and page.count("| Tiny, C headers | words + LoRA, 9 |") == 4
    )  # not beside base + LoRA, of other rounds
    moving = page.split("<!-- moving -->")[1].split("<!-- end -->")[0]
    assert moving.count("| Tiny, C headers |") == 4 and "{:+.3f} [{:+.3f}".format(*move["above_resting"][:2]) in moving
    unread = "words and phrases + LoRA / words, untrained / words, thesis's objective"
    assert f"- Tiny, C headers: characters a second of {unread}\n" in page
    alt = files.read_json(docs / "figures" / "alt.json")["domains"]
    assert f"base + LoRA {plain['bpb']:.3f}" in alt and f"]({Path('figures/domains.svg')})" in page


def test_speed_is_read_in_turns_with_one_base(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first round does not count, and of the others the median gain is told with its readings."""
    phrases = bench("phrases")
    own, calls = object.__new__(phrases.Bench), []
    own.plain, own.options = "base", SimpleNamespace(reply=100, speed=3)
    rates = {"base": iter([1, 100, 100, 200]), "a": iter([1, 110, 150, 240]), "b": iter([1, 90, 100, 150])}

    def reader(self: Any, model: Any, tokenizer: Any, reply: int) -> Any:
        calls.append((model, tokenizer, reply))

        def read() -> dict[str, float]:
            calls.append(model)
            return {"characters_per_s": next(rates[model])}

        return read

    monkeypatch.setattr(phrases.Bench, "_reader", reader)
    a, b = own.speed_of([("a", "longer", 0.25), ("b", "same", 0.0)], "old")
    assert calls == [("base", "old", 100), ("a", "longer", 75), ("b", "same", 100), *("base", "a", "b") * 4]
    assert a["speed_gains"] == [1.1, 1.5, 1.2] and b["speed_gains"] == [0.9, 1.0, 0.75]
    assert (a["speed_gain"], a["speed_range"], a["speed"]["characters_per_s"]) == (1.2, [1.1, 1.5], 240)
    assert (b["speed_gain"], b["base_speed"]["characters_per_s"]) == (0.9, 100)


def test_what_is_kept_belongs_to_texts_and_new_tokens(tmp_path: Path, given: list[str]) -> None:
    own = bench("domain_bench").Bench(self_options([*given, "--recipe", RECIPE]), 3e-3)
    plain, words, more = bench("domain_arms").arms_of(["base_lora", "words"], [6, 9])
    before = [own._read(arm) for arm in (plain, words, more)]
    assert len({files.digest(read) for read in before}) == 3
    own.train = [own.train[-1], *own.train[1:]]  # as many documents
    assert all(own._read(arm) != read for arm, read in zip((plain, words, more), before, strict=True))


def test_kl_is_that_of_both_models_at_each_shared_border(tmp_path: Path, given: list[str]) -> None:
    """A slow second way: each document by itself, through the plain models, over all borders behind the first token."""
    run = bench("domains").main
    given = [*given, "--n", "6"]
    chosen = ["--lora-rate", "3e-3", "--recipe", RECIPE]
    run(["measure", *given, *chosen, "--arms", "base_lora", "words_lora"])
    rows = {row["arm"]: row for row in files.read_jsonl(tmp_path / "results" / "Tiny-headers.jsonl")}
    parts = bench("domain_bench")
    options = self_options([*given, *chosen])
    own = parts.Bench(options, 3e-3)
    arms = bench("domain_arms").arms_of(["base_lora", "words_lora"], [6])
    extension = own.extension("merges-6")
    for arm in arms:
        start, _ = own.tuned(own.start_of(arm)[0])
        sums = {True: [0.0, 0], False: [0.0, 0]}
        for text in own.validation:
            for merged, value in borders(own.base.model, start.model, extension, text, bool(arm.strategy)):
                sums[merged][0] += value
                sums[merged][1] += 1
        row = rows[arm.name]
        assert row["kl_last"] == pytest.approx(sums[True][0] / sums[True][1], rel=1e-3)
        assert row["kl_identical"] == pytest.approx(sums[False][0] / sums[False][1], rel=1e-3)


def self_options(given: list[str]) -> Any:
    """The options that a command would have read."""
    import argparse

    found: list[argparse.Namespace] = []
    domains = bench("domains")
    measure, domains.measure = domains.measure, found.append
    try:
        domains.main(["measure", *given])
    finally:
        domains.measure = measure
    return found[0]


@torch.no_grad()
def borders(base: Any, model: Any, extension: Any, text: str, extended: bool) -> list[tuple[bool, float]]:
    """Whether a merged span ends there, and the KL in float64, at each border behind the first difference."""
    tokenizers = (extension.original, extension.extended)
    one, two = (tokenizer(text, add_special_tokens=False)["input_ids"] for tokenizer in tokenizers)
    lengths = [
        [len(t.decode(ids[: k + 1]).encode()) for k in range(len(ids))]
        for t, ids in zip(tokenizers, (one, two), strict=True)
    ]
    log_p = torch.log_softmax(base(input_ids=torch.tensor([one])).logits[0, :, : extension.V].double(), -1)
    read = two if extended else one
    log_q = torch.log_softmax(model(input_ids=torch.tensor([read])).logits[0, :, : extension.V].double(), -1)
    first = next((k for k, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), len(one))
    found = []
    for at, end in enumerate(lengths[0]):
        if at < first or end not in lengths[1]:
            continue
        there = lengths[1].index(end)
        p, q = log_p[at], log_q[there if extended else at]
        found.append((two[there] >= extension.V, float((p.exp() * (p - q)).sum())))
    return found


# --- what is said ---------------------------------------------------------------------------------------------------


def line(arm: str, n: int, gap: list[float] | None, **changes: Any) -> dict[str, Any]:
    """A row of `read_domains`, as far as the sentences read it."""
    usual = {"model": "M-Instruct", "text": "german", "saved": 0.2, "lora": {} if "lora" not in arm else {"steps": 3}}
    return {"arm": arm, "n": n, "above_lora": gap, "above_base": gap, **usual, **changes}


def timed(characters: int, tokens: int, readings: Sequence[float] = (0.9, 1.1), seconds: float = 1.0) -> dict[str, Any]:
    """What `speed` reads of an arm, in turns with a base that writes 1,000 characters in 500 tokens and a second."""
    base, own = (
        {"characters": c, "tokens": t, "seconds": s, "characters_per_s": c / s, "tokens_per_s": round(t / s)}
        for c, t, s in ((1000, 500, 1.0), (characters, tokens, seconds))
    )
    gain = own["characters_per_s"] / base["characters_per_s"]
    return {"base_speed": base, "speed": own, "speed_gain": gain, "speed_range": list(readings)}


def test_a_gain_in_speed_is_split_and_counts_where_all_readings_agree() -> None:
    told = bench("domain_speed")
    assert (
        told.speed_table([line("words", 800, None)]) == told.speed_by_arm([line("words", 800, None)]) == "not measured"
    )
    rows = [
        line("words", 800, None, **timed(1080, 450, [1.01, 1.2], 0.9)),
        line("both", 800, None, **timed(600, 400, [0.5, 0.99])),
        line("words", 800, None, text="headers", saved=0.1, **timed(1100, 500, [0.98, 1.2])),
        line("base_lora", 0, None, saved=0.0, **timed(900, 500)),
    ]
    said = told.speed_table([*rows, line("words_lora", 800, None)])
    assert "| words, 800 | 1.20 (1.01 to 1.20) | 2.00, 2.40 | 1.20 | 1.25 | 500, 500 | 1.00 | faster |" in said
    assert "| 0.60 (0.50 to 0.99) | 2.00, 1.50 | 0.75 | 1.25 | 500, 400 | 0.80 | slower |" in said
    assert "| M, C headers | words, 800 | 1.10 (0.98 to 1.20) | 2.00, 2.20 | 1.10 | 1.11 |" in said
    larger = line("words", 1500, None, text="headers", saved=0.1, **timed(2000, 500, [1.9, 2.1]))
    said = told.speed_by_arm([*rows, larger, line("words_lora", 800, None)])
    assert "| base + LoRA | 0.90 | 0 | 0 | 1 | 0.90 |  | 1.00 |" in said
    assert "| words, 800 | 1.10 to 1.20 | 1 | 0 | 1 | 1.10 to 1.20 | 2 | 1.00 |" in said
    assert "| words, 1,500 | 2.00 | 1 | 0 | 0 | 2.00 | 0 | 1.00 |" in said
    assert "| words and phrases, 800 | 0.60 | 0 | 1 | 0 | 0.75 | 1 | 0.80 |" in said
    assert "M 1.00 with no new tokens, 0.80 to 1.00 with 800 new tokens, 1.00 with 1,500 new tokens. More" in said
    assert said.endswith("with the larger N than with the smaller: words in 1 of 1 places.")
    assert "More characters" not in told.speed_by_arm(rows)


def test_tuned_models_are_timed_beside_plain_lora() -> None:
    told = bench("domain_speed")
    gap = [0.02, 0.01, 0.03]
    rows = [
        line("base_lora", 0, [0, 0, 0], **timed(1000, 500), speed_of_lora=[1.0, 1.0, 1.0]),
        line("words_lora", 800, gap, **timed(1100, 500), speed_of_lora=[0.9, 0.8, 0.95]),
        line("both_lora", 800, gap, **timed(1200, 500), speed_of_lora=[1.25, 1.1, 1.3]),
        line("both_lora", 800, gap, text="headers", **timed(1200, 500), speed_of_lora=[1.1, 0.9, 1.2]),
        line("words", 800, gap, **timed(1000, 500, [1.0, 1.1]), speed_of_lora=[2.0, 2.0, 2.0]),
    ]
    said = told.lora_speed_table(rows).splitlines()[2:]
    assert said == [
        "| M, German manual pages | words + LoRA, 800 | 0.90 (0.80 to 0.95) | slower | +0.020 [+0.010, +0.030] |",
        "| M, German manual pages | words and phrases + LoRA, 800 | 1.25 (1.10 to 1.30) | faster "
        "| +0.020 [+0.010, +0.030] |",
        "| M, C headers | words and phrases + LoRA, 800 | 1.10 (0.90 to 1.20) | neither | +0.020 [+0.010, +0.030] |",
    ]
    assert told.lora_speed_table(rows[:1]) == "not measured"
    larger = line("words", 3200, gap, **timed(2000, 500, [1.9, 2.1]))
    said = told.speed_sentence([*rows, larger])  # of the fewest tokens
    assert (
        "writes 1.00 times the base's characters a second with words (faster in 0 and slower in 0 of 1 places)." in said
    )
    assert "it writes 0.90 times with words (faster in 0 and slower in 1 of 1 places) and 1.10 to 1.25 times" in said
    assert said.endswith("with words and phrases (faster in 1 and slower in 0 of 2 places).")
    assert told.speed_sentence(rows[:4]) == ""


def test_sentences_follow_the_rows() -> None:
    report = bench("domain_report")
    assert report.lora_sentences([line("base_lora", 0, [0, 0, 0])]) == "not measured"
    lost, won, open_ = [0.02, 0.01, 0.03], [-0.02, -0.03, -0.01], [0.001, -0.01, 0.012]
    rows = [line("words_lora", 800, lost), line("both_lora", 800, won), line("words_lora", 3200, open_)]
    said = report.lora_sentences([line("base_lora", 0, [0, 0, 0]), *rows, line("words", 800, lost)])
    first, losers, second, winners, third, _, order, alone = said.split("\n\n")
    assert "loses against plain LoRA** in 1 of 3" in first
    assert losers == "- M, German manual pages: +0.020 (words + LoRA, 800)"
    assert "words of the same N in 0 of 1 pairs" in order and "above the smaller in 0 of 1 pairs" in order
    assert "below plain LoRA in 1 of 3" in second and "words and phrases + LoRA, 800" in winners
    assert "holds 0 in 1 of 3" in third and "above plain LoRA in 1 of 1" in alone
    assert "In none of 1 comparisons" in report.lora_sentences(rows[1:2])
    assert "In none" not in report.lora_sentences(rows[:1])
    two = report.lora_sentences([rows[0], line("both_lora", 3200, [0.09, 0.08, 0.1])])
    assert "+0.020 (words + LoRA, 800) to +0.090 (words and phrases + LoRA, 3,200), 2 arms" in two
    assert "pairs" not in two  # these two differ in both


def test_changes_are_shares_of_the_bits_of_the_base() -> None:
    told = bench("domain_told")
    assert told.change_table([]) == "not measured"
    bases = [line("base", 0, [0, 0, 0], bpb=2.0), line("base", 0, [0, 0, 0], bpb=1.0, model="L")]
    ours = [line("words", 800, [-0.1, -0.2, -0.05]), line("words", 800, [0.1, 0.05, 0.2], model="L")]
    untrained, thesis = line("words_untrained", 800, [0.5, 0.4, 0.6]), line("words_thesis", 800, [0.3, 0.2, 0.4])
    said = told.change_table([*bases, *ours, untrained, thesis])
    assert "| German manual pages |  | -5% to +10% |  | +25% | +15% |" in said
    assert "above the base in 1 of 1 places and sizes, and nearer to the untrained rows than to ours in 1." in said
    near = told.change_table([*bases, *ours, untrained, thesis | {"above_base": [-0.1, -0.2, 0.01]}])
    assert "above the base in 0 of 1 places and sizes, and nearer to the untrained rows than to ours in 0." in near


def test_what_moving_rows_take_away_is_counted() -> None:
    told = bench("domain_told")
    rest = [line("words_lora", n, [0.04, 0.03, 0.05]) for n in (800, 3200)]
    gaps = {800: [-0.03, -0.04, -0.02], 3200: [-0.01, -0.03, 0.01]}
    rows = [line(r["arm"], r["n"], r["above_lora"], above_resting=None) for r in rest]
    rows += [
        line("words_lora_rows", n, [0.01, 0, 0.02], above_resting=gap, settings={"lora_rate": 8e-4 / n * 800})
        for n, gap in gaps.items()
    ]
    said = told.moving_table(rows)
    assert "| 75% |" in said and "| 25% |" in said
    assert "Of 2 lines, rows that move take away more than half of the gap in 1 (LoRA's rate 0.0008)" in said
    assert "half of it or less in 1 (LoRA's rate 0.0002); in 1 of these the interval" in said
    assert told.moving_table(rows[:2]) == "not measured"


def test_a_best_rate_at_the_edge_is_named(tmp_path: Path) -> None:
    report = bench("domain_report")
    found = {1e-4: 0.9, 2e-4: 0.8, 4e-4: 0.75}
    lines = [{"lora_rate": rate, "bpb": bpb, "lora": {"steps": 3}} for rate, bpb in found.items()]
    files.write_jsonl(tmp_path / "M-german.jsonl", lines)
    assert "with M-german (0.0004, by 0.0500 bits per byte)" in report.pilot_table(tmp_path)
    files.write_jsonl(tmp_path / "M-german.jsonl", [*lines, lines[0] | {"lora_rate": 8e-4}])
    assert report.pilot_table(tmp_path).endswith("No best rate of LoRA lies at the edge of what was tried.")


def test_what_is_missing_is_named_by_place() -> None:
    report = bench("domain_report")
    rows = [line(name, 0 if name.startswith("base") else 800, [0, 0, 0]) for name in DOMAIN_ARMS]
    assert "characters a second of base + LoRA / words / words + LoRA / " in report.missing_sentence(rows)
    read = {"speed_gain": 1.1, "speed_range": [1.0, 1.2]}
    rows = [row | (read if row["arm"] != "base" and not row["arm"].endswith("_rows") else {}) for row in rows]
    rest = [{k: v for k, v in row.items() if row["arm"] != "words_lora" or k not in read} for row in rows]
    assert report.missing_sentence(rest).endswith("- M, German manual pages: characters a second of words + LoRA")
    assert report.missing_sentence(rows) == "Everything named above is measured."
    assert report.missing_sentence(rows[:-1]).endswith(
        "- M, German manual pages: words and phrases + LoRA, rows moving"
    )
    both = [row | {"model": model} for row in rows[:-1] for model in ("M", "L")]
    assert report.missing_sentence(both).endswith("- with every model and text: words and phrases + LoRA, rows moving")
    one = [row for row in both if (row["model"], row["arm"]) != ("L", "words_untrained")]
    assert "- L, German manual pages: words, untrained" in report.missing_sentence(one)
    larger = line("words", 3200, [0, 0, 0])  # of whose arms nothing is missed but what was read of them
    assert report.missing_sentence([*rows, larger]).splitlines()[2:] == [
        "- M, German manual pages: characters a second with 3,200 new tokens"
    ]
    assert report.missing_sentence([*rows, larger | read]) == "Everything named above is measured."


def test_the_readme_shows_the_comparison_where_it_is_measured() -> None:
    page = bench("readme_page")
    row = {
        "text": "german", "model": "M-Instruct", "strategy": "merges", "n": 800, "objective": "ce", "dropout": 0,
        "rate": 1e-3, "head_rate": 1e-3, "train_tokens": 9, "epochs": 2, "saved": 0.25, "base_bpb": 2.0,
        "bpb_difference": [0.5, 0.4, 0.6],
    }  # fmt: skip
    alone = page.gains_table(page.gained([row], []))
    assert alone.splitlines()[-1] == "| German manual pages | M | words | 25.0 % | 2.000 | +0.500 [+0.400, +0.600] |"
    ways = [row | {"epochs": 9, "saved": 0.9}, row | {"strategy": "both", "saved": 0.5}]
    assert [line.saved for line in page.gained([row, ways[0]], [])] == [0.9]  # alone: the longest
    assert [line.saved for line in page.gained([row, *ways], [])] == [0.25, 0.5]  # both: what they share
    common = {"text": "german", "model": "M-Instruct", "bpb": 1.5}
    gaps = [[-0.1, -0.2, -0.05], [0.02, 0.01, 0.03]]
    domains = [
        common | {"arm": "base", "n": 0, "strategy": "", "lora": None, "above_base": [0, 0, 0], "above_lora": None},
        *(
            common | {"arm": arm, "n": 800, "strategy": "merges", "saved": 0.3, "lora": lora,
                      "above_base": gaps[0], "above_lora": gaps[1]}
            for arm, lora in (("words", None), ("words_lora", {"steps": 3}))
        ),
    ]  # fmt: skip
    shown = page.gains_table(page.gained([row], domains)).splitlines()
    assert shown[0].endswith("| with LoRA, against LoRA alone |") and len(shown) == 3
    assert shown[-1].endswith("| 30.0 % | 1.500 | -0.100 [-0.200, -0.050] | +0.020 [+0.010, +0.030] |")


def test_the_readme_says_of_the_table_what_its_lines_say() -> None:
    page = bench("readme_page")
    better, worse, unsure = [-0.1, -0.2, -0.05], [0.1, 0.05, 0.2], [0.01, -0.01, 0.03]
    lines = [
        page.Gained("german", "M", "words", 0.11, 2.0, better, worse),
        page.Gained("swedish", "M", "words and phrases", 0.36, 2.0, unsure, unsure),
        page.Gained("python", "M", "words", 0.004, 1.0, unsure, None),
        page.Gained("headers", "M", "words and phrases", 0.2, 0.5, worse, None),
    ]
    answers = [
        {"model": model, "benchmark": "humaneval", "healed": True, "passed": passed, "answers": 164}
        for model, passed in (("base", 79), ("both_800", 30))
    ]
    bases = [line("base", 0, [0, 0, 0], bpb=2.0), line("base_lora", 0, [-0.5, -0.6, -0.4])]
    read = [line("both", 800, better, **timed(1250, 500, [1.1, 1.3])), line("words", 800, better, **timed(1000, 450))]
    said = page.told_gains(lines, [*bases, *read], answers)
    assert said.count("\n") == 3 and "11 to 36 % of the tokens go" in said and "before in 1 of 2 lines" in said
    assert "words save 0.4 %." in said and "rise in 1 of 1 lines, by 20 %" in said
    assert "solves 30 instead of 79 of 164 problems of HumanEval (" in said
    assert "(faster in 0 and slower in 0 of 1 places) and 1.25 times the base's characters a second with words" in said
    assert "they are for length, LoRA for prediction" in said
    assert "takes 25 % of the base's bits away" in said and "cost bits in 1 of 2 lines" in said
    assert page.told_answers(answers[:1]) == "" and "Length and speed" not in page.told_gains(lines, bases, answers)


def test_the_readme_tells_the_recipes_and_headers_split_by_file_beside_them() -> None:
    page = bench("readme_page")

    def setting(high: float, low: float = -0.5) -> dict[str, Any]:
        against = {
            label: {key: {"estimate": -0.5, "low": low, "high": high} for key in page.COLUMNS}
            for label in (page.PUBLISHED, "CE")
        }
        return {"advice": {"run": "r1:x", "against": against}}

    verdict = {
        "settings": {"qwen-python": setting(-0.1), "qwen-headers": setting(-0.1)},
        "finalists": {"r1": {"answer": "does not lead"}},
    }
    said = page.told_recipes(verdict)
    assert "on all three measures in 2 of 2 settings. No recipe leads" in said and "at 2.0 times its KL" in said
    by_file = {"settings": {"qwen-headers": setting(0.1)}}
    by_file["settings"]["qwen-headers"]["advice"]["against"][page.PUBLISHED]["bpb"] |= {"low": 0.05}
    told = page.told_recipes(verdict | {"by_file": by_file, "finalists": {"r1": {"answer": "leads"}}})
    assert "on all three measures in 2 of 2 settings." in told and "low rates leads." in told
    both = "share, the recipe is better on KL at identical places and KL at merged spans in 1 of 2 settings"
    assert f"{both}, on bits per byte in 1 of 2 settings (worse in 1)" in told


def test_the_readme_tells_the_minutes_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = bench("readme_page")
    monkeypatch.setattr(page, "TIMES", tmp_path / "times.json")
    run = {"00_start": {"seconds": 90, "peak_mib": 1000.0, "finished": "now", "settings": {}}}
    files.write_json(tmp_path / "timings.json", run)
    page.keep_times(tmp_path)
    times = files.read_json(tmp_path / "times.json")
    assert times == {"00_start": {"seconds": 90, "peak_mib": 1000.0, "finished": "now"}}
    line = "| [00 Start](notebooks/00_start.ipynb) | What? | – | facts | {} |"
    assert page.with_minutes(f"a\n{line.format(7.4)}\nb", times) == f"a\n{line.format(1.5)}\nb"
    assert "1.5 in all" in page.all_minutes(times) and "1.0 GB" in page.all_minutes(times)
    with pytest.raises(SystemExit, match="0 lines for notebook 00_start"):
        page.with_minutes("nothing", times)


@pytest.fixture(scope="module")
def committed() -> list[dict[str, Any]]:
    """The committed rows; their intervals take seconds to compute."""
    return read_domains(RESULTS)


def test_the_committed_readme_is_what_the_files_say(committed: list[dict[str, Any]]) -> None:
    page, text = bench("readme_page"), (ROOT / "README.md").read_text(encoding="utf-8")
    times = files.read_json(page.TIMES)
    assert page.with_minutes(text, times) == text and page.all_minutes(times) in text
    lines = page.gained(read_phrases(ROOT / "results" / "phrases"), committed)
    answers = files.read_json(ROOT / "results" / "phrases" / "answers.json")
    assert page.gains_table(lines) in text and page.told_gains(lines, committed, answers) in text
    assert page.told_recipes(read_recipes(ROOT / "results" / "recipes")[1]) in text
    assert len(text.splitlines()) < 150


def test_the_committed_page_is_what_the_files_say(
    tmp_path: Path, committed: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(PAGE, tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(bench("domain_report"), "read_domains", lambda folder: {RESULTS: committed}[folder])
        bench("domain_report").write(RESULTS, tmp_path)
    assert (tmp_path / "domains.md").read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")
    bench("domain_report").write(tmp_path / "none", tmp_path)
    assert (tmp_path / "domains.md").read_text(encoding="utf-8").count("-->\nnot measured\n") == 12
