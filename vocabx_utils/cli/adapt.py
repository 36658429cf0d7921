"""`vocabx adapt MODEL --from TEXTS --out OUT`: a model of one's own, from texts to a model folder and a report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vocabx_utils.cli import UserPath, all_files_option, glob_option

_STRATEGY = "Cut words as before, let tokens cross words, or take what saves more on the validation files."
_RATE = "Peak rate of phase 1; turns the sweep off. Default: chosen by a short sweep."


@click.command()
@click.argument("model")
@click.option("--from", "source", required=True, type=UserPath(), help="Folder of texts, or a .jsonl file.")
@click.option("--out", required=True, type=UserPath(), help="Folder to write: model/, report.html, summary.json.")
@click.option("--n", default=800, show_default=True, help="New tokens.")
@click.option("--strategy", default="merges", show_default=True, type=click.Choice(["merges", "phrases", "auto"]),
              help=_STRATEGY)  # fmt: skip
@click.option("--objective", default="kl_last_ce0.03", show_default=True, help="What the new input rows minimise.")
@click.option("--fine-tune", default="none", show_default=True, type=click.Choice(["none", "lora"]),
              help="What follows on the new rows.")  # fmt: skip
@glob_option
@all_files_option
@click.option("--learning-rate", default=0.0, show_default=False, help=_RATE)
@click.option("--epochs", default=0, help="Passes over the training windows. Default: chosen by the sweep.")
@click.option("--windows-per-token", default=0, help="Training windows a new token. Default: 8 on a CPU, 32 on a GPU.")
@click.option("--held-out-bytes", default=0, help="Bytes scored at the end. Default: 32,000, on a GPU a million.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1, …")
@click.option("--dtype", default="auto", show_default=True, type=click.Choice(["auto", "float32", "bfloat16"]))
@click.option("--seed", default=0, show_default=True)
@click.option("--dry-run", is_flag=True, help="Stop before a weight is loaded, with the gain in tokens printed.")
def adapt(model: str, source: Path, out: Path, dry_run: bool, **settings: Any) -> None:
    """Extend MODEL by tokens of your own texts, learn their rows, and measure what it gains.

    MODEL is a packaged name (smollm2-135m), hub id, local folder or .gguf file. The texts need not be instruction
    pairs. OUT/model is a plain Hugging Face folder. A stopped command goes on where it stood when it is given again.
    """
    from vocabx_utils.adaptation.run import adapt as run

    try:
        run(model, source, out, dry_run=dry_run, tell=click.echo, **settings)
    except KeyboardInterrupt as error:
        click.echo("stopped: the same command goes on where it stood")
        raise click.Abort from error
