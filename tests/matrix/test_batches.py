"""Batches by the Snakemake that `vocabx batch` brings: what runs again, what a fault leaves, cards, and a cluster.

Run by `make test-matrix`: the first call needs a package index, and the last test the default model. Notebooks are
stand-ins of seconds, but for that test; faults are real ones.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from compare_runs import differences
from fixtures.batch_project import ROOT, write_project
from fixtures.slurm import submitted, write_commands
from matrix.matrix_models import save_for_a_run

from vocabx_utils.cli.batch import snakemake
from vocabx_utils.files import read_json
from vocabx_utils.layers import NoIndexError
from vocabx_utils.locks import hold, release

VOCABX = [sys.executable, "-m", "vocabx_utils"]
Batch = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def call_snakemake() -> list[str]:
    """Words that call Snakemake."""
    try:
        return snakemake()
    except NoIndexError as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"batches were not run: {error}")


@pytest.fixture
def project(call_snakemake: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of stand-ins, whose runs go to `runs` beside it."""
    folder = write_project(tmp_path / "checkout")
    monkeypatch.setenv("VOCABX_ROOT", str(folder))
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def grid(project: Path, text: str) -> Path:
    (project / "grid.yaml").write_text(text)
    return project / "grid.yaml"


def batch(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Call `vocabx batch` on the grid."""
    command = [*VOCABX, "batch", "grid.yaml", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=project)


def executed(project: Path) -> dict[str, int]:
    """When each notebook was executed last, by run and number."""
    notebooks = (project / "runs").glob("*/*.ipynb")
    return {f"{path.parent.name}/{path.name[:2]}": path.stat().st_mtime_ns for path in notebooks}


def changed(project: Path, before: dict[str, int]) -> set[str]:
    return {place for place, when in executed(project).items() if before.get(place) != when}


def result(project: Path, run: str, stage: str) -> int:
    return read_json(next((project / "runs" / run).glob(f"{stage}_*/result.json")))


def test_finished_cells_are_skipped_and_a_change_runs_again_what_depends_on_it(project: Path) -> None:
    grid(project, "seeds: [0, 1]\nnotebooks: [2, 3]\n")
    done = batch(project, "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert "6 of 6 cells are done" in done.stdout
    assert [result(project, f"quick-s{seed}", "02") for seed in (0, 1)] == [4, 24]
    before = executed(project)
    assert len(before) == 6
    assert batch(project).returncode == 0
    assert changed(project, before) == set()
    grid(project, "seeds: [0, 1, 2]\nnotebooks: [2, 3]\noverrides: {02: {epochs: 5}}\n")
    assert batch(project, "--jobs", "2").returncode == 0
    assert changed(project, before) == {f"quick-s{seed}/02" for seed in (0, 1)} | {f"quick-s2/0{n}" for n in (1, 2, 3)}
    assert result(project, "quick-s1", "02") == 27
    before = executed(project)
    grid(project, "seeds: [0]\nnotebooks: [2, 3]\noverrides: {01: {epochs: 3}, 02: {epochs: 5}}\n")
    assert batch(project, "--jobs", "2").returncode == 0
    assert changed(project, before) == {f"quick-s0/0{n}" for n in (1, 2, 3)}
    assert (result(project, "quick-s0", "02"), result(project, "quick-s1", "02")) == (8, 27)
    seen = read_json(next((project / "runs/quick-s0").glob("01_*/seen.json")))
    assert (seen["OMP_NUM_THREADS"], seen["CUDA_VISIBLE_DEVICES"]) == ("1", "")


def test_an_error_and_a_dead_kernel_stop_only_what_needs_them_and_are_named(project: Path) -> None:
    faults = {"error": "ValueError: no such corpus", "dead": "the kernel died"}
    settings = "".join(f"  {how}: {{01: {{how: {how}}}}}\n" for how in ["well", *faults])
    text = f"notebooks: [1, 2]\nsettings:\n{settings}"
    grid(project, text)
    failed = batch(project, "--jobs", "2")
    assert failed.returncode == 1
    assert "2 of 6 cells are done" in failed.stdout
    assert "Error: the batch is not finished" in failed.stderr
    for how, said in faults.items():
        place = f"quick-{how}-s0"
        log = Path("runs") / place / "logs" / "01_tokenizer_extension.log"
        assert f"{place}, 01_tokenizer_extension failed; its log is {log}" in failed.stdout
        assert f"{place}, 02_alignment was not started: it needs 01_tokenizer_extension" in failed.stdout
        for told in ((project / log).read_text(), failed.stdout, failed.stderr):
            assert f'code cell 5 of 6 (`if how == "error":`): {said}' in told
    before = executed(project)
    grid(project, re.sub("how: (error|dead)", "how: well", text))
    done = batch(project, "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert changed(project, before) == {f"quick-{how}-s0/0{n}" for how in faults for n in (1, 2)}
    assert result(project, "quick-dead-s0", "02") == result(project, "quick-well-s0", "02") == 4


def test_a_notebook_that_takes_too_long_is_stopped_and_named(project: Path) -> None:
    grid(project, "notebooks: [1]\nminutes: 0.1\noverrides: {how: slow}\n")
    failed = batch(project)
    assert failed.returncode == 1
    assert "quick-s0, 01_tokenizer_extension failed; its log is runs/quick-s0/logs/" in failed.stdout
    assert re.search(r"01_tokenizer_extension stopped.*: it took longer than 0\.1 min", failed.stdout)
    grid(project, "notebooks: [1]\n")
    assert batch(project).returncode == 0


def wait_for(there: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not there():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.1)


def works(project: Path, run: str, stage: str) -> bool:
    """Whether a notebook is inside its stage."""
    return any((project / "runs" / run).glob(f"{stage}_*/key.json"))


def test_a_second_batch_is_refused_and_ctrl_c_ends_the_first_which_can_go_on(project: Path) -> None:
    text = "seeds: [0, 1]\nnotebooks: [1, 2]\noverrides: {02: {how: slow}}\n"
    grid(project, text)
    command = [*VOCABX, "batch", "grid.yaml", "--jobs", "2"]
    with (project / "out").open("w") as out:
        first = subprocess.Popen(command, stdout=out, stderr=out, cwd=project, start_new_session=True)
    wait_for(lambda: works(project, "quick-s0", "02") and works(project, "quick-s1", "02"))
    second = batch(project)
    assert second.returncode == 1
    assert f"is being written by process {first.pid}" in second.stderr
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does
    assert first.wait(timeout=60) == 1
    told = (project / "out").read_text()
    assert "2 of 4 cells are done" in told
    assert "quick-s0, 02_alignment failed; its log is runs/quick-s0/logs/02_alignment.log" in told
    assert "it was stopped by hand" in told
    place = project / "runs" / "quick-s0" / "02_alignment"
    assert hold(place)  # its kernel is gone
    release(place)
    before = executed(project)
    grid(project, text.replace("slow", "well"))
    done = batch(project, "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert changed(project, before) == {"quick-s0/02", "quick-s1/02"}


def test_a_batch_that_was_killed_goes_on(project: Path) -> None:
    grid(project, "notebooks: [1, 2]\noverrides: {02: {how: slow}}\n")
    first = subprocess.Popen([*VOCABX, "batch", "grid.yaml"], stdout=-3, stderr=-3, cwd=project, start_new_session=True)
    wait_for(lambda: works(project, "quick-s0", "02"))
    (inner,) = [
        int(line.split()[0])
        for line in subprocess.run(["ps", "-eo", "pid,ppid"], capture_output=True, text=True).stdout.splitlines()[1:]
        if line.split()[1] == str(first.pid)
    ]
    first.kill()
    os.killpg(inner, signal.SIGKILL)  # Snakemake and its jobs, as when a machine goes down
    first.wait()
    before = executed(project)
    grid(project, "notebooks: [1, 2]\n")
    wait_for(lambda: batch(project).returncode == 0)  # the kernel notices within a second that it is alone
    assert changed(project, before) == {"quick-s0/02"}


def test_a_full_disk_ends_the_batch_which_goes_on_with_space(project: Path) -> None:
    jail = ["bwrap", "--dev-bind", "/", "/", "--size", str(3 << 20), "--tmpfs", str(project / "runs")]
    (project / "runs").mkdir()
    if shutil.which("bwrap") is None or subprocess.run([*jail, "true"], capture_output=True).returncode:
        pytest.skip("bubblewrap cannot make a small disk here")
    grid(project, "seeds: [0, 1]\nnotebooks: [1, 2]\noverrides: {02: {how: full}}\n")
    (project / "well.yaml").write_text("seeds: [0, 1]\nnotebooks: [1, 2]\n")
    called = " ".join(VOCABX)
    script = (
        f"{called} batch grid.yaml --jobs 2 > full 2>&1; echo $? > codes; rm runs/*/*/rows.bin;"
        f"{called} batch well.yaml --jobs 2 > well 2>&1; echo $? >> codes; cat runs/*/02_*/result.json > results"
    )
    subprocess.run([*jail, "sh", "-c", script], cwd=project, timeout=300, check=True)
    told = (project / "full").read_text()
    assert (project / "codes").read_text().split() == ["1", "0"], told
    assert "No space left on device" in told
    assert re.search(r"quick-s\d, 02_alignment failed; its log is runs/quick-s\d/logs/02_alignment\.log", told)
    assert (project / "results").read_text().split() == ["4", "24"]


def overlaps(seen: list[dict[str, float]]) -> bool:
    ordered = sorted(seen, key=lambda one: one["from"])
    return any(before["to"] > after["from"] for before, after in itertools.pairwise(ordered))


def by_card(project: Path) -> dict[str, list[dict[str, float]]]:
    """When the notebooks ran, by the cards that they saw."""
    found: dict[str, list[dict[str, float]]] = {}
    for path in (project / "runs").glob("*/*/seen.json"):
        seen = read_json(path)
        found.setdefault(seen["CUDA_VISIBLE_DEVICES"], []).append(seen)
    return found


def test_each_job_sees_its_own_card(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    grid(project, "seeds: [0, 1, 2]\nnotebooks: [0, 1]\ngpus: 1\nthreads: 2\n")
    refused = batch(project, "--jobs", "3")
    assert refused.returncode == 1
    assert "expected --gpus" in refused.stderr
    done = batch(project, "--jobs", "3", "--gpus", "2")
    assert done.returncode == 0, done.stderr
    found = by_card(project)
    assert set(found) == {"3", "5"}
    assert not any(overlaps(seen) for seen in found.values())
    assert {one["OMP_NUM_THREADS"] for seen in found.values() for one in seen} == {"2"}


def test_on_a_cluster_every_notebook_is_a_job_with_its_card(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = write_commands(project / "slurm", ["1", "4"])
    monkeypatch.setenv("PATH", f"{project / 'slurm'}:{os.environ['PATH']}")
    quick = ["--", "--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "5"]
    text = "seeds: [0, 1]\nnotebooks: [1]\ngpus: 1\nthreads: 2\nminutes: 5\n"
    grid(project, text + "settings: {a: {}, b: {}}\noverrides: {}\n")
    done = batch(project, "--cluster", "slurm", "--jobs", "4", *quick)
    assert done.returncode == 0, done.stdout + done.stderr
    found = by_card(project)
    assert set(found) == {"1", "4"}
    assert sum(map(len, found.values())) == 4
    assert not any(overlaps(seen) for seen in found.values())
    assert {one["OMP_NUM_THREADS"] for seen in found.values() for one in seen} == {"2"}
    words, state = submitted(jobs)["1"]
    assert state == "COMPLETED"
    assert {"--gpus=1", "--cpus-per-task=2"} <= set(words)
    assert words[words.index("-t") + 1] == "15"  # ours comes first, and says more
    before = executed(project)
    grid(project, text + "settings: {a: {how: error}, b: {}}\n")
    failed = batch(project, "--cluster", "slurm", "--jobs", "4", *quick)
    assert failed.returncode == 1
    assert "2 of 4 cells are done" in failed.stdout
    assert "quick-a-s0, 01_tokenizer_extension failed; its log is" in failed.stdout
    assert "ValueError: no such corpus" in failed.stdout
    assert changed(project, before) == {f"quick-a-s{seed}/01" for seed in range(2)}
    assert sorted(state for _, state in submitted(jobs).values()) == ["COMPLETED"] * 4 + ["FAILED"] * 2


def test_ctrl_c_cancels_the_jobs_of_a_cluster(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = write_commands(project / "slurm")
    monkeypatch.setenv("PATH", f"{project / 'slurm'}:{os.environ['PATH']}")
    grid(project, "notebooks: [1]\noverrides: {how: slow}\n")
    command = [*VOCABX, "batch", "grid.yaml", "--cluster", "slurm"]
    command += ["--", "--slurm-init-seconds-before-status-checks", "1"]
    first = subprocess.Popen(command, stdout=-1, stderr=-2, text=True, cwd=project, start_new_session=True)
    wait_for(lambda: works(project, "quick-s0", "01"))
    os.killpg(first.pid, signal.SIGINT)
    told = first.communicate(timeout=60)[0]
    assert first.returncode == 1, told
    assert submitted(jobs)["1"][1] == "CANCELLED"
    log = project / "runs/quick-s0/logs/01_tokenizer_extension.log"
    wait_for(lambda: "it was told to end (SIGTERM)" in log.read_text())


def test_the_environment_of_snakemake_lacks_nothing(call_snakemake: list[str]) -> None:
    """Every package of its lock finds what it needs, there or among those of this environment."""
    code = (
        "import importlib.metadata as m, re, sys\n"
        "from packaging.requirements import Requirement\n"
        "for name in sys.argv[1:]:\n"
        "    for text in m.requires(name) or []:\n"
        "        r = Requirement(text)\n"
        "        if (r.marker is None or r.marker.evaluate({'extra': ''})) and m.version(r.name) not in r.specifier:\n"
        "            print(name, text, m.version(r.name))\n"
    )
    lines = (ROOT / "requirements-batch.lock").read_text(encoding="utf-8").splitlines()
    names = [line.split("==")[0] for line in lines if "==" in line and not line.startswith("#")]
    answer = subprocess.run([call_snakemake[0], "-c", code, *names], capture_output=True, text=True, check=True)
    assert answer.stdout == ""


def test_a_fresh_checkout_can_plan_the_shipped_grid(call_snakemake: list[str], tmp_path: Path) -> None:
    checkout = tmp_path / "fresh"
    names = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT, check=True).stdout.split("\n")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (checkout / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, checkout / name)
    clean = {key: text for key, text in os.environ.items() if not key.startswith(("VOCABX_", "PYTHONPATH"))}
    command = [*call_snakemake, "-n", "-s", "workflow/Snakefile"]
    plan = subprocess.run(command, capture_output=True, text=True, cwd=checkout, env=clean)
    assert plan.returncode == 0, plan.stderr
    assert re.search(r"notebook_06_mechanistic_analysis +3\n", plan.stdout)
    assert re.search(r"total +22\n", plan.stdout)


TINY = """\
model: MODEL
01: {n_tokens: 8, tokenizer_pairs: 120, train_pairs: 120, validation_pairs: 40, comparison_bytes: 20000}
02: {texts: 60, kl_texts: 2}
03:
  variants: [mean_untrained, mean_ce, mean_kl_last]
  epochs: 1
  train_windows: 24
  validation_windows: 16
  window: 32
  require_improvement: false
packages: [seaborn]
"""


def test_two_runs_at_a_time_equal_runs_one_by_one(
    call_snakemake: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notebooks 01 to 03 themselves, on a model of random weights with a real tokenizer."""
    save_for_a_run(tmp_path / "model")
    profile = tmp_path / "tiny.yaml"
    profile.write_text(TINY.replace("MODEL", str(tmp_path / "model")))
    grid(tmp_path, "profile: tiny.yaml\nseeds: [0, 1]\nnotebooks: [1, 2, 3]\n")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path / "runs"))
    done = batch(tmp_path, "--jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path / "alone"))
    for seed in ("0", "1"):
        name = f"tiny-s{seed}"
        words = ["--profile", str(profile), "--run-name", name, "-p", "seed", seed]
        only = ["--only", "01", "--only", "02", "--only", "03"]
        subprocess.run([*VOCABX, "run", *only, *words], check=True, capture_output=True)
        assert list(differences(tmp_path / "alone" / name, tmp_path / "runs" / name)) == []
        assert len(list((tmp_path / "runs" / name).rglob("*.safetensors"))) > 3
