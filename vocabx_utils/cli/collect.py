"""`vocabx collect`: parameters and metrics of many runs in one tidy table, as Parquet and as CSV."""

from __future__ import annotations

from pathlib import Path

import click

from vocabx_utils.cli import UserPath
from vocabx_utils.files import write_table
from vocabx_utils.paths import runs_root, show_path
from vocabx_utils.settings import ConfigError


@click.command("collect")
@click.argument("runs", nargs=-1, required=True, metavar="RUNS...")
@click.option("--out", type=UserPath(), help="The tables without their endings; RUNS/collected by default.")
def collect(runs: tuple[str, ...], out: Path | None) -> None:
    """Collect what finished notebooks of runs have measured, with the parameters of each run.

    RUNS are names below the folder of all runs, where '*' stands for any letters ('quick-s*'), or folders. A row is one
    value: run, model, seed, notebook, variant, part, epoch, metric, and a column for each parameter that was set or
    differs. Notebook 07 reads such a table: vocabx run-notebook 07 --run-name across -p table FILE.
    """
    from vocabx_utils.analysis.collected import collect_runs

    folders = find_runs(runs)
    table = collect_runs(folders)
    stem = out or runs_root() / "collected"
    paths = [stem.with_name(f"{stem.name}{ending}") for ending in (".parquet", ".csv")]
    for path in paths:
        write_table(path, table)
    click.echo(f"{len(table):,} values of {len(folders)} runs: {' and '.join(map(show_path, paths))}")


def find_runs(words: tuple[str, ...]) -> list[Path]:
    """Return the folders that words name, each once, in order; ConfigError for a word that names none."""
    found: list[Path] = []
    for word in words:
        typed = Path(word).expanduser()
        places = [typed] if typed.is_dir() and "/" in word else sorted(runs_root().glob(word))
        places = [place for place in places if (place / "timings.json").is_file()]
        if not places:
            known = ", ".join(sorted(path.parent.name for path in runs_root().glob("*/timings.json"))) or "none"
            raise ConfigError(f"{word!r} names no run that `vocabx run` has made in {runs_root()}. There: {known}.")
        found += [place.absolute() for place in places]
    return list(dict.fromkeys(found))
