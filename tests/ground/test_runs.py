"""Run folders: keys, finished work, missing stages, revisions."""

import os
import subprocess

import pytest
import torch

from vocabx_utils import runs


def test_claim_tells_new_resume_and_finished_apart(tmp_path):
    key = {"lr": 1e-3, "texts": ("a", "b")}
    assert runs.claim(tmp_path, key) == "new"
    assert runs.claim(tmp_path, key) == "resume"
    runs.finish(tmp_path, note="done")
    assert runs.claim(tmp_path, key) == "finished"
    provenance = runs.read_provenance(tmp_path)
    assert provenance["note"] == "done"
    assert provenance["key"]["lr"] == 1e-3
    assert provenance["versions"]["torch"] == torch.__version__.split("+")[0] or provenance["versions"]["torch"]


def test_claim_with_another_key_names_what_differs(tmp_path):
    runs.claim(tmp_path, {"lr": 1e-3, "seed": 0})
    with pytest.raises(runs.KeyMismatchError, match=r"lr: 0\.001 there, 0\.01 now"):
        runs.claim(tmp_path, {"lr": 1e-2, "seed": 0})


def test_missing_stage_names_notebook_and_command():
    run = runs.open_run("quick")
    with pytest.raises(runs.MissingStageError, match=r"01_tokenizer_extension makes it.*--only 01 --run-name quick"):
        run.require("01", "extension")


def test_variants_lists_only_finished_ones():
    run = runs.open_run("quick")
    for variant in ("b", "a", "torn"):
        runs.claim(run.stage("03", variant), {})
    for variant in ("b", "a"):
        runs.finish(run.stage("03", variant))
    assert run.variants("3") == ["a", "b"]


def test_epochs_are_in_the_order_of_their_numbers(tmp_path):
    for name in ("epoch_100", "epoch_99", "epoch_02", "epoch_1000", ".epoch_07-x", "epoch_3x"):
        (tmp_path / f"{name}.safetensors").touch()
    assert list(runs.epoch_files(tmp_path)) == [2, 99, 100, 1000]
    assert runs.epoch_files(tmp_path / "nothing") == {}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give a folder away")
def test_a_checkout_of_another_user_has_a_revision(tmp_path, monkeypatch):
    """git refuses to read it ("dubious ownership"), as in containers that mount the host's checkout."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.delenv("SUDO_UID", raising=False)
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        subprocess.run([*git, *words], check=True)
    for path in (folder, *folder.rglob("*")):
        os.chown(path, 12345, 12345)
    refused = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    assert "dubious ownership" in refused.stderr
    monkeypatch.setattr(runs, "project_root", lambda: folder)
    runs.git_revision.cache_clear()
    try:
        assert len(runs.git_revision() or "") == 12
    finally:
        runs.git_revision.cache_clear()
