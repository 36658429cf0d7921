"""`vocabx run` and `vocabx run-notebook`: the series, or one notebook of it, through papermill."""

from __future__ import annotations

import contextlib
import datetime
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import click

from vocabx_utils.cli.cards import VISIBLE, own_cards
from vocabx_utils.cli.notebooks import Timing, find_notebooks, run_notebook, select_notebooks, stoppable
from vocabx_utils.cli.parameters import Parameter, assign_parameters, declared_parameters, noting
from vocabx_utils.config import FineTuneConfig, check_params
from vocabx_utils.files import read_json, write_json
from vocabx_utils.locks import writing
from vocabx_utils.paths import runs_root, show_path, user_path
from vocabx_utils.profiles import load_profile
from vocabx_utils.runs import REPLACE
from vocabx_utils.settings import ConfigError

RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Plan:
    """What will run, checked; notebooks go by their full names, in order."""

    profile: str  # `quick`, the name of a shipped profile, or a YAML file
    run_name: str  # folder below `runs/`
    sources: dict[str, Path]
    parameters: dict[str, dict[str, Any]]  # values to inject
    settings: dict[str, dict[str, Any]]  # those and the defaults of all others


def make_plan(
    profile: str = "quick",
    run_name: str | None = None,
    only: Sequence[str] = (),
    typed: Sequence[tuple[str, str]] = (),
) -> Plan:
    """Check everything that was asked for before anything runs.

    Without a run name the profile's `run_name` counts, else the profile's own name. A ConfigError names an unknown
    profile, notebook or parameter, and values of the wrong type or out of range, for any of the notebooks.
    """
    available = find_notebooks()
    selected = select_notebooks(available, tuple(only))
    declared = {stage: declared_parameters(path) for stage, path in available.items()}
    values = assign_parameters(declared, load_profile(profile, as_text=True), typed, selected)
    name = _run_name(profile, values) if run_name is None else run_name
    if not RUN_NAME.fullmatch(name):
        raise ConfigError(
            f"run name is {name!r}; expected letters, digits, '.', '_' and '-' only, a letter or digit first."
        )
    for stage in selected:
        if "run_name" in declared[stage] and name != declared[stage]["run_name"].default:
            values[stage]["run_name"] = name
        _resolve_paths(values[stage], declared[stage])
    settings = {stage: {n: p.default for n, p in declared[stage].items()} | values[stage] for stage in selected}
    _check_settings(settings)
    return Plan(profile, name, {stage: available[stage] for stage in selected}, values, settings)


def _resolve_paths(values: dict[str, Any], declared: dict[str, Parameter]) -> None:
    """Make paths absolute, in place: a kernel starts in another folder than the one where they were typed.

    `model` and `corpus_path` may also be names on a hub, which stay as they are.
    """
    source = values.get("corpus_source") or (declared["corpus_source"].default if "corpus_source" in declared else "")
    for name in ("model", "corpus_path", "table"):
        text = values.get(name)
        local = name == "corpus_path" and source in ("jsonl", "tree")
        if text and (local or _means_a_path(text)):
            values[name] = str(user_path(text))


def _means_a_path(text: str) -> bool:
    return text.startswith((".", "/", "~")) or text.endswith(".gguf") or user_path(text).exists()


def _check_settings(parameters: dict[str, dict[str, Any]]) -> None:
    """Build the settings of every stage; all that is out of range or does not fit stands in one ConfigError."""
    problems: list[str] = []
    for stage, values in parameters.items():
        with noting(problems, f"{stage}: "):
            check_params(stage, values)
    problems = problems or _variants_that_nothing_makes(parameters)
    if problems:
        raise ConfigError("\n".join(problems))


def _variants_that_nothing_makes(parameters: dict[str, dict[str, Any]]) -> list[str]:
    """Variants that a notebook asks for although the notebook that makes them will run without them."""
    from vocabx_utils.training.objectives import parse_variant
    from vocabx_utils.training.tuning_plans import plan_variants

    phase1 = parameters.get("03_phase1_training", {}).get("variants")
    tuning = parameters.get("04_fine_tuning", {})
    evaluated = parameters.get("05_benchmark_evaluation", {}).get("variants", [])
    problems = []
    for name in phase1 or []:
        try:
            parse_variant(name)
        except ValueError as error:
            problems.append(f"03_phase1_training: {error}.")
    if phase1 is not None:
        for stage, wanted in (("04_fine_tuning", tuning.get("variants", [])), ("05_benchmark_evaluation", evaluated)):
            trained = [name for name in wanted if name != "base" and not name.startswith("tuned_")]
            problems += _lacking(stage, "variants", trained, phase1, "variants of 03_phase1_training")
    if "variants" in tuning:
        names = FineTuneConfig.field_names()
        config = FineTuneConfig.from_params(**{name: value for name, value in tuning.items() if name in names})
        tuned = [plan.name for plan in plan_variants(config)]
        exported = tuning.get("exported", [])
        problems += _lacking("04_fine_tuning", "exported", exported, tuned, "variants that it tunes")
        wanted = [name.removeprefix("tuned_") for name in evaluated if name.startswith("tuned_")]
        problems += _lacking("05_benchmark_evaluation", "variants", wanted, exported, "exported of 04_fine_tuning")
    return problems


def _lacking(stage: str, parameter: str, wanted: Sequence[str], made: Sequence[str], maker: str) -> list[str]:
    missing = ", ".join(name for name in wanted if name not in made)
    expected = f"expected names among {maker}: {', '.join(made)}."
    return [f"{stage}: {parameter} names {missing}; {expected}"] if missing else []


def _run_name(profile: str, values: dict[str, dict[str, Any]]) -> str:
    given = {given["run_name"] for given in values.values() if "run_name" in given}
    if len(given) > 1:
        raise ConfigError(f"run_name differs between notebooks ({', '.join(sorted(given))}); they share one folder.")
    return str(given.pop()) if given else Path(profile).stem


def _execute(plan: Plan, folder: Path) -> list[Timing]:
    """Run the notebooks of a plan in order; stop at the first that fails: what earlier ones wrote stays."""
    timings = []
    for number, (stage, source) in enumerate(plan.sources.items(), 1):
        values = ", ".join(f"{k}={v!r}" for k, v in plan.parameters[stage].items()) or "its own defaults"
        click.echo(f"[{number}/{len(plan.sources)}] {stage} with {values}")
        with writing(folder / source.name):
            timing = run_notebook(source, folder / source.name, plan.parameters[stage], click.echo)
        click.echo(f"    done in {_minutes(timing.seconds)}, peak memory {timing.peak_mib:,.0f} MiB")
        timings.append(timing)
        finished = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        entry = asdict(timing) | {"profile": plan.profile, "parameters": plan.parameters[stage], "finished": finished}
        _note(folder / "timings.json", entry | {"settings": plan.settings[stage]})
    return timings


def _note(path: Path, entry: dict[str, Any]) -> None:
    """Add a notebook to the timings of its run, where another one may be ending at the same time."""
    with writing(path, wait=60):
        held = read_json(path) if path.exists() else {}
        write_json(path, held | {entry["notebook"]: entry})


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"


def _run(**asked: Any) -> None:
    plan = make_plan(**asked)
    folder, begin = runs_root() / plan.run_name, time.monotonic()
    try:
        timings = _execute(plan, folder)
    except KeyboardInterrupt:
        raise click.ClickException("stopped by hand. The same command continues where it stood.") from None
    click.echo(f"Finished in {_minutes(time.monotonic() - begin)}.")
    for timing in timings:
        click.echo(f"  {timing.notebook:<26}{_minutes(timing.seconds):>11}{timing.peak_mib:>9,.0f} MiB")
    click.echo(f"Results: {show_path(folder)} (in {folder})")
    last = folder / list(plan.sources.values())[-1].name
    click.echo(f"Read next: {show_path(last)}; `make lab` opens the series.")


def _shared_options(command: Any) -> Any:
    profile = click.option("--profile", default="quick", show_default=True, help="quick, gpu, thesis, or a YAML file.")
    run_name = click.option("--run-name", help="Folder below runs/; by default the name of the profile.")
    told = "Set a parameter in every chosen notebook that declares it, or as 03.NAME in one. Repeatable."
    typed = click.option("-p", "typed", type=(str, str), multiple=True, metavar="NAME VALUE", help=told)
    return profile(run_name(typed(command)))


@click.command()
@_shared_options
@click.option("--only", multiple=True, metavar="NN", help="Run this notebook only. Repeatable.")
def run(**asked: Any) -> None:
    """Execute the notebooks of the series in order.

    Unknown profiles, notebooks and parameters, and values of the wrong type or out of range, are refused before
    anything runs. Relative paths are below the folder where the command is typed.
    Finished stages of a run with the same settings are skipped; a stopped run continues where it stood.
    """
    _run(**asked)


@click.command("run-notebook")
@click.argument("notebook", metavar="NN")
@_shared_options
@click.option("--replace", is_flag=True, help="Do work again that was done with other settings.")
@click.option("--minutes", type=click.FloatRange(0), default=0, help="Stop a notebook that takes longer.")
@click.option("--gpus", type=click.IntRange(0), help="Let it see so many free cards only; 0 for none. Default: all.")
@click.option("--jobs-per-gpu", type=click.IntRange(1), default=1, help="Runs that may share a card with it.")
def run_one(notebook: str, replace: bool, minutes: float, gpus: int | None, jobs_per_gpu: int, **asked: Any) -> None:
    """Execute one notebook of the series.

    NN is its number or name, such as 03. Earlier notebooks must have written their part of the same run.
    """
    with contextlib.ExitStack() as stack:
        seen = stack.enter_context(own_cards(gpus, jobs_per_gpu)) if gpus is not None else None
        values = ({REPLACE: "1"} if replace else {}) | ({VISIBLE: seen} if seen is not None else {})
        stack.enter_context(mock.patch.dict(os.environ, values))
        stack.enter_context(stoppable(minutes))
        _run(only=[notebook], **asked)
