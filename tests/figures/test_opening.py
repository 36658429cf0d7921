"""Settings, seed, run folder and folded print of a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fixtures.github_view import github_view

from vocabx_utils.config import AlignmentConfig
from vocabx_utils.figures.opening import Folded, open_notebook
from vocabx_utils.settings import ConfigError


def test_takes_the_settings_among_a_notebooks_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path))
    config, run = open_notebook(AlignmentConfig, {"run_name": "mine", "seed": 3, "texts": 7, "np": object()})
    assert (config.seed, config.texts, config.lookahead) == (3, 7, 20)
    assert run.folder == tmp_path / "mine"
    drawn = torch.rand(1)
    assert torch.equal(drawn, torch.rand(1, generator=torch.Generator().manual_seed(3)))
    assert "lookahead" in capsys.readouterr().out


def test_refuses_what_the_settings_refuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path))
    with pytest.raises(ConfigError, match="texts"):
        open_notebook(AlignmentConfig, {"texts": "many"})


def test_folds_and_escapes() -> None:
    folded = Folded("Settings", {"corpus_glob": "<*.h>", "seed": 0})
    assert repr(folded) == "Settings:\ncorpus_glob  <*.h>\nseed         0"
    page = folded._repr_html_()
    assert page.startswith("<details><summary>Settings</summary>") and "&lt;*.h&gt;" in page and "<*.h>" not in page


def test_folds_on_a_page_without_styles_too() -> None:
    page = github_view(Folded("Settings", {"seed": 0})._repr_html_())
    assert page.details.summary.get_text() == "Settings"
    assert [cell.get_text() for cell in page.details.find_all(["th", "td"])] == ["seed", "0"]
