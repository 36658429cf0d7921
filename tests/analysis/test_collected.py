"""One tidy table of many runs: each value with the settings of its run."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from fixtures.tiny_run import add_later_stages, build_run

from vocabx_utils import files
from vocabx_utils.analysis.collected import KEYS, collect_runs
from vocabx_utils.paths import STAGES
from vocabx_utils.runs import MissingStageError, Run

VARIANTS = ["mean_ce", "mean_kl_last"]


def note(run: Run, seed: int, stages: tuple[str, ...] = STAGES[:4], **given: object) -> Path:
    """Write what `vocabx run` notes of its notebooks."""
    notes = {}
    for stage in stages:
        settings = {"run_name": run.name, "model": "m", "seed": seed, "epochs": 2, "variants": VARIANTS} | given
        parameters = {"seed": seed, **given} if stage == STAGES[3] else {"seed": seed}
        facts = {"notebook": stage, "seconds": 1.5, "peak_mib": 100.0, "profile": "my/small.yaml"}
        notes[stage] = facts | {
            "parameters": parameters,
            "settings": settings if stage == STAGES[3] else {"seed": seed},
        }
    files.write_json(run.folder / "timings.json", notes)
    return run.folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Two runs of notebooks 01 and 03 that differ in their seed."""
    runs = [build_run(tmp_path, variants=VARIANTS, seed=seed, name=f"small-s{seed}").run for seed in (0, 1)]
    return [note(run, seed) for seed, run in enumerate(runs)]


def test_every_value_is_a_row_with_its_run_seed_variant_and_epoch(folders: list[Path]) -> None:
    table = collect_runs(folders)
    assert tuple(table.columns) == (*KEYS, "value")
    found = table.query("run == 'small-s1' and variant == 'mean_ce' and metric == 'kl_last'")
    lines = files.read_jsonl(folders[1] / STAGES[3] / "mean_ce" / "metrics.jsonl")
    assert found["epoch"].tolist() == [0, 1, 2]
    assert found["value"].tolist() == [line["kl_last"] for line in lines]
    assert {tuple(line) for line in found[["seed", "profile", "stage"]].to_numpy()} == {(1, "small", STAGES[3])}
    assert not table.duplicated(list(KEYS)).any()
    assert not table["value"].isna().any()  # the training loss of epoch 0 is none


def test_parameters_that_were_given_or_differ_are_columns(folders: list[Path], tmp_path: Path) -> None:
    note(Run("small-s1", folders[1]), 1, epochs=3)
    table = collect_runs(folders)
    assert list(table.columns[len(KEYS) + 1 :]) == ["03.epochs"]
    assert table.groupby("run")["03.epochs"].unique().map(list).to_dict() == {"small-s0": [2], "small-s1": [3]}
    note(Run("small-s1", folders[1]), 1, variants=["mean_ce"])
    table = collect_runs(folders)
    assert set(table["03.variants"]) == {"mean_ce, mean_kl_last", "mean_ce"}
    assert set(table.query("run == 'small-s1'")["variant"]) == {"", "mean_ce"}  # the other is of older settings


def test_later_stages_are_read_too(tmp_path: Path) -> None:
    tiny = build_run(tmp_path, name="all", variants=("mean_ce", "mean_kl_last", "random_kl_last"))
    add_later_stages(tiny)
    splits = {"train": {"texts": 3, "share_saved": 0.25}}
    files.write_json(tiny.run.stage("02") / "statistics.json", {"splits": splits})
    files.write_table(tiny.run.stage("01") / "gains.csv", pd.DataFrame([{"type": "python", "texts": 4, "bytes": 9}]))
    stages = pd.DataFrame([{"variant": "base", "stage": "b", "steps": 8.0, "validation loss": 2.5}])
    files.write_table(tiny.run.stage("04") / "stages.csv", stages)
    table = collect_runs([note(tiny.run, 0, STAGES[:7])])

    def value(metric: str, **keys: object) -> float:
        here = table[table["metric"] == metric]
        for key, wanted in keys.items():
            here = here[here[key] == wanted]
        (found,) = here["value"]
        return float(found)

    assert value("bytes", part="python") == 9
    assert value("share_saved", stage=STAGES[2]) == 0.25
    assert value("validation loss", variant="base", part="b") == 2.5
    assert value("bits_per_byte", variant="mean_ce", part="held out") == pytest.approx(0.95)
    assert value("passed", variant="base", part="BigCodeBench") == 10
    assert value("problems", variant="base", part="combined") == 60
    first = pd.read_csv(tiny.run.require("06", "cosines.csv")).iloc[0]
    assert value(
        "cosine", variant=first["variant"], part=f"{first['matrix']}, {first['position']}", epoch=first["epoch"]
    )
    assert value("seconds", stage=STAGES[6]) == 1.5


def test_notes_of_older_versions_are_read(folders: list[Path]) -> None:
    notes = files.read_json(folders[0] / "timings.json")
    for facts in notes.values():
        del facts["settings"]
    files.write_json(folders[0] / "timings.json", notes)
    assert set(collect_runs(folders[:1])["seed"]) == {0}


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingStageError, match=r"timings\.json is missing"):
        collect_runs([tmp_path])


def test_two_runs_of_one_name_are_refused(folders: list[Path], tmp_path: Path) -> None:
    other = build_run(tmp_path / "elsewhere", variants=VARIANTS, name="small-s0").run
    with pytest.raises(ValueError, match=r"different names.*small-s0, small-s0"):
        collect_runs([folders[0], note(other, 5)])
