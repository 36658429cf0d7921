"""Open the explorer of a run from its files, with the original rows that its own new rows were trained beside.

Two models of equal width would give cosines that look like any others, so the rows of another model are never taken:
phase 1 writes the fingerprint of its base model beside the rows, and here it has to be that of the original rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import pandas as pd
from torch import Tensor

from vocabx_utils.analysis.divergence import PairedText
from vocabx_utils.analysis.explorer import Explorer
from vocabx_utils.files import read_json
from vocabx_utils.models import BaseModel, load_base_model
from vocabx_utils.paths import STAGES, runs_root, show_path, stage_name
from vocabx_utils.rows import Matrix, RowHistory, read_histories, read_tokens
from vocabx_utils.runs import MissingStageError, Run, read_provenance
from vocabx_utils.tokenizer_files import read_tokenizer

_WITHOUT_PAIRS = np.empty((0, 2), dtype=np.int64)


def explorable_runs() -> list[str]:
    """List the runs with rows of phase 1, those first whose notebook 06 was finished last."""
    trained = {path.parents[2].name for path in runs_root().glob(f"*/{STAGES[3]}/*/provenance.json")}
    return sorted(trained, key=lambda name: (_finished(Run(name, runs_root() / name), "06"), name), reverse=True)


def open_explorer(run: Run, base: BaseModel | None = None) -> Explorer:
    """Open the explorer of a run, with KL by position where notebook 06 measured it for these very rows.

    Args:
        base: a loaded model, whose rows are taken if the run was trained on it. For another run, or none, the run's
            own model is loaded by the name that notebook 01 noted, and let go again; its two matrices stay.

    Raises:
        ValueError: the run was trained on another model than can be found, or does not say on which.
        MissingStageError: notebooks 01 or 03 have not been run.
        ModelError: the run's model cannot be loaded here.
    """
    histories, tokens = read_histories(run), read_tokens(run)
    texts, kl_tables = _measured(run, histories)
    tokenizer = read_tokenizer(str(run.require("01", "extension/extended")))
    original = _original_rows(run, histories, base)

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids)))

    return Explorer(tokens, histories, original, decode, texts=texts, kl_tables=kl_tables, run=run.name)


def _original_rows(run: Run, histories: Mapping[str, RowHistory], base: BaseModel | None) -> Mapping[Matrix, Tensor]:
    keys = [read_json(path) for name in histories if (path := run.stage("03", name) / "key.json").exists()]
    marks = {(str(key.get("model")), str(key.get("dtype"))) for key in keys}
    if len(keys) < len(histories) or len(marks) != 1:
        found = "on more than one model" if len(marks) > 1 else "on a model that it does not name"
        raise ValueError(
            f"Run {run.name!r} has variants trained {found}, so its rows have no one matrix to be seen in."
        )
    [(fingerprint, dtype)] = marks
    if base is not None and base.fingerprint == fingerprint:
        return _matrices(base)
    noted = run.require("01", "key.json")
    source = read_json(noted).get("model")
    if not source:
        raise ValueError(f"{show_path(noted)} names no model, so the original rows of run {run.name!r} are not known.")
    loaded, rows = _load(str(source), dtype.removeprefix("torch."))
    if loaded != fingerprint:
        raise ValueError(
            f"Run {run.name!r} was trained on a model with the fingerprint {fingerprint}; {source!r}, which its "
            f"notebook 01 names, has {loaded} now. Cosines to rows of another model would mean nothing, so none are "
            "shown. Put the model back, or train the run again."
        )
    return rows


@lru_cache(maxsize=2)
def _load(source: str, dtype: str) -> tuple[str, Mapping[Matrix, Tensor]]:
    """Return fingerprint and matrices of a model. The fingerprint depends on the dtype, hence that of the training."""
    base = load_base_model(source, device="cpu", dtype=dtype)
    return base.fingerprint, _matrices(base)


def _matrices(base: BaseModel) -> dict[Matrix, Tensor]:
    return {"input": base.input_rows[: base.vocab_size], "head": base.head_rows[: base.vocab_size]}


def _measured(
    run: Run, histories: Mapping[str, RowHistory]
) -> tuple[list[PairedText], dict[tuple[str, int], pd.DataFrame]]:
    """Read windows and KL tables of notebook 06, but no KL of rows that were trained again since."""
    folder = run.folder / STAGES[6]
    if not (folder / "measured.csv").exists() or not (folder / "windows.json").exists():
        return [], {}
    ids = read_json(folder / "windows.json")
    texts = [PairedText(tuple(t["original_ids"]), tuple(t["extended_ids"]), _WITHOUT_PAIRS) for t in ids]
    current = {name for name in histories if _finished(run, "03", name) <= _finished(run, "06")}
    tables = {
        (str(variant), int(str(epoch))): part.reset_index(drop=True)
        for (variant, epoch), part in pd.read_csv(folder / "measured.csv").groupby(["variant", "epoch"])
        if variant in current
    }
    return texts, tables


def _finished(run: Run, stage: str, variant: str = "") -> str:
    """Tell when a stage or variant was finished, as text that sorts by time; nothing where it was not."""
    try:
        return str(read_provenance(run.folder / stage_name(stage) / variant).get("finished", ""))
    except MissingStageError:
        return ""
