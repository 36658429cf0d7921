"""The command line, on top of the house. Commands load when they are called, so `vocabx --help` is quick."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import click

__all__ = ["COMMANDS", "Entry", "main"]


@dataclass(frozen=True)
class Entry:
    """Where a command lives.

    Attributes:
        module: file in this folder.
        attribute: the click command or group in it.
        summary: line for `vocabx --help`.
    """

    module: str
    attribute: str
    summary: str


COMMANDS = {
    "run": Entry("run", "run", "Execute the notebooks of the series in order."),
    "run-notebook": Entry("run", "run_one", "Execute one notebook of the series."),
    "lab": Entry("lab", "lab", "Open JupyterLab on the checkout, with working copies of the notebooks."),
    "models": Entry("models", "models", "Fetch the models that the series uses."),
    "info": Entry("info", "info", "Show versions, devices, memory, and which data and models are reachable."),
    "tokens": Entry("tokens", "tokens", "Propose new tokens, and audit an extended tokenizer."),
    "export": Entry("export", "export", "Write a checkpoint as a plain Hugging Face folder."),
    "eval-env": Entry("evaluation", "eval_env", "Build the pinned environments in which answers run."),
    "eval": Entry("evaluation", "evaluate", "Execute answers in the sandbox, and verify the references."),
    "figures": Entry("report", "figures", "Draw every figure of the series from a run."),
    "report": Entry("report", "report", "Build a web site from the executed notebooks of a run."),
}


class LazyGroup(click.Group):
    """A group that imports a command's module when it is called, and shows our errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import a command by name; None if there is none."""
        entry = COMMANDS.get(name)
        if entry is None:
            return None
        return getattr(importlib.import_module(f"{__name__}.{entry.module}"), entry.attribute)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; errors that the package raises on purpose are shown without a traceback."""
        from vocabx_utils.paths import pin_folders

        pin_folders()
        try:
            return super().invoke(ctx)
        except (ValueError, RuntimeError) as error:
            if isinstance(error, click.exceptions.Exit) or not type(error).__module__.startswith("vocabx_utils"):
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vocabx-utils", prog_name="vocabx")
def main() -> None:
    """Vocabulary expansion of language models by self-distillation, as a series of notebooks."""
