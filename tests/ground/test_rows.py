"""Epoch files and new tokens of a run: read as they were written, and named where they are missing or damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fixtures.tiny_run import build_run

from vocabx_utils import rows
from vocabx_utils.files import read_json, write_json
from vocabx_utils.runs import MissingStageError


def test_epochs_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("epoch_100", "epoch_99", "epoch_02", "epoch_1000", ".epoch_07-x", "epoch_3x"):
        (tmp_path / f"{name}.safetensors").touch()
    assert list(rows.epoch_files(tmp_path)) == [2, 99, 100, 1000]
    assert rows.epoch_files(tmp_path / "nothing") == {}


def test_an_epoch_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = {epoch: {"input_rows": torch.randn(3, 4), "head_rows": torch.randn(3, 4)} for epoch in (0, 2)}
    paths = [rows.write_epoch(tmp_path, epoch, tensors) for epoch, tensors in made.items()]
    assert [path.name for path in paths] == ["epoch_00.safetensors", "epoch_02.safetensors"]
    assert torch.equal(rows.read_epoch(tmp_path)["input_rows"], made[2]["input_rows"])
    assert torch.equal(rows.read_epoch(tmp_path, 0)["head_rows"], made[0]["head_rows"])
    with pytest.raises(MissingStageError, match=r"no epoch 1; it has \[0, 2\]. Notebook 03"):
        rows.read_epoch(tmp_path, 1)
    with pytest.raises(MissingStageError, match="no epoch; it has"):
        rows.read_epoch(tmp_path / "nothing")


def test_a_history_reads_whole_matrices_and_single_rows(tmp_path: Path) -> None:
    tiny = build_run(tmp_path, epochs=4)
    folder = tiny.run.folder / "03_phase1_training" / "mean_ce" / "rows"
    (folder / "epoch_02.safetensors").unlink()
    history = rows.read_history(tiny.run, "mean_ce")
    assert (history.epochs, history.missing, history.first, history.last) == ((0, 1, 3, 4), (2,), 0, 4)
    assert history.file() == history.file(4) == folder / "epoch_04.safetensors"
    written = rows.read_epoch(folder, 3)
    assert torch.equal(history.rows(3), written["input_rows"])
    assert torch.equal(history.row(3, "head", 1), written["head_rows"][1])
    with pytest.raises(ValueError, match="epoch 2"):
        history.rows(2)
    with pytest.raises(ValueError, match="'output'"):
        history.rows(1, "output")  # type: ignore[arg-type]
    (folder / "epoch_01.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match="notebook 03"):
        history.rows(1)


def test_an_earlier_epoch_does_not_stand_for_the_last_one_of_a_finished_variant(tmp_path: Path) -> None:
    tiny = build_run(tmp_path, epochs=4)
    variant = tiny.run.folder / "03_phase1_training" / "mean_ce"
    sealed = read_json(variant / "provenance.json")
    sealed["key"]["settings"] = {"epochs": 3, "restart_epochs": 1}
    write_json(variant / "provenance.json", sealed)
    history = rows.read_history(tiny.run, "mean_ce")
    assert history.file() == variant / "rows" / "epoch_04.safetensors"
    history.file().unlink()
    history = rows.read_history(tiny.run, "mean_ce")
    lost = r"trained for 4 epochs, and the last file there is of epoch 3\. Put epoch_04.* run notebook 03"
    with pytest.raises(MissingStageError, match=lost):
        history.file()
    with pytest.raises(MissingStageError, match=lost):
        rows.read_epoch(variant / "rows")
    assert history.file(3).exists()  # asked for by its number


def test_missing_stages_name_the_notebook(tmp_path: Path) -> None:
    tiny = build_run(tmp_path, variants=())
    with pytest.raises(MissingStageError, match="03_phase1_training"):
        rows.read_history(tiny.run, "mean_ce")
    with pytest.raises(MissingStageError, match="03_phase1_training"):
        rows.read_histories(tiny.run)
    path = tiny.run.folder / "01_tokenizer_extension" / "extension" / "tokens.json"
    write_json(path, {"tokens": [{"id": 5, "text": "a", "raw": "61", "subtokens": [1], "count": 1}, {"id": 9}]})
    with pytest.raises(ValueError, match="id, text, raw, subtokens and count"):
        rows.read_tokens(tiny.run)
    token = {"text": "a", "raw": "61", "subtokens": [1, 2], "count": 1}
    write_json(path, [{"id": 5, **token}, {"id": 7, **token}])
    with pytest.raises(ValueError, match="not consecutive"):
        rows.read_tokens(tiny.run)
    path.unlink()
    with pytest.raises(MissingStageError, match="01_tokenizer_extension"):
        rows.read_tokens(tiny.run)
