"""Train in one process or several: `python -m vocabx_utils.training phase1 …` and `… finetune …`.

python -m vocabx_utils.training phase1 --config quick
accelerate launch --multi_gpu --num_processes 2 -m vocabx_utils.training finetune --config configs/finetune.yaml
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
import yaml

from vocabx_utils import runs
from vocabx_utils.config import FineTuneConfig, Phase1Config
from vocabx_utils.models import load_base_model
from vocabx_utils.profiles import check_shared, load_profile, notebook_params
from vocabx_utils.training.finetuning_variants import choose_texts, tune_variant
from vocabx_utils.training.phase1_stage import prepare_phase1, train_stage
from vocabx_utils.training.processes import joined, leads, require_processes
from vocabx_utils.training.tuning_plans import TuningPlan
from vocabx_utils.vocabulary.tokens import load_extension


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(prog="python -m vocabx_utils.training", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    first = commands.add_parser("phase1", help="learn the rows of new tokens, variant by variant")
    first.set_defaults(run=train_phase1)
    first.add_argument("--config", default="quick", help="profile: a shipped name or a YAML file")
    first.add_argument("--run-name", help="run folder, over the profile's")
    first.add_argument("--variants", nargs="+", help="variants, over the profile's")
    second = commands.add_parser("finetune", help="fine-tune one variant")
    second.set_defaults(run=finetune)
    second.add_argument("--config", type=Path, required=True, help="YAML file, such as configs/finetune.yaml")
    require_processes()
    given = parser.parse_args(arguments)
    given.run(given)


def train_phase1(given: argparse.Namespace) -> None:
    """Train the variants of a profile."""
    profile = load_profile(given.config)
    check_shared(profile, given.config)
    declared = {field.name: None for field in dataclasses.fields(Phase1Config)}
    config = Phase1Config.from_params(**notebook_params(profile, "03_phase1_training", declared))
    if given.run_name:
        config = replace(config, run_name=given.run_name)
    if given.variants:
        config = replace(config, variants=tuple(given.variants))
    with joined(cpu=_on_cpu(config.device)) as processes:
        if processes.num_processes > 1 and config.device == "auto":
            config = replace(config, device=str(processes.device))
        tell = print if leads(processes) else lambda _: None
        stage = prepare_phase1(runs.open_run(config.run_name), config, processes=processes, tell=tell)
        for name, result in train_stage(stage, config, processes=processes).items():
            if leads(processes):
                last = result.metrics[-1]
                print(f"{name}: KL last {last['kl_last']:.4f}, CE {last['ce']:.4f}, {last['bpb']:.4f} bits per byte")


def finetune(given: argparse.Namespace) -> None:
    """Fine-tune one variant of a run.

    The YAML file holds fields of `FineTuneConfig` and `variant` (its folder below 04_fine_tuning) and `start`
    ("base", "phase1:VARIANT" or "VARIANT:STAGE").
    """
    settings = yaml.safe_load(given.config.read_text(encoding="utf-8"))
    variant, start = settings.pop("variant", ""), settings.pop("start", "")
    if not variant or not start:
        raise SystemExit("the configuration needs 'variant' and 'start', such as mean_ce and phase1:mean_ce")
    config = FineTuneConfig.from_params(**settings)
    with joined(cpu=_on_cpu(config.device)) as processes:
        run = runs.open_run(config.run_name)
        device = "cpu" if config.sharded else str(processes.device)
        base = load_base_model(config.model, device=device, dtype=config.dtype)
        extension = load_extension(run.require("01", "extension"))
        texts = choose_texts(run, extension, config)
        result = tune_variant(run, TuningPlan(variant, start, config.stages), base, extension, texts, config)
        if leads(processes):
            print(result.stages.to_string(index=False))
            if not (result.folder / "provenance.json").exists():
                print("One stage is done; start the same command again for the next one.")


def _on_cpu(device: str) -> bool:
    return device == "cpu" or not torch.cuda.is_available()


if __name__ == "__main__":
    main()
