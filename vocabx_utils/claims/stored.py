"""Verdicts from what was measured at full size and is kept in `results`, by the same judges as those of a run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vocabx_utils import measured
from vocabx_utils.claims import losses, rows, tuning
from vocabx_utils.claims.verdict import Verdict
from vocabx_utils.intervals import Answer

_TUNED = {"tuned": "expanded a+b", "without_a": "expanded b", "full": "expanded a+c"}  # names in results/finetune


def judge_stored(results: Path) -> list[Verdict]:
    """Judge the claims that the stored results of phase 1 and of fine-tuning can answer, in their order.

    One number a run makes the settings the sample, that is pairs of a model and a corpus; fine-tuning keeps a value for
    each text. What is not there is said to be "not measured here".

    Args:
        results: folder with `phase1/*.jsonl`, `phase1/small/*.jsonl`, `phrases/*.jsonl` and `finetune/*.json`, such as
            `results`.
    """
    lines = measured.read_bench(results / "phase1")
    full = {title: found for title, found in measured.by_setting(lines).items() if "N =" not in title}
    small = measured.by_setting(measured.read_bench(results / "phase1" / "small"))
    curves = {title: {name: row["curve"] for name, row in found.items()} for title, found in full.items()}
    last, few_pairs = (
        {title: {name: [row] for name, row in found.items()} for title, found in some.items()} for some in (full, small)
    )
    directions = _directions(full)
    verdicts = [
        losses.judge_c1(curves),
        losses.judge_c2(curves),
        losses.judge_c3(curves),
        rows.judge_c4(directions, "settings"),
        rows.judge_c5(directions, sample="settings"),
        losses.judge_c7(last),
        *_judge_tuned(measured.read_finetuning(results / "finetune")),
        losses.judge_c12(measured.sweep(lines) | measured.sweep_phrases(measured.read_phrases(results / "phrases"))),
        losses.judge_c17(last | few_pairs),
    ]
    return sorted(verdicts, key=lambda verdict: int(verdict.claim[1:]))


def _directions(settings: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> rows.Ends:
    """Mean cosines of the input rows before and after training, by variant: one line a setting."""
    cosines: dict[str, list[Any]] = {}
    for found in settings.values():
        for name, row in found.items():
            cosines.setdefault(name, []).append(row["cosines"])

    def side(epochs: list[Any], at: int) -> rows.Places:
        return {place: [lines[at]["input"][place] for lines in epochs] for place in ("first", "last")}

    return {name: (side(epochs, 0), side(epochs, -1)) for name, epochs in cosines.items()}


def _judge_tuned(models: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[Verdict]:
    """C8 and C9 of the models that were fine-tuned; several decide only where they agree."""
    if not models:
        return list(tuning.judge_tuned({}, **_TUNED))
    told = []
    for found in zip(*(tuning.judge_tuned(variants, **_TUNED) for variants in models.values()), strict=True):
        answers: set[Answer] = {verdict.answer for verdict in found}
        named = list(zip(models, found, strict=True))
        told.append(
            Verdict(
                found[0].claim,
                answers.pop() if len(answers) == 1 else "cannot tell",
                "; ".join(f"{title}, {verdict.reason}" for title, verdict in named),
                {f"{title}, {part}": gap for title, verdict in named for part, gap in verdict.effects.items()},
                {f"{title}, {part}": answer for title, verdict in named for part, answer in verdict.parts.items()},
            )
        )
    return told
