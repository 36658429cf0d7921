"""Two processes give the loss curve of one (on CPU, through gloo); killed and continued equals unbroken."""

from __future__ import annotations

import pytest
import torch
from forked import run_forked
from training.finetuning_worker import tune_and_die, tune_both_ways
from training.test_finetuning import BROKEN, tune

from vocabx_utils import files


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    log = folder / "log"
    assert run_forked(tune_both_ways, folder, log=log, count=2) == [0, 0], log.read_text()[:6000]
    single = tune(folder / "single", stages=("a", "b"), a_epochs=2, checkpoint_every=2, rows_in_b=True)[2]
    return folder, single


@pytest.mark.parametrize("way", ["parallel", "sharded"])
def test_loss_curve_of_two_processes_equals_one(curves, way):
    folder, single = curves
    records = [record for key in "ab" for record in files.read_jsonl(folder / way / key / "losses.jsonl")]
    for column in ("loss", "validation_loss"):
        here = [record.get(column) for record in records]
        there = single.losses[column].tolist() if column in single.losses else []
        assert len(here) == len(there)
        for one, other in zip(here, there, strict=True):
            if one is not None:
                assert one == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("way", ["parallel", "sharded"])
def test_stored_tensors_agree(curves, way):
    folder, _ = curves
    for name in ("a/embeddings", "b/adapter/adapter_model", "b/adapter/new_rows"):
        one, other = (files.read_tensors(folder / w / f"{name}.safetensors") for w in (way, "single"))
        assert one.keys() == other.keys()
        for key in one:
            torch.testing.assert_close(one[key], other[key], rtol=1e-3, atol=1e-4)


def test_killed_and_continued_equals_unbroken(tmp_path):
    unbroken = tune(tmp_path / "unbroken", **BROKEN)[2]
    broken = tmp_path / "broken"
    log = tmp_path / "log"
    # in the middle of stage a, again, then later
    assert run_forked(tune_and_die, broken, 5, 3, 9, log=log) == [0], log.read_text()[-3000:]
    assert not (broken / "provenance.json").exists()
    continued = tune(broken, **BROKEN)[2]
    columns = ["kind", "stage", "epoch", "step", "loss", "validation_loss"]
    assert continued.losses[columns].equals(unbroken.losses[columns])
    for name in ("a/embeddings", "b/adapter/adapter_model", "c2/blocks"):
        one, other = (files.read_tensors(folder / f"{name}.safetensors") for folder in (broken, tmp_path / "unbroken"))
        assert all(torch.equal(one[key], other[key]) for key in one)
