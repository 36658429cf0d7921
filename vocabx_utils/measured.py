"""What the scripts in `tests/bench` measured at full size: folders of `results`.

Nothing is there where the package was installed without a checkout; readers then find nothing, and say so.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vocabx_utils import files
from vocabx_utils.intervals import CONFIDENCE, Interval, ratio_interval
from vocabx_utils.resampling import paired_bootstrap

_THESIS_TOKENS = 800  # N of every measurement that does not name another number
RECIPES = {
    "td": "Token Distillation", "hidden": "hidden MSE", "kl": "KL last", "ce": "CE", "kl_ce": "KL last + λ CE",
    "r1": "R1: KL last + 0.03 CE, low rates", "r2": "R2: R1, ends weighed", "r3": "R3: R2, rows averaged",
    "r4": "R4: head rows fitted at the end",
    "kl_hidden": "KL last + hidden MSE", "equal": "tokens seen equally often", "fade": "λ fading",
    "sampled": "ends written by the teacher", "texts": "whole texts",
}  # fmt: skip
"""What the families of runs in `results/recipes` are called."""
REFERENCE_RECIPES = ("td", "hidden", "kl", "ce", "kl_ce")
"""Those that a new recipe has to lead."""
RECIPE_COLUMNS = {"kl_identical": "KL identical", "kl_last": "KL at merged spans", "bpb": "bits per byte"}
"""What the measures of a run in `results/recipes` are called."""
DOMAIN_ARMS = {
    "base": "base", "base_lora": "base + LoRA", "words": "words", "words_lora": "words + LoRA",
    "both": "words and phrases", "both_lora": "words and phrases + LoRA", "words_untrained": "words, untrained",
    "words_thesis": "words, thesis's objective", "words_lora_rows": "words + LoRA, rows moving",
    "both_lora_rows": "words and phrases + LoRA, rows moving",
}  # fmt: skip
"""What the arms in `results/domains` are called, in the order in which they are measured."""
DOMAIN_TEXTS = {
    "german": "German manual pages", "swedish": "Swedish manual pages", "headers": "C headers",
    "python": "Python packages",
}  # fmt: skip
"""What the texts of measurements are called."""
RECIPE_MODELS = {"qwen": "Qwen2.5-Coder-0.5B", "smollm2": "SmolLM2-135M"}
"""What the models of settings in `results/recipes` are called, without `-Instruct`, which all have."""
_SPEED = ("speed_gain", "speed_range", "base_speed", "speed")
_CE_LINE = re.compile(r"mean_kl_last(?:_ce([\d.]+))?")


def read_bench(folder: Path) -> list[dict[str, Any]]:
    """Read what `tests/bench/anchors.py` measured, one mapping a variant; empty where there is nothing."""
    rows = _read_lines(folder)
    for path in sorted(folder.glob("*.json")):
        content = files.read_json(path)
        rows += content if isinstance(content, list) else content.get("variants", [])
    return [row for row in rows if "name" in row and "kl_last" in row]


def by_setting(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Group measured variants by what may be compared: model, corpus, schedule, strategy and N.

    By setting, such as `SmolLM2-135M-Instruct, python` or `..., thesis schedule, N = 100`, rows by variant; what is as
    usual (schedule `ours`, added tokens, N = 800) is not named. Untrained variants know no schedule: they stand beside
    those with the same first values under every schedule.
    """
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    untrained = [row for row in rows if row["variant"].endswith("_untrained")]
    for row in rows:
        found.setdefault(_setting(row, row["schedule"]), {})[row["variant"]] = row
    for row in untrained:
        scheduled = found.get(_setting(row, "thesis"), {})
        if any(name.startswith(row["variant"].removesuffix("untrained")) for name in scheduled):
            scheduled.setdefault(row["variant"], row)
    return found


def _setting(row: Mapping[str, Any], schedule: str) -> str:
    unusual = {
        f"{schedule} schedule": schedule != "ours",
        str(row["strategy"]): row["strategy"] != "added",
        f"N = {row['n']}": row["n"] != _THESIS_TOKENS,
    }
    return ", ".join([row["model"], row["corpus"], *(words for words, said in unusual.items() if said)])


def ce_line(rows: Mapping[str, Mapping[str, Any]]) -> list[tuple[float, float, float]]:
    """Return lambda, KL at the last subtoken (nats), bits per byte of the variants that differ in lambda alone.

    They begin with mean rows and learn by KL at the last subtoken plus lambda times CE.
    """
    named = ((_CE_LINE.fullmatch(name), row) for name, row in rows.items())
    return sorted((float(found[1] or 0), float(row["kl_last"]), float(row["bpb"])) for found, row in named if found)


def sweep(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, dict[str, float]]]:
    """Put measurements with several N beside each other, for claim C12: by model and corpus, by N.

    Each holds `share` of new tokens, KL at the last subtoken `untrained` and `trained`, and `kept`, the share of it
    that KL training removes; `untaught` is the share of the N tokens without a training example. One N alone makes no
    sweep and is left out.
    """
    found: dict[str, dict[int, Mapping[str, Mapping[str, Any]]]] = {}
    for variants in by_setting([row for row in rows if row["schedule"] == "ours"]).values():
        row = next(iter(variants.values()))
        found.setdefault(_setting({**row, "n": _THESIS_TOKENS}, "ours"), {})[int(row["n"])] = variants
    return _gains(found, "mean_untrained", "mean_kl_last")


def read_phrases(folder: Path) -> list[dict[str, Any]]:
    """Read what was measured on tokens that cross words: `results/phrases/*.jsonl`, one record a run.

    A record holds `model`, `text`, `strategy` (`merges`, `phrases`, `both`, or another one of docs/phrases.md), `n`,
    `objective` (a name of a variant, from mean rows also without `mean_`), `dropout`, `new_share` and the metrics of
    its last epoch, such as `kl_identical`, `kl_last`, `bpb` and `base_bpb`.
    """
    return _read_lines(folder)


def _read_lines(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("*.jsonl")) for row in files.read_jsonl(path)]


def sweep_phrases(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, dict[str, float]]]:
    """Put measurements of `read_phrases` with several N beside each other, as `sweep` does, without phrase dropout.

    Each strategy is a line of its own in a setting: at the same share of new tokens, words and phrases differ in more.
    """
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for row in rows:
        if not row.get("dropout"):
            title = f"{row['model']}, {row['text']}, {row['strategy']}"
            variants = found.setdefault(title, {}).setdefault(int(row["n"]), {})
            variants[str(row["objective"]).removeprefix("mean_")] = row
    return _gains(found, "untrained", "kl_last")


def _gains(
    found: Mapping[str, Mapping[int, Mapping[str, Mapping[str, Any]]]], start: str, end: str
) -> dict[str, dict[int, dict[str, float]]]:
    """What KL training gains by setting and N, where both ends were measured with several N."""
    swept = {
        title: {n: _gain(sizes[n][start], sizes[n][end]) for n in sorted(sizes) if {start, end} <= sizes[n].keys()}
        for title, sizes in found.items()
    }
    return {title: gains for title, gains in swept.items() if len(gains) > 1}


def _gain(start: Mapping[str, Any], end: Mapping[str, Any]) -> dict[str, float]:
    """What KL training removes of the untrained KL, and how much text and how many tokens took part."""
    return {
        "share": end["new_share"],
        "untrained": start["kl_last"],
        "trained": end["kl_last"],
        "kept": 1 - end["kl_last"] / start["kl_last"],
        "untaught": end.get("without_examples", 0) / end["n"],
    }


def read_recipes(folder: Path) -> tuple[dict[str, list[dict[str, Any]]], dict[str, Any]]:
    """Read what `tests/bench/recipes.py` measured: by setting the runs of its sweep, and the verdict on finalists.

    A run holds `family`, `settings`, `kl_identical`, `kl_last`, `bpb`, `base_bpb` (absent where it failed, with an
    `error`). The verdict holds by setting `rows`: estimate and limits of each column. Both are empty where nothing is.
    """
    sweeps = {path.stem: files.read_jsonl(path) for path in sorted(folder.glob("*.jsonl"))}
    path = folder / "verdict.json"
    return sweeps, files.read_json(path) if path.exists() else {}


def recipe_setting(setting: str) -> tuple[str, str]:
    """Return text and model of a setting in words; what is not known stays as it is.

    Example:
        >>> recipe_setting("qwen-headers")
        ('C headers', 'Qwen2.5-Coder-0.5B')
    """
    model, _, text = setting.partition("-")
    return DOMAIN_TEXTS.get(text, text), RECIPE_MODELS.get(model, model)


def read_domains(folder: Path) -> list[dict[str, Any]]:
    """Read what `tests/bench/domains.py` measured, `results/domains/*.jsonl`: a record for each arm and N, in order.

    A record holds `arm` (a name of `DOMAIN_ARMS`), `n` (0 where there are no new tokens), `model`, `text`, `saved`,
    `tokens_per_1000_bytes`, `bpb`, KL from the frozen base in nats (`kl_identical`, `kl_last`), `phase1` and `lora`
    (what each training took, or null). Added here: from `speed/`, where it was read, `speed_gain`, `speed_range` and
    the reading in the middle of base and arm (`base_speed`, `speed`), and `speed_of_lora`, characters a second as a
    share of those of the base with LoRA in the same rounds: median, lowest and highest; `above_base` and `above_lora`,
    the differences in bits per byte to these arms on the same documents, as estimate, low and high, or null where that
    arm is not there; likewise `above_resting`, of an arm whose new rows move with LoRA against the arm of the same N
    whose rows rest.
    """
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.jsonl")):
        rows = [row for row in files.read_jsonl(path) if row["seed"] == 0]
        arms = {(row["arm"], row["n"]): row for row in rows}
        read = folder / "speed" / path.name
        speeds = {(row["arm"], row["n"]): row for row in (files.read_jsonl(read) if read.exists() else [])}
        for row in sorted(rows, key=lambda row: (row["n"], list(DOMAIN_ARMS).index(row["arm"]))):
            moving = row["arm"].endswith("_rows")
            resting = arms.get((row["arm"].removesuffix("_rows"), row["n"])) if moving else None
            others = {"above_base": arms.get(("base", 0)), "above_lora": arms.get(("base_lora", 0))}
            gaps = {name: _above(row, other) for name, other in (others | {"above_resting": resting}).items()}
            found.append(row | gaps | _speed_of(speeds.get((row["arm"], row["n"])), speeds.get(("base_lora", 0))))
    return found


def _speed_of(read: Mapping[str, Any] | None, lora: Mapping[str, Any] | None) -> dict[str, Any]:
    """What was read of an arm's speed, and the same beside the base with LoRA where both took turns."""
    if read is None:
        return {}
    told = {key: read[key] for key in _SPEED}
    if lora and "speed_gains" in read and read.get("reading", 0) == lora.get("reading", 0):
        # in each round both were divided by the same reading of the base, which cancels
        shares = [own / other for own, other in zip(read["speed_gains"], lora["speed_gains"], strict=True)]
        told["speed_of_lora"] = [statistics.median_low(shares), min(shares), max(shares)]
    return told


def _above(row: Mapping[str, Any], other: Mapping[str, Any] | None) -> list[float] | None:
    """Bits per byte of a row above those of another one, with the paired interval over documents."""
    if other is None:
        return None
    gap = paired_bootstrap(row["bits"], other["bits"], weights=row["bytes"])
    return [gap.estimate, gap.low, gap.high]


def read_finetuning(folder: Path) -> dict[str, dict[str, Any]]:
    """Read what `tests/bench/finetune.py` measured: finished variants by model; empty where there is nothing."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(folder.glob("*.json")):
        variants = files.read_json(path).get("variants", {})  # a file of throughputs has none
        finished = {name: variant for name, variant in variants.items() if "observed" in variant}
        if finished:
            found[path.stem] = finished
    return found


def bits_gap(
    first: Mapping[str, Mapping[str, Any]],
    second: Mapping[str, Mapping[str, Any]],
    name: str,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Compute bits per byte of one variant minus another's after its last stage, paired by text.

    Student's interval with the jackknife's standard error: with few texts a percentile bootstrap would be too narrow.

    Args:
        first, second: what was observed of each, by stage: `bits` and `bytes`, a list of one value a text by text set.
        name: of the text set, such as `domain`.

    Raises:
        ValueError: no text, or the two did not score the same texts.
    """
    ends = [list(observed.values())[-1] for observed in (first, second)]
    (one, two), (sizes, others) = ([end[key][name] for end in ends] for key in ("bits", "bytes"))
    if not len(one) == len(two) == len(sizes) or not len(sizes) or list(sizes) != list(others):
        raise ValueError(
            f"{len(one)} and {len(two)} scores for {len(sizes)} and {len(others)} texts; expected one of each for the "
            "same texts"
        )
    return ratio_interval(np.subtract(one, two), sizes, confidence)


def stage_table(variants: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """Tabulate what each stage cost, and what was measured before the first and after each.

    By variant and stage, "start" first: steps and tokens, parameters that learn (`trainable`), seconds, tokens/s, peak
    GB, validation loss (nats per token), and bits per byte by text set. The variants hold stages, epochs, observations
    by name, as `read_finetuning` and `FineTuned.to_dict` return them.
    """
    rows: dict[tuple[str, str], dict[str, float | None]] = {}
    for name, variant in variants.items():
        costs = {stage["stage"]: stage for stage in variant["stages"]}
        first: Mapping[str, Any] = next(iter(variant["epochs"]), {})
        for key, seen in variant["observed"].items():
            stage = costs.get(key, {})
            rows[name, key] = {
                "steps": stage.get("steps"),
                "tokens": stage.get("tokens"),
                "trainable": stage.get("trainable"),
                "seconds": stage.get("seconds"),
                "tokens/s": stage["tokens"] / stage["seconds"] if stage else None,
                "peak GB": stage["peak_bytes"] / 1e9 if stage else None,
                "validation loss": stage["validation_loss"] if stage else first.get("validation_loss"),
                **seen["bits_per_byte"],
            }
    return pd.DataFrame.from_dict(rows, orient="index", dtype=float).rename_axis(["variant", "stage"])
