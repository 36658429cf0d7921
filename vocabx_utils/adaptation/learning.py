"""Phase 1, LoRA and the export of an adaptation, each with the checkpoints that the wings below keep."""

from __future__ import annotations

import gc
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from vocabx_utils import corpus
from vocabx_utils.adaptation.plan import LORA_BATCH, WINDOW
from vocabx_utils.adaptation.settings import AdaptSettings, Sizes
from vocabx_utils.adaptation.steps import MODEL
from vocabx_utils.adaptation.texts import Split, Text
from vocabx_utils.config import FineTuneConfig, Phase1Config
from vocabx_utils.models import BaseModel
from vocabx_utils.products import TILE
from vocabx_utils.rows import read_epoch
from vocabx_utils.training import fusing
from vocabx_utils.training.examples import AlignedSet, encode
from vocabx_utils.training.export import export_model
from vocabx_utils.training.finetuning_stage import fine_tune
from vocabx_utils.training.phase1 import Phase1Data, prepare
from vocabx_utils.training.phase1_stage import Starts, VariantResult, train_variant
from vocabx_utils.training.stage_files import load_stage
from vocabx_utils.training.starts import Start, from_rows
from vocabx_utils.training.teacher import TeacherStates, teacher_cache
from vocabx_utils.vocabulary.tokens import Extension

FEW = 8  # occurrences in the training windows, below which a row is hardly learned
TEACHER = "teacher"  # folder of its states
_TEXT = 512  # longest text of LoRA, in tokens


@dataclass(frozen=True)
class Bench:
    """What every training of an adaptation shares."""

    base: BaseModel
    extension: Extension
    split: Split
    settings: AdaptSettings
    sizes: Sizes
    work: Path  # folder in which the teacher's states are kept
    tell: Callable[[str], None]  # receives lines

    def config(self, windows: int, learning_rate: float, epochs: int) -> Phase1Config:
        """Settings of phase 1."""
        return Phase1Config(
            run_name="adapt",
            model=self.base.name,
            seed=self.settings.seed,
            variants=(self.settings.variant,),
            learning_rate=learning_rate,
            epochs=epochs,
            window=WINDOW,
            train_windows=windows,
            validation_windows=self.sizes.validation_windows,
            token_budget=self.sizes.token_budget,
            checkpoint_steps=self.sizes.checkpoint_steps,
            require_improvement=False,
        )

    def data(self, windows: int, epochs: int) -> Phase1Data:
        """Cut windows of the training and validation files, and ask the teacher, or read what it said."""

        def teacher(split: str, examples: AlignedSet, layer: int) -> TeacherStates:
            folder = self.work / TEACHER / f"{examples.fingerprint()[:16]}-{layer}"
            return teacher_cache(
                self.base, examples, folder, layer=layer, token_budget=self.sizes.token_budget,
                likelihood=split == "validation", tell=_quiet,
            ).to(self.base.device)  # fmt: skip

        train, validation = ([text.read for text in part] for part in (self.split.train, self.split.validation))
        settled = fusing.settled("auto", self.work)
        config = replace(self.config(windows, 1e-2, epochs), compile_blocks=settled)
        data = prepare(self.base, self.extension, train, validation, config, teacher, tell=_quiet)
        fusing.settle(self.base.model, self.work)  # whoever goes on computes as it was begun
        return data

    def train(
        self, data: Phase1Data, config: Phase1Config, folder: Path, starts: Starts | None = None
    ) -> VariantResult:
        """Train the variant in a folder, or go on there, or read it; see `phase1_stage.train_variant`."""
        return train_variant(
            self.settings.variant, self.base, self.extension.tokens, data, config, folder,
            spell=self.extension.spell, starts=starts,
        )  # fmt: skip


def learn(bench: Bench, folder: Path, learning_rate: float, epochs: int) -> dict[str, Any]:
    """Learn the rows in `folder/rows`, with all training windows.

    Returns:
        `metrics` (one mapping an epoch, 0 first), `counts` (occurrences of each new token in the windows), `windows`,
        `tokens`, `warnings`.
    """
    data = bench.data(bench.sizes.train_windows, epochs)
    bench.tell(
        f"  {len(data.train):,} windows of {data.train.tokens:,} tokens, {epochs} epochs at rate {learning_rate:g}"
    )
    config = bench.config(bench.sizes.train_windows, learning_rate, epochs)
    result = bench.train(data, config, folder / "variant")
    counts = data.train.counts().tolist()
    found = {"windows": len(data.train), "tokens": data.train.tokens, "counts": counts, "metrics": result.metrics}
    return found | {"warnings": [*_rare(bench.extension, counts), *_worse(result.metrics)]}


def rows_of(folder: Path, epoch: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the input and head rows that `learn` left, (N, D) each, of its last epoch by default."""
    rows = read_epoch(folder / "variant" / "rows", epoch)
    return rows["input_rows"], rows["head_rows"]


def tune(bench: Bench, folder: Path, rows: Path) -> dict[str, Any]:
    """Train LoRA on top of the new rows, in `folder/lora`; `losses` are of validation, nats per token, by epoch.

    `warnings` count the texts that were cut or left out.
    """
    start = from_rows(bench.base, bench.extension, *rows_of(rows))
    config = lora_config(bench.settings, bench.base)
    only = "answer" if all(text.rendered is not None for text in bench.split.train) else "all"
    train, validation = (
        encode(_lines(part), start.tokenizer, max_length=_TEXT, loss_on=only)  # type: ignore[arg-type]
        for part in (bench.split.train, bench.split.validation)
    )
    bench.tell(f"  LoRA of rank {config.lora_rank} on {train.tokens:,} tokens, loss on {only}")
    origin = {"rows": rows.name, "model": bench.base.fingerprint}
    made = fine_tune(
        start.model, train, validation, folder / "lora", config,
        limit=start.limit, new_ids=start.new_ids, origin=origin,
    )  # fmt: skip
    seen = made.losses[made.losses.kind == "epoch"].validation_loss.tolist()
    lost = [*train.left_out("training", _TEXT), *validation.left_out("validation", _TEXT)]
    warnings = [f"LoRA: {line}" for line in lost]
    return {"losses": [float(value) for value in seen], "tokens": train.tokens, "warnings": warnings}


def lora_config(settings: AdaptSettings, base: BaseModel) -> FineTuneConfig:
    """Settings of LoRA: one stage, short texts, small steps."""
    return FineTuneConfig(
        run_name="adapt",
        model=base.name,
        seed=settings.seed,
        device=str(base.device),
        dtype=str(base.dtype).removeprefix("torch."),  # type: ignore[arg-type]
        variants=("base",),
        without_a=(),
        full=(),
        stages=("b",),
        max_length=_TEXT,
        tokens_per_step=LORA_BATCH,
        tokens_per_batch=LORA_BATCH,
        b_epochs=settings.lora_epochs,
        b_warmup=0.1,
        lora_rank=settings.lora_rank,
        lora_alpha=settings.lora_rank,
        checkpoint_every=20,
    )


def export(bench: Bench, out: Path, rows: Path, tuned: Path | None) -> dict[str, Any]:
    """Write `out/model`, in place of what a killed export left there, and return what `export_model` noted."""
    start = from_rows(bench.base, bench.extension, *rows_of(rows))
    if tuned is not None:
        model = load_stage(start.model, tuned / "lora" / "b", new_ids=start.new_ids)
        start = Start(model, start.tokenizer, start.new_ids, start.base)
    if (out / MODEL).exists():
        shutil.rmtree(out / MODEL)
    facts = dict(export_model(start, out / MODEL, pad_to=TILE))  # products with an odd number of rows are slow
    del start
    gc.collect()
    return facts


def _lines(texts: Sequence[Text]) -> list[Any]:
    """Pairs whole, since only their answers count; other texts cut at line ends, so that nothing is lost."""
    found: list[Any] = []
    for text in texts:
        if text.rendered is not None:
            found.append(text.rendered)
        else:
            found += [piece for piece in corpus.cut_at_lines(text.plain, 3 * _TEXT) if piece.strip()]
    return found


def _rare(extension: Extension, counts: Sequence[int]) -> list[str]:
    rare = [token.text for token, count in zip(extension.tokens, counts, strict=True) if count < FEW]
    if not rare:
        return []
    listed = ", ".join(map(repr, rare[:5])) + (", …" if len(rare) > 5 else "")
    return [
        f"{len(rare)} of {len(counts)} new tokens occur fewer than {FEW} times in what their rows are learned from "
        f"({listed}): expect little of them. Give more text, or ask for fewer tokens (--n)."
    ]


def _worse(metrics: Sequence[dict[str, Any]]) -> list[str]:
    first, last = metrics[0]["bpb"], metrics[-1]["bpb"]
    if last is not None and first is not None and last < first:
        return []
    return [
        f"learning did not help: bits per byte of the validation windows went from {first:.3f} (first values) to "
        f"{last or float('nan'):.3f}. Try a smaller --learning-rate or more text."
    ]


def _quiet(line: str) -> None:
    """Pass over a line that matters to whoever drives phase 1 by hand."""
