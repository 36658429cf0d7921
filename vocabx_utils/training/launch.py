"""``accelerate launch -m vocabx_utils.training.finetuning --config FILE``: one variant on any number of devices."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import yaml
from accelerate import PartialState

from vocabx_utils import runs
from vocabx_utils.config import FineTuneConfig
from vocabx_utils.models import load_base_model
from vocabx_utils.training.finetuning import FineTuned
from vocabx_utils.training.group import require_processes
from vocabx_utils.training.series import Plan, choose_texts, tune_variant

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Fine-tune one variant of a run.

    The YAML file holds fields of ``FineTuneConfig`` and ``variant`` (its folder below 04_fine_tuning) and ``start``
    ("base", "phase1:VARIANT" or "VARIANT:STAGE").
    """
    require_processes()
    parser = argparse.ArgumentParser(description=(main.__doc__ or "").splitlines()[0])
    parser.add_argument("--config", type=Path, required=True, help="YAML file, such as configs/finetune.yaml")
    settings = yaml.safe_load(parser.parse_args(arguments).config.read_text(encoding="utf-8"))
    variant, start = settings.pop("variant", ""), settings.pop("start", "")
    if not variant or not start:
        raise SystemExit("the configuration needs 'variant' and 'start', such as mean_ce and phase1:mean_ce")
    result = _tune(FineTuneConfig.from_params(**settings), variant, start)
    if PartialState().is_main_process:
        print(result.stages.to_string(index=False))
        if not (result.folder / "provenance.json").exists():
            print("One stage is done; start the same command again for the next one.")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _tune(config: FineTuneConfig, variant: str, start: str) -> FineTuned:
    from vocabx_utils.vocabulary.tokens import load_extension

    run = runs.open_run(config.run_name)
    cpu = config.device == "cpu" or not torch.cuda.is_available()
    device = PartialState(cpu=cpu).device
    base = load_base_model(config.model, device="cpu" if config.sharded else str(device), dtype=config.dtype)
    extension = load_extension(run.require("01", "extension"))
    texts = choose_texts(run, extension, config)
    return tune_variant(run, Plan(variant, start, config.stages), base, extension, texts, config)
