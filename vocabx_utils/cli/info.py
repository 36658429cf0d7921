"""`vocabx info`: what this machine offers to the series."""

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
