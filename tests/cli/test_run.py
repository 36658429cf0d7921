"""The runner on tiny notebooks: refusals before anything runs, values handed over, failures, dead kernels."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from click.testing import CliRunner, Result
from fixtures.tiny_notebooks import SLOW_KERNEL
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from vocabx_utils.cli import main, notebooks
from vocabx_utils.cli.parameters import declared_parameters

PARAMETERS = """\
run_name = "quick"
epochs = 2  # passes
learning_rate = 1.0e-2  # per step
anchors = ["last", "first"]
verbose = False
limit = None
"""
SHOW = "print(epochs, learning_rate, anchors, verbose, limit, run_name)"

Make = Callable[..., Path]
Call = Callable[..., Result]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project whose runs go to a folder of their own."""
    (tmp_path / "notebooks").mkdir()
    monkeypatch.setenv("VOCABX_ROOT", str(tmp_path))
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path / "somewhere" / "runs"))
    return tmp_path


@pytest.fixture
def make(project: Path) -> Make:
    """Write a notebook with a parameter cell and code cells."""

    def write(stage: str, *cells: str, parameters: str = PARAMETERS) -> Path:
        code = [new_code_cell(source) for source in cells]
        tagged = new_code_cell(parameters, metadata={"tags": ["parameters"]})
        path = project / "notebooks" / f"{stage}.ipynb"
        nbformat.write(new_notebook(cells=[new_markdown_cell("# Title"), tagged, *code]), path)
        return path

    return write


@pytest.fixture
def call() -> Call:
    """Call `vocabx` with words."""
    return lambda *words: CliRunner().invoke(main, words, catch_exceptions=False)


def executed(project: Path, stage: str, run: str = "quick") -> str:
    """Standard output of an executed notebook."""
    notebook = nbformat.read(project / "somewhere" / "runs" / run / f"{stage}.ipynb", as_version=4)
    streams = [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs if o.output_type == "stream"]
    return "".join(o.text for o in streams if o.name == "stdout")


def test_defaults_run_in_order_into_the_run_folder(make: Make, call: Call, project: Path) -> None:
    source = make("00_start", SHOW, "from pathlib import Path\nprint(Path.cwd().name)")
    make("02_alignment", "import sys\nprint('loop 3/9', file=sys.stderr)\nprint('a table')")
    before = source.read_bytes()
    result = call("run")
    assert result.exit_code == 0, result.output
    assert result.output.index("[1/2] 00_start") < result.output.index("[2/2] 02_alignment")
    assert "    loop 3/9" in result.output
    assert "a table" not in result.output
    assert "runs/quick" in result.output
    assert executed(project, "00_start") == "2 0.01 ['last', 'first'] False None quick\nnotebooks\n"
    assert source.read_bytes() == before
    timings = json.loads((project / "somewhere/runs/quick/timings.json").read_text())
    assert list(timings) == ["00_start", "02_alignment"]
    assert timings["00_start"]["peak_mib"] > 10


def test_section_beats_shared_value_and_typed_value_beats_both(make: Make, call: Call, project: Path) -> None:
    make("00_start", SHOW)
    make("03_phase1_training", SHOW)
    own = project / "gpu.yaml"
    own.write_text("epochs: 4\nlearning_rate: 1\n03:\n  epochs: 5\n  verbose: true\n")
    result = call("run", "--profile", str(own), "-p", "anchors", "none,last", "-p", "limit", "7")
    assert result.exit_code == 0, result.output
    assert executed(project, "00_start", "gpu") == "4 1.0 ['none', 'last'] False 7 gpu\n"
    assert executed(project, "03_phase1_training", "gpu") == "5 1.0 ['none', 'last'] True 7 gpu\n"


def test_a_typed_value_can_be_aimed_at_one_notebook(make: Make, call: Call, project: Path) -> None:
    make("00_start", SHOW)
    make("03_phase1_training", SHOW)
    assert call("run", "-p", "epochs", "3", "-p", "03.epochs", "9").exit_code == 0
    assert executed(project, "00_start").startswith("3 ")
    assert executed(project, "03_phase1_training").startswith("9 ")


def test_one_notebook_under_another_run_name(make: Make, call: Call, project: Path) -> None:
    make("00_start", SHOW)
    make("03_phase1_training", SHOW)
    for words in (["run", "--only", "03"], ["run-notebook", "3"]):
        name = words[0].replace("-", "")
        result = call(*words, "--run-name", name, "-p", "learning_rate", "2e-3")
        assert result.exit_code == 0, result.output
        assert executed(project, "03_phase1_training", name).startswith("2 0.002 ")
        assert executed(project, "03_phase1_training", name).endswith(f"{name}\n")
        assert not (project / "somewhere/runs" / name / "00_start.ipynb").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["-p", "nun_epochs", "5"], ["nun_epochs", "'epochs'"]),
        (["-p", "03.nun", "5"], ["'nun'", "03_phase1_training"]),
        (["-p", "09.epochs", "5"], ["'09'"]),
        (["--only", "00", "-p", "03.epochs", "5"], ["03_phase1_training", "00_start"]),
        (["-p", "epochs", "2.5"], ["epochs", "2.5", "expected int"]),
        (["-p", "epochs", "true"], ["epochs", "'true'", "expected int"]),
        (["-p", "learning_rate", "fast"], ["learning_rate", "'fast'", "expected float"]),
        (["-p", "verbose", "1"], ["verbose", "expected bool"]),
        (["--only", "08"], ["'08'", "03_phase1_training"]),
        (["--only", "04"], ["04_fine_tuning"]),
        (["--profile", "huge"], ["'huge'", "quick"]),
        (["--run-name", "../x"], ["'../x'"]),
        (["--run-name", ""], ["run name is ''"]),
        (["-p", "run_name", ""], ["run name is ''"]),
        (["--profile", "BAD.yaml"], ["'epochz'", "'1e-4x'", "seedling"]),
        (["--profile", "SECTION.yaml"], ["'09'"]),
        (["--profile", "LIST.yaml"], ["list", "mapping"]),
    ],
)
def test_bad_requests_are_refused_before_anything_runs(
    make: Make, call: Call, project: Path, words: list[str], named: list[str]
) -> None:
    """B61: papermill itself would run to the end with the defaults."""
    make("00_start", SHOW)
    make("03_phase1_training", SHOW)
    bad = "epochz: 3\nlearning_rate: 1e-4x\n03: {seedling: 1}\n"
    for name, text in {"BAD": bad, "SECTION": "'09': {epochs: 1}\n", "LIST": "- 1\n"}.items():
        (project / f"{name}.yaml").write_text(text)
    result = call("run", *(str(project / word) if word.endswith(".yaml") else word for word in words))
    assert result.exit_code == 1
    for part in named:
        assert part in result.output
    assert not (project / "somewhere").exists()


def test_another_runner_of_the_same_notebook_is_refused(make: Make, call: Call, project: Path) -> None:
    make("00_start", SHOW)
    output = project / "somewhere" / "runs" / "quick" / "00_start.ipynb"
    code = (
        "import sys, time, pathlib\nfrom vocabx_utils.locks import hold\n"
        "hold(pathlib.Path(sys.argv[1]))\nprint('held', flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(output)], stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        first.stdout.readline()
        result = call("run")
        first.kill()
    assert result.exit_code == 1
    assert f"process {first.pid} on {platform.node()}" in result.output
    assert not output.exists()
    assert call("run").exit_code == 0  # the lock ended with its process


def test_a_relative_folder_is_the_users_in_the_kernel_too(
    make: Make, call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel starts in the notebook's folder, where `here` would be another place."""
    (project / "user" / "corpus").mkdir(parents=True)
    (project / "home" / "pairs").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(project / "home"))
    monkeypatch.chdir(project / "user")
    for name in ("RUNS", "CACHE", "DATA"):
        monkeypatch.setenv(f"VOCABX_{name}", name.lower())
    parameters = 'run_name = "quick"\ncorpus_path = ""\ncorpus_source = "packages"\nmodel = "smollm2-135m"\n'
    show = (
        "import os\nfrom vocabx_utils import paths\nprint(paths.runs_root(), paths.cache_dir(), paths.data_dir())\n"
        "print(corpus_path, model)"
    )
    make("01_tokenizer_extension", show, parameters=parameters)
    user = project / "user"
    asked = ["-p", "corpus_source", "tree", "-p", "corpus_path", "corpus", "-p", "model", "~/pairs"]
    assert call("run", *asked).exit_code == 0
    notebook = nbformat.read(user / "runs" / "quick" / "01_tokenizer_extension.ipynb", as_version=4)
    printed = "".join(o.text for c in notebook.cells if c.cell_type == "code" for o in c.outputs)
    assert printed.split() == [
        *(str(user / name) for name in ("runs", "cache", "data", "corpus")),
        str(project / "home" / "pairs"),
    ]
    hub = call("run", "--run-name", "hub", "-p", "corpus_source", "hub", "-p", "corpus_path", "org/name")
    assert hub.exit_code == 0
    assert "corpus_path='org/name'" in hub.output


def test_a_kernel_that_does_not_start_is_one_line(
    make: Make, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make("00_start", SHOW)
    (tmp_path / "sitecustomize.py").write_text(SLOW_KERNEL)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr("vocabx_utils.cli.notebooks.KERNEL_START_S", 0)
    result = call("run")
    assert result.exit_code == 1
    (line,) = [line for line in result.output.splitlines() if "kernel" in line]
    assert "did not start within 0 s" in line
    assert "Traceback" not in result.output


@pytest.mark.parametrize("line", ["epochs: int = 2", "twice = 2 * epochs", "import os", "a = b = 1"])
def test_parameter_cells_hold_plain_literals_only(make: Make, line: str) -> None:
    path = make("00_start", SHOW, parameters=f"epochs = 2\n{line}\n")
    with pytest.raises(ValueError, match="plain `name = literal` line"):
        declared_parameters(path)


def test_a_parameter_for_a_notebook_without_a_parameter_cell_is_refused(call: Call, project: Path) -> None:
    nbformat.write(new_notebook(cells=[new_code_cell("print(1)")]), project / "notebooks/00_start.ipynb")
    result = call("run", "-p", "epochs", "5")
    assert result.exit_code == 1
    assert "epochs" in result.output


def test_a_failing_cell_stops_the_chain_and_is_named(make: Make, call: Call, project: Path) -> None:
    make("00_start", "print('kept')", "\nraise ValueError('no such corpus')", "print('never')")
    make("01_tokenizer_extension", SHOW)
    result = call("run")
    assert result.exit_code == 1
    assert "ValueError: no such corpus" in result.output
    assert "code cell 3 of 4 (`raise ValueError('no such corpus')`)" in result.output
    assert "runs/quick/00_start.ipynb" in result.output
    assert executed(project, "00_start") == "kept\n"
    assert not (project / "somewhere/runs/quick/01_tokenizer_extension.ipynb").exists()


def test_a_killed_kernel_ends_the_run_in_seconds(make: Make, call: Call, project: Path) -> None:
    """B60: a kernel that the system kills must not hang the run; what was written stays."""
    make(
        "00_start",
        "print('kept')",
        "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
        "print('never')",
    )
    begin = time.monotonic()
    result = call("run")
    assert time.monotonic() - begin < 60  # papermill waited for ever; the bound only has to be finite
    assert result.exit_code == 1
    assert "kernel died" in result.output
    assert "code cell 3 of 4 (`import os, signal`)" in result.output
    assert executed(project, "00_start") == "kept\n"


def test_a_full_disk_is_reported(make: Make, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    import papermill

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    make("00_start", SHOW)
    monkeypatch.setattr(papermill, "execute_notebook", full)
    result = call("run")
    assert result.exit_code == 1
    assert "No space left on device" in result.output


def test_thread_settings_reach_the_kernel_untouched(
    make: Make, call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    make("00_start", "import os\nprint(os.environ['OMP_NUM_THREADS'], 'MKL_NUM_THREADS' in os.environ)")
    assert call("run").exit_code == 0
    assert executed(project, "00_start") == "3 False\n"


def test_a_notebook_that_takes_too_long_is_stopped(make: Make, call: Call, project: Path) -> None:
    make("00_start", "print('kept', flush=True)", "import time\ntime.sleep(600)")
    result = call("run-notebook", "00", "--minutes", "0.08")
    assert result.exit_code == 1
    assert "it took longer than 0.08 min" in result.output
    assert "The same command continues where it stood." in result.output


def test_sigterm_ends_the_kernel_and_names_the_cell(make: Make, project: Path) -> None:
    """A scheduler ends a job by it: without our care the kernel would outlive the runner."""
    make("00_start", "import os, pathlib, time\npathlib.Path('pid').write_text(str(os.getpid()))\ntime.sleep(600)")
    command = [sys.executable, "-m", "vocabx_utils", "run-notebook", "00"]
    with subprocess.Popen(command, stdout=-1, stderr=-2, text=True) as runner:
        end = time.monotonic() + 120
        while not (project / "notebooks" / "pid").exists() or not (project / "notebooks" / "pid").read_text():
            assert time.monotonic() < end
            time.sleep(0.05)
        runner.terminate()
        told = runner.communicate(timeout=60)[0]
    assert runner.returncode == 1
    assert "(`import os, pathlib, time`): it was told to end (SIGTERM)" in told, told
    kernel = int((project / "notebooks" / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(kernel, 0)


def test_work_with_other_settings_is_refused_or_replaced(make: Make, call: Call, project: Path) -> None:
    claim = (
        "from vocabx_utils import runs\nfolder = runs.open_run(run_name).stage('00')\n"
        "print(runs.claim(folder, {'epochs': epochs}))\nruns.finish(folder)"
    )
    make("00_start", claim)
    assert call("run").exit_code == 0
    refused = call("run-notebook", "00", "-p", "epochs", "3")
    assert refused.exit_code == 1
    assert "epochs: 2 there, 3 now" in refused.output
    assert call("run-notebook", "00", "-p", "epochs", "3", "--replace").exit_code == 0
    assert executed(project, "00_start") == "new\n"
    assert "VOCABX_REPLACE" not in os.environ


def test_a_notebook_sees_the_cards_that_it_was_given(
    make: Make, call: Call, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    make("00_start", "import os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])")
    seen = []
    for words in ([], ["--gpus", "1"], ["--gpus", "0"]):
        assert call("run-notebook", "00", *words).exit_code == 0
        seen.append(executed(project, "00_start"))
    assert seen[0] == "3,5\n"
    assert seen[1] in ("3\n", "5\n")
    assert seen[2] == "\n"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,5"


def test_timings_hold_all_settings_and_those_that_were_given(make: Make, call: Call, project: Path) -> None:
    make("00_start", SHOW)
    assert call("run", "-p", "epochs", "3").exit_code == 0
    noted = json.loads((project / "somewhere/runs/quick/timings.json").read_text())["00_start"]
    assert noted["parameters"] == {"epochs": 3}
    assert noted["settings"]["epochs"] == 3
    assert noted["settings"]["learning_rate"] == 0.01


def test_the_peak_of_memory_is_found_without_looking_closely_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def closely(process: Any) -> int:
        looks.append(1)
        return int(process.memory_info().rss)

    monkeypatch.setattr(notebooks, "_resident", closely)
    with notebooks._peak_memory(0.02) as peak:
        before = peak()
        some = bytearray(200 << 20)
        time.sleep(0.5)
        del some
        time.sleep(0.3)
        less = bytearray(100 << 20)
        time.sleep(0.3)
    assert len(less) and peak() - before > 190
    assert 1 <= len(looks) <= 20  # of some fifty samples
