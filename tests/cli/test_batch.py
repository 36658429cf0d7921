"""`vocabx batch` without Snakemake: what is refused before anything runs, and what is told at the end.

Batches that run are in tests/matrix/test_batches.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from vocabx_utils.cli import batch as module
from vocabx_utils.cli import main


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Call `vocabx batch` on a grid, with another program in the place of Snakemake."""
    monkeypatch.setenv("VOCABX_RUNS", str(tmp_path / "runs"))

    def run(text: str, *words: str, program: str = "exit 0") -> Result:
        (tmp_path / "grid.yaml").write_text(text)
        script = tmp_path / "program"
        script.write_text(f'#!/bin/sh\necho "$@" > {tmp_path / "called"}\ncd {tmp_path / "runs"} && {program}\n')
        script.chmod(0o755)
        (tmp_path / "runs").mkdir(exist_ok=True)
        monkeypatch.setattr(module, "snakemake", lambda: [str(script)])
        return CliRunner().invoke(main, ["batch", str(tmp_path / "grid.yaml"), *words], catch_exceptions=False)

    return run


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("overrides: {03: {epochs: 0}}", ["quick-s0", "03_phase1_training", "epochs"]),
        ("settings: {a: {}, b: {01: {n_tokens: -1}}}", ["quick-b-s0", "n_tokens"]),
        ("variants: [mean_kl_lastt]", ["mean_kl_lastt"]),
        ("variants: [mean_ce]", ["04_fine_tuning", "mean_kl_last"]),  # which 04 would tune and nothing makes
        ("gpus: 1", ["--gpus"]),
    ],
)
def test_what_a_notebook_would_refuse_is_refused_before_the_first_one_starts(
    call, tmp_path: Path, text: str, named: list[str]
) -> None:
    answer = call(text)
    assert answer.exit_code == 1
    assert [part for part in named if part not in answer.output] == []
    assert not (tmp_path / "called").exists()


def test_cores_are_jobs_times_threads_and_cards_may_be_shared(call, tmp_path: Path) -> None:
    call("threads: 3\ngpus: 1\njobs_per_gpu: 2\n", "--jobs", "4", "--gpus", "2", "--", "--forceall")
    words = (tmp_path / "called").read_text()
    assert "--cores 12 --resources gpu=4" in words
    assert words.strip().endswith("--forceall")
    call("threads: 3\n", "--jobs", "4", "--cluster", "slurm", "-n")
    words = (tmp_path / "called").read_text()
    assert "workflow/profiles/slurm --jobs 4" in words
    assert "--cores" not in words
    assert words.strip().endswith("--dry-run")


def test_the_end_names_cells_that_failed_with_error_and_log_and_those_that_wait(call) -> None:
    program = (
        "mkdir -p quick-s0/logs quick-s1/logs; touch quick-s0/01_tokenizer_extension.done;"
        "printf 'progress\\nError: 02 stopped\\nThe part that ran\\n' > quick-s0/logs/02_alignment.log;"
        "printf 'no words of ours\\n' > quick-s1/logs/01_tokenizer_extension.log; exit 1"
    )
    answer = call("seeds: [0, 1]\nnotebooks: [2]\n", program=program)
    assert answer.exit_code == 1
    assert answer.output.splitlines()[-8:] == [
        f"1 of 4 cells are done, in runs ({Path(answer.output.split('(')[-1].split(')')[0])}).",
        "quick-s0, 02_alignment failed; its log is runs/quick-s0/logs/02_alignment.log",
        "    Error: 02 stopped",
        "    The part that ran",
        "quick-s1, 01_tokenizer_extension failed; its log is runs/quick-s1/logs/01_tokenizer_extension.log",
        "    no words of ours",
        "quick-s1, 02_alignment was not started: it needs 01_tokenizer_extension",
        "Error: the batch is not finished. The same command continues it.",
    ]


def test_logs_of_an_earlier_batch_are_no_failures_of_this_one(call, tmp_path: Path) -> None:
    import os

    log = tmp_path / "runs" / "quick-s0" / "logs" / "01_tokenizer_extension.log"
    log.parent.mkdir(parents=True)
    log.write_text("Error: long ago\n")
    os.utime(log, (0, 0))
    answer = call("notebooks: [1]\n", program="exit 1")
    assert "quick-s0, 01_tokenizer_extension was not started" in answer.output
    assert "long ago" not in answer.output


def test_a_finished_batch_ends_well(call) -> None:
    answer = call("notebooks: [1]\n", program="mkdir -p quick-s0 && touch quick-s0/01_tokenizer_extension.done")
    assert answer.exit_code == 0, answer.output
    assert "1 of 1 cells are done" in answer.output
