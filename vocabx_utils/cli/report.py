"""`vocabx figures` and `vocabx report`: the figures of a run, and a web site made from its notebooks."""

from __future__ import annotations

from pathlib import Path

import click

from vocabx_utils.cli import UserPath
from vocabx_utils.paths import project_root, show_path
from vocabx_utils.runs import existing_run


@click.command()
@click.argument("run_name", metavar="RUN", default="quick")
@click.option("--out", type=UserPath(file_okay=False), help="Folder; figures/ by default.")
@click.option("--pdf", is_flag=True, help="Write PDF beside SVG and PNG.")
def figures(run_name: str, out: Path | None, pdf: bool) -> None:
    """Draw every figure of the series from a run."""
    from vocabx_utils.figures.catalogue import draw_figures

    folder = out or project_root() / "figures"
    outcomes = draw_figures(existing_run(run_name), folder, formats=("svg", "pdf", "png") if pdf else ("svg", "png"))
    for outcome in outcomes:
        state = f"left out: {outcome.reason}" if outcome.reason else ", ".join(show_path(p) for p in outcome.paths)
        click.echo(f"{outcome.name}: {state}")
    drawn = sum(not outcome.reason for outcome in outcomes)
    click.echo(f"{drawn} of {len(outcomes)} figures drawn into {show_path(folder)}, alternative texts in alt.json")


@click.command()
@click.argument("run_name", metavar="RUN", default="quick")
@click.option("--out", type=UserPath(file_okay=False), help="Folder; RUN/report by default.")
def report(run_name: str, out: Path | None) -> None:
    """Build a web site from the executed notebooks of a run."""
    from vocabx_utils.analysis.report import build_report

    run = existing_run(run_name)
    pages = build_report(run, out or run.folder / "report", sorted((project_root() / "docs").glob("*.md")))
    written = sum(path.suffix == ".html" for path in pages)
    click.echo(f"{written} pages; open {show_path(pages[0])}")
