"""`vocabx export RUN/04_fine_tuning/VARIANT OUT`: a checkpoint that anyone can load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from vocabx_utils.cli import UserPath


@click.command("export")
@click.argument("variant", type=UserPath())
@click.argument("out", type=UserPath())
@click.option("--adapter", type=click.Choice(["merge", "separate"]), default="merge", show_default=True,
              help="Add LoRA into the weights, or write the base with its rows and the adapter beside it.")  # fmt: skip
@click.option("--pad-to", type=click.IntRange(1), help="Round the matrix rows up to a multiple, such as 64.")
@click.option("--shard-size", default="2GB", show_default=True, help="Largest safetensors file.")
@click.option("--model", default="smollm2-135m", show_default=True,
              help="Base model of a phase-1 variant; fine-tuned variants know theirs.")  # fmt: skip
@click.option("--probe", type=UserPath(exists=True, dir_okay=False),
              help="Text whose ids are compared before and after (llama.cpp's own probe, for example).")  # fmt: skip
@click.option("--no-verify", is_flag=True, help="Do not load the written folder again to compare logits.")
def export(variant: Path, out: Path, model: str, probe: Path | None, no_verify: bool, **options: Any) -> None:
    """Write a checkpoint as a plain Hugging Face folder.

    VARIANT is a folder such as runs/quick/04_fine_tuning/mean_kl_last_ce0.1, OUT the folder to make. A variant of
    phase 1 (runs/quick/03_phase1_training/mean_ce) is written with the rows of its last epoch.
    """
    from vocabx_utils.training.export import check_shard_size, export_model, refuse_existing
    from vocabx_utils.training.starts import load_folder

    if probe is not None:
        options["probe"] = probe.read_text(encoding="utf-8")
    check_shard_size(options["shard_size"])
    refuse_existing(out)
    facts = export_model(load_folder(variant, model), out, verify=not no_verify, **options)
    click.echo(f"{out}: {facts['rows']} rows, {facts['new_tokens']} new tokens, {facts['padding_rows']} padding rows")
    if facts["probe_changed"]:
        click.echo(
            "The probe text has other ids than before the extension: llama.cpp's converter may not recognise the "
            "pre-tokenizer (see docs/checkpoints.md)."
        )
