"""A run is explored beside the rows of the model that it was trained on, or not at all."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from fixtures.tiny_series import write_series
from tiny import tiny_decoder

from vocabx_utils import files, runs
from vocabx_utils.analysis import explorer_runs
from vocabx_utils.analysis.explorer_runs import explorable_runs, open_explorer
from vocabx_utils.analysis.explorer_view import Panel, explore
from vocabx_utils.analysis.similarity import cosine
from vocabx_utils.models import BaseModel, load_base_model


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path / "runs"))
    explorer_runs._load.cache_clear()


def sealed(folder: Path, name: str, model: Path) -> tuple[runs.Run, BaseModel]:
    """A tiny run whose variants say which model they were trained on."""
    write_series(folder, name)
    base, run = load_base_model(model, device="cpu"), runs.open_run(name)
    files.write_json(run.stage("01") / "key.json", {"model": str(model)})
    for variant in run.variants("03"):
        files.write_json(run.stage("03", variant) / "key.json", {"model": base.fingerprint, "dtype": "torch.float32"})
    return run, base


def other_model(folder: Path, like: Path) -> Path:
    """A model of the same width and tokenizer with other rows."""
    base = load_base_model(like, device="cpu")
    torch.manual_seed(5)
    tiny_decoder(base.vocab_size, initializer_range=0.5).save_pretrained(folder)
    base.tokenizer.save_pretrained(folder)
    return folder


def test_a_run_of_an_equally_wide_model_gets_its_own_rows(tmp_path: Path) -> None:
    run, base = sealed(tmp_path, "mine", write_series(tmp_path, "mine"))
    stranger = load_base_model(other_model(tmp_path / "stranger", tmp_path / "model"), device="cpu")
    assert stranger.width == base.width
    assert not torch.equal(stranger.input_rows, base.input_rows)
    made = open_explorer(run, stranger)  # the notebook holds another model
    view = made.view("mean_kl_last", 0, 2)
    row = made.histories["mean_kl_last"].row(2, "input", 0)
    expected = cosine(row, base.input_rows[view.subtokens["id"].tolist()])
    assert view.subtokens["cosine"].tolist() == pytest.approx(expected.tolist())
    assert view.subtokens["text"].tolist() == [base.tokenizer.decode([i]) for i in view.subtokens["id"]]


def test_a_model_at_hand_is_not_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, base = sealed(tmp_path, "mine", write_series(tmp_path, "mine"))
    monkeypatch.setattr(explorer_runs, "load_base_model", lambda *_, **__: pytest.fail("loaded"))
    assert open_explorer(run, base).run == "mine"
    assert "·groupby" in explore(base=base).children[-1].value
    assert "vx-restart" in explore(base=base).children[-2].value


def test_another_model_under_the_noted_name_is_refused_in_the_view(tmp_path: Path) -> None:
    run, _ = sealed(tmp_path, "mine", write_series(tmp_path, "mine"))
    other_model(tmp_path / "stranger", tmp_path / "model")
    files.write_json(run.stage("01") / "key.json", {"model": str(tmp_path / "stranger")})
    with pytest.raises(ValueError, match="rows of another model would mean nothing"):
        open_explorer(run)
    out = Panel(lambda name: open_explorer(runs.open_run(name)), ["mine"]).out
    assert 'class="vx-error"' in out.value
    assert "rows of another model" in out.value


def test_a_run_that_does_not_name_one_model_is_refused(tmp_path: Path) -> None:
    run, base = sealed(tmp_path, "mine", write_series(tmp_path, "mine"))
    files.write_json(run.stage("03", "mean_ce") / "key.json", {"model": "other", "dtype": "torch.float32"})
    with pytest.raises(ValueError, match="more than one model"):
        open_explorer(run, base)
    (run.stage("03", "mean_ce") / "key.json").unlink()
    with pytest.raises(ValueError, match="does not name"):
        open_explorer(run, base)


def test_kl_of_notebook_06_is_read_unless_rows_were_trained_since(tmp_path: Path) -> None:
    run, base = sealed(tmp_path, "mine", write_series(tmp_path, "mine"))
    new = base.vocab_size
    table = {"variant": "mean_ce", "epoch": 2, "text": 0, "extended": [1, 2], "token": [new, 5], "kl": [0.5, 0.25]}
    files.write_table(run.stage("06") / "measured.csv", pd.DataFrame(table))
    files.write_json(run.stage("06") / "windows.json", [{"original_ids": [1, 2, 3], "extended_ids": [4, new, 5]}])
    for folder, when in ((run.stage("03", "mean_ce"), "2026-01-01"), (run.stage("06"), "2026-01-02")):
        files.write_json(folder / "provenance.json", {"finished": when})
    made = open_explorer(run, base)
    assert made.preferred == "mean_ce"
    view = made.view("mean_ce", 0, 2)
    assert view.kl["kl"].tolist() == [0.5, 0.25]
    assert len(view.occurrences) == 1
    files.write_json(run.stage("03", "mean_ce") / "provenance.json", {"finished": "2026-01-03"})
    assert open_explorer(run, base).view("mean_ce", 0, 2).kl.empty


def test_explore_needs_nothing_but_run_folders(tmp_path: Path) -> None:
    assert "notebooks 01 to 03" in explore().data
    model = write_series(tmp_path, "older")
    sealed(tmp_path, "older", model)
    run, base = sealed(tmp_path, "newer", model)
    files.write_json(run.stage("06") / "provenance.json", {"finished": "2026-01-01"})
    assert explorable_runs() == ["newer", "older"]
    box = explore()
    assert box.children[0].children[0].options == ("newer", "older")
    assert "·groupby" in box.children[-1].value
    opened = open_explorer(runs.open_run("older"), base)
    assert explore(opened, token=1).children[0].children[0].options == ("older", "newer")
