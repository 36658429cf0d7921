"""Folders that are whole or not there, and the space that they need."""

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from vocabx_utils import folders, locks


def test_a_result_that_does_not_fit_is_refused_with_its_margin(tmp_path, monkeypatch):
    free = folders.MARGIN + (3 << 20)
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda place: SimpleNamespace(free=free if place.exists() else 0))
    place = tmp_path / "not" / "yet"  # its disk is that of the nearest folder that exists
    assert folders.require_space(place, 3 << 20, "the result", "make room") == free
    with pytest.raises(
        folders.SpaceError, match=r"the result needs 3\.0 MiB \+ 256 MiB margin .* 259\.0 MiB are free; make"
    ):
        folders.require_space(place, (3 << 20) + 1, "the result", "make room")
    assert not place.parent.exists()


def fill(path, **options):
    with folders.atomic_folder(path, **options) as scratch:
        (scratch / "a").write_text("new")


def names(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


def test_a_folder_appears_whole_with_the_mode_of_any_other(tmp_path):
    (tmp_path / "plain").mkdir()
    with folders.atomic_folder(tmp_path / "deep" / "out") as scratch:
        (scratch / "a").touch()
        assert not (tmp_path / "deep" / "out").exists()
    assert names(tmp_path) == ["deep", "deep/out", "deep/out/a", "plain"]
    assert (tmp_path / "deep" / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_error_leaves_what_was_there(tmp_path):
    (tmp_path / "empty").mkdir()
    for place in ("deep/out", "empty"):
        with pytest.raises(KeyError), folders.atomic_folder(tmp_path / place) as scratch:
            (scratch / "a").touch()
            raise KeyError
    assert names(tmp_path) == ["empty"]


def test_an_empty_folder_is_filled_and_stays_the_same_folder(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    same = out.stat().st_ino
    fill(out)
    assert out.stat().st_ino == same and names(out) == ["a"]


def test_what_stands_there_is_refused_or_replaced(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError, match="not a folder"):
        fill(tmp_path / "file", replace=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old").touch()
    with pytest.raises(FileExistsError, match="exists and is not empty"):
        fill(tmp_path / "out")
    fill(tmp_path / "out", replace=True)
    assert names(tmp_path) == ["file", "out", "out/a"]


def test_a_place_that_cannot_be_written_is_named_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file/out cannot be written \(.*\)\. Give another folder"):
        fill(tmp_path / "file" / "out")
    assert names(tmp_path) == ["file"]


KILLED = """
import os, signal, sys
from vocabx_utils.folders import atomic_folder
with atomic_folder(sys.argv[1]) as scratch:
    (scratch / "half").touch()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("exists", [False, True])
def test_what_a_killed_writer_left_goes_with_the_next_one(tmp_path, exists):
    out = tmp_path / ("a" * 240)  # its temporary names are cut to what a file system takes
    if exists:
        out.mkdir()
    assert subprocess.run([sys.executable, "-c", KILLED, str(out)]).returncode == -signal.SIGKILL
    assert any(name.endswith("half") for name in names(tmp_path))
    other = tmp_path / f".{out.name[:200]}-b-1234567"  # of a writer to another folder, which may still be at work
    other.mkdir()
    fill(out)
    assert names(tmp_path) == [other.name, out.name, f"{out.name}/a"]


def test_a_second_writer_is_sent_away(tmp_path):
    out = tmp_path / "out"
    code = (
        "import sys; from vocabx_utils.folders import atomic_folder\n"
        "with atomic_folder(sys.argv[1]): print('held', flush=True); input()"
    )
    command = [sys.executable, "-c", code, str(out)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        with pytest.raises(locks.BusyError, match=f"process {process.pid} on"):
            fill(out)
        process.kill()
    fill(out)
    assert names(tmp_path) == ["out", "out/a"]
