"""The cleaner keeps what nbval compares, drops what differs between machines, refuses what it cannot mend."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from check_size import too_large
from clean_notebooks import clean, find_problems, main, write_notebook
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parents[1]
WIDGET = "application/vnd.jupyter.widget-view+json"


def notebook() -> dict[str, Any]:
    """An executed notebook with everything that an editor and papermill leave behind."""
    first = new_code_cell(
        "# NBVAL_CHECK_OUTPUT\nprint(1)",
        execution_count=1,
        metadata={
            "tags": ["keep"],
            "papermill": {"start_time": "2026-01-01"},
            "execution": {"iopub.status.busy": "2026-01-01"},
        },
        outputs=[
            new_output("stream", name="stdout", text="one /somewhere/project/runs/x\n"),
            new_output("stream", name="stderr", text="loop 3/9\n"),
            new_output("stream", name="stdout", text="two\n"),
            new_output("display_data", data={WIDGET: {"model_id": "7"}, "text/plain": "HBox()"}),
            new_output("display_data", data={"image/png": "AAAA", "text/plain": "<Figure>"}),
        ],
    )
    second = new_code_cell("2", execution_count=2, outputs=[])
    second.outputs = [new_output("execute_result", data={"text/plain": "2"}, execution_count=2)]
    made = new_notebook(cells=[new_markdown_cell("# Title"), first, second])
    made.metadata = {"kernelspec": {"name": "my-env", "display_name": "My Env"}, "widgets": {"state": {}}}
    return json.loads(nbformat.writes(made))


def test_counts_outputs_and_figures_stay_the_rest_goes() -> None:
    before = notebook()
    untouched = copy.deepcopy(before)
    cleaned = clean(before, {"/somewhere/project/": ""})
    assert before == untouched
    first, second = cleaned["cells"][1:]
    assert [first["execution_count"], second["execution_count"]] == [1, 2]
    assert first["outputs"][0] == {
        "name": "stdout",
        "output_type": "stream",
        "text": ["one runs/x\n", "two\n"],
    }
    assert [o["output_type"] for o in first["outputs"]] == ["stream", "display_data"]
    assert first["outputs"][1]["data"]["image/png"] in ("AAAA", ["AAAA"])
    assert first["metadata"] == {"tags": ["keep"]}
    assert cleaned["metadata"]["kernelspec"]["name"] == "python3"
    assert "widgets" not in cleaned["metadata"]
    assert second["outputs"][0]["execution_count"] == 2
    assert find_problems(cleaned, 1000) == []


def test_cleaning_twice_changes_nothing_and_the_file_is_what_jupyter_writes(tmp_path: Path) -> None:
    once = clean(notebook())
    assert clean(once) == once
    path = tmp_path / "a.ipynb"
    write_notebook(path, once)
    saved = path.read_text(encoding="utf-8")
    nbformat.write(nbformat.read(path, as_version=4), path)
    assert path.read_text(encoding="utf-8") == saved


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda nb: nb["cells"][1].update(execution_count=3), "in order"),
        (lambda nb: nb["cells"][2].update(execution_count=None), "in order"),
        (lambda nb: nb["cells"][1].update(outputs=[]), "no output"),
        (lambda nb: nb["cells"][2].update(source="open('/home/someone/x')"), "/home/someone"),
        (lambda nb: nb["cells"][2].update(source=r"open('C:\\Users\\someone\\x')"), "Users"),
        (
            lambda nb: nb["cells"][1]["outputs"][0].update(text="saved /tmp/abc/runs"),
            "/tmp/abc",
        ),
        (
            lambda nb: nb["cells"][2].update(
                outputs=[{"output_type": "error", "ename": "E", "evalue": "", "traceback": []}]
            ),
            "code cell 2 ended with an error",
        ),
    ],
)
def test_what_cannot_be_cleaned_is_named(change: Any, problem: str) -> None:
    bad = clean(notebook())
    change(bad)
    assert any(problem in found for found in find_problems(bad, 1000))


def test_web_addresses_and_relative_paths_are_no_machine_paths() -> None:
    fine = clean(notebook())
    fine["cells"][2]["source"] = "# see https://example.org/home/page, runs/quick/tmp/x, ../tmp/x and ~/work/x"
    assert find_problems(fine, 1000) == []


def test_large_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    (tmp_path / "large").write_bytes(b"x" * 1_500_001)
    names = [str(tmp_path / name) for name in ("small", "large", "missing")]
    assert [line.split(":")[0] for line in too_large(names)] == [names[1]]
    assert any("bytes" in problem for problem in find_problems(clean(notebook()), 1_500_001))


def test_the_command_cleans_in_place_and_check_changes_nothing(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "a.ipynb"
    write_notebook(path, notebook())
    before = path.read_bytes()
    assert main(["--check", str(path)]) == 1
    assert path.read_bytes() == before
    assert main([str(path)]) == 1
    assert "cleaned" in capsys.readouterr().out
    assert main([str(path)]) == 0
    dirty = json.loads(path.read_text())
    dirty["cells"][1]["outputs"][0]["text"] = ["saved /home/someone/x\n"]
    write_notebook(path, dirty)
    assert main([str(path)]) == 1
    assert "/home/someone" in capsys.readouterr().out


def test_it_runs_as_a_script() -> None:
    words = [sys.executable, str(ROOT / "tools" / "clean_notebooks.py"), "--help"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout.startswith("usage")
