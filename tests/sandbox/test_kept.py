"""Kept lists: what the committed ones say, and how others differ from them."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from evaluation.evaluation_parts import kept_or_skip, load_or_skip

from vocabx_utils.cli.evaluation import _note_environment
from vocabx_utils.evaluation import kept
from vocabx_utils.evaluation.environment_build import pinned
from vocabx_utils.evaluation.environments import RECIPES, REQUIREMENTS, Environment
from vocabx_utils.evaluation.kept import (
    EnvironmentDiffersError,
    KeptList,
    check_environment,
    kept_ids,
    kept_problems,
    reference_timeouts,
)

SIZES = {"humaneval": (164, 164), "mbpp": (500, 500), "bigcodebench": (1112, 1140), "ds1000": (878, 1000)}


def test_kept_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT_FOLDER", tmp_path)
    assert kept_ids(["mbpp"]) == {}
    with pytest.raises(ValueError, match="verify-references mbpp"):
        kept_problems("mbpp")
    content = {"kept": ["Mbpp/11"], "dropped": {"Mbpp/12": "timeout"}, "environment": "x"}
    (tmp_path / "mbpp.json").write_text(json.dumps(content))
    assert kept_ids(["mbpp", "ds1000"]) == {"mbpp": {"Mbpp/11"}}
    found = KeptList.read("mbpp")
    assert found is not None and (found.dropped, found.environment) == ({"Mbpp/12": "timeout"}, "x")


def _listed(monkeypatch, folder: Path, environment: Environment, **changes: Any) -> None:
    content = {"kept": ["DS-1000/0"], "dropped": {}, "environment": {**environment.describe(), **changes}}
    (folder / "ds1000.json").write_text(json.dumps(content))
    monkeypatch.setattr(kept, "KEPT_FOLDER", folder)


def test_another_environment_is_refused(plain: Environment, tmp_path: Path, monkeypatch) -> None:
    """The default build lacks TensorFlow: following the page silently dropped 45 problems from the list."""
    environment = dataclasses.replace(plain, name="ds1000", groups=("torch",))
    _listed(monkeypatch, tmp_path, environment)
    check_environment("ds1000", environment)
    packages = {**environment.packages, "tensorflow-cpu": "2.16.1"}
    _listed(monkeypatch, tmp_path, environment, hash="1" * 16, groups=["torch", "tensorflow"], packages=packages)
    with pytest.raises(EnvironmentDiffersError, match="build ds1000 --with tensorflow") as caught:
        check_environment("ds1000", environment)
    assert "1 package (tensorflow-cpu)" in str(caught.value) and "groups" in str(caught.value)


def test_a_run_in_another_environment_says_so(plain: Environment, tmp_path: Path, monkeypatch, capsys) -> None:
    _listed(monkeypatch, tmp_path, plain, hash="1" * 16, python="3.10.1")
    (tmp_path / "ds1000.json").rename(tmp_path / "mbpp.json")
    _note_environment("mbpp")
    assert f"python {plain.python} instead of 3.10.1" in capsys.readouterr().out
    _listed(monkeypatch, tmp_path, plain)
    (tmp_path / "ds1000.json").rename(tmp_path / "mbpp.json")
    _note_environment("mbpp")
    assert capsys.readouterr().out == ""


def test_lists_that_differ_are_compared(plain: Environment, tmp_path: Path, monkeypatch) -> None:
    _listed(monkeypatch, tmp_path, plain)
    found = KeptList("ds1000", (), {"DS-1000/0": "error: X"}, {}, {}, plain.describe(), ())
    listed = KeptList.read("ds1000")
    assert listed is not None and found.compare(listed) == ["DS-1000/0 is dropped (error: X), the list keeps it"]


@pytest.mark.parametrize("name", ["bigcodebench", "ds1000"])
def test_committed_lists_name_the_pinned_packages(name: str) -> None:
    """What `vocabx eval-env build` installs is what the list was made with."""
    recorded = kept_or_skip(name)["environment"]
    files = [RECIPES[name].groups[group] for group in ("", *recorded["groups"])]
    pins = {key.lower().replace("_", "-"): value for f in files for key, value in pinned(REQUIREMENTS / f).items()}
    assert pins == {key: version.split("+")[0] for key, version in recorded["packages"].items()}


@pytest.mark.parametrize("name", SIZES)
def test_committed_lists_reach_their_size(name: str) -> None:
    content = kept_or_skip(name)
    least, total = SIZES[name]
    assert len(content["kept"]) >= least
    assert len(content["kept"]) + len(content["dropped"]) == total
    assert not set(content["kept"]) & set(content["dropped"])
    assert all(10 <= value <= 60 or name in ("mbpp", "humaneval") for value in content["timeouts"].values())
    assert set(content["timeouts"]) <= set(content["kept"])
    # /tmp/w is the working folder inside every jail
    assert not re.search(r"/(root|home|work)/|/tmp/(?!w/)", json.dumps(content["dropped"]))


@pytest.mark.parametrize("name", SIZES)
def test_committed_lists_fit_the_benchmark(name: str) -> None:
    content = kept_or_skip(name)
    ids = [problem.task_id for problem in load_or_skip(name)]
    assert [task for task in ids if task in set(content["kept"])] == content["kept"]
    assert set(ids) == set(content["kept"]) | set(content["dropped"])


def test_limits_come_from_the_list(monkeypatch, tmp_path: Path) -> None:
    (tmp_path / "bigcodebench.json").write_text(json.dumps({"kept": [], "timeouts": {"BigCodeBench/0": 57.0}}))
    monkeypatch.setattr(kept, "KEPT_FOLDER", tmp_path)
    limits = reference_timeouts("bigcodebench")
    assert (limits("BigCodeBench/0"), limits("BigCodeBench/1")) == (57.0, 10.0)
    assert reference_timeouts("ds1000")("DS-1000/0") == 30.0
