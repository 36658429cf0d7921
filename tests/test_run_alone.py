"""Each test file by itself: what fails is shown, and a file cannot lean on another one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import run_alone

ROOT = Path(__file__).resolve().parents[1]


BARE = "import run_alone, sys; run_alone.import_once = lambda: None; sys.exit(run_alone.main())"


def run(folder: Path, *words: str, **files: str) -> subprocess.CompletedProcess[str]:
    """Write test files and run them with two processes, without plugins that have no part in it."""
    names = []
    for name, text in files.items():
        (folder / f"test_{name}.py").write_text(text)
        names.append(f"test_{name}.py")
    tools = ROOT / "tools"
    command = [sys.executable, *(words or [str(tools / "run_alone.py")]), "--at-once", "2", *names]
    path = os.pathsep.join([str(tools), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": path}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_leftovers_do_not_help_and_what_fails_is_shown(tmp_path: Path) -> None:
    answer = run(
        tmp_path,
        leaves="import sys\nimport vocabx_utils\n\ndef test_leave():\n    sys.left_behind = 1\n",
        needs="import sys\n\ndef test_need():\n    assert hasattr(sys, 'left_behind'), 'a leftover is missing'\n",
        own="import sys\n\ndef test_own():\n    assert not {'vocabx_utils', 'tiny', 'conftest'} & set(sys.modules)\n",
        none="import pytest\n\n@pytest.mark.slow\ndef test_slow():\n    assert False\n",
        broken="raise SystemExit(0)\n",
        dies="import os\n\ndef test_die():\n    os._exit(3)\n",
    )
    assert answer.returncode == 1
    assert "a leftover is missing" in answer.stdout
    assert "test_needs.py does not pass alone" in answer.stdout
    assert "6 files, each by itself: 3 failed" in answer.stdout
    assert "test_broken.py does not pass alone" in answer.stdout
    assert "test_dies.py does not pass alone (status 3)" in answer.stdout
    assert "test_own" not in answer.stdout
    assert run(tmp_path, "-c", BARE, leaves="def test_fine():\n    pass\n").returncode == 0


def test_every_file_is_found_but_those_of_the_matrix() -> None:
    found = {str(path.relative_to(run_alone.ROOT)) for path in run_alone.find_files()}
    assert "tests/ground/test_files.py" in found
    assert Path(__file__).resolve() in set(run_alone.find_files())
    assert not [name for name in found if "matrix" in name]
    assert len(found) == sum(1 for path in (ROOT / "tests").rglob("test_*.py") if path.parent.name != "matrix")
