"""Set-up on a bare machine: the Python that is chosen, the targets of make, and nbval with our settings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from fixtures.tiny_notebooks import SLOW_KERNEL
from nbformat.v4 import new_code_cell, new_notebook, new_output

ROOT = Path(__file__).resolve().parents[1]
SHELL = shutil.which("sh") or "sh"


def find_python(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Choose a Python among those in `folder`."""
    words = [SHELL, str(ROOT / "tools" / "find_python.sh")]
    return subprocess.run(words, env={"PATH": str(folder), **environment}, capture_output=True, text=True)


def pretend(folder: Path, name: str, new_enough: bool) -> None:
    """Put a program there that answers the version question as a Python would."""
    (folder / name).write_text(f"#!{SHELL}\nexit {0 if new_enough else 1}\n")
    (folder / name).chmod(0o755)


def test_the_python_in_use_comes_first_then_the_newest(tmp_path: Path) -> None:
    pretend(tmp_path, "python3.11", True)
    pretend(tmp_path, "python3.13", True)
    pretend(tmp_path, "python3", False)
    assert find_python(tmp_path).stdout == "python3.13\n"
    pretend(tmp_path, "python3", True)
    assert find_python(tmp_path).stdout == "python3\n"
    assert find_python(tmp_path, PYTHON="python3.11").stdout == "python3.11\n"


def test_an_old_python_is_refused_with_advice(tmp_path: Path) -> None:
    pretend(tmp_path, "python3", False)
    answer = find_python(tmp_path)
    assert answer.returncode == 1
    assert "3.11" in answer.stderr
    assert "PYTHON=" in answer.stderr
    assert find_python(tmp_path, PYTHON="python3").returncode == 1


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_targets_that_the_readme_names_exist() -> None:
    targets = [
        "run",
        "test",
        "fast",
        "test-alone",
        "test-threads",
        "lab",
        "lint",
        "figures",
        "notebooks",
        "lock",
        "clean",
    ]
    words = ["make", "--dry-run", "--always-make", *targets, f"VENV={ROOT / 'nowhere'}"]
    environment = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    answer = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert "vocabx models fetch" in answer.stdout
    assert "--nbval-lax" in answer.stdout


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_clone_with_windows_line_ends_still_has_ours(tmp_path: Path) -> None:
    """With core.autocrlf, git would write CRLF: shell scripts stop, and digests of sources differ."""
    (tmp_path / "export" / "tools").mkdir(parents=True)
    copied = [".gitattributes", "Makefile", "tools/find_python.sh", "tools/make_venv.sh", "pyproject.toml"]
    for name in copied:
        shutil.copy(ROOT / name, tmp_path / "export" / name)
    (tmp_path / "export" / "crlf.py").write_bytes(b"a = 1\r\n")  # committed from such a machine
    (tmp_path / "export" / "figure.png").write_bytes(b"\x89PNG\r\n\x1a\n")

    def git(*words: str, cwd: Path = tmp_path / "export") -> None:
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "core.autocrlf=true", "-c", "core.safecrlf=false"]
        subprocess.run(["git", *who, *words], cwd=cwd, check=True, capture_output=True)

    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "export"]):
        git(*words)
    git("clone", "-q", "export", "clone", cwd=tmp_path)
    for name in copied:
        assert (tmp_path / "clone" / name).read_bytes() == (ROOT / name).read_bytes(), name
    assert (tmp_path / "clone" / "crlf.py").read_bytes() == b"a = 1\n"
    assert (tmp_path / "clone" / "figure.png").read_bytes() == b"\x89PNG\r\n\x1a\n"
    script = [SHELL, str(tmp_path / "clone" / "tools" / "find_python.sh")]
    environment = {"PATH": os.environ["PATH"], "PYTHON": sys.executable}
    assert subprocess.run(script, env=environment, capture_output=True).returncode == 0


def nbval(folder: Path, *more: str, copy: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run nbval on a folder as `make nbval` does."""
    if copy:
        shutil.copy(ROOT / "notebooks" / "conftest.py", folder)
    path = os.pathsep.join([environment.pop("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    variables = {**os.environ, **environment, "PYTHONPATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = [
        "-p",
        "nbval.plugin",
        "--nbval-lax",
        "--nbval-current-env",
        "--nbval-sanitize-with",
        str(ROOT / "tests" / "sanitize.cfg"),
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, *more, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=variables)


def test_a_kernel_of_nbval_may_be_slow_and_a_dead_one_is_one_line(tmp_path: Path) -> None:
    nbformat.write(new_notebook(cells=[new_code_cell("print(1)")]), tmp_path / "one.ipynb")
    slow = "import pytest\n\ndef pytest_configure(config):\n    config.option.nbval_kernel_startup_timeout = 0\n"
    (tmp_path / "impatient.py").write_text(slow)
    (tmp_path / "sitecustomize.py").write_text(SLOW_KERNEL)
    answer = nbval(tmp_path, "-p", "impatient", PYTHONPATH=str(tmp_path))
    assert answer.returncode == 0, answer.stdout  # ours is longer
    conftest = tmp_path / "conftest.py"
    own = "from vocabx_utils.cli.notebooks import KERNEL_START_S\n"
    conftest.write_text(conftest.read_text().replace(own, "KERNEL_START_S = 0\n"))
    answer = nbval(tmp_path, "-p", "impatient", copy=False, PYTHONPATH=str(tmp_path))
    assert answer.returncode == 1
    assert "one.ipynb: its kernel did not start" in answer.stdout
    assert "Traceback" not in answer.stdout.split("one.ipynb: its kernel")[1].split("short test summary")[0]


def marked(source: str, *outputs: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A compared cell with stored outputs."""
    return new_code_cell(f"# NBVAL_CHECK_OUTPUT\n{source}", execution_count=1, outputs=list(outputs))


def test_nbval_ignores_progress_and_paths_but_not_numbers(tmp_path: Path) -> None:
    stderr = new_output("stream", name="stderr", text="3/9 in 0:01\n")
    path = new_output("stream", name="stdout", text="saved /tmp/one/runs/a.csv\n")
    source = "import sys\nprint('7/9', file=sys.stderr)\nprint('saved /tmp/another/b/a.csv')"
    cells = {
        "good": marked(source, stderr, path),
        "bad": marked("print(3)", new_output("stream", name="stdout", text="4\n")),
    }
    for name, cell in cells.items():
        nbformat.write(new_notebook(cells=[cell]), tmp_path / f"{name}.ipynb")
    answer = nbval(tmp_path)
    assert answer.returncode == 1
    assert "bad.ipynb::Cell 0" in answer.stdout.split("short test summary")[-1]
    assert "1 failed, 1 passed" in answer.stdout
