"""Environments in the cache see the packages of this one and not its sources."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from vocabx_utils.layers import NoIndexError, layered_environment


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VOCABX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_layer_sees_packages_and_not_our_sources_and_is_made_once(tmp_path: Path) -> None:
    python = layered_environment("empty")
    code = "import yaml, importlib.util; print(importlib.util.find_spec('vocabx_utils'))"
    answer = subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert answer.stdout.strip() == "None"
    (python.parents[1] / "mine").touch()
    assert layered_environment("empty") == python
    assert (python.parents[1] / "mine").exists()


def test_without_an_index_nothing_is_left_and_pip_is_quoted(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(cache))
    said: list[str] = []
    with pytest.raises(NoIndexError, match=r"nothing-like-this==1\.0.*ERROR"):
        layered_environment("broken", ["nothing-like-this==1.0"], said.append)
    assert "nothing-like-this==1.0" in said[0]
    assert list((cache / "environments").glob("broken-*")) == []
