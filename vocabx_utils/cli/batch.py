"""`vocabx batch`: a grid of runs through Snakemake, checked before it starts and summed up at its end."""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from vocabx_utils.cli import UserPath
from vocabx_utils.cli.grid import Grid, read_grid
from vocabx_utils.cli.notebooks import stoppable
from vocabx_utils.cli.run import make_plan
from vocabx_utils.layers import layered_environment
from vocabx_utils.locks import writing
from vocabx_utils.paths import project_root, runs_root, show_path
from vocabx_utils.settings import ConfigError

LOCK = "requirements-batch.lock"


@click.command("batch")
@click.argument("grid", type=UserPath(), metavar="GRID.yaml")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[-- SNAKEMAKE OPTIONS]")
@click.option("--jobs", type=click.IntRange(1), help="Notebooks at a time; 1, or what the profile of a cluster says.")
@click.option("--gpus", type=click.IntRange(0), default=0, help="Cards of this machine that the batch may use.")
@click.option("--cluster", metavar="PROFILE", help="slurm, or the folder of a Snakemake profile.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would run.")
def batch(grid: Path, words: tuple[str, ...], jobs: int | None, gpus: int, cluster: str | None, dry_run: bool) -> None:
    """Run every notebook of every run of a grid that is not done yet.

    workflow/grid.yaml is an example with all keys. A notebook whose parameters changed is run again with what depends
    on it; one that fails stops only what needs it. The same command continues a batch that was stopped.
    """
    plan = read_grid(grid)
    check_parameters(plan)
    if plan.settings.gpus > gpus and cluster is None:
        raise ConfigError(
            f"{grid} asks for {plan.settings.gpus} cards for each notebook; expected --gpus of that or more."
        )
    call = [*snakemake(), *_asked(grid, plan, jobs, gpus, cluster), *words, *(["--dry-run"] if dry_run else [])]
    root = runs_root()
    with writing(root / "batch"):
        before = _logs(plan, root)
        code = _call(call)
    if dry_run:
        sys.exit(code)
    click.echo("\n".join(_tell(plan, root, before)))
    if code:
        raise click.ClickException("the batch is not finished. The same command continues it.")


def check_parameters(grid: Grid) -> None:
    """Build the settings of every notebook of every kind of run; ConfigError names what is out of range.

    Runs that differ in their seed alone are of one kind.
    """
    kinds = {(run.profile, run.typed[:-1]): run for run in grid.runs}
    for run in kinds.values():
        try:
            make_plan(run.profile, run.name, grid.stages, run.typed)
        except ConfigError as error:
            raise ConfigError(f"{run.name}: {error}") from None


def snakemake() -> list[str]:
    """Return the words that call Snakemake: of this environment, or else of one in the cache, which is made first.

    NoIndexError where it has to be made and the package index is out of reach.
    """
    python = Path(sys.executable)
    if importlib.util.find_spec("snakemake") is None:
        lock = project_root() / LOCK
        if not lock.is_file():
            raise ConfigError(f"{lock} is missing: `vocabx batch` needs a checkout (VOCABX_ROOT).")
        lines = lock.read_text(encoding="utf-8").splitlines()
        python = layered_environment("batch", [line for line in lines if line and line[0] != "#"], click.echo)
    return [str(python), "-m", "snakemake"]


def _asked(grid: Path, plan: Grid, jobs: int | None, gpus: int, cluster: str | None) -> Iterator[str]:
    """Words behind `snakemake`."""
    workflow, asked = project_root() / "workflow", plan.settings
    vocabx = shlex.join([sys.executable, "-m", "vocabx_utils"])
    yield from ("--snakefile", str(workflow / "Snakefile"), "--directory", str(runs_root()))
    yield "--nolock"  # we hold a lock that ends with its process
    if cluster is None:
        yield from ("--cores", str((jobs or 1) * asked.threads), "--resources", f"gpu={gpus * asked.jobs_per_gpu}")
    else:
        profile = workflow / "profiles" / cluster
        yield from ("--profile", str(profile if profile.is_dir() else cluster))
        yield from ("--jobs", str(jobs)) if jobs else []
    yield from ("--config", f"here={Path.cwd()}", f"grid={grid.absolute()}", f"vocabx={vocabx}")


def _call(words: Sequence[str]) -> int:
    """Run a command in a process group of its own; what stops us stops all of it, the second time at once."""
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    for number in (signal.SIGINT, signal.SIGKILL):
        try:
            with stoppable():
                return child.wait()
        except KeyboardInterrupt:
            os.killpg(child.pid, number)
    return child.wait()


def _logs(grid: Grid, root: Path) -> dict[Path, int]:
    """When the logs that are there were written; a log of this batch has another stamp than before, on any clock."""
    logs = (root / cell.log for cell in grid.cells)
    return {log: log.stat().st_mtime_ns for log in logs if log.exists()}


def _tell(grid: Grid, root: Path, before: Mapping[Path, int]) -> Iterator[str]:
    """Sum up a batch in lines: how many cells are done, and of each that failed why, and where its log is."""
    done = {(cell.run, cell.stage) for cell in grid.cells if (root / f"{cell.place}.done").exists()}
    now = _logs(grid, root)
    yield f"{len(done)} of {len(grid.cells)} cells are done, in {show_path(root)} ({root})."
    for cell in grid.cells:
        log = root / cell.log
        if (cell.run, cell.stage) in done:
            continue
        if log in now and now[log] != before.get(log):
            yield f"{cell.run}, {cell.stage} failed; its log is {show_path(log)}"
            yield from (f"    {line}" for line in _reason(log))
        else:
            missing = ", ".join(need for need in cell.needs if (cell.run, need) not in done)
            yield f"{cell.run}, {cell.stage} was not started{f': it needs {missing}' if missing else ''}"


def _reason(log: Path) -> list[str]:
    """The error at the end of a log, in three lines at most."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    last = max((at for at, line in enumerate(lines) if line.startswith("Error: ")), default=len(lines) - 3)
    return lines[max(last, 0) :][:3]
