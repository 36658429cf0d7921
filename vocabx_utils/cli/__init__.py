"""The command line, on top of the house. Commands load when they are called, so `vocabx --help` is quick."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, NamedTuple

import click

from vocabx_utils.paths import pin_folders


class Entry(NamedTuple):
    """Where a command lives: file in this folder, click command or group in it, line for `vocabx --help`."""

    module: str
    attribute: str
    summary: str


COMMANDS = {
    "adapt": Entry("adapt", "adapt", "Extend a model by tokens of your own texts, and measure what it gains."),
    "run": Entry("run", "run", "Execute the notebooks of the series in order."),
    "run-notebook": Entry("run", "run_one", "Execute one notebook of the series."),
    "batch": Entry("batch", "batch", "Run a grid of runs, on this machine or on a cluster."),
    "collect": Entry("collect", "collect", "Collect parameters and metrics of many runs in one table."),
    "lab": Entry("lab", "lab", "Open JupyterLab on the checkout, with working copies of the notebooks."),
    "models": Entry("models", "models", "Fetch the models that the series uses."),
    "info": Entry("models", "info", "Show versions, devices, memory, and which data and models are reachable."),
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
        """Run a command; errors that are meant for the user are shown in one line, without a traceback."""
        pin_folders()
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except (ValueError, RuntimeError, OSError) as error:
            if not _is_for_the_user(error):
                raise
            raise click.ClickException(str(error)) from error


def _is_for_the_user(error: Exception) -> bool:
    """Whether an error is of the system or raised by our own code: what another package stumbles over is a bug."""
    if isinstance(error, OSError | UnicodeError):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raiser = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return any(name.split(".")[0] == "vocabx_utils" for name in (type(error).__module__, raiser))


class UserPath(click.Path):
    """A path as it was typed, with `~` for the home folder also where no shell has put that in (`--out=~/x`)."""

    def __init__(self, **checks: Any) -> None:
        super().__init__(path_type=Path, **checks)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path after the checks of `click.Path`."""
        return super().convert(Path(value).expanduser(), param, ctx)


glob_option = click.option(
    "--glob",
    default="*",
    show_default=True,
    help="Files to read, as in a .gitignore file: '*.c', 'src/**/*.py', '!tests/'; several separated by commas.",
)
all_files_option = click.option(
    "--all-files",
    is_flag=True,
    help="Read what .gitignore names, and usual clutter (lock files, SVG, notebooks, node_modules, …), too.",
)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="vocabx-utils", prog_name="vocabx")
def main() -> None:
    """Vocabulary expansion of language models by self-distillation, as a series of notebooks."""
