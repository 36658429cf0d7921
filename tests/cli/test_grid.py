"""A grid file: every combination is a run, every notebook of it a cell with what it needs and gets."""

from __future__ import annotations

from pathlib import Path

import pytest
from fixtures.batch_project import ROOT

from vocabx_utils.cli.grid import NEEDS, Grid, read_grid
from vocabx_utils.paths import STAGES
from vocabx_utils.settings import ConfigError


@pytest.fixture
def read(tmp_path: Path):
    """Read a grid from its text."""

    def call(text: str) -> Grid:
        path = tmp_path / "grid.yaml"
        path.write_text(text)
        return read_grid(path)

    return call


def test_every_combination_is_a_run_of_its_own(read) -> None:
    grid = read(
        "profile: [quick, gpu]\nseeds: [0, 7]\nmodels: [smollm2-135m, Qwen/Qwen2.5-0.5B, /models/tiny.gguf]\n"
        "settings: {plain: {}, wide: {n_tokens: 64}}\n"
    )
    names = {run.name for run in grid.runs}
    assert len(grid.runs) == len(names) == 2 * 2 * 3 * 2
    assert {"quick-plain-smollm2-135m-s0", "gpu-wide-Qwen2.5-0.5B-s7", "quick-wide-tiny-s0"} <= names
    assert grid.stages == tuple(NEEDS) == STAGES[: len(NEEDS)]
    assert len(grid.cells) == len(names) * len(NEEDS)


def test_a_notebook_brings_what_it_needs(read) -> None:
    grid = read("notebooks: [6]")
    assert grid.stages == ("01_tokenizer_extension", "03_phase1_training", "06_mechanistic_analysis")
    cells = {cell.stage: cell for cell in grid.cells}
    assert cells["06_mechanistic_analysis"].needs == ("01_tokenizer_extension", "03_phase1_training")
    assert cells["03_phase1_training"].place == "quick-s0/03_phase1_training"


def test_needs_stand_in_order_and_hold_their_own_needs() -> None:
    for stage, needs in NEEDS.items():
        assert all(STAGES.index(need) < STAGES.index(stage) for need in needs)
        assert all(set(NEEDS[need]) <= set(needs) for need in needs)


def test_the_files_that_a_notebook_reads_are_of_notebooks_that_it_needs() -> None:
    """What the sources require by hand; the stages' own requirements are in the package."""
    import json
    import re

    for stage, needs in NEEDS.items():
        cells = json.loads((ROOT / "notebooks" / f"{stage}.ipynb").read_text(encoding="utf-8"))["cells"]
        code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        read = {number for number in re.findall(r'require\(\s*"(\d\d)"', code)} - {stage[:2]}
        assert read <= {need[:2] for need in needs}, stage


def test_values_of_one_notebook_beat_shared_ones_and_reach_it_alone(read) -> None:
    grid = read(
        "notebooks: [1, 2, 3]\nvariants: [mean_ce, mean_kl_last]\n"
        "overrides: {lookahead: 9, 03: {epochs: 4, learning_rate: 2e-3}}\nsettings: {a: {03: {epochs: 5}}}\n"
    )
    cells = {cell.stage[:2]: cell for cell in grid.cells}
    assert cells["02"].values == {"lookahead": 9, "seed": 0}
    wanted = {"epochs": 5, "learning_rate": 0.002, "seed": 0, "variants": ["mean_ce", "mean_kl_last"]}
    assert cells["03"].values == wanted
    assert cells["01"].values == {"seed": 0}
    assert cells["01"].words == ("--profile", "quick", "--run-name", "quick-a-s0", "-p", "seed", "0")
    assert "[mean_ce, mean_kl_last]" in cells["03"].words


def test_only_what_changed_changes(read) -> None:
    before = {cell.stage: cell.values for cell in read("overrides: {03: {epochs: 1}}").cells}
    after = {cell.stage: cell.values for cell in read("overrides: {03: {epochs: 2}}").cells}
    assert [stage for stage in before if before[stage] != after[stage]] == ["03_phase1_training"]


def test_a_list_with_a_comma_inside_arrives_whole(read) -> None:
    text = "notebooks: [1]\noverrides: {packages: ['a,b', c]}"
    assert read(text).cells[0].values["packages"] == ["a,b", "c"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("seed: [1]", ["unknown seed", "seeds"]),
        ("seeds: [-1]", ["seeds", "-1"]),
        ("seeds: [one]", ["seeds", "one"]),
        ("seeds: []", ["seeds", "at least one"]),
        ("seeds: [1, 1]", ["more than one run", "quick-s1"]),
        ("threads: 0", ["threads", "1 or more"]),
        ("notebooks: [7]", ["07_compare_runs", "belongs to no run"]),
        ("notebooks: [9]", ["'9'"]),
        ("overrides: {epochz: 1}", ["'epochz'", "'epochs'"]),
        ("overrides: {03: {n_tokens: 1}}", ["'n_tokens'", "03_phase1_training"]),
        ("overrides: {09: {n_tokens: 1}}", ["'09'"]),
        ("overrides: 3", ["'3'", "parameters are expected"]),
        ("settings: [a]", ["settings", "mapping"]),
        ("profile: huge", ["'huge'"]),
        ("- 1", ["list", "mapping"]),
    ],
)
def test_bad_grids_say_what_is_wrong(read, text: str, named: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        read(text)
    assert [part for part in named if part not in str(error.value)] == []


def test_a_missing_grid_names_the_example(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml.*workflow/grid\.yaml"):
        read_grid(tmp_path / "none.yaml")


@pytest.mark.parametrize("path", sorted((ROOT / "workflow").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_grids_can_be_read(path: Path) -> None:
    assert read_grid(path).cells
