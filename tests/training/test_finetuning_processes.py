"""Two processes give the loss curve of one, data parallel and sharded (on CPU, through gloo)."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from training.test_finetuning import TESTS, tune

from vocabx_utils import files

CHILD = """
import sys
sys.path[:0] = {tests!r}
from pathlib import Path
import torch
from training.test_finetuning import tune
options = dict(stages=("a", "b"), a_epochs=2, checkpoint_every=2, rows_in_b=True)
tune(Path({folder!r}) / "parallel", **options)
for _ in range(2):
    tune(Path({folder!r}) / "sharded", sharded=True, **options)
torch.distributed.destroy_process_group()
"""


@pytest.fixture(scope="module")
def curves(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    script = folder / "child.py"
    script.write_text(CHILD.format(tests=TESTS, folder=str(folder)))
    launch = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    launch += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "VOCABX_PROGRESS": "plain"}
    done = subprocess.run([*launch, str(script)], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[:6000]
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
