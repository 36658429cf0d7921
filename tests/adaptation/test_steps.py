"""Parts that are done once, and the folder that is looked at first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vocabx_utils.adaptation.steps import MODEL, REPORT, STATE, SUMMARY, WORK, OutError, Steps, open_out
from vocabx_utils.files import write_json
from vocabx_utils.runs import KeyMismatchError


def test_a_part_is_done_once_and_other_settings_get_another_folder(tmp_path: Path) -> None:
    told: list[str] = []
    steps, calls = Steps(tmp_path, told.append, 3), []

    def make(folder: Path) -> dict[str, Any]:
        calls.append(folder)
        return {"value": len(calls)}

    first = steps.once("rows", "learning", {"rate": 1}, make)
    again = steps.once("rows", "learning", {"rate": 1}, make)
    other = steps.once("rows", "learning", {"rate": 2}, make)
    assert first.result == again.result == {"value": 1} and other.result == {"value": 2}
    assert first.folder == again.folder != other.folder and first.digest != other.digest
    assert told[0] == "1/3 learning …" and "2/3 learning: done before" in told[1]


def test_a_part_that_failed_keeps_what_it_left_and_goes_on(tmp_path: Path) -> None:
    told: list[str] = []
    steps = Steps(tmp_path, told.append, 3)

    def make(folder: Path) -> dict[str, Any]:
        if not (folder / "half").exists():
            (folder / "half").write_text("half")
            raise RuntimeError("no space")
        return {"found": (folder / "half").read_text()}

    with pytest.raises(RuntimeError, match="no space"):
        steps.once("rows", "learning", {}, make)
    assert steps.once("rows", "learning", {}, make).result == {"found": "half"}
    assert told[-1] == "2/3 learning (going on) …"


def test_only_a_folder_of_its_own_is_opened(tmp_path: Path) -> None:
    out, key = tmp_path / "out", {"n": 4, "model_files": "m"}
    assert not open_out(out, key)
    out.write_text("a file")
    with pytest.raises(OutError, match="is not a folder"):
        open_out(out, key)
    out.unlink()
    out.mkdir()
    assert not open_out(out, key)
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(OutError, match="not empty and was not made by"):
        open_out(out, key)
    assert (out / "thesis.tex").read_text() == "years of work"
    (out / "thesis.tex").unlink()
    (out / WORK).mkdir()
    assert not open_out(out, key)  # begun, nothing exported yet: other settings are welcome
    write_json(out / STATE, {"key": key})
    assert not open_out(out, {**key, "n": 5})  # the export failed: there is no model that could be lost
    (out / MODEL).mkdir()
    with pytest.raises(KeyMismatchError, match="n: 4 there, 5 now"):
        open_out(out, {**key, "n": 5})
    assert not open_out(out, key)
    for name in (REPORT, SUMMARY):
        (out / name).write_text("{}")
    assert open_out(out, key)
    (out / WORK).rmdir()  # the page allows it
    assert open_out(out, key)
    (out / MODEL).rmdir()
    assert not open_out(out, key)  # the model is missing


def test_a_model_of_an_earlier_version_is_left_alone_and_told_apart(tmp_path: Path) -> None:
    (tmp_path / MODEL).mkdir()
    (tmp_path / WORK).mkdir()
    write_json(tmp_path / STATE, {"key": {"n": 4, "model": "m"}})
    with pytest.raises(KeyMismatchError, match=r"earlier version of vocabx made of 'm'.*remove .*adapt\.json"):
        open_out(tmp_path, {"n": 4, "model_files": "m"})
