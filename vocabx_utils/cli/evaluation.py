"""`vocabx eval-env` and `vocabx eval`: environments, the sandbox, reference solutions, execution of answers."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from vocabx_utils.cli import UserPath
from vocabx_utils.evaluation import kept as kept_lists
from vocabx_utils.evaluation import references
from vocabx_utils.evaluation.benchmarks import BENCHMARKS, benchmark_of, load_benchmark, select_problems
from vocabx_utils.evaluation.environment_build import build_environment
from vocabx_utils.evaluation.environments import (
    DATA_FOLDERS,
    RECIPES,
    EnvironmentMissingError,
    environment_for,
    load_environment,
    plain_environment,
)
from vocabx_utils.evaluation.execution import execute
from vocabx_utils.evaluation.results import Result, write_official
from vocabx_utils.evaluation.samples import read_samples
from vocabx_utils.evaluation.selftest import describe_sandbox, protections
from vocabx_utils.files import read_json, write_json
from vocabx_utils.paths import runs_root, show_path

_BENCHMARK = click.Choice(BENCHMARKS)
_workers = click.option("--workers", default=2, show_default=True, help="Programs at the same time.")
_fast = click.option("--fast", is_flag=True, help="Fork in warm jails instead of a fresh jail for each program.")
_strict = click.option(
    "--strict/--no-strict",
    default=True,
    show_default=True,
    help="Compare values outside the candidate's process, where the tests allow it (HumanEval, MBPP).",
)


@click.group("eval-env")
def eval_env() -> None:
    """Build the pinned environments in which answers run."""


@eval_env.command()
@click.argument("name", type=click.Choice(["bigcodebench", "ds1000"]))
@click.option("--with", "added", multiple=True, metavar="GROUP", help="Also install a group, such as tensorflow.")
@click.option("--bare", is_flag=True, help="Leave the default groups (torch for ds1000) out.")
@click.option("--python", type=UserPath(), help="A CPython 3.11, where `vocabx` itself runs on another Python.")
def build(name: str, added: tuple[str, ...], bare: bool, python: Path | None) -> None:
    """Build an environment in the cache folder (minutes, one to three gigabytes)."""
    groups = (() if bare else RECIPES[name].default) + added
    environment = build_environment(name, groups=groups, python=python, say=click.echo)
    click.echo(f"{name}: {len(environment.packages)} packages, hash {environment.hash}")
    if missing := sorted(set(DATA_FOLDERS) - set(environment.view.data)):
        click.echo(f"note: no folder for {', '.join(missing)} under $VOCABX_DATA; some problems need it")


@eval_env.command()
def show() -> None:
    """Show which environments are there, with their hashes."""
    for name in ("plain", *RECIPES):
        try:
            found = load_environment(name)
        except EnvironmentMissingError as error:
            click.echo(f"{name}: {error}")
            continue
        groups = f", with {', '.join(found.groups)}" if found.groups else ""
        click.echo(f"{name}: Python {found.python}{groups}, {len(found.packages)} packages, hash {found.hash}")


@click.group("eval")
def evaluate() -> None:
    """Execute answers in the sandbox, and verify the references."""


@evaluate.command()
def check() -> None:
    """Run the self-test of the sandbox, and show which protections are active on this machine.

    Without a sandbox that contains the self-test's hostile programs nothing is executed. The other protections
    depend on the machine; each line comes from a program that tried to get past.
    """
    view = plain_environment().view
    holds, words = describe_sandbox(view)
    if not holds:
        raise click.ClickException(words)
    click.echo(words)
    for name, active, how in protections(view):
        click.echo(f"  {'active' if active else 'NOT active'}: {name} ({how})")


@evaluate.command("verify-references")
@click.argument("benchmarks", nargs=-1, type=_BENCHMARK)
@click.option(
    "--out",
    type=UserPath(file_okay=False),
    help="Folder for lists and verdicts; a run that was stopped continues there.  [default: <runs>/references]",
)
@click.option("--update-package", is_flag=True, help="Replace the lists of the package, which scoring reads.")
@click.option("--any-environment", is_flag=True, help="Make a list in an environment that is not the list's.")
@click.option("--ids", default="", metavar="ID,ID", help="Only these problems.")
@click.option("--share", default=1.0, show_default=True, help="Only this share, spread evenly over the benchmark.")
@click.option("--both", is_flag=True, help="One pass with forks in warm jails, one with a fresh jail for each program.")
@_workers
@_fast
def verify_references(
    benchmarks: Sequence[str],
    out: Path | None,
    update_package: bool,
    any_environment: bool,
    ids: str,
    share: float,
    both: bool,
    workers: int,
    fast: bool,
) -> None:
    """Run every reference solution twice and write which problems are kept.

    Without BENCHMARKS all four. The lists go into a folder of yours and are compared with those of the package.
    """
    modes = ("forked", "fresh") if both else ("forked",) * 2 if fast else ("fresh",) * 2
    wanted, folder = [name for name in ids.split(",") if name], out or runs_root() / "references"
    if update_package and (wanted or share < 1):
        raise ValueError("--update-package replaces whole lists: leave --ids and --share out")
    environments = {name: environment_for(name) for name in benchmarks or BENCHMARKS}
    if not (any_environment or update_package):
        for name, environment in environments.items():
            kept_lists.check_environment(name, environment)
    for name, environment in environments.items():
        problems = select_problems(load_benchmark(name), wanted, share)
        record, listed = folder / f"{name}.verdicts.jsonl", kept_lists.KeptList.read(name)
        found = references.verify_references(problems, environment, workers=workers, modes=modes, record=record)
        path = found.write(kept_lists.KEPT_FOLDER if update_package else folder)
        seconds = ", ".join(f"{value:g} s" for value in found.seconds)
        click.echo(f"{name}: {len(found.kept)} of {len(problems)} references pass ({seconds}); {show_path(path)}")
        for reason, count in Counter(text.split(":")[0] for text in found.dropped.values()).most_common():
            click.echo(f"  dropped, {reason}: {count}")
        for line in found.compare(listed) if listed and not update_package else ():
            click.echo(f"  {line}")


@evaluate.command("compare-modes")
@click.argument("benchmark", type=_BENCHMARK)
@click.option("--report", type=UserPath(dir_okay=False), help="JSON file to add the numbers to.")
@_workers
def compare_modes(benchmark: str, report: Path | None, workers: int) -> None:
    """Time the kept references with fresh jails and with forks, and compare the verdicts."""
    facts = references.compare_modes(kept_lists.kept_problems(benchmark), workers=workers)
    click.echo(json.dumps(facts, indent=1))
    if report:
        known = read_json(report) if report.exists() else {}
        write_json(report, {**known, benchmark: facts})


@evaluate.command()
@click.argument("samples", type=UserPath(exists=True, dir_okay=False))
@click.option("--benchmark", type=_BENCHMARK, help="By default told from the ids.")
@click.option("--out", type=UserPath(dir_okay=False), help="By default results.jsonl beside SAMPLES.")
@click.option("--kept", is_flag=True, help="Execute only problems whose reference passes.")
@click.option("--without-library", multiple=True, metavar="NAME", help="Leave out a DS-1000 library.")
@click.option("--official", is_flag=True, help="Also write <name>_eval_results.json in BigCodeBench's shape.")
@_workers
@_fast
@_strict
def run(
    samples: Path,
    benchmark: str | None,
    out: Path | None,
    kept: bool,
    without_library: tuple[str, ...],
    official: bool,
    **how: Any,
) -> None:
    """Execute the answers in SAMPLES (JSON Lines with task_id and solution); continue a run that was stopped."""
    rows = read_samples(samples)
    name = benchmark or _benchmark_of([row.task_id for row in rows], samples)
    every = load_benchmark(name)
    problems = kept_lists.kept_problems(name) if kept else every
    problems = [problem for problem in problems if problem.library not in without_library]
    left_out = {problem.task_id for problem in every} - {problem.task_id for problem in problems}
    rows = [row for row in rows if row.task_id not in left_out]
    target = out or samples.with_name("results.jsonl")
    results = execute(rows, problems, target, **how)
    _report(results)
    _note_environment(name)
    click.echo(f"results: {show_path(target)}")
    if official:
        click.echo(f"official shape: {show_path(write_official(results, rows, samples))}")


@evaluate.command()
@click.argument("run_name", metavar="RUN")
@click.option("--reference", default="base", show_default=True, help="The others are compared with it.")
@_workers
@_strict
def answers(run_name: str, reference: str, **how: Any) -> None:
    """Execute what notebook 05 of a run wrote on a machine without a sandbox; continue where it was stopped.

    RUN is its folder below runs/; of it only 05_benchmark_evaluation is needed, and no model. Results, the table and
    the verdicts go where notebook 05 puts them.
    """
    from vocabx_utils.cli.answers import execute_run  # loads torch, which the other commands do without

    execute_run(run_name, reference, say=click.echo, **how)


def _benchmark_of(ids: Sequence[str], path: Path) -> str:
    try:
        return benchmark_of(ids[0])
    except (IndexError, ValueError) as error:
        shown = repr(ids[0]) if ids else "no rows"
        raise ValueError(f"{path}: cannot tell the benchmark from {shown}; name it with --benchmark") from error


def _note_environment(name: str) -> None:
    """Say where the answers ran in another environment than the one in which the list of kept problems was made."""
    try:
        kept_lists.check_environment(name, environment_for(name))
    except kept_lists.EnvironmentDiffersError as error:
        click.echo(f"note: {error}")


def _report(results: Sequence[Result]) -> None:
    passed = sum(row.passed for row in results)
    click.echo(f"{passed} of {len(results)} answers pass ({passed / max(len(results), 1):.1%})")
    for reason, count in Counter(row.reason or row.status for row in results if not row.passed).most_common():
        click.echo(f"  {reason}: {count}")
    if flagged := [row.task_id for row in results if row.flags]:
        more = " ..." if len(flagged) > 10 else ""
        click.echo(f"  {len(flagged)} answers mention what a cheating one would: {', '.join(flagged[:10])}{more}")
