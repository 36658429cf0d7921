"""Run folders: keys, finished work, missing stages, revisions."""

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


def test_work_with_another_key_is_replaced_only_where_that_is_asked_for(tmp_path, monkeypatch):
    folder = tmp_path / "03"
    runs.claim(folder, {"epochs": 1})
    (folder / "rows").mkdir()
    (folder / "rows" / "a.bin").write_bytes(b"1")
    runs.finish(folder)
    monkeypatch.setenv(runs.REPLACE, "1")
    assert runs.claim(folder, {"epochs": 1}) == "finished"
    assert (folder / "rows" / "a.bin").exists()
    with pytest.raises(runs.KeyMismatchError):  # whoever does not write does not replace
        runs.claim(folder, {"epochs": 2}, writes=False)
    assert runs.claim(folder, {"epochs": 2}) == "new"
    assert [path.name for path in folder.iterdir()] == ["key.json"]
    runs.finish(folder)
    monkeypatch.delenv(runs.REPLACE)
    with pytest.raises(runs.KeyMismatchError, match="epochs: 2 there, 3 now"):
        runs.claim(folder, {"epochs": 3})
