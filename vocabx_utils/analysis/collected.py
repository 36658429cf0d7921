"""One tidy table of many runs: a row for each measured value, with the settings of its run in columns beside it.

The values are those that the stages wrote, the settings those that `vocabx run` noted in `timings.json`. Another
notebook's file becomes part of the table by one more reader.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from vocabx_utils import files
from vocabx_utils.paths import STAGES, show_path
from vocabx_utils.runs import MissingStageError

KEYS = ("run", "profile", "model", "seed", "stage", "variant", "part", "epoch", "metric")
"""Columns that say what a `value` is: the run, the notebook, the variant, a part such as a text set, and the epoch."""

_COMMON = ("run_name", "model", "seed", "device", "dtype")
_Facts = Mapping[str, Any]
_Values = Iterator[tuple[dict[str, Any], Mapping[str, Any]]]  # keys, and values by metric


def collect_runs(folders: Sequence[Path]) -> pd.DataFrame:
    """Collect what finished notebooks of runs have measured.

    Returns:
        Columns `KEYS`, `value`, and one for each parameter, such as `03.learning_rate`, that some run was given or that
        differs between the runs that have it. Runs keep the given order, everything else that of the series.

    Raises:
        MissingStageError: a folder holds no run that `vocabx run` has made.
        ValueError: two runs have one name.
    """
    noted = {folder.name: _read_notes(folder) for folder in folders}
    if len(noted) < len(folders):
        raise ValueError(f"expected runs of different names, got {', '.join(sorted(f.name for f in folders))}.")
    rows = [row for folder in folders for row in _rows(folder, noted[folder.name])]
    table = pd.DataFrame(rows, columns=[*KEYS, "value"])
    settings = {name: _flat(notes, "settings") for name, notes in noted.items()}
    given = {key for notes in noted.values() for key in _flat(notes, "parameters")}
    for key in sorted({key for found in settings.values() for key in found}):
        spelled = {name: _plain(found.get(key)) for name, found in settings.items()}
        if key.split(".")[1] not in _COMMON and (
            key in given or len({str(v) for v in spelled.values() if v is not None}) > 1
        ):
            table[key] = table["run"].map(spelled)
    return table.astype({"epoch": "Int64", "seed": "Int64", "value": "float64"})


def _read_notes(folder: Path) -> dict[str, _Facts]:
    path = folder / "timings.json"
    if not path.is_file():
        raise MissingStageError(
            f"{show_path(path)} is missing: expected the folder of a run that `vocabx run` has made."
        )
    return dict(files.read_json(path))


def _flat(notes: Mapping[str, _Facts], key: str) -> dict[str, Any]:
    """Parameters of all notebooks of a run, such as `03.epochs`; older runs noted only those that were given."""
    found = ((stage[:2], facts.get(key, facts["parameters"])) for stage, facts in notes.items())
    return {f"{number}.{name}": value for number, values in found for name, value in values.items()}


def _plain(value: Any) -> Any:
    """A list as text: a column of a table holds one kind of value."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _rows(folder: Path, notes: Mapping[str, _Facts]) -> Iterator[dict[str, Any]]:
    for stage in (stage for stage in STAGES if stage in notes):
        facts = notes[stage]
        settings = facts.get("settings", facts["parameters"])
        common = {"run": folder.name, "profile": Path(facts["profile"]).stem, "model": settings.get("model")}
        common |= {"stage": stage, "seed": settings.get("seed", 0), "variant": "", "part": ""}
        read = _READERS.get(stage, lambda *_: iter(()))
        measured = [({}, {"seconds": facts["seconds"], "peak_mib": facts["peak_mib"]}), *read(folder / stage, settings)]
        for keys, values in measured:
            for metric, value in values.items():
                if isinstance(value, int | float) and not isinstance(value, bool) and not pd.isna(value):
                    yield common | keys | {"metric": metric, "value": float(value)}


# --- what each notebook leaves -----------------------------------------------------------------------------


def _gains(folder: Path, _settings: _Facts) -> _Values:
    for line in read_rows(folder / "gains.csv"):
        yield {"part": line.pop("type")}, line


def _alignment(folder: Path, _settings: _Facts) -> _Values:
    path = folder / "statistics.json"
    for split, counts in (files.read_json(path)["splits"] if path.exists() else {}).items():
        yield {"part": split}, counts


def _phase1(folder: Path, settings: _Facts) -> _Values:
    """Validation by variant and epoch; variants that the run was asked for no longer are left out."""
    wanted = settings.get("variants")
    for place in sorted(path.parent for path in folder.glob("*/provenance.json")):
        if (place / "metrics.jsonl").exists() and (wanted is None or place.name in wanted):
            for line in files.read_jsonl(place / "metrics.jsonl"):
                yield {"variant": place.name, "epoch": line.pop("epoch")}, line


def _stages(folder: Path, _settings: _Facts) -> _Values:
    for line in read_rows(folder / "stages.csv"):
        yield {"variant": line.pop("variant"), "part": line.pop("stage")}, line


def _scores(folder: Path, _settings: _Facts) -> _Values:
    for line in read_rows(folder / "bits_per_byte.csv"):
        yield {"variant": line["model"], "part": line["texts"]}, {key: line[key] for key in ("bits_per_byte", "n")}
    for model, benchmark, passed, problems in read_passes(read_rows(folder / "table.csv")):
        yield {"variant": model, "part": benchmark}, {"passed": passed, "problems": problems}


def _directions(folder: Path, _settings: _Facts) -> _Values:
    for line in read_rows(folder / "cosines.csv"):
        keys = {"variant": line["variant"], "part": f"{line['matrix']}, {line['position']}", "epoch": line["epoch"]}
        yield keys, {"cosine": line["mean"]}


def read_passes(rows: Iterable[Mapping[Any, Any]]) -> Iterator[tuple[str, str, int, int]]:
    """Yield model, benchmark, problems passed and answered from rows of notebook 05's `table.csv`, cell by cell."""
    for row in rows:
        for column, text in row.items():
            if column.endswith(" passed") and isinstance(text, str) and "/" in text:
                passed, problems = text.split("/")
                yield row["model"], column.removesuffix(" passed"), int(passed), int(problems)


def read_rows(path: Path) -> list[dict[Any, Any]]:
    """Read a table that a notebook left, a mapping for each row; without the file there are none."""
    return pd.read_csv(path).to_dict("records") if path.exists() else []


_READERS: dict[str, Callable[[Path, _Facts], _Values]] = {
    "01_tokenizer_extension": _gains,
    "02_alignment": _alignment,
    "03_phase1_training": _phase1,
    "04_fine_tuning": _stages,
    "05_benchmark_evaluation": _scores,
    "06_mechanistic_analysis": _directions,
}
