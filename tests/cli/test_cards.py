"""Two processes never get one card unless they are told to share it; a cluster's choice stands."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vocabx_utils.cli import cards
from vocabx_utils.cli.cards import NoCardError, own_cards


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cards 3 and 5, nobody else's locks, and no patience."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(cards, "_WAIT_S", 0.1)


@pytest.fixture
def other() -> Iterator[str]:
    """Another process that holds a card; yields which."""
    code = (
        "import sys\nfrom vocabx_utils.cli.cards import own_cards\n"
        "with own_cards(1) as seen:\n    print(seen, flush=True)\n    sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def test_the_card_of_another_process_is_not_taken(other: str) -> None:
    assert other == "3"
    with own_cards(1) as seen:
        assert seen == "5"
    with pytest.raises(NoCardError, match=r"2 cards.*1 of 2 \(3, 5\) are free"), own_cards(2):
        pass


def test_jobs_that_are_told_to_share_a_card_do(other: str) -> None:
    with own_cards(2, jobs_per_card=2) as seen:
        assert seen == "3,5"


def test_a_card_is_free_again_when_its_process_is_killed() -> None:
    code = "from vocabx_utils.cli.cards import own_cards\nimport os\nwith own_cards(2):\n    os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == -9
    with own_cards(2) as seen:
        assert seen == "3,5"


def test_all_cards_and_none() -> None:
    with own_cards(2) as seen:
        assert seen == "3,5"
    with own_cards(0) as seen:
        assert seen == ""
    with pytest.raises(NoCardError, match="this machine shows 2"), own_cards(3):
        pass


def test_in_a_slurm_job_the_schedulers_choice_stands(monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    for count in (0, 1):  # a part of a card is asked for in Slurm's own words
        with own_cards(count) as seen:
            assert seen is None
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    with own_cards(0) as seen:
        assert seen == ""  # the node may show cards of other jobs


def test_without_a_variable_nvidia_smi_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoCardError, match="shows 0"), own_cards(1):
        pass
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\necho 0\necho 1\n")
    script.chmod(0o755)
    with own_cards(2) as seen:
        assert seen == "0,1"
