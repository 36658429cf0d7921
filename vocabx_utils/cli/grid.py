"""A grid of runs from one YAML file: every combination of profile, setting, model and seed is a run folder.

A cell is one notebook of one run. What a cell needs, and the values that its notebook gets, are known before anything
runs: Snakemake makes a cell again when either has changed, and leaves every other one alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vocabx_utils.cli.notebooks import find_notebooks
from vocabx_utils.cli.parameters import Parameter, assign_parameters, declared_parameters
from vocabx_utils.paths import STAGES, stage_name
from vocabx_utils.profiles import load_profile, name_sections, read_mapping
from vocabx_utils.settings import ConfigError, Settings

NEEDS = {
    "00_start": (),
    "01_tokenizer_extension": (),
    "02_alignment": ("01_tokenizer_extension",),
    "03_phase1_training": ("01_tokenizer_extension",),
    "04_fine_tuning": ("01_tokenizer_extension", "03_phase1_training"),
    "05_benchmark_evaluation": ("01_tokenizer_extension", "03_phase1_training", "04_fine_tuning"),
    "06_mechanistic_analysis": ("01_tokenizer_extension", "03_phase1_training"),
}
"""The notebooks of a run, and those whose files each of them reads."""


@dataclass(frozen=True, kw_only=True)
class GridSettings(Settings):
    """The keys of a grid file, besides `overrides` and `settings`, which hold parameters of notebooks."""

    name: str = ""  # begins the names of the runs; by default that of the profile
    profile: tuple[str, ...] = ("quick",)
    seeds: tuple[int, ...] = (0,)
    models: tuple[str, ...] = ()  # none: the model of the profile
    variants: tuple[str, ...] = ()  # of notebook 03, compared inside each run; none: those of the profile
    notebooks: tuple[str | int, ...] = tuple(NEEDS)  # what they need is run, too
    threads: int = 1  # of each notebook
    gpus: int = 0  # cards of each notebook
    jobs_per_gpu: int = 1  # notebooks that share a card
    minutes: float = 0  # a notebook that takes longer is stopped; 0 for no limit

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("profile", "seeds", "notebooks"):
            self.require(key, bool(getattr(self, key)), "at least one")
        self.require("seeds", all(seed >= 0 for seed in self.seeds), "whole numbers from 0")
        self.require_at_least(1, "threads", "jobs_per_gpu")
        self.require_at_least(0, "gpus")
        self.require("minutes", self.minutes >= 0, "0 or more")


@dataclass(frozen=True)
class RunPlan:
    """One run of a grid: its folder below all runs, its profile, and what is typed behind `-p`."""

    name: str
    profile: str
    typed: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Cell:
    """One notebook of one run."""

    run: str
    stage: str  # full name of the notebook
    needs: tuple[str, ...]  # notebooks of the same run that come before
    words: tuple[str, ...]  # of the command line, behind `vocabx run-notebook`
    values: Mapping[str, Any]  # what the notebook gets, by parameter: another value makes the cell again

    @property
    def place(self) -> str:
        """Path below the folder of all runs, without an ending."""
        return f"{self.run}/{self.stage}"

    @property
    def log(self) -> str:
        """Path of its log below the folder of all runs."""
        return f"{self.run}/logs/{self.stage}.log"


@dataclass(frozen=True)
class Grid:
    """What a grid file asks for, checked but for the ranges of parameters."""

    settings: GridSettings
    stages: tuple[str, ...]
    runs: tuple[RunPlan, ...]
    cells: tuple[Cell, ...]


def read_grid(path: Path) -> Grid:
    """Read a grid file.

    A ConfigError names a file, key, profile, notebook or parameter that is unknown or of the wrong type, or runs that
    would have one name.
    """
    if not path.is_file():
        raise ConfigError(f"No grid {path}; expected a YAML file such as workflow/grid.yaml.")
    plain, text = read_mapping(path), read_mapping(path, as_text=True)
    overrides, named = _parameters(text.get("overrides"), path), text.get("settings") or {"": {}}
    if not isinstance(named, dict):
        raise ConfigError(f"{path}: settings is {named!r}; expected a mapping of names to parameters.")
    named = {str(name): _parameters(value, path) for name, value in named.items()}
    keys = {key: value for key, value in plain.items() if key not in ("overrides", "settings")}
    lists = [field.name for field in dataclasses.fields(GridSettings) if "tuple" in str(field.type)]
    keys = {key: [value] if key in lists and not isinstance(value, list) else value for key, value in keys.items()}
    try:
        settings = GridSettings.from_params(**keys)
        stages = _with_needs(settings.notebooks)
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from None
    runs = tuple(_runs(settings, overrides, named))
    if twice := sorted({run.name for run in runs if [other.name for other in runs].count(run.name) > 1}):
        raise ConfigError(f"{path}: more than one run would be called {', '.join(twice)}; give other names.")
    available = find_notebooks()
    if missing := [stage for stage in stages if stage not in available]:
        raise ConfigError(f"{path}: {', '.join(missing)} is not among the notebooks: {', '.join(available) or 'none'}.")
    declared = {stage: declared_parameters(notebook) for stage, notebook in available.items()}
    cells = tuple(cell for run in runs for cell in _cells(run, stages, declared))
    return Grid(settings, stages, runs, cells)


def _parameters(given: Any, path: Path) -> dict[str, Any]:
    if not isinstance(given or {}, dict):
        raise ConfigError(f"{path}: {given!r} stands where parameters are expected, such as `epochs: 3`.")
    return name_sections(given or {}, path)


def _with_needs(notebooks: Sequence[str | int]) -> tuple[str, ...]:
    wanted = {stage_name(str(name)) for name in notebooks}
    if odd := sorted(wanted - NEEDS.keys()):
        raise ConfigError(f"notebooks names {', '.join(odd)}, which belongs to no run; expected {', '.join(NEEDS)}.")
    return tuple(stage for stage in STAGES if stage in wanted | {need for name in wanted for need in NEEDS[name]})


def _runs(settings: GridSettings, overrides: dict[str, Any], named: dict[str, dict[str, Any]]) -> Iterator[RunPlan]:
    models: Sequence[str | None] = settings.models or (None,)
    for profile, setting, model, seed in itertools.product(settings.profile, named, models, settings.seeds):
        stem = Path(profile).stem
        first = f"{settings.name}-{stem}" if settings.name and len(settings.profile) > 1 else settings.name or stem
        short = re.sub(r"[^A-Za-z0-9._]+", "-", Path(model).name.removesuffix(".gguf")) if model else ""
        parts = [first, setting, short, f"s{seed}"]
        typed = [*_typed(overrides, named[setting])]
        typed += [("03.variants", _as_text(settings.variants))] if settings.variants else []
        typed += [("model", model)] if model else []
        yield RunPlan("-".join(filter(None, parts)), profile, (*typed, ("seed", str(seed))))


def _typed(*layers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Parameters as they are typed: shared ones first, since those of one notebook count more."""
    for layer in layers:
        yield from ((name, _as_text(value)) for name, value in layer.items() if not isinstance(value, Mapping))
    for layer in layers:
        for stage, section in layer.items():
            if isinstance(section, Mapping):
                yield from ((f"{stage[:2]}.{name}", _as_text(value)) for name, value in section.items())


def _as_text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(repr(str(item)) if ',' in str(item) else str(item) for item in value)}]"
    return str(value)


def _cells(run: RunPlan, stages: Sequence[str], declared: Mapping[str, Mapping[str, Parameter]]) -> Iterator[Cell]:
    values = assign_parameters(declared, load_profile(run.profile, as_text=True), run.typed, stages)
    for stage in stages:
        words = ["--profile", run.profile, "--run-name", run.name]
        for spelled, text in run.typed:
            section, _, name = spelled.rpartition(".")
            if name in declared[stage] and (not section or stage_name(section) == stage):
                words += ["-p", name, text]
        needs = tuple(need for need in NEEDS[stage] if need in stages)
        yield Cell(run.name, stage, needs, tuple(words), values[stage])
